/* Copying a graph at enqueue (compute.h says why). Called for every graph of
 * every token, so it is two passes over the nodes, a hash table that is never
 * cleared (slots carry an epoch) and blocks that are reused. */
#include "emu/compute.h"

#include <stdlib.h>
#include <string.h>

enum {
    FIRST_TENSORS = 1024,
    /* more than a caller has graphs in flight; beyond it blocks are freed */
    MAX_POOLED = 8,
};

void ats_emu_cloner_init(struct ats_emu_cloner *cloner)
{
    *cloner = (struct ats_emu_cloner){0};
    pthread_mutex_init(&cloner->pool_lock, NULL);
}

void ats_emu_cloner_destroy(struct ats_emu_cloner *cloner)
{
    while (cloner->pool != NULL) {
        struct ats_emu_graph *graph = cloner->pool;
        cloner->pool = graph->next;
        free(graph);
    }
    free(cloner->tensors);
    free(cloner->reached);
    free(cloner->slots);
    pthread_mutex_destroy(&cloner->pool_lock);
}

/* A block of at least `bytes` from the pool or from the host. */
static struct ats_emu_graph *take_block(struct ats_emu_cloner *cloner, size_t bytes)
{
    pthread_mutex_lock(&cloner->pool_lock);
    struct ats_emu_graph **link = &cloner->pool;
    while (*link != NULL && (*link)->capacity < bytes) {
        link = &(*link)->next;
    }
    struct ats_emu_graph *graph = *link;
    if (graph != NULL) {
        *link = graph->next;
        cloner->pool_size--;
    }
    pthread_mutex_unlock(&cloner->pool_lock);
    if (graph == NULL) {
        const size_t rounded = (bytes + 4095) / 4096 * 4096;
        graph = aligned_alloc(64, rounded);
        if (graph != NULL) {
            graph->capacity = rounded;
        }
    }
    return graph;
}

void ats_emu_clone_release(struct ats_emu_cloner *cloner, struct ats_emu_graph *graph)
{
    pthread_mutex_lock(&cloner->pool_lock);
    const bool keep = cloner->pool_size < MAX_POOLED;
    if (keep) {
        graph->next = cloner->pool;
        cloner->pool = graph;
        cloner->pool_size++;
    }
    pthread_mutex_unlock(&cloner->pool_lock);
    if (!keep) {
        free(graph);
    }
}

static size_t slot_of(const struct ats_emu_cloner *cloner, const struct ggml_tensor *tensor)
{
    /* Fibonacci hashing; the low bits of an address say little */
    const uint64_t key = ((uint64_t)(uintptr_t)tensor >> 4) * UINT64_C(0x9E3779B97F4A7C15);
    size_t at = (size_t)(key >> 32) & (cloner->n_slots - 1);
    while (cloner->slots[at].epoch == cloner->epoch && cloner->slots[at].tensor != tensor) {
        at = (at + 1) & (cloner->n_slots - 1);
    }
    return at;
}

/* The index of a tensor that is in the table. */
static size_t index_of(const struct ats_emu_cloner *cloner, const struct ggml_tensor *tensor)
{
    return cloner->slots[slot_of(cloner, tensor)].index;
}

/* Doubles the tables and enters the tensors again. */
static bool grow(struct ats_emu_cloner *cloner)
{
    const size_t capacity = cloner->capacity == 0 ? FIRST_TENSORS : cloner->capacity * 2;
    const struct ggml_tensor **tensors =
        realloc(cloner->tensors, capacity * sizeof(const struct ggml_tensor *));
    if (tensors == NULL) {
        return false;
    }
    cloner->tensors = tensors;
    bool *reached = realloc(cloner->reached, capacity * sizeof(reached[0]));
    if (reached == NULL) {
        return false;
    }
    cloner->reached = reached;
    struct ats_emu_clone_slot *slots = calloc(capacity * 2, sizeof(slots[0]));
    if (slots == NULL) {
        return false;
    }
    free(cloner->slots);
    cloner->slots = slots;
    cloner->n_slots = capacity * 2;
    cloner->capacity = capacity;
    cloner->epoch = 1;
    for (size_t i = 0; i < cloner->n_tensors; i++) {
        cloner->slots[slot_of(cloner, tensors[i])] =
            (struct ats_emu_clone_slot){tensors[i], (uint32_t)i, cloner->epoch};
    }
    return true;
}

static bool add_tensor(struct ats_emu_cloner *cloner, const struct ggml_tensor *tensor)
{
    if (cloner->n_tensors == cloner->capacity && !grow(cloner)) {
        return false;
    }
    const size_t at = slot_of(cloner, tensor);
    if (cloner->slots[at].epoch != cloner->epoch) {
        cloner->slots[at] =
            (struct ats_emu_clone_slot){tensor, (uint32_t)cloner->n_tensors, cloner->epoch};
        cloner->tensors[cloner->n_tensors++] = tensor;
    }
    return true;
}

static void forget_tensors(struct ats_emu_cloner *cloner)
{
    cloner->n_tensors = 0;
    cloner->epoch++;
    if (cloner->epoch == 0 && cloner->slots != NULL) {
        memset(cloner->slots, 0, cloner->n_slots * sizeof(cloner->slots[0]));
        cloner->epoch = 1;
    }
}

/* Lists the graph's distinct tensors: first its nodes (their number is
 * returned in `n_nodes`), then what they read, then what those are views of. */
static bool list_tensors(struct ats_emu_cloner *cloner, const struct ggml_cgraph *cgraph,
                         size_t *n_nodes)
{
    forget_tensors(cloner);
    for (int i = 0; i < cgraph->n_nodes; i++) {
        if (!add_tensor(cloner, cgraph->nodes[i])) {
            return false;
        }
    }
    *n_nodes = cloner->n_tensors;
    for (int i = 0; i < cgraph->n_nodes; i++) {
        for (int j = 0; j < GGML_MAX_SRC; j++) {
            const struct ggml_tensor *src = cgraph->nodes[i]->src[j];
            if (src != NULL && !add_tensor(cloner, src)) {
                return false;
            }
        }
    }
    for (size_t i = 0; i < cloner->n_tensors; i++) {
        const struct ggml_tensor *root = cloner->tensors[i]->view_src;
        if (root != NULL && !add_tensor(cloner, root)) {
            return false;
        }
    }
    return true;
}

/* How often the caller's whole graph reads `node`; 0 if it does not say. */
static int32_t use_count(const struct ggml_cgraph *cgraph, const struct ggml_tensor *node)
{
    const struct ggml_hash_set *set = &cgraph->visited_hash_set;
    if (set->size == 0 || set->keys == NULL || cgraph->use_counts == NULL) {
        return 0;
    }
    const size_t slot = ggml_hash_find(set, node);
    if (slot == GGML_HASHSET_FULL || !ggml_bitset_get(set->used, slot)) {
        return 0;
    }
    return cgraph->use_counts[slot];
}

/* The parts of the block, in this order behind struct ats_emu_graph. */
struct layout {
    size_t n_nodes; /* distinct */
    size_t hash_size;
    size_t tensors;
    size_t nodes;
    size_t keys;
    size_t use_counts;
    size_t used;
    size_t end;
};

static size_t append(size_t *end, size_t bytes)
{
    const size_t at = *end;
    *end = (at + bytes + 63) / 64 * 64;
    return at;
}

static struct layout plan_layout(size_t n_tensors, size_t n_nodes, size_t n_graph_nodes)
{
    /* odd, and so without a common factor with a stride of 2^k; half full at most */
    struct layout layout = {.n_nodes = n_nodes, .hash_size = 2 * n_nodes + 1};
    size_t end = 0;
    append(&end, sizeof(struct ats_emu_graph));
    layout.tensors = append(&end, n_tensors * sizeof(struct ggml_tensor));
    layout.nodes = append(&end, n_graph_nodes * sizeof(struct ggml_tensor *));
    layout.keys = append(&end, layout.hash_size * sizeof(struct ggml_tensor *));
    layout.use_counts = append(&end, layout.hash_size * sizeof(int32_t));
    layout.used = append(&end, ggml_bitset_size(layout.hash_size) * sizeof(ggml_bitset_t));
    layout.end = end;
    return layout;
}

/* Copies tensor i. Without buffer and extra, which may be gone when it is used. */
static void copy_tensor(struct ats_emu_cloner *cloner, struct ats_emu_device *device, size_t i,
                        bool is_node, struct ggml_tensor *copies)
{
    const struct ggml_tensor *tensor = cloner->tensors[i];
    struct ggml_tensor *copy = &copies[i];
    *copy = *tensor;
    copy->buffer = NULL;
    copy->extra = NULL;
    copy->view_src = tensor->view_src == NULL ? NULL : &copies[index_of(cloner, tensor->view_src)];
    for (int j = 0; j < GGML_MAX_SRC; j++) {
        const struct ggml_tensor *src = is_node ? tensor->src[j] : NULL;
        copy->src[j] = src == NULL ? NULL : &copies[index_of(cloner, src)];
    }
    const size_t bytes = ggml_nbytes(tensor);
    uint8_t *data = ats_emu_memory_shadow_locked(&device->memory, tensor->data, bytes);
    cloner->reached[i] = bytes == 0 || data != NULL;
    if (data != NULL) {
        copy->data = data;
    } else if (bytes > 0 && ats_emu_pinned_contains(tensor->data, bytes)) {
        cloner->reached[i] = true;
    }
}

static bool is_executed(const struct ggml_tensor *node)
{
    return !ggml_op_is_empty(node->op) && (node->flags & GGML_TENSOR_FLAG_COMPUTE) != 0;
}

/* `copy` is asked about support rather than `node`: it has no buffer that may be stale. */
static bool check_node(const struct ats_emu_cloner *cloner, const struct ggml_tensor *node,
                       const struct ggml_tensor *copy, const struct ats_emu_device *device,
                       struct ats_error *err)
{
    if (!is_executed(node)) {
        return true;
    }
    if (!ats_emu_supports_op(copy)) {
        return ats_fail(err, "%s cannot compute operator %s (node '%s')", device->name,
                        ggml_op_name(node->op), node->name);
    }
    for (int j = -1; j < GGML_MAX_SRC; j++) {
        const struct ggml_tensor *tensor = j < 0 ? node : node->src[j];
        if (tensor != NULL && !cloner->reached[index_of(cloner, tensor)]) {
            return ats_fail(err,
                            "%s cannot reach tensor '%s' at %p (%s of %s '%s'): it is neither in "
                            "memory allocated on this device nor in pinned host memory",
                            device->name, tensor->name, tensor->data, j < 0 ? "result" : "source",
                            ggml_op_name(node->op), node->name);
        }
    }
    return true;
}

/* Enters the use counts where ggml_hash_find will look for the copies. */
static void copy_use_counts(const struct ats_emu_cloner *cloner, const struct ggml_cgraph *cgraph,
                            struct ggml_tensor *copies, size_t n_nodes, struct ggml_cgraph *copy)
{
    struct ggml_hash_set *set = &copy->visited_hash_set;
    memset(set->used, 0, ggml_bitset_size(set->size) * sizeof(ggml_bitset_t));
    for (size_t i = 0; i < n_nodes; i++) {
        size_t at = ggml_hash(&copies[i]) % set->size;
        while (ggml_bitset_get(set->used, at)) {
            at = (at + 1) % set->size;
        }
        ggml_bitset_set(set->used, at);
        set->keys[at] = &copies[i];
        copy->use_counts[at] = use_count(cgraph, cloner->tensors[i]);
    }
}

static void fill_block(struct ats_emu_cloner *cloner, struct ats_emu_device *device,
                       const struct ggml_cgraph *cgraph, const struct layout *layout,
                       struct ats_emu_graph *graph)
{
    uint8_t *block = (uint8_t *)graph;
    struct ggml_tensor *copies = (struct ggml_tensor *)(void *)(block + layout->tensors);
    graph->cgraph = (struct ggml_cgraph){
        .n_nodes = cgraph->n_nodes,
        .nodes = (struct ggml_tensor **)(void *)(block + layout->nodes),
        .use_counts = (int32_t *)(void *)(block + layout->use_counts),
        .visited_hash_set = {.size = layout->hash_size,
                             .used = (ggml_bitset_t *)(void *)(block + layout->used),
                             .keys = (struct ggml_tensor **)(void *)(block + layout->keys)},
        .order = cgraph->order,
    };
    pthread_mutex_lock(&device->memory.lock);
    for (size_t i = 0; i < cloner->n_tensors; i++) {
        copy_tensor(cloner, device, i, i < layout->n_nodes, copies);
    }
    pthread_mutex_unlock(&device->memory.lock);
    for (int i = 0; i < cgraph->n_nodes; i++) {
        graph->cgraph.nodes[i] = &copies[index_of(cloner, cgraph->nodes[i])];
    }
    copy_use_counts(cloner, cgraph, copies, layout->n_nodes, &graph->cgraph);
}

struct ats_emu_graph *ats_emu_clone(struct ats_emu_cloner *cloner, struct ats_emu_device *device,
                                    const struct ggml_cgraph *cgraph, struct ats_error *err)
{
    size_t n_nodes = 0;
    if (!list_tensors(cloner, cgraph, &n_nodes)) {
        ats_fail(err, "out of host memory for a graph of %d nodes", cgraph->n_nodes);
        return NULL;
    }
    const struct layout layout = plan_layout(cloner->n_tensors, n_nodes, (size_t)cgraph->n_nodes);
    struct ats_emu_graph *graph = take_block(cloner, layout.end);
    if (graph == NULL) {
        ats_fail(err, "out of host memory for a graph of %d nodes", cgraph->n_nodes);
        return NULL;
    }
    fill_block(cloner, device, cgraph, &layout, graph);
    for (int i = 0; i < cgraph->n_nodes; i++) {
        if (!check_node(cloner, cgraph->nodes[i], graph->cgraph.nodes[i], device, err)) {
            ats_emu_clone_release(cloner, graph);
            return NULL;
        }
    }
    return graph;
}
