#include "emu/graph_cost.h"

#include "bind/node_shape.h"
#include "emu/compute.h"
#include "emu/contents.h"
#include "emu/fusion.h"

static double rows_of(const struct ggml_tensor *t)
{
    return (double)(t->ne[1] * t->ne[2] * t->ne[3]);
}

struct kernel {
    const struct ggml_cgraph *graph;
    int first;
    int n;
    uint32_t visible;
};

/* Whether a tensor passes from one operator of the kernel to another only. */
static bool is_inside(const struct kernel *k, const struct ggml_tensor *t)
{
    for (int i = 0; i < k->n; i++) {
        if (k->graph->nodes[k->first + i] == t) {
            return true;
        }
    }
    return false;
}

static bool is_visible(const struct kernel *k, int node)
{
    return (k->visible >> (node - k->first) & 1) != 0;
}

/* Bytes of all operands from `from` on and of the result, as far as they pass through memory. */
static double traffic(const struct kernel *k, int index, int from)
{
    const struct ggml_tensor *node = k->graph->nodes[index];
    double bytes = is_visible(k, index) ? ats_tensor_traffic(node) : 0;
    for (int j = from; j < GGML_MAX_SRC; j++) {
        if (node->src[j] != NULL && !is_inside(k, node->src[j])) {
            bytes += ats_tensor_traffic(node->src[j]);
        }
    }
    return bytes;
}

struct ats_op_shape ats_emu_node_shape(struct ats_emu_device *device,
                                       const struct ggml_cgraph *graph, int node, int first, int n,
                                       uint32_t visible)
{
    const struct kernel kernel = {graph, first, n, visible};
    const struct ggml_tensor *tensor = graph->nodes[node];
    struct ats_op_shape shape = ats_node_shape(tensor);
    switch (tensor->op) {
    case GGML_OP_MUL_MAT_ID:
        shape.n_distinct =
            (double)ats_emu_count_experts(device, tensor->src[2], tensor->src[0]->ne[2]);
        shape.io_bytes = traffic(&kernel, node, 1);
        break;
    case GGML_OP_MUL_MAT:
        shape.io_bytes = traffic(&kernel, node, 1);
        break;
    case GGML_OP_FLASH_ATTN_EXT:
    case GGML_OP_GET_ROWS:
    case GGML_OP_SET_ROWS:
    case GGML_OP_CPY:
        break; /* never a part of a larger kernel, or of the rows concerned only */
    default:
        shape.io_bytes = traffic(&kernel, node, 0);
        break;
    }
    return shape;
}

/* ---- a graph ---- */

static bool is_executed(const struct ggml_tensor *node)
{
    return !ggml_op_is_empty(node->op) && (node->flags & GGML_TENSOR_FLAG_COMPUTE) != 0 &&
           rows_of(node) * (double)node->ne[0] > 0;
}

static bool check_tensor(struct ats_emu_device *device, const struct ggml_tensor *node,
                         const struct ggml_tensor *tensor, struct ats_error *err)
{
    if (ats_emu_memory_owns(&device->memory, tensor->data) ||
        rows_of(tensor) * (double)tensor->ne[0] <= 0 ||
        ats_emu_pinned_contains(tensor->data, ggml_nbytes(tensor))) {
        return true;
    }
    return ats_fail(err,
                    "%s cannot reach tensor '%s' at %p (of %s '%s'): it is neither in memory of "
                    "this device nor in pinned host memory",
                    device->name, tensor->name, tensor->data, ggml_op_name(node->op), node->name);
}

static bool check_graph(struct ats_emu_device *device, const struct ggml_cgraph *graph,
                        struct ats_error *err)
{
    for (int i = 0; i < graph->n_nodes; i++) {
        const struct ggml_tensor *node = graph->nodes[i];
        if (!is_executed(node)) {
            continue;
        }
        if (!check_tensor(device, node, node, err)) {
            return false;
        }
        for (int j = 0; j < GGML_MAX_SRC; j++) {
            if (node->src[j] != NULL && !check_tensor(device, node, node->src[j], err)) {
                return false;
            }
        }
    }
    return true;
}

static bool is_copy(enum ggml_op op)
{
    return op == GGML_OP_CPY || op == GGML_OP_DUP || op == GGML_OP_CONT;
}

struct walk {
    struct ats_emu_device *device;
    const struct ggml_cgraph *graph;
    const struct ats_emu_graph_sink *sink;
    double us; /* of kernels since the last transfer */
    unsigned launches;
};

static void flush(struct walk *w)
{
    if (w->launches > 0 || w->us > 0) {
        w->sink->compute(w->sink->context, w->us, w->launches);
        w->us = 0;
        w->launches = 0;
    }
}

/* What a node moves over the link, because it is in pinned memory. */
static double link_bytes(const struct walk *w, const struct ggml_tensor *node,
                         enum ats_timeline_direction *direction)
{
    if (!ats_emu_memory_owns(&w->device->memory, node->data)) {
        *direction = ATS_TO_HOST;
        return ats_tensor_traffic(node);
    }
    *direction = ATS_TO_DEVICE;
    double bytes = 0;
    for (int j = 0; j < GGML_MAX_SRC; j++) {
        const struct ggml_tensor *src = node->src[j];
        if (src != NULL && !ats_emu_memory_owns(&w->device->memory, src->data)) {
            bytes += ats_tensor_traffic(src);
        }
    }
    return bytes;
}

/* One node of the kernel [first, first + n). A copy takes what the link takes; any other operator
 * with operands in pinned memory fetches them first. */
static void walk_node(struct walk *w, int index, int first, int n, uint32_t visible, bool fused)
{
    const struct ggml_tensor *node = w->graph->nodes[index];
    ats_emu_make_contents(w->device, w->graph, index);
    enum ats_timeline_direction direction;
    const double bytes = link_bytes(w, node, &direction);
    if (bytes > 0) {
        flush(w);
        w->sink->transfer(w->sink->context, direction, bytes);
        if (is_copy(node->op)) {
            return;
        }
    }
    struct ats_op_shape shape = ats_emu_node_shape(w->device, w->graph, index, first, n, visible);
    shape.fused = fused;
    w->us += ats_cost_op_us(&w->device->profile.rates, &shape);
    w->launches += !fused;
}

bool ats_emu_graph_cost(struct ats_emu_device *device, const struct ggml_cgraph *graph,
                        const struct ats_emu_graph_sink *sink, struct ats_error *err)
{
    if (!check_graph(device, graph, err)) {
        return false;
    }
    struct walk w = {.device = device, .graph = graph, .sink = sink};
    for (int i = 0; i < graph->n_nodes;) {
        if (!is_executed(graph->nodes[i])) {
            i++;
            continue;
        }
        uint32_t visible = 0;
        const int n = ats_emu_fused_nodes(graph, i, &visible);
        bool fused = false;
        for (int j = i; j < i + n; j++) {
            if (is_executed(graph->nodes[j])) {
                walk_node(&w, j, i, n, visible, fused);
                fused = true;
            }
        }
        i += n;
    }
    flush(&w);
    return true;
}
