/* A node of a ggml graph as the cost model takes it (cost/cost.h).
 *
 * Reads shapes only; any thread. */
#ifndef ATS_BIND_NODE_SHAPE_H
#define ATS_BIND_NODE_SHAPE_H

#include "bind/ggml_bind.h"
#include "cost/cost.h"

/* The node by itself: nothing is fused, and of experts as many are used as is to be expected. Of a
 * table or a cache it touches the rows concerned. */
struct ats_op_shape ats_node_shape(const struct ggml_tensor *node);

/* What a kernel reads or writes of a tensor, whatever its strides. */
double ats_tensor_traffic(const struct ggml_tensor *tensor);

#endif
