#include "sim/splits.h"

#include "plan/side.h"
#include "sim/op_time.h"

#include <stdlib.h>

/* Bytes of an activation, a routing id, a position, a row number of the cache. */
enum { VALUE_BYTES = 4, ROW_ID_BYTES = 8 };

enum rule { STOCK, CPU_ONLY };

static const signed char UNDECIDED = -1;

struct emitter {
    const struct ats_sim_setting *setting;
    const struct ats_model *model;
    const struct ats_sim_placement *placement;
    const struct ats_model_pass *pass;
    const struct ats_sim_routing *routing;
    struct ats_sim_schedule *schedule;
    enum rule rule;
    signed char *sides; /* by operator of the model */
    enum ats_side side; /* of the split at hand */
    bool fresh;         /* no operator yet in this split */
    bool has_inputs;    /* the GPU has positions, mask and row numbers */
    int32_t unit;
};

/* ---- sides ---- */

/* The tensor that decides where an operator runs, or ATS_NO_TENSOR: its weight; for norms and
 * linear attention the first of the unit. The sinks of attention are too small to count. */
static int32_t deciding_tensor(const struct ats_model *m, const struct ats_model_unit *u,
                               const struct ats_model_op *op)
{
    const bool by_unit = u->role == ATS_ROLE_NORM || u->role == ATS_ROLE_OUTPUT_NORM ||
                         u->role == ATS_ROLE_OTHER ||
                         (u->role == ATS_ROLE_ATTENTION && u->recurrent_bytes > 0);
    if (op->tensor != ATS_NO_TENSOR || !by_unit || u->n_weights == 0) {
        return op->tensor;
    }
    return m->weights[u->first_weight];
}

static bool offloads(const struct emitter *e, const struct ats_model_unit *u,
                     const struct ats_model_op *op)
{
    const uint64_t rows = (uint64_t)ats_model_rows(u, e->pass) * op->rows_per_token;
    return e->rule == STOCK && rows >= ATS_SIM_OFFLOAD_ROWS;
}

static bool has_state(const struct ats_model_unit *u)
{
    return u->kv_bytes_per_token > 0 || u->recurrent_bytes > 0;
}

static signed char decide(const struct emitter *e, const struct ats_model_unit *u,
                          const struct ats_model_op *op)
{
    if (e->rule == CPU_ONLY || u->role == ATS_ROLE_EMBEDDING) {
        return ATS_HOST;
    }
    const int32_t t = deciding_tensor(e->model, u, op);
    if (t == ATS_NO_TENSOR) {
        return UNDECIDED;
    }
    return e->placement->tensor[t] || offloads(e, u, op) ? ATS_ACCEL : ATS_HOST;
}

/* Whether the operator comes behind one that the CPU must run: the write to a cache in host
 * memory. */
static bool is_behind_host_write(const struct emitter *e, size_t unit,
                                 const struct ats_model_op *op)
{
    const struct ats_model_unit *u = &e->model->units[unit];
    return op->kind == ATS_COST_ATTENTION && u->kv_bytes_per_token > 0 &&
           !e->placement->unit_state[unit];
}

static void spread_down(struct emitter *e)
{
    bool accel = false;
    for (size_t i = 0; i < e->model->n_units; i++) {
        const struct ats_model_unit *u = &e->model->units[i];
        for (uint32_t o = u->first_op; o < u->first_op + u->n_ops; o++) {
            accel = accel && !is_behind_host_write(e, i, &e->model->ops[o]);
            if (e->sides[o] == UNDECIDED && accel) {
                e->sides[o] = ATS_ACCEL;
            }
            accel = e->sides[o] == UNDECIDED ? accel : e->sides[o] == ATS_ACCEL;
        }
    }
}

static void spread_up(struct emitter *e)
{
    bool accel = false;
    for (size_t i = e->model->n_units; i-- > 0;) {
        const struct ats_model_unit *u = &e->model->units[i];
        for (uint32_t o = u->first_op + u->n_ops; o-- > u->first_op;) {
            if (e->sides[o] == UNDECIDED && accel) {
                e->sides[o] = ATS_ACCEL;
            }
            accel = e->sides[o] == UNDECIDED ? accel : e->sides[o] == ATS_ACCEL;
            accel = accel && !is_behind_host_write(e, i, &e->model->ops[o]);
        }
    }
}

static void choose_sides(struct emitter *e)
{
    for (size_t i = 0; i < e->model->n_units; i++) {
        const struct ats_model_unit *u = &e->model->units[i];
        for (uint32_t o = u->first_op; o < u->first_op + u->n_ops; o++) {
            e->sides[o] = decide(e, u, &e->model->ops[o]);
        }
    }
    spread_down(e);
    spread_up(e);
    for (size_t o = 0; o < e->model->n_ops; o++) {
        if (e->sides[o] == UNDECIDED) {
            e->sides[o] = ATS_HOST;
        }
    }
}

/* ---- actions ---- */

static void add(struct emitter *e, struct ats_sim_action action)
{
    action.unit = e->unit;
    ats_sim_add(e->schedule, &action);
}

static void begin_split(struct emitter *e, enum ats_side side)
{
    add(e, (struct ats_sim_action){.kind = ATS_SIM_SPLIT});
    add(e, (struct ats_sim_action){.kind = ATS_SIM_HOST,
                                   .us = e->setting->machine->overheads.split_us});
    e->side = side;
    e->fresh = true;
}

static void synchronise(struct emitter *e)
{
    add(e, (struct ats_sim_action){.kind = ATS_SIM_SYNC,
                                   .queue = ATS_SIM_COMPUTE_STREAM,
                                   .after = ATS_SIM_ALL,
                                   .us = e->setting->machine->overheads.sync_us});
}

/* An input of a split, or the result: the host waits for the GPU, then for the copy. */
static void copy(struct emitter *e, double bytes, enum ats_timeline_direction direction,
                 bool pageable)
{
    synchronise(e);
    add(e, (struct ats_sim_action){.kind = ATS_SIM_COPY,
                                   .queue = ATS_SIM_COMPUTE_STREAM,
                                   .bytes = bytes,
                                   .direction = direction,
                                   .pageable = pageable,
                                   .blocking = true});
}

static void compute(struct emitter *e, const struct ats_model_unit *u,
                    const struct ats_model_op *op, enum ats_side side)
{
    struct ats_sim_action action;
    if (ats_sim_op_action(e->setting, u, op, e->pass, e->routing, side, &action)) {
        add(e, action);
    }
}

/* ---- inputs ---- */

/* Positions, row numbers of keys and of values, mask, rows to output: what the user gives to a
 * graph. */
static void copy_user_inputs(struct emitter *e, const struct ats_model_unit *u)
{
    const double rows = e->pass->n_tokens;
    copy(e, rows * VALUE_BYTES, ATS_TO_DEVICE, false);
    copy(e, rows * ROW_ID_BYTES, ATS_TO_DEVICE, false);
    copy(e, rows * ROW_ID_BYTES, ATS_TO_DEVICE, false);
    copy(e, rows * (double)ats_model_cache_rows(u, e->pass) * VALUE_BYTES, ATS_TO_DEVICE, false);
    copy(e, e->pass->n_outputs * (double)VALUE_BYTES, ATS_TO_DEVICE, false);
    e->has_inputs = true;
}

/* The activations that cross when an operator runs on another side than the one before. */
static void cross(struct emitter *e, const struct ats_model_unit *u, bool first, enum ats_side side)
{
    const enum ats_timeline_direction direction = side == ATS_HOST ? ATS_TO_HOST : ATS_TO_DEVICE;
    const double rows = ats_model_rows(u, e->pass);
    const double stream = (double)e->model->params.n_embd * VALUE_BYTES;
    begin_split(e, side);
    copy(e, rows * (first ? (double)u->in_bytes_per_token : stream), direction, false);
    if (u->n_experts > 0 && side == ATS_HOST) {
        /* the ids are a view of all experts in order of preference */
        copy(e, rows * u->n_experts * VALUE_BYTES, direction, false);
    }
}

/* A weight comes over for this pass. */
static void copy_weight(struct emitter *e, const struct ats_model_unit *u, int32_t tensor,
                        bool is_experts, bool *has_ids)
{
    const double latency_us = e->setting->machine->device.copy_latency_us;
    const struct ats_model_tensor *t = &e->model->tensors[tensor];
    const bool pageable = e->setting->mmap;
    if (!e->fresh) {
        begin_split(e, ATS_ACCEL);
    }
    if (!is_experts) {
        copy(e, (double)t->bytes, ATS_TO_DEVICE, pageable);
        return;
    }
    synchronise(e);
    if (!*has_ids) {
        copy(e, (double)ats_model_rows(u, e->pass) * u->n_experts * VALUE_BYTES, ATS_TO_HOST, true);
        *has_ids = true;
    }
    const int32_t layer = u->layer < 0 ? 0 : u->layer;
    const double groups = e->routing->groups[layer];
    add(e, (struct ats_sim_action){.kind = ATS_SIM_COPY,
                                   .queue = ATS_SIM_COMPUTE_STREAM,
                                   .us = groups > 1 ? (groups - 1) * latency_us : 0,
                                   .bytes = e->routing->distinct[layer] * (double)t->bytes /
                                            u->n_experts,
                                   .direction = ATS_TO_DEVICE,
                                   .pageable = pageable,
                                   .blocking = pageable});
}

/* Linear attention on the GPU over a state in host memory. The CPU takes the sequence's state out
 * of all; the convolution's part of it comes back as a view of the whole input, which is copied
 * whole. */
static void fetch_recurrent(struct emitter *e, const struct ats_model_unit *u)
{
    const struct ats_model_params *p = &e->model->params;
    const double channels = p->inner_size + 2.0 * p->n_groups * p->state_size;
    const double past = p->conv_kernel > 0 ? p->conv_kernel - 1.0 : 0;
    const double conv = past * channels * VALUE_BYTES;
    begin_split(e, ATS_HOST);
    begin_split(e, ATS_HOST);
    copy(e, conv + ats_model_rows(u, e->pass) * channels * VALUE_BYTES, ATS_TO_HOST, false);
    begin_split(e, ATS_ACCEL);
    copy(e, conv, ATS_TO_DEVICE, false);
    copy(e, (double)u->recurrent_bytes - conv, ATS_TO_DEVICE, false);
}

/* Attention on the GPU over a cache in host memory. New keys and values are written there by the
 * CPU, then all that attention reads comes over. */
static void fetch_state(struct emitter *e, const struct ats_model_unit *u)
{
    if (u->recurrent_bytes > 0) {
        fetch_recurrent(e, u);
        return;
    }
    const double rows = ats_model_rows(u, e->pass);
    const double written = rows * (double)u->kv_bytes_per_token;
    begin_split(e, ATS_HOST);
    copy(e, written, ATS_TO_HOST, false); /* F32 of half of it */
    copy(e, written, ATS_TO_HOST, false);
    const struct ats_op_shape shape = {.kind = ATS_COST_BYTES, .io_bytes = 3 * written};
    add(e, (struct ats_sim_action){
               .kind = ATS_SIM_CPU,
               .us = ats_sim_machine_op_us(e->setting->machine, ATS_HOST, NULL, &shape),
               .bytes = 3 * written});
    begin_split(e, ATS_ACCEL);
    const double read = (double)ats_model_cache_rows(u, e->pass) * (double)u->kv_bytes_per_token;
    copy(e, read / 2, ATS_TO_DEVICE, true);
    copy(e, read / 2, ATS_TO_DEVICE, true);
}

static void return_state(struct emitter *e, const struct ats_model_unit *u)
{
    if (u->recurrent_bytes > 0) {
        begin_split(e, ATS_HOST);
        copy(e, (double)u->recurrent_bytes, ATS_TO_HOST, false);
        begin_split(e, ATS_ACCEL);
    }
}

/* ---- a pass ---- */

static bool is_op_weight(const struct emitter *e, const struct ats_model_unit *u, int32_t tensor)
{
    for (uint32_t o = u->first_op; o < u->first_op + u->n_ops; o++) {
        if (e->model->ops[o].tensor == tensor) {
            return true;
        }
    }
    return false;
}

/* Scales, biases and other weights that are no matrix come over too, each on its own. */
static void copy_small_weights(struct emitter *e, const struct ats_model_unit *u)
{
    /* the sinks of attention are no reason to end a split */
    const bool are_inputs = u->role == ATS_ROLE_ATTENTION && u->recurrent_bytes == 0;
    bool none = true;
    for (uint32_t w = 0; w < u->n_weights; w++) {
        const int32_t t = e->model->weights[u->first_weight + w];
        if (!e->placement->tensor[t] && !is_op_weight(e, u, t)) {
            e->fresh = are_inputs;
            copy_weight(e, u, t, false, &none);
        }
    }
    e->fresh = false;
}

static void emit_op(struct emitter *e, size_t unit, uint32_t index, bool *has_ids)
{
    const struct ats_model_unit *u = &e->model->units[unit];
    const struct ats_model_op *op = &e->model->ops[index];
    const enum ats_side side = (enum ats_side)e->sides[index];
    if (side != e->side) {
        cross(e, u, index == u->first_op, side);
    }
    const bool attends = has_state(u) && index == u->first_op;
    if (side == ATS_ACCEL && attends && !e->has_inputs) {
        copy_user_inputs(e, u);
    }
    const bool fetches = side == ATS_ACCEL && attends && !e->placement->unit_state[unit];
    if (fetches) {
        fetch_state(e, u);
    }
    if (side == ATS_ACCEL && op->tensor != ATS_NO_TENSOR && !e->placement->tensor[op->tensor]) {
        copy_weight(e, u, op->tensor, op->kind == ATS_COST_EXPERTS, has_ids);
    }
    compute(e, u, op, side);
    e->fresh = false;
    const bool last = index + 1 == u->first_op + u->n_ops;
    const bool moves_all = e->rule == STOCK && ats_model_rows(u, e->pass) >= ATS_SIM_OFFLOAD_ROWS;
    if (last && side == ATS_ACCEL && moves_all) {
        copy_small_weights(e, u);
    }
    const bool fetched =
        has_state(u) && !e->placement->unit_state[unit] && e->sides[u->first_op] == ATS_ACCEL;
    if (last && fetched) {
        return_state(e, u);
    }
}

static void emit_pass(struct emitter *e)
{
    add(e, (struct ats_sim_action){.kind = ATS_SIM_HOST,
                                   .us = ats_sim_pass_host_us(e->setting, e->pass)});
    begin_split(e, ATS_HOST); /* the token embedding is looked up on the CPU */
    int32_t layer = -1;
    bool has_ids = false;
    for (size_t i = 0; i < e->model->n_units; i++) {
        const struct ats_model_unit *u = &e->model->units[i];
        e->unit = (int32_t)i;
        has_ids = has_ids && u->layer == layer;
        layer = u->layer;
        if (ats_model_rows(u, e->pass) == 0) {
            continue;
        }
        for (uint32_t o = u->first_op; o < u->first_op + u->n_ops; o++) {
            emit_op(e, i, o, &has_ids);
        }
    }
    if (e->side == ATS_ACCEL && e->pass->n_outputs > 0) {
        const struct ats_model_unit *u = &e->model->units[e->model->n_units - 1];
        copy(e, (double)u->out_bytes_per_token * e->pass->n_outputs, ATS_TO_HOST, false);
    }
}

static void emit(const struct ats_sim_setting *setting, struct ats_sim_placement *placement,
                 const struct ats_model_pass *pass, const struct ats_sim_routing *routing,
                 struct ats_sim_schedule *schedule, enum rule rule)
{
    struct emitter e = {.setting = setting,
                        .model = setting->model,
                        .placement = placement,
                        .pass = pass,
                        .routing = routing,
                        .schedule = schedule,
                        .rule = rule,
                        .unit = -1,
                        .sides = calloc(setting->model->n_ops + 1, 1)};
    if (e.sides == NULL) {
        schedule->failed = true;
        return;
    }
    choose_sides(&e);
    emit_pass(&e);
    free(e.sides);
}

void ats_sim_schedule_stock(const struct ats_sim_setting *setting,
                            struct ats_sim_placement *placement, const struct ats_model_pass *pass,
                            const struct ats_sim_routing *routing,
                            struct ats_sim_schedule *schedule)
{
    emit(setting, placement, pass, routing, schedule, STOCK);
}

void ats_sim_schedule_cpu(const struct ats_sim_setting *setting,
                          struct ats_sim_placement *placement, const struct ats_model_pass *pass,
                          const struct ats_sim_routing *routing, struct ats_sim_schedule *schedule)
{
    emit(setting, placement, pass, routing, schedule, CPU_ONLY);
}
