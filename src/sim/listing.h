/* A model as the units that placement rules take (plan/placement.h): every tensor that a unit of
 * the model reads, and state under the names that llama.cpp gives it (the keys of a layer's cache
 * stand for keys and values, the recurrent state for all of it).
 *
 * Pure. A listing is used by one thread at a time. */
#ifndef ATS_SIM_LISTING_H
#define ATS_SIM_LISTING_H

#include "plan/placement.h"
#include "sim/policy.h"

struct ats_sim_listing {
    struct ats_unit *units;
    size_t *source; /* tensor of the model, or n_tensors + unit of the model for state */
    char (*names)[32];
    size_t n;
};

/* False: out of memory. `setting` outlives it. Freed with ats_sim_listing_free. */
bool ats_sim_listing_make(const struct ats_sim_setting *setting, struct ats_sim_listing *listing);
void ats_sim_listing_free(struct ats_sim_listing *listing);

/* Empties a placement and sets aside what ATS takes before weights: compute buffers and staging
 * memory. Returns what is left of the budget for weights and state. */
uint64_t ats_sim_reserve(const struct ats_sim_setting *setting,
                         struct ats_sim_placement *placement);

/* Puts the units of a listing where a rule has decided. */
void ats_sim_listing_apply(const struct ats_sim_setting *setting,
                           const struct ats_sim_listing *listing, const enum ats_where *where,
                           struct ats_sim_placement *placement);

#endif
