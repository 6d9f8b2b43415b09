/* Predictions of a pass of each phase, for ats_decide and for `ats plan`. */
#include "sim/decide.h"

#include "sim/op_time.h"
#include "sim/sim.h"

#include <math.h>
#include <stdlib.h>

struct ats_model_pass ats_workload_pass(const struct ats_sim_setting *s,
                                        const struct ats_workload *w, enum ats_phase phase)
{
    if (phase == ATS_DECODE) {
        const uint64_t depth = (uint64_t)w->prompt_tokens + w->decode_tokens / 2;
        return (struct ats_model_pass){.n_tokens = 1,
                                       .n_outputs = 1,
                                       .depth = (uint32_t)(depth < s->n_ctx ? depth : s->n_ctx - 1),
                                       .ubatch = s->ubatch};
    }
    uint32_t tokens = w->prompt_tokens < s->ubatch ? w->prompt_tokens : s->ubatch;
    tokens = tokens < s->n_ctx ? tokens : s->n_ctx;
    tokens = tokens > 0 ? tokens : 1;
    const uint32_t prompt = w->prompt_tokens < s->n_ctx ? w->prompt_tokens : s->n_ctx;
    return (struct ats_model_pass){.n_tokens = tokens,
                                   .n_outputs = prompt <= tokens,
                                   .depth = prompt > tokens ? (prompt - tokens) / 2 : 0,
                                   .ubatch = s->ubatch};
}

bool ats_expected_routing(const struct ats_sim_setting *s, const struct ats_model_pass *pass,
                          struct ats_sim_routing *r)
{
    const size_t n_layers = (size_t)s->model->params.n_layers + 1;
    *r = (struct ats_sim_routing){.distinct = calloc(n_layers, sizeof(double)),
                                  .groups = calloc(n_layers, sizeof(double))};
    if (r->distinct == NULL || r->groups == NULL) {
        ats_expected_free(r);
        return false;
    }
    for (size_t i = 0; i < s->model->n_units; i++) {
        const struct ats_model_unit *u = &s->model->units[i];
        if (u->n_experts == 0) {
            continue;
        }
        const size_t layer = u->layer < 0 ? 0 : (size_t)u->layer;
        const double rows = ats_model_rows(u, pass);
        const double distinct = ats_cost_expected_experts(u->n_experts, u->n_used, rows);
        r->distinct[layer] = distinct;
        /* stretches among d of n that are drawn at random: each of the d begins one unless its
         * neighbour is drawn too */
        r->groups[layer] = distinct * (u->n_experts - distinct + 1) / u->n_experts;
    }
    return true;
}

void ats_expected_free(struct ats_sim_routing *r)
{
    free(r->distinct);
    free(r->groups);
    *r = (struct ats_sim_routing){0};
}

static bool run_pass(const struct ats_sim_setting *s, const struct ats_sim_policy *policy,
                     struct ats_sim_placement *placement, const struct ats_model_pass *pass,
                     struct ats_sim_engine *engine, struct ats_sim_use *use)
{
    struct ats_sim_routing routing;
    struct ats_sim_schedule schedule = {0};
    if (!ats_expected_routing(s, pass, &routing)) {
        return false;
    }
    const struct ats_sim_use before = ats_sim_used(engine);
    policy->schedule(s, placement, pass, &routing, &schedule);
    const bool good = ats_sim_run(engine, &schedule);
    const struct ats_sim_use after = ats_sim_used(engine);
    *use = ats_sim_between(&before, &after);
    ats_sim_schedule_free(&schedule);
    ats_expected_free(&routing);
    return good;
}

static double session_us(const struct ats_workload *w, const struct ats_prediction *p)
{
    return p->us[ATS_PREFILL] * w->prompt_tokens / p->tokens[ATS_PREFILL] +
           p->us[ATS_DECODE] * w->decode_tokens;
}

bool ats_predict(const struct ats_sim_setting *s, const struct ats_workload *w,
                 const struct ats_sim_policy *policy, struct ats_sim_placement *placement,
                 struct ats_prediction *p, struct ats_error *err)
{
    /* prefill; the token that fills staging memory; one that finds it filled */
    static const enum ats_phase phases[] = {ATS_PREFILL, ATS_DECODE, ATS_DECODE};
    *p = (struct ats_prediction){.session_us = 0};
    struct ats_sim_engine *engine = ats_sim_engine_new(s->machine, NULL, NULL);
    bool good = engine != NULL;
    for (size_t i = 0; good && i < sizeof phases / sizeof phases[0]; i++) {
        const enum ats_phase phase = phases[i];
        const struct ats_model_pass pass = ats_workload_pass(s, w, phase);
        struct ats_sim_use use = {0};
        good = run_pass(s, policy, placement, &pass, engine, &use);
        p->us[phase] = use.us;
        p->splits[phase] = (double)use.splits;
        p->bytes_in[phase] = use.bytes[ATS_TO_DEVICE];
        p->tokens[phase] = pass.n_tokens;
    }
    ats_sim_engine_free(engine);
    if (good) {
        p->session_us = session_us(w, p);
    }
    return good || ats_fail(err, "out of memory while predicting");
}

/* ---- experts by slice ---- */

static void note(struct ats_prediction *p, enum ats_phase phase, uint32_t tokens,
                 const struct ats_sim_phase *run)
{
    const double passes = (double)run->n_tokens / tokens;
    p->tokens[phase] = tokens;
    p->us[phase] = run->use.us / passes;
    p->splits[phase] = (double)run->use.splits / passes;
    p->bytes_in[phase] = run->use.bytes[ATS_TO_DEVICE] / passes;
}

/* The mean pass of the whole prompt, and that of some tokens, once slots have followed the text for
 * a while. */
static bool predict_run(const struct ats_sim_setting *s, const struct ats_workload *w,
                        struct ats_sim_run *run, struct ats_prediction *p, struct ats_error *err)
{
    enum { TOKENS = 32 };
    const struct ats_model_pass prefill = ats_workload_pass(s, w, ATS_PREFILL);
    const uint32_t wanted = ats_workload_pass(s, w, ATS_DECODE).depth;
    const uint32_t tokens = s->n_ctx < TOKENS ? s->n_ctx : TOKENS;
    const uint32_t depth = wanted < s->n_ctx - tokens ? wanted : s->n_ctx - tokens;
    const uint32_t prompt = w->prompt_tokens < s->n_ctx ? w->prompt_tokens : s->n_ctx;
    struct ats_sim_phase phase;
    if (!ats_sim_prefill(run, prompt > 0 ? prompt : 1, &phase, err)) {
        return false;
    }
    note(p, ATS_PREFILL, prefill.n_tokens, &phase);
    for (int i = 0; i < 2; i++) { /* the first to warm up */
        if (!ats_sim_decode(run, depth, tokens, &phase, err)) {
            return false;
        }
    }
    note(p, ATS_DECODE, 1, &phase);
    p->session_us = session_us(w, p);
    return true;
}

bool ats_predict_slices(const struct ats_sim_setting *s, const struct ats_workload *w,
                        struct ats_candidate *c)
{
    const char *none;
    struct ats_error reason;
    const struct ats_sim_policy *policy = ats_sim_policy_find("ats-experts", &none, &reason);
    struct ats_sim_run *run = ats_sim_run_new(s, policy, NULL, NULL, NULL, &reason);
    bool is_sliced = false;
    if (run == NULL) {
        return false;
    }
    const struct ats_sim_placement *placement = ats_sim_run_placement(run);
    for (size_t i = 0; i < s->model->n_tensors; i++) {
        is_sliced = is_sliced || placement->sliced[i];
    }
    *c = (struct ats_candidate){
        .name = "slices", .is_sliced = true, .used_bytes = placement->used_bytes};
    is_sliced = is_sliced && predict_run(s, w, run, &c->prediction, &reason);
    ats_sim_run_free(run);
    return is_sliced;
}
