#include "routing_figures.h"

#include <stdlib.h>
#include <string.h>

enum {
    WARM_UP_TOKENS = 64, /* published: an LRU of experts is warm after about 64 tokens */
    LEAST_TOKENS = 128,
    REUSE_WINDOW = 8,
};

static bool in_range(const int32_t *ids, size_t n, size_t n_experts)
{
    for (size_t i = 0; i < n; i++) {
        if (ids[i] < 0 || (size_t)ids[i] >= n_experts) {
            return false;
        }
    }
    return true;
}

/* Tokens until each selection's expert is chosen again; 0 for never. `next` has n_experts places.
 */
static void reuse_distances(size_t *distance, const int32_t *ids, size_t n_tokens, size_t n_used,
                            size_t *next, size_t n_experts)
{
    memset(next, 0, n_experts * sizeof *next); /* 1 + the token that uses the expert next */
    for (size_t t = n_tokens; t-- > 0;) {
        for (size_t j = 0; j < n_used; j++) {
            const size_t e = (size_t)ids[t * n_used + j];
            distance[t * n_used + j] = next[e] > 0 ? next[e] - 1 - t : 0;
        }
        for (size_t j = 0; j < n_used; j++) {
            next[ids[t * n_used + j]] = t + 1;
        }
    }
}

static void reuse_figures(struct routing_figures *f, const size_t *distance, size_t n_tokens,
                          size_t n_used, size_t *count)
{
    const size_t n = (n_tokens - REUSE_WINDOW) * n_used;
    size_t next = 0;
    size_t within = 0;
    memset(count, 0, (n_tokens + 1) * sizeof *count);
    for (size_t i = 0; i < n; i++) {
        next += distance[i] == 1;
        within += distance[i] >= 1 && distance[i] <= REUSE_WINDOW;
        count[distance[i]]++;
    }
    size_t below = 0;
    size_t d = 0;
    while (d < n_tokens && 2 * below < n) {
        d++;
        below += count[d];
    }
    f->repeat_next = (double)next / (double)n;
    f->repeat_within_8 = (double)within / (double)n;
    f->median_reuse_tokens = (double)d; /* never used again counts as longest */
}

static int descending(const void *a, const void *b)
{
    const size_t x = *(const size_t *)a;
    const size_t y = *(const size_t *)b;
    return (x < y) - (x > y);
}

static double top_tenth(const int32_t *ids, size_t n, size_t *count, size_t n_experts)
{
    memset(count, 0, n_experts * sizeof *count);
    for (size_t i = 0; i < n; i++) {
        count[ids[i]]++;
    }
    qsort(count, n_experts, sizeof *count, descending);
    size_t top = 0;
    for (size_t e = 0; e < (n_experts + 9) / 10; e++) {
        top += count[e];
    }
    return (double)top / (double)n;
}

/* An expert is a hit if fewer than `capacity` others have been used since its last use. `last` is
 * 1 + the last selection of each expert. Selections of one token count in their order. */
static double lru_hit_rate(const int32_t *ids, size_t n_tokens, size_t n_used, size_t capacity,
                           size_t *last, size_t n_experts)
{
    size_t hits = 0;
    memset(last, 0, n_experts * sizeof *last);
    for (size_t i = 0; i < n_tokens * n_used; i++) {
        const size_t e = (size_t)ids[i];
        size_t others = 0;
        for (size_t k = 0; k < n_experts; k++) {
            others += last[k] > last[e];
        }
        hits += i >= WARM_UP_TOKENS * n_used && last[e] > 0 && others < capacity;
        last[e] = i + 1;
    }
    return (double)hits / (double)((n_tokens - WARM_UP_TOKENS) * n_used);
}

bool routing_measure(struct routing_figures *figures, const int32_t *ids, size_t n_tokens,
                     size_t n_used, size_t n_experts)
{
    const size_t n = n_tokens * n_used;
    if (n_tokens < LEAST_TOKENS || n_used == 0 || !in_range(ids, n, n_experts)) {
        return false;
    }
    const size_t n_scratch = n_experts > n_tokens ? n_experts + 1 : n_tokens + 1;
    size_t *distance = malloc(n * sizeof *distance);
    size_t *scratch = malloc(n_scratch * sizeof *scratch);
    const bool ok = distance != NULL && scratch != NULL;
    if (ok) {
        reuse_distances(distance, ids, n_tokens, n_used, scratch, n_experts);
        reuse_figures(figures, distance, n_tokens, n_used, scratch);
        figures->top_tenth = top_tenth(ids, n, scratch, n_experts);
        figures->lru_eighth =
            lru_hit_rate(ids, n_tokens, n_used, n_experts / 8, scratch, n_experts);
        figures->lru_quarter =
            lru_hit_rate(ids, n_tokens, n_used, n_experts / 4, scratch, n_experts);
        figures->lru_40_percent =
            lru_hit_rate(ids, n_tokens, n_used, n_experts * 2 / 5, scratch, n_experts);
    }
    free(scratch);
    free(distance);
    return ok;
}
