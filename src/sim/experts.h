/* Experts by slice in a simulated run: the backend's slots (plan/experts.h), with the placement.
 *
 * Used by one thread at a time. */
#ifndef ATS_SIM_EXPERTS_H
#define ATS_SIM_EXPERTS_H

#include "plan/experts.h"
#include "sim/graph.h"

/* The `state` of a placement whose policy is ATS with experts by slice. */
struct ats_sim_experts {
    struct ats_expert_slots *layers; /* by layer; without slots: all on the CPU */
    size_t n_layers;
    uint32_t *part; /* by tensor of the model: which of its layer's */
};

/* Hooks of sim/policy.h: the rule `fill` for all but the experts, which get slots in what is left.
 * A model that fits is placed as it is. */
bool ats_sim_place_slices(const struct ats_sim_setting *setting, const char *argument,
                          struct ats_sim_placement *placement, struct ats_error *err);
void ats_sim_forget_slices(struct ats_sim_placement *placement);

/* The slots that hold experts of a tensor; NULL: it has none. Sets *part. */
const struct ats_expert_slots *ats_sim_slots_of(const struct ats_sim_setting *setting,
                                                const struct ats_sim_placement *placement,
                                                uint32_t tensor, uint32_t *part);

/* Makes regions of the experts of a single token. */
void ats_sim_experts_mark(const struct ats_sim_setting *setting,
                          const struct ats_sim_placement *placement,
                          const struct ats_model_pass *pass, struct ats_sim_graph *graph);

#endif
