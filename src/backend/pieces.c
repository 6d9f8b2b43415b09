#include "backend/pieces.h"

#include "backend/stand_ins.h"

#include <stdlib.h>
#include <string.h>

static bool is_product_with(const struct ggml_tensor *node, const struct ggml_tensor *matrix)
{
    return (node->op == GGML_OP_MUL_MAT_ID ||
            (node->op == GGML_OP_MUL_MAT && matrix->ne[2] == 1)) &&
           node->src[0] == matrix;
}

const struct ggml_tensor *ats_pieces_reader(const struct ats_description *d, size_t root)
{
    const struct ats_location *location = &d->locations[root];
    if (location->record == NULL || location->written || location->first_use == SIZE_MAX ||
        location->first_use != location->last_use) {
        return NULL;
    }
    const struct ggml_tensor *matrix = location->tensor;
    const struct ggml_tensor *node = d->cgraph->nodes[location->first_use];
    return is_product_with(node, matrix) && node->view_src == NULL && node->type == GGML_TYPE_F32 &&
                   matrix->op == GGML_OP_NONE && matrix->ne[3] == 1 && node->ne[3] == 1 &&
                   ggml_is_contiguous(matrix) && ggml_is_contiguous(node)
               ? node
               : NULL;
}

/* ---- tensors ---- */

static void make_contiguous(struct ggml_tensor *tensor, int64_t ne, int dimension)
{
    tensor->ne[dimension] = ne;
    for (int d = dimension + 1; d < GGML_MAX_DIMS; d++) {
        tensor->nb[d] = tensor->nb[d - 1] * (size_t)tensor->ne[d - 1];
    }
}

struct ggml_tensor ats_piece_tensor(const struct ggml_tensor *matrix, uint32_t rows)
{
    struct ggml_tensor piece = *matrix;
    piece.op = GGML_OP_NONE;
    piece.buffer = NULL;
    piece.data = NULL;
    piece.extra = NULL;
    make_contiguous(&piece, rows, 1);
    return piece;
}

/* The node's first `rows` rows, without operands. */
static struct ggml_tensor product_of(const struct ggml_tensor *node, uint32_t rows)
{
    struct ggml_tensor product = *node;
    product.extra = NULL;
    product.flags = GGML_TENSOR_FLAG_COMPUTE;
    memset(product.src, 0, sizeof(product.src));
    make_contiguous(&product, rows, 0);
    return product;
}

/* Copies of two dimensions are one command to most accelerators. */
static struct ggml_tensor flat_view(struct ggml_tensor *tensor)
{
    struct ggml_tensor view = *tensor;
    view.op = GGML_OP_NONE;
    view.extra = NULL;
    view.view_src = tensor;
    memset(view.op_params, 0, sizeof(view.op_params));
    memset(view.src, 0, sizeof(view.src));
    view.ne[1] = tensor->ne[1] * tensor->ne[2];
    view.ne[2] = 1;
    view.nb[2] = view.nb[1] * (size_t)view.ne[1];
    view.nb[3] = view.nb[2];
    return view;
}

static struct ggml_tensor copy_of(struct ggml_tensor *columns, struct ggml_tensor *rows)
{
    struct ggml_tensor copy = *rows;
    copy.op = GGML_OP_CPY;
    copy.flags = GGML_TENSOR_FLAG_COMPUTE;
    copy.src[0] = columns;
    copy.src[1] = rows;
    return copy;
}

/* The rows behind the first `first` of the result, which is in memory. */
static struct ggml_tensor rows_of(struct ggml_tensor *result, uint64_t first, uint32_t rows)
{
    struct ggml_tensor view = flat_view(result);
    view.view_offs = (size_t)first * sizeof(float);
    view.data = result->data != NULL ? (char *)result->data + view.view_offs : NULL;
    view.ne[0] = rows;
    return view;
}

/* Whether the accelerator computes such pieces, by their shapes. */
static bool is_supported(const struct ats_device *device, const struct ggml_tensor *node,
                         const struct ats_pieces *pieces)
{
    struct ggml_tensor result = *node;
    struct ggml_tensor weight = ats_piece_tensor(node->src[0], pieces->rows);
    struct ggml_tensor product = product_of(node, pieces->rows);
    product.src[0] = &weight;
    product.src[1] = node->src[1];
    product.src[2] = node->src[2];
    struct ggml_tensor columns = flat_view(&product);
    struct ggml_tensor rows = rows_of(&result, 0, pieces->rows);
    const struct ggml_tensor copy = copy_of(&columns, &rows);
    return ggml_backend_dev_supports_op(device->accel, &product) &&
           ggml_backend_dev_supports_op(device->accel, &copy);
}

static const struct ats_piece_rule *rule_of(const struct ats_device *device,
                                            const struct ats_staging_way *way)
{
    return way->whole ? &ats_piece_rule_whole : &device->config->pieces;
}

struct ats_pieces ats_pieces_of_root(const struct ats_device *device,
                                     const struct ats_staging_way *way,
                                     const struct ats_description *description, size_t root)
{
    const struct ggml_tensor *node = ats_pieces_reader(description, root);
    if (node == NULL) {
        return (struct ats_pieces){.n = 1};
    }
    const struct ggml_tensor *matrix = node->src[0];
    const struct ats_pieces pieces = ats_pieces_of(
        rule_of(device, way), matrix->nb[1], (uint64_t)matrix->ne[1], (uint64_t)matrix->ne[2]);
    return pieces.n > 1 && is_supported(device, node, &pieces) ? pieces
                                                               : (struct ats_pieces){.n = 1};
}

uint64_t ats_piece_columns(const struct ats_description *description, size_t root,
                           uint64_t least_tokens)
{
    const struct ggml_tensor *node = ats_pieces_reader(description, root);
    if (node == NULL) {
        return 0;
    }
    const bool has_experts = node->op == GGML_OP_MUL_MAT_ID;
    const uint64_t tokens = (uint64_t)(has_experts ? node->ne[2] : node->ne[1] * node->ne[2]);
    const uint64_t n_used = has_experts ? (uint64_t)node->ne[1] : 1;
    return n_used * (tokens > least_tokens ? tokens : least_tokens);
}

bool ats_piece_op_make(struct ats_description *description, size_t root, uint32_t piece,
                       const struct ggml_tensor *weight, void *scratch, struct ats_piece_op *op,
                       struct ats_error *err)
{
    const struct ggml_tensor *node = ats_pieces_reader(description, root);
    const struct ats_pieces *pieces = &description->roots[root].pieces;
    const uint32_t n = ats_piece_rows(pieces, (uint64_t)node->src[0]->ne[1], piece);
    op->weight = ats_piece_tensor(node->src[0], n);
    op->weight.buffer = weight->buffer;
    op->weight.data = weight->data;
    op->product = product_of(node, n);
    op->product.buffer = weight->buffer;
    op->product.data = scratch;
    op->product.src[0] = &op->weight;
    op->product.src[1] = ats_description_find(description, node->src[1])->stand_in;
    if (node->src[2] != NULL) {
        op->product.src[2] = ats_description_find(description, node->src[2])->stand_in;
    }
    op->rows = rows_of(ats_description_find(description, node)->stand_in,
                       (uint64_t)piece * pieces->rows, n);
    op->columns = flat_view(&op->product);
    op->copy = copy_of(&op->columns, &op->rows);
    op->nodes[0] = &op->product;
    op->nodes[1] = &op->copy;
    if (!ats_graph_make_counts(&op->graph, 2)) {
        return ats_fail(err, "out of memory");
    }
    ats_graph_set_uses(&op->graph, &op->product, 1);
    ats_graph_set_uses(&op->graph, &op->copy, 1);
    op->graph = ats_graph_slice(&op->graph, op->nodes, 0, 2);
    return ats_stand_in_init(&op->weight, err) && ats_stand_in_init(&op->product, err) &&
           ats_stand_in_init(&op->columns, err) && ats_stand_in_init(&op->rows, err) &&
           ats_stand_in_init(&op->copy, err);
}

void ats_piece_op_free(struct ats_piece_op *op)
{
    ats_graph_free_counts(&op->graph);
}
