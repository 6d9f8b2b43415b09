#include "emu/inject.h"

#include "base/parse.h"

#include <stdio.h>
#include <string.h>

static const char *const op_names[ATS_EMU_OP_COUNT] = {
    [ATS_EMU_OP_ALLOC] = "alloc",     [ATS_EMU_OP_PINNED] = "pinned", [ATS_EMU_OP_COPY] = "copy",
    [ATS_EMU_OP_COMPUTE] = "compute", [ATS_EMU_OP_LOSS] = "loss",
};

const char *ats_emu_op_name(enum ats_emu_op op)
{
    return op_names[op];
}

bool ats_emu_inject_parse_rule(const char *text, struct ats_emu_inject_rule *rule,
                               struct ats_error *err)
{
    char number[32];
    const size_t length = strlen(text);
    const bool onwards = length > 0 && text[length - 1] == '+';
    const size_t digits = length - (onwards ? 1 : 0);
    uint64_t from = 0;
    if (digits < sizeof(number)) {
        memcpy(number, text, digits);
        number[digits] = '\0';
    }
    if (digits >= sizeof(number) || !ats_parse_u64(number, UINT64_MAX, &from, NULL) || from == 0) {
        return ats_fail(err, "'%s' is not a failure count; write N (from 1) or N+", text);
    }
    *rule = (struct ats_emu_inject_rule){.from = from, .onwards = onwards};
    return true;
}

static bool parse_item(const char *item, struct ats_emu_inject_rules *rules, struct ats_error *err)
{
    const char *colon = strchr(item, ':');
    for (int op = 0; colon != NULL && op < ATS_EMU_OP_COUNT; op++) {
        const size_t length = strlen(op_names[op]);
        if ((size_t)(colon - item) == length && memcmp(item, op_names[op], length) == 0) {
            return ats_emu_inject_parse_rule(colon + 1, &rules->rule[op], err);
        }
    }
    return ats_fail(err,
                    "'%s' is not a failure; write alloc:N, pinned:N, copy:N, compute:N or loss:N, "
                    "with N+ for all from the Nth on, separated by commas, or off",
                    item);
}

bool ats_emu_inject_parse(const char *spec, struct ats_emu_inject_rules *rules,
                          struct ats_error *err)
{
    struct ats_emu_inject_rules parsed = {0};
    if (strcmp(spec, "off") == 0) {
        *rules = parsed;
        return true;
    }
    for (const char *at = spec;; at++) {
        char item[64];
        const size_t length = strcspn(at, ",");
        snprintf(item, sizeof(item), "%.*s", (int)(length < sizeof(item) ? length : sizeof(item)),
                 at);
        if (!parse_item(item, &parsed, err)) {
            return false;
        }
        at += length;
        if (*at == '\0') {
            *rules = parsed;
            return true;
        }
    }
}

void ats_emu_injector_init(struct ats_emu_injector *injector,
                           const struct ats_emu_inject_rules *rules)
{
    *injector = (struct ats_emu_injector){.rules = *rules};
    pthread_mutex_init(&injector->lock, NULL);
}

void ats_emu_injector_destroy(struct ats_emu_injector *injector)
{
    pthread_mutex_destroy(&injector->lock);
}

void ats_emu_injector_set(struct ats_emu_injector *injector,
                          const struct ats_emu_inject_rules *rules)
{
    pthread_mutex_lock(&injector->lock);
    injector->rules = *rules;
    memset(injector->count, 0, sizeof(injector->count));
    pthread_mutex_unlock(&injector->lock);
}

bool ats_emu_injector_hits(struct ats_emu_injector *injector, enum ats_emu_op op)
{
    pthread_mutex_lock(&injector->lock);
    const struct ats_emu_inject_rule rule = injector->rules.rule[op];
    const uint64_t count = ++injector->count[op];
    pthread_mutex_unlock(&injector->lock);
    return rule.from > 0 && (count == rule.from || (rule.onwards && count > rule.from));
}
