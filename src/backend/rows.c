#include "backend/rows.h"

#include "backend/stand_ins.h"

struct ggml_tensor ats_rows_at(int64_t ne0, int64_t n, ggml_backend_buffer_t buffer, void *at)
{
    const size_t row = (size_t)ne0 * sizeof(float);
    return (struct ggml_tensor){
        .type = GGML_TYPE_F32,
        .buffer = buffer,
        .ne = {ne0, n, 1, 1},
        .nb = {sizeof(float), row, row * (size_t)n, row * (size_t)n},
        .op = GGML_OP_NONE,
        .data = at,
    };
}

struct ggml_tensor ats_list_at(int64_t n, ggml_backend_buffer_t buffer, void *at)
{
    const size_t bytes = (size_t)n * sizeof(int32_t);
    return (struct ggml_tensor){.type = GGML_TYPE_I32,
                                .buffer = buffer,
                                .ne = {n, 1, 1, 1},
                                .nb = {sizeof(int32_t), bytes, bytes, bytes},
                                .op = GGML_OP_NONE,
                                .data = at};
}

void ats_rows_resize(struct ggml_tensor *rows, int64_t n)
{
    rows->ne[1] = n;
    rows->nb[2] = rows->nb[1] * (size_t)n;
    rows->nb[3] = rows->nb[2];
}

void ats_list_resize(struct ggml_tensor *list, int64_t n)
{
    list->ne[0] = n;
    list->nb[1] = (size_t)n * sizeof(int32_t);
    list->nb[2] = list->nb[1];
    list->nb[3] = list->nb[1];
}

struct ggml_tensor ats_rows_gather(struct ggml_tensor *from, struct ggml_tensor *list,
                                   const struct ggml_tensor *to)
{
    struct ggml_tensor gather = *to;
    gather.op = GGML_OP_GET_ROWS;
    gather.flags = GGML_TENSOR_FLAG_COMPUTE;
    gather.src[0] = from;
    gather.src[1] = list;
    return gather;
}

struct ggml_tensor ats_rows_put(struct ggml_tensor *rows, struct ggml_tensor *list,
                                struct ggml_tensor *to)
{
    struct ggml_tensor put = *to;
    put.op = GGML_OP_SET_ROWS;
    put.flags = GGML_TENSOR_FLAG_COMPUTE;
    put.view_src = to;
    put.src[0] = rows;
    put.src[1] = list;
    put.src[2] = to;
    return put;
}

bool ats_rows_graph(struct ggml_cgraph *graph, struct ggml_tensor **nodes, int n)
{
    enum { TENSORS_EACH = 4 };
    if (!ats_graph_make_counts(graph, (size_t)n * TENSORS_EACH)) {
        return false;
    }
    for (int i = 0; i < n; i++) {
        ats_graph_set_uses(graph, nodes[i], 1);
    }
    *graph = ats_graph_slice(graph, nodes, 0, (uint32_t)n);
    graph->uid = 0;
    return true;
}
