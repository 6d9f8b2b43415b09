/* Experts by slice: which experts of a layer are in VRAM, in *slots*, while the rest is in host
 * memory, and how that changes from token to token.
 *
 * Pure. A token uses few of a layer's experts, and uses most of them again soon (measured by others
 * on Qwen3-30B-A3B: 45 % of the selections repeat at the next token, 80 % within eight). So the
 * slots follow the text: an expert that a token uses and that is not there, a *miss*, is computed
 * by the CPU, and may be admitted in place of the one that promises least.
 *
 * What an expert promises is its score: the number of its uses, each worth half as much with every
 * ATS_EXPERT_HALF_LIFE tokens that have passed since. Of the misses of a token the one with the
 * highest score comes first, and it must beat the lowest score among the slots that this token does
 * not use by ATS_EXPERT_MARGIN.
 *
 * Copies are made while the CPU computes misses, and are paid from a credit that grows with the
 * bytes that the CPU reads meanwhile, so that they are over when it is done and slow it down by a
 * bounded share:
 *
 *   credit += share * missed bytes,     share = s * B / C
 *
 * with B the link's bandwidth, C the CPU's, and s the part of the CPU's time in which copies may
 * run. An expert's parts (gate, up, down) are copied one by one, as the credit allows; it counts as
 * there when the last one has been ordered. The caller orders copies and readers.
 *
 * A struct is used by one thread at a time. */
#ifndef ATS_PLAN_EXPERTS_H
#define ATS_PLAN_EXPERTS_H

#include "plan/rates.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    ATS_EXPERT_MOST_PARTS = 4, /* matrices of one expert */
    ATS_EXPERT_MOST_USED = 32, /* experts per token */
    /* Tokens. On the routing of cost/routing.h, caches of 10 to 50 % of 32 to 512 experts hit
     * within 2 % of the best with 1 to 8, and up to a third less with 32. */
    ATS_EXPERT_HALF_LIFE = 4,
    ATS_EXPERT_MOST_CREDIT = 2, /* experts' worth of copies that may be saved up */
    ATS_EXPERT_NONE = -1,
};

/* `share` with s of one. */
float ats_expert_copy_share(const struct ats_plan_rates *rates);

/* The slots of one layer. */
struct ats_expert_slots {
    int32_t n_experts;
    int32_t n_slots;
    uint32_t n_parts;
    size_t part_bytes[ATS_EXPERT_MOST_PARTS];
    size_t expert_bytes; /* all parts */
    float copy_share;
    int32_t *slot_of;   /* by expert; NONE: in host memory only, or on its way */
    int32_t *expert_of; /* by slot; NONE: empty, or on its way */
    double *score;      /* by expert, in terms of `unit` */
    double unit;        /* what a use counts now; grows, instead of all scores shrinking */
    uint64_t token;
    uint64_t *used_at; /* by slot: the token that used it last */
    double credit_bytes;
    int32_t missed[ATS_EXPERT_MOST_USED]; /* experts of the latest token that may be admitted */
    uint32_t n_missed;
    int32_t coming; /* the expert on its way, or NONE */
    int32_t coming_slot;
    uint32_t next_part;
};

/* One token's columns, by side. */
struct ats_expert_columns {
    uint32_t n_hits;
    uint32_t n_misses;
    int32_t hit[ATS_EXPERT_MOST_USED];  /* column numbers, ascending */
    int32_t slot[ATS_EXPERT_MOST_USED]; /* of each hit */
    int32_t miss[ATS_EXPERT_MOST_USED]; /* column numbers, ascending */
};

/* A part of an expert to be copied to a slot. */
struct ats_expert_copy {
    int32_t expert;
    int32_t slot;
    uint32_t part;
    bool last; /* with it the expert is there */
};

/* Slots that are all empty. `n_slots` of 1 to n_experts, parts of which no size is 0. False: out of
 * memory. Free it with ats_expert_slots_free. */
bool ats_expert_slots_init(struct ats_expert_slots *slots, int32_t n_experts, int32_t n_slots,
                           const size_t *part_bytes, uint32_t n_parts, float copy_share);
void ats_expert_slots_free(struct ats_expert_slots *slots);

/* Expert i is in slot i, for all slots. */
void ats_expert_slots_fill(struct ats_expert_slots *slots);

/* Nothing is there: the bytes were lost or are old. What is known of uses stays. */
void ats_expert_slots_empty(struct ats_expert_slots *slots);

/* A token uses these experts, each a number of [0, n_experts), not necessarily distinct. Says which
 * columns find their expert in a slot. At most ATS_EXPERT_MOST_USED. */
void ats_expert_slots_use(struct ats_expert_slots *slots, const int32_t *experts, uint32_t n,
                          struct ats_expert_columns *columns);

/* The next copy that the credit allows, if one is worth making. Its slot was used by no column of
 * the latest token. */
bool ats_expert_slots_next(struct ats_expert_slots *slots, struct ats_expert_copy *copy);

/* The next copy for the expert that is on its way, at the expense of the credit to come. False:
 * none is on its way. */
bool ats_expert_slots_finish(struct ats_expert_slots *slots, struct ats_expert_copy *copy);

/* ---- using a whole weight ---- */

/* Whether every slot holds an expert: then expert_of says where the bytes of each belong in a whole
 * weight. */
bool ats_expert_slots_full(const struct ats_expert_slots *slots);

/* The next run of experts, at `*first` or behind, that come from host memory: sets *first and *n.
 * Runs that are at most `gap` experts apart are one. False: there are none. */
bool ats_expert_slots_run(const struct ats_expert_slots *slots, int32_t gap, int32_t *first,
                          int32_t *n);

/* The widest gap between runs of experts with parts of this size: to copy what lies between takes
 * no longer than to begin another copy. */
int32_t ats_expert_widest_gap(size_t part_bytes, const struct ats_partition_costs *costs);

/* ---- division of VRAM ---- */

/* A layer that wants slots. */
struct ats_expert_layer {
    int32_t n_experts;
    size_t expert_bytes; /* of one expert in VRAM */
    bool whole;          /* result: no slots, but all of it */
    int32_t n_slots;     /* result */
};

/* Chooses the layers that are better off with all of their experts in VRAM, out of `bytes` for all:
 * evenly over the depth, as long as the others keep room for two fifths of theirs, with which slots
 * hit nearly always. A layer in VRAM as a whole needs no ids on the host, no second side, and no
 * kernel that puts slots to their places. Returns how many; n if all fit. */
size_t ats_expert_choose_whole(struct ats_expert_layer *layers, size_t n, size_t bytes);

/* Whether slices are predicted to be no slower than whole layers in any phase, if `bytes` are for
 * experts: at most half of what all of them take. */
bool ats_expert_slices_win(const struct ats_expert_layer *layers, size_t n, size_t bytes);

/* Divides `bytes` of VRAM among layers, so that each gets the same share of its experts, at most
 * all of them. */
void ats_expert_divide(struct ats_expert_layer *layers, size_t n, size_t bytes);

#endif
