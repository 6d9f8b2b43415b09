/* The physical bound: the least time of one pass over all placements that fit,
 * with unlimited overlap of transfers.
 *
 * A model is a list of items that run one after another. Of each item a share
 * `hit` is resident in VRAM and computed there, a share `moved` is brought over
 * the link and computed on the GPU, and the rest `cpu` is computed where it is:
 * hit + moved + cpu = 1. The least T is sought such that
 *
 *     VRAM       sum size r                              <= budget
 *     residency  hit <= hits(r) (= r for what every pass reads wholly), r <= 1
 *     CPU        sum cpu_us cpu                          <= T
 *     GPU        sum gpu_us (hit + moved)                <= T   (launches included)
 *     link       sum move_bytes moved / link             <= T
 *     DRAM       sum (read_bytes cpu + move_bytes moved) / dram <= T
 *     series     sum of each item's own time             <= T
 *
 * where the own time is cpu_us cpu + gpu_us (hit + moved), because dependent
 * operators cannot overlap, and for items of which both sides can do a part at
 * the same time (experts) the larger of the two. Items are split at will and
 * transfers need no room, so no schedule of whole tensors beats the bound.
 *
 * For experts in decode only those used are read, and `hits` says what share of
 * them a cache of a given size holds: that of an LRU under the routing model.
 *
 * Everything is linear once `hits` is replaced by its concave envelope: a linear
 * program, solved exactly by the simplex method. It starts from "all on the CPU",
 * which is feasible.
 *
 * Pure; no state, safe from any thread. */
#ifndef ATS_COST_BOUND_H
#define ATS_COST_BOUND_H

#include "base/error.h"
#include "cost/routing.h"

#include <stdbool.h>
#include <stddef.h>

/* A concave, rising curve through (0, 0), as straight pieces: hit <= slope r + at_zero for each. */
struct ats_bound_curve {
    double *slope;
    double *at_zero;
    size_t n;
};

/* Sums over all layers that are alike may be one item. */
struct ats_bound_item {
    double size_bytes; /* in VRAM, if all of it is resident */
    double read_bytes; /* of host memory, if the CPU computes all of it */
    double move_bytes; /* over the link, if it is moved for this pass */
    double cpu_us;
    double gpu_us;
    bool parallel;                      /* both sides can do a part at the same time */
    const struct ats_bound_curve *hits; /* NULL: hit <= r */
};

struct ats_bound_limits {
    double vram_bytes;
    double link_gbps;
    double dram_gbps;
};

struct ats_bound {
    double us;
    /* What the best placement does, in bytes of a pass and shares of T. */
    double resident_bytes;
    double cpu_bytes;
    double moved_bytes;
    double cpu_share;
    double gpu_share;
    double link_share;
    double dram_share;
};

/* False with an error if memory is out or a number is not finite. */
bool ats_bound_solve(const struct ats_bound_item *items, size_t n,
                     const struct ats_bound_limits *limits, struct ats_bound *bound,
                     struct ats_error *err);

/* The share of selections that an LRU cache finds, by its share of the experts: measured on
 * `tokens` tokens of the routing model (after as many to warm up), and its concave envelope.
 * False if memory is out or the numbers are out of the routing's range. Freed with
 * ats_bound_curve_free. */
bool ats_bound_lru_curve(const struct ats_routing_model *model, uint64_t seed, int32_t n_experts,
                         int32_t n_used, unsigned tokens, struct ats_bound_curve *curve);
void ats_bound_curve_free(struct ats_bound_curve *curve);

/* The curve at a share of residency. */
double ats_bound_hit_rate(const struct ats_bound_curve *curve, double share);

#endif
