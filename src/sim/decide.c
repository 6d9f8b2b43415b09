#include "sim/decide.h"

#include "plan/staging.h"
#include "sim/ats.h"
#include "sim/place.h"
#include "sim/problem.h"

#include <stdlib.h>
#include <string.h>

/* Sessions that differ by less than this share are equally fast: it is far below what any cost
 * model knows. */
static const double EQUAL_SHARE = 1e-3;

/* What a plan must promise over the rule `fill`, which does well on any machine, so that a backend
 * follows it: predictions of the quick benchmark are mostly off by a few percent. */
static const double WORTH_SHARE = 0.02;

/* What the solver is asked for: first the problem as it is, then with a phase or the changes of
 * sides counting for less or more, and with layers in either order. */
static const struct {
    const char *name;
    struct ats_leaning leaning;
} proposals[] = {
    {"solver", {.weight = {1, 1}, .change = 1}},
    {"solver, spread", {.weight = {1, 1}, .change = 1, .spreads = true}},
    {"solver, decode only", {.weight = {1, 0}, .change = 1}},
    {"solver, decode only, spread", {.weight = {1, 0}, .change = 1, .spreads = true}},
    {"solver, half prefill", {.weight = {1, 0.5}, .change = 1}},
    {"solver, half prefill, spread", {.weight = {1, 0.5}, .change = 1, .spreads = true}},
    {"solver, prefill twice", {.weight = {1, 2}, .change = 1}},
    {"solver, prefill twice, spread", {.weight = {1, 2}, .change = 1, .spreads = true}},
    {"solver, prefill only", {.weight = {0, 1}, .change = 1}},
    {"solver, prefill only, spread", {.weight = {0, 1}, .change = 1, .spreads = true}},
    {"solver, few splits", {.weight = {1, 1}, .change = 3}},
    {"solver, few splits, spread", {.weight = {1, 1}, .change = 3, .spreads = true}},
    {"solver, fewest splits", {.weight = {1, 1}, .change = 10}},
};

struct decider {
    const struct ats_sim_setting *setting;
    const struct ats_workload *workload;
    uint64_t budget;
    struct ats_sim_listing listing;
    enum ats_where *where; /* of the candidate at hand */
    enum ats_where *kept;  /* of all candidates, one after another */
    struct ats_sim_placement *placement;
    struct ats_decision *decision;
    const struct ats_sim_policy *policy;
    bool is_sketch; /* only candidates that tell how good others may be */
};

/* ---- candidates ---- */

/* Predicts what is in d->where, and keeps it. */
static bool consider(struct decider *d, const char *name, bool is_solved, struct ats_error *err)
{
    struct ats_decision *decision = d->decision;
    struct ats_candidate *c = &decision->candidates[decision->n];
    *c = (struct ats_candidate){.name = name, .is_solved = is_solved};
    d->placement->holds = false;
    ats_sim_listing_apply(d->setting, &d->listing, d->where, d->placement);
    c->used_bytes = d->placement->used_bytes;
    if (!ats_predict(d->setting, d->workload, d->policy, d->placement, &c->prediction, err)) {
        return false;
    }
    memcpy(d->kept + decision->n * d->listing.n, d->where, d->listing.n * sizeof(d->where[0]));
    decision->n++;
    return true;
}

/* The shortest session; of those that count as equally short the one with the fewest splits. */
static size_t choose(const struct ats_decision *d)
{
    double least_us = d->candidates[0].prediction.session_us;
    for (size_t i = 1; i < d->n; i++) {
        const double us = d->candidates[i].prediction.session_us;
        least_us = us < least_us && !d->candidates[i].is_sliced ? us : least_us;
    }
    size_t best = d->n;
    for (size_t i = 0; i < d->n; i++) {
        const struct ats_prediction *own = &d->candidates[i].prediction;
        if (own->session_us > least_us * (1 + EQUAL_SHARE) || d->candidates[i].is_sliced) {
            continue;
        }
        const struct ats_prediction *other = &d->candidates[best < d->n ? best : i].prediction;
        const double splits = own->splits[ATS_DECODE] - other->splits[ATS_DECODE];
        if (best == d->n || splits < 0 || (splits == 0 && own->session_us < other->session_us)) {
            best = i;
        }
    }
    return best;
}

static bool propose(struct decider *d, struct ats_error *err)
{
    struct ats_sim_problem problem;
    if (!ats_sim_problem_make(d->setting, d->workload, d->placement, &problem)) {
        return ats_fail(err, "out of memory for a placement");
    }
    const size_t n = d->is_sketch ? 1 : sizeof proposals / sizeof proposals[0];
    bool good = true;
    for (size_t i = 0; good && i < n; i++) {
        struct ats_solution solution;
        good = ats_sim_problem_solve(&problem, d->setting->model, &proposals[i].leaning, d->budget,
                                     &d->listing, d->where, &solution, err) &&
               consider(d, proposals[i].name, true, err);
        if (i == 0 && good) {
            d->decision->solution = solution;
        }
    }
    ats_sim_problem_free(&problem);
    return good;
}

static bool by_rule(struct decider *d, enum ats_rule_kind kind, const char *name,
                    struct ats_error *err)
{
    const struct ats_rule rule = {.kind = kind};
    return ats_place(d->listing.units, d->listing.n, (size_t)d->budget, &rule, d->where, err) &&
           consider(d, name, false, err);
}

/* The last `n` of layers and output head, experts of the first `left` of all layers excepted.
 * False if that does not fit. */
static bool put_layers(struct decider *d, uint32_t n, uint32_t left)
{
    const int64_t n_layers = d->setting->model->params.n_layers;
    uint64_t bytes = 0;
    for (size_t i = 0; i < d->listing.n; i++) {
        const struct ats_unit *u = &d->listing.units[i];
        const int layer = ats_layer_of(u->name);
        const int64_t at = layer < 0 ? n_layers : layer;
        const bool stays = ats_is_expert_weight(u->name) && layer < (int64_t)left;
        d->where[i] = at >= n_layers + 1 - (int64_t)n && !stays ? ATS_WHERE_VRAM : ATS_WHERE_HOST;
        bytes += d->where[i] == ATS_WHERE_VRAM ? u->bytes : 0;
    }
    return bytes <= d->budget;
}

static bool by_layers(struct decider *d, struct ats_error *err)
{
    for (uint32_t n = d->setting->model->params.n_layers + 1; n > 0; n--) {
        if (put_layers(d, n, 0)) {
            return consider(d, "layers", false, err);
        }
    }
    return true;
}

static bool by_experts(struct decider *d, struct ats_error *err)
{
    const uint32_t n_layers = d->setting->model->params.n_layers;
    bool has_experts = false;
    for (size_t i = 0; i < d->listing.n; i++) {
        has_experts = has_experts || ats_is_expert_weight(d->listing.units[i].name);
    }
    for (uint32_t left = 0; has_experts && left <= n_layers; left++) {
        if (put_layers(d, n_layers + 1, left)) {
            return consider(d, "n-cpu-moe", false, err);
        }
    }
    return true;
}

/* Experts by slice, beside the rule `fill`. */
static void by_slices(struct decider *d)
{
    struct ats_sim_setting setting = *d->setting;
    const uint64_t left = ats_sim_reserve(d->setting, d->placement);
    setting.vram_bytes -= left - d->budget; /* what the caller has less of */
    d->decision->n +=
        setting.model->params.n_experts > 0 && !setting.whole_experts &&
        ats_predict_slices(&setting, d->workload, &d->decision->candidates[d->decision->n]);
}

/* ---- the whole ---- */

static uint64_t less(uint64_t a, uint64_t b)
{
    return a > b ? a - b : 0;
}

static bool decide(struct decider *d, uint64_t budget, struct ats_error *err)
{
    const char *none;
    const uint64_t left = ats_sim_reserve(d->setting, d->placement);
    const uint64_t own =
        budget == ATS_BUDGET_OF_SETTING ? left : less(budget, d->placement->staging_bytes);
    d->budget = own < left ? own : left;
    d->decision->budget = d->budget;
    d->policy = ats_sim_policy_find("ats-async", &none, err);
    if (d->policy == NULL || !ats_sim_listing_make(d->setting, &d->listing)) {
        return ats_fail(err, "out of memory for a placement");
    }
    d->where = calloc(d->listing.n + 1, sizeof(d->where[0]));
    d->kept = calloc(ATS_MOST_CANDIDATES * d->listing.n + 1, sizeof(d->kept[0]));
    if (d->where == NULL || d->kept == NULL) {
        return ats_fail(err, "out of memory for a placement");
    }
    if (!propose(d, err)) {
        return false;
    }
    d->decision->fill = d->decision->n;
    if (!by_rule(d, ATS_RULE_FILL, "fill", err) ||
        (!d->is_sketch &&
         (!by_rule(d, ATS_RULE_HOST, "host", err) || !by_layers(d, err) || !by_experts(d, err)))) {
        return false;
    }
    const size_t n_placements = d->decision->n;
    by_slices(d);
    d->placement->holds = false;
    d->decision->chosen = choose(d->decision);
    const struct ats_candidate *chosen = &d->decision->candidates[d->decision->chosen];
    const struct ats_candidate *fill = &d->decision->candidates[d->decision->fill];
    d->decision->keeps_fill =
        fill->prediction.session_us < chosen->prediction.session_us * (1 + WORTH_SHARE);
    const struct ats_candidate *other = d->decision->keeps_fill ? fill : chosen;
    d->decision->slices_win =
        d->decision->n > n_placements &&
        d->decision->candidates[n_placements].prediction.session_us * (1 + WORTH_SHARE) <
            other->prediction.session_us;
    ats_sim_listing_apply(d->setting, &d->listing, d->kept + d->decision->chosen * d->listing.n,
                          d->placement);
    return true;
}

/* With staging memory that is used in that way. */
static bool decide_with(const struct ats_sim_setting *asked, const struct ats_workload *workload,
                        uint64_t budget, struct ats_staging_way way, bool is_sketch,
                        struct ats_sim_placement *placement, struct ats_decision *decision,
                        struct ats_error *err)
{
    struct ats_sim_setting setting = *asked;
    struct decider d = {.setting = &setting,
                        .workload = workload,
                        .placement = placement,
                        .decision = decision,
                        .is_sketch = is_sketch};
    setting.staging = way;
    placement->staging = way;
    *decision = (struct ats_decision){.staging = way};
    const bool good = decide(&d, budget, err);
    ats_sim_listing_free(&d.listing);
    free(d.where);
    free(d.kept);
    return good;
}

/* Of what a backend would do. */
static double session_us(const struct ats_decision *d)
{
    const size_t placed = d->keeps_fill ? d->fill : d->chosen;
    return d->candidates[d->slices_win ? d->n - 1 : placed].prediction.session_us;
}

/* The first way is left for one that promises more than a prediction is worth. */
static bool choose_way(const struct ats_sim_setting *setting, const struct ats_workload *workload,
                       uint64_t budget, struct ats_sim_placement *placement,
                       struct ats_staging_way *way, struct ats_error *err)
{
    static const struct ats_staging_way ways[] = {
        {.places = ATS_STAGING_PLACES},
        {.places = ATS_STAGING_FEW_PLACES},
        {.places = ATS_STAGING_MANY_PLACES},
        {.places = ATS_STAGING_PLACES, .whole = true},
        {.places = ATS_STAGING_FEW_PLACES, .whole = true}};
    double best_us = 0;
    bool cuts = true;
    bool good = true;
    for (size_t i = 0; good && i < sizeof ways / sizeof ways[0]; i++) {
        struct ats_decision sketch;
        if (ways[i].whole && !cuts) {
            continue; /* it is the same as without */
        }
        good = decide_with(setting, workload, budget, ways[i], true, placement, &sketch, err);
        if (good && (i == 0 || session_us(&sketch) * (1 + WORTH_SHARE) < best_us)) {
            best_us = session_us(&sketch);
            *way = ways[i];
        }
        cuts = i == 0 ? placement->staging_bytes == 0 || placement->scratch_bytes > 0 : cuts;
    }
    return good;
}

bool ats_decide(const struct ats_sim_setting *setting, const struct ats_workload *workload,
                uint64_t budget, struct ats_sim_placement *placement, struct ats_decision *decision,
                struct ats_error *err)
{
    struct ats_decision own;
    struct ats_staging_way way = setting->staging;
    return (way.places > 0 || choose_way(setting, workload, budget, placement, &way, err)) &&
           decide_with(setting, workload, budget, way, false, placement,
                       decision != NULL ? decision : &own, err);
}

/* ---- for a backend ---- */

/* The tensors of a model by name, and its units with state by layer. */
struct index {
    const struct ats_model *model;
    const struct ats_model_tensor **by_name;
    bool *in_unit; /* by tensor */
    int64_t unit_of_layer[ATS_MODEL_MAX_LAYERS];
};

static int compare_names(const void *a, const void *b)
{
    const struct ats_model_tensor *const *x = a;
    const struct ats_model_tensor *const *y = b;
    const int order = strcmp((*x)->name, (*y)->name);
    return order != 0 ? order : (int)(*x)->tied - (int)(*y)->tied;
}

static bool index_make(struct index *x, const struct ats_model *m)
{
    x->model = m;
    x->by_name = calloc(m->n_tensors + 1, sizeof(struct ats_model_tensor *));
    x->in_unit = calloc(m->n_tensors + 1, sizeof(x->in_unit[0]));
    if (x->by_name == NULL || x->in_unit == NULL) {
        return false;
    }
    for (size_t i = 0; i < m->n_weights; i++) {
        x->in_unit[m->weights[i]] = true;
    }
    for (size_t i = 0; i < m->n_tensors; i++) {
        x->by_name[i] = &m->tensors[i];
    }
    qsort(x->by_name, m->n_tensors, sizeof(struct ats_model_tensor *), compare_names);
    memset(x->unit_of_layer, -1, sizeof x->unit_of_layer);
    for (size_t i = 0; i < m->n_units; i++) {
        const struct ats_model_unit *u = &m->units[i];
        if (u->layer >= 0 && (u->kv_bytes_per_token > 0 || u->recurrent_bytes > 0)) {
            x->unit_of_layer[u->layer] = (int64_t)i;
        }
    }
    return true;
}

/* The index of the tensor with that name; of two, the output head that shares the embedding's
 * bytes. -1: none. */
static int64_t find_tensor(const struct index *x, const char *name)
{
    size_t low = 0;
    size_t high = x->model->n_tensors;
    while (low < high) { /* the last that is not behind the name */
        const size_t middle = low + (high - low) / 2;
        if (strcmp(x->by_name[middle]->name, name) <= 0) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    if (low == 0 || strcmp(x->by_name[low - 1]->name, name) != 0) {
        return -1;
    }
    return x->by_name[low - 1] - x->model->tensors;
}

static enum ats_where where_of(const struct index *x, const struct ats_sim_placement *p,
                               const struct ats_unit *unit)
{
    if (unit->kind == ATS_UNIT_STATE) {
        const int layer = ats_layer_of(unit->name);
        const int64_t u = layer >= 0 && layer < ATS_MODEL_MAX_LAYERS ? x->unit_of_layer[layer] : -1;
        return u >= 0 && p->unit_state[u] ? ATS_WHERE_VRAM : ATS_WHERE_HOST;
    }
    const int64_t t = find_tensor(x, unit->name);
    if (unit->is_vector && (t < 0 || !x->in_unit[t])) {
        return ATS_WHERE_BOTH; /* such as factors of rotations, which every layer reads */
    }
    if (t < 0 || !p->tensor[t]) {
        return ATS_WHERE_HOST;
    }
    return p->on_both[t] ? ATS_WHERE_BOTH : ATS_WHERE_VRAM;
}

static void spread(const struct index *x, const struct ats_sim_placement *p, uint64_t budget,
                   const struct ats_unit *units, size_t n, enum ats_where *where)
{
    uint64_t left = budget;
    for (size_t i = 0; i < n; i++) {
        where[i] = ATS_WHERE_HOST;
        if (!units[i].host_can && units[i].accel_can && units[i].bytes <= left) {
            where[i] = ATS_WHERE_VRAM;
            left -= units[i].bytes;
        }
    }
    for (size_t i = 0; i < n; i++) {
        const enum ats_where wanted = where_of(x, p, &units[i]);
        if (where[i] == ATS_WHERE_HOST && wanted != ATS_WHERE_HOST && units[i].accel_can &&
            units[i].bytes <= left) {
            where[i] = wanted;
            left -= units[i].bytes;
        }
    }
}

bool ats_decide_units(const struct ats_sim_setting *setting, const struct ats_workload *workload,
                      uint64_t budget, const struct ats_unit *units, size_t n,
                      enum ats_where *where, struct ats_decision *decision, struct ats_error *err)
{
    struct ats_sim_placement placement;
    struct index x = {0};
    if (!ats_sim_placement_init(setting, &placement)) {
        return ats_fail(err, "out of memory for a placement");
    }
    bool good = index_make(&x, setting->model) || ats_fail(err, "out of memory for a placement");
    good = good && ats_decide(setting, workload, budget, &placement, decision, err);
    if (good) {
        spread(&x, &placement, decision->budget, units, n, where);
    }
    free(x.by_name);
    free(x.in_unit);
    ats_sim_placement_free(&placement);
    return good;
}
