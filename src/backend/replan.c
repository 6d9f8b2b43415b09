#include "backend/replan.h"

#include "backend/graph_plan.h"
#include "backend/stream.h"

static void *make(void *data)
{
    struct ats_stream *stream = data;
    struct ats_replan *replan = &stream->replan;
    const double since_us = ats_meter_now_us();
    replan->plan = ats_graph_plan_beside(stream, replan->cgraph, replan->epoch);
    stream->device->counters.beside_ns +=
        (unsigned long long)(1e3 * (ats_meter_now_us() - since_us));
    return NULL;
}

void ats_replan_begin(struct ats_stream *stream, const struct ggml_cgraph *cgraph,
                      struct ats_graph_plan *plan)
{
    struct ats_replan *replan = &stream->replan;
    if (plan->n_rates == stream->n_rates) {
        return;
    }
    replan->cgraph = cgraph;
    replan->epoch = plan->epoch;
    replan->old = plan;
    replan->runs = pthread_create(&replan->thread, NULL, make, stream) == 0;
    plan->needs_more = !replan->runs;
}

void ats_replan_end(struct ats_stream *stream)
{
    struct ats_replan *replan = &stream->replan;
    if (!replan->runs) {
        return;
    }
    const double since_us = ats_meter_now_us();
    pthread_join(replan->thread, NULL);
    replan->runs = false;
    replan->old->needs_more = replan->plan == NULL;
    stream->device->counters.replan_ns +=
        (unsigned long long)(1e3 * (ats_meter_now_us() - since_us));
}

struct ats_graph_plan *ats_replan_take(struct ats_stream *stream)
{
    struct ats_graph_plan *plan = stream->replan.plan;
    stream->replan.plan = NULL;
    return plan;
}
