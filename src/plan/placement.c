#include "plan/placement.h"

#include "base/parse.h"
#include "base/rng.h"

#include <ctype.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>

/* Layers are placed as groups; these stand for what has no layer number. */
enum {
    LAYER_NONE = -1,
    LAYER_MAX = 1 << 20, /* beyond any model; guards parsing of hostile names */
};

/* The parts of a layer that move together, the ones placed first before the others. */
enum part {
    PART_ATTENTION, /* attention or recurrent block, with its state */
    PART_DENSE,     /* everything else that is not an expert weight */
    PART_EXPERTS,
};

static int parse_layer(const char *digits)
{
    if (!isdigit((unsigned char)digits[0])) {
        return LAYER_NONE;
    }
    const long layer = strtol(digits, NULL, 10);
    return layer >= 0 && layer < LAYER_MAX ? (int)layer : LAYER_NONE;
}

int ats_layer_of(const char *name)
{
    if (strncmp(name, "blk.", 4) == 0) {
        return parse_layer(name + 4);
    }
    if (strncmp(name, "cache_", 6) == 0) {
        const char *suffix = strstr(name, "_l");
        return suffix != NULL ? parse_layer(suffix + 2) : LAYER_NONE;
    }
    return LAYER_NONE;
}

bool ats_is_expert_weight(const char *name)
{
    return strstr(name, "_exps.") != NULL || strstr(name, "_chexps.") != NULL;
}

bool ats_is_outer_weight(const char *name)
{
    return strstr(name, "_down") != NULL;
}

static enum part part_of(const struct ats_unit *unit)
{
    if (ats_is_expert_weight(unit->name)) {
        return PART_EXPERTS;
    }
    return unit->kind == ATS_UNIT_STATE || strstr(unit->name, "attn") != NULL ||
                   strstr(unit->name, "ssm") != NULL
               ? PART_ATTENTION
               : PART_DENSE;
}

struct filler {
    const struct ats_unit *units;
    size_t n;
    size_t left; /* bytes of the budget not yet used */
    enum ats_where *where;
};

/* All of a part, or one half of a feed-forward block. */
enum half { WHOLE, INNER, OUTER };

static bool is_in(const struct ats_unit *unit, enum half half)
{
    return half == WHOLE || ats_is_outer_weight(unit->name) == (half == OUTER);
}

/* Places a part of `layer`, or a half of it, all or none. */
static bool place_group(struct filler *f, int layer, enum part part, enum half half)
{
    size_t bytes = 0;
    for (int pass = 0; pass < 2; pass++) {
        for (size_t i = 0; i < f->n; i++) {
            const struct ats_unit *unit = &f->units[i];
            if (!unit->accel_can || f->where[i] != ATS_WHERE_HOST ||
                ats_layer_of(unit->name) != layer || part_of(unit) != part || !is_in(unit, half)) {
                continue;
            }
            if (pass == 1) {
                f->where[i] = ATS_WHERE_VRAM;
            } else if (unit->bytes > f->left - bytes) {
                return false;
            } else {
                bytes += unit->bytes;
            }
        }
    }
    f->left -= bytes;
    return true;
}

/* Norms and biases, as long as they fit. */
static void place_vectors(struct filler *f)
{
    for (size_t i = 0; i < f->n; i++) {
        const struct ats_unit *unit = &f->units[i];
        if (unit->is_vector && unit->host_can && unit->accel_can && f->where[i] == ATS_WHERE_HOST &&
            unit->bytes <= f->left) {
            f->where[i] = ATS_WHERE_BOTH;
            f->left -= unit->bytes;
        }
    }
}

/* The last layer first, then wherever the gap is widest: multiples of the golden ratio, modulo one,
 * lie evenly however many are taken (the three-gap theorem). */
static uint32_t spread_rank(int layer, int last_layer)
{
    return (uint32_t)(last_layer - layer) * UINT32_C(2654435769);
}

/* The layer that follows `layer` in the order of ranks, or LAYER_NONE. */
static int next_spread(int layer, int last_layer)
{
    int next = LAYER_NONE;
    for (int l = 0; l <= last_layer; l++) {
        if (spread_rank(l, last_layer) > spread_rank(layer, last_layer) &&
            (next == LAYER_NONE || spread_rank(l, last_layer) < spread_rank(next, last_layer))) {
            next = l;
        }
    }
    return next;
}

/* All of a layer's part, or else the half that fits. */
static void place_most(struct filler *f, int layer, enum part part)
{
    if (!place_group(f, layer, part, WHOLE) && !place_group(f, layer, part, INNER)) {
        place_group(f, layer, part, OUTER);
    }
}

static void place_fill(struct filler *f)
{
    int last_layer = LAYER_NONE;
    for (size_t i = 0; i < f->n; i++) {
        const int layer = ats_layer_of(f->units[i].name);
        last_layer = layer > last_layer ? layer : last_layer;
    }
    place_group(f, LAYER_NONE, PART_ATTENTION, WHOLE);
    place_group(f, LAYER_NONE, PART_DENSE, WHOLE);
    place_vectors(f);
    bool whole = true; /* all attention is in VRAM */
    for (int layer = last_layer; layer >= 0; layer--) {
        whole = place_group(f, layer, PART_ATTENTION, WHOLE) && whole;
    }
    for (int part = PART_DENSE; part <= PART_EXPERTS; part++) {
        for (int layer = last_layer; layer >= 0;
             layer = whole ? next_spread(layer, last_layer) : layer - 1) {
            place_most(f, layer, (enum part)part);
        }
    }
}

/* The hash is FNV-1a (Fowler, Noll, Vo). */
bool ats_toss(uint64_t seed, const char *name)
{
    uint64_t hash = UINT64_C(0xcbf29ce484222325);
    for (const char *c = name; *c != '\0'; c++) {
        hash = (hash ^ (unsigned char)*c) * UINT64_C(0x100000001b3);
    }
    struct ats_rng rng = {.state = hash ^ seed};
    ats_rng_next(&rng); /* nearby seeds start alike */
    return ats_rng_below(&rng, 2) == 1;
}

static void place_in_order(struct filler *f, const uint64_t *seed)
{
    for (size_t i = 0; i < f->n; i++) {
        const struct ats_unit *unit = &f->units[i];
        const bool wanted = seed == NULL || ats_toss(*seed, unit->name);
        if (wanted && unit->accel_can && f->where[i] == ATS_WHERE_HOST && unit->bytes <= f->left) {
            f->where[i] = ATS_WHERE_VRAM;
            f->left -= unit->bytes;
        }
    }
}

static int compare_entries(const void *a, const void *b)
{
    const struct ats_placement_entry *x = a;
    const struct ats_placement_entry *y = b;
    return strcmp(x->name, y->name);
}

/* The entry of a unit: by name, and of several with that name the one of its size. */
static const struct ats_placement_entry *find_entry(const struct ats_placement_table *table,
                                                    const struct ats_unit *unit)
{
    if (table->n_entries == 0) {
        return NULL;
    }
    struct ats_placement_entry key = {.name = (char *)(uintptr_t)unit->name};
    const struct ats_placement_entry *found =
        bsearch(&key, table->entries, table->n_entries, sizeof(*table->entries), compare_entries);
    if (found == NULL) {
        return NULL;
    }
    const struct ats_placement_entry *entry = found;
    while (entry > table->entries && strcmp(entry[-1].name, unit->name) == 0) {
        entry--;
    }
    const struct ats_placement_entry *end = table->entries + table->n_entries;
    for (; entry < end && strcmp(entry->name, unit->name) == 0; entry++) {
        if (entry->bytes == unit->bytes) {
            return entry;
        }
    }
    return found;
}

/* Whether a weight of `bytes` in a plan can be one that takes `in_vram` here. Plans of `ats plan`
 * state a tensor's own bytes; accelerators pad rows (ggml-cuda: to 512 elements) and align sizes.
 */
static bool is_same_size(size_t bytes, size_t in_vram)
{
    enum { LARGE = 64 << 10, ROW_PADDING = 4 << 10, ALIGNMENT = 256 };
    const size_t most = bytes >= LARGE ? ROW_PADDING : ALIGNMENT - 1;
    return in_vram >= bytes && in_vram - bytes <= most;
}

static bool place_by_table(struct filler *f, const struct ats_placement_table *table,
                           struct ats_error *err)
{
    for (size_t i = 0; i < f->n; i++) {
        const struct ats_unit *unit = &f->units[i];
        const struct ats_placement_entry *entry = find_entry(table, unit);
        if (entry == NULL) {
            if (unit->kind == ATS_UNIT_STATE) {
                continue;
            }
            return ats_fail(err,
                            "plan %s is of another model: it does not name the tensor %s; "
                            "write a new one with ATS_PLAN_OUT",
                            table->source, unit->name);
        }
        if (unit->kind == ATS_UNIT_WEIGHT && !is_same_size(entry->bytes, unit->bytes)) {
            return ats_fail(err,
                            "plan %s is of another model: tensor %s has %zu bytes there, %zu here; "
                            "write a new one with ATS_PLAN_OUT",
                            table->source, unit->name, entry->bytes, unit->bytes);
        }
        if (f->where[i] == ATS_WHERE_HOST && entry->where != ATS_WHERE_HOST && unit->accel_can &&
            unit->bytes <= f->left) {
            f->where[i] = entry->where;
            f->left -= unit->bytes;
        }
    }
    return true;
}

bool ats_place(const struct ats_unit *units, size_t n, size_t budget, const struct ats_rule *rule,
               enum ats_where *where, struct ats_error *err)
{
    struct filler f = {.units = units, .n = n, .left = budget, .where = where};
    for (size_t i = 0; i < n; i++) {
        where[i] = ATS_WHERE_HOST;
        if (!units[i].host_can && units[i].accel_can && units[i].bytes <= f.left) {
            where[i] = ATS_WHERE_VRAM;
            f.left -= units[i].bytes;
        }
    }
    switch (rule->kind) {
    case ATS_RULE_HOST:
        return true;
    case ATS_RULE_AUTO:
    case ATS_RULE_FILL:
        place_fill(&f);
        return true;
    case ATS_RULE_VRAM:
        place_in_order(&f, NULL);
        return true;
    case ATS_RULE_RANDOM:
        place_in_order(&f, &rule->seed);
        return true;
    case ATS_RULE_TABLE:
        return place_by_table(&f, rule->table, err);
    }
    return ats_fail(err, "unknown placement rule %d", (int)rule->kind);
}

size_t ats_place_shortfall(const struct ats_unit *units, size_t n, const struct ats_rule *rule,
                           const enum ats_where *where, size_t *bytes)
{
    size_t n_short = 0;
    *bytes = 0;
    for (size_t i = 0; rule->kind == ATS_RULE_TABLE && i < n; i++) {
        const struct ats_placement_entry *entry = find_entry(rule->table, &units[i]);
        if (entry != NULL && entry->where != ATS_WHERE_HOST && where[i] == ATS_WHERE_HOST) {
            n_short++;
            *bytes += units[i].bytes;
        }
    }
    return n_short;
}

bool ats_rule_parse(const char *text, struct ats_rule *rule, struct ats_error *err)
{
    static const struct {
        const char *name;
        enum ats_rule_kind kind;
    } names[] = {
        {"auto", ATS_RULE_AUTO},
        {"fill", ATS_RULE_FILL},
        {"host", ATS_RULE_HOST},
        {"vram", ATS_RULE_VRAM},
    };
    *rule = (struct ats_rule){.kind = ATS_RULE_FILL};
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        if (strcmp(text, names[i].name) == 0) {
            rule->kind = names[i].kind;
            return true;
        }
    }
    if (strncmp(text, "random:", 7) == 0) {
        rule->kind = ATS_RULE_RANDOM;
        return ats_parse_u64(text + 7, UINT64_MAX, &rule->seed, err);
    }
    return false;
}
