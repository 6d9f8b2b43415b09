/* Beside the CPU: weights of host memory that cross the link while the CPU computes with others,
 * and are used by the accelerator in every pass.
 *
 * Pure. In decode a weight takes longer to cross the link than the CPU takes to use it where it is,
 * so one alone is not worth the copy (promote.h). But link and CPU work at once: what the CPU
 * leaves of host memory's bandwidth, and all of the link while the accelerator computes, would lie
 * idle. The graph becomes units in the order of execution, and round.h decides which of them run on
 * the accelerator. What operators next to each other read (gate and up) is one unit; an operator
 * that is bound to a side by data with a home has that side; the rest are free.
 *
 * Thread-safety: no shared state. */
#ifndef ATS_PLAN_BESIDE_H
#define ATS_PLAN_BESIDE_H

#include "plan/graph_desc.h"
#include "plan/partition.h"

/* Weights are copied in chunks of this size, so that an activation waits for one chunk at most
 * where both use one copy engine. At 24 GB/s a chunk takes eight times as long as its start. */
enum { ATS_BESIDE_CHUNK = 2 << 20 };

/* Sets `chosen` for each root: the candidates that cross in every pass; none if staging memory is
 * nothing. *us: the time of a pass then. False: out of memory. */
bool ats_choose_beside(const struct ats_graph_desc *graph, const struct ats_partition_costs *costs,
                       size_t staging_bytes, const bool *candidates, bool *chosen, float *us);

/* The time of a pass, *us, in which the candidates in `resident` are on the accelerator, and all
 * others stay in host memory. False: out of memory. */
bool ats_resident_us(const struct ats_graph_desc *graph, const struct ats_partition_costs *costs,
                     const bool *candidates, const bool *resident, float *us);

/* Lets weights cross beside the CPU if a pass then takes at most costs->most_of_held of the time
 * that it takes with those in `chosen` held (hold.h): then replaces them there, sets the roots'
 * `held` and `promoted` accordingly, and *preferred. `roots` are the graph's. False: out of
 * memory. */
bool ats_prefer_beside(const struct ats_graph_desc *graph, const struct ats_partition_costs *costs,
                       size_t staging_bytes, const bool *candidates, bool *chosen,
                       struct ats_root *roots, bool *preferred);

#endif
