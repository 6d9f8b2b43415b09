#include "sim/problem.h"

#include "sim/op_time.h"
#include "sim/pieces.h"

#include <math.h>
#include <stdlib.h>

/* Tensors begin at multiples of this in VRAM, as on ggml's devices. */
enum { ALIGNMENT = 128 };

enum { VALUE_BYTES = 4 };

/* By how much the first layer to be placed seems to take longer on the host, so that of layers that
 * are alike the right ones are placed; beyond what layers of one kind differ by, and far below what
 * kinds of units differ by. */
static const double SPREAD = 0.02;

/* GB/s in bytes per microsecond */
static const double BYTES_PER_US = 1e3;

struct maker {
    const struct ats_sim_setting *setting;
    const struct ats_model *model;
    struct ats_model_pass passes[ATS_PHASES];
    struct ats_sim_routing routing[ATS_PHASES];
    const struct ats_sim_placement *reserved;
    uint64_t most_streamed;      /* bytes of a weight or piece */
    bool was_on_cpu[ATS_PHASES]; /* the unit before is computed by the CPU if it is on the host */
};

static uint64_t padded(uint64_t bytes)
{
    return (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
}

static bool is_matrix(const struct ats_model_tensor *t)
{
    return t->ne[1] > 1;
}

/* What the unit takes in VRAM besides norms and biases. */
static uint64_t matrix_bytes(const struct ats_model *m, const struct ats_model_unit *u)
{
    uint64_t bytes = 0;
    for (uint32_t w = 0; w < u->n_weights; w++) {
        const struct ats_model_tensor *t = &m->tensors[m->weights[u->first_weight + w]];
        bytes += is_matrix(t) ? padded(t->bytes) : 0;
    }
    return bytes;
}

static double op_times(const struct maker *k, const struct ats_model_unit *u, int phase,
                       enum ats_side side)
{
    double us = 0;
    for (uint32_t o = u->first_op; o < u->first_op + u->n_ops; o++) {
        struct ats_sim_action action;
        if (ats_sim_op_action(k->setting, u, &k->model->ops[o], &k->passes[phase],
                              &k->routing[phase], side, &action)) {
            us += action.us;
        }
    }
    return us;
}

/* The time to bring the unit's matrices over for a pass, from pinned memory, where the backend's
 * weights are, at the rates that the simulated copies have (sim/ats.c); infinity if that cannot be.
 */
static double stream_us(const struct maker *k, const struct ats_model_unit *u)
{
    double us = 0;
    for (uint32_t w = 0; w < u->n_weights; w++) {
        const int32_t tensor = k->model->weights[u->first_weight + w];
        const struct ats_model_tensor *t = &k->model->tensors[tensor];
        uint64_t at_once = 0;
        ats_sim_pieces_of(k->model, u, tensor, k->reserved->staging.whole, &at_once);
        if (is_matrix(t) && (t->layer < 0 || at_once > k->most_streamed)) {
            return INFINITY;
        }
        us += is_matrix(t)
                  ? ats_cost_copy_us(&k->setting->machine->device, (double)t->bytes, false, true)
                  : 0;
    }
    return us;
}

/* Whether the residual stream is needed behind the unit and is not what it reads itself. */
static bool goes_past(const struct ats_model_unit *u)
{
    return u->role != ATS_ROLE_NORM && u->role != ATS_ROLE_OUTPUT_NORM &&
           u->role != ATS_ROLE_OUTPUT;
}

static double change_us(const struct maker *k, const struct ats_model_unit *u, int phase)
{
    const struct ats_sim_machine *m = k->setting->machine;
    const double rows = ats_model_rows(u, &k->passes[phase]);
    const double stream = goes_past(u) ? (double)k->model->params.n_embd * VALUE_BYTES : 0;
    const double bytes = rows * ((double)u->in_bytes_per_token + stream);
    const double gbps = fmin(m->device.pageable_gbps, m->device.h2d_gbps);
    return m->overheads.split_us + m->overheads.sync_us / 2 + m->device.copy_latency_us +
           bytes / (gbps * BYTES_PER_US);
}

static void describe(struct maker *k, const struct ats_model_unit *u, struct ats_solve_unit *out)
{
    const uint64_t state = ats_model_state_bytes(u, k->setting->n_ctx, k->setting->ubatch);
    *out = (struct ats_solve_unit){.name = u->name, .sides = ATS_ON_BOTH};
    if (u->role == ATS_ROLE_EMBEDDING) {
        out->sides = ATS_ON(ATS_HOST);
        return;
    }
    out->bytes = matrix_bytes(k->model, u) + (state > 0 ? padded(state) : 0);
    for (int phase = 0; phase < ATS_PHASES; phase++) {
        const double cpu_us = op_times(k, u, phase, ATS_HOST);
        const double accel_us = op_times(k, u, phase, ATS_ACCEL);
        const double copied_us =
            phase == ATS_PREFILL && state == 0 ? fmax(stream_us(k, u), accel_us) : INFINITY;
        const bool is_on_cpu = cpu_us <= copied_us;
        out->us[phase][ATS_ACCEL] = accel_us;
        out->us[phase][ATS_HOST] = is_on_cpu ? cpu_us : copied_us;
        if (is_on_cpu || k->was_on_cpu[phase]) {
            out->change_us[phase] = change_us(k, u, phase);
        }
        k->was_on_cpu[phase] = is_on_cpu;
    }
}

static void count_vectors(const struct ats_model *m, struct ats_sim_problem *p)
{
    for (size_t i = 0; i < m->n_units; i++) {
        const struct ats_model_unit *u = &m->units[i];
        for (uint32_t w = 0; w < u->n_weights && u->role != ATS_ROLE_EMBEDDING; w++) {
            const struct ats_model_tensor *t = &m->tensors[m->weights[u->first_weight + w]];
            p->vector_bytes += is_matrix(t) ? 0 : padded(t->bytes);
        }
    }
}

bool ats_sim_problem_make(const struct ats_sim_setting *s, const struct ats_workload *workload,
                          const struct ats_sim_placement *reserved, struct ats_sim_problem *p)
{
    struct maker k = {.setting = s,
                      .model = s->model,
                      .reserved = reserved,
                      .most_streamed = (reserved->staging_bytes - reserved->scratch_bytes) / 2};
    *p = (struct ats_sim_problem){.units = calloc(s->model->n_units + 1, sizeof(p->units[0])),
                                  .n = s->model->n_units};
    bool good = p->units != NULL;
    for (int phase = 0; phase < ATS_PHASES; phase++) {
        k.passes[phase] = ats_workload_pass(s, workload, (enum ats_phase)phase);
        good = good && ats_expected_routing(s, &k.passes[phase], &k.routing[phase]);
        const uint32_t tokens =
            phase == ATS_DECODE ? workload->decode_tokens : workload->prompt_tokens;
        p->passes[phase] = (double)tokens / k.passes[phase].n_tokens;
        k.was_on_cpu[phase] = true; /* the embedding */
    }
    for (size_t i = 0; good && i < p->n; i++) {
        describe(&k, &s->model->units[i], &p->units[i]);
    }
    count_vectors(s->model, p);
    for (int phase = 0; phase < ATS_PHASES; phase++) {
        ats_expected_free(&k.routing[phase]);
    }
    if (!good) {
        ats_sim_problem_free(p);
    }
    return good;
}

void ats_sim_problem_free(struct ats_sim_problem *p)
{
    free(p->units);
    *p = (struct ats_sim_problem){0};
}

/* ---- solving ---- */

/* Sides of units become places of tensors and state. */
static void spread(const struct ats_model *m, const struct ats_sim_listing *l,
                   const enum ats_side *sides, bool vectors_fit, enum ats_where *where)
{
    size_t at = 0;
    for (size_t i = 0; i < m->n_units; i++) {
        const struct ats_model_unit *u = &m->units[i];
        const enum ats_where own = sides[i] == ATS_ACCEL ? ATS_WHERE_VRAM : ATS_WHERE_HOST;
        const enum ats_where vector = !vectors_fit            ? ATS_WHERE_HOST
                                      : own == ATS_WHERE_VRAM ? ATS_WHERE_VRAM
                                                              : ATS_WHERE_BOTH;
        for (uint32_t w = 0; w < u->n_weights && u->role != ATS_ROLE_EMBEDDING; w++) {
            where[at] = l->units[at].is_vector ? vector : own;
            at++;
        }
        if (at < l->n && l->source[at] == m->n_tensors + i) {
            where[at++] = own;
        }
    }
}

/* From 1 for the first layer to be placed to 0 for the last: multiples of the golden ratio, modulo
 * one, lie evenly however many are taken (the three-gap theorem). The order of the rule `fill`. */
static double spread_share(int32_t layer, uint32_t n_layers)
{
    const uint32_t rank = (n_layers - 1 - (uint32_t)layer) * UINT32_C(2654435769);
    return layer < 0 ? 1 : 1 - rank / 4294967296.0;
}

static void lean(const struct ats_sim_problem *p, const struct ats_model *model,
                 const struct ats_leaning *leaning, struct ats_solve_unit *units,
                 struct ats_solve_problem *problem)
{
    for (size_t i = 0; i < p->n; i++) {
        const double share = spread_share(model->units[i].layer, model->params.n_layers);
        units[i] = p->units[i];
        for (int phase = 0; phase < ATS_PHASES; phase++) {
            units[i].change_us[phase] *= leaning->change;
            units[i].us[phase][ATS_HOST] *= leaning->spreads ? 1 + SPREAD * share : 1;
        }
    }
    for (int phase = 0; phase < ATS_PHASES; phase++) {
        problem->weight[phase] = p->passes[phase] * leaning->weight[phase];
    }
}

bool ats_sim_problem_solve(const struct ats_sim_problem *p, const struct ats_model *model,
                           const struct ats_leaning *leaning, uint64_t budget,
                           const struct ats_sim_listing *l, enum ats_where *where,
                           struct ats_solution *solution, struct ats_error *err)
{
    struct ats_solve_unit *units = calloc(p->n + 1, sizeof(units[0]));
    enum ats_side *sides = calloc(p->n + 1, sizeof(sides[0]));
    if (units == NULL || sides == NULL) {
        free(units);
        free(sides);
        return ats_fail(err, "out of memory for a placement");
    }
    const bool vectors_fit = p->vector_bytes <= budget;
    struct ats_solve_problem problem = {
        .units = units, .n = p->n, .budget = vectors_fit ? budget - p->vector_bytes : budget};
    lean(p, model, leaning, units, &problem);
    const bool good = ats_solve(&problem, sides, solution, err);
    if (good) {
        spread(model, l, sides, vectors_fit, where);
    }
    free(units);
    free(sides);
    return good;
}
