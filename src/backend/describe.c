#include "backend/describe.h"

#include "bind/node_shape.h"

#include <stdlib.h>
#include <string.h>

bool ats_op_is_empty(const struct ggml_tensor *node)
{
    switch (node->op) {
    case GGML_OP_NONE:
    case GGML_OP_RESHAPE:
    case GGML_OP_VIEW:
    case GGML_OP_PERMUTE:
    case GGML_OP_TRANSPOSE:
        return true;
    default:
        return ggml_is_empty(node);
    }
}

/* ---- tensors and roots ---- */

struct ats_tensor_entry *ats_description_find(struct ats_description *description,
                                              const struct ggml_tensor *tensor)
{
    struct ats_tensor_entry *entry = NULL;
    HASH_FIND_PTR(description->table, &tensor, entry);
    return entry;
}

/* NULL: out of memory. */
static struct ats_tensor_entry *add_entry(struct ats_description *d,
                                          const struct ggml_tensor *tensor)
{
    struct ats_tensor_entry *entry = &d->entries[d->n_entries];
    *entry = (struct ats_tensor_entry){.tensor = tensor, .root = ATS_NO_ROOT, .node = -1};
    HASH_ADD_PTR(d->table, tensor, entry);
    if (entry->hh.tbl == NULL) {
        return NULL;
    }
    d->n_entries++;
    return entry;
}

static bool locate(const struct ats_device *device, const struct ats_description *d,
                   const struct ggml_tensor *root, struct ats_location *location,
                   struct ats_error *err)
{
    *location = (struct ats_location){
        .tensor = root, .bytes = ggml_nbytes(root), .host_can = true, .accel_can = true};
    struct ats_buffer *buffer = ats_buffer_of(root->buffer);
    if (buffer == NULL || buffer->device != device) {
        if (buffer == NULL && root->buffer != NULL &&
            ggml_backend_buft_is_host(root->buffer->buft)) {
            return true;
        }
        /* a scheduler's split may hold views of another device's tensor that nothing in it
         * reads; describe_op refuses the operators that do */
        location->unreachable = true;
        return true;
    }
    location->buffer = buffer;
    location->begin = (size_t)((char *)root->data - buffer->base);
    ats_buffer_note_usage(buffer);
    if (!ats_buffer_is_compute(buffer)) {
        location->record =
            d->only_known ? ats_buffer_known(buffer, root) : ats_buffer_record(buffer, root);
        if (location->record == NULL) {
            return ats_fail(err, d->only_known ? "tensor %s is new" : "tensor %s: out of memory",
                            root->name);
        }
    }
    return true;
}

/* The root of `tensor`, made known on first sight. ATS_NO_ROOT for an empty tensor. */
static bool root_of(struct ats_device *device, struct ats_description *d,
                    const struct ggml_tensor *tensor, int32_t *root, struct ats_error *err)
{
    struct ats_tensor_entry *entry = ats_description_find(d, tensor);
    if (entry == NULL) {
        entry = add_entry(d, tensor);
        if (entry == NULL) {
            return ats_fail(err, "out of memory");
        }
        const struct ggml_tensor *source = ats_root_of(tensor);
        if (source == tensor) {
            if (ggml_nbytes(tensor) > 0) {
                entry->root = (int32_t)d->graph.n_roots;
                if (!locate(device, d, tensor, &d->locations[entry->root], err)) {
                    return false;
                }
                d->locations[entry->root].first_use = SIZE_MAX;
                d->graph.n_roots++;
            }
        } else if (!root_of(device, d, source, &entry->root, err)) {
            return false;
        }
    }
    *root = entry->root;
    return true;
}

/* ---- operators ---- */

static void estimate(const struct ats_plan_rates *rates, const struct ggml_tensor *node,
                     struct ats_op *op)
{
    const struct ats_op_shape shape = ats_node_shape(node);
    for (int side = 0; side < ATS_SIDES; side++) {
        op->cost_us[side] = (float)ats_cost_op_us(&rates->side[side], &shape);
    }
}

static void note_use(struct ats_location *location, size_t op_index, ats_side_set supported)
{
    if (location->first_use == SIZE_MAX) {
        location->first_use = op_index;
    }
    location->last_use = op_index;
    location->host_can = location->host_can && (supported & ATS_ON(ATS_HOST)) != 0;
    location->accel_can = location->accel_can && (supported & ATS_ON(ATS_ACCEL)) != 0;
}

static bool reachable(const struct ats_device *device, const struct ats_description *d,
                      int32_t root, struct ats_error *err)
{
    if (root == ATS_NO_ROOT || !d->locations[root].unreachable) {
        return true;
    }
    return ats_fail(err, "tensor %s is in memory that %s cannot reach",
                    d->locations[root].tensor->name, device->name);
}

static bool describe_op(struct ats_device *device, struct ats_description *d, size_t index,
                        const struct ggml_tensor *node, struct ats_error *err)
{
    struct ats_op *op = &d->ops[index];
    *op = (struct ats_op){
        .first_read = (uint32_t)d->n_reads, .write = ATS_NO_ROOT, .supported = ATS_ON_BOTH};
    int32_t written = ATS_NO_ROOT;
    if (!root_of(device, d, node, &written, err)) {
        return false;
    }
    ats_description_find(d, node)->node = (int32_t)index;
    const bool empty = ats_op_is_empty(node);
    bool foreign = false;
    for (int s = 0; s < GGML_MAX_SRC; s++) {
        int32_t root = ATS_NO_ROOT;
        if (node->src[s] == NULL) {
            continue; /* optional sources leave gaps: attention sinks without a mask */
        }
        if (!root_of(device, d, node->src[s], &root, err)) {
            return false;
        }
        if (!empty && !reachable(device, d, root, err)) {
            return false;
        }
        if (root != ATS_NO_ROOT && !empty) {
            d->reads[d->n_reads++] = (uint32_t)root;
            op->n_reads++;
            foreign = foreign || d->locations[root].buffer == NULL;
        }
    }
    if (empty) {
        return true;
    }
    if (!reachable(device, d, written, err)) {
        return false;
    }
    op->write = written;
    op->ids = node->op == GGML_OP_MUL_MAT_ID ? 2 : 0;
    op->partial_write = node->view_src != NULL;
    op->supported = 0;
    if (ggml_backend_dev_supports_op(device->cpu, node)) {
        op->supported |= ATS_ON(ATS_HOST);
    }
    if (!foreign && ggml_backend_dev_supports_op(device->accel, node)) {
        op->supported |= ATS_ON(ATS_ACCEL);
    }
    if (op->supported == 0) {
        return ats_fail(err, "neither side of %s can compute the operator %s of tensor %s",
                        device->name, ggml_op_desc(node), node->name);
    }
    estimate(d->rates, node, op);
    for (uint32_t r = 0; r < op->n_reads; r++) {
        note_use(&d->locations[d->reads[op->first_read + r]], index, op->supported);
    }
    if (written != ATS_NO_ROOT) {
        struct ats_location *location = &d->locations[written];
        note_use(location, index, op->supported);
        location->written = true;
        location->last_write = index;
        location->is_node = location->is_node || node->view_src == NULL;
    }
    return true;
}

/* ---- the whole graph ---- */

static size_t count_tensors(const struct ggml_cgraph *cgraph)
{
    size_t n = 0;
    for (int i = 0; i < cgraph->n_nodes; i++) {
        n += 2; /* itself and the root of its view */
        for (int s = 0; s < GGML_MAX_SRC; s++) {
            n += cgraph->nodes[i]->src[s] != NULL ? 2 : 0;
        }
    }
    return n;
}

uint32_t ats_graph_tokens(const struct ggml_cgraph *cgraph)
{
    for (int i = 0; i < cgraph->n_nodes; i++) {
        const struct ggml_tensor *node = cgraph->nodes[i];
        if (node->op == GGML_OP_MUL_MAT && node->src[0]->op == GGML_OP_NONE) {
            return (uint32_t)(node->ne[1] * node->ne[2] * node->ne[3]);
        }
    }
    return 0;
}

bool ats_describe(struct ats_device *device, const struct ats_plan_rates *rates,
                  const struct ggml_cgraph *cgraph, bool only_known, struct ats_description *out,
                  struct ats_error *err)
{
    const size_t n = count_tensors(cgraph) + 1;
    const size_t n_ops = (size_t)cgraph->n_nodes;
    *out = (struct ats_description){
        .ops = calloc(n_ops + 1, sizeof(*out->ops)),
        .reads = calloc(n, sizeof(*out->reads)),
        .roots = calloc(n, sizeof(*out->roots)),
        .locations = calloc(n, sizeof(*out->locations)),
        .entries = calloc(n, sizeof(*out->entries)),
        .rates = rates,
        .cgraph = cgraph,
        .only_known = only_known,
    };
    if (out->ops == NULL || out->reads == NULL || out->roots == NULL || out->locations == NULL ||
        out->entries == NULL) {
        ats_description_free(out);
        return ats_fail(err, "out of memory");
    }
    out->graph = (struct ats_graph_desc){
        .ops = out->ops, .n_ops = n_ops, .reads = out->reads, .roots = out->roots};
    for (size_t i = 0; i < n_ops; i++) {
        if (!describe_op(device, out, i, cgraph->nodes[i], err)) {
            ats_description_free(out);
            return false;
        }
    }
    return true;
}

void ats_describe_homes(struct ats_description *description)
{
    for (size_t r = 0; r < description->graph.n_roots; r++) {
        const struct ats_location *location = &description->locations[r];
        description->roots[r] = (struct ats_root){
            .bytes = location->bytes,
            .home = location->record != NULL ? location->record->home : 0,
        };
        if (location->buffer == NULL) {
            description->roots[r].home = ATS_ON(ATS_HOST);
        }
    }
}

void ats_description_free(struct ats_description *description)
{
    HASH_CLEAR(hh, description->table);
    free(description->ops);
    free(description->reads);
    free(description->roots);
    free(description->locations);
    free(description->entries);
    free(description->used);
    *description = (struct ats_description){0};
}
