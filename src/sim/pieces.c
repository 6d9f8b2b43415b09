#include "sim/pieces.h"

bool ats_sim_stacks_experts(const struct ats_model *model, const struct ats_model_unit *unit,
                            int32_t tensor)
{
    const struct ats_model_tensor *t = &model->tensors[tensor];
    return unit->n_experts > 1 && t->ne[2] == unit->n_experts && t->ne[1] > 0;
}

static bool is_of_product(const struct ats_model *model, const struct ats_model_unit *unit,
                          int32_t tensor)
{
    const struct ats_model_tensor *t = &model->tensors[tensor];
    for (uint32_t o = unit->first_op; o < unit->first_op + unit->n_ops; o++) {
        if (model->ops[o].tensor == tensor && model->ops[o].kind == ATS_COST_MATMUL) {
            return t->ne[1] > 0 && t->ne[2] == 1;
        }
    }
    return false;
}

struct ats_pieces ats_sim_pieces_of(const struct ats_model *model,
                                    const struct ats_model_unit *unit, int32_t tensor, bool whole,
                                    uint64_t *bytes)
{
    const struct ats_model_tensor *t = &model->tensors[tensor];
    struct ats_pieces pieces = {.n = 1};
    *bytes = t->bytes;
    if (!whole &&
        (ats_sim_stacks_experts(model, unit, tensor) || is_of_product(model, unit, tensor))) {
        const uint64_t row_bytes = t->bytes / t->ne[2] / t->ne[1];
        pieces = ats_pieces_of(&ats_piece_rule_default, (size_t)row_bytes, t->ne[1], t->ne[2]);
        *bytes = pieces.n > 1 ? row_bytes * pieces.rows * t->ne[2] : t->bytes;
    }
    return pieces;
}

uint64_t ats_sim_columns(const struct ats_model_unit *unit, uint64_t n_tokens)
{
    return n_tokens * (unit->n_used > 0 ? unit->n_used : 1);
}
