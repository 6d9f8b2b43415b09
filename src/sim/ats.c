#include "sim/ats.h"

#include "plan/beside.h"
#include "plan/hold.h"
#include "plan/partition.h"
#include "plan/promote.h"
#include "plan/schedule.h"
#include "plan/share.h"
#include "plan/sides.h"
#include "plan/staging.h"
#include "plan/used.h"
#include "sim/experts.h"
#include "sim/graph.h"
#include "sim/op_time.h"
#include "sim/pieces.h"

#include <math.h>
#include <stdlib.h>

/* Places in staging memory begin at multiples of this, as on ggml's devices. */
enum { STAGING_ALIGNMENT = 128 };

/* A driver stages pageable copies up to this size at once and returns (CUDA documents it); the
 * backend does so the other way. */
static const double MAX_STAGED_BYTES = 64 << 10;

/* No action to wait for. */
enum { NO_ACTION = -1, NO_LAYER = -1 };

/* What is left to the CPU of a layer whose experts pass by use (plan/share.h). */
struct left {
    double n;      /* experts */
    double us;     /* that they take */
    double bytes;  /* that it reads of them */
    double result; /* bytes of their columns of the result */
    double share;  /* of all columns */
};

struct emitter {
    const struct ats_sim_setting *setting;
    struct ats_sim_placement *placement;
    const struct ats_model_pass *pass;
    const struct ats_sim_routing *routing;
    struct ats_sim_schedule *out;
    bool ahead;
    struct ats_plan_rates rates;
    struct ats_sim_graph graph;
    enum ats_side *sides; /* by operator */
    struct ats_schedule schedule;
    struct ats_staged *staged; /* promoted weights in the order of their first use, or held ones */
    size_t n_staged;
    bool without_use;       /* what would pass by use does not fit together; */
    bool without_promotion; /* as a whole neither */
    bool holds;
    bool beside;                 /* they cross the link while the CPU computes, in pieces */
    size_t next;                 /* promotion to be copied next */
    int32_t *arrived;            /* by staged weight: the copy */
    int32_t *done;               /* by split: the last action of the compute stream up to its end */
    int32_t last_action;         /* of the compute stream */
    bool in_flight;              /* the host has not waited for it */
    struct ats_used_shape *used; /* by root */
    int32_t known_layer;         /* whose experts' ids the host knows, or NO_LAYER */
    struct left left;            /* what the CPU computes of them */
    int32_t unit;
};

/* ---- memory ---- */

static bool is_layer_weight(const struct ats_model *m, const struct ats_model_unit *u, uint32_t w)
{
    return u->role != ATS_ROLE_EMBEDDING && m->tensors[m->weights[u->first_weight + w]].layer >= 0;
}

static void add_scratch(size_t bytes, struct ats_staging_need *need)
{
    need->scratch = bytes > need->scratch ? bytes : need->scratch;
}

static void add_need(const struct ats_pieces *pieces, uint64_t bytes, uint64_t columns,
                     struct ats_staging_need *need)
{
    size_t *largest = pieces->n > 1 ? &need->piece : &need->whole;
    *largest = bytes > *largest ? bytes : *largest;
    add_scratch(ats_piece_scratch(pieces, columns), need);
}

void ats_sim_reserve_staging(const struct ats_sim_setting *s, uint64_t compute_bytes,
                             struct ats_sim_placement *p)
{
    const unsigned places = p->staging.places > 0 ? p->staging.places : ATS_STAGING_PLACES;
    const struct ats_model *m = s->model;
    uint64_t total = compute_bytes;
    struct ats_staging_need need = {0};
    for (size_t i = 0; i < m->n_units; i++) {
        const struct ats_model_unit *u = &m->units[i];
        total += ats_model_state_bytes(u, s->n_ctx, s->ubatch);
        for (uint32_t w = 0; w < u->n_weights && u->role != ATS_ROLE_EMBEDDING; w++) {
            const int32_t t = m->weights[u->first_weight + w];
            uint64_t bytes = 0;
            const struct ats_pieces pieces = ats_sim_pieces_of(m, u, t, p->staging.whole, &bytes);
            total += m->tensors[t].bytes;
            if (is_layer_weight(m, u, w)) {
                add_need(&pieces, bytes, ats_sim_columns(u, s->ubatch), &need);
            }
            if (ats_sim_stacks_experts(m, u, t)) {
                const struct ats_model_tensor *matrix = &m->tensors[t];
                const uint64_t all = ats_sim_columns(u, s->ubatch);
                const uint64_t n = all < ATS_USED_COLUMNS ? all : ATS_USED_COLUMNS;
                add_scratch(ats_used_scratch(matrix->ne[0], matrix->ne[1], n) + STAGING_ALIGNMENT,
                            &need);
            }
        }
    }
    const uint64_t ring = ats_staging_size(&need, s->vram_bytes, places);
    const uint64_t left = s->vram_bytes > compute_bytes ? s->vram_bytes - compute_bytes : 0;
    const bool takes = total > s->vram_bytes && ring + need.scratch <= left;
    p->staging_bytes = takes ? ring + need.scratch : 0;
    p->scratch_bytes = takes ? need.scratch : 0;
}

/* ---- what is decided ---- */

/* Weights of layers in host memory, and nowhere else. Candidates are roots by the same index. */
static void find_candidates(const struct emitter *e, bool *candidates)
{
    const struct ats_model *m = e->setting->model;
    for (size_t i = 0; i < m->n_units; i++) {
        const struct ats_model_unit *u = &m->units[i];
        for (uint32_t w = 0; w < u->n_weights && ats_model_rows(u, e->pass) > 0; w++) {
            const int32_t t = m->weights[u->first_weight + w];
            candidates[t] = is_layer_weight(m, u, w) && e->graph.roots[t].home == ATS_ON(ATS_HOST);
        }
    }
}

static size_t ring_bytes(const struct emitter *e)
{
    return (size_t)(e->placement->staging_bytes - e->placement->scratch_bytes);
}

/* Matrices that do not fit in a piece pass in several, if they pass. */
static void cut(struct emitter *e)
{
    const struct ats_model *m = e->setting->model;
    for (size_t i = 0; i < m->n_units; i++) {
        const struct ats_model_unit *u = &m->units[i];
        for (uint32_t w = 0; w < u->n_weights; w++) {
            uint64_t bytes = 0;
            const int32_t t = m->weights[u->first_weight + w];
            e->graph.roots[t].pieces =
                ats_sim_pieces_of(m, u, t, e->placement->staging.whole, &bytes);
            e->graph.roots[t].piece_bytes = (size_t)bytes;
        }
    }
}

static void join(struct emitter *e)
{
    for (size_t r = 0; r < e->graph.desc.n_roots; r++) {
        e->graph.roots[r].pieces.n = 0;
    }
}

static void join_experts(struct emitter *e)
{
    const struct ats_model *m = e->setting->model;
    for (size_t r = 0; r < e->graph.desc.n_roots; r++) {
        e->graph.roots[r].by_use = false;
        if (r < m->n_tensors && m->tensors[r].ne[2] > 1) {
            e->graph.roots[r].pieces.n = 0;
        }
    }
}

/* What fits in scratch of the CPU's columns. */
static uint64_t share_columns(const struct emitter *e)
{
    const double column = (double)e->setting->model->params.n_embd * sizeof(float);
    return (uint64_t)((double)e->placement->scratch_bytes / (column + sizeof(int32_t)));
}

/* Whether the backend could share the layer (backend/share.h): all its matrices of experts are in
 * host memory, and experts' biases are on both sides, which they are beside slots. */
static bool can_share(const struct emitter *e, int32_t layer)
{
    const struct ats_model *m = e->setting->model;
    for (size_t i = 0; i < m->n_units; i++) {
        const struct ats_model_unit *u = &m->units[i];
        for (uint32_t w = 0; w < u->n_weights && u->layer == layer && u->n_experts > 1; w++) {
            const int32_t t = m->weights[u->first_weight + w];
            const bool is_matrix = ats_sim_stacks_experts(m, u, t);
            const bool is_bias = !is_matrix && m->tensors[t].ne[1] == u->n_experts;
            if ((is_matrix && e->placement->tensor[t]) ||
                (is_bias && e->placement->state == NULL)) {
                return false;
            }
        }
    }
    return true;
}

/* Matrices of experts, of which those that are used may pass alone. */
static bool prefer_used(struct emitter *e, const struct ats_promotion *rule, const bool *candidates,
                        bool *chosen)
{
    const struct ats_model *m = e->setting->model;
    const size_t n_roots = e->graph.desc.n_roots;
    struct ats_used_matrix *matrices = calloc(n_roots + 1, sizeof(*matrices));
    e->used = calloc(n_roots + 1, sizeof(*e->used));
    const bool good = matrices != NULL && e->used != NULL;
    for (size_t i = 0; good && i < m->n_units; i++) {
        const struct ats_model_unit *u = &m->units[i];
        for (uint32_t w = 0; w < u->n_weights; w++) {
            const int32_t t = m->weights[u->first_weight + w];
            if (candidates[t] && ats_sim_stacks_experts(m, u, t) &&
                e->placement->scratch_bytes > 0) {
                matrices[t] = (struct ats_used_matrix){
                    .n_experts = (uint32_t)u->n_experts,
                    .n_used = (uint32_t)u->n_used,
                    .n_tokens = (uint32_t)ats_model_rows(u, e->pass),
                    .expert_bytes = (size_t)(m->tensors[t].bytes / u->n_experts),
                    .flops = can_share(e, u->layer)
                                 ? 2.0 * (double)m->tensors[t].ne[0] * (double)m->tensors[t].ne[1]
                                 : 0,
                    .family = m->tensors[t].family,
                    .most_columns = share_columns(e)};
            }
        }
    }
    if (good) {
        ats_prefer_used(&e->graph.desc, rule, &e->rates.costs, candidates, matrices, e->graph.roots,
                        e->used, chosen);
    }
    free(matrices);
    return good;
}

static bool promote(struct emitter *e, const bool *candidates, bool *chosen, size_t *n)
{
    const struct ats_partition_costs *costs = &e->rates.costs;
    const struct ats_promotion rule = {
        .kind = ATS_PROMOTE_FASTER,
        .copy_latency_us = costs->copy_latency_us,
        .link_bytes_per_us = costs->link_bytes_per_us,
        .serial = !e->ahead,
        .most_bytes = ring_bytes(e) / 2,
        .most_used_bytes = ring_bytes(e) - ring_bytes(e) / ATS_USED_REST,
        .share_rates = e->placement->scratch_bytes > 0 ? &e->rates : NULL};
    cut(e);
    ats_promote(&e->graph.desc, &rule, candidates, chosen);
    if (!e->without_use && !prefer_used(e, &rule, candidates, chosen)) {
        return false;
    }
    *n = 0;
    e->graph.desc.promoted_at_once = rule.most_bytes;
    for (size_t r = 0; r < e->graph.desc.n_roots; r++) {
        e->graph.roots[r].promoted = chosen[r];
        *n += chosen[r];
    }
    return true;
}

static size_t aligned(uint64_t bytes)
{
    return (size_t)((bytes + STAGING_ALIGNMENT - 1) / STAGING_ALIGNMENT * STAGING_ALIGNMENT);
}

/* Nothing comes in pieces then, so that scratch is free. */
static bool hold(struct emitter *e, const bool *candidates, bool *chosen)
{
    const struct ats_model *m = e->setting->model;
    struct ats_holdable *weights = calloc(m->n_weights + 1, sizeof(*weights));
    size_t n = 0;
    for (size_t i = 0; weights != NULL && i < m->n_weights; i++) { /* in the order of their use */
        const uint32_t t = (uint32_t)m->weights[i];
        if (candidates[t]) {
            weights[n++] = (struct ats_holdable){
                .name = m->tensors[t].name, .bytes = aligned(m->tensors[t].bytes), .root = t};
        }
    }
    const bool good =
        weights != NULL && ats_hold_best(&e->graph.desc, &e->rates.costs, weights, n,
                                         (size_t)e->placement->staging_bytes, candidates, chosen);
    for (size_t r = 0; good && r < e->graph.desc.n_roots; r++) {
        e->graph.roots[r].held = chosen[r];
    }
    free(weights);
    return good;
}

static bool prefer_beside(struct emitter *e, const bool *candidates, bool *chosen)
{
    const bool good = ats_prefer_beside(&e->graph.desc, &e->rates.costs, ring_bytes(e), candidates,
                                        chosen, e->graph.roots, &e->beside);
    e->holds = !e->beside;
    return good;
}

static bool choose_weights(struct emitter *e)
{
    const size_t n_roots = e->graph.desc.n_roots;
    if (e->placement->staging_bytes == 0 || e->without_promotion) {
        return true;
    }
    bool *candidates = calloc(n_roots + 1, sizeof(*candidates));
    bool *chosen = calloc(n_roots + 1, sizeof(*chosen));
    bool good = candidates != NULL && chosen != NULL;
    if (good) {
        size_t n = 0;
        find_candidates(e, candidates);
        good = promote(e, candidates, chosen, &n);
        e->holds = n == 0;
        if (e->holds) {
            join_experts(e);
            good = good && hold(e, candidates, chosen) &&
                   (!e->ahead || prefer_beside(e, candidates, chosen));
        }
        if (e->holds) {
            join(e);
        }
    }
    for (size_t r = 0; good && r < n_roots; r++) {
        if (chosen[r]) {
            e->graph.roots[r].home = ATS_ON(ATS_ACCEL);
        }
    }
    free(candidates);
    free(chosen);
    return good;
}

static size_t bytes_of(const struct emitter *e, const struct ats_promoted *p)
{
    const struct ats_root *root = &e->graph.roots[p->root];
    if (root->by_use) {
        return root->used_place_bytes;
    }
    if (root->pieces.n <= 1) {
        return root->bytes;
    }
    const uint64_t rows = e->setting->model->tensors[p->root].ne[1];
    return root->bytes / rows * ats_piece_rows(&root->pieces, rows, p->piece);
}

/* What is to have places in staging memory: promoted weights or else held ones. */
static bool list_staged(struct emitter *e)
{
    const size_t most = e->schedule.n_promotions + e->graph.desc.n_roots + 1;
    e->staged = calloc(most, sizeof(*e->staged));
    e->arrived = calloc(most, sizeof(*e->arrived));
    if (e->staged == NULL || e->arrived == NULL) {
        return false;
    }
    for (size_t i = 0; i < e->schedule.n_promotions; i++) {
        const struct ats_promoted *p = &e->schedule.promotions[i];
        e->staged[e->n_staged++] = (struct ats_staged){.root = p->root,
                                                       .piece = p->piece,
                                                       .bytes = bytes_of(e, p),
                                                       .first_split = p->first_split,
                                                       .last_split = p->last_split};
    }
    for (uint32_t r = 0; r < e->graph.desc.n_roots && e->holds; r++) {
        if (e->graph.roots[r].held) {
            e->staged[e->n_staged++] = (struct ats_staged){
                .root = r, .bytes = e->graph.roots[r].bytes, .last_split = UINT32_MAX};
        }
    }
    return true;
}

static void forget(struct emitter *e)
{
    ats_sim_graph_free(&e->graph);
    ats_schedule_free(&e->schedule);
    free(e->sides);
    free(e->done);
    free(e->staged);
    free(e->arrived);
    free(e->used);
    e->sides = NULL;
    e->done = NULL;
    e->staged = NULL;
    e->arrived = NULL;
    e->used = NULL;
    e->n_staged = 0;
    e->holds = false;
    e->beside = false;
}

static bool choose(struct emitter *e)
{
    const struct ats_rule rule = {.kind = ATS_RULE_FILL};
    if (!ats_sim_graph_build(e->setting, e->placement, e->pass, &e->graph)) {
        return false;
    }
    ats_sim_experts_mark(e->setting, e->placement, e->pass, &e->graph);
    e->sides = calloc(e->graph.desc.n_ops + 1, sizeof(*e->sides));
    if (e->sides == NULL || !choose_weights(e) ||
        !ats_choose_sides(&e->graph.desc, &rule, &e->rates.costs, 0, e->sides) ||
        !ats_schedule_build(&e->graph.desc, e->sides, &e->schedule)) {
        return false;
    }
    e->done = calloc(e->schedule.n_splits + 1, sizeof(*e->done));
    return e->done != NULL && list_staged(e);
}

static bool decide(struct emitter *e)
{
    while (choose(e)) {
        const size_t bytes = e->holds ? (size_t)e->placement->staging_bytes : ring_bytes(e);
        if (ats_staging_assign(e->staged, e->n_staged, bytes, STAGING_ALIGNMENT)) {
            return true;
        }
        forget(e);
        e->without_promotion = e->without_use;
        e->without_use = true;
    }
    return false;
}

/* ---- actions ---- */

static int32_t add(struct emitter *e, struct ats_sim_action action)
{
    action.unit = e->unit;
    const int32_t index = ats_sim_add(e->out, &action);
    const bool queued =
        action.kind == ATS_SIM_GPU || action.kind == ATS_SIM_COPY || action.kind == ATS_SIM_EVENT;
    if (queued && action.queue == ATS_SIM_COMPUTE_STREAM) {
        e->last_action = index;
        e->in_flight = true;
    }
    return index;
}

static void begin_split(struct emitter *e)
{
    add(e, (struct ats_sim_action){.kind = ATS_SIM_SPLIT});
    add(e, (struct ats_sim_action){.kind = ATS_SIM_HOST,
                                   .us = e->setting->machine->overheads.split_us});
}

static void wait_for_accel(struct emitter *e)
{
    if (e->in_flight) {
        add(e, (struct ats_sim_action){.kind = ATS_SIM_SYNC,
                                       .queue = ATS_SIM_COMPUTE_STREAM,
                                       .after = ATS_SIM_ALL,
                                       .us = e->setting->machine->overheads.sync_us});
        e->in_flight = false;
    }
}

/* From or to pageable memory: the host waits, but for what is staged. */
static void copy_bytes(struct emitter *e, double bytes, enum ats_side side, bool staged)
{
    add(e, (struct ats_sim_action){.kind = ATS_SIM_COPY,
                                   .queue = ATS_SIM_COMPUTE_STREAM,
                                   .bytes = bytes,
                                   .direction = side == ATS_ACCEL ? ATS_TO_DEVICE : ATS_TO_HOST,
                                   .pageable = !staged,
                                   .blocking = !staged});
}

/* Inputs and activations: small ones come to the host by way of page-locked memory
 * (backend/landing.h). */
static void copy(struct emitter *e, uint32_t root, enum ats_side side)
{
    const double bytes = (double)e->graph.roots[root].bytes;
    copy_bytes(e, bytes, side, bytes <= MAX_STAGED_BYTES);
}

static int32_t copy_pinned(struct emitter *e, double bytes, enum ats_sim_queue queue)
{
    return add(
        e, (struct ats_sim_action){
               .kind = ATS_SIM_COPY, .queue = queue, .bytes = bytes, .direction = ATS_TO_DEVICE});
}

/* A kernel that reads and writes `bytes` in all. */
static int32_t move(struct emitter *e, double bytes, enum ats_sim_queue queue)
{
    const struct ats_op_shape shape = {.kind = ATS_COST_BYTES, .io_bytes = bytes};
    return add(e,
               (struct ats_sim_action){.kind = ATS_SIM_GPU,
                                       .queue = queue,
                                       .us = ats_cost_op_us(&e->setting->machine->device, &shape),
                                       .launch = true});
}

static const struct ats_model_unit *unit_of(const struct emitter *e, uint32_t split)
{
    return &e->setting->model->units[e->graph.sources[e->schedule.splits[split].first_op].unit];
}

/* How many of the experts that a pass uses are in slots, if these hold any of them as likely. */
static double hits_of(const struct emitter *e, const struct ats_staged *staged)
{
    uint32_t part = 0;
    const struct ats_expert_slots *slots =
        ats_sim_slots_of(e->setting, e->placement, staged->root, &part);
    return slots == NULL ? 0
                         : e->routing->distinct[unit_of(e, staged->first_split)->layer] *
                               slots->n_slots / slots->n_experts;
}

/* Into how many parcels a matrix by use is cut; they are as large as each other here. */
static double parcels_of(const struct emitter *e, uint32_t root)
{
    return e->graph.roots[root].n_parcels;
}

/* A parcel of the experts of a weight that the pass uses, in stretches of neighbours, and its
 * lists.
 */
static int32_t copy_used(struct emitter *e, const struct ats_staged *staged,
                         enum ats_sim_queue queue)
{
    const struct ats_model_unit *u = unit_of(e, staged->first_split);
    const double rows = ats_model_rows(u, e->pass);
    const double hits = hits_of(e, staged);
    const double used = e->routing->distinct[u->layer] - hits;
    const double n = used > e->left.n ? used - e->left.n : 0;
    /* without slots they are counted; else as if drawn at random */
    const double runs = hits > 0 || e->left.n > 0 ? n * (u->n_experts - n + 1) / u->n_experts
                                                  : e->routing->groups[u->layer];
    const double parcels = parcels_of(e, staged->root);
    const double own_runs = runs / parcels;
    add(e, (struct ats_sim_action){.kind = ATS_SIM_COPY,
                                   .queue = queue,
                                   .bytes = ATS_USED_LISTS * rows * u->n_used * sizeof(int32_t) /
                                            parcels,
                                   .direction = ATS_TO_DEVICE});
    return add(
        e,
        (struct ats_sim_action){
            .kind = ATS_SIM_COPY,
            .queue = queue,
            .us = own_runs > 1 ? (own_runs - 1) * e->setting->machine->device.copy_latency_us : 0,
            .bytes = n * (double)e->graph.roots[staged->root].bytes / u->n_experts / parcels,
            .direction = ATS_TO_DEVICE});
}

/* Of a weight some of whose experts are in slots, the others; else all of it. */
static int32_t copy_weight(struct emitter *e, const struct ats_staged *staged,
                           enum ats_sim_queue queue)
{
    uint32_t part = 0;
    if (e->graph.roots[staged->root].by_use) {
        return copy_used(e, staged, queue);
    }
    const struct ats_expert_slots *slots =
        e->holds ? NULL : ats_sim_slots_of(e->setting, e->placement, staged->root, &part);
    const size_t most = e->beside ? ATS_BESIDE_CHUNK : SIZE_MAX;
    int32_t last = NO_ACTION;
    for (size_t done = 0; slots == NULL && done < staged->bytes;) {
        const size_t left = staged->bytes - done;
        const size_t bytes = left < most ? left : most;
        last = copy_pinned(e, (double)bytes, queue);
        done += bytes;
    }
    int32_t n = 0;
    const size_t bytes = slots != NULL ? staged->bytes / (size_t)slots->n_experts : 0;
    for (int32_t first = 0; slots != NULL; first += n) {
        if (!ats_expert_slots_run(slots, ats_expert_widest_gap(bytes, &e->rates.costs), &first,
                                  &n)) {
            break;
        }
        last = copy_pinned(e, (double)bytes * n, queue);
    }
    return last;
}

static void wait_on(struct emitter *e, enum ats_sim_queue queue, int32_t action)
{
    add(e, (struct ats_sim_action){.kind = ATS_SIM_EVENT, .queue = queue, .after = action});
}

/* Copies whose places are free once the first `n_splits` splits are done. */
static void copy_ahead(struct emitter *e, size_t n_splits)
{
    for (; e->next < e->n_staged; e->next++) {
        const struct ats_staged *staged = &e->staged[e->next];
        if (e->graph.roots[staged->root].by_use &&
            unit_of(e, staged->first_split)->layer != e->known_layer) {
            return;
        }
        if (staged->after >= 0) {
            const uint32_t split = e->staged[staged->after].last_split;
            if (split >= n_splits) {
                return;
            }
            if (e->done[split] != NO_ACTION) {
                wait_on(e, ATS_SIM_TRANSFER_STREAM, e->done[split]);
            }
        }
        e->arrived[e->next] = copy_weight(e, staged, ATS_SIM_TRANSFER_STREAM);
    }
}

/* What is held comes as a whole before anything else runs. */
static void fill_held(struct emitter *e)
{
    if (e->ahead) {
        copy_ahead(e, 0);
        wait_on(e, ATS_SIM_COMPUTE_STREAM, e->arrived[e->n_staged - 1]);
        return;
    }
    for (size_t i = 0; i < e->n_staged; i++) {
        copy_weight(e, &e->staged[i], ATS_SIM_COMPUTE_STREAM);
    }
}

static void begin_promotions(struct emitter *e)
{
    if (e->n_staged == 0) {
        return;
    }
    if (!e->holds && e->ahead) {
        copy_ahead(e, 0);
    } else if (e->holds && !e->placement->holds) {
        fill_held(e);
    }
    e->placement->holds = e->holds;
}

/* Puts the experts that are in slots to their places. */
static void scatter(struct emitter *e, const struct ats_staged *staged)
{
    uint32_t part = 0;
    const struct ats_expert_slots *slots =
        ats_sim_slots_of(e->setting, e->placement, staged->root, &part);
    if (slots != NULL && !e->graph.roots[staged->root].by_use) {
        const double bytes = (double)staged->bytes / slots->n_experts;
        move(e, 2.0 * bytes * slots->n_slots, ATS_SIM_COMPUTE_STREAM);
    }
}

/* What the split is the first to read is there in the order of the compute stream. */
static void await_promotions(struct emitter *e, const struct ats_split *split)
{
    for (size_t i = split->first_promotion; i < split->first_promotion + split->n_promotions; i++) {
        if (!e->ahead) {
            copy_weight(e, &e->staged[i], ATS_SIM_COMPUTE_STREAM);
        } else if (e->arrived[i] != NO_ACTION) {
            wait_on(e, ATS_SIM_COMPUTE_STREAM, e->arrived[i]);
        }
        scatter(e, &e->staged[i]);
    }
}

/* A parcel's columns: their inputs are gathered, and the results put to where they belong. */
static void compute_parcel(struct emitter *e, const struct ats_split *split)
{
    const struct ats_model *m = e->setting->model;
    const struct ats_sim_graph_op *source = &e->graph.sources[split->first_op];
    const struct ats_model_unit *unit = &m->units[source->unit];
    const uint32_t root = e->schedule.promotions[split->first_promotion].root;
    const double parcels = parcels_of(e, root);
    const double own = (1 - e->left.share) / parcels;
    const double columns = (double)ats_sim_columns(unit, ats_model_rows(unit, e->pass)) * own;
    struct ats_sim_action action;
    e->unit = (int32_t)source->unit;
    if (ats_sim_op_action(e->setting, unit, &m->ops[source->op], e->pass, e->routing, ATS_ACCEL,
                          &action)) {
        move(e, 2 * columns * (double)m->tensors[root].ne[0] * sizeof(float),
             ATS_SIM_COMPUTE_STREAM);
        action.us *= own;
        add(e, action);
        move(e, 2 * columns * (double)m->tensors[root].ne[1] * sizeof(float),
             ATS_SIM_COMPUTE_STREAM);
    }
}

/* Some rows of a product, made in scratch and copied to where they belong. */
static void compute_piece(struct emitter *e, const struct ats_split *split)
{
    const struct ats_model *m = e->setting->model;
    const struct ats_sim_graph_op *source = &e->graph.sources[split->first_op];
    const struct ats_model_unit *unit = &m->units[source->unit];
    const uint32_t root = e->schedule.promotions[split->first_promotion].root;
    const uint32_t rows =
        ats_piece_rows(&e->graph.roots[root].pieces, m->tensors[root].ne[1], split->piece);
    struct ats_sim_action action;
    e->unit = (int32_t)source->unit;
    if (ats_sim_rows_action(e->setting, unit, &m->ops[source->op], e->pass, e->routing, rows,
                            &action)) {
        const double values =
            (double)rows * (double)ats_sim_columns(unit, ats_model_rows(unit, e->pass));
        add(e, action);
        move(e, 2.0 * sizeof(float) * values, ATS_SIM_COMPUTE_STREAM);
    }
}

static void compute(struct emitter *e, const struct ats_split *split)
{
    const struct ats_model *m = e->setting->model;
    for (uint32_t i = split->first_op; i < split->first_op + split->n_ops; i++) {
        const struct ats_sim_graph_op *source = &e->graph.sources[i];
        struct ats_sim_action action;
        e->unit = (int32_t)source->unit;
        if (ats_sim_op_action(e->setting, &m->units[source->unit], &m->ops[source->op], e->pass,
                              e->routing, split->side, &action)) {
            add(e, action);
        }
    }
}

/* ---- experts on both sides ---- */

/* The region's operators for some of its columns. Returns the bytes of one column of the result. */
static double compute_columns(struct emitter *e, const struct ats_split *split, uint32_t n,
                              enum ats_side side)
{
    const struct ats_model *m = e->setting->model;
    double column_bytes = 0;
    for (uint32_t i = split->first_op; i < split->first_op + split->n_ops; i++) {
        const struct ats_sim_graph_op *source = &e->graph.sources[i];
        struct ats_sim_action action;
        e->unit = (int32_t)source->unit;
        if (ats_sim_columns_action(e->setting, &m->units[source->unit], &m->ops[source->op],
                                   e->pass, n, side, &action)) {
            add(e, action);
        }
        column_bytes = (double)m->ops[source->op].m * sizeof(float);
    }
    return column_bytes;
}

/* Lists of ids and columns of a few KiB, which the driver stages. */
static void copy_little(struct emitter *e, double bytes)
{
    add(e, (struct ats_sim_action){.kind = ATS_SIM_COPY,
                                   .queue = ATS_SIM_COMPUTE_STREAM,
                                   .bytes = bytes,
                                   .direction = ATS_TO_DEVICE});
}

/* As src/backend/experts_run.c does it. Hits do not wait for copies here: those of the tokens
 * before are over. */
static void emit_region(struct emitter *e, const struct ats_split *split)
{
    const struct ats_sim_experts *experts = e->placement->state;
    const struct ats_model_unit *unit =
        &e->setting->model->units[e->graph.sources[split->first_op].unit];
    struct ats_expert_slots *slots = &experts->layers[unit->layer];
    struct ats_expert_columns columns = {0};
    struct ats_expert_copy admitted;
    wait_for_accel(e);
    ats_expert_slots_use(slots, e->routing->last + (size_t)unit->layer * e->routing->stride,
                         unit->n_used, &columns);
    if (columns.n_hits > 0) {
        copy_little(e, 3.0 * sizeof(int32_t) * unit->n_used);
        compute_columns(e, split, columns.n_hits, ATS_ACCEL);
    }
    while (ats_expert_slots_next(slots, &admitted)) {
        copy_pinned(e, (double)slots->part_bytes[admitted.part],
                    e->ahead ? ATS_SIM_TRANSFER_STREAM : ATS_SIM_COMPUTE_STREAM);
    }
    if (columns.n_misses > 0) {
        const double bytes = compute_columns(e, split, columns.n_misses, ATS_HOST);
        copy_little(e, bytes * columns.n_misses);
        if (columns.n_hits > 0) {
            move(e, 2 * bytes * unit->n_used, ATS_SIM_COMPUTE_STREAM);
        }
    }
}

/* Whether the split is one of the layer's by use. */
static bool is_by_use_in(const struct emitter *e, size_t index, int32_t layer)
{
    return e->schedule.splits[index].by_use && unit_of(e, (uint32_t)index)->layer == layer;
}

static bool is_last_by_use(const struct emitter *e, size_t index)
{
    const int32_t layer = unit_of(e, (uint32_t)index)->layer;
    for (size_t i = index + 1; i < e->schedule.n_splits; i++) {
        if (is_by_use_in(e, i, layer)) {
            return false;
        }
    }
    return true;
}

/* What the CPU takes of the layer whose first split by use this is, if columns are spread evenly
 * over the experts: with fewer for some than for others it takes more. */
static struct left left_to_cpu(const struct emitter *e, size_t index)
{
    const struct ats_model *m = e->setting->model;
    const struct ats_model_unit *u = unit_of(e, (uint32_t)index);
    double bytes = 0;
    double flops = 0;
    double n_parts = 0;
    for (size_t i = index; i < e->schedule.n_splits; i++) {
        if (is_by_use_in(e, i, u->layer) && e->schedule.splits[i].piece == 0) {
            const uint32_t root =
                e->schedule.promotions[e->schedule.splits[i].first_promotion].root;
            bytes += (double)m->tensors[root].bytes / u->n_experts;
            flops += 2.0 * (double)m->tensors[root].ne[0] * (double)m->tensors[root].ne[1];
            n_parts += 1;
        }
    }
    const struct ats_share_costs costs = ats_share_costs_of(
        &e->rates,
        m->tensors[e->schedule.promotions[e->schedule.splits[index].first_promotion].root].family,
        bytes, n_parts, flops);
    const double used = e->routing->distinct[u->layer];
    const double columns = (double)ats_model_rows(u, e->pass) * u->n_used;
    const double n = used - hits_of(e, &e->staged[e->schedule.splits[index].first_promotion]);
    const double each = used > 0 ? columns / used : 0;
    const double column_bytes = (double)m->params.n_embd * sizeof(float);
    double all_us = 0;
    const double left =
        ats_share_expected(&costs, (uint32_t)n, (uint64_t)(each * n), share_columns(e), &all_us);
    const double us =
        fmax((double)costs.read_us, (each + (double)costs.half) * (double)costs.column_us);
    return (struct left){.n = left,
                         .us = left * us,
                         .bytes = left * bytes,
                         .result = left * each * column_bytes,
                         .share = columns > 0 ? left * each / columns : 0};
}

/* The CPU's columns, and the accelerator's kernel that puts them to their places. */
static void finish_share(struct emitter *e)
{
    if (e->left.n > 0) {
        add(e,
            (struct ats_sim_action){.kind = ATS_SIM_CPU, .us = e->left.us, .bytes = e->left.bytes});
        copy_bytes(e, e->left.result, ATS_ACCEL, false);
        move(e, 2 * e->left.result, ATS_SIM_COMPUTE_STREAM);
    }
}

/* The host learns which experts the layer uses: a split of its own in the backend. */
static void learn_ids(struct emitter *e, size_t index)
{
    const struct ats_model_unit *u = unit_of(e, (uint32_t)index);
    const double rows = (double)ats_model_rows(u, e->pass);
    const double bytes = rows * u->n_experts * sizeof(int32_t);
    if (u->layer != e->known_layer) {
        e->left = e->placement->scratch_bytes > 0 && can_share(e, u->layer) ? left_to_cpu(e, index)
                                                                            : (struct left){0};
        begin_split(e);
        copy_bytes(e, bytes, ATS_HOST, bytes <= MAX_STAGED_BYTES);
        if (e->left.n > 0) {
            copy_bytes(e, rows * (double)e->setting->model->params.n_embd * sizeof(float), ATS_HOST,
                       false);
        }
        wait_for_accel(e);
        e->known_layer = u->layer;
    }
    if (e->ahead) {
        copy_ahead(e, index);
    }
}

static void emit_split(struct emitter *e, size_t index)
{
    const struct ats_split *split = &e->schedule.splits[index];
    if (split->by_use) {
        learn_ids(e, index);
    }
    begin_split(e);
    for (uint32_t c = 0; c < split->n_copies; c++) {
        copy(e, e->schedule.copies[split->first_copy + c], split->side);
    }
    if (split->side == ATS_HOST && split->n_ops > 0) {
        wait_for_accel(e);
    }
    await_promotions(e, split);
    if (split->n_ops > 0 && e->graph.ops[split->first_op].region != 0) {
        emit_region(e, split);
    } else if (split->by_use) {
        compute_parcel(e, split);
    } else if (split->n_pieces > 0) {
        compute_piece(e, split);
    } else {
        compute(e, split);
    }
    e->done[index] = e->last_action;
    if (!e->holds && e->ahead) {
        copy_ahead(e, index + 1);
    }
    if (split->by_use && is_last_by_use(e, index)) {
        finish_share(e);
    }
}

/* Inputs that the accelerator reads; those for the CPU are where it finds them. */
static void bring_inputs(struct emitter *e)
{
    const size_t first = e->setting->model->n_tensors + e->setting->model->n_units;
    for (size_t r = first; r < e->graph.desc.n_roots; r++) {
        if ((e->schedule.needs[r] & ATS_ON(ATS_ACCEL)) != 0) {
            copy(e, (uint32_t)r, ATS_ACCEL);
        }
    }
}

static void emit_pass(struct emitter *e)
{
    begin_split(e); /* llama.cpp's own: the embeddings are looked up on the CPU */
    add(e, (struct ats_sim_action){.kind = ATS_SIM_HOST,
                                   .us = ats_sim_pass_host_us(e->setting, e->pass)});
    bring_inputs(e);
    begin_promotions(e);
    for (size_t i = 0; i < e->schedule.n_splits; i++) {
        emit_split(e, i);
    }
    if (e->pass->n_outputs > 0 && e->graph.desc.n_ops > 0 &&
        e->sides[e->graph.desc.n_ops - 1] == ATS_ACCEL) {
        copy_bytes(e, (double)e->graph.roots[e->graph.logits].bytes, ATS_HOST, false);
    }
}

static void emit(struct emitter *e)
{
    e->unit = -1;
    e->last_action = NO_ACTION;
    e->known_layer = NO_LAYER;
    if (decide(e)) {
        emit_pass(e);
    } else {
        e->out->failed = true;
    }
    forget(e);
}

void ats_sim_schedule_in_order(const struct ats_sim_setting *setting,
                               struct ats_sim_placement *placement,
                               const struct ats_model_pass *pass,
                               const struct ats_sim_routing *routing,
                               struct ats_sim_schedule *schedule)
{
    struct emitter e = {.setting = setting,
                        .placement = placement,
                        .pass = pass,
                        .routing = routing,
                        .out = schedule,
                        .rates = ats_sim_machine_plan_rates(setting->machine)};
    emit(&e);
}

void ats_sim_schedule_ahead(const struct ats_sim_setting *setting,
                            struct ats_sim_placement *placement, const struct ats_model_pass *pass,
                            const struct ats_sim_routing *routing,
                            struct ats_sim_schedule *schedule)
{
    struct emitter e = {.setting = setting,
                        .placement = placement,
                        .pass = pass,
                        .routing = routing,
                        .out = schedule,
                        .rates = ats_sim_machine_plan_rates(setting->machine),
                        .ahead = true};
    emit(&e);
}
