/* Dynamic programming over labels: the exact part of the solver. Internal to src/plan/solve*.
 *
 * A label stands for the best-known way through the blocks up to one, ending on a side: bytes
 * taken and time. The labels of a block and side are sorted by bytes, with times falling: what
 * takes more bytes and no less time is dominated. A label whose own bound (its time, and the priced
 * optimum of all that follows) is no better than the best placement known is dropped.
 *
 * Thread-safety: no shared state. */
#ifndef ATS_PLAN_SOLVE_LABELS_H
#define ATS_PLAN_SOLVE_LABELS_H

#include "plan/solve_blocks.h"

/* Improves `sides`, a placement that fits and takes `us`, to the best one. `blocks` are priced.
 * *bound_us gets a lower bound: the time of the result itself unless labels had to be given up.
 * False: out of memory. */
bool ats_labels_improve(const struct ats_blocks *blocks, uint8_t *sides, double us,
                        double *bound_us);

#endif
