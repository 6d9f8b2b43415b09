/* A model on a machine as the solver's problem: what each unit takes on either side.
 *
 * A unit's time in decode is that of its operators. In prefill a weight of host memory may be
 * streamed instead, so the host's time is the shorter of the CPU's and of the longer of copy and
 * accelerator, as in plan/promote.h. A change of sides costs a split's bookkeeping, half of a
 * synchronisation, a copy's latency and the activations that cross: what the unit reads, and the
 * residual stream behind it. Where both neighbours are streamed there is no change: both run on the
 * accelerator.
 *
 * Norms and biases are in VRAM, all of them if they fit and otherwise none: where their unit is on
 * the accelerator there alone, else on both sides, because prefill streams the matrix beside them.
 * So they do not count as bytes of their unit.
 *
 * Pure. */
#ifndef ATS_SIM_PROBLEM_H
#define ATS_SIM_PROBLEM_H

#include "sim/decide.h"

/* How a proposal differs from the plain problem. */
struct ats_leaning {
    double weight[ATS_PHASES]; /* factors of the workload's weights */
    double change;             /* factor of the cost of a change */
    bool spreads;              /* layers that save as much come in an order that spreads them over
                                  the depth, so that streams find work to hide behind */
};

struct ats_sim_problem {
    struct ats_solve_unit *units; /* by unit of the model; the embedding is fixed to the host */
    size_t n;
    double passes[ATS_PHASES]; /* of the workload */
    uint64_t vector_bytes;     /* norms and biases */
};

/* False: out of memory. Freed with ats_sim_problem_free. */
bool ats_sim_problem_make(const struct ats_sim_setting *setting,
                          const struct ats_workload *workload,
                          const struct ats_sim_placement *reserved,
                          struct ats_sim_problem *problem);
void ats_sim_problem_free(struct ats_sim_problem *problem);

/* Solves it with `budget` bytes for weights and state. `where` has an entry per unit of the
 * listing. */
bool ats_sim_problem_solve(const struct ats_sim_problem *problem, const struct ats_model *model,
                           const struct ats_leaning *leaning, uint64_t budget,
                           const struct ats_sim_listing *listing, enum ats_where *where,
                           struct ats_solution *solution, struct ats_error *err);

#endif
