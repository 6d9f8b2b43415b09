/* Placing: carries out what plan/placement.h decides. */
#ifndef ATS_BACKEND_PLACE_H
#define ATS_BACKEND_PLACE_H

#include "backend/describe.h"
#include "backend/stream.h"

/* Places the weights and the state of the described graph that have no home yet, as was decided
 * for this machine (decide.h) or by the rule,
 * takes VRAM for those that get one there, and uploads them. Says what it did in one log
 * line. Needs the write lock. Fails if the user's plan is of another model, or if an
 * upload fails; less VRAM than expected is not a failure. */
bool ats_place_new(struct ats_stream *stream, const struct ats_description *description,
                   bool use_accel, struct ats_error *err);

#endif
