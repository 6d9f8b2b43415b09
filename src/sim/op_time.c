#include "sim/op_time.h"

const char *ats_sim_op_type(const struct ats_model *model, const struct ats_model_op *op)
{
    const bool has_weight = op->tensor != ATS_NO_TENSOR && op->kind != ATS_COST_BYTES;
    return has_weight ? model->tensors[op->tensor].type_name : NULL;
}

/* False if the shape is nothing. */
static bool make_action(const struct ats_sim_setting *setting, const struct ats_model_op *op,
                        struct ats_op_shape *shape, double read, enum ats_side side,
                        struct ats_sim_action *action)
{
    const char *type = ats_sim_op_type(setting->model, op);
    if (shape->kind == ATS_COST_NONE) {
        return false;
    }
    if (side == ATS_HOST) {
        shape->fused = false; /* ggml's CPU backend fuses next to nothing */
        *action = (struct ats_sim_action){
            .kind = ATS_SIM_CPU,
            .us = ats_sim_machine_op_us(setting->machine, side, type, shape),
            .bytes = read};
        return true;
    }
    *action =
        (struct ats_sim_action){.kind = ATS_SIM_GPU,
                                .queue = ATS_SIM_COMPUTE_STREAM,
                                .us = ats_sim_machine_op_us(setting->machine, side, type, shape),
                                .launch = !shape->fused};
    return true;
}

static double distinct_experts(const struct ats_sim_routing *routing,
                               const struct ats_model_unit *unit)
{
    return routing->distinct[unit->layer < 0 ? 0 : unit->layer];
}

bool ats_sim_op_action(const struct ats_sim_setting *setting, const struct ats_model_unit *unit,
                       const struct ats_model_op *op, const struct ats_model_pass *pass,
                       const struct ats_sim_routing *routing, enum ats_side side,
                       struct ats_sim_action *action)
{
    struct ats_op_shape shape = ats_model_shape(setting->model, unit, op, pass);
    double read = shape.weight_bytes;
    if (op->kind == ATS_COST_EXPERTS) {
        shape.n_distinct = distinct_experts(routing, unit);
        read *= shape.n_distinct;
    }
    return make_action(setting, op, &shape, read, side, action);
}

bool ats_sim_rows_action(const struct ats_sim_setting *setting, const struct ats_model_unit *unit,
                         const struct ats_model_op *op, const struct ats_model_pass *pass,
                         const struct ats_sim_routing *routing, uint32_t n_rows,
                         struct ats_sim_action *action)
{
    struct ats_op_shape shape = ats_model_shape(setting->model, unit, op, pass);
    const double share = n_rows / shape.m;
    shape.weight_bytes *= share;
    /* each piece reads all that the product is made from */
    shape.io_bytes *= (n_rows + shape.k) / (shape.m + shape.k);
    shape.m = n_rows;
    shape.fused = false;
    shape.n_distinct = distinct_experts(routing, unit);
    return make_action(setting, op, &shape, 0, ATS_ACCEL, action);
}

bool ats_sim_columns_action(const struct ats_sim_setting *setting,
                            const struct ats_model_unit *unit, const struct ats_model_op *op,
                            const struct ats_model_pass *pass, uint32_t n_columns,
                            enum ats_side side, struct ats_sim_action *action)
{
    struct ats_op_shape shape = ats_model_shape(setting->model, unit, op, pass);
    shape.io_bytes *= (double)n_columns / unit->n_used;
    shape.n_used = n_columns;
    shape.n_distinct = n_columns;
    const double read = shape.kind == ATS_COST_EXPERTS ? shape.weight_bytes * n_columns : 0;
    return make_action(setting, op, &shape, read, side, action);
}

/* The mask has a row of values for each token, as long as the cache; layers with a window have one
 * of their own, and caches that are shorter. */
static double mask_values(const struct ats_sim_setting *setting, const struct ats_model_pass *pass)
{
    double most[2] = {0, 0};
    for (size_t i = 0; i < setting->model->n_units; i++) {
        const struct ats_model_unit *u = &setting->model->units[i];
        const double rows = (double)ats_model_cache_rows(u, pass);
        double *own = &most[u->window > 0];
        *own = rows > *own ? rows : *own;
    }
    return (most[0] + most[1]) * pass->n_tokens;
}

double ats_sim_pass_host_us(const struct ats_sim_setting *setting,
                            const struct ats_model_pass *pass)
{
    const struct ats_sim_overheads *o = &setting->machine->overheads;
    const double embeddings = (double)pass->n_tokens * setting->model->params.n_embd;
    return o->graph_us +
           1e-3 * (o->embedding_ns * embeddings + o->mask_ns * mask_values(setting, pass));
}
