#include "plan/watch.h"

#include <math.h>
#include <stdlib.h>

/* Published: deviation of 15 %, five times the time of a pass. */
static const double DEVIATION = 1.15;
static const double INTERVAL_PASSES = 5;
/* What a deviation must be worth, of a pass. */
static const double LEAST_EFFECT = 0.05;
/* A new plan may take so much longer than the old one before it is taken back. */
static const double WORSE = 1.05;
/* Waits of this share of a pass mean that the link is what it waits for. */
static const double STALLED = 0.02;
static const double NOT_STALLED = 0.005;
/* Less than this cannot be compared: clocks, and what a wait itself takes. */
static const double LEAST_US = 50;
/* Of the accelerator's stretches: overheads are too large a part of shorter ones. */
static const double LEAST_STRETCH_US = 100;
static const double PROBE_FIRST_US = 2e6;
static const double PROBE_LAST_US = 60e6;
static const double PROBE_STEP = 1.5;
static const double MOST_PATIENCE = 64;
/* Nobody waits for longer, for the end of a load above all. */
static const double MOST_INTERVAL_US = 1.5e6;
/* A plan that lasts for fewer passes makes the next one wait longer. */
static const double SOON_PASSES = 40;
/* Patience is halved after so many intervals without a new plan. */
static const double QUIET_INTERVALS = 4;
/* No machine is so much slower or faster: such times are not a pass's. */
static const double MOST_DRIFT = 100;
/* A link that is waited for is taken to be a little slower than it looks, so that the next plan has
 * no waits. */
static const double MARGIN = 1.05;
/* Of a machine that others use less is known: crossing has to promise so much more than holding. */
static const float MOST_OF_HELD_IF_SHARED = 0.85F;

const struct ats_drift ats_no_drift = {.side = {1, 1}, .link = 1};

const char *ats_watch_reason_text(enum ats_watch_reason reason)
{
    static const char *const texts[ATS_WATCH_REASONS] = {
        [ATS_WATCH_NOTHING] = "nothing has changed",
        [ATS_WATCH_CPU_SLOWER] = "the CPU is slower",
        [ATS_WATCH_CPU_FASTER] = "the CPU is faster",
        [ATS_WATCH_ACCEL_SLOWER] = "the accelerator is slower",
        [ATS_WATCH_ACCEL_FASTER] = "the accelerator is faster",
        [ATS_WATCH_LINK_SLOWER] = "the link is slower",
        [ATS_WATCH_LINK_TRIED] = "the link may be faster again",
        [ATS_WATCH_SIDE_TRIED] = "the idle side may be faster again",
        [ATS_WATCH_HOST_LATE] = "the host goes on late",
        [ATS_WATCH_HOST_IN_TIME] = "the host goes on in time",
        [ATS_WATCH_TAKEN_BACK] = "the new plan was slower",
    };
    return (unsigned)reason < ATS_WATCH_REASONS ? texts[reason] : texts[ATS_WATCH_NOTHING];
}

/* ---- what was seen ---- */

void ats_watch_take_lateness(struct ats_pass_times *pass, const struct ats_stretch *stretches,
                             size_t n)
{
    double ratio = INFINITY;
    double us = 0;
    double profile_us = 0;
    for (size_t i = 0; i < n; i++) {
        const struct ats_stretch *stretch = &stretches[i];
        if (stretch->profile_us >= LEAST_STRETCH_US) {
            ratio = fmin(ratio, stretch->us / stretch->profile_us);
        }
        us += stretch->us;
        profile_us += stretch->profile_us;
    }
    if (isinf(ratio)) {
        return;
    }
    const double own_us = fmin(ratio * profile_us, us);
    pass->us[ATS_ACCEL] -= us - own_us;
    pass->late_us = us - own_us;
    pass->n_stretches = (double)n;
}

static int compare(const void *a, const void *b)
{
    const double x = *(const double *)a;
    const double y = *(const double *)b;
    return (x > y) - (x < y);
}

/* The median of n values, of which there is at least one. */
static double median(double *values, size_t n)
{
    qsort(values, n, sizeof(*values), compare);
    return values[n / 2];
}

static double within(double drift)
{
    return fmin(fmax(drift, 1 / MOST_DRIFT), MOST_DRIFT);
}

static double median_wall(const struct ats_watch *w)
{
    double values[ATS_WATCH_PASSES];
    for (size_t i = 0; i < ATS_WATCH_PASSES; i++) {
        values[i] = w->passes[i].wall_us;
    }
    return median(values, ATS_WATCH_PASSES);
}

/* A side that had too little to do keeps the drift that it had. Of the accelerator the quickest
 * pass counts: what it takes ends for the host when that goes on, which may be late but never
 * early. */
static double side_drift(const struct ats_watch *w, enum ats_side side)
{
    double values[ATS_WATCH_PASSES];
    size_t n = 0;
    for (size_t i = 0; i < ATS_WATCH_PASSES; i++) {
        const struct ats_pass_times *pass = &w->passes[i];
        if (pass->profile_us[side] >= LEAST_US && pass->us[side] > 0) {
            values[n++] = pass->us[side] / pass->profile_us[side];
        }
    }
    if (2 * n <= ATS_WATCH_PASSES) {
        return w->planned.side[side];
    }
    const double middle = median(values, n); /* which has put them in order */
    return within(side == ATS_ACCEL ? values[0] : middle);
}

static double late_us(const struct ats_watch *w)
{
    double values[ATS_WATCH_PASSES];
    for (size_t i = 0; i < ATS_WATCH_PASSES; i++) {
        const struct ats_pass_times *pass = &w->passes[i];
        values[i] = pass->n_stretches > 0 ? pass->late_us / pass->n_stretches : 0;
    }
    return median(values, ATS_WATCH_PASSES);
}

static double stalled_share(const struct ats_watch *w)
{
    double values[ATS_WATCH_PASSES];
    for (size_t i = 0; i < ATS_WATCH_PASSES; i++) {
        values[i] = w->passes[i].stalled_us / w->passes[i].wall_us;
    }
    return median(values, ATS_WATCH_PASSES);
}

/* Of a link that was waited for: what could have crossed over what did. */
static double link_drift(const struct ats_watch *w)
{
    double values[ATS_WATCH_PASSES];
    size_t n = 0;
    for (size_t i = 0; i < ATS_WATCH_PASSES; i++) {
        const struct ats_pass_times *pass = &w->passes[i];
        if (pass->crossed_bytes > 0) {
            values[n++] = pass->credit_bytes / pass->crossed_bytes;
        }
    }
    const bool seen = 2 * n > ATS_WATCH_PASSES;
    return seen ? within(fmax(median(values, n) * MARGIN, 1)) : w->planned.link;
}

/* ---- deviations ---- */

static bool deviates(double drift, double from)
{
    return drift > from * DEVIATION || drift * DEVIATION < from;
}

/* The share of a pass that a side's deviation makes. */
static double effect(const struct ats_watch *w, enum ats_side side)
{
    double us = 0;
    double wall_us = 0;
    for (size_t i = 0; i < ATS_WATCH_PASSES; i++) {
        us += w->passes[i].profile_us[side];
        wall_us += w->passes[i].wall_us;
    }
    return us / wall_us * fabs(w->seen.side[side] - w->judged.side[side]);
}

/* The share of a pass that the host's being late makes more or less than it was. */
static double late_effect(const struct ats_watch *w)
{
    double n = 0;
    double wall_us = 0;
    for (size_t i = 0; i < ATS_WATCH_PASSES; i++) {
        n += w->passes[i].n_stretches;
        wall_us += w->passes[i].wall_us;
    }
    return n * (w->seen.late_us - w->judged.late_us) / wall_us;
}

/* Whether a side has too little to do for its drift to be seen. */
static bool is_idle(const struct ats_watch *w, enum ats_side side)
{
    size_t n = 0;
    for (size_t i = 0; i < ATS_WATCH_PASSES; i++) {
        n += w->passes[i].profile_us[side] >= LEAST_US;
    }
    return 2 * n <= ATS_WATCH_PASSES;
}

static enum ats_watch_reason find_reason(const struct ats_watch *w, double now_us)
{
    static const enum ats_watch_reason reasons[ATS_SIDES][2] = {
        [ATS_HOST] = {ATS_WATCH_CPU_SLOWER, ATS_WATCH_CPU_FASTER},
        [ATS_ACCEL] = {ATS_WATCH_ACCEL_SLOWER, ATS_WATCH_ACCEL_FASTER},
    };
    enum ats_watch_reason reason = ATS_WATCH_NOTHING;
    double most = LEAST_EFFECT;
    for (int s = 0; s < ATS_SIDES; s++) {
        if (deviates(w->seen.side[s], w->judged.side[s]) && effect(w, (enum ats_side)s) > most) {
            most = effect(w, (enum ats_side)s);
            reason = reasons[s][w->seen.side[s] < w->judged.side[s]];
        }
    }
    if (reason != ATS_WATCH_NOTHING) {
        return reason;
    }
    if (fabs(late_effect(w)) > DEVIATION - 1) {
        return late_effect(w) > 0 ? ATS_WATCH_HOST_LATE : ATS_WATCH_HOST_IN_TIME;
    }
    const double stalled = stalled_share(w);
    if (stalled > STALLED && w->seen.link > w->judged.link * DEVIATION) {
        return ATS_WATCH_LINK_SLOWER;
    }
    if (now_us - w->planned_at_us <= w->probe_after_us) {
        return ATS_WATCH_NOTHING;
    }
    if (stalled < NOT_STALLED && w->planned.link > 1) {
        return ATS_WATCH_LINK_TRIED;
    }
    const bool hidden = (is_idle(w, ATS_HOST) && w->planned.side[ATS_HOST] > DEVIATION) ||
                        (is_idle(w, ATS_ACCEL) && w->planned.side[ATS_ACCEL] > DEVIATION);
    const bool forgotten = w->planned.late_us > 2 * w->seen.late_us + LEAST_US;
    return hidden || forgotten ? ATS_WATCH_SIDE_TRIED : ATS_WATCH_NOTHING;
}

/* ---- plans ---- */

void ats_watch_start(struct ats_watch *w, double now_us)
{
    *w = (struct ats_watch){.planned = ats_no_drift,
                            .seen = ats_no_drift,
                            .judged = ats_no_drift,
                            .planned_at_us = now_us,
                            .patience = 1,
                            .probe_after_us = PROBE_FIRST_US,
                            .retry_after_us = PROBE_FIRST_US,
                            .quiet_since_us = now_us};
}

static void use(struct ats_watch *w, const struct ats_drift *drift, double now_us)
{
    w->before.drift = w->planned;
    w->before.wall_us = median_wall(w);
    w->planned = *drift;
    w->judged = w->seen;
    w->judged.link = drift->link;
    w->planned_at_us = now_us;
    w->quiet_since_us = now_us;
    w->n_passes = 0;
}

/* The drift to plan by, for a reason. */
static struct ats_drift next_drift(const struct ats_watch *w, enum ats_watch_reason reason)
{
    struct ats_drift drift = w->seen;
    drift.link = w->planned.link;
    if (reason == ATS_WATCH_LINK_SLOWER) {
        drift.link = w->seen.link;
    }
    if (reason == ATS_WATCH_ACCEL_SLOWER) { /* what takes it may take the link as well */
        drift.link = fmax(drift.link, w->seen.side[ATS_ACCEL]);
    }
    if (reason == ATS_WATCH_LINK_TRIED) {
        drift.link = fmax(w->planned.link / PROBE_STEP, 1);
    }
    for (int s = 0; s < ATS_SIDES && reason == ATS_WATCH_SIDE_TRIED; s++) {
        if (is_idle(w, (enum ats_side)s)) {
            drift.side[s] = fmax(drift.side[s] / PROBE_STEP, 1);
        }
    }
    if (reason == ATS_WATCH_CPU_FASTER || reason == ATS_WATCH_ACCEL_FASTER) {
        drift.link = 1; /* what took them may have taken the link as well */
    }
    return drift;
}

static void note_probe(struct ats_watch *w, enum ats_watch_reason reason)
{
    const bool tries = reason == ATS_WATCH_LINK_TRIED || reason == ATS_WATCH_SIDE_TRIED;
    if (w->tried && !tries) { /* in vain, as it is given up again */
        w->probe_after_us = fmin(2 * w->probe_after_us, PROBE_LAST_US);
    } else if (!tries && reason != ATS_WATCH_LINK_SLOWER) {
        w->probe_after_us = PROBE_FIRST_US;
    }
    w->tried = tries;
}

static void plan_anew(struct ats_watch *w, enum ats_watch_reason reason, double now_us)
{
    const struct ats_drift drift = next_drift(w, reason);
    if (w->before.is_there && now_us - w->planned_at_us < SOON_PASSES * median_wall(w)) {
        w->patience = fmin(2 * w->patience, MOST_PATIENCE);
    }
    note_probe(w, reason);
    w->assumed = reason == ATS_WATCH_ACCEL_SLOWER && drift.link > w->planned.link;
    use(w, &drift, now_us);
    w->was_taken_back = false;
    w->before.is_there = true;
}

/* The plan before was better, and the machine is as it was when it was left. */
static bool is_worse(const struct ats_watch *w)
{
    return w->before.is_there && w->before.wall_us > 0 &&
           !deviates(w->seen.side[ATS_HOST], w->judged.side[ATS_HOST]) &&
           !deviates(w->seen.side[ATS_ACCEL], w->judged.side[ATS_ACCEL]) &&
           median_wall(w) > WORSE * w->before.wall_us;
}

static void take_back(struct ats_watch *w, double now_us)
{
    const double in_vain = w->planned.link;
    struct ats_drift drift = w->before.drift;
    if (w->assumed) { /* only that was wrong */
        drift = w->planned;
        drift.link = w->before.drift.link;
    }
    w->assumed = false;
    use(w, &drift, now_us);
    w->judged.link = fmax(w->judged.link, in_vain);
    w->was_taken_back = true;
    w->before.is_there = false; /* nothing to go back to */
    if (w->tried) {
        w->probe_after_us = fmin(2 * w->probe_after_us, PROBE_LAST_US);
    } else {
        w->patience = fmin(2 * w->patience, MOST_PATIENCE);
    }
    w->tried = false;
}

static bool is_time(const struct ats_pass_times *pass)
{
    return isfinite(pass->wall_us) && pass->wall_us > 0 && isfinite(pass->us[ATS_HOST]) &&
           isfinite(pass->us[ATS_ACCEL]) && isfinite(pass->late_us) && isfinite(pass->credit_bytes);
}

/* Whether a pass is of another number of tokens than those before. If as many in a row are as make
 * a median, they are the ones to compare. */
static bool is_other(struct ats_watch *w, const struct ats_pass_times *pass)
{
    const bool other = w->n_passes > 0 && pass->n_tokens != w->passes[0].n_tokens;
    w->n_others = other ? w->n_others + 1 : 0;
    if (w->n_others < ATS_WATCH_PASSES) {
        return other;
    }
    w->n_others = 0;
    w->n_passes = 0;
    w->before.wall_us = 0; /* of other passes */
    return false;
}

enum ats_watch_reason ats_watch_pass(struct ats_watch *w, const struct ats_pass_times *pass,
                                     double now_us)
{
    if (!is_time(pass) || is_other(w, pass)) {
        return ATS_WATCH_NOTHING;
    }
    w->passes[w->n_passes++ % ATS_WATCH_PASSES] = *pass;
    if (w->n_passes < ATS_WATCH_PASSES) {
        return ATS_WATCH_NOTHING;
    }
    w->seen = (struct ats_drift){
        .side = {[ATS_HOST] = side_drift(w, ATS_HOST), [ATS_ACCEL] = side_drift(w, ATS_ACCEL)},
        .link = stalled_share(w) > STALLED ? link_drift(w) : w->planned.link,
        .late_us = late_us(w),
    };
    if (is_worse(w)) {
        take_back(w, now_us);
        return ATS_WATCH_TAKEN_BACK;
    }
    const double least_us = INTERVAL_PASSES * median_wall(w);
    const double interval_us = fmax(least_us, fmin(least_us * w->patience, MOST_INTERVAL_US));
    if (w->n_passes == ATS_WATCH_PASSES) {
        w->before.wall_us = 0; /* judged once */
        w->retry_after_us = w->was_taken_back ? w->retry_after_us : PROBE_FIRST_US;
    }
    if (now_us - w->quiet_since_us > QUIET_INTERVALS * interval_us && w->patience > 1) {
        w->patience /= 2;
        w->quiet_since_us = now_us;
    }
    if (now_us - w->planned_at_us < interval_us) {
        return ATS_WATCH_NOTHING;
    }
    if (w->was_taken_back && now_us - w->planned_at_us > w->retry_after_us) {
        w->was_taken_back = false; /* what deviates from its plan counts again */
        w->retry_after_us = fmin(2 * w->retry_after_us, PROBE_LAST_US);
        w->judged = w->planned;
    }
    const enum ats_watch_reason reason = find_reason(w, now_us);
    if (reason != ATS_WATCH_NOTHING) {
        plan_anew(w, reason, now_us);
    }
    return reason;
}

/* ---- for tests ---- */

static double draw(struct ats_rng *rng)
{
    return pow(4, (double)ats_rng_below(rng, 2001) / 1000 - 1);
}

struct ats_drift ats_drift_draw(struct ats_rng *rng)
{
    if (ats_rng_below(rng, 2) == 0) {
        return ats_no_drift;
    }
    return (struct ats_drift){.side = {draw(rng), draw(rng)},
                              .link = draw(rng),
                              .late_us = (double)ats_rng_below(rng, 100)};
}

/* ---- rates ---- */

bool ats_drift_has_cpu_load(const struct ats_drift *drift)
{
    return drift->side[ATS_HOST] > DEVIATION;
}

static void slow_down(struct ats_device_rates *rates, double drift)
{
    for (size_t t = 0; t < sizeof(rates->vram_gbps) / sizeof(rates->vram_gbps[0]); t++) {
        rates->vram_gbps[t] /= drift;
        rates->matmul_tflops[t] /= drift;
    }
    rates->small_op_gbps /= drift;
    rates->launch_us *= drift;
}

static double most_gbps(const struct ats_device_rates *rates)
{
    double most = 0;
    for (size_t t = 0; t < sizeof(rates->vram_gbps) / sizeof(rates->vram_gbps[0]); t++) {
        most = fmax(most, rates->vram_gbps[t]);
    }
    return most;
}

struct ats_plan_rates ats_plan_rates_drifted(const struct ats_plan_rates *rates,
                                             const struct ats_drift *drift)
{
    struct ats_plan_rates out = *rates;
    slow_down(&out.side[ATS_HOST], drift->side[ATS_HOST]);
    slow_down(&out.side[ATS_ACCEL], drift->side[ATS_ACCEL]);
    /* 1 GB/s is a thousand bytes per microsecond */
    const double left = 1e3 * (most_gbps(&rates->side[ATS_HOST]) - most_gbps(&out.side[ATS_HOST]));
    const double beside = fmin(rates->costs.link_bytes_per_us,
                               rates->costs.link_beside_cpu_bytes_per_us + fmax(left, 0));
    out.costs.split_us += (float)drift->late_us;
    const bool as_profiled = !deviates(drift->side[ATS_HOST], 1) &&
                             !deviates(drift->side[ATS_ACCEL], 1) && !deviates(drift->link, 1);
    if (!as_profiled) {
        out.costs.most_of_held = fminf(out.costs.most_of_held, MOST_OF_HELD_IF_SHARED);
    }
    out.costs.link_bytes_per_us = (float)(rates->costs.link_bytes_per_us / drift->link);
    out.costs.least_link_bytes_per_us = (float)(rates->costs.least_link_bytes_per_us / drift->link);
    out.costs.link_beside_cpu_bytes_per_us = (float)(beside / drift->link);
    return out;
}
