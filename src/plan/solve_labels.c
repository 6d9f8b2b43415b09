#include "plan/solve_labels.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Blocks before the last one of a problem whose placements can all have a label. */
enum { MOST_BLOCKS = 15 };

/* Labels in all, per block and side: enough for all 2^15 of sixteen blocks, few enough for
 * 6 MiB and less than 100 ms whatever the number of blocks. */
enum { ALL_LABELS = 600000, FEWEST_LABELS = 4 };

/* Halvings that find a limit which about the right number of labels stay below. */
enum { HALVINGS = 24 };

/* Improvements smaller than this share of the time are rounding errors. */
static const double ROUNDING = 1e-12;

struct label {
    uint64_t bytes;
    double us;
    uint32_t parent; /* index in the list of the block before, and its side in the lowest bit */
};

struct list {
    struct label *at;
    size_t n;
};

struct search {
    const struct ats_blocks *b;
    size_t most;                 /* labels of a block and side */
    struct list now[ATS_SIDES];  /* of the block at hand */
    struct list next[ATS_SIDES]; /* of the one behind it */
    uint64_t *needed;            /* bytes that the blocks from i on take in any placement */
    /* parents of all labels, by block and side: pool[start[2 * block + side] ..] */
    uint32_t *pool;
    size_t pool_n;
    size_t pool_capacity;
    size_t *start;
    double limit_us;   /* labels must promise less */
    double dropped_us; /* the least that a label promised which was given up */
};

static bool search_make(struct search *s, const struct ats_blocks *b)
{
    const size_t share = ALL_LABELS / (b->n + 1);
    *s = (struct search){.b = b, .dropped_us = INFINITY};
    const size_t ways = (size_t)1 << (b->n < MOST_BLOCKS ? b->n : MOST_BLOCKS);
    s->most = share > ways ? ways : share < FEWEST_LABELS ? FEWEST_LABELS : share;
    s->needed = calloc(b->n + 1, sizeof(s->needed[0]));
    s->start = calloc(2 * b->n + 2, sizeof(s->start[0]));
    bool good = s->needed != NULL && s->start != NULL;
    for (int side = 0; side < ATS_SIDES; side++) {
        /* two lists are merged before the result is cut */
        s->now[side].at = malloc((2 * s->most + 1) * sizeof(struct label));
        s->next[side].at = malloc((2 * s->most + 1) * sizeof(struct label));
        good = good && s->now[side].at != NULL && s->next[side].at != NULL;
    }
    for (size_t i = b->n; good && i-- > 0;) {
        s->needed[i] =
            s->needed[i + 1] + (b->at[i].sides == ATS_ON(ATS_ACCEL) ? b->at[i].bytes : 0);
    }
    return good;
}

static void search_free(struct search *s)
{
    for (int side = 0; side < ATS_SIDES; side++) {
        free(s->now[side].at);
        free(s->next[side].at);
    }
    free(s->needed);
    free(s->start);
    free(s->pool);
}

/* The least time of a placement that begins as the label does, by the price of what is left. */
static double promise(const struct search *s, const struct label *label, size_t block, int side)
{
    const double left = (double)s->b->budget - (double)label->bytes;
    return label->us + s->b->rest_us[block + 1][side] - s->b->price * left;
}

/* Appends a label unless another one, or the best placement known, is as good. Labels come in the
 * order of their bytes. */
static void add(struct search *s, struct list *list, struct label label, size_t block, int side)
{
    const bool dominated = list->n > 0 && list->at[list->n - 1].us <= label.us;
    if (dominated || label.bytes + s->needed[block + 1] > s->b->budget ||
        promise(s, &label, block, side) >= s->limit_us) {
        return;
    }
    if (list->n > 0 && list->at[list->n - 1].bytes == label.bytes) {
        list->n--; /* as many bytes, less time */
    }
    list->at[list->n++] = label;
}

/* The labels of `block` on `side`, from those of the block before on either side. */
static void extend(struct search *s, size_t block, int side)
{
    const struct ats_block *b = &s->b->at[block];
    const uint64_t bytes = side == ATS_ACCEL ? b->bytes : 0;
    const struct list *from[ATS_SIDES] = {&s->now[0], &s->now[1]};
    const double more_us[ATS_SIDES] = {b->us[side] + (side != 0 ? b->change_us : 0),
                                       b->us[side] + (side != 1 ? b->change_us : 0)};
    struct list *to = &s->next[side];
    size_t at[ATS_SIDES] = {0, 0};
    to->n = 0;
    while ((b->sides & ATS_ON(side)) != 0 && (at[0] < from[0]->n || at[1] < from[1]->n)) {
        const bool first_is_left = at[0] < from[0]->n;
        const bool second_is_left = at[1] < from[1]->n;
        int k = first_is_left ? 0 : 1;
        if (first_is_left && second_is_left) {
            k = from[1]->at[at[1]].bytes < from[0]->at[at[0]].bytes;
        }
        const struct label *old = &from[k]->at[at[k]];
        const struct label label = {.bytes = old->bytes + bytes,
                                    .us = old->us + more_us[k],
                                    .parent = (uint32_t)(at[k] << 1) | (uint32_t)k};
        at[k]++;
        add(s, to, label, block, side);
    }
}

static size_t count_below(const double *promises, size_t n, double limit)
{
    size_t below = 0;
    for (size_t i = 0; i < n; i++) {
        below += promises[i] < limit;
    }
    return below;
}

/* Gives up the labels that promise least, until there are few enough. */
static bool cut(struct search *s, size_t block, int side)
{
    struct list *list = &s->next[side];
    if (list->n <= s->most) {
        return true;
    }
    double *promises = malloc(list->n * sizeof(promises[0]));
    if (promises == NULL) {
        return false;
    }
    double low = INFINITY;
    double high = s->limit_us;
    for (size_t i = 0; i < list->n; i++) {
        promises[i] = promise(s, &list->at[i], block, side);
        low = fmin(low, promises[i]);
    }
    for (int i = 0; i < HALVINGS && low < high; i++) {
        const double middle = low + (high - low) / 2;
        const size_t below = count_below(promises, list->n, middle);
        high = below > s->most ? middle : high;
        low = below > s->most ? low : middle;
        if (below <= s->most && below >= s->most - s->most / 8) {
            high = middle;
        }
    }
    size_t kept = 0;
    size_t left = s->most - count_below(promises, list->n, low);
    for (size_t i = 0; i < list->n; i++) {
        const bool is_close = promises[i] >= low && promises[i] < high && left > 0;
        left -= is_close;
        if (promises[i] < low || is_close) {
            list->at[kept++] = list->at[i];
        } else {
            s->dropped_us = fmin(s->dropped_us, promises[i]);
        }
    }
    list->n = kept;
    free(promises);
    return true;
}

static bool keep_parents(struct search *s, size_t block)
{
    const size_t n = s->next[0].n + s->next[1].n;
    if (s->pool_n + n > s->pool_capacity) {
        const size_t capacity = 2 * s->pool_capacity + n + 1024;
        uint32_t *grown = realloc(s->pool, capacity * sizeof(grown[0]));
        if (grown == NULL) {
            return false;
        }
        s->pool = grown;
        s->pool_capacity = capacity;
    }
    for (size_t side = 0; side < ATS_SIDES; side++) {
        s->start[2 * block + side] = s->pool_n;
        for (size_t i = 0; i < s->next[side].n; i++) {
            s->pool[s->pool_n++] = s->next[side].at[i].parent;
        }
    }
    return true;
}

static void swap(struct search *s)
{
    for (int side = 0; side < ATS_SIDES; side++) {
        const struct list list = s->now[side];
        s->now[side] = s->next[side];
        s->next[side] = list;
    }
}

/* The last label of a list has the least time. */
static void trace_back(const struct search *s, uint8_t *sides, double *us)
{
    const struct list *ends = s->now;
    int side = ATS_HOST;
    if (ends[0].n == 0 ||
        (ends[1].n > 0 && ends[1].at[ends[1].n - 1].us < ends[0].at[ends[0].n - 1].us)) {
        side = ATS_ACCEL;
    }
    if (ends[side].n == 0) {
        return; /* nothing is better than what is known */
    }
    size_t at = ends[side].n - 1;
    *us = ends[side].at[at].us;
    for (size_t i = s->b->n; i-- > 0;) {
        sides[i] = (uint8_t)side;
        const uint32_t parent = s->pool[s->start[2 * i + (size_t)side] + at];
        side = (int)(parent & 1);
        at = parent >> 1;
    }
}

bool ats_labels_improve(const struct ats_blocks *b, uint8_t *sides, double us, double *bound_us)
{
    struct search s;
    bool good = search_make(&s, b);
    if (good) {
        s.limit_us = us - ROUNDING * us;
        s.now[ATS_HOST].at[0] = (struct label){0};
        s.now[ATS_HOST].n = 1;
    }
    for (size_t i = 0; good && i < b->n; i++) {
        for (int side = 0; good && side < ATS_SIDES; side++) {
            extend(&s, i, side);
            good = cut(&s, i, side);
        }
        good = good && keep_parents(&s, i);
        swap(&s);
    }
    if (good) {
        trace_back(&s, sides, &us);
        *bound_us = fmin(us, s.dropped_us);
    }
    search_free(&s);
    return good;
}
