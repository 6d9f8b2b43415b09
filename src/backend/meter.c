#include "backend/meter.h"

#include "backend/graph_plan.h"
#include "backend/stream.h"

#include <time.h>

double ats_meter_now_us(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return 1e6 * (double)now.tv_sec + 1e-3 * (double)now.tv_nsec;
}

static unsigned long long ns_of(double us)
{
    return us > 0 ? (unsigned long long)(1e3 * us) : 0;
}

void ats_meter_start(struct ats_stream *stream)
{
    stream->meter.rng.state = stream->device->config->adapt_seed;
    ats_watch_start(&stream->meter.watch, ats_meter_now_us());
    stream->rates = ats_plan_rates_assumed; /* until a graph is planned */
}

/* ---- between passes ---- */

bool ats_meter_watches(const struct ats_stream *stream)
{
    return stream->device->config->adapt == ATS_ADAPT_AUTO && stream->device->keeps_time &&
           stream->staging.buffer != NULL;
}

static void count(struct ats_stream *stream)
{
    struct ats_device_counters *counters = &stream->device->counters;
    const struct ats_pass_times *pass = &stream->meter.pass;
    const uint32_t n = stream->meter.n_tokens;
    if (n > 1) {
        counters->prompt_tokens += n;
        counters->prompt_ns += ns_of(pass->wall_us);
    } else if (n == 1) {
        counters->answer_tokens += n;
        counters->answer_ns += ns_of(pass->wall_us);
    }
    counters->cpu_ns += ns_of(pass->us[ATS_HOST]);
    counters->accel_ns += ns_of(pass->us[ATS_ACCEL]);
    counters->stalled_ns += ns_of(pass->stalled_us);
}

static void tell(const struct ats_stream *stream, enum ats_watch_reason reason)
{
    const struct ats_drift *drift = &stream->meter.watch.planned;
    ats_log_info("%s: planned anew: %s; CPU %.2f, accelerator %.2f, link %.2f times the profile's "
                 "time, %.0f us late\n",
                 stream->device->name, ats_watch_reason_text(reason), drift->side[ATS_HOST],
                 drift->side[ATS_ACCEL], drift->link, drift->late_us);
}

void ats_meter_settle(struct ats_stream *stream)
{
    struct ats_meter *meter = &stream->meter;
    if (meter->counts && !meter->is_counted) {
        meter->is_counted = true;
        meter->pass.wall_us = meter->seen_us - meter->begin_us;
        count(stream);
    }
}

void ats_meter_judge(struct ats_stream *stream)
{
    struct ats_meter *meter = &stream->meter;
    struct ats_device_counters *counters = &stream->device->counters;
    ats_meter_settle(stream);
    if (!meter->counts) {
        return;
    }
    meter->counts = false;
    meter->pass.n_tokens = meter->n_tokens;
    if (stream->device->config->adapt == ATS_ADAPT_RANDOM) {
        meter->watch.planned = ats_drift_draw(&meter->rng);
        stream->n_rates++;
        return;
    }
    if (!ats_meter_watches(stream) || !meter->is_current || meter->n_tokens == 0 ||
        meter->n_tokens > ATS_WATCH_MOST_TOKENS) {
        return;
    }
    ats_watch_take_lateness(&meter->pass, meter->stretches, meter->n_stretches);
    const enum ats_watch_reason reason =
        ats_watch_pass(&meter->watch, &meter->pass, ats_meter_now_us());
    if (reason == ATS_WATCH_NOTHING) {
        return;
    }
    stream->n_rates++;
    counters->replans++;
    counters->rollbacks += reason == ATS_WATCH_TAKEN_BACK;
    counters->replan_reason = (int)reason;
    tell(stream, reason);
}

/* ---- during a pass ---- */

static double look(struct ats_meter *meter)
{
    meter->seen_us = ats_meter_now_us();
    return meter->seen_us;
}

void ats_meter_begin(struct ats_stream *stream, const struct ats_graph_plan *plan)
{
    struct ats_meter *meter = &stream->meter;
    meter->begin_us = look(meter);
    meter->busy_since_us = stream->in_flight ? meter->begin_us : 0;
    meter->stretch_profile_us = 0;
    meter->stretch_computes = false;
    meter->stretch_stalled = false;
    meter->n_stretches = 0;
    meter->n_tokens = plan->n_tokens;
    meter->is_current = plan->n_rates == stream->n_rates;
    meter->pass = (struct ats_pass_times){0};
    meter->arrived_us = 0;
    meter->arrived_late = false;
    meter->counts = false;
    meter->is_counted = false;
}

void ats_meter_end(struct ats_stream *stream, bool well)
{
    look(&stream->meter);
    stream->meter.counts = well;
}

static void give(struct ats_meter *meter, double profile_us)
{
    meter->stretch_profile_us += profile_us;
    if (meter->busy_since_us <= 0) {
        meter->busy_since_us = meter->seen_us;
    }
}

void ats_meter_given(struct ats_stream *stream, double profile_us)
{
    give(&stream->meter, profile_us);
    stream->meter.stretch_computes = true;
}

void ats_meter_copy(struct ats_stream *stream, size_t bytes)
{
    const struct ats_partition_costs *costs = &stream->device->rates.costs;
    give(&stream->meter, costs->copy_latency_us + (double)bytes / costs->link_bytes_per_us);
}

static void end_stretch(struct ats_meter *meter)
{
    const double us = meter->seen_us - meter->busy_since_us;
    if (!meter->stretch_stalled) {
        meter->pass.us[ATS_ACCEL] += us;
        meter->pass.profile_us[ATS_ACCEL] += meter->stretch_profile_us;
        if (meter->n_stretches < ATS_METER_STRETCHES) {
            meter->stretches[meter->n_stretches++] =
                (struct ats_stretch){.us = us, .profile_us = meter->stretch_profile_us};
        }
    }
    meter->stretch_profile_us = 0;
    meter->stretch_computes = false;
    meter->stretch_stalled = false;
    meter->busy_since_us = 0;
}

void ats_meter_idle(struct ats_stream *stream)
{
    struct ats_meter *meter = &stream->meter;
    look(meter);
    if (meter->busy_since_us > 0) {
        end_stretch(meter);
    }
}

void ats_meter_look(struct ats_stream *stream)
{
    look(&stream->meter);
}

void ats_meter_cpu(struct ats_stream *stream, double profile_us)
{
    struct ats_meter *meter = &stream->meter;
    const double since_us = meter->seen_us;
    meter->pass.us[ATS_HOST] += look(meter) - since_us;
    meter->pass.profile_us[ATS_HOST] += profile_us;
}

void ats_meter_note_given(struct ats_stream *stream, struct ats_promotion_step *step)
{
    step->given_us = look(&stream->meter);
    step->given_cpu_us = stream->meter.pass.us[ATS_HOST];
}

/* The bytes that would have crossed in that time at the profile's rates. */
static double credit_of(const struct ats_stream *stream, double us, double cpu_us)
{
    const struct ats_partition_costs *costs = &stream->rates.costs;
    return stream->meter.watch.planned.link * (cpu_us * costs->link_beside_cpu_bytes_per_us +
                                               (us - cpu_us) * costs->least_link_bytes_per_us);
}

void ats_meter_arrived(struct ats_stream *stream, const struct ats_promotion_step *step,
                       double since_us)
{
    static const double LEAST_US = 30; /* what a wait for nothing takes */
    struct ats_meter *meter = &stream->meter;
    const double now_us = look(meter);
    const double cpu_us = meter->pass.us[ATS_HOST];
    const bool late = now_us - since_us > LEAST_US;
    const bool queued = step->given_us < meter->arrived_us;
    if (late && (!queued || meter->arrived_late)) {
        const double from_us = queued ? meter->arrived_us : step->given_us;
        const double from_cpu_us = queued ? meter->arrived_cpu_us : step->given_cpu_us;
        meter->pass.credit_bytes += credit_of(stream, now_us - from_us, cpu_us - from_cpu_us);
        meter->pass.crossed_bytes += (double)step->bytes;
    }
    meter->pass.stalled_us += now_us - since_us;
    if (meter->stretch_computes) { /* and waited then, nobody knows from when on */
        meter->stretch_stalled = meter->stretch_stalled || late;
    } else if (meter->busy_since_us > 0) { /* with copies of activations, which are there by now */
        meter->busy_since_us += now_us - since_us;
    }
    meter->arrived_us = now_us;
    meter->arrived_cpu_us = cpu_us;
    meter->arrived_late = late;
}
