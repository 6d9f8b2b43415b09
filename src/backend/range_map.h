/* Validity of a memory area by byte ranges: on which sides each range is valid.
 *
 * Used for compute buffers, whose memory is recycled from tensor to tensor, so
 * that state must be tied to addresses and not to tensors. Ranges that are not
 * listed are valid in host memory only. Entries are sorted and disjoint.
 *
 * Thread-safety: none; the owner of the buffer serialises access. */
#ifndef ATS_BACKEND_RANGE_MAP_H
#define ATS_BACKEND_RANGE_MAP_H

#include "plan/side.h"

#include <stdbool.h>
#include <stddef.h>

struct ats_range {
    size_t begin; /* offset in bytes */
    size_t end;
    ats_side_set valid;
};

struct ats_range_map {
    struct ats_range *ranges;
    size_t n_ranges;
    size_t capacity;
};

void ats_range_map_free(struct ats_range_map *map);

/* Makes room for `n` entries, so that the next operations cannot fail. */
bool ats_range_map_reserve(struct ats_range_map *map, size_t n);

/* The state of the bytes at `offset`. */
ats_side_set ats_range_map_at(const struct ats_range_map *map, size_t offset);

/* Where the bytes that have one state from `offset` on may end: the border of an entry, or
 * `end` if that comes first. */
size_t ats_range_map_border(const struct ats_range_map *map, size_t offset, size_t end);

/* Whether any byte of [begin, end) is valid on `side` by an entry. */
bool ats_range_map_touches(const struct ats_range_map *map, size_t begin, size_t end,
                           enum ats_side side);

/* Sets the state of [begin, end). False: out of memory, map unchanged. */
bool ats_range_map_set(struct ats_range_map *map, size_t begin, size_t end, ats_side_set valid);

/* Overlays `n` sorted, disjoint ranges on the map in one pass. `scratch` is used
 * as the new storage and holds the old one afterwards. False: out of memory. */
bool ats_range_map_overlay(struct ats_range_map *map, const struct ats_range *over, size_t n,
                           struct ats_range_map *scratch);

#endif
