#include "backend/experts_graph.h"

#include "backend/stand_ins.h"
#include "backend/stream.h"

#include <stdlib.h>
#include <string.h>

/* Makes one graph for one side. */
struct maker {
    const struct ats_description *description;
    const struct ggml_cgraph *cgraph;
    const struct ats_expert_region *region;
    const struct ats_expert_run *run;
    enum ats_side side;
    uint32_t n; /* columns */
    struct ats_expert_graph *out;
    const struct ggml_tensor **originals; /* of out->tensors */
    size_t n_tensors;
    struct ggml_tensor *slot_ids;
    struct ggml_tensor *expert_ids;
    const int32_t *host_ids;
    const struct ggml_tensor *input; /* of each column; NULL: that of the region is for all */
    struct ats_error *err;
};

/* Where the input is among a graph's tensors, if columns have inputs of their own. */
enum { INPUT = 2 };

/* Tensors of a graph of `n` nodes: each with at most two sources that are no nodes, two lists, an
 * input, and the result. */
static size_t most_tensors(size_t n)
{
    return 3 * n + 5;
}

/* ---- tensors ---- */

static const struct ggml_tensor *result_of(const struct maker *m)
{
    return m->cgraph->nodes[m->region->first + m->region->n - 1];
}

static bool is_made_in(const struct ggml_cgraph *cgraph, const struct ats_expert_region *region,
                       const struct ggml_tensor *tensor)
{
    for (size_t i = region->first; i < region->first + region->n; i++) {
        if (cgraph->nodes[i] == tensor) {
            return true;
        }
    }
    return false;
}

static bool is_made_here(const struct maker *m, const struct ggml_tensor *tensor)
{
    return is_made_in(m->cgraph, m->region, tensor);
}

bool ats_expert_reads_input(const struct ggml_cgraph *cgraph,
                            const struct ats_expert_region *region,
                            const struct ggml_tensor *product)
{
    return product->op == GGML_OP_MUL_MAT_ID &&
           !is_made_in(cgraph, region, ats_root_of(product->src[1]));
}

/* Whether the node is a view of what the region does not make: the input, in another shape. */
static bool is_view_of_input(const struct maker *m, const struct ggml_tensor *node)
{
    return node->view_src != NULL && !is_made_here(m, ats_root_of(node));
}

static struct ggml_tensor *add_tensor(struct maker *m, const struct ggml_tensor *original)
{
    struct ggml_tensor *tensor = &m->out->tensors[m->n_tensors];
    m->originals[m->n_tensors++] = original;
    return tensor;
}

static struct ggml_tensor *known(const struct maker *m, const struct ggml_tensor *original)
{
    for (size_t i = 0; i < m->n_tensors; i++) {
        if (m->originals[i] == original) {
            return &m->out->tensors[i];
        }
    }
    return NULL;
}

static struct ggml_tensor vector(enum ggml_type type, size_t size, int64_t n)
{
    const size_t bytes = size * (size_t)n;
    return (struct ggml_tensor){
        .type = type, .ne = {n, 1, 1, 1}, .nb = {size, bytes, bytes, bytes}, .op = GGML_OP_NONE};
}

/* A list of ids: of the exchange area, or of host memory. */
static struct ggml_tensor *add_ids(struct maker *m, enum ats_expert_list list)
{
    struct ggml_tensor *ids = add_tensor(m, NULL);
    *ids = vector(GGML_TYPE_I32, sizeof(int32_t), m->n);
    if (m->side == ATS_HOST) {
        ids->data = (void *)(uintptr_t)m->host_ids;
    } else {
        ids->buffer = m->run->lists.buffer;
        ids->data = (char *)m->run->lists.data + (size_t)list * m->run->list_stride;
    }
    return ids;
}

static const struct ats_location *location_of(const struct maker *m,
                                              const struct ggml_tensor *tensor)
{
    const struct ats_tensor_entry *entry =
        ats_description_find((struct ats_description *)(uintptr_t)m->description, tensor);
    return entry == NULL || entry->root == ATS_NO_ROOT ? NULL
                                                       : &m->description->locations[entry->root];
}

/* Moves a tensor to its place in VRAM. */
static bool move_to_accel(const struct maker *m, const struct ggml_tensor *original,
                          struct ggml_tensor *tensor)
{
    const struct ats_location *location = location_of(m, original);
    if (location == NULL || ats_accel_buffer(location) == NULL) {
        return ats_fail(m->err, "tensor %s has no place on the accelerator", original->name);
    }
    tensor->buffer = ats_accel_buffer(location);
    tensor->data = ats_accel_address(location, original->data);
    tensor->extra = NULL;
    return true;
}

/* What the region reads and does not make: inputs and biases. The CPU reads llama.cpp's own. */
static struct ggml_tensor *source_from_outside(struct maker *m, struct ggml_tensor *original)
{
    if (m->side == ATS_HOST) {
        return original;
    }
    struct ggml_tensor *tensor = add_tensor(m, original);
    *tensor = *original;
    tensor->op = GGML_OP_NONE;
    memset(tensor->src, 0, sizeof(tensor->src));
    tensor->view_src = NULL;
    tensor->view_offs = 0;
    return move_to_accel(m, original, tensor) && ats_stand_in_init(tensor, m->err) ? tensor : NULL;
}

/* The slots of a weight on the accelerator, the weight itself on the CPU. */
static struct ggml_tensor *weight_of(struct maker *m, struct ggml_tensor *original)
{
    if (m->side == ATS_HOST) {
        return original;
    }
    const struct ats_location *location = location_of(m, original);
    struct ats_expert_store *store = m->run->store;
    for (uint32_t p = 0; p < store->slots.n_parts; p++) {
        if (location != NULL && location->record == store->weights[p]) {
            return &store->in_vram[p];
        }
    }
    return original;
}

static struct ggml_tensor *node_of(struct maker *m, const struct ggml_tensor *original);

static struct ggml_tensor *source_of(struct maker *m, const struct ggml_tensor *node, int index)
{
    struct ggml_tensor *source = node->src[index];
    const bool by_ids = node->op == GGML_OP_MUL_MAT_ID || node->op == GGML_OP_ADD_ID;
    if (by_ids && index == 2) {
        return node->op == GGML_OP_MUL_MAT_ID ? m->slot_ids : m->expert_ids;
    }
    if (node->op == GGML_OP_MUL_MAT_ID && index == 0) {
        return weight_of(m, source);
    }
    if (m->input != NULL && index == 1 && ats_expert_reads_input(m->cgraph, m->region, node)) {
        return &m->out->tensors[INPUT];
    }
    struct ggml_tensor *found = known(m, source);
    if (found != NULL) {
        return found;
    }
    return is_made_here(m, source) && !is_view_of_input(m, source) ? node_of(m, source)
                                                                   : source_from_outside(m, source);
}

/* A node of the region with as many columns as wanted. */
static struct ggml_tensor *node_of(struct maker *m, const struct ggml_tensor *original)
{
    struct ggml_tensor *tensor = add_tensor(m, original);
    *tensor = *original;
    tensor->ne[1] = m->n;
    tensor->ne[2] = 1;
    tensor->nb[2] = tensor->nb[1] * m->n;
    tensor->nb[3] = tensor->nb[2];
    tensor->view_src = NULL;
    tensor->view_offs = 0;
    memset(tensor->src, 0, sizeof(tensor->src));
    if (m->side == ATS_ACCEL && !move_to_accel(m, original, tensor)) {
        return NULL;
    }
    if (original == result_of(m)) {
        tensor->flags |= GGML_TENSOR_FLAG_OUTPUT;
        if (m->side == ATS_ACCEL && m->n < m->run->n_used) {
            tensor->buffer = m->run->packed.buffer;
            tensor->data = m->run->packed.data;
        }
    }
    for (int s = 0; s < GGML_MAX_SRC; s++) {
        if (original->src[s] != NULL) {
            tensor->src[s] = source_of(m, original, s);
            if (tensor->src[s] == NULL) {
                return NULL;
            }
        }
    }
    if (original->view_src != NULL) {
        tensor->view_src = known(m, ats_root_of(original));
        tensor->view_offs = (size_t)((char *)tensor->data - (char *)tensor->view_src->data);
    }
    return m->side == ATS_HOST || ats_stand_in_init(tensor, m->err) ? tensor : NULL;
}

/* ---- graphs ---- */

static bool allocate(struct ats_expert_graph *out, size_t n_nodes, struct ats_error *err)
{
    const size_t n = most_tensors(n_nodes);
    out->tensors = calloc(n, sizeof(*out->tensors));
    out->graph.nodes = calloc(n_nodes, sizeof(struct ggml_tensor *));
    const bool counted = ats_graph_make_counts(&out->graph, n);
    return (out->tensors != NULL && out->graph.nodes != NULL && counted) ||
           ats_fail(err, "out of memory");
}

/* Gives the graph an identity and its nodes their use counts. */
static void finish(struct maker *m, size_t n_nodes)
{
    struct ggml_cgraph *graph = &m->out->graph;
    for (size_t i = 0; i < m->n_tensors; i++) {
        if (m->originals[i] != NULL) {
            ats_graph_set_uses(graph, &m->out->tensors[i],
                               ats_graph_uses(m->cgraph, m->originals[i]));
        }
    }
    graph->order = m->cgraph->order;
    *graph = ats_graph_slice(graph, graph->nodes, 0, n_nodes);
}

static bool make_graph(struct maker *m)
{
    const size_t n = m->region->n;
    m->originals = calloc(most_tensors(n), sizeof(const struct ggml_tensor *));
    m->n_tensors = 0;
    bool ok = m->originals != NULL && allocate(m->out, n, m->err);
    if (ok) {
        m->slot_ids = add_ids(m, ATS_EXPERT_SLOT_IDS);
        m->expert_ids = add_ids(m, ATS_EXPERT_IDS);
        if (m->input != NULL) {
            *add_tensor(m, NULL) = *m->input;
        }
    }
    size_t n_nodes = 0;
    for (size_t i = m->region->first; ok && i < m->region->first + n; i++) {
        const struct ggml_tensor *original = m->cgraph->nodes[i];
        if (is_view_of_input(m, original)) {
            continue;
        }
        struct ggml_tensor *node = known(m, original);
        node = node != NULL ? node : node_of(m, original);
        ok = node != NULL;
        m->out->graph.nodes[n_nodes++] = node;
    }
    if (ok) {
        finish(m, n_nodes);
    }
    m->out->n_tensors = m->n_tensors;
    free(m->originals);
    return ok;
}

static bool make_order(struct maker *m)
{
    const struct ats_expert_run *run = m->run;
    if (!allocate(m->out, 1, m->err)) {
        return false;
    }
    struct ggml_tensor *packed = &m->out->tensors[0];
    struct ggml_tensor *order = &m->out->tensors[1];
    struct ggml_tensor *result = &m->out->tensors[2];
    *packed = run->packed;
    *order = vector(GGML_TYPE_I32, sizeof(int32_t), run->n_used);
    order->buffer = run->lists.buffer;
    order->data = (char *)run->lists.data + (size_t)ATS_EXPERT_ORDER * run->list_stride;
    *result = run->result;
    result->op = GGML_OP_GET_ROWS;
    result->flags = GGML_TENSOR_FLAG_COMPUTE | GGML_TENSOR_FLAG_OUTPUT;
    result->src[0] = packed;
    result->src[1] = order;
    m->out->graph.nodes[0] = result;
    ats_graph_set_uses(&m->out->graph, result, 1);
    m->out->graph.order = m->cgraph->order;
    m->out->graph = ats_graph_slice(&m->out->graph, m->out->graph.nodes, 0, 1);
    return ats_stand_in_init(packed, m->err) && ats_stand_in_init(order, m->err) &&
           ats_stand_in_init(result, m->err);
}

/* ---- a region ---- */

/* Columns of the result at an address. */
static struct ggml_tensor columns_at(const struct ats_expert_run *run, int64_t rows,
                                     ggml_backend_buffer_t buffer, void *data)
{
    struct ggml_tensor columns = vector(GGML_TYPE_F32, sizeof(float), rows);
    columns.ne[1] = run->n_used;
    columns.nb[2] = columns.nb[1] * run->n_used;
    columns.nb[3] = columns.nb[2];
    columns.buffer = buffer;
    columns.data = data;
    return columns;
}

static bool find_places(const struct ats_stream *stream, const struct maker *m,
                        struct ats_expert_run *run)
{
    const struct ats_experts *experts = &stream->experts;
    const struct ggml_tensor *result = result_of(m);
    run->column_bytes = result->nb[1];
    run->host_result = result->data;
    run->list_stride = ats_experts_list_stride(stream->device);
    const size_t lists = ATS_EXPERT_LISTS * run->list_stride;
    run->lists = ats_raw_tensor(experts->exchange, experts->exchange_base, lists);
    run->packed = columns_at(run, result->ne[0], experts->exchange, experts->exchange_base + lists);
    struct ggml_tensor place = columns_at(run, result->ne[0], NULL, NULL);
    const bool ok = move_to_accel(m, result, &place);
    run->result = place;
    run->numbers = calloc(1, lists);
    return ok && (run->numbers != NULL || ats_fail(m->err, "out of memory"));
}

/* The graphs of one side, for each number of columns. */
static bool make_graphs(struct maker *m, struct ats_expert_run *run)
{
    struct ats_expert_graph *graphs = calloc(run->n_used, sizeof(*graphs));
    run->by_columns[m->side] = graphs;
    if (graphs == NULL) {
        return ats_fail(m->err, "out of memory");
    }
    for (uint32_t n = 1; n <= run->n_used; n++) {
        m->n = n;
        m->out = &graphs[n - 1];
        if (!make_graph(m)) {
            return false;
        }
    }
    return true;
}

bool ats_expert_run_make(const struct ats_stream *stream, const struct ats_description *description,
                         const struct ggml_cgraph *cgraph, const struct ats_expert_region *region,
                         struct ats_expert_run *run, struct ats_error *err)
{
    *run = (struct ats_expert_run){
        .store = ats_experts_store(stream, description, cgraph, region),
        .ids = region->ids,
    };
    run->n_used = (uint32_t)run->ids->ne[0];
    struct maker m = {.description = description,
                      .cgraph = cgraph,
                      .region = region,
                      .run = run,
                      .host_ids = run->host_ids,
                      .err = err};
    bool ok = find_places(stream, &m, run);
    for (int side = 0; ok && side < ATS_SIDES; side++) {
        m.side = (enum ats_side)side;
        ok = make_graphs(&m, run);
    }
    m.out = &run->order;
    return ok && make_order(&m);
}

bool ats_expert_host_graph_make(const struct ats_description *description,
                                const struct ggml_cgraph *cgraph,
                                const struct ats_expert_region *region, const int32_t *ids,
                                const struct ggml_tensor *input, uint32_t n,
                                struct ats_expert_graph *graph, struct ats_error *err)
{
    struct maker m = {.description = description,
                      .cgraph = cgraph,
                      .region = region,
                      .side = ATS_HOST,
                      .n = n,
                      .out = graph,
                      .host_ids = ids,
                      .input = input,
                      .err = err};
    const bool ok = make_graph(&m);
    graph->graph.uid = 0; /* its shapes change */
    return ok;
}

void ats_expert_host_graph_resize(struct ats_expert_graph *graph, uint32_t n)
{
    for (size_t i = 0; i < graph->n_tensors; i++) {
        struct ggml_tensor *tensor = &graph->tensors[i];
        const int columns = i < INPUT ? 0 : 1; /* the dimension */
        tensor->ne[columns] = n;
        for (int d = columns + 1; d < GGML_MAX_DIMS; d++) {
            tensor->nb[d] = tensor->nb[d - 1] * (size_t)tensor->ne[d - 1];
        }
    }
}

void ats_expert_graph_free(struct ats_expert_graph *graph)
{
    ats_graph_free_counts(&graph->graph);
    free(graph->graph.nodes);
    free(graph->tensors);
}

void ats_expert_run_free(struct ats_expert_run *run)
{
    for (int side = 0; side < ATS_SIDES; side++) {
        for (uint32_t i = 0; run->by_columns[side] != NULL && i < run->n_used; i++) {
            ats_expert_graph_free(&run->by_columns[side][i]);
        }
        free(run->by_columns[side]);
    }
    ats_expert_graph_free(&run->order);
    free(run->numbers);
}
