/* Holding: weights that stay in staging memory from pass to pass, while nothing passes through.
 *
 * Pure. Prefill streams weights through staging memory; decode, which streams nothing, would
 * leave it idle. So a graph that promotes nothing keeps there what fits: as long as only such
 * graphs run, the weights are copied once.
 *
 * Thread-safety: no shared state. */
#ifndef ATS_PLAN_HOLD_H
#define ATS_PLAN_HOLD_H

#include "plan/graph_desc.h"
#include "plan/partition.h"

/* A weight of host memory, in the order in which the graph uses them. */
struct ats_holdable {
    const char *name; /* "blk.7.ffn_up.weight"; owned by the caller */
    size_t bytes;     /* padding included */
    uint32_t root;    /* of the graph; for ats_hold_best */
};

enum ats_hold_order {
    /* Layers whole, from the last to the first, so that operators which follow each other run on
     * one side. Of a layer that does not fit, the inner part (gate and up), which goes with the
     * attention before it, or else the outer part (down), which goes with the layer behind, may
     * still find room. */
    ATS_HOLD_LAYERS,
    /* And what still fits beside them, the largest first. */
    ATS_HOLD_LAYERS_AND_MORE,
    /* The largest weights first, of equal ones the last. */
    ATS_HOLD_LARGEST,
    ATS_HOLD_ORDERS
};

/* Chooses what to hold in `capacity` bytes. */
void ats_hold(const struct ats_holdable *weights, size_t n, size_t capacity,
              enum ats_hold_order order, bool *held);

/* Sets `chosen` for each root: what is held by that of the orders with which a pass is predicted to
 * be the shortest (beside.h, ats_resident_us, where `candidates` is explained). False: out of
 * memory. */
bool ats_hold_best(const struct ats_graph_desc *graph, const struct ats_partition_costs *costs,
                   const struct ats_holdable *weights, size_t n, size_t capacity,
                   const bool *candidates, bool *chosen);

#endif
