/* ATS's executor in simulated time. The decisions are the backend's own: promotion
 * (plan/promote.h), what staging memory holds (plan/hold.h), sides (plan/sides.h), splits
 * (plan/schedule.h) and the ring of staging memory (plan/staging.h).
 *
 * Splits run one after another: their inputs are copied on the compute stream, then the side
 * computes; the CPU waits for the accelerator first. Activations and inputs lie in pageable memory,
 * as llama.cpp and ATS allocate them, and small ones come there by way of page-locked memory
 * (backend/landing.h); weights are page-locked, whether mapped or not. A promoted
 * weight is copied either
 * - in order: on the compute stream, before the split that reads it; or
 * - ahead: on the transfer stream, which waits until the last reader of the place in staging
 *   memory is done; the split waits until the weight is there.
 * A pass that promotes nothing holds weights in staging memory. The first such pass behind one
 * that does copies them, as the backend does.
 *
 * Each schedule function is a hook of sim/policy.h, and has a memory: what staging memory holds,
 * in the placement. */
#ifndef ATS_SIM_ATS_H
#define ATS_SIM_ATS_H

#include "sim/policy.h"

/* Sets aside staging memory as the backend does for the setting's model, in the placement's way:
 * places of what is largest of what passes through, at most a third of the budget, and scratch; and
 * none if all fits beside `compute_bytes`. */
void ats_sim_reserve_staging(const struct ats_sim_setting *setting, uint64_t compute_bytes,
                             struct ats_sim_placement *placement);

/* ATS_TRANSFER=serial: copies in order. */
void ats_sim_schedule_in_order(const struct ats_sim_setting *setting,
                               struct ats_sim_placement *placement,
                               const struct ats_model_pass *pass,
                               const struct ats_sim_routing *routing,
                               struct ats_sim_schedule *schedule);

/* ATS_TRANSFER=async: copies ahead. */
void ats_sim_schedule_ahead(const struct ats_sim_setting *setting,
                            struct ats_sim_placement *placement, const struct ats_model_pass *pass,
                            const struct ats_sim_routing *routing,
                            struct ats_sim_schedule *schedule);

#endif
