/* Regions of experts: stretches of a graph that work on each used expert by itself, and so can be
 * computed by both sides at the same time, each for some of the experts.
 *
 * Pure. A mixture-of-experts block multiplies by the matrices of the experts that a token uses
 * (gate and up, then down), adds their biases, and applies an activation in between. All of these
 * take and give tensors with one *column* per used expert, and no column depends on another. A
 * region is the stretch from the first such product to the last product or bias that takes the same
 * ids.
 *
 * A stretch with anything else in it is no region: an operator that is not known to work column by
 * column, a result that is read elsewhere, a source with columns that the region does not make.
 *
 * Thread-safety: no shared state. */
#ifndef ATS_PLAN_EXPERTS_REGION_H
#define ATS_PLAN_EXPERTS_REGION_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum ats_expert_kind {
    ATS_EXPERT_OTHER,   /* anything that is none of these */
    ATS_EXPERT_EMPTY,   /* a view: computes nothing */
    ATS_EXPERT_PRODUCT, /* columns times the matrices of the experts that ids name */
    ATS_EXPERT_BIAS,    /* columns plus the vectors of the experts that ids name */
    ATS_EXPERT_COLUMN,  /* works on each column by itself: activations, products of two results */
};

enum {
    ATS_EXPERT_MOST_SOURCES = 2,
    ATS_EXPERT_NO_SOURCE = -1,
    ATS_EXPERT_ONE_COLUMN = -2,   /* made outside of the graph: the same for all experts */
    ATS_EXPERT_MANY_COLUMNS = -3, /* likewise, with a column per used expert */
};

/* One node of the graph. Nodes are in order of execution. */
struct ats_expert_node {
    enum ats_expert_kind kind;
    const void *ids; /* PRODUCT and BIAS: identity of the ids; else NULL */
    /* Its result has memory of its own and as many columns as what it reads; of a view: it is one
     * of the same part of each column. */
    bool whole;
    bool one_column; /* its result has one column */
    bool keeps;      /* its result must be left in memory for others than the graph */
    uint32_t n_uses; /* how often nodes read it in all, in this graph or behind it */
    /* The activations that it reads: indices of earlier nodes, or one of the above. */
    int32_t sources[ATS_EXPERT_MOST_SOURCES];
};

/* nodes[first .. first + n); the last one makes the result. */
struct ats_expert_region {
    size_t first;
    size_t n;
    const void *ids;
};

/* Finds the regions of a graph, in order and disjoint, and writes at most `most` of them. Returns
 * how many there are. `inside` is scratch space of n_nodes entries. */
size_t ats_expert_regions(const struct ats_expert_node *nodes, size_t n_nodes, bool *inside,
                          struct ats_expert_region *regions, size_t most);

#endif
