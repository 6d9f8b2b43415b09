/* `ats plan`: the work behind it. */
#include "cli/cli.h"
#include "cli/plan.h"
#include "cli/simulate.h"
#include "sim/ats.h"
#include "sim/best.h"
#include "sim/op_time.h"
#include "sim/problem.h"

#include <stdlib.h>
#include <string.h>

/* What is left alone of a device's memory, as the backend does (src/backend/device.c): drivers page
 * when it runs full. */
enum { HEADROOM_DIVISOR = 16 };

static const double US_PER_S = 1e6;

/* ---- the model ---- */

/* Sizes of the types that a cache can have (ggml's blocks of 32): bytes of 32 numbers. */
static const struct {
    const char *name;
    uint64_t bytes_of_32;
} kv_types[] = {
    {"f32", 128}, {"f16", 64},  {"bf16", 64}, {"q8_0", 34},   {"q4_0", 18},
    {"q4_1", 20}, {"q5_0", 22}, {"q5_1", 24}, {"iq4_nl", 18},
};

enum { F16_BYTES_OF_32 = 64 };

/* The description has caches in F16. */
static bool set_kv_type(struct ats_model *m, const char *type, struct ats_error *err)
{
    for (size_t i = 0; i < sizeof kv_types / sizeof kv_types[0]; i++) {
        if (strcmp(type, kv_types[i].name) != 0) {
            continue;
        }
        for (size_t u = 0; u < m->n_units; u++) {
            m->units[u].kv_bytes_per_token =
                m->units[u].kv_bytes_per_token * kv_types[i].bytes_of_32 / F16_BYTES_OF_32;
        }
        return true;
    }
    return ats_fail(
        err, "--kv-type %s is none of f32, f16, bf16, q8_0, q4_0, q4_1, q5_0, q5_1, iq4_nl", type);
}

/* The device of `n` equal ones that llama.cpp gives a layer to; the output head counts as a layer
 * behind the last one. */
static size_t device_of(const struct ats_model *m, const struct ats_model_tensor *t, size_t n)
{
    const size_t n_layers = m->params.n_layers;
    const size_t layer = t->layer < 0 ? n_layers : (size_t)t->layer;
    const size_t device = layer * n / (n_layers + 1);
    return device < n ? device : n - 1;
}

/* The tensors of one device as a model of their own. */
static struct ats_model *part_of_model(const struct ats_model *m, size_t device, size_t n,
                                       struct ats_error *err)
{
    struct ats_model_tensor *tensors = cli_alloc((m->n_tensors + 1) * sizeof(*tensors));
    size_t kept = 0;
    for (size_t i = 0; i < m->n_tensors; i++) {
        const struct ats_model_tensor *t = &m->tensors[i];
        if (t->tied || device_of(m, t, n) != device) { /* tied: made again from the embedding */
            continue;
        }
        tensors[kept] = *t;
        tensors[kept++].name = cli_format("%s", t->name);
    }
    return ats_model_build(&m->params, tensors, kept, err);
}

/* ---- predictions ---- */

static bool bound_of(struct plan *p, const struct plan_part *part, struct ats_error *err)
{
    struct ats_sim_best *best = ats_sim_best_new(&part->setting);
    bool good = best != NULL || ats_fail(err, "out of memory for the physical bound");
    for (int phase = 0; good && phase < ATS_PHASES; phase++) {
        const struct ats_model_pass pass =
            ats_workload_pass(&part->setting, &p->workload, (enum ats_phase)phase);
        struct ats_sim_routing routing;
        struct ats_bound bound = {0};
        good = ats_expected_routing(&part->setting, &pass, &routing) ||
               ats_fail(err, "out of memory for the physical bound");
        good = good && ats_sim_best_pass(best, &pass, &routing, &bound, err);
        p->bound_us[phase] += bound.us;
        ats_expected_free(&routing);
    }
    ats_sim_best_free(best);
    return good;
}

/* Devices run one after another; what the host does once per pass counts once. */
static void add_prediction(struct plan *p, const struct plan_part *part)
{
    const struct ats_prediction *own = &part->decision.candidates[part->decision.chosen].prediction;
    for (int phase = 0; phase < ATS_PHASES; phase++) {
        const struct ats_model_pass pass =
            ats_workload_pass(&part->setting, &p->workload, (enum ats_phase)phase);
        const bool is_first = part == &p->parts[0];
        p->prediction.us[phase] +=
            own->us[phase] - (is_first ? 0 : ats_sim_pass_host_us(&part->setting, &pass));
        p->prediction.splits[phase] += own->splits[phase];
        p->prediction.bytes_in[phase] += own->bytes_in[phase];
        p->prediction.tokens[phase] = own->tokens[phase];
    }
    p->prediction.session_us = p->prediction.us[ATS_PREFILL] * p->workload.prompt_tokens /
                                   p->prediction.tokens[ATS_PREFILL] +
                               p->prediction.us[ATS_DECODE] * p->workload.decode_tokens;
}

double plan_speed(const struct ats_prediction *prediction, enum ats_phase phase)
{
    return prediction->us[phase] > 0 ? prediction->tokens[phase] * US_PER_S / prediction->us[phase]
                                     : 0;
}

/* ---- alternatives ---- */

/* Layers that have any tensor in VRAM, the output head included, and those whose experts have
 * none. */
static void count_layers(const struct plan_part *part, const struct ats_sim_placement *placement,
                         uint32_t *n_vram, uint32_t *n_cpu_moe)
{
    const struct ats_model *m = part->model;
    bool in_vram[ATS_MODEL_MAX_LAYERS + 1] = {false};
    *n_vram = 0;
    *n_cpu_moe = 0;
    for (size_t i = 0; i < m->n_units; i++) {
        const struct ats_model_unit *u = &m->units[i];
        for (uint32_t w = 0; w < u->n_weights; w++) {
            const bool here = placement->tensor[m->weights[u->first_weight + w]];
            in_vram[u->layer < 0 ? m->params.n_layers : (uint32_t)u->layer] |= here;
            *n_cpu_moe += w == 0 && u->role == ATS_ROLE_EXPERTS_DOWN && !here;
        }
    }
    for (uint32_t i = 0; i <= m->params.n_layers; i++) {
        *n_vram += in_vram[i];
    }
}

static bool add_alternative(struct plan *p, const char *policy_name, struct ats_error *err)
{
    const struct plan_part *part = &p->parts[0];
    struct plan_alternative *a = &p->alternatives[p->n_alternatives];
    const char *none;
    const struct ats_sim_policy *policy = ats_sim_policy_find(policy_name, &none, err);
    struct ats_sim_placement placement;
    if (policy == NULL || !ats_sim_placement_init(&part->setting, &placement)) {
        return ats_fail(err, "out of memory for an alternative");
    }
    struct ats_error why;
    bool good = true;
    if (policy->place(&part->setting, NULL, &placement, &why)) { /* else there is no such plan */
        good = ats_predict(&part->setting, &p->workload, policy, &placement, &a->prediction, err);
        a->used_bytes = placement.used_bytes;
        uint32_t n_vram;
        uint32_t n_cpu_moe;
        count_layers(part, &placement, &n_vram, &n_cpu_moe);
        if (strcmp(policy_name, "layers") == 0) {
            snprintf(a->name, sizeof a->name, "llama.cpp -ngl %u", n_vram);
        } else if (strcmp(policy_name, "moe") == 0) {
            snprintf(a->name, sizeof a->name, "llama.cpp --n-cpu-moe %u", n_cpu_moe);
        } else if (strcmp(policy_name, "fit") == 0) {
            snprintf(a->name, sizeof a->name, "llama.cpp --fit");
        } else {
            snprintf(a->name, sizeof a->name, "llama.cpp, CPU only");
        }
        p->n_alternatives++;
    }
    if (policy->forget != NULL) {
        policy->forget(&placement);
    }
    ats_sim_placement_free(&placement);
    return good;
}

/* ---- the whole ---- */

static bool plan_part(struct plan *p, size_t device, struct ats_error *err)
{
    const struct plan_options *o = p->options;
    struct plan_part *part = &p->parts[device];
    part->model = part_of_model(p->model, device, o->devices, err);
    if (part->model == NULL || !set_kv_type(part->model, o->kv_type, err)) {
        return false;
    }
    part->setting = (struct ats_sim_setting){
        .model = part->model,
        .machine = &p->machine,
        .vram_bytes = p->budget,
        .compute_bytes = o->common.compute_bytes,
        .n_ctx = o->common.n_ctx,
        .ubatch = o->common.ubatch,
        .batch = o->common.ubatch > 2048 ? o->common.ubatch : 2048,
        .fit_margin = UINT64_C(1) << 30,
        .mmap = !o->common.no_mmap,
        .seed = 1,
    };
    if (!ats_sim_placement_init(&part->setting, &part->placement)) {
        return ats_fail(err, "out of memory for a placement");
    }
    p->n_parts++;
    if (!ats_decide(&part->setting, &p->workload, ATS_BUDGET_OF_SETTING, &part->placement,
                    &part->decision, err) ||
        !bound_of(p, part, err)) {
        return false;
    }
    add_prediction(p, part);
    return true;
}

static void set_workload(struct plan *p)
{
    const struct plan_options *o = p->options;
    const struct ats_workload usual = ats_workload_default();
    p->workload.decode_tokens = o->common.decode;
    p->workload.prompt_tokens = o->prompt;
    if (!o->has_prompt) {
        const uint32_t room =
            o->common.n_ctx > o->common.decode ? o->common.n_ctx - o->common.decode : 1;
        p->workload.prompt_tokens = usual.prompt_tokens < room ? usual.prompt_tokens : room;
    }
}

bool plan_make(struct plan *p, const struct plan_options *o, struct ats_error *err)
{
    static const char *const policies[] = {"layers", "moe", "fit", "cpu"};
    *p = (struct plan){.options = o};
    p->model = simulate_model(o->common.model, o->common.layers, err);
    if (p->model == NULL || !plan_find_machine(p, err)) {
        return false;
    }
    const uint64_t memory = p->machine.vram_bytes;
    const uint64_t usable = memory - memory / HEADROOM_DIVISOR;
    p->budget = o->common.has_vram ? o->common.vram_bytes : usable;
    if (p->budget > memory) {
        fprintf(stderr, "%s: --vram is more than %s has; planning with what it has less a margin\n",
                o->common.who, p->machine.name);
        p->budget = usable;
    }
    p->headroom = memory - p->budget;
    set_workload(p);
    for (size_t i = 0; i < o->devices; i++) {
        if (!plan_part(p, i, err)) {
            return false;
        }
    }
    /* llama.cpp has no placement over several devices here, and without VRAM none but the CPU */
    bool good = true;
    for (size_t i = 0; good && o->devices == 1 && i < sizeof policies / sizeof policies[0]; i++) {
        const bool needs_vram = strcmp(policies[i], "cpu") != 0;
        good = (needs_vram && p->budget == 0) || add_alternative(p, policies[i], err);
    }
    return good;
}

void plan_free(struct plan *p)
{
    for (size_t i = 0; i < PLAN_MAX_DEVICES; i++) {
        ats_sim_placement_free(&p->parts[i].placement);
        ats_model_free(p->parts[i].model);
    }
    ats_model_free(p->model);
    ats_profile_free(&p->profile);
}

/* ---- questions ---- */

const char *plan_where(const struct plan_part *part, size_t unit)
{
    const struct ats_model_unit *u = &part->model->units[unit];
    const uint64_t state = ats_model_state_bytes(u, part->setting.n_ctx, part->setting.ubatch);
    size_t n[2] = {0, 0};
    for (uint32_t w = 0; w < u->n_weights; w++) {
        const int32_t t = part->model->weights[u->first_weight + w];
        if (part->model->tensors[t].ne[1] > 1) {
            n[part->placement.tensor[t]]++;
        }
    }
    if (state > 0) {
        n[part->placement.unit_state[unit]]++;
    }
    if (u->role == ATS_ROLE_EMBEDDING || n[0] + n[1] == 0) {
        return NULL;
    }
    return n[0] == 0 ? "VRAM" : n[1] == 0 ? "host" : "part";
}

uint64_t plan_unit_bytes(const struct plan_part *part, size_t unit)
{
    const struct ats_model_unit *u = &part->model->units[unit];
    uint64_t bytes = part->placement.unit_state[unit]
                         ? ats_model_state_bytes(u, part->setting.n_ctx, part->setting.ubatch)
                         : 0;
    for (uint32_t w = 0; w < u->n_weights; w++) {
        const int32_t t = part->model->weights[u->first_weight + w];
        bytes += part->placement.tensor[t] ? part->model->tensors[t].bytes : 0;
    }
    return bytes;
}

struct plan_memory plan_memory_of(const struct plan_part *part)
{
    const struct ats_model *m = part->model;
    const struct ats_sim_placement *p = &part->placement;
    struct plan_memory memory = {.staging = p->staging_bytes};
    for (size_t i = 0; i < m->n_units; i++) {
        const struct ats_model_unit *u = &m->units[i];
        const uint64_t state = ats_model_state_bytes(u, part->setting.n_ctx, part->setting.ubatch);
        memory.state += p->unit_state[i] ? state : 0;
        memory.host_state += p->unit_state[i] ? 0 : state;
        for (uint32_t w = 0; w < u->n_weights && u->role != ATS_ROLE_EMBEDDING; w++) {
            const int32_t t = m->weights[u->first_weight + w];
            memory.weights += p->tensor[t] ? m->tensors[t].bytes : 0;
            memory.host_weights += !p->tensor[t] || p->on_both[t] ? m->tensors[t].bytes : 0;
        }
    }
    const bool is_used = memory.weights + memory.state > 0;
    memory.compute = is_used ? ats_sim_compute_bytes(&part->setting, p) : 0;
    memory.staging = is_used ? memory.staging : 0;
    const uint64_t used = memory.weights + memory.state + memory.compute + memory.staging;
    memory.free = part->setting.vram_bytes > used ? part->setting.vram_bytes - used : 0;
    return memory;
}

bool plan_add_reason(const struct plan *p, const struct plan_part *part, enum ats_model_role role,
                     struct plan_reason *sum)
{
    struct ats_sim_problem problem;
    if (!ats_sim_problem_make(&part->setting, &p->workload, &part->placement, &problem)) {
        return false;
    }
    for (size_t i = 0; i < problem.n; i++) {
        const struct ats_solve_unit *unit = &problem.units[i];
        if (part->model->units[i].role != role || unit->bytes == 0) {
            continue;
        }
        const uint64_t in_vram = plan_unit_bytes(part, i);
        sum->bytes += unit->bytes;
        sum->vram_bytes += in_vram < unit->bytes ? in_vram : unit->bytes;
        for (int phase = 0; phase < ATS_PHASES; phase++) {
            sum->saved_us[phase] += unit->us[phase][ATS_HOST] - unit->us[phase][ATS_ACCEL];
        }
    }
    ats_sim_problem_free(&problem);
    return true;
}
