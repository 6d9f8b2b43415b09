#include "load/phases.h"

#include "base/parse.h"

#include <stdio.h>
#include <string.h>

static const double MAX_SECONDS = 3600;
static const double MAX_TOKENS = 1 << 20;
static const double MAX_FACTOR = 1000; /* src/emu/load.h */

/* A process of higher priority that took more would take the machine away from its user. */
static const double MAX_CPU_PERCENT = 95;

bool load_phase_has_cpu(const struct load_phase *phase)
{
    return phase->cpu_from > 0 || phase->cpu_to > 0;
}

bool load_phase_has_accel(const struct load_phase *phase)
{
    return phase->compute > 1 || phase->link > 1;
}

/* "20s" or "512t"; returns what follows, NULL if it is wrong. */
static const char *read_length(const char *text, struct load_phase *phase)
{
    double number = 0;
    const char *unit = ats_parse_decimal(text, &number);
    if (unit == NULL || number <= 0) {
        return NULL;
    }
    if (*unit == 's' && number <= MAX_SECONDS) {
        phase->seconds = number;
        return unit + 1;
    }
    phase->tokens = *unit == 't' && number <= MAX_TOKENS ? (uint64_t)number : 0;
    return phase->tokens > 0 && (double)phase->tokens == number ? unit + 1 : NULL;
}

static const char *read_cpu(const char *text, struct load_phase *phase)
{
    const char *at = ats_parse_decimal(text, &phase->cpu_from);
    phase->cpu_to = phase->cpu_from;
    if (at != NULL && *at == '-') {
        at = ats_parse_decimal(at + 1, &phase->cpu_to);
    }
    return phase->cpu_from <= MAX_CPU_PERCENT && phase->cpu_to <= MAX_CPU_PERCENT ? at : NULL;
}

static const char *read_factor(const char *text, double *factor)
{
    const char *at = ats_parse_decimal(text, factor);
    return at != NULL && *factor >= 1 && *factor <= MAX_FACTOR ? at : NULL;
}

static bool starts_with(const char *text, const char *key)
{
    return strncmp(text, key, strlen(key)) == 0;
}

static bool parse_phase(const char *text, struct load_phase *phase)
{
    *phase = (struct load_phase){.compute = 1, .link = 1};
    const char *at = read_length(text, phase);
    char before = ':';
    while (at != NULL && *at == before) {
        at++;
        if (starts_with(at, "cpu=")) {
            at = read_cpu(at + strlen("cpu="), phase);
        } else if (starts_with(at, "compute=")) {
            at = read_factor(at + strlen("compute="), &phase->compute);
        } else if (starts_with(at, "link=")) {
            at = read_factor(at + strlen("link="), &phase->link);
        } else {
            return false;
        }
        before = ',';
    }
    return at != NULL && *at == '\0';
}

bool load_phases_parse(const char *text, struct load_phase *phases, size_t *n,
                       struct ats_error *err)
{
    *n = 0;
    for (const char *at = text;; at++) {
        char phase[96];
        const size_t length = strcspn(at, ";");
        snprintf(phase, sizeof(phase), "%.*s",
                 (int)(length < sizeof(phase) ? length : sizeof(phase)), at);
        if (*n == LOAD_PHASES) {
            return ats_fail(err, "more than %d phases: '%s'", LOAD_PHASES, phase);
        }
        if (!parse_phase(phase, &phases[*n])) {
            return ats_fail(err,
                            "'%s' is no phase; write e.g. 20s, 512t, 30s:cpu=60, 120s:cpu=0-30 or "
                            "30s:compute=2.5,link=2.5, separated by ';'",
                            phase);
        }
        (*n)++;
        at += length;
        if (*at == '\0') {
            return true;
        }
    }
}
