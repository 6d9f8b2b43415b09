/* Random compute graphs for the planner's tests, shaped as ggml makes them: every activation is
 * written whole by one operator, later operators may write parts of it in place (and then read
 * it), weights and state have homes, inputs are read only.
 *
 * Numbers are small multiples of powers of two, so that sums of times are exact in float and
 * two ways to add them up can be compared for equality. */
#ifndef ATS_TESTS_RANDOM_GRAPH_H
#define ATS_TESTS_RANDOM_GRAPH_H

#include "plan/graph_desc.h"
#include "seed.h"

#include <string.h>

enum {
    GRAPH_MAX_OPS = 64,
    GRAPH_MAX_ROOTS = 2 * GRAPH_MAX_OPS,
    GRAPH_MAX_READS = 4 * GRAPH_MAX_OPS,
};

struct random_graph {
    struct ats_graph_desc desc;
    struct ats_op ops[GRAPH_MAX_OPS];
    uint32_t reads[GRAPH_MAX_READS];
    struct ats_root roots[GRAPH_MAX_ROOTS];
    size_t n_reads;
    bool partial_writes_read; /* what is written in part is also among the reads */
};

static inline uint32_t random_graph_root(struct random_graph *g, struct ats_rng *rng,
                                         ats_side_set home)
{
    g->roots[g->desc.n_roots] =
        (struct ats_root){.bytes = 1024 * test_between(rng, 1, 64), .home = home};
    return (uint32_t)g->desc.n_roots++;
}

static inline void random_graph_read(struct random_graph *g, struct ats_op *op, uint32_t root)
{
    g->reads[g->n_reads++] = root;
    op->n_reads++;
}

/* Fills one operator. Recent roots are read more often than old ones, as in real graphs. */
static inline void random_graph_op(struct random_graph *g, struct ats_op *op, size_t n_fixed,
                                   struct ats_rng *rng)
{
    static const ats_side_set supports[] = {ATS_ON_BOTH, ATS_ON_BOTH,      ATS_ON_BOTH,
                                            ATS_ON_BOTH, ATS_ON(ATS_HOST), ATS_ON(ATS_ACCEL)};
    *op = (struct ats_op){.first_read = (uint32_t)g->n_reads,
                          .write = ATS_NO_ROOT,
                          .supported = supports[ats_rng_below(rng, 6)]};
    if (test_chance(rng, 10)) {
        op->supported = ATS_ON_BOTH; /* a view: computes nothing */
        return;
    }
    const size_t n_reads = test_between(rng, 1, 3);
    for (size_t r = 0; r < n_reads; r++) {
        const size_t n = g->desc.n_roots;
        const bool recent = n > n_fixed && test_chance(rng, 70);
        const size_t low = recent && n - n_fixed > 4 ? n - 4 : recent ? n_fixed : 0;
        random_graph_read(g, op, (uint32_t)test_between(rng, low, n - 1));
    }
    for (int side = 0; side < ATS_SIDES; side++) {
        op->cost_us[side] = 0.25F * (float)test_between(rng, 1, 400);
    }
    /* a part of a root that exists: state, or an activation changed in place. ggml names it among
     * the sources; the planner does not rely on that. */
    const uint32_t first = g->reads[op->first_read];
    const bool named = g->partial_writes_read || test_chance(rng, 50);
    if (test_chance(rng, 20) && g->roots[first].home != ATS_ON_BOTH) {
        op->write = (int32_t)first;
        op->partial_write = true;
        op->first_read += !named;
        op->n_reads -= !named;
    } else {
        op->write = (int32_t)random_graph_root(g, rng, 0);
    }
}

/* At most GRAPH_MAX_OPS operators. */
static inline void random_graph_make(struct random_graph *g, size_t n_ops, bool partial_writes_read,
                                     struct ats_rng *rng)
{
    static const ats_side_set homes[] = {0, 0, ATS_ON(ATS_HOST), ATS_ON(ATS_ACCEL), ATS_ON_BOTH};
    memset(g, 0, sizeof(*g));
    g->partial_writes_read = partial_writes_read;
    const size_t n_fixed = test_between(rng, 1, 8); /* inputs, weights, state */
    for (size_t r = 0; r < n_fixed; r++) {
        random_graph_root(g, rng, homes[ats_rng_below(rng, 5)]);
    }
    for (size_t i = 0; i < n_ops; i++) {
        random_graph_op(g, &g->ops[i], n_fixed, rng);
    }
    g->desc.ops = g->ops;
    g->desc.n_ops = n_ops;
    g->desc.reads = g->reads;
    g->desc.roots = g->roots;
}

/* Whether the graph ever writes the root; those it does not are inputs, weights and state. */
static inline bool random_graph_is_read(const struct ats_graph_desc *graph, const struct ats_op *op,
                                        uint32_t root)
{
    for (uint32_t r = 0; r < op->n_reads; r++) {
        if (graph->reads[op->first_read + r] == root) {
            return true;
        }
    }
    return false;
}

#endif
