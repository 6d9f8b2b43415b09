/* Promotion of a graph's weights: carries out what plan/promote.h and plan/staging.h decide.
 *
 * All functions need the device's write lock. */
#ifndef ATS_BACKEND_PROMOTION_H
#define ATS_BACKEND_PROMOTION_H

#include "backend/describe.h"
#include "backend/stream.h"
#include "plan/schedule.h"
#include "plan/staging.h"

/* Takes staging memory if the described model needs it: before weights are placed, which fill
 * what is left of the budget. Does nothing the second time, or where there is no room. */
void ats_promotion_reserve(struct ats_stream *stream, const struct ats_description *description);

/* Marks the roots that this graph promotes and makes the accelerator their home for it.
 * False: out of memory. */
bool ats_promotion_choose(struct ats_stream *stream, struct ats_description *description);

/* Gives the promoted weights of the schedule their places in staging memory, in the
 * description's locations and in *staged, which the caller frees. False: they do not fit, or
 * memory is out; then no location has changed, and *staged is NULL. */
bool ats_promotion_stage(struct ats_stream *stream, struct ats_description *description,
                         const struct ats_schedule *schedule, struct ats_staged **staged);

#endif
