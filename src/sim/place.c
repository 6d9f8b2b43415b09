#include "sim/place.h"
#include "plan/staging.h"
#include "sim/experts.h"

#include "base/parse.h"
#include "plan/placement.h"
#include "sim/decide.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

/* Activations that are alive at once beside the largest one, in units of the embedding: an
 * estimate for the compute buffer. */
static const uint64_t LIVE_ACTIVATIONS = 6;

/* ---- memory ---- */

bool ats_sim_placement_init(const struct ats_sim_setting *s, struct ats_sim_placement *p)
{
    *p = (struct ats_sim_placement){
        .tensor = calloc(s->model->n_tensors, sizeof(bool)),
        .on_both = calloc(s->model->n_tensors, sizeof(bool)),
        .sliced = calloc(s->model->n_tensors, sizeof(bool)),
        .unit_state = calloc(s->model->n_units, sizeof(bool)),
        .staging = s->staging,
    };
    if (p->tensor == NULL || p->on_both == NULL || p->sliced == NULL || p->unit_state == NULL) {
        ats_sim_placement_free(p);
        return false;
    }
    return true;
}

void ats_sim_placement_free(struct ats_sim_placement *p)
{
    free(p->tensor);
    free(p->on_both);
    free(p->sliced);
    free(p->unit_state);
    *p = (struct ats_sim_placement){0};
}

uint64_t ats_sim_compute_bytes(const struct ats_sim_setting *s, const struct ats_sim_placement *p)
{
    if (s->compute_bytes > 0) {
        return s->compute_bytes;
    }
    const struct ats_model *m = s->model;
    uint64_t logits = 0;
    uint64_t moved = 0;
    uint64_t widest = 0;
    for (size_t i = 0; i < m->n_units; i++) {
        const struct ats_model_unit *u = &m->units[i];
        const uint64_t out = u->out_bytes_per_token * s->ubatch;
        if (u->role == ATS_ROLE_OUTPUT) {
            logits = out + u->in_bytes_per_token * s->ubatch;
            continue;
        }
        widest = out > widest ? out : widest;
        for (uint32_t w = 0; w < u->n_weights && u->role != ATS_ROLE_EMBEDDING; w++) {
            const int32_t t = m->weights[u->first_weight + w];
            if (!p->fixed && !p->tensor[t] && m->tensors[t].bytes > moved) {
                moved = m->tensors[t].bytes;
            }
        }
    }
    const uint64_t embeddings = LIVE_ACTIVATIONS * 4 * (uint64_t)m->params.n_embd * s->ubatch;
    const uint64_t inside = moved + 2 * widest + embeddings;
    return logits > inside ? logits : inside;
}

uint64_t ats_sim_placement_bytes(const struct ats_sim_setting *s, const struct ats_sim_placement *p)
{
    const struct ats_model *m = s->model;
    uint64_t bytes = 0;
    for (size_t i = 0; i < m->n_units; i++) {
        const struct ats_model_unit *u = &m->units[i];
        bytes += p->unit_state[i] ? ats_model_state_bytes(u, s->n_ctx, s->ubatch) : 0;
    }
    for (size_t i = 0; i < m->n_tensors; i++) {
        bytes += p->tensor[i] ? m->tensors[i].bytes : 0;
    }
    if (bytes == 0) {
        return 0;
    }
    return bytes + p->staging_bytes + ats_sim_compute_bytes(s, p);
}

static void clear(const struct ats_sim_setting *s, struct ats_sim_placement *p)
{
    memset(p->tensor, 0, s->model->n_tensors * sizeof(p->tensor[0]));
    memset(p->on_both, 0, s->model->n_tensors * sizeof(p->on_both[0]));
    memset(p->unit_state, 0, s->model->n_units * sizeof(p->unit_state[0]));
}

static void set_unit(const struct ats_sim_setting *s, struct ats_sim_placement *p, size_t unit)
{
    const struct ats_model_unit *u = &s->model->units[unit];
    for (uint32_t w = 0; w < u->n_weights; w++) {
        p->tensor[s->model->weights[u->first_weight + w]] = true;
    }
    p->unit_state[unit] = true;
}

static bool fits(const struct ats_sim_setting *s, struct ats_sim_placement *p, uint64_t margin)
{
    p->used_bytes = ats_sim_placement_bytes(s, p);
    return p->used_bytes + margin <= s->vram_bytes;
}

static bool must_fit(const struct ats_sim_setting *s, struct ats_sim_placement *p, const char *what,
                     struct ats_error *err)
{
    char need[32];
    char have[32];
    if (fits(s, p, 0)) {
        return true;
    }
    return ats_fail(err, "%s needs %s of VRAM with its compute buffers, the budget is %s", what,
                    ats_format_bytes(p->used_bytes, need, sizeof need),
                    ats_format_bytes(s->vram_bytes, have, sizeof have));
}

static bool whole_number(const char *policy, const char *text, uint32_t *value,
                         struct ats_error *err)
{
    uint64_t number;
    if (text == NULL) {
        return ats_fail(err, "the policy %s needs a number: %s=N", policy, policy);
    }
    if (!ats_parse_u64(text, INT32_MAX, &number, err)) {
        return false;
    }
    *value = (uint32_t)number;
    return true;
}

/* ---- by layers ---- */

bool ats_sim_place_cpu(const struct ats_sim_setting *s, const char *argument,
                       struct ats_sim_placement *p, struct ats_error *err)
{
    (void)argument;
    (void)err;
    clear(s, p);
    p->used_bytes = 0;
    return true;
}

static bool is_output(const struct ats_model_unit *u)
{
    return u->role == ATS_ROLE_OUTPUT || u->role == ATS_ROLE_OUTPUT_NORM;
}

/* The last n of layers and output head. Experts of layers before `moe_from` stay behind. */
static void put_layers(const struct ats_sim_setting *s, struct ats_sim_placement *p, uint32_t n,
                       uint32_t moe_from)
{
    const int64_t n_layers = s->model->params.n_layers;
    clear(s, p);
    for (size_t i = 0; i < s->model->n_units; i++) {
        const struct ats_model_unit *u = &s->model->units[i];
        const int64_t layer = is_output(u) ? n_layers : u->layer;
        const bool left = u->n_experts > 0 && u->layer < (int64_t)moe_from;
        if (layer >= 0 && layer >= n_layers + 1 - (int64_t)n && !left) {
            set_unit(s, p, i);
        }
    }
}

bool ats_sim_place_ngl(const struct ats_sim_setting *s, const char *argument,
                       struct ats_sim_placement *p, struct ats_error *err)
{
    uint32_t n = 0;
    if (!whole_number("ngl", argument, &n, err)) {
        return false;
    }
    put_layers(s, p, n, 0);
    return must_fit(s, p, "-ngl with that many layers", err);
}

static void put_most_layers(const struct ats_sim_setting *s, struct ats_sim_placement *p,
                            uint64_t margin)
{
    for (uint32_t n = s->model->params.n_layers + 1; n > 0; n--) {
        put_layers(s, p, n, 0);
        if (fits(s, p, margin)) {
            return;
        }
    }
    ats_sim_place_cpu(s, NULL, p, NULL);
}

bool ats_sim_place_layers(const struct ats_sim_setting *s, const char *argument,
                          struct ats_sim_placement *p, struct ats_error *err)
{
    (void)argument;
    (void)err;
    put_most_layers(s, p, 0);
    return true;
}

/* ---- experts ---- */

static bool has_experts(const struct ats_sim_setting *s, struct ats_error *err)
{
    for (size_t i = 0; i < s->model->n_units; i++) {
        if (s->model->units[i].n_experts > 0) {
            return true;
        }
    }
    return ats_fail(err, "%s has no experts to keep on the CPU", s->model->params.arch);
}

bool ats_sim_place_cpu_moe(const struct ats_sim_setting *s, const char *argument,
                           struct ats_sim_placement *p, struct ats_error *err)
{
    uint32_t n = 0;
    if (!has_experts(s, err) || !whole_number("n-cpu-moe", argument, &n, err)) {
        return false;
    }
    put_layers(s, p, s->model->params.n_layers + 1, n);
    return must_fit(s, p, "all but these experts", err);
}

/* The most whole layers with the experts of the first ones left behind; the number of those, or
 * -1 if not even without any expert all fits. */
static int64_t put_most_experts(const struct ats_sim_setting *s, struct ats_sim_placement *p,
                                uint64_t margin)
{
    const uint32_t n_layers = s->model->params.n_layers;
    for (uint32_t left = 0; left <= n_layers; left++) {
        put_layers(s, p, n_layers + 1, left);
        if (fits(s, p, margin)) {
            return left;
        }
    }
    return -1;
}

bool ats_sim_place_moe(const struct ats_sim_setting *s, const char *argument,
                       struct ats_sim_placement *p, struct ats_error *err)
{
    (void)argument;
    if (!has_experts(s, err)) {
        return false;
    }
    if (put_most_experts(s, p, 0) < 0) {
        return must_fit(s, p, "all but the experts", err);
    }
    return true;
}

/* Adds single expert tensors of a layer in the order that --fit tries: all but `down` and `gate`,
 * then all but `down`. The larger that fits stays. */
static void put_part(const struct ats_sim_setting *s, struct ats_sim_placement *p, int32_t layer,
                     uint64_t margin)
{
    static const char *const first[] = {".ffn_up_exps.", ".ffn_gate_exps."};
    bool whole = true;
    for (size_t round = 0; round < 2 && whole; round++) {
        whole = false;
        for (size_t i = 0; i < s->model->n_tensors; i++) {
            const struct ats_model_tensor *t = &s->model->tensors[i];
            if (t->layer == layer && strstr(t->name, first[round]) != NULL) {
                p->tensor[i] = true;
                whole = fits(s, p, margin);
                p->tensor[i] = whole;
            }
        }
    }
    fits(s, p, margin); /* the size of what stayed */
}

bool ats_sim_place_fit(const struct ats_sim_setting *s, const char *argument,
                       struct ats_sim_placement *p, struct ats_error *err)
{
    (void)argument;
    (void)err;
    struct ats_error ignored;
    if (!has_experts(s, &ignored)) {
        put_most_layers(s, p, s->fit_margin);
        return true;
    }
    const int64_t left = put_most_experts(s, p, s->fit_margin);
    if (left > 0) {
        put_part(s, p, (int32_t)left - 1, s->fit_margin);
    } else if (left < 0) {
        const uint32_t n_layers = s->model->params.n_layers;
        for (uint32_t n = n_layers; n > 0; n--) {
            put_layers(s, p, n, n_layers);
            if (fits(s, p, s->fit_margin)) {
                return true;
            }
        }
        return ats_sim_place_cpu(s, NULL, p, NULL);
    }
    return true;
}

/* ---- ATS ---- */

static bool place_by_rule(const struct ats_sim_setting *s, const struct ats_rule *rule,
                          struct ats_sim_placement *p, struct ats_error *err)
{
    struct ats_sim_listing l;
    if (!ats_sim_listing_make(s, &l)) {
        return ats_fail(err, "out of memory for a placement");
    }
    if (rule->kind == ATS_RULE_TABLE && p->staging.places == 0) {
        p->staging = rule->table->staging; /* as the backend does (backend/decide.h) */
    }
    const uint64_t budget = ats_sim_reserve(s, p);
    enum ats_where *where = calloc(l.n + 1, sizeof(where[0]));
    bool good = where != NULL || ats_fail(err, "out of memory for a placement");
    for (size_t i = 0; i < l.n; i++) { /* single experts of these come later */
        if (l.source[i] < s->model->n_tensors && p->sliced[l.source[i]]) {
            l.units[i].accel_can = false;
        }
    }
    good = good && ats_place(l.units, l.n, (size_t)budget, rule, where, err);
    size_t short_bytes = 0;
    if (good && rule->kind == ATS_RULE_TABLE && p->staging.places != ATS_STAGING_FEW_PLACES &&
        ats_place_shortfall(l.units, l.n, rule, where, &short_bytes) > 0) {
        /* as the backend finds out (backend/decide.h) */
        p->staging = (struct ats_staging_way){.places = ATS_STAGING_FEW_PLACES};
        good = ats_place(l.units, l.n, (size_t)ats_sim_reserve(s, p), rule, where, err);
    }
    if (good) {
        ats_sim_listing_apply(s, &l, where, p);
    }
    free(where);
    ats_sim_listing_free(&l);
    return good;
}

bool ats_sim_place_fill(const struct ats_sim_setting *s, const char *argument,
                        struct ats_sim_placement *p, struct ats_error *err)
{
    (void)argument;
    const struct ats_rule rule = {.kind = ATS_RULE_FILL};
    return place_by_rule(s, &rule, p, err);
}

bool ats_sim_place_solved(const struct ats_sim_setting *s, const char *argument,
                          struct ats_sim_placement *p, struct ats_error *err)
{
    (void)argument;
    const struct ats_workload workload = ats_workload_default();
    return ats_decide(s, &workload, ATS_BUDGET_OF_SETTING, p, NULL, err);
}

/* What the backend decides, but for experts by slice. */
static bool place_decided(const struct ats_sim_setting *s, struct ats_sim_placement *p,
                          bool *slices_win, struct ats_error *err)
{
    const struct ats_workload workload = ats_workload_default();
    const struct ats_rule rule = {.kind = ATS_RULE_FILL};
    struct ats_decision decision;
    if (!ats_decide(s, &workload, ATS_BUDGET_OF_SETTING, p, &decision, err)) {
        return false;
    }
    *slices_win = decision.slices_win;
    return !decision.keeps_fill || place_by_rule(s, &rule, p, err);
}

bool ats_sim_place_whole(const struct ats_sim_setting *s, const char *argument,
                         struct ats_sim_placement *p, struct ats_error *err)
{
    (void)argument;
    struct ats_sim_setting setting = *s;
    bool slices_win;
    setting.whole_experts = true;
    return place_decided(&setting, p, &slices_win, err);
}

bool ats_sim_place_auto(const struct ats_sim_setting *s, const char *argument,
                        struct ats_sim_placement *p, struct ats_error *err)
{
    bool slices_win;
    return place_decided(s, p, &slices_win, err) &&
           (!slices_win || ats_sim_place_slices(s, argument, p, err));
}

bool ats_sim_place_plan(const struct ats_sim_setting *s, const char *argument,
                        struct ats_sim_placement *p, struct ats_error *err)
{
    if (argument == NULL) {
        return ats_fail(err, "the policy plan needs a file: plan=FILE");
    }
    struct ats_placement_table table;
    if (!ats_placement_read(argument, &table, err)) {
        return false;
    }
    const struct ats_rule rule = {.kind = ATS_RULE_TABLE, .table = &table};
    const bool good = place_by_rule(s, &rule, p, err);
    ats_placement_table_free(&table);
    return good;
}
