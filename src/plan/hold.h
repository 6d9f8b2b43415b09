/* Holding: weights that stay in staging memory from pass to pass, while nothing passes through.
 *
 * Pure. Prefill streams weights through staging memory; decode, which streams nothing, would
 * leave it idle. So a graph that promotes nothing keeps there what fits: as long as only such
 * graphs run, the weights are copied once.
 *
 * Thread-safety: no shared state. */
#ifndef ATS_PLAN_HOLD_H
#define ATS_PLAN_HOLD_H

#include <stdbool.h>
#include <stddef.h>

/* A weight of host memory, in the order in which the graph uses them. */
struct ats_holdable {
    const char *name; /* "blk.7.ffn_up.weight"; owned by the caller */
    size_t bytes;     /* padding included */
};

/* Chooses what to hold in `capacity` bytes. Layers are taken whole, from the last to the first,
 * so that operators which follow each other run on one side. Of a layer that does not fit, the
 * inner part (gate and up), which goes with the attention before it, or else the outer part
 * (down), which goes with the layer behind, may still find room. */
void ats_hold(const struct ats_holdable *weights, size_t n, size_t capacity, bool *held);

#endif
