#include "sim/listing.h"

#include "plan/staging.h"
#include "sim/ats.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void ats_sim_listing_free(struct ats_sim_listing *l)
{
    free(l->units);
    free(l->source);
    free(l->names);
    *l = (struct ats_sim_listing){0};
}

static void add_weight(const struct ats_model *m, int32_t tensor, struct ats_sim_listing *l)
{
    const struct ats_model_tensor *t = &m->tensors[tensor];
    l->source[l->n] = (size_t)tensor;
    l->units[l->n++] = (struct ats_unit){
        .name = t->name,
        .bytes = (size_t)t->bytes,
        .kind = ATS_UNIT_WEIGHT,
        .is_vector = t->ne[1] == 1,
        .accel_can = true,
        .host_can = true,
    };
}

static void add_state(const struct ats_sim_setting *s, size_t unit, struct ats_sim_listing *l)
{
    const struct ats_model_unit *u = &s->model->units[unit];
    const uint64_t bytes = ats_model_state_bytes(u, s->n_ctx, s->ubatch);
    if (bytes == 0) {
        return;
    }
    snprintf(l->names[unit], sizeof l->names[unit], "cache_%s_l%d",
             u->recurrent_bytes > 0 ? "s" : "k", u->layer);
    l->source[l->n] = s->model->n_tensors + unit;
    l->units[l->n++] = (struct ats_unit){.name = l->names[unit],
                                         .bytes = (size_t)bytes,
                                         .kind = ATS_UNIT_STATE,
                                         .accel_can = true,
                                         .host_can = true};
}

bool ats_sim_listing_make(const struct ats_sim_setting *s, struct ats_sim_listing *l)
{
    const struct ats_model *m = s->model;
    const size_t most = m->n_weights + m->n_units;
    *l = (struct ats_sim_listing){calloc(most + 1, sizeof(l->units[0])),
                                  calloc(most + 1, sizeof(l->source[0])),
                                  calloc(m->n_units + 1, sizeof(l->names[0])), 0};
    if (l->units == NULL || l->source == NULL || l->names == NULL) {
        ats_sim_listing_free(l);
        return false;
    }
    for (size_t i = 0; i < m->n_units; i++) {
        const struct ats_model_unit *u = &m->units[i];
        for (uint32_t w = 0; w < u->n_weights && u->role != ATS_ROLE_EMBEDDING; w++) {
            add_weight(m, m->weights[u->first_weight + w], l);
        }
        add_state(s, i, l);
    }
    return true;
}

uint64_t ats_sim_reserve(const struct ats_sim_setting *s, struct ats_sim_placement *p)
{
    memset(p->tensor, 0, s->model->n_tensors * sizeof(p->tensor[0]));
    memset(p->on_both, 0, s->model->n_tensors * sizeof(p->on_both[0]));
    memset(p->unit_state, 0, s->model->n_units * sizeof(p->unit_state[0]));
    p->fixed = true;
    p->used_bytes = 0;
    const uint64_t compute = ats_sim_compute_bytes(s, p);
    ats_sim_reserve_staging(s, compute, p);
    const uint64_t taken = compute + p->staging_bytes;
    return s->vram_bytes > taken ? s->vram_bytes - taken : 0;
}

void ats_sim_listing_apply(const struct ats_sim_setting *s, const struct ats_sim_listing *l,
                           const enum ats_where *where, struct ats_sim_placement *p)
{
    for (size_t i = 0; i < l->n; i++) {
        const bool in_vram = where[i] != ATS_WHERE_HOST;
        if (l->source[i] < s->model->n_tensors) {
            p->tensor[l->source[i]] = in_vram;
            p->on_both[l->source[i]] = where[i] == ATS_WHERE_BOTH;
        } else {
            p->unit_state[l->source[i] - s->model->n_tensors] = in_vram;
        }
    }
    p->used_bytes = ats_sim_placement_bytes(s, p);
}
