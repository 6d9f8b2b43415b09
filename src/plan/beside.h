/* Beside the CPU: weights of host memory that cross the link while the CPU computes with others,
 * and are used by the accelerator in every pass.
 *
 * Pure. In decode a weight takes longer to cross the link than the CPU takes to use it where it is,
 * so one alone is not worth the copy (promote.h). But link and CPU work at once: what the CPU
 * leaves of host memory's bandwidth, and all of the link while the accelerator computes, would lie
 * idle. A walk over the graph keeps account of the bytes that could have crossed by each operator,
 *
 *   credit += t * B,    t and B by the side that computes: B = b beside the CPU, the link's own
 * else
 *
 * no more than staging memory holds, and takes a group of weights when the credit covers it and
 *
 *   sum_i t_i^g + c * (switches more) < sum_i t_i^c    over the operators i that read the group
 *
 * with c the cost of a split. A group is what operators next to each other read (gate and up). The
 * account takes the place of seg(j, i) in the published transfer cost max(w_i - seg(j, i), 0):
 * nothing is taken whose transfer would be exposed.
 *
 * Thread-safety: no shared state. */
#ifndef ATS_PLAN_BESIDE_H
#define ATS_PLAN_BESIDE_H

#include "plan/graph_desc.h"
#include "plan/partition.h"

struct ats_beside {
    float split_us;
    float copy_latency_us;              /* of a copy, and there is one for each chunk */
    float link_bytes_per_us;            /* while the CPU does not compute */
    float link_beside_cpu_bytes_per_us; /* while it does */
    size_t staging_bytes;
};

/* Weights are copied in pieces of this size, so that an activation waits for one piece at most
 * where both use one copy engine. At 24 GB/s a piece takes eight times as long as its start. */
enum { ATS_BESIDE_CHUNK = 2 << 20 };

/* Sets `chosen` for each root, none if staging memory is nothing, and *saved_us to what that saves
 * per pass by the operators' own times and the splits. False: out of memory. */
bool ats_choose_beside(const struct ats_graph_desc *graph, const struct ats_beside *rule,
                       const bool *candidates, bool *chosen, float *saved_us);

/* Lets weights cross beside the CPU if that saves more than holding those in `chosen` (hold.h):
 * then replaces them there, sets the roots' `held` and `promoted` accordingly, and *preferred.
 * `roots` are the graph's. False: out of memory. */
bool ats_prefer_beside(const struct ats_graph_desc *graph, const struct ats_partition_costs *costs,
                       size_t staging_bytes, const bool *candidates, bool *chosen,
                       struct ats_root *roots, bool *preferred);

/* What it saves per pass that the accelerator uses the chosen roots, which are there already. */
float ats_resident_saves_us(const struct ats_graph_desc *graph, const bool *chosen);

#endif
