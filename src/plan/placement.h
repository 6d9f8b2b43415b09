/* Static placement: which tensors live in VRAM, decided under a budget.
 *
 * Pure: takes descriptions, returns decisions, calls nothing. A placement has a
 * printed form (ats_placement_print) that can be read back from a file
 * (ats_placement_read), so that a person can see and change where each tensor
 * lives.
 *
 * Thread-safety: no shared state; distinct arguments may be used in parallel. */
#ifndef ATS_PLAN_PLACEMENT_H
#define ATS_PLAN_PLACEMENT_H

#include "base/error.h"
#include "plan/staging.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

enum ats_where {
    ATS_WHERE_HOST, /* host memory only; its operators run on the CPU */
    ATS_WHERE_VRAM, /* VRAM; the host copy is given up where that is possible */
    ATS_WHERE_BOTH, /* a copy on each side */
};

enum ats_unit_kind {
    ATS_UNIT_WEIGHT, /* read only */
    ATS_UNIT_STATE,  /* KV cache or recurrent state: written in place, lives on one side */
};

/* One thing to place. Units come in the order in which the graph first uses them. */
struct ats_unit {
    const char *name; /* the tensor's name in the model; owned by the caller */
    size_t bytes;     /* what it takes in VRAM, padding included */
    enum ats_unit_kind kind;
    bool is_vector; /* a norm or a bias: little, and used beside a matrix */
    bool accel_can; /* the accelerator supports all operators that use it */
    bool host_can;  /* the CPU supports all operators that use it */
};

enum ats_rule_kind {
    ATS_RULE_AUTO,   /* as is predicted to be fastest here; `fill` for whoever cannot predict */
    ATS_RULE_FILL,   /* the simple rule: see ats_place */
    ATS_RULE_HOST,   /* nothing in VRAM */
    ATS_RULE_VRAM,   /* everything that fits, in order of use */
    ATS_RULE_RANDOM, /* a coin per unit, from seed and name: for tests */
    ATS_RULE_TABLE,  /* as a plan file says */
};

/* One line of a plan file. */
struct ats_placement_entry {
    char *name; /* owned by the table */
    size_t bytes;
    enum ats_where where;
};

/* A plan in memory, sorted by name; two models on one device may share names. Freed with
 * ats_placement_table_free. */
struct ats_placement_table {
    struct ats_placement_entry *entries;
    size_t n_entries;
    size_t capacity;
    struct ats_staging_way staging; /* that it was made for; no places: it does not say */
    char *source;                   /* file name, for messages */
};

struct ats_rule {
    enum ats_rule_kind kind;
    uint64_t seed;                           /* ATS_RULE_RANDOM */
    const struct ats_placement_table *table; /* ATS_RULE_TABLE; borrowed */
};

/* Decides where each of `n` units lives, so that what is in VRAM takes at most
 * `budget` bytes; writes one decision per unit to `where`.
 *
 * ATS_RULE_FILL places groups that stay together: the output layer; all vectors, on both sides, so
 * that norms and biases run beside the matrix that they belong to; attention or recurrent blocks
 * with their state, which at any depth of context is read faster there; feed-forward blocks;
 * experts. Attention goes from the last layer to the first. So does the rest if not all attention
 * fits, to keep layers on one side; else layers are taken evenly from the whole depth, so that
 * weights which pass through VRAM cross the link while others compute, and it costs no split more.
 * Of a feed-forward block or of experts that do not fit whole, gate and up or else down may
 * still find room: neither costs a split more.
 *
 * Units that the accelerator cannot use stay in host memory whatever the rule;
 * units that only the accelerator can use go to VRAM even beyond the rule, as
 * long as they fit the budget.
 *
 * Fails only for ATS_RULE_TABLE, if the table is of another model: a weight is
 * missing in it or has another size there, beyond what an accelerator pads. */
bool ats_place(const struct ats_unit *units, size_t n, size_t budget, const struct ats_rule *rule,
               enum ats_where *where, struct ats_error *err);

/* How many units a plan file wants in VRAM that `where` leaves in host memory, because they did not
 * fit; *bytes is their sum. 0 for other rules. */
size_t ats_place_shortfall(const struct ats_unit *units, size_t n, const struct ats_rule *rule,
                           const enum ats_where *where, size_t *bytes);

/* Writes the plan in the form that ats_placement_read accepts; without places it does not say how
 * staging memory is used. Returns false if the stream reports an error. */
bool ats_placement_print(FILE *out, struct ats_staging_way staging, const struct ats_unit *units,
                         size_t n, const enum ats_where *where);

/* Reads a plan file. Fails with file, line and reason. */
bool ats_placement_read(const char *path, struct ats_placement_table *table, struct ats_error *err);

/* Adds the lines of another plan file to a table that ats_placement_read filled; how staging memory
 * is used is what the first one said. */
bool ats_placement_read_more(const char *path, struct ats_placement_table *table,
                             struct ats_error *err);

void ats_placement_table_free(struct ats_placement_table *table);

/* Parses a rule as users write it: auto, fill, host, vram, random:SEED. Returns false
 * without an error text if `text` is none of these (it may be a file name). */
bool ats_rule_parse(const char *text, struct ats_rule *rule, struct ats_error *err);

/* A coin that depends on the seed and the tensor's name alone, so that a model is treated alike in
 * whatever order its tensors come. */
bool ats_toss(uint64_t seed, const char *name);

/* The layer that a tensor belongs to, by its name ("blk.7.ffn_up.weight",
 * "cache_k_l7"), or -1. */
int ats_layer_of(const char *name);

/* Whether the name is one of stacked expert weights ("blk.7.ffn_up_exps.weight"). */
bool ats_is_expert_weight(const char *name);

/* Whether the name is that of a feed-forward block's second matrix ("blk.7.ffn_down.weight"), which
 * may live elsewhere than the first ones: those are computed together. */
bool ats_is_outer_weight(const char *name);

#endif
