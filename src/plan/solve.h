/* The placement solver: which side each unit of a model lives on, under a budget of VRAM.
 *
 * Pure. Units come in the order of execution. Sides s_i are chosen so that passes of several
 * phases (decode, prefill) take the least time, each phase with a weight:
 *
 *   T = sum_p weight_p ( sum_i us_i[p][s_i]  +  sum_{i: s_i != s_{i-1}} change_us_i[p] )
 *
 * subject to: the bytes of the units on the accelerator sum up to at most the budget. Execution
 * begins on the host (s_{-1}). That is the published formulation (maximise gains less switching
 * costs; ATSInfer, arXiv:2607.10183) for both phases at once, and with all that a change of sides
 * costs, not only the bytes that cross: without that the solution fragments.
 *
 * Method. Units that are joined become one block. The budget is priced: with a price per byte, the
 * best sides follow from dynamic programming over (block, side); the best price (found by the
 * secant method on the two placements that enclose the budget) gives a lower bound of T and a
 * placement that fits (Lagrange relaxation; Geoffrion, "Lagrangean relaxation for integer
 * programming", 1974). The gap between the two is closed by dynamic programming over labels
 * (bytes, time) per block and side, of which those survive that no other label dominates and
 * whose bound is better than the best placement known. That is exact as long as the labels of a
 * block stay below a limit. Beyond it those with the worst bounds are dropped, and the best of
 * them is a bound of what was missed: the result always says how far from the optimum it can be.
 *
 * O(n) memory and time per label kept: about a million of them in all, whatever n is.
 *
 * Thread-safety: no shared state. */
#ifndef ATS_PLAN_SOLVE_H
#define ATS_PLAN_SOLVE_H

#include "base/error.h"
#include "plan/side.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum ats_phase { ATS_DECODE, ATS_PREFILL };

enum { ATS_PHASES = 2 };

struct ats_solve_unit {
    const char *name;                 /* for messages; borrowed */
    uint64_t bytes;                   /* of VRAM, on the accelerator; on the host it takes none */
    double us[ATS_PHASES][ATS_SIDES]; /* time of its operators in a pass of the phase */
    double change_us[ATS_PHASES];     /* if it is on another side than the unit before */
    ats_side_set sides;               /* where it may be; never empty */
    bool joined;                      /* it is on the side of the unit before */
};

struct ats_solve_problem {
    const struct ats_solve_unit *units;
    size_t n;
    double weight[ATS_PHASES]; /* passes of the phase */
    uint64_t budget;           /* bytes; 0: all that may be is on the host */
};

struct ats_solution {
    uint64_t bytes;        /* on the accelerator */
    size_t changes;        /* of sides, the one from the host at the beginning included */
    double us[ATS_PHASES]; /* of a pass */
    double weighted_us;    /* T */
    double bound_us;       /* no placement has a smaller T */
    double host_us;        /* T of what is on the host wherever it may be */
    bool exact;            /* no placement is better */
};

/* Writes one side per unit. Equal problems have equal solutions. Fails if a number is no time, if
 * joined units have no side in common, if what must be on the accelerator does not fit, or if
 * memory is out. */
bool ats_solve(const struct ats_solve_problem *problem, enum ats_side *sides,
               struct ats_solution *solution, struct ats_error *err);

#endif
