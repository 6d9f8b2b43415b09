#include "emu/rig_scale.h"

#include <stdlib.h>
#include <string.h>

static const double MIN_FACTOR = 1e-4;
static const double MAX_FACTOR = 1e4;

static bool read_factor(const char *text, double *factor, struct ats_error *err)
{
    char *end = NULL;
    *factor = strtod(text, &end);
    return (end != text && *end == '\0' && *factor >= MIN_FACTOR && *factor <= MAX_FACTOR) ||
           ats_fail(err, "ATS_RIG_SCALE: '%.60s' is not a number from 0.0001 to 10000", text);
}

static bool read_reference(enum ats_type_family *reference, struct ats_error *err)
{
    const char *text = getenv("ATS_RIG_TYPE");
    *reference = ATS_FAMILY_Q4;
    if (text == NULL || text[0] == '\0') {
        return true;
    }
    static const enum ats_type_family allowed[] = {ATS_FAMILY_Q4, ATS_FAMILY_F16, ATS_FAMILY_MXFP4};
    for (size_t i = 0; i < sizeof(allowed) / sizeof(allowed[0]); i++) {
        if (strcmp(text, ats_family_name(allowed[i])) == 0) {
            *reference = allowed[i];
            return true;
        }
    }
    return ats_fail(err, "ATS_RIG_TYPE: '%.60s' is not q4, f16 or mxfp4", text);
}

bool ats_rig_scale(const struct ats_rig *rig, ggml_backend_dev_t cpu, struct ats_rig_scale *scale,
                   struct ats_error *err)
{
    *scale = (struct ats_rig_scale){.host = {.threads = ats_host_threads()}};
    const char *given = getenv("ATS_RIG_SCALE");
    if (!read_reference(&scale->reference, err)) {
        return false;
    }
    if (given != NULL && given[0] != '\0') {
        scale->given = true;
        return read_factor(given, &scale->factor, err);
    }
    if (cpu == NULL) {
        return ats_fail(err,
                        "rig '%s' is scaled to this machine's CPU, but ggml's CPU backend is not "
                        "loaded; load it first, or set ATS_RIG_SCALE=FACTOR",
                        rig->name);
    }
    if (!ats_host_speed_get(cpu, scale->host.threads, &scale->host, err)) {
        return false;
    }
    scale->factor = scale->host.matvec_gbps[scale->reference] / rig->rates.cpu_gbps;
    scale->compute_ratio = scale->host.matmul_gflops / (rig->cpu_gflops * scale->factor);
    return true;
}

struct ats_device_rates ats_rig_scaled_rates(const struct ats_rig *rig,
                                             const struct ats_rig_scale *scale)
{
    struct ats_device_rates rates = rig->rates;
    ats_rates_scale(&rates, scale->factor);
    rates.cpu_threads = scale->host.threads;
    return rates;
}
