/* `ats top --json`. */
#include "top/show.h"

#include <math.h>

/* JSON has no NAN: nothing of the kind is null. */
static json_t *real(double value)
{
    return isfinite(value) ? json_real(value) : json_null();
}

static json_int_t figure(const struct ats_live_device *device, enum ats_live_figure f)
{
    return (json_int_t)device->figures[f];
}

/* Since the process began. */
static json_t *describe_totals(const struct ats_live_device *d, uint64_t at_ns)
{
    return json_pack(
        "{s:I, s:I, s:I, s:{s:I, s:I}, s:{s:I, s:I}, s:I, s:I, s:I, s:I, s:I, s:I, s:I, "
        "s:{s:I, s:I, s:I}, s:I}",
        "graphs", figure(d, ATS_LIVE_GRAPHS), "plans_built", figure(d, ATS_LIVE_PLANS_BUILT),
        "splits", figure(d, ATS_LIVE_SPLITS), "prompt", "tokens", figure(d, ATS_LIVE_PROMPT_TOKENS),
        "ns", figure(d, ATS_LIVE_PROMPT_NS), "answer", "tokens", figure(d, ATS_LIVE_ANSWER_TOKENS),
        "ns", figure(d, ATS_LIVE_ANSWER_NS), "busy_ns", (json_int_t)ats_top_busy_ns(d, at_ns),
        "cpu_ns", figure(d, ATS_LIVE_CPU_NS), "accel_ns", figure(d, ATS_LIVE_ACCEL_NS),
        "stalled_ns", figure(d, ATS_LIVE_STALLED_NS), "copied_to_accel_bytes",
        figure(d, ATS_LIVE_TO_ACCEL_BYTES), "copied_to_host_bytes",
        figure(d, ATS_LIVE_TO_HOST_BYTES), "promoted_bytes", figure(d, ATS_LIVE_PROMOTED_BYTES),
        "experts", "hits", figure(d, ATS_LIVE_EXPERT_HITS), "misses",
        figure(d, ATS_LIVE_EXPERT_MISSES), "admitted_bytes", figure(d, ATS_LIVE_EXPERT_BYTES),
        "replan_ns", figure(d, ATS_LIVE_REPLAN_NS));
}

/* As they are now. */
static json_t *describe_memory(const struct ats_live_device *d)
{
    return json_pack("{s:I, s:I, s:{s:I, s:I}, s:{s:I, s:I}}", "budget_bytes",
                     figure(d, ATS_LIVE_BUDGET_BYTES), "used_bytes", figure(d, ATS_LIVE_USED_BYTES),
                     "vram", "weights_bytes", figure(d, ATS_LIVE_WEIGHTS_VRAM_BYTES), "kv_bytes",
                     figure(d, ATS_LIVE_STATE_VRAM_BYTES), "host", "weights_bytes",
                     figure(d, ATS_LIVE_WEIGHTS_HOST_BYTES), "kv_bytes",
                     figure(d, ATS_LIVE_STATE_HOST_BYTES));
}

/* Since the sample before. */
static json_t *describe_rates(const struct ats_top_rates *r)
{
    return json_pack(
        "{s:f, s:{s:I, s:o}, s:{s:I, s:o}, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o}", "pass_s",
        r->pass_s, "answer", "tokens", (json_int_t)r->answer_tokens, "tokens_per_s",
        real(r->answer_per_s), "prompt", "tokens", (json_int_t)r->prompt_tokens, "tokens_per_s",
        real(r->prompt_per_s), "busy", real(r->busy), "cpu", real(r->cpu), "accelerator",
        real(r->accel), "stalled", real(r->stalled), "to_accel_gbps", real(r->to_accel_gbps),
        "to_host_gbps", real(r->to_host_gbps), "promoted_bytes_per_token",
        real(r->promoted_per_token), "splits_per_graph", real(r->splits_per_graph),
        "expert_hit_rate", real(r->expert_hits));
}

static json_t *describe_device(const struct ats_live_device *d, const struct ats_top_rates *rates,
                               uint64_t at_ns)
{
    const char *reason = ats_top_reason(d);
    return json_pack("{s:s, s:s, s:b, s:I, s:f, s:o, s:o, s:I, s:I, s:I, s:s?, s:o}", "name",
                     d->name, "accelerator", d->accelerator, "emulated",
                     d->figures[ATS_LIVE_EMULATED] != 0, "contexts", figure(d, ATS_LIVE_CONTEXTS),
                     "idle_s", ats_top_idle_s(d, at_ns), "rates", describe_rates(rates), "memory",
                     describe_memory(d), "last_splits", figure(d, ATS_LIVE_LAST_SPLITS), "replans",
                     figure(d, ATS_LIVE_REPLANS), "rollbacks", figure(d, ATS_LIVE_ROLLBACKS),
                     "replan_reason", reason, "totals", describe_totals(d, at_ns));
}

json_t *ats_top_json(const struct ats_top_sample *sample)
{
    json_t *processes = json_array();
    bool ok = processes != NULL;
    for (size_t i = 0; ok && i < sample->n; i++) {
        const struct ats_top_entry *entry = &sample->entries[i];
        json_t *devices = json_array();
        for (uint32_t k = 0; k < entry->process.n_devices; k++) {
            ok = ok && json_array_append_new(devices,
                                             describe_device(&entry->process.devices[k],
                                                             &entry->rates[k], sample->at_ns)) == 0;
        }
        json_t *process = json_pack("{s:I, s:s, s:I, s:o}", "pid", (json_int_t)entry->process.pid,
                                    "program", entry->process.program, "started_s",
                                    (json_int_t)entry->process.started_s, "devices", devices);
        ok = json_array_append_new(processes, process) == 0 && ok;
    }
    json_t *root = json_pack("{s:s, s:f, s:f, s:o, s:I}", "format", "ats-top-1", "time_s",
                             sample->unix_s, "interval_s", sample->interval_s, "processes",
                             processes, "other_versions", (json_int_t)sample->n_other);
    if (!ok) {
        json_decref(root);
        return NULL;
    }
    return root;
}
