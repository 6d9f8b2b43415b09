/* How the weights of a model pass through staging memory (plan/pieces.h).
 *
 * Pure. */
#ifndef ATS_SIM_PIECES_H
#define ATS_SIM_PIECES_H

#include "model/model.h"
#include "plan/pieces.h"

/* Whether the tensor is a matrix of the unit's experts. */
bool ats_sim_stacks_experts(const struct ats_model *model, const struct ats_model_unit *unit,
                            int32_t tensor);

/* Of a tensor of the unit: in how many pieces, and in *bytes what of it staging memory holds at
 * once. What no product reads passes as a whole, and everything if `whole` is set. */
struct ats_pieces ats_sim_pieces_of(const struct ats_model *model,
                                    const struct ats_model_unit *unit, int32_t tensor, bool whole,
                                    uint64_t *bytes);

/* Columns of a product of the unit: tokens, times experts that each uses. */
uint64_t ats_sim_columns(const struct ats_model_unit *unit, uint64_t n_tokens);

#endif
