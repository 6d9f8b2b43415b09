/* Placement by prediction: what `ats plan` shows, and what a backend that knows its machine carries
 * out.
 *
 * The solver (plan/solve.h) needs a time that is a sum over units. A real pass is not quite one:
 * copies overlap with computing, and staging memory holds weights or lets them pass beside the CPU.
 * So the solver makes several proposals, with the phases weighted and changes of sides priced
 * differently, and with layers that are alike spread over the depth; the simple rule, nothing in
 * VRAM, the best placement by layers and the best one with experts in host memory join them; and
 * the simulator's timeline (sim/ats.h) predicts each. The one with the shortest session
 * wins, so that none of the others is predicted to be faster. Of those that are equally fast the
 * one with the fewest splits wins.
 *
 * Experts by slice (plan/experts.h) are no placement of tensors, so a plan cannot say them. They
 * are predicted all the same, and the decision says whether they win.
 *
 * Pure, and deterministic: experts in use are counted by expectation. Not thread-safe for one
 * setting. */
#ifndef ATS_SIM_DECIDE_H
#define ATS_SIM_DECIDE_H

#include "plan/solve.h"
#include "plan/workload.h"
#include "sim/listing.h"

/* A pass of each phase: prefill at the middle of the prompt, decode at the middle of the answer
 * with staging memory as the token before left it. */
struct ats_prediction {
    double us[ATS_PHASES];
    double splits[ATS_PHASES];
    double bytes_in[ATS_PHASES]; /* over the link to the accelerator */
    uint32_t tokens[ATS_PHASES]; /* of the pass */
    double session_us;
};

/* One pass of a phase. The same for all placements, so that they can be compared. */
struct ats_model_pass ats_workload_pass(const struct ats_sim_setting *setting,
                                        const struct ats_workload *workload, enum ats_phase phase);

/* The experts that a pass uses by expectation, for predictions that do not depend on a draw. False:
 * out of memory. Freed with ats_expected_free. */
bool ats_expected_routing(const struct ats_sim_setting *setting, const struct ats_model_pass *pass,
                          struct ats_sim_routing *routing);
void ats_expected_free(struct ats_sim_routing *routing);

/* Predicts a policy's passes over a placement; the policy's own hook makes the schedule. */
bool ats_predict(const struct ats_sim_setting *setting, const struct ats_workload *workload,
                 const struct ats_sim_policy *policy, struct ats_sim_placement *placement,
                 struct ats_prediction *prediction, struct ats_error *err);

enum { ATS_MOST_CANDIDATES = 24 };

struct ats_candidate {
    const char *name; /* "solver", "fill", "layers", ...; static */
    bool is_solved;   /* proposed by the solver */
    bool is_sliced;   /* experts by slice beside the rule `fill`: never chosen, see below */
    uint64_t used_bytes;
    struct ats_prediction prediction;
};

/* Predicts experts by slice beside the rule `fill`, with a routing that is drawn from the setting's
 * seed. False: there is no such candidate, because all fits, or nothing would be sliced, or memory
 * is out. */
bool ats_predict_slices(const struct ats_sim_setting *setting, const struct ats_workload *workload,
                        struct ats_candidate *candidate);

struct ats_decision {
    struct ats_candidate candidates[ATS_MOST_CANDIDATES];
    size_t n;
    size_t chosen;
    size_t fill; /* the rule `fill` */
    /* what was chosen promises less than 2 % over the rule, which is less than a prediction is
     * worth: a backend keeps the rule */
    bool keeps_fill;
    struct ats_staging_way staging;
    bool slices_win; /* experts by slice promise 2 % over that, or over the rule if it is kept */
    struct ats_solution solution; /* of the first proposal, by the solver's own model */
    uint64_t budget;              /* for weights and state */
};

/* What weights, state and staging memory may take, when it shall follow from the setting. */
#define ATS_BUDGET_OF_SETTING UINT64_MAX

/* Decides where the setting's model lives, and how large staging memory is. `budget` is for
 * weights, state and staging memory, at most what the setting leaves for them. `placement` has been
 * initialised; `decision` may be NULL. */
bool ats_decide(const struct ats_sim_setting *setting, const struct ats_workload *workload,
                uint64_t budget, struct ats_sim_placement *placement, struct ats_decision *decision,
                struct ats_error *err);

/* The same for a backend: `units` are its tensors and state, by llama.cpp's names, and the
 * setting's model has been described from them (model/infer.h). Units that the model does not know
 * stay in host memory, but vectors, which are on both sides; those that only one side can use are
 * there whatever is decided; a unit that would not fit any more stays in host memory. `decision`
 * says what was chosen, and whether experts by slice would be faster. */
bool ats_decide_units(const struct ats_sim_setting *setting, const struct ats_workload *workload,
                      uint64_t budget, const struct ats_unit *units, size_t n,
                      enum ats_where *where, struct ats_decision *decision, struct ats_error *err);

#endif
