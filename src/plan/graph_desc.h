/* What the planner knows of a compute graph: operators in execution order, and
 * the memory they read and write.
 *
 * Data moves by *root*: a tensor that is not a view. A view is an access to its
 * root, because a copy of a view alone would leave the rest of the root stale. */
#ifndef ATS_PLAN_GRAPH_DESC_H
#define ATS_PLAN_GRAPH_DESC_H

#include "plan/pieces.h"
#include "plan/side.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { ATS_NO_ROOT = -1 };

struct ats_op {
    uint32_t first_read; /* its reads are graph->reads[first_read .. first_read + n_reads) */
    uint32_t n_reads;
    int32_t write;            /* root it writes, or ATS_NO_ROOT for one that computes nothing */
    bool partial_write;       /* writes a part of that root; the rest must be there */
    ats_side_set supported;   /* sides that can compute it; never empty */
    float cost_us[ATS_SIDES]; /* estimated time on each side */
    /* 0, or the number of a stretch of operators that both sides compute together, each for some of
     * the experts (experts_region.h). It counts as the accelerator's; what it reads must be valid
     * on both sides. */
    uint32_t region;
    /* 0, or the number of a stretch of operators of the accelerator of which the CPU computes some
     * columns by itself, once all of them have been given (share.h). What they read from outside,
     * weights that pass excepted, must be valid on both sides. */
    uint32_t share;
    uint32_t ids; /* of a product with stacked experts: which of its reads has the columns' ids */
};

struct ats_root {
    size_t bytes;
    /* Where its bytes live for good: weights and state, which should not travel.
     * 0: anywhere (an activation or an input). */
    ats_side_set home;
    /* A weight of host memory that the accelerator reads from a place in staging memory, where
     * it is copied for this pass alone (promote.h). Never written. Its home counts as the
     * accelerator's. */
    bool promoted;
    /* If promoted: how its one reader takes it (pieces.h). It reads one such matrix at most. */
    struct ats_pieces pieces;
    size_t piece_bytes; /* of the largest piece in staging memory, if there are several */
    /* If promoted: its one reader takes only the experts that the pass uses (used.h), whatever the
     * pieces would be. */
    bool by_use;
    uint32_t n_parcels;      /* of them, at least one */
    float used_us;           /* that those which are expected take to cross */
    bool may_share;          /* and the CPU can, or is to, take a share of its layer (share.h) */
    size_t used_place_bytes; /* in staging memory */
    /* The same, but it stays in staging memory from pass to pass (hold.h): nothing to wait for. */
    bool held;
    /* A weight that an operator of a region reads, of which single experts are in VRAM (experts.h).
     * Valid on either side as far as the region uses it there. Its home counts as the
     * accelerator's. */
    bool sliced;
};

/* What it takes of staging memory at once. */
static inline size_t ats_root_staged(const struct ats_root *root)
{
    return root->by_use         ? root->used_place_bytes
           : root->pieces.n > 1 ? root->piece_bytes
                                : root->bytes;
}

struct ats_graph_desc {
    const struct ats_op *ops;
    size_t n_ops;
    const uint32_t *reads;
    const struct ats_root *roots;
    size_t n_roots;
    size_t promoted_at_once; /* bytes of promoted weights that one split may begin to read */
};

#endif
