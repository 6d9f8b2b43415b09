#include "bind/node_shape.h"

#include "bind/family.h"

double ats_tensor_traffic(const struct ggml_tensor *tensor)
{
    return (double)ggml_row_size(tensor->type, tensor->ne[0]) *
           (double)(tensor->ne[1] * tensor->ne[2] * tensor->ne[3]);
}

/* The result and all operands from `from` on. */
static double traffic(const struct ggml_tensor *node, int from)
{
    double bytes = ats_tensor_traffic(node);
    for (int j = from; j < GGML_MAX_SRC; j++) {
        bytes += node->src[j] != NULL ? ats_tensor_traffic(node->src[j]) : 0;
    }
    return bytes;
}

static struct ats_op_shape matmul_shape(const struct ggml_tensor *node)
{
    const struct ggml_tensor *weights = node->src[0];
    const struct ggml_tensor *input = node->src[1];
    return (struct ats_op_shape){
        .kind = ATS_COST_MATMUL,
        .family = ats_family_of(weights->type),
        .m = (double)weights->ne[1],
        .n = (double)input->ne[1],
        .k = (double)weights->ne[0],
        .batch = (double)(input->ne[2] * input->ne[3]),
        .weight_bytes = ats_tensor_traffic(weights), /* heads that share keys read them once */
        .io_bytes = traffic(node, 1),
    };
}

static struct ats_op_shape experts_shape(const struct ggml_tensor *node)
{
    const struct ggml_tensor *weights = node->src[0];
    const struct ggml_tensor *ids = node->src[2];
    return (struct ats_op_shape){
        .kind = ATS_COST_EXPERTS,
        .family = ats_family_of(weights->type),
        .m = (double)weights->ne[1],
        .n = (double)ids->ne[1],
        .k = (double)weights->ne[0],
        .n_experts = (double)weights->ne[2],
        .n_used = (double)ids->ne[0],
        .weight_bytes = ats_tensor_traffic(weights) / (double)weights->ne[2],
        .io_bytes = traffic(node, 1),
    };
}

/* Queries [size, n, heads], keys [size, n_kv, kv heads], values alike. */
static struct ats_op_shape attention_shape(const struct ggml_tensor *node)
{
    const struct ggml_tensor *q = node->src[0];
    const struct ggml_tensor *keys = node->src[1];
    return (struct ats_op_shape){
        .kind = ATS_COST_ATTENTION,
        .family = ATS_FAMILY_F16,
        .m = (double)keys->ne[1],
        .n = (double)q->ne[1],
        .k = (double)q->ne[0],
        .batch = (double)(q->ne[2] * q->ne[3]),
        .weight_bytes = ats_tensor_traffic(keys) + ats_tensor_traffic(node->src[2]),
        .io_bytes = ats_tensor_traffic(q) + ats_tensor_traffic(node),
    };
}

struct ats_op_shape ats_node_shape(const struct ggml_tensor *node)
{
    struct ats_op_shape shape = {.kind = ATS_COST_BYTES};
    switch (node->op) {
    case GGML_OP_MUL_MAT:
        return matmul_shape(node);
    case GGML_OP_MUL_MAT_ID:
        return experts_shape(node);
    case GGML_OP_FLASH_ATTN_EXT:
        return attention_shape(node);
    case GGML_OP_GET_ROWS:
        shape.io_bytes = 2 * ats_tensor_traffic(node);
        break;
    case GGML_OP_SET_ROWS:
        shape.io_bytes = 2 * ats_tensor_traffic(node->src[0]);
        break;
    case GGML_OP_CPY: /* its second operand is where it writes */
        shape.io_bytes = ats_tensor_traffic(node->src[0]) + ats_tensor_traffic(node);
        break;
    default:
        shape.io_bytes = traffic(node, 0);
        break;
    }
    return shape;
}
