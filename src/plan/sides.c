#include "plan/sides.h"

#include "base/rng.h"
#include "plan/partition.h"

#include <stdlib.h>

/* How much longer an operator seems to take on the side that a rule avoids: enough to outweigh
 * every copy and change of sides, and finite, as an operator may have no other side. */
static const float AVOIDED_FACTOR = 1e4F;

static bool partition_avoiding(const struct ats_graph_desc *graph,
                               const struct ats_partition_costs *costs, enum ats_side avoided,
                               enum ats_side *sides)
{
    struct ats_op *ops = malloc((graph->n_ops + 1) * sizeof(*ops));
    if (ops == NULL) {
        return false;
    }
    for (size_t i = 0; i < graph->n_ops; i++) {
        ops[i] = graph->ops[i];
        ops[i].cost_us[avoided] *= AVOIDED_FACTOR;
    }
    struct ats_graph_desc leaning = *graph;
    leaning.ops = ops;
    const bool ok = ats_partition(&leaning, costs, sides);
    free(ops);
    return ok;
}

bool ats_choose_sides(const struct ats_graph_desc *graph, const struct ats_rule *rule,
                      const struct ats_partition_costs *costs, uint64_t round, enum ats_side *sides)
{
    switch (rule->kind) {
    case ATS_RULE_HOST:
        return partition_avoiding(graph, costs, ATS_ACCEL, sides);
    case ATS_RULE_VRAM:
        return partition_avoiding(graph, costs, ATS_HOST, sides);
    case ATS_RULE_RANDOM: {
        struct ats_rng mix = {.state = rule->seed + round};
        ats_partition_random(graph, ats_rng_next(&mix), sides);
        return true;
    }
    case ATS_RULE_AUTO:
    case ATS_RULE_FILL:
    case ATS_RULE_TABLE:
        break;
    }
    return ats_partition(graph, costs, sides);
}
