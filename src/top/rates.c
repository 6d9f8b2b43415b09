#include "top/rates.h"

#include "plan/watch.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static double over(double part, double whole)
{
    return whole > 0 ? part / whole : NAN;
}

/* Of the clock's time. Figures may be a moment younger than the look at the clock. */
static double busy_share(double busy_ns, double clock_ns)
{
    const double share = over(busy_ns, clock_ns);
    return isnan(share) ? share : fmax(0, fmin(1, share));
}

/* What a counter has grown by; counters do not go back. */
static uint64_t growth(const struct ats_live_device *before, const struct ats_live_device *now,
                       enum ats_live_figure figure)
{
    const uint64_t from = before->figures[figure];
    const uint64_t to = now->figures[figure];
    return to > from ? to - from : 0;
}

uint64_t ats_top_busy_ns(const struct ats_live_device *device, uint64_t at_ns)
{
    const uint64_t since = device->figures[ATS_LIVE_BUSY_SINCE_NS];
    const uint64_t running = since > 0 && at_ns > since ? at_ns - since : 0;
    return device->figures[ATS_LIVE_BUSY_NS] + running;
}

double ats_top_idle_s(const struct ats_live_device *device, uint64_t at_ns)
{
    const uint64_t updated = device->figures[ATS_LIVE_UPDATED_NS];
    if (device->figures[ATS_LIVE_BUSY_SINCE_NS] > 0 || at_ns <= updated) {
        return 0;
    }
    return (double)(at_ns - updated) * 1e-9;
}

const char *ats_top_reason(const struct ats_live_device *device)
{
    const uint64_t reason = device->figures[ATS_LIVE_REPLAN_REASON];
    if (reason == ATS_WATCH_NOTHING) {
        return NULL;
    }
    return reason < ATS_WATCH_REASONS ? ats_watch_reason_text((enum ats_watch_reason)reason)
                                      : "unknown";
}

static const struct ats_top_rates nothing = {
    .answer_per_s = NAN,
    .prompt_per_s = NAN,
    .busy = NAN,
    .cpu = NAN,
    .accel = NAN,
    .stalled = NAN,
    .to_accel_gbps = NAN,
    .to_host_gbps = NAN,
    .promoted_per_token = NAN,
    .splits_per_graph = NAN,
    .expert_hits = NAN,
};

struct ats_top_rates ats_top_compare(const struct ats_live_device *before, uint64_t before_ns,
                                     const struct ats_live_device *now, uint64_t now_ns)
{
    if (before == NULL) {
        return nothing;
    }
#define GROWTH(figure) growth(before, now, figure)
    const double answer_ns = (double)GROWTH(ATS_LIVE_ANSWER_NS);
    const double prompt_ns = (double)GROWTH(ATS_LIVE_PROMPT_NS);
    const double pass_ns = answer_ns + prompt_ns;
    const double hits = (double)GROWTH(ATS_LIVE_EXPERT_HITS);
    const double misses = (double)GROWTH(ATS_LIVE_EXPERT_MISSES);
    const uint64_t answer_tokens = GROWTH(ATS_LIVE_ANSWER_TOKENS);
    const uint64_t prompt_tokens = GROWTH(ATS_LIVE_PROMPT_TOKENS);
    const double busy_ns =
        (double)ats_top_busy_ns(now, now_ns) - (double)ats_top_busy_ns(before, before_ns);
    const double clock_ns = now_ns > before_ns ? (double)(now_ns - before_ns) : 0;
    return (struct ats_top_rates){
        .pass_s = pass_ns * 1e-9,
        .answer_tokens = answer_tokens,
        .prompt_tokens = prompt_tokens,
        .answer_per_s = over((double)answer_tokens * 1e9, answer_ns),
        .prompt_per_s = over((double)prompt_tokens * 1e9, prompt_ns),
        .busy = busy_share(busy_ns, clock_ns),
        .cpu = over((double)GROWTH(ATS_LIVE_CPU_NS), pass_ns),
        .accel = over((double)GROWTH(ATS_LIVE_ACCEL_NS), pass_ns),
        .stalled = over((double)GROWTH(ATS_LIVE_STALLED_NS), pass_ns),
        .to_accel_gbps = over((double)GROWTH(ATS_LIVE_TO_ACCEL_BYTES), pass_ns),
        .to_host_gbps = over((double)GROWTH(ATS_LIVE_TO_HOST_BYTES), pass_ns),
        .promoted_per_token =
            over((double)GROWTH(ATS_LIVE_PROMOTED_BYTES), (double)(answer_tokens + prompt_tokens)),
        .splits_per_graph = over((double)GROWTH(ATS_LIVE_SPLITS), (double)GROWTH(ATS_LIVE_GRAPHS)),
        .expert_hits = over(hits, hits + misses),
    };
#undef GROWTH
}

/* The same process in the sample before, or NULL. */
static const struct ats_top_entry *find(const struct ats_top_sample *sample,
                                        const struct ats_live_process *process)
{
    for (size_t i = 0; sample != NULL && i < sample->n; i++) {
        const struct ats_live_process *other = &sample->entries[i].process;
        if (strcmp(other->file, process->file) == 0 && other->started_s == process->started_s &&
            other->n_devices == process->n_devices) {
            return &sample->entries[i];
        }
    }
    return NULL;
}

static void compare_entry(struct ats_top_entry *entry, const struct ats_top_entry *before,
                          uint64_t before_ns, uint64_t now_ns)
{
    for (uint32_t i = 0; i < entry->process.n_devices; i++) {
        const struct ats_live_device *now = &entry->process.devices[i];
        const struct ats_live_device *then = before != NULL ? &before->process.devices[i] : NULL;
        struct ats_top_rates *rates = &entry->rates[i];
        *rates = ats_top_compare(then, before_ns, now, now_ns);
        if (then != NULL && now->figures[ATS_LIVE_BUSY_SINCE_NS] > 0 &&
            growth(then, now, ATS_LIVE_GRAPHS) == 0) {
            const double busy = rates->busy;
            *rates = before->rates[i];
            rates->busy = busy;
            rates->pass_s = 0;
            rates->answer_tokens = 0;
            rates->prompt_tokens = 0;
        }
    }
}

bool ats_top_sample_make(struct ats_top_sample *sample, const struct ats_live_process *processes,
                         size_t n, double unix_s, uint64_t at_ns,
                         const struct ats_top_sample *before)
{
    *sample = (struct ats_top_sample){.unix_s = unix_s, .at_ns = at_ns};
    const uint64_t before_ns = before != NULL ? before->at_ns : at_ns;
    sample->interval_s = at_ns > before_ns ? (double)(at_ns - before_ns) * 1e-9 : 0;
    if (n == 0) {
        return true;
    }
    sample->entries = calloc(n, sizeof(*sample->entries));
    if (sample->entries == NULL) {
        return false;
    }
    sample->n = n;
    for (size_t i = 0; i < n; i++) {
        sample->entries[i].process = processes[i];
        compare_entry(&sample->entries[i], find(before, &processes[i]), before_ns, at_ns);
    }
    return true;
}

void ats_top_sample_free(struct ats_top_sample *sample)
{
    free(sample->entries);
    *sample = (struct ats_top_sample){0};
}
