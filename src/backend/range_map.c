#include "backend/range_map.h"

#include <stdlib.h>
#include <string.h>

void ats_range_map_free(struct ats_range_map *map)
{
    free(map->ranges);
    *map = (struct ats_range_map){0};
}

bool ats_range_map_reserve(struct ats_range_map *map, size_t n)
{
    if (n <= map->capacity) {
        return true;
    }
    const size_t capacity = n + n / 2 + 16;
    void *ranges = realloc(map->ranges, capacity * sizeof(*map->ranges));
    if (ranges == NULL) {
        return false;
    }
    map->ranges = ranges;
    map->capacity = capacity;
    return true;
}

/* Index of the first entry that ends behind `offset`. */
static size_t first_ending_behind(const struct ats_range_map *map, size_t offset)
{
    size_t low = 0;
    size_t high = map->n_ranges;
    while (low < high) {
        const size_t middle = low + (high - low) / 2;
        if (map->ranges[middle].end > offset) {
            high = middle;
        } else {
            low = middle + 1;
        }
    }
    return low;
}

ats_side_set ats_range_map_at(const struct ats_range_map *map, size_t offset)
{
    const size_t i = first_ending_behind(map, offset);
    return i < map->n_ranges && map->ranges[i].begin <= offset ? map->ranges[i].valid
                                                               : ATS_ON(ATS_HOST);
}

size_t ats_range_map_border(const struct ats_range_map *map, size_t offset, size_t end)
{
    const size_t i = first_ending_behind(map, offset);
    if (i == map->n_ranges) {
        return end;
    }
    const struct ats_range *range = &map->ranges[i];
    const size_t border = range->begin > offset ? range->begin : range->end;
    return border < end ? border : end;
}

bool ats_range_map_touches(const struct ats_range_map *map, size_t begin, size_t end,
                           enum ats_side side)
{
    for (size_t i = first_ending_behind(map, begin);
         i < map->n_ranges && map->ranges[i].begin < end; i++) {
        if ((map->ranges[i].valid & ATS_ON(side)) != 0) {
            return true;
        }
    }
    return false;
}

bool ats_range_map_set(struct ats_range_map *map, size_t begin, size_t end, ats_side_set valid)
{
    if (begin >= end) {
        return true;
    }
    const size_t first = first_ending_behind(map, begin);
    if (first < map->n_ranges && map->ranges[first].begin == begin &&
        map->ranges[first].end == end) {
        map->ranges[first].valid = valid; /* the common case: the same tensor again */
        return true;
    }
    if (!ats_range_map_reserve(map, map->n_ranges + 2)) {
        return false;
    }
    size_t last = first; /* one behind the last entry that overlaps */
    while (last < map->n_ranges && map->ranges[last].begin < end) {
        last++;
    }
    struct ats_range with[3];
    size_t n_with = 0;
    if (first < last && map->ranges[first].begin < begin) {
        with[n_with] = map->ranges[first];
        with[n_with++].end = begin;
    }
    with[n_with++] = (struct ats_range){.begin = begin, .end = end, .valid = valid};
    if (first < last && map->ranges[last - 1].end > end) {
        with[n_with] = map->ranges[last - 1];
        with[n_with++].begin = end;
    }
    memmove(&map->ranges[first + n_with], &map->ranges[last],
            (map->n_ranges - last) * sizeof(*map->ranges));
    memcpy(&map->ranges[first], with, n_with * sizeof(*map->ranges));
    map->n_ranges = map->n_ranges - (last - first) + n_with;
    return true;
}

static void emit(struct ats_range_map *out, size_t begin, size_t end, ats_side_set valid)
{
    if (begin < end) {
        out->ranges[out->n_ranges++] = (struct ats_range){begin, end, valid};
    }
}

bool ats_range_map_overlay(struct ats_range_map *map, const struct ats_range *over, size_t n,
                           struct ats_range_map *scratch)
{
    /* each new range can cut one old entry in two */
    if (!ats_range_map_reserve(scratch, map->n_ranges + 2 * n)) {
        return false;
    }
    scratch->n_ranges = 0;
    size_t old = 0;
    size_t from = 0; /* what lies before has been emitted or covered */
    for (size_t i = 0; i <= n; i++) {
        const size_t begin = i < n ? over[i].begin : (size_t)-1;
        while (old < map->n_ranges && map->ranges[old].begin < begin) {
            const struct ats_range *r = &map->ranges[old];
            emit(scratch, r->begin > from ? r->begin : from, r->end < begin ? r->end : begin,
                 r->valid);
            if (r->end > begin) {
                break; /* its rest may show behind the new range */
            }
            old++;
        }
        if (i == n) {
            break;
        }
        emit(scratch, begin, over[i].end, over[i].valid);
        from = over[i].end;
        while (old < map->n_ranges && map->ranges[old].end <= from) {
            old++;
        }
    }
    const struct ats_range_map swap = *map;
    *map = *scratch;
    *scratch = swap;
    return true;
}
