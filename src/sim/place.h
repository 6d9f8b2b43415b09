/* Where the policies put weights. Each function is a `place` hook of sim/policy.h. */
#ifndef ATS_SIM_PLACE_H
#define ATS_SIM_PLACE_H

#include "sim/policy.h"

/* Nothing in VRAM. */
bool ats_sim_place_cpu(const struct ats_sim_setting *setting, const char *argument,
                       struct ats_sim_placement *placement, struct ats_error *err);

/* llama.cpp's -ngl N: the last N of layers and output head, with their state. */
bool ats_sim_place_ngl(const struct ats_sim_setting *setting, const char *argument,
                       struct ats_sim_placement *placement, struct ats_error *err);

/* The largest -ngl that fits. */
bool ats_sim_place_layers(const struct ats_sim_setting *setting, const char *argument,
                          struct ats_sim_placement *placement, struct ats_error *err);

/* llama.cpp's --n-cpu-moe N: everything but the experts of the first N layers. */
bool ats_sim_place_cpu_moe(const struct ats_sim_setting *setting, const char *argument,
                           struct ats_sim_placement *placement, struct ats_error *err);

/* The smallest --n-cpu-moe that fits. */
bool ats_sim_place_moe(const struct ats_sim_setting *setting, const char *argument,
                       struct ats_sim_placement *placement, struct ats_error *err);

/* llama.cpp's --fit with the setting's margin (v0.5.0, common/fit.cpp): dense models by whole
 * layers; MoE models with all experts in host memory if the rest fits, and then as many whole
 * layers as fit, with a part of one more. */
bool ats_sim_place_fit(const struct ats_sim_setting *setting, const char *argument,
                       struct ats_sim_placement *placement, struct ats_error *err);

/* ATS's rule "fill" (plan/placement.h). */
bool ats_sim_place_fill(const struct ats_sim_setting *setting, const char *argument,
                        struct ats_sim_placement *placement, struct ats_error *err);

/* What ats_decide (sim/decide.h) chooses for the default workload. */
bool ats_sim_place_solved(const struct ats_sim_setting *setting, const char *argument,
                          struct ats_sim_placement *placement, struct ats_error *err);

/* What the backend decides by itself (sim/decide.h): the same if it promises enough over the rule
 * `fill`, else that; and `auto` with experts by slice where they win. */
bool ats_sim_place_whole(const struct ats_sim_setting *setting, const char *argument,
                         struct ats_sim_placement *placement, struct ats_error *err);
bool ats_sim_place_auto(const struct ats_sim_setting *setting, const char *argument,
                        struct ats_sim_placement *placement, struct ats_error *err);

/* A plan file, as ATS_PLAN_OUT writes it. */
bool ats_sim_place_plan(const struct ats_sim_setting *setting, const char *argument,
                        struct ats_sim_placement *placement, struct ats_error *err);

#endif
