#include "plan/promote.h"

/* The time of all operators that read `root`, on `side`. */
static float readers_us(const struct ats_graph_desc *graph, size_t root, enum ats_side side)
{
    float sum = 0.0F;
    for (size_t i = 0; i < graph->n_ops; i++) {
        const struct ats_op *op = &graph->ops[i];
        for (uint32_t r = 0; r < op->n_reads; r++) {
            if (graph->reads[op->first_read + r] == root) {
                sum += op->cost_us[side];
                break;
            }
        }
    }
    return sum;
}

float ats_promotion_copy_us(const struct ats_promotion *rule, const struct ats_root *root)
{
    return root->by_use ? root->used_us
                        : rule->copy_latency_us + (float)root->bytes / rule->link_bytes_per_us;
}

static bool is_faster(const struct ats_graph_desc *graph, const struct ats_promotion *rule,
                      size_t root)
{
    const float copy_us = ats_promotion_copy_us(rule, &graph->roots[root]);
    const float accel_us = readers_us(graph, root, ATS_ACCEL);
    const float both_us = copy_us > accel_us ? copy_us : accel_us;
    return (rule->serial ? copy_us + accel_us : both_us) < readers_us(graph, root, ATS_HOST);
}

static bool streams_all(const struct ats_graph_desc *graph, const struct ats_promotion *rule,
                        const bool *candidates)
{
    static const float MANY_TIMES = 4.0F;
    float host_us = 0;
    float copy_us = 0;
    for (size_t r = 0; r < graph->n_roots; r++) {
        if (candidates[r]) {
            host_us += readers_us(graph, r, ATS_HOST);
            copy_us +=
                rule->copy_latency_us + (float)graph->roots[r].bytes / rule->link_bytes_per_us;
        }
    }
    return host_us > MANY_TIMES * copy_us;
}

void ats_promote(const struct ats_graph_desc *graph, const struct ats_promotion *rule,
                 const bool *candidates, bool *promoted)
{
    const bool waits = rule->kind == ATS_PROMOTE_FASTER && rule->has_cpu_load && !rule->serial &&
                       !streams_all(graph, rule, candidates);
    for (size_t r = 0; r < graph->n_roots; r++) {
        const size_t most = graph->roots[r].by_use ? rule->most_used_bytes : rule->most_bytes;
        const bool can = candidates[r] && ats_root_staged(&graph->roots[r]) <= most;
        switch (rule->kind) {
        case ATS_PROMOTE_NONE:
            promoted[r] = false;
            break;
        case ATS_PROMOTE_FASTER:
            promoted[r] = can && !waits && is_faster(graph, rule, r);
            break;
        case ATS_PROMOTE_ALL:
        case ATS_PROMOTE_RANDOM:
            promoted[r] = can;
            break;
        }
    }
}
