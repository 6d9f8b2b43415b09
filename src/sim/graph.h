/* A pass over a model as the graph that ATS's planner takes (plan/graph_desc.h): operators with
 * the weights, state, inputs and activations that they read and write.
 *
 * It is what llama.cpp builds, in terms of the model's description: small operators of one kind
 * are one, and norms of queries and keys write to the cache themselves.
 *
 * Pure. A graph is used by one thread at a time. */
#ifndef ATS_SIM_GRAPH_H
#define ATS_SIM_GRAPH_H

#include "plan/graph_desc.h"
#include "sim/policy.h"

/* The operator of the model behind one of the graph. */
struct ats_sim_graph_op {
    uint32_t unit;
    uint32_t op; /* index in model->ops */
};

/* Roots: tensors of the model by their index, then the state of its units, then activations and
 * inputs in the order of their first use. */
struct ats_sim_graph {
    struct ats_graph_desc desc;
    struct ats_op *ops;
    struct ats_sim_graph_op *sources;
    struct ats_root *roots;
    uint32_t *reads;
    uint32_t logits; /* the root that the last operator writes */
};

/* Describes a pass; homes follow the placement. False: out of memory. Free it with
 * ats_sim_graph_free. */
bool ats_sim_graph_build(const struct ats_sim_setting *setting,
                         const struct ats_sim_placement *placement,
                         const struct ats_model_pass *pass, struct ats_sim_graph *graph);
void ats_sim_graph_free(struct ats_sim_graph *graph);

#endif
