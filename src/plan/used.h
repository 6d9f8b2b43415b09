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
 * what is used of u alone, and not left to the CPU (share.h); s, for each parcel, that of a change
 * of sides; g the accelerator's time of the pass, of which g' is for what reads no u, and h the
 * CPU's for what does not pass.
 *
 * The experts that come are cut into parcels, of as many bytes as staging memory has room for
 * several of, so that one is read while others are copied. A parcel is experts that lie one behind
 * the other, and the columns that want them: the accelerator gathers their inputs, makes the
 * product, with ids that count places in the parcel, and puts the results where they belong. So
 * each expert crosses once, however little room there is.
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
    ATS_USED_SURELY_ALL = 64,
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
    uint32_t n_parcels;
    uint32_t room; /* places for experts, in each */
    int32_t gap;  /* experts that are copied because that is faster than leaving them out, as far as
                     there is room */
    size_t lists; /* where, in a parcel's place in staging memory, its lists begin */
    size_t place_bytes; /* all of it */
};

/* Parcels for more experts than are expected, as texts differ. False: an expert is larger than half
 * of what the rule allows, or all are expected; then the shape is void. */
bool ats_used_shape_make(const struct ats_used_matrix *matrix, const struct ats_promotion *rule,
                         const struct ats_partition_costs *costs, uint32_t expected,
                         struct ats_used_shape *shape);

/* Scratch for products with a matrix of such columns: an input and a result in f32, of so many
 * columns at once. */
enum { ATS_USED_COLUMNS = 512 };

static inline size_t ats_used_scratch(uint64_t n_inputs, uint64_t n_results, uint64_t n_columns)
{
    return (size_t)((n_inputs + n_results) * sizeof(float) * n_columns);
}

/* Time of a pass with these weights promoted: by use, those of the roots that say so. Operators
 * that read a candidate which is not promoted are the CPU's, all others the accelerator's. */
double ats_used_pass_us(const struct ats_graph_desc *graph, const struct ats_promotion *rule,
                        const struct ats_partition_costs *costs, const bool *candidates,
                        const bool *promoted);

/* Has candidates pass by use, those that can, if the rule wants it or the pass is faster then, and
 * chooses what is promoted anew: `promoted` is the choice without. `roots` are the graph's, whose
 * by_use, n_parcels, used_us and used_place_bytes it sets; `matrices` and `shapes`, the result of
 * those that pass by use, are by root. */
void ats_prefer_used(const struct ats_graph_desc *graph, const struct ats_promotion *rule,
                     const struct ats_partition_costs *costs, const bool *candidates,
                     const struct ats_used_matrix *matrices, struct ats_root *roots,
                     struct ats_used_shape *shapes, bool *promoted);

/* ---- what a pass uses ---- */

struct ats_used_query {
    const int32_t *ids; /* of the columns, by token: n_used, each in [0, n_experts) */
    size_t stride;      /* from those of a token to the next */
    uint32_t n_tokens;
    uint32_t n_used;
    int32_t n_experts;
    const int32_t *slot_of; /* by expert: ATS_EXPERT_NONE if it is in no slot; or NULL: none is */
    const bool *left;       /* by expert: the CPU computes with it (share.h); or NULL */
    bool own_inputs;        /* each column has one; else all of a token have the same */
    int32_t gap;   /* experts between two that are copied that are copied too, to have one copy */
    uint32_t room; /* places in a parcel; at least one */
    uint32_t n_parcels; /* that are wished for; at least one */
};

/* Experts in host memory that come to places which follow each other. */
struct ats_used_run {
    int32_t first;
    int32_t n;
};

/* Of a column: rows of the input, places of experts, rows of the result. A list begins at a
 * multiple of so many numbers, 256 bytes: accelerators have least alignments for what a kernel
 * reads. */
enum { ATS_USED_LISTS = 3, ATS_USED_LIST_STEP = 64 };

/* Numbers that a list of `n` takes. */
static inline size_t ats_used_list(size_t n)
{
    return (n + ATS_USED_LIST_STEP - 1) / ATS_USED_LIST_STEP * ATS_USED_LIST_STEP;
}

/* Columns with experts that are in one place. Their lists lie one behind the other. */
struct ats_used_columns {
    uint32_t first; /* number at which they begin */
    uint32_t n;
};

struct ats_used_parcel {
    uint32_t first_run;
    uint32_t n_runs;
    uint32_t n_places; /* that the runs fill, in order */
    struct ats_used_columns columns;
};

/* Which experts are where. */
struct ats_used {
    struct ats_used_columns hits; /* places are slots, */
    uint32_t n_hits;              /* of so many experts, */
    int32_t *hit_experts;         /* ascending, */
    int32_t *hit_slots;           /* and their slots */
    uint32_t n_parcels; /* as many as were wished for at least, empty ones perhaps; more if there is
                           too little room */
    struct ats_used_parcel *parcels;
    struct ats_used_run *runs;
    int32_t *numbers;   /* all lists */
    int32_t *of_expert; /* work space */
};

/* For queries of at most so many; free it with ats_used_free, on failure too. False: out of memory.
 */
bool ats_used_init(uint32_t n_experts, uint64_t n_columns, uint32_t n_parcels,
                   struct ats_used *used);
void ats_used_free(struct ats_used *used);

/* Columns with one expert follow each other, in the order of the ids; experts ascend within a
 * parcel, and from one to the next. Parcels have equally many experts, as far as they go. */
void ats_used_find(const struct ats_used_query *query, struct ats_used *used);

#endif
