/* Sides by rule: which side computes each operator, as the user's placement rule has it.
 *
 * Pure. A rule that says where weights live also says what becomes of operators whose side is
 * free: `fill` and plan files leave them to the partition's costs (partition.h); `host` and `vram`
 * draw them to their side wherever it can compute them; `random` draws the sides at random.
 *
 * Thread-safety: no shared state. */
#ifndef ATS_PLAN_SIDES_H
#define ATS_PLAN_SIDES_H

#include "plan/graph_desc.h"
#include "plan/partition.h"
#include "plan/placement.h"

#include <stdbool.h>

/* Writes one side per operator of `graph`, one that the operator supports. `round` counts the
 * graphs that have been planned, so that a random rule gives each its own sides; other rules
 * ignore it. False: out of memory. */
bool ats_choose_sides(const struct ats_graph_desc *graph, const struct ats_rule *rule,
                      const struct ats_partition_costs *costs, uint64_t round,
                      enum ats_side *sides);

#endif
