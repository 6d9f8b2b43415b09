/* Promotion of a graph's weights: carries out what plan/promote.h and plan/staging.h decide.
 *
 * All functions need the device's write lock; a read lock is enough for choosing and staging where
 * everything that may be chosen is page-locked already (graph_plan.h, plans made beside a pass). */
#ifndef ATS_BACKEND_PROMOTION_H
#define ATS_BACKEND_PROMOTION_H

#include "backend/describe.h"
#include "backend/stream.h"
#include "plan/schedule.h"
#include "plan/staging.h"

/* Takes staging memory if the described model needs it: before weights are placed, which fill
 * what is left of the budget. Does nothing the second time, or where there is no room. */
void ats_promotion_reserve(struct ats_stream *stream, const struct ats_description *description);

/* Marks the roots that this graph promotes, or if there are none, those that it holds, and makes
 * the accelerator their home for it. `may_use`: experts may pass by use (plan/used.h). False: out
 * of memory. */
bool ats_promotion_choose(struct ats_stream *stream, struct ats_description *description,
                          bool may_use);

/* Gives the promoted weights of the schedule, or the held ones, their places in staging memory:
 * in the description's locations and in *staged, `*n` of them, which the caller frees. False:
 * they do not fit, or memory is out; then no location has changed, and *staged is NULL. */
bool ats_promotion_stage(struct ats_stream *stream, struct ats_description *description,
                         const struct ats_schedule *schedule, struct ats_staged **staged,
                         size_t *n);

/* A name for held weights and their places: equal names, equal contents of staging memory. */
uint64_t ats_promotion_name(const struct ats_description *description,
                            const struct ats_staged *staged, size_t n);

#endif
