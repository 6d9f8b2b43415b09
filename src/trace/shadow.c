#include "trace/shadow.h"

#include <stdlib.h>
#include <string.h>

/* The first stretch that ends behind `at`. */
static size_t first_behind(const struct ats_trace_shadow *shadow, uint64_t at)
{
    size_t low = 0;
    size_t high = shadow->n;
    while (low < high) {
        const size_t middle = low + (high - low) / 2;
        if (shadow->stretches[middle].end > at) {
            high = middle;
        } else {
            low = middle + 1;
        }
    }
    return low;
}

static bool insert(struct ats_trace_shadow *shadow, size_t i, struct ats_trace_stretch stretch)
{
    if (shadow->n == shadow->capacity) {
        const size_t capacity = shadow->capacity == 0 ? 64 : 2 * shadow->capacity;
        struct ats_trace_stretch *grown = realloc(shadow->stretches, capacity * sizeof(*grown));
        if (grown == NULL) {
            return false;
        }
        shadow->stretches = grown;
        shadow->capacity = capacity;
    }
    struct ats_trace_stretch *at = &shadow->stretches[i];
    memmove(at + 1, at, (shadow->n - i) * sizeof(*at));
    *at = stretch;
    shadow->n++;
    return true;
}

/* Makes a border at `at`, if a stretch reaches over it. */
static bool split(struct ats_trace_shadow *shadow, uint64_t at)
{
    const size_t i = first_behind(shadow, at);
    if (i == shadow->n || shadow->stretches[i].begin >= at) {
        return true;
    }
    struct ats_trace_stretch left = shadow->stretches[i];
    left.end = at;
    if (!insert(shadow, i, left)) {
        return false;
    }
    shadow->stretches[i + 1].begin = at;
    return true;
}

size_t ats_trace_shadow_cover(struct ats_trace_shadow *shadow, uint64_t begin, uint64_t end,
                              size_t *n)
{
    if (!split(shadow, begin) || !split(shadow, end)) {
        return SIZE_MAX;
    }
    const size_t first = first_behind(shadow, begin);
    size_t i = first;
    for (uint64_t at = begin; at < end; i++) {
        const bool is_gap = i == shadow->n || shadow->stretches[i].begin > at;
        if (is_gap) {
            const bool is_last = i == shadow->n || shadow->stretches[i].begin >= end;
            const struct ats_trace_stretch gap = {
                .begin = at, .end = is_last ? end : shadow->stretches[i].begin};
            if (!insert(shadow, i, gap)) {
                return SIZE_MAX;
            }
        }
        at = shadow->stretches[i].end;
    }
    *n = i - first;
    return first;
}

void ats_trace_shadow_write(struct ats_trace_shadow *shadow, size_t first, size_t n, int agent,
                            struct ats_trace_access write)
{
    struct ats_trace_stretch *s = &shadow->stretches[first];
    *s = (struct ats_trace_stretch){
        .begin = s->begin, .end = s[n - 1].end, .writer = agent, .write = write};
    memmove(s + 1, s + n, (shadow->n - first - n) * sizeof(*s));
    shadow->n -= n - 1;
}

void ats_trace_shadow_clear(struct ats_trace_shadow *shadow)
{
    free(shadow->stretches);
    *shadow = (struct ats_trace_shadow){0};
}
