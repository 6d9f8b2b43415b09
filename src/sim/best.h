/* The physical bound of a pass: the model's units as items of cost/bound.h.
 *
 * Not thread-safe: curves and the last result are kept. */
#ifndef ATS_SIM_BEST_H
#define ATS_SIM_BEST_H

#include "cost/bound.h"
#include "sim/policy.h"

struct ats_sim_best;

/* NULL if memory is out. `setting` is borrowed. */
struct ats_sim_best *ats_sim_best_new(const struct ats_sim_setting *setting);
void ats_sim_best_free(struct ats_sim_best *best);

/* Units that are alike are one item. What the CPU computes costs no dispatch, what the GPU
 * computes costs its launches. One token finds experts in VRAM as an LRU cache of that size does;
 * more tokens use so many that residency is all that counts. */
bool ats_sim_best_pass(struct ats_sim_best *best, const struct ats_model_pass *pass,
                       const struct ats_sim_routing *routing, struct ats_bound *bound,
                       struct ats_error *err);

#endif
