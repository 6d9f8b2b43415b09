#include "backend/stand_ins.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

ggml_backend_buffer_t ats_accel_buffer(const struct ats_location *location)
{
    if (location->staging != NULL) {
        return location->staging;
    }
    if (location->record != NULL) {
        return location->record->block != NULL ? location->record->block->buffer : NULL;
    }
    return location->buffer != NULL ? location->buffer->mirror : NULL;
}

void *ats_accel_address(const struct ats_location *location, const void *data)
{
    const size_t offset = (size_t)((const char *)data - location->buffer->base);
    if (location->staging != NULL) {
        return location->staged + (offset - location->begin);
    }
    if (location->record != NULL) {
        return (char *)location->record->accel.data + (offset - location->begin);
    }
    return location->buffer->mirror_base + offset;
}

struct ggml_cgraph ats_graph_slice(const struct ggml_cgraph *graph, struct ggml_tensor **nodes,
                                   size_t first, size_t n)
{
    /* ggml counts its graph identities from 1; ours come from the other end */
    static atomic_ullong next_uid = UINT64_C(1) << 63;
    return (struct ggml_cgraph){
        .size = (int)n,
        .n_nodes = (int)n,
        .nodes = nodes + first,
        .use_counts = graph->use_counts,
        .visited_hash_set = graph->visited_hash_set,
        .order = graph->order,
        .uid = atomic_fetch_add(&next_uid, 1),
    };
}

struct maker {
    struct ats_description *description;
    const enum ats_side *sides;
    struct ats_stand_ins *out;
    struct ats_error *err;
};

/* A tensor without elements, in place of what the accelerator does not see. */
static struct ggml_tensor *blank(const struct maker *m)
{
    return &m->out->tensors[0];
}

/* A weight's lasting stand-in serves if the graph sees the tensor as it was made. */
static bool is_lasting(const struct ats_location *location, const struct ggml_tensor *tensor)
{
    const struct ggml_tensor *lasting = &location->record->accel;
    return tensor->op == GGML_OP_NONE && tensor->view_src == NULL &&
           tensor->type == lasting->type &&
           memcmp(tensor->ne, lasting->ne, sizeof(tensor->ne)) == 0 &&
           memcmp(tensor->nb, lasting->nb, sizeof(tensor->nb)) == 0;
}

static struct ggml_tensor *stand_in_of(struct maker *m, const struct ggml_tensor *tensor);

bool ats_stand_in_init(struct ggml_tensor *copy, struct ats_error *err)
{
    if (copy->buffer == NULL || copy->buffer->iface.init_tensor == NULL ||
        copy->buffer->iface.init_tensor(copy->buffer, copy) == GGML_STATUS_SUCCESS) {
        return true;
    }
    return ats_fail(err, "the accelerator could not set up tensor %s", copy->name);
}

/* Whether the operator runs in pieces, or with experts by use. */
static bool is_alone(const struct maker *m, size_t op)
{
    return ats_alone_read(&m->description->graph, &m->description->ops[op], m->sides[op]) !=
           ATS_NO_ROOT;
}

/* Whether the accelerator runs this tensor's operator as it is in this graph. To it, all else
 * is data. */
static bool runs_here(const struct maker *m, const struct ats_tensor_entry *entry)
{
    return entry->node >= 0 && m->sides[entry->node] == ATS_ACCEL &&
           m->description->ops[entry->node].region == 0 && !is_alone(m, (size_t)entry->node);
}

static bool make_operand(struct maker *m, const struct ggml_tensor *tensor)
{
    const struct ggml_tensor *copy = stand_in_of(m, tensor);
    return copy != NULL &&
           (copy != blank(m) ||
            ats_fail(m->err, "tensor %s has no place on the accelerator", tensor->name));
}

/* The result of an operator that runs alone, and what it reads besides the weight. */
static bool make_operands(struct maker *m, const struct ggml_tensor *node)
{
    for (int s = 1; s < GGML_MAX_SRC; s++) {
        if (node->src[s] != NULL && !make_operand(m, node->src[s])) {
            return false;
        }
    }
    return make_operand(m, node);
}

static bool fill_sources(struct maker *m, const struct ggml_tensor *tensor,
                         struct ggml_tensor *copy)
{
    const bool empty = ats_op_is_empty(tensor);
    for (int s = 0; s < GGML_MAX_SRC; s++) {
        if (tensor->src[s] == NULL) {
            continue; /* optional sources leave gaps: attention sinks without a mask */
        }
        copy->src[s] = stand_in_of(m, tensor->src[s]);
        if (copy->src[s] == NULL) {
            return false;
        }
        if (copy->src[s] == blank(m) && !empty && ggml_nbytes(tensor->src[s]) > 0) {
            return ats_fail(m->err, "tensor %s has no place on the accelerator",
                            tensor->src[s]->name);
        }
    }
    return true;
}

/* Fills `copy`, which is already the entry's stand-in, so that a tensor that is its
 * own source (ggml_cpy's result) ends the recursion. */
static bool fill_stand_in(struct maker *m, const struct ats_tensor_entry *entry,
                          struct ggml_tensor *copy)
{
    const struct ggml_tensor *tensor = entry->tensor;
    *copy = *tensor;
    copy->extra = NULL;
    copy->view_src = NULL;
    copy->view_offs = 0;
    memset(copy->src, 0, sizeof(copy->src));
    if (entry->root != ATS_NO_ROOT) {
        const struct ats_location *location = &m->description->locations[entry->root];
        copy->buffer = ats_accel_buffer(location);
        copy->data = ats_accel_address(location, tensor->data);
        if (tensor->view_src != NULL) {
            copy->view_src = stand_in_of(m, ats_root_of(tensor));
            if (copy->view_src == NULL) {
                return false;
            }
            copy->view_offs = (size_t)((char *)copy->data - (char *)copy->view_src->data);
        }
    }
    if (!runs_here(m, entry)) {
        copy->op = GGML_OP_NONE;
    } else if (!fill_sources(m, tensor, copy)) {
        return false;
    }
    return ats_stand_in_init(copy, m->err);
}

/* The stand-in of a tensor of the graph; the blank one if it has no place on the
 * accelerator (then only views that nothing reads there refer to it). NULL: error. */
static struct ggml_tensor *stand_in_of(struct maker *m, const struct ggml_tensor *tensor)
{
    struct ats_tensor_entry *entry = ats_description_find(m->description, tensor);
    if (entry->stand_in != NULL) {
        return entry->stand_in;
    }
    if (entry->root != ATS_NO_ROOT) {
        const struct ats_location *location = &m->description->locations[entry->root];
        if (ats_accel_buffer(location) == NULL) {
            return blank(m);
        }
        if (location->record != NULL && location->staging == NULL && is_lasting(location, tensor)) {
            entry->stand_in = &location->record->accel;
            return entry->stand_in;
        }
    }
    entry->stand_in = &m->out->tensors[m->out->n_tensors++];
    return fill_stand_in(m, entry, entry->stand_in) ? entry->stand_in : NULL;
}

/* ---- the graph of stand-ins ---- */

bool ats_graph_make_counts(struct ggml_cgraph *graph, size_t n)
{
    const size_t size = 2 * n + 1;
    graph->visited_hash_set = (struct ggml_hash_set){
        .size = size,
        .used = calloc(ggml_bitset_size(size), sizeof(ggml_bitset_t)),
        .keys = calloc(size, sizeof(struct ggml_tensor *)),
    };
    graph->use_counts = calloc(size, sizeof(*graph->use_counts));
    return graph->visited_hash_set.used != NULL && graph->visited_hash_set.keys != NULL &&
           graph->use_counts != NULL;
}

/* Uses of `tensor` as the whole graph of llama.cpp counts them, or -1 if the graph does
 * not know the tensor. */
static int32_t uses_in(const struct ggml_cgraph *cgraph, const struct ggml_tensor *tensor)
{
    const struct ggml_hash_set *set = &cgraph->visited_hash_set;
    if (set->size == 0 || set->keys == NULL || cgraph->use_counts == NULL) {
        return -1;
    }
    const size_t slot = ggml_hash_find(set, tensor);
    return slot != GGML_HASHSET_FULL && ggml_bitset_get(set->used, slot) ? cgraph->use_counts[slot]
                                                                         : -1;
}

/* Uses of `tensor` by the nodes of `cgraph` alone: for graphs that come without counts. */
static int32_t uses_here(const struct ggml_cgraph *cgraph, const struct ggml_tensor *tensor)
{
    int32_t uses = 0;
    for (int i = 0; i < cgraph->n_nodes; i++) {
        for (int s = 0; s < GGML_MAX_SRC; s++) {
            uses += cgraph->nodes[i]->src[s] == tensor;
        }
    }
    return uses;
}

int32_t ats_graph_uses(const struct ggml_cgraph *cgraph, const struct ggml_tensor *tensor)
{
    const int32_t uses = uses_in(cgraph, tensor);
    return uses >= 0 ? uses : uses_here(cgraph, tensor);
}

void ats_graph_set_uses(struct ggml_cgraph *graph, struct ggml_tensor *tensor, int32_t uses)
{
    struct ggml_hash_set *set = &graph->visited_hash_set;
    const size_t slot = ggml_hash_find(set, tensor);
    ggml_bitset_set(set->used, slot);
    set->keys[slot] = tensor;
    graph->use_counts[slot] = uses;
}

void ats_graph_free_counts(struct ggml_cgraph *graph)
{
    free(graph->visited_hash_set.used);
    free(graph->visited_hash_set.keys);
    free(graph->use_counts);
}

static void count_uses(struct ats_description *d, const struct ggml_cgraph *cgraph,
                       struct ggml_cgraph *graph)
{
    for (size_t e = 0; e < d->n_entries; e++) {
        const struct ats_tensor_entry *entry = &d->entries[e];
        if (entry->stand_in != NULL) {
            ats_graph_set_uses(graph, entry->stand_in, ats_graph_uses(cgraph, entry->tensor));
        }
    }
}

/* What leaves the accelerator must exist in memory: keep it from being fused away. */
static void mark_outputs(struct ats_description *d, const struct ats_schedule *schedule)
{
    for (size_t e = 0; e < d->n_entries; e++) {
        const struct ats_tensor_entry *entry = &d->entries[e];
        if (entry->stand_in != NULL && entry->root != ATS_NO_ROOT &&
            entry->tensor->op != GGML_OP_NONE &&
            (schedule->copied[entry->root] & ATS_ON(ATS_HOST)) != 0) {
            entry->stand_in->flags |= GGML_TENSOR_FLAG_OUTPUT;
        }
    }
}

bool ats_stand_ins_make(struct ats_description *description, const struct ggml_cgraph *cgraph,
                        const enum ats_side *sides, const struct ats_schedule *schedule,
                        struct ats_stand_ins *out, struct ats_error *err)
{
    const size_t n_nodes = (size_t)cgraph->n_nodes;
    *out = (struct ats_stand_ins){
        .tensors = calloc(description->n_entries + 1, sizeof(*out->tensors)),
        .n_tensors = 1, /* the first stays blank */
        .nodes = calloc(n_nodes + 1, sizeof(struct ggml_tensor *)),
    };
    if (out->tensors == NULL || out->nodes == NULL ||
        !ats_graph_make_counts(&out->graph, description->n_entries)) {
        ats_stand_ins_free(out);
        return ats_fail(err, "out of memory");
    }
    struct maker m = {.description = description, .sides = sides, .out = out, .err = err};
    for (size_t i = 0; i < n_nodes; i++) {
        if (sides[i] != ATS_ACCEL || description->ops[i].region != 0) {
            continue;
        }
        if (is_alone(&m, i)) {
            if (!make_operands(&m, cgraph->nodes[i])) {
                ats_stand_ins_free(out);
                return false;
            }
            continue;
        }
        out->nodes[i] = stand_in_of(&m, cgraph->nodes[i]);
        if (out->nodes[i] == NULL) {
            ats_stand_ins_free(out);
            return false;
        }
    }
    out->graph.order = cgraph->order;
    count_uses(description, cgraph, &out->graph);
    mark_outputs(description, schedule);
    return true;
}

void ats_stand_ins_free(struct ats_stand_ins *stand_ins)
{
    free(stand_ins->tensors);
    free(stand_ins->nodes);
    ats_graph_free_counts(&stand_ins->graph);
    *stand_ins = (struct ats_stand_ins){0};
}
