#include "sim/sim.h"

#include "cost/routing.h"
#include "sim/best.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

struct ats_sim_run {
    const struct ats_sim_setting *setting;
    const struct ats_sim_policy *policy;
    struct ats_sim_placement placement;
    struct ats_sim_engine *engine;
    struct ats_sim_best *best;
    /* by layer of the model (one at least) */
    struct ats_routing *layers;
    size_t n_layers;
    struct ats_sim_routing routing;
    int32_t *selected;
    bool *seen;
};

/* ---- life ---- */

static void stop_routing(struct ats_sim_run *r)
{
    for (size_t i = 0; r->layers != NULL && i < r->n_layers; i++) {
        if (r->layers[i].stack != NULL) {
            ats_routing_free(&r->layers[i]);
        }
    }
}

void ats_sim_run_free(struct ats_sim_run *r)
{
    if (r == NULL) {
        return;
    }
    if (r->policy->forget != NULL) {
        r->policy->forget(&r->placement);
    }
    stop_routing(r);
    ats_sim_placement_free(&r->placement);
    ats_sim_engine_free(r->engine);
    ats_sim_best_free(r->best);
    free(r->layers);
    free(r->routing.distinct);
    free(r->routing.groups);
    free(r->routing.last);
    free(r->selected);
    free(r->seen);
    free(r);
}

static uint32_t most_experts(const struct ats_model *m)
{
    uint32_t most = 1;
    for (size_t i = 0; i < m->n_units; i++) {
        most = m->units[i].n_experts > most ? m->units[i].n_experts : most;
    }
    return most;
}

static bool allocate(struct ats_sim_run *r)
{
    const uint32_t experts = most_experts(r->setting->model);
    r->n_layers = (size_t)r->setting->model->params.n_layers + 1;
    r->layers = calloc(r->n_layers, sizeof(r->layers[0]));
    r->routing.distinct = calloc(r->n_layers, sizeof(double));
    r->routing.groups = calloc(r->n_layers, sizeof(double));
    r->routing.last = calloc(r->n_layers * experts, sizeof(r->routing.last[0]));
    r->routing.stride = experts;
    r->selected = calloc(experts, sizeof(r->selected[0]));
    r->seen = calloc(experts, sizeof(r->seen[0]));
    r->best = ats_sim_best_new(r->setting);
    return r->layers != NULL && r->routing.distinct != NULL && r->routing.groups != NULL &&
           r->routing.last != NULL && r->selected != NULL && r->seen != NULL && r->best != NULL &&
           ats_sim_placement_init(r->setting, &r->placement);
}

struct ats_sim_run *ats_sim_run_new(const struct ats_sim_setting *setting,
                                    const struct ats_sim_policy *policy, const char *argument,
                                    void (*on_event)(void *context,
                                                     const struct ats_sim_event *event),
                                    void *context, struct ats_error *err)
{
    struct ats_sim_run *r = calloc(1, sizeof(*r));
    if (r == NULL) {
        ats_fail(err, "out of memory for a simulation");
        return NULL;
    }
    r->setting = setting;
    r->policy = policy;
    r->engine = ats_sim_engine_new(setting->machine, on_event, context);
    bool good = r->engine != NULL && allocate(r);
    if (!good) {
        ats_fail(err, "out of memory for a simulation");
    }
    good = good && policy->place(setting, argument, &r->placement, err);
    if (!good) {
        ats_sim_run_free(r);
        return NULL;
    }
    return r;
}

const struct ats_sim_placement *ats_sim_run_placement(const struct ats_sim_run *r)
{
    return &r->placement;
}

/* ---- routing ---- */

/* Starts the layers' sequences anew, so that each phase sees the same tokens. */
static bool start_routing(struct ats_sim_run *r, struct ats_error *err)
{
    stop_routing(r);
    memset(r->layers, 0, r->n_layers * sizeof(r->layers[0]));
    for (size_t i = 0; i < r->setting->model->n_units; i++) {
        const struct ats_model_unit *u = &r->setting->model->units[i];
        const size_t layer = u->layer < 0 ? 0 : (size_t)u->layer;
        if (u->n_experts == 0 || r->layers[layer].stack != NULL) {
            continue;
        }
        if (!ats_routing_init(&r->layers[layer], &r->setting->machine->routing, r->setting->seed,
                              layer, (int32_t)u->n_experts, (int32_t)u->n_used)) {
            return ats_fail(err, "%s: routing to %u of %u experts is beyond the model of routing",
                            u->name, u->n_used, u->n_experts);
        }
    }
    return true;
}

/* The tokens of a pass select experts; counted are those of the last `counted` tokens. */
static void route_layer(struct ats_sim_run *r, size_t layer, uint32_t n_tokens, uint32_t counted)
{
    struct ats_routing *routing = &r->layers[layer];
    memset(r->seen, 0, (size_t)routing->n_experts * sizeof(r->seen[0]));
    for (uint32_t t = 0; t < n_tokens; t++) {
        ats_routing_next(routing, r->selected);
        for (int32_t i = 0; i < routing->n_used && t + counted >= n_tokens; i++) {
            r->seen[r->selected[i]] = true;
        }
    }
    double distinct = 0;
    double groups = 0;
    for (int32_t i = 0; i < routing->n_experts; i++) {
        distinct += r->seen[i];
        groups += r->seen[i] && (i == 0 || !r->seen[i - 1]);
    }
    memcpy(r->routing.last + layer * r->routing.stride, r->selected,
           (size_t)routing->n_used * sizeof(r->selected[0]));
    r->routing.distinct[layer] = distinct;
    r->routing.groups[layer] = groups;
}

static void route(struct ats_sim_run *r, const struct ats_model_pass *pass)
{
    int64_t done = -1;
    for (size_t i = 0; i < r->setting->model->n_units; i++) {
        const struct ats_model_unit *u = &r->setting->model->units[i];
        const size_t layer = u->layer < 0 ? 0 : (size_t)u->layer;
        if (u->n_experts > 0 && (int64_t)layer != done) {
            route_layer(r, layer, pass->n_tokens, ats_model_rows(u, pass));
            done = (int64_t)layer;
        }
    }
}

/* ---- phases ---- */

static bool run_pass(struct ats_sim_run *r, const struct ats_model_pass *pass,
                     struct ats_sim_phase *phase, struct ats_error *err)
{
    struct ats_sim_schedule schedule = {0};
    struct ats_bound bound;
    route(r, pass);
    if (!ats_sim_best_pass(r->best, pass, &r->routing, &bound, err)) {
        return false;
    }
    r->policy->schedule(r->setting, &r->placement, pass, &r->routing, &schedule);
    const bool good = ats_sim_run(r->engine, &schedule);
    ats_sim_schedule_free(&schedule);
    phase->bound_us += bound.us;
    phase->n_tokens += pass->n_tokens;
    phase->n_passes++;
    return good || ats_fail(err, "out of memory while simulating");
}

static bool check_context(const struct ats_sim_run *r, uint64_t tokens, struct ats_error *err)
{
    return tokens <= r->setting->n_ctx ||
           ats_fail(err, "%" PRIu64 " tokens do not fit a context of %u; raise --ctx", tokens,
                    r->setting->n_ctx);
}

bool ats_sim_prefill(struct ats_sim_run *r, uint32_t n_tokens, struct ats_sim_phase *phase,
                     struct ats_error *err)
{
    *phase = (struct ats_sim_phase){0};
    if (!check_context(r, n_tokens, err) || !start_routing(r, err)) {
        return false;
    }
    const struct ats_sim_use before = ats_sim_used(r->engine);
    uint32_t done = 0;
    const uint32_t batch = r->setting->batch;
    while (done < n_tokens) {
        const uint32_t next_batch = (done / batch + 1) * batch;
        const uint32_t batch_end = next_batch < n_tokens ? next_batch : n_tokens;
        const uint32_t left = batch_end - done;
        const uint32_t n = left < r->setting->ubatch ? left : r->setting->ubatch;
        const struct ats_model_pass pass = {.n_tokens = n,
                                            .n_outputs = done + n == batch_end,
                                            .depth = done,
                                            .ubatch = r->setting->ubatch};
        if (!run_pass(r, &pass, phase, err)) {
            return false;
        }
        done += n;
    }
    const struct ats_sim_use after = ats_sim_used(r->engine);
    phase->use = ats_sim_between(&before, &after);
    return true;
}

bool ats_sim_decode(struct ats_sim_run *r, uint32_t depth, uint32_t n_tokens,
                    struct ats_sim_phase *phase, struct ats_error *err)
{
    *phase = (struct ats_sim_phase){0};
    if (!check_context(r, (uint64_t)depth + n_tokens, err) || !start_routing(r, err)) {
        return false;
    }
    const struct ats_sim_use before = ats_sim_used(r->engine);
    for (uint32_t i = 0; i < n_tokens; i++) {
        const struct ats_model_pass pass = {
            .n_tokens = 1, .n_outputs = 1, .depth = depth + i, .ubatch = r->setting->ubatch};
        if (!run_pass(r, &pass, phase, err)) {
            return false;
        }
    }
    const struct ats_sim_use after = ats_sim_used(r->engine);
    phase->use = ats_sim_between(&before, &after);
    return true;
}
