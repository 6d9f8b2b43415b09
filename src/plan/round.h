/* A round: on which side each unit of one pass runs, when weights of host memory may cross the link
 * for this pass alone.
 *
 * Pure. After the published dynamic program (two states, the side that the schedule so far ends
 * on), which minimises
 *
 *   T = sum_i t_i(side_i) + sum_{i: side_i != side_{i-1}} c + sum_{i promoted} delta_i,
 *   delta_i = max(w_i - seg(j, i), 0),
 *
 * with seg the time since the CPU's last unit j, in which unit i's weights could cross. Here
 * weights cross beside the CPU as well, at the rate that it leaves the link, and no more of them
 * wait for their use than staging memory holds. So instead of seg the state carries a credit of
 * bytes that have crossed:
 *
 *   on side s for t:      credit = min(credit + t * B_s, capacity)
 *   i promoted:           delta_i = max(w_i - credit, 0) / B_accel,  credit = max(credit - w_i, 0)
 *
 * where B_accel is the link's rate while the CPU does not read, B_host beside it, and w_i the bytes
 * of the weights. A schedule with less time is not always better than one with more credit, so each
 * state keeps all (time, credit) that may still win: (t, k) loses against (t', k') if t' <= t and
 * t' + (k - k') / B_accel <= t, because what lacks credit can wait for it.
 *
 * Thread-safety: no shared state. */
#ifndef ATS_PLAN_ROUND_H
#define ATS_PLAN_ROUND_H

#include "plan/side.h"

#include <stdbool.h>
#include <stddef.h>

/* A unit, in the order of execution. */
struct ats_round_unit {
    float us[ATS_SIDES];
    ats_side_set allowed; /* never empty */
    float bytes;          /* that must cross before the accelerator computes it; 0: none */
    float
        at_once; /* of them, those that staging memory holds together: all, or a piece (pieces.h) */
};

struct ats_round {
    float split_us;                /* of a change of side */
    float bytes_per_us[ATS_SIDES]; /* of the link, while that side computes */
    float capacity;                /* bytes of staging memory */
};

/* How many schedules a state keeps: beyond that the slowest go, and the result may not be the best
 * (with 32, one of 10000 random instances of 60 units was 0.05 % slower than it had to be). */
enum { ATS_ROUND_MOST_LABELS = 128 };

/* Writes the sides that take the least time, of two that are equal the one with the CPU earlier,
 * and sets *us to that time. Units that hold more than half of the capacity at once are not
 * promoted: one is read while the next crosses; if such a unit is allowed on the accelerator only,
 * at most half of the capacity counts of its bytes. False: out of memory. */
bool ats_plan_round(const struct ats_round *round, const struct ats_round_unit *units, size_t n,
                    enum ats_side *sides, float *us);

#endif
