#include "backend/replan.h"

#include "backend/graph_plan.h"
#include "backend/stream.h"

static unsigned long long ns_since(double us)
{
    return (unsigned long long)(1e3 * (ats_meter_now_us() - us));
}

static void *make(void *data)
{
    struct ats_stream *stream = data;
    struct ats_replan *replan = &stream->replan;
    const double since_us = ats_meter_now_us();
    replan->plan->next = ats_graph_plan_beside(stream, replan->cgraph, replan->plan->epoch);
    stream->device->counters.beside_ns += ns_since(since_us);
    return NULL;
}

void ats_replan_begin(struct ats_stream *stream, const struct ggml_cgraph *cgraph,
                      struct ats_graph_plan *plan)
{
    struct ats_replan *replan = &stream->replan;
    if (plan->n_rates == stream->n_rates) {
        return;
    }
    const double since_us = ats_meter_now_us();
    replan->cgraph = cgraph;
    replan->plan = plan;
    replan->runs = pthread_create(&replan->thread, NULL, make, stream) == 0;
    plan->needs_more = !replan->runs;
    stream->device->counters.replan_ns += ns_since(since_us);
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
    replan->plan->needs_more = replan->plan->next == NULL;
    stream->device->counters.replan_ns += ns_since(since_us);
}
