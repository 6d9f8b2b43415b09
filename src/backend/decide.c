#include "backend/decide.h"

#include "backend/machine_profile.h"
#include "backend/promotion.h"
#include "backend/residency.h"
#include "backend/transfer.h"
#include "backend/unplaced.h"
#include "base/parse.h"
#include "bind/family.h"
#include "model/infer.h"
#include "plan/placement.h"
#include "plan/staging.h"
#include "profile/predict.h"
#include "sim/decide.h"

#include <stdlib.h>
#include <string.h>

/* ---- rates ---- */

/* Whether the graph brings weights of layers: a model is being loaded, not a cache or an adapter
 * for one that is there. */
static bool brings_layers(const struct ats_description *d)
{
    for (size_t r = 0; r < d->graph.n_roots; r++) {
        const struct ats_record *record = d->locations[r].record;
        if (record != NULL && record->home == 0 && atomic_load(&record->buffer->is_weights) &&
            ats_layer_of(record->as_made.name) >= 0) {
            return true;
        }
    }
    return false;
}

/* Of the graph's compute buffers that have no VRAM yet. */
static size_t compute_bytes(const struct ats_device *device, const struct ats_description *d)
{
    size_t bytes = 0;
    for (const struct ats_buffer *b = device->buffers; b != NULL; b = b->next) {
        bool used = false;
        for (size_t r = 0; r < d->graph.n_roots && !used; r++) {
            used = d->locations[r].buffer == b && d->locations[r].record == NULL;
        }
        bytes += used && b->mirror == NULL ? b->size : 0;
    }
    return bytes;
}

/* Rules that are there for tests ask no machine. */
static bool wants_rates(const struct ats_device *device)
{
    switch (device->config->rule.kind) {
    case ATS_RULE_HOST:
    case ATS_RULE_RANDOM:
        return false;
    case ATS_RULE_AUTO:
    case ATS_RULE_FILL:
    case ATS_RULE_VRAM:
    case ATS_RULE_TABLE:
        break;
    }
    return device->config->use_profile && (device->config->profile != NULL || device->keeps_time);
}

void ats_decide_rates(struct ats_stream *stream, const struct ats_description *description)
{
    enum { MOST_TRIES = 2 };
    struct ats_device *device = stream->device;
    if (device->profile != NULL || device->profile_tries == MOST_TRIES || !wants_rates(device) ||
        device->vram_budget == 0 || !brings_layers(description) ||
        ats_unplaced_bytes(device, description) + compute_bytes(device, description) <=
            ats_device_vram_left(device)) {
        return;
    }
    device->profile_tries++;
    struct ats_profile *profile = calloc(1, sizeof(*profile));
    if (profile == NULL || !ats_machine_profile_get(device->accel, stream->cpu.n_threads,
                                                    device->config->profile, profile)) {
        free(profile);
        return;
    }
    device->profile = profile;
    device->rates = ats_profile_plan_rates(profile);
    device->epoch++; /* graphs that were described by other rates are described again */
}

/* ---- describing the model ---- */

static bool add_tensor(const struct ats_record *record, struct ats_model_tensor *tensor)
{
    const struct ggml_tensor *made = &record->as_made;
    *tensor = (struct ats_model_tensor){.name = strdup(made->name),
                                        .type_name = ggml_type_name(made->type),
                                        .family = ats_family_of(made->type),
                                        .bytes = record->bytes};
    for (int d = 0; d < 4; d++) {
        tensor->ne[d] = (uint64_t)made->ne[d];
    }
    return tensor->name != NULL;
}

/* State is borrowed by the clues, names included. */
static void add_state(const struct ats_record *record, struct ats_model_tensor *tensor)
{
    const struct ggml_tensor *made = &record->as_made;
    *tensor =
        (struct ats_model_tensor){.name = (char *)(uintptr_t)made->name, .bytes = record->bytes};
    for (int d = 0; d < 4; d++) {
        tensor->ne[d] = (uint64_t)made->ne[d];
    }
}

static uint32_t experts_used(const struct ggml_cgraph *cgraph)
{
    for (int i = 0; i < cgraph->n_nodes; i++) {
        if (cgraph->nodes[i]->op == GGML_OP_MUL_MAT_ID) {
            return (uint32_t)cgraph->nodes[i]->src[2]->ne[0];
        }
    }
    return 0;
}

static struct ats_model *describe_model(const struct ats_unplaced *units,
                                        const struct ggml_cgraph *cgraph, uint32_t *n_ctx,
                                        struct ats_error *err)
{
    struct ats_model_tensor *tensors = calloc(units->n + 1, sizeof(*tensors));
    struct ats_model_tensor *state = calloc(units->n + 1, sizeof(*state));
    struct ats_model_clues clues = {.state = state, .n_used = experts_used(cgraph)};
    struct ats_model *model = NULL;
    size_t n = 0;
    bool good = tensors != NULL && state != NULL;
    for (size_t i = 0; good && i < units->n; i++) {
        if (units->units[i].kind == ATS_UNIT_STATE) {
            add_state(units->records[i], &state[clues.n_state++]);
        } else {
            good = add_tensor(units->records[i], &tensors[n++]);
        }
    }
    if (good) {
        model = ats_model_infer(tensors, n, &clues, n_ctx, err);
    } else {
        ats_fail(err, "out of memory for the description of a model");
        if (tensors != NULL) {
            ats_model_free_tensors(tensors, n);
        }
    }
    free(state);
    return model;
}

/* ---- homes ---- */

/* llama.cpp's defaults, where nothing has told them. */
enum { UBATCH = 512, BATCH = 2048, CONTEXT = 4096 };

static uint32_t ubatch_of(const struct ats_unplaced *units)
{
    long long tokens = 0;
    for (size_t i = 0; i < units->n; i++) {
        const long long most = atomic_load(&units->records[i]->buffer->pass_tokens);
        tokens = most > tokens ? most : tokens;
    }
    return tokens > 1 && tokens <= UINT32_MAX ? (uint32_t)tokens : UBATCH;
}

static void say(const struct ats_device *device, const struct ats_decision *decision)
{
    const size_t own = decision->keeps_fill ? decision->fill : decision->chosen;
    const struct ats_candidate *c = &decision->candidates[device->slices ? decision->n - 1 : own];
    ats_log_info(
        "%s: placed for this machine: %s%s; predicted %.4g tokens/s of prompts in passes of "
        "%u tokens, %.3g of answers\n",
        device->name, c->name,
        decision->staging.places < ATS_STAGING_PLACES ? ", with less staging memory" : "",
        1e6 * c->prediction.tokens[ATS_PREFILL] / c->prediction.us[ATS_PREFILL],
        (unsigned)c->prediction.tokens[ATS_PREFILL], 1e6 / c->prediction.us[ATS_DECODE]);
}

/* A stream that has made plans keeps what these use. */
static bool may_resize(const struct ats_stream *stream)
{
    return stream->n_built == 0;
}

/* Takes staging memory anew, if it is to be used in another way. */
static bool set_staging(struct ats_stream *stream, const struct ats_description *description,
                        struct ats_staging_way way, struct ats_error *err)
{
    struct ats_device *device = stream->device;
    const struct ats_staging_way *own = &stream->staging.way;
    if (own->places != way.places || own->whole != way.whole) {
        device->staging_way = way;
        ats_staging_release(stream);
        ats_promotion_reserve(stream, description);
    }
    return stream->staging.buffer != NULL ||
           ats_fail(err, "the accelerator refused staging memory of another size");
}

/* Sizes that a prediction goes by are estimates. */
static bool fits_budget(const struct ats_device *device, const struct ats_unplaced *units,
                        const struct ats_decision *decision, struct ats_error *err)
{
    size_t bytes = 0;
    for (size_t i = 0; i < units->n; i++) {
        bytes += units->where[i] != ATS_WHERE_HOST ? units->units[i].bytes : 0;
    }
    return decision->slices_win || decision->keeps_fill || bytes <= ats_device_vram_left(device) ||
           ats_fail(err, "what was decided takes %zu bytes of VRAM, and %zu are left", bytes,
                    ats_device_vram_left(device));
}

static bool decide(struct ats_stream *stream, const struct ats_description *description,
                   struct ats_unplaced *units, const struct ats_model *model, uint32_t n_ctx,
                   struct ats_error *err)
{
    struct ats_device *device = stream->device;
    const struct ats_sim_overheads overheads = ats_sim_overheads_default();
    const struct ats_sim_machine machine = ats_sim_machine_of_profile(device->profile, &overheads);
    const size_t taken = device->vram_used - stream->staging.size;
    const uint32_t ubatch = ubatch_of(units);
    const struct ats_sim_setting setting = {
        .model = model,
        .machine = &machine,
        .vram_bytes = device->vram_budget,
        .compute_bytes = taken > 0 ? taken : 1, /* known, so not to be estimated */
        .n_ctx = n_ctx > 0 ? n_ctx : CONTEXT,
        .ubatch = ubatch,
        .batch = ubatch > BATCH ? ubatch : BATCH,
        .seed = 1,
        .staging = may_resize(stream) ? (struct ats_staging_way){0} : stream->staging.way,
        .whole_experts = device->config->experts != ATS_EXPERTS_AUTO || !ats_device_can_pin(device),
    };
    const struct ats_workload workload = device->config->session;
    struct ats_decision decision;
    if (!ats_decide_units(&setting, &workload, ats_device_vram_left(device) + stream->staging.size,
                          units->units, units->n, units->where, &decision, err)) {
        return false;
    }
    if (!set_staging(stream, description, decision.staging, err) ||
        !fits_budget(device, units, &decision, err)) {
        return false;
    }
    device->is_decided = true;
    device->slices = decision.slices_win;
    const bool by_rule = device->slices || decision.keeps_fill;
    for (size_t i = 0; i < units->n && !by_rule; i++) {
        units->records[i]->is_decided = true;
        units->records[i]->decided = units->where[i];
    }
    say(device, &decision);
    return true;
}

/* Whether the plan file fits beside staging memory as it is. */
static bool plan_fits(const struct ats_device *device, const struct ats_description *description)
{
    struct ats_unplaced units;
    struct ats_error err;
    size_t bytes = 0;
    const bool fits =
        ats_unplaced_list(device, description, true, &units) &&
        ats_place(units.units, units.n, ats_device_vram_left(device), &device->config->rule,
                  units.where, &err) &&
        ats_place_shortfall(units.units, units.n, &device->config->rule, units.where, &bytes) == 0;
    ats_unplaced_free(&units);
    return fits;
}

/* A plan file says how staging memory is to be used; one that does not may have been made with less
 * of it. */
static void make_room_for_plan(struct ats_stream *stream, const struct ats_description *description)
{
    const struct ats_device *device = stream->device;
    const struct ats_placement_table *table = device->config->rule.table;
    struct ats_error err;
    if (table->staging.places > 0 && may_resize(stream)) {
        set_staging(stream, description, table->staging, &err);
    }
    if (stream->staging.buffer == NULL && may_resize(stream)) { /* there is no room for that */
        set_staging(stream, description, (struct ats_staging_way){.places = ATS_STAGING_PLACES},
                    &err);
    }
    const struct ats_staging_way usual = stream->staging.way;
    if (stream->staging.buffer == NULL || plan_fits(device, description) || !may_resize(stream) ||
        stream->staging.way.places == ATS_STAGING_FEW_PLACES) {
        return;
    }
    set_staging(stream, description, (struct ats_staging_way){.places = ATS_STAGING_FEW_PLACES},
                &err);
    if (plan_fits(device, description)) {
        ats_log_info("%s: less staging memory, as the plan %s needs the VRAM\n", device->name,
                     device->config->rule.table->source);
    } else {
        set_staging(stream, description, usual, &err);
    }
}

void ats_decide_homes(struct ats_stream *stream, const struct ats_description *description,
                      const struct ggml_cgraph *cgraph)
{
    struct ats_device *device = stream->device;
    if (!brings_layers(description)) {
        return;
    }
    device->is_decided = false; /* for this model */
    device->slices = false;
    if (device->config->rule.kind == ATS_RULE_TABLE && stream->staging.buffer != NULL) {
        make_room_for_plan(stream, description);
        return;
    }
    if (device->config->rule.kind != ATS_RULE_AUTO || device->profile == NULL ||
        stream->staging.buffer == NULL || device->config->experts == ATS_EXPERTS_SLICES) {
        return;
    }
    struct ats_unplaced units;
    struct ats_error err = {{0}};
    uint32_t n_ctx = 0;
    bool good = ats_unplaced_list(device, description, true, &units) ||
                ats_fail(&err, "out of memory for a placement");
    struct ats_model *model = good ? describe_model(&units, cgraph, &n_ctx, &err) : NULL;
    good = model != NULL && decide(stream, description, &units, model, n_ctx, &err);
    ats_model_free(model);
    if (!good) {
        ats_log_warn("%s: placed by the rule fill: %s\n", device->name, err.text);
    }
    ats_unplaced_free(&units);
}
