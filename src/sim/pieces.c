#include "sim/pieces.h"

bool ats_sim_stacks_experts(const struct ats_model *model, const struct ats_model_unit *unit,
                            int32_t tensor)
{
    const struct ats_model_tensor *t = &model->tensors[tensor];
    return unit->n_experts > 1 && t->ne[2] == unit->n_experts && t->ne[1] > 0;
}

struct ats_pieces ats_sim_pieces_of(const struct ats_model *model,
                                    const struct ats_model_unit *unit, int32_t tensor,
                                    uint64_t *bytes)
{
    const struct ats_model_tensor *t = &model->tensors[tensor];
    struct ats_pieces pieces = {.n = 1};
    *bytes = t->bytes;
    if (ats_sim_stacks_experts(model, unit, tensor)) {
        const uint64_t row_bytes = t->bytes / t->ne[2] / t->ne[1];
        pieces = ats_pieces_of(&ats_piece_rule_default, (size_t)row_bytes, t->ne[1], t->ne[2]);
        *bytes = pieces.n > 1 ? row_bytes * pieces.rows * t->ne[2] : t->bytes;
    }
    return pieces;
}
