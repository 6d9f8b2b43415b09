/* Staging: which bytes of the VRAM set aside for weights that pass through are used for
 * which weight, and when they are free again.
 *
 * Pure. The area is a ring: weights get their places in the order in which they are used,
 * each behind the one before, starting over at the end of the area. A weight may be copied
 * in as soon as the last reader of whatever its place held before is done; as copies are made
 * in order, it is enough to know the latest such weight (`after`).
 *
 * Thread-safety: no shared state. */
#ifndef ATS_PLAN_STAGING_H
#define ATS_PLAN_STAGING_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { ATS_STAGED_AT_ONCE = -1 };

/* A weight that passes through. Splits are numbered in the order of execution. */
struct ats_staged {
    size_t bytes;
    uint32_t first_split; /* that reads it; ascending from one weight to the next */
    uint32_t last_split;
    size_t offset;  /* result: place in the area */
    uint32_t root;  /* of the graph; for the caller */
    uint32_t piece; /* of it, likewise */
    int32_t after;  /* result: weight whose last reader must be done first, or ATS_STAGED_AT_ONCE */
};

/* Of the largest weight there is room for so many: one is read while the next two are copied (gate
 * and up are read together). With room for two copies run less far ahead, and more of the model
 * stays in VRAM; with many, which are for pieces, more of it crosses beside the CPU while the
 * accelerator does not need it yet: which is faster is for a prediction to say. */
enum {
    ATS_STAGING_PLACES = 3,
    ATS_STAGING_FEW_PLACES = 2,
    ATS_STAGING_MANY_PLACES = 8,
    ATS_STAGING_MOST_PLACES = 64, /* that a plan file may ask for */
};

/* How staging memory is used. Whole matrices take more of it than pieces; but what stays in it is
 * whole, and copies of pieces are shorter: a prediction says again. */
struct ats_staging_way {
    unsigned places;
    bool whole; /* matrices pass as a whole, and not in pieces (pieces.h) */
};

/* The largest of what passes through. */
struct ats_staging_need {
    size_t whole;   /* weight */
    size_t piece;   /* of one that comes in pieces (pieces.h) */
    size_t scratch; /* for products with pieces, and with experts by use */
};

/* How many bytes to set aside for weights: room for `places` of the largest and for the small ones
 * between them (expert biases); at most a third of the budget. Of pieces there is room for twice as
 * many: copies must go on while operators run that wait for none, and a few pieces are soon there.
 */
size_t ats_staging_size(const struct ats_staging_need *need, size_t budget, unsigned places);

/* Gives each of `n` weights a place in an area of `capacity` bytes, at multiples of
 * `alignment`. False if those that one split reads do not fit together with those that
 * are still to be read: then the results are void. */
bool ats_staging_assign(struct ats_staged *staged, size_t n, size_t capacity, size_t alignment);

#endif
