/* What of a graph has no home yet: the records to place, as units for the planner. */
#ifndef ATS_BACKEND_UNPLACED_H
#define ATS_BACKEND_UNPLACED_H

#include "backend/describe.h"
#include "plan/placement.h"

struct ats_unplaced {
    struct ats_record **records;
    struct ats_unit *units; /* names are the records' */
    enum ats_where *where;  /* for the caller to fill in */
    size_t n;
};

/* Lists weights and state that the described graph uses and that have no home, in the order of
 * their use. With `unlayered`, behind them, matrices of no layer that it lacks: a pass over a part
 * of a prompt computes no logits, so its graph has no output matrix. It is placed with the rest all
 * the same: it is the first to go to VRAM, and large. Notes which records are weights. Needs the
 * write lock. False: out of memory. Freed with ats_unplaced_free, on failure too. */
bool ats_unplaced_list(const struct ats_device *device, const struct ats_description *description,
                       bool unlayered, struct ats_unplaced *unplaced);

/* Room for `capacity` units, none of them yet. */
bool ats_unplaced_make(struct ats_unplaced *unplaced, size_t capacity);

void ats_unplaced_free(struct ats_unplaced *unplaced);

/* Whether the record is a matrix of no layer (an output matrix) that has no home yet. Buffers
 * that no graph has used and nothing was written into do not count: another thread may be loading
 * them. */
bool ats_is_unlayered(const struct ats_record *record);

/* What all of them take in VRAM. */
size_t ats_unlayered_bytes(const struct ats_device *device);

/* What they take, and what else of the graph has no VRAM yet. */
size_t ats_unplaced_bytes(const struct ats_device *device,
                          const struct ats_description *description);

#endif
