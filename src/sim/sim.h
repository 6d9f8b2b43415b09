/* A simulated run: one model, one machine, one policy; prefill and decode.
 *
 * The same tokens in the same order give the same routing whatever the policy,
 * and the same routing as the emulated accelerator draws (cost/routing.h).
 *
 * A run is used by one thread at a time. */
#ifndef ATS_SIM_SIM_H
#define ATS_SIM_SIM_H

#include "sim/policy.h"

struct ats_sim_run;

/* Places the model. NULL with an error. `setting`, and what it borrows, outlives the run. */
struct ats_sim_run *ats_sim_run_new(const struct ats_sim_setting *setting,
                                    const struct ats_sim_policy *policy, const char *argument,
                                    void (*on_event)(void *context,
                                                     const struct ats_sim_event *event),
                                    void *context, struct ats_error *err);
void ats_sim_run_free(struct ats_sim_run *run);

const struct ats_sim_placement *ats_sim_run_placement(const struct ats_sim_run *run);

struct ats_sim_phase {
    uint32_t n_tokens;
    uint32_t n_passes;
    struct ats_sim_use use;
    double bound_us; /* the physical bound of all its passes (cost/bound.h) */
};

/* A prompt of n tokens into an empty context, ubatch by ubatch. */
bool ats_sim_prefill(struct ats_sim_run *run, uint32_t n_tokens, struct ats_sim_phase *phase,
                     struct ats_error *err);

/* n tokens one by one behind `depth` tokens. */
bool ats_sim_decode(struct ats_sim_run *run, uint32_t depth, uint32_t n_tokens,
                    struct ats_sim_phase *phase, struct ats_error *err);

#endif
