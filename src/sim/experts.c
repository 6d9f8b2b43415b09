#include "sim/experts.h"

#include "sim/place.h"

#include <stdlib.h>
#include <string.h>

static bool is_experts(const struct ats_model_unit *unit)
{
    return unit->n_experts > 0 && unit->layer >= 0 &&
           (unit->role == ATS_ROLE_EXPERTS_UP || unit->role == ATS_ROLE_EXPERTS_DOWN);
}

void ats_sim_forget_slices(struct ats_sim_placement *placement)
{
    struct ats_sim_experts *experts = placement->state;
    if (experts == NULL) {
        return;
    }
    for (size_t i = 0; experts->layers != NULL && i < experts->n_layers; i++) {
        ats_expert_slots_free(&experts->layers[i]);
    }
    free(experts->layers);
    free(experts->part);
    free(experts);
    placement->state = NULL;
}

/* What the experts of a layer consist of. */
struct layer {
    int32_t n_experts; /* 0: its matrices stack different numbers, none is sliced */
    size_t part_bytes[ATS_EXPERT_MOST_PARTS];
    uint32_t n_parts;
};

/* Lists the experts' matrices by layer. */
static void list_layers(const struct ats_model *m, struct layer *layers, uint32_t *part)
{
    for (size_t i = 0; i < m->n_units; i++) {
        const struct ats_model_unit *u = &m->units[i];
        for (uint32_t o = u->first_op; o < u->first_op + u->n_ops && is_experts(u); o++) {
            struct layer *layer = &layers[u->layer];
            const struct ats_model_op *op = &m->ops[o];
            if (op->kind != ATS_COST_EXPERTS || layer->n_parts == ATS_EXPERT_MOST_PARTS) {
                continue;
            }
            const bool fits = layer->n_parts == 0 || layer->n_experts == (int32_t)u->n_experts;
            part[op->tensor] = layer->n_parts;
            layer->n_experts = fits ? (int32_t)u->n_experts : 0;
            layer->part_bytes[layer->n_parts++] =
                (size_t)(m->tensors[op->tensor].bytes / u->n_experts);
        }
    }
}

static struct ats_expert_layer *shares_of(const struct layer *layers, size_t n)
{
    struct ats_expert_layer *shares = calloc(n, sizeof(*shares));
    for (size_t i = 0; shares != NULL && i < n; i++) {
        shares[i].n_experts = layers[i].n_experts;
        for (uint32_t k = 0; k < layers[i].n_parts; k++) {
            shares[i].expert_bytes += layers[i].part_bytes[k];
        }
    }
    return shares;
}

static size_t left_by(const struct ats_sim_setting *s, const struct ats_sim_placement *p)
{
    return s->vram_bytes > p->used_bytes ? (size_t)(s->vram_bytes - p->used_bytes) : 0;
}

/* Marks the matrices of layers that are to have slots; returns whether there are any. */
static bool mark_sliced(const struct ats_model *m, struct ats_sim_placement *p,
                        const struct ats_expert_layer *shares)
{
    bool any = false;
    for (size_t i = 0; i < m->n_units; i++) {
        const struct ats_model_unit *u = &m->units[i];
        for (uint32_t o = u->first_op; o < u->first_op + u->n_ops && is_experts(u); o++) {
            if (m->ops[o].kind == ATS_COST_EXPERTS) {
                const struct ats_expert_layer *share = &shares[u->layer];
                p->sliced[m->ops[o].tensor] = !share->whole && share->n_experts > 0;
                any = any || p->sliced[m->ops[o].tensor];
            }
        }
    }
    return any;
}

/* Slots in what the placement has left. */
static bool make_slots(const struct ats_sim_setting *s, struct ats_sim_placement *p,
                       const struct layer *layers, struct ats_expert_layer *shares,
                       struct ats_error *err)
{
    struct ats_sim_experts *experts = p->state;
    const struct ats_plan_rates rates = ats_sim_machine_plan_rates(s->machine);
    for (size_t i = 0; i < experts->n_layers; i++) {
        shares[i].n_experts = shares[i].whole ? 0 : shares[i].n_experts;
    }
    ats_expert_divide(shares, experts->n_layers, left_by(s, p));
    bool good = true;
    for (size_t i = 0; good && i < experts->n_layers; i++) {
        if (shares[i].n_slots > 0) {
            good = ats_expert_slots_init(&experts->layers[i], shares[i].n_experts,
                                         shares[i].n_slots, layers[i].part_bytes, layers[i].n_parts,
                                         ats_expert_copy_share(&rates));
            p->used_bytes += (uint64_t)shares[i].n_slots * shares[i].expert_bytes;
        }
        if (good && shares[i].n_slots > 0) {
            ats_expert_slots_fill(&experts->layers[i]);
        }
    }
    return good || ats_fail(err, "out of memory for slots");
}

/* Places all but experts, to see what is left for them, and then everything. */
static bool place(const struct ats_sim_setting *s, struct ats_sim_placement *p,
                  const struct layer *layers, struct ats_expert_layer *shares,
                  struct ats_error *err)
{
    const struct ats_sim_experts *experts = p->state;
    mark_sliced(s->model, p, shares);
    if (!ats_sim_place_fill(s, NULL, p, err)) {
        return false;
    }
    /* none is sliced if all fits, or if nothing could pass through */
    ats_expert_choose_whole(shares, experts->n_layers,
                            p->staging_bytes > 0 ? left_by(s, p) : SIZE_MAX);
    const bool sliced = mark_sliced(s->model, p, shares);
    return ats_sim_place_fill(s, NULL, p, err) &&
           (!sliced || make_slots(s, p, layers, shares, err));
}

bool ats_sim_place_slices(const struct ats_sim_setting *s, const char *argument,
                          struct ats_sim_placement *p, struct ats_error *err)
{
    (void)argument;
    const size_t n_layers = (size_t)s->model->params.n_layers + 1;
    struct layer *layers = calloc(n_layers, sizeof(*layers));
    struct ats_expert_layer *shares = NULL;
    struct ats_sim_experts *experts = calloc(1, sizeof(*experts));
    p->state = experts;
    if (experts != NULL && layers != NULL) {
        experts->n_layers = n_layers;
        experts->layers = calloc(n_layers, sizeof(*experts->layers));
        experts->part = calloc(s->model->n_tensors + 1, sizeof(*experts->part));
    }
    if (experts != NULL && experts->layers != NULL && experts->part != NULL) {
        list_layers(s->model, layers, experts->part);
        shares = shares_of(layers, n_layers);
    }
    const bool good = shares != NULL ? place(s, p, layers, shares, err)
                                     : ats_fail(err, "out of memory for slots");
    free(layers);
    free(shares);
    return good;
}

const struct ats_expert_slots *ats_sim_slots_of(const struct ats_sim_setting *setting,
                                                const struct ats_sim_placement *placement,
                                                uint32_t tensor, uint32_t *part)
{
    const struct ats_sim_experts *experts = placement->state;
    if (experts == NULL || tensor >= setting->model->n_tensors || !placement->sliced[tensor]) {
        return NULL;
    }
    const struct ats_expert_slots *slots = &experts->layers[setting->model->tensors[tensor].layer];
    *part = experts->part[tensor];
    return slots->n_slots > 0 ? slots : NULL;
}

void ats_sim_experts_mark(const struct ats_sim_setting *setting,
                          const struct ats_sim_placement *placement,
                          const struct ats_model_pass *pass, struct ats_sim_graph *graph)
{
    const struct ats_sim_experts *experts = placement->state;
    for (size_t i = 0; experts != NULL && i < graph->desc.n_ops; i++) {
        const struct ats_model_unit *unit = &setting->model->units[graph->sources[i].unit];
        if (!is_experts(unit) || ats_model_rows(unit, pass) != 1 ||
            unit->n_used > ATS_EXPERT_MOST_USED || experts->layers[unit->layer].n_slots == 0) {
            continue;
        }
        graph->ops[i].region = (uint32_t)unit->layer + 1;
        graph->ops[i].supported = ATS_ON(ATS_ACCEL);
        const int32_t tensor = setting->model->ops[graph->sources[i].op].tensor;
        if (tensor != ATS_NO_TENSOR && placement->sliced[tensor]) {
            graph->roots[tensor].sliced = true;
            graph->roots[tensor].home = ATS_ON(ATS_ACCEL);
        }
    }
}
