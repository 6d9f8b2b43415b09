/* Promotion: which weights that live in host memory are copied to the accelerator for one
 * pass over a graph, and used there, instead of being used by the CPU where they are.
 *
 * Pure. A weight w is promoted if that is the shorter way for its operators even when nothing
 * else overlaps:
 *
 *   max(l + bytes_w / B, sum_i t_i^g) < sum_i t_i^c      over the operators i that read w
 *
 * with l the latency of a copy and B the link's bandwidth. Copy and compute overlap from weight to
 * weight in the steady state of a pass, hence the maximum; where they run in order, it is their
 * sum. With a large batch t^c grows with the batch and the copy does not, so prefill promotes and
 * decode does not: the same rule gives each batch its own plan.
 *
 * A CPU that others slow down is a reason only if it would take four times as long for all
 * candidates as the link. In other passes, those of few tokens, it would have nothing to do, and
 * nobody would see that it is fast again: there it is weighed what stays and what crosses (hold.h,
 * beside.h).
 *
 * Thread-safety: no shared state. */
#ifndef ATS_PLAN_PROMOTE_H
#define ATS_PLAN_PROMOTE_H

#include "plan/graph_desc.h"
#include "plan/rates.h"

enum ats_promotion_kind {
    ATS_PROMOTE_NONE,
    ATS_PROMOTE_FASTER, /* as above */
    ATS_PROMOTE_ALL,    /* whatever can be */
    ATS_PROMOTE_RANDOM, /* what the caller has drawn from the candidates: for tests */
};

/* Whether experts pass by use (used.h), where they can. */
enum ats_used_kind {
    ATS_USED_IF_FASTER, /* if the whole pass is; with the other rules than ATS_PROMOTE_FASTER,
                           always */
    ATS_USED_NEVER,
};

struct ats_promotion {
    enum ats_promotion_kind kind;
    uint64_t seed;           /* ATS_PROMOTE_RANDOM: of the caller's draw */
    float copy_latency_us;   /* l */
    float link_bytes_per_us; /* B */
    bool serial;             /* copies and operators run in order */
    size_t most_bytes;       /* weights, or pieces, that are larger are not promoted */
    size_t most_used_bytes;  /* parcels by use likewise (used.h) */
    enum ats_used_kind used;
    bool tight_used;   /* for tests: two parcels, each with room for what one token uses */
    bool has_cpu_load; /* others slow the CPU down for a while */
    const struct ats_plan_rates *share_rates; /* with which the CPU takes a share (share.h) of what
                                                 passes by use; NULL: it takes none */
};

/* How long the root takes to cross. */
float ats_promotion_copy_us(const struct ats_promotion *rule, const struct ats_root *root);

/* Sets `promoted` for each root: true for candidates that are to be promoted. `candidates`
 * says which roots are weights in host memory that only operators read which the accelerator
 * supports. The arrays may be the same. */
void ats_promote(const struct ats_graph_desc *graph, const struct ats_promotion *rule,
                 const bool *candidates, bool *promoted);

#endif
