/* An operator of a pass as an action of the timeline.
 *
 * Pure. */
#ifndef ATS_SIM_OP_TIME_H
#define ATS_SIM_OP_TIME_H

#include "plan/side.h"
#include "sim/policy.h"

/* ggml's name of the type of the weight that an operator computes with; NULL if there is none. */
const char *ats_sim_op_type(const struct ats_model *model, const struct ats_model_op *op);

/* False if it takes no time: views, and what computes nothing in this pass. */
bool ats_sim_op_action(const struct ats_sim_setting *setting, const struct ats_model_unit *unit,
                       const struct ats_model_op *op, const struct ats_model_pass *pass,
                       const struct ats_sim_routing *routing, enum ats_side side,
                       struct ats_sim_action *action);

/* The same for so many rows of a matrix of experts. */
bool ats_sim_rows_action(const struct ats_sim_setting *setting, const struct ats_model_unit *unit,
                         const struct ats_model_op *op, const struct ats_model_pass *pass,
                         const struct ats_sim_routing *routing, uint32_t n_rows,
                         struct ats_sim_action *action);

/* The same for `n_columns` of the experts that a single token uses, all of them different; for
 * operators of experts and between them. */
bool ats_sim_columns_action(const struct ats_sim_setting *setting,
                            const struct ats_model_unit *unit, const struct ats_model_op *op,
                            const struct ats_model_pass *pass, uint32_t n_columns,
                            enum ats_side side, struct ats_sim_action *action);

/* What the host does once per pass, whoever decides: the graph, the embeddings of the pass's
 * tokens, the mask of attention. Microseconds. */
double ats_sim_pass_host_us(const struct ats_sim_setting *setting,
                            const struct ats_model_pass *pass);

#endif
