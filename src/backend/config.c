#include "backend/config.h"

#include "base/parse.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static const char *value_of(const char *name)
{
    const char *value = getenv(name);
    return value != NULL && value[0] != '\0' ? value : NULL;
}

/* The files that ATS_PLAN_OUT writes for the second device and those behind it. */
static bool read_other_devices(const char *path, struct ats_placement_table *table,
                               struct ats_error *err)
{
    char more[4096];
    bool ok = true;
    for (int device = 1; ok; device++) {
        snprintf(more, sizeof(more), "%s.ATS%d", path, device);
        if (access(more, F_OK) != 0) {
            break;
        }
        ok = ats_placement_read_more(more, table, err);
    }
    return ok;
}

static bool read_rule(const char *text, struct ats_config *config, struct ats_error *err)
{
    struct ats_error reason = {{0}};
    if (ats_rule_parse(text, &config->rule, &reason)) {
        return true;
    }
    if (reason.text[0] != '\0') {
        return ats_fail(err, "ATS_PLACEMENT: %.400s", reason.text);
    }
    if (access(text, F_OK) != 0) {
        return ats_fail(err,
                        "ATS_PLACEMENT=%s is neither a rule (fill, host, vram, random:SEED) "
                        "nor an existing plan file",
                        text);
    }
    if (!ats_placement_read(text, &config->table, &reason) ||
        !read_other_devices(text, &config->table, &reason)) {
        return ats_fail(err, "ATS_PLACEMENT: %.400s", reason.text);
    }
    config->rule = (struct ats_rule){.kind = ATS_RULE_TABLE, .table = &config->table};
    return true;
}

bool ats_config_read(struct ats_config *config, struct ats_error *err)
{
    *config = (struct ats_config){
        .accel = value_of("ATS_ACCEL"),
        .plan_out = value_of("ATS_PLAN_OUT"),
        .stats = value_of("ATS_STATS"),
        .rule = {.kind = ATS_RULE_FILL},
    };
    const char *budget = value_of("ATS_VRAM");
    if (budget != NULL) {
        struct ats_error reason = {{0}};
        if (!ats_parse_bytes(budget, &config->budget, &reason)) {
            return ats_fail(err, "ATS_VRAM: %.400s", reason.text);
        }
        config->has_budget = true;
    }
    const char *rule = value_of("ATS_PLACEMENT");
    return rule == NULL || read_rule(rule, config, err);
}
