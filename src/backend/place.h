/* Placing: carries out what plan/placement.h decides. */
#ifndef ATS_BACKEND_PLACE_H
#define ATS_BACKEND_PLACE_H

#include "backend/describe.h"
#include "backend/stream.h"

/* Decides for the weights and the state of the described graph that have no home yet,
 * takes VRAM for those that get one there, and uploads them. Says what it did in one log
 * line. Needs the write lock. Fails if the user's plan is of another model, or if an
 * upload fails; less VRAM than expected is not a failure. */
bool ats_place_new(struct ats_stream *stream, const struct ats_description *description,
                   bool use_accel, struct ats_error *err);

/* Whether the record is a matrix of no layer (an output matrix) that has no home yet. These are
 * placed with the first graph even if it lacks them. */
bool ats_is_unlayered(const struct ats_record *record);

/* What all of them take in VRAM. */
size_t ats_unlayered_bytes(const struct ats_device *device);

#endif
