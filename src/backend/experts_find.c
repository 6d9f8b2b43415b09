/* Regions of experts in a ggml graph. */
#include "backend/experts.h"
#include "backend/stand_ins.h"

#include <stdlib.h>
#include <string.h>

static bool is_elementwise(const struct ggml_tensor *node)
{
    switch (node->op) {
    case GGML_OP_GLU:
    case GGML_OP_UNARY:
    case GGML_OP_SCALE:
    case GGML_OP_CLAMP:
    case GGML_OP_SQR:
        return true;
    case GGML_OP_MUL:
    case GGML_OP_ADD:
        return memcmp(node->src[0]->ne, node->src[1]->ne, sizeof(node->ne)) == 0;
    default:
        return false;
    }
}

static enum ats_expert_kind kind_of(const struct ggml_tensor *node)
{
    if (ats_op_is_empty(node)) {
        return ATS_EXPERT_EMPTY;
    }
    switch (node->op) {
    case GGML_OP_MUL_MAT_ID:
        return ATS_EXPERT_PRODUCT;
    case GGML_OP_ADD_ID:
        return ATS_EXPERT_BIAS;
    default:
        return is_elementwise(node) ? ATS_EXPERT_COLUMN : ATS_EXPERT_OTHER;
    }
}

/* Whether a node's result has the columns of what it reads, in memory of its own, or as a view of a
 * part of each. */
static bool is_whole(const struct ggml_tensor *node)
{
    if (!ats_op_is_empty(node)) {
        return node->view_src == NULL && node->type == GGML_TYPE_F32 && ggml_is_contiguous(node);
    }
    const struct ggml_tensor *source = node->src[0];
    return node->op == GGML_OP_VIEW && source != NULL && node->type == source->type &&
           node->ne[1] == source->ne[1] && node->ne[2] == source->ne[2] &&
           node->nb[1] == source->nb[1] && node->view_offs < node->nb[1];
}

static int32_t source_of(const struct ats_description *d, const struct ggml_tensor *tensor)
{
    if (tensor == NULL) {
        return ATS_EXPERT_NO_SOURCE;
    }
    const struct ats_tensor_entry *entry =
        ats_description_find((struct ats_description *)(uintptr_t)d, tensor);
    if (entry != NULL && entry->node >= 0) {
        return entry->node;
    }
    return tensor->ne[1] == 1 ? ATS_EXPERT_ONE_COLUMN : ATS_EXPERT_MANY_COLUMNS;
}

static struct ats_expert_node describe(const struct ats_description *d,
                                       const struct ggml_cgraph *cgraph,
                                       const struct ggml_tensor *node)
{
    struct ats_expert_node out = {
        .kind = kind_of(node),
        .whole = is_whole(node),
        .one_column = node->ne[1] == 1,
        .keeps = (node->flags & GGML_TENSOR_FLAG_OUTPUT) != 0,
        .n_uses = (uint32_t)ats_graph_uses(cgraph, node),
        .sources = {ATS_EXPERT_NO_SOURCE, ATS_EXPERT_NO_SOURCE},
    };
    switch (out.kind) {
    case ATS_EXPERT_PRODUCT:
        out.ids = node->src[2];
        out.sources[0] = source_of(d, node->src[1]);
        break;
    case ATS_EXPERT_BIAS:
        out.ids = node->src[2];
        out.sources[0] = source_of(d, node->src[0]);
        break;
    case ATS_EXPERT_COLUMN:
    case ATS_EXPERT_EMPTY:
        out.sources[0] = source_of(d, node->src[0]);
        out.sources[1] = source_of(d, node->src[1]);
        break;
    case ATS_EXPERT_OTHER:
        break;
    }
    return out;
}

bool ats_experts_find(const struct ats_description *description, const struct ggml_cgraph *cgraph,
                      struct ats_expert_region **regions, size_t *n_regions)
{
    const size_t n = (size_t)cgraph->n_nodes;
    size_t most = 0;
    *regions = NULL;
    *n_regions = 0;
    for (size_t i = 0; i < n; i++) {
        most += cgraph->nodes[i]->op == GGML_OP_MUL_MAT_ID;
    }
    if (most == 0) {
        return true;
    }
    struct ats_expert_node *nodes = calloc(n, sizeof(*nodes));
    bool *inside = calloc(n, sizeof(*inside));
    *regions = calloc(most, sizeof(**regions));
    const bool ok = nodes != NULL && inside != NULL && *regions != NULL;
    for (size_t i = 0; ok && i < n; i++) {
        nodes[i] = describe(description, cgraph, cgraph->nodes[i]);
    }
    if (ok) {
        *n_regions = ats_expert_regions(nodes, n, inside, *regions, most);
    }
    free(nodes);
    free(inside);
    return ok;
}
