/* Experts by use: of a matrix of stacked experts that passes through staging memory, only those
 * that the tokens of a pass use.
 *
 * Pure. Which those are is known when the layer's router has computed, so their copies cannot begin
 * before, as those of whole matrices do (promote.h), and the link waits meanwhile. With few tokens,
 * which use few of the experts, that is the shorter way:
 *
 *   whole:  max(sum_w c(w), g) + h
 *   by use: max(sum_v c(v), g') + sum_u (c(u) + s) + g - g' + h
 *
 * over all weights w that pass, of which u pass by use and v do not; c is the time of a copy, of
 * what is used of u alone, and not left to the CPU (share.h); s that of a change of sides; g the
 * accelerator's time of the pass, of which g' is for what reads no u, and h the CPU's for what does
 * not pass.
 *
 * The experts that come lie one behind the other in staging memory, and the ids of the columns are
 * those of their places there.
 *
 * Thread-safety: no shared state. */
#ifndef ATS_PLAN_USED_H
#define ATS_PLAN_USED_H

#include "plan/partition.h"
#include "plan/promote.h"
#include "plan/watch.h"

/* How many of `n_experts` are used by any of `n_tokens` that use `n_used` each, by the model of
 * cost/routing.h; all, if the tokens use as many as ATS_USED_SURELY_ALL times all of them, or if
 * memory is out. */
uint32_t ats_used_expected(uint32_t n_experts, uint32_t n_used, uint32_t n_tokens);

enum {
    ATS_USED_SURELY_ALL = 16,
    ATS_USED_REST = 8,         /* this part of staging memory is left to small weights */
    ATS_USED_LEAST_TOKENS = 2, /* single ones are for slots (experts.h) */
    /* With fewer, what a pass leaves in staging memory (hold.h) is worth more to those that follow
     * than experts of this pass alone; and passes that are judged have no copies that nobody
     * times. */
    ATS_USED_LEAST_IF_FASTER = ATS_WATCH_MOST_TOKENS + 1,
};

/* A matrix and the product that alone reads it. */
struct ats_used_matrix {
    uint32_t n_experts; /* 0: it cannot pass by use */
    uint32_t n_used;    /* by each token */
    uint32_t n_tokens;
    size_t expert_bytes;
    size_t padding; /* that an accelerator reads behind the last one */
    double flops;   /* of a column, if the CPU may take a share of its layer (share.h); else 0 */
    enum ats_type_family family;
    uint64_t most_columns; /* that its share may have */
};

/* How a matrix passes by use. */
struct ats_used_shape {
    uint32_t room; /* places for experts */
    int32_t gap;  /* experts that are copied because that is faster than leaving them out, as far as
                     there is room */
    size_t lists; /* where, in its place in staging memory, the lists begin: ids, and slots */
    size_t place_bytes; /* all of it */
};

/* A place of half of what the rule allows, so that one can be read while the next is copied; or
 * more, if that has too little room for more experts than are expected, as texts differ. False:
 * there is no room for those expected, or they are all; then the shape is void. */
bool ats_used_shape_make(const struct ats_used_matrix *matrix, const struct ats_promotion *rule,
                         const struct ats_partition_costs *costs, uint32_t expected,
                         struct ats_used_shape *shape);

/* Time of a pass with these weights promoted: by use, those of the roots that say so. Operators
 * that read a candidate which is not promoted are the CPU's, all others the accelerator's. */
double ats_used_pass_us(const struct ats_graph_desc *graph, const struct ats_promotion *rule,
                        const struct ats_partition_costs *costs, const bool *candidates,
                        const bool *promoted);

/* Has candidates pass by use, those that can, if the rule wants it or the pass is faster then, and
 * chooses what is promoted anew: `promoted` is the choice without. `roots` are the graph's, whose
 * by_use, used_us and used_place_bytes it sets; `matrices` and `shapes`, the result of those
 * that pass by use, are by root. */
void ats_prefer_used(const struct ats_graph_desc *graph, const struct ats_promotion *rule,
                     const struct ats_partition_costs *costs, const bool *candidates,
                     const struct ats_used_matrix *matrices, struct ats_root *roots,
                     struct ats_used_shape *shapes, bool *promoted);

/* ---- what a pass uses ---- */

enum { ATS_USED_NONE = -1 };

struct ats_used_query {
    const int32_t *ids; /* of the columns: n_tokens times n_used, each in [0, n_experts) */
    uint32_t n_tokens;
    uint32_t n_used;
    int32_t n_experts;
    const int32_t *slot_of; /* by expert: ATS_EXPERT_NONE if it is in no slot; or NULL: none is */
    /* By expert: the CPU computes with it (share.h), so it needs no place; or NULL. Those of the
     * first token have places all the same: so each token finds as many as it uses. */
    const bool *left;
    int32_t gap;   /* experts between two that are copied that are copied too, to have one copy */
    uint32_t room; /* places; at least n_used times (gap + 1) */
};

/* Experts in host memory that come to places which follow each other. */
struct ats_used_run {
    int32_t first;
    int32_t n;
};

/* Which experts are where. The arrays have room for n_experts and are the caller's. */
struct ats_used {
    uint32_t
        n_tokens; /* that are served, from the first one on: fewer if there is no room for more */
    uint32_t n_hits;   /* experts in slots: places 0 to n_hits, ascending in `hits` */
    uint32_t n_places; /* in all; those behind the hits are filled by the runs, in order */
    uint32_t n_runs;
    int32_t *place_of; /* by expert, or ATS_USED_NONE */
    int32_t *hits;
    struct ats_used_run *runs;
};

void ats_used_find(const struct ats_used_query *query, struct ats_used *used);

#endif
