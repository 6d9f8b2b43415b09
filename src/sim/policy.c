#include "sim/policy.h"

#include "sim/ats.h"
#include "sim/experts.h"
#include "sim/place.h"
#include "sim/splits.h"

#include <string.h>

static const struct ats_sim_policy policies[] = {
    {"cpu", "no GPU at all", ats_sim_place_cpu, ats_sim_schedule_cpu, NULL},
    {"ngl=", "llama.cpp -ngl N", ats_sim_place_ngl, ats_sim_schedule_stock, NULL},
    {"layers", "llama.cpp with the largest -ngl that fits", ats_sim_place_layers,
     ats_sim_schedule_stock, NULL},
    {"n-cpu-moe=", "llama.cpp --n-cpu-moe N", ats_sim_place_cpu_moe, ats_sim_schedule_stock, NULL},
    {"moe", "llama.cpp with the smallest --n-cpu-moe that fits", ats_sim_place_moe,
     ats_sim_schedule_stock, NULL},
    {"fit", "llama.cpp --fit (its default)", ats_sim_place_fit, ats_sim_schedule_stock, NULL},
    {"ats-placement", "ATS, the rule fill, weights copied in order", ats_sim_place_fill,
     ats_sim_schedule_in_order, NULL},
    {"ats-async", "ATS, the rule fill, weights copied ahead", ats_sim_place_fill,
     ats_sim_schedule_ahead, NULL},
    {"ats-solved", "ATS with the placement that is predicted to be the fastest",
     ats_sim_place_solved, ats_sim_schedule_ahead, NULL},
    {"ats-experts", "ATS, the rule fill with experts by slice", ats_sim_place_slices,
     ats_sim_schedule_ahead, ats_sim_forget_slices},
    {"ats-auto", "ATS as it decides by itself (its default)", ats_sim_place_auto,
     ats_sim_schedule_ahead, ats_sim_forget_slices},
    {"ats-auto-whole", "the same with experts by whole layers (ATS_EXPERTS=whole)",
     ats_sim_place_whole, ats_sim_schedule_ahead, NULL},
    {"ats-auto-serial", "the same, weights copied in order (ATS_TRANSFER=serial)",
     ats_sim_place_whole, ats_sim_schedule_in_order, NULL},
    {"plan=", "ATS with a plan file", ats_sim_place_plan, ats_sim_schedule_ahead, NULL},
};

const struct ats_sim_policy *ats_sim_policies(size_t *n)
{
    *n = sizeof policies / sizeof policies[0];
    return policies;
}

static bool is_named(const struct ats_sim_policy *policy, const char *text, size_t length)
{
    const size_t own = strcspn(policy->name, "=");
    return own == length && memcmp(policy->name, text, length) == 0;
}

const struct ats_sim_policy *ats_sim_policy_find(const char *text, const char **argument,
                                                 struct ats_error *err)
{
    const size_t length = strcspn(text, "=");
    *argument = text[length] == '=' ? text + length + 1 : NULL;
    for (size_t i = 0; i < sizeof policies / sizeof policies[0]; i++) {
        const struct ats_sim_policy *policy = &policies[i];
        if (!is_named(policy, text, length)) {
            continue;
        }
        const bool takes = strchr(policy->name, '=') != NULL;
        if (takes == (*argument != NULL && **argument != '\0')) {
            return policy;
        }
        ats_fail(err,
                 takes ? "the policy %s needs a value: %s=..." : "the policy %s takes no value",
                 text, text);
        return NULL;
    }
    ats_fail(err,
             "unknown policy '%s'; known are cpu, ngl=N, layers, n-cpu-moe=N, moe, fit, "
             "ats-placement, ats-async, ats-solved, ats-experts, ats-auto, ats-auto-whole, "
             "ats-auto-serial, plan=FILE",
             text);
    return NULL;
}
