#include "backend/experts.h"

#include "backend/observe.h"
#include "backend/residency.h"
#include "backend/stand_ins.h"
#include "backend/stream.h"
#include "backend/unplaced.h"
#include "base/parse.h"
#include "base/rng.h"

#include <stdlib.h>
#include <string.h>

/* ---- what a region consists of ---- */

/* The matrices and vectors of a region's experts. */
struct parts {
    struct ats_record *weights[ATS_EXPERT_MOST_PARTS];
    uint32_t n_weights;
    struct ats_record *biases[ATS_EXPERT_MOST_PARTS];
    uint32_t n_biases;
    const struct ggml_tensor *ids;
    const struct ggml_tensor *result;
};

static const struct ats_location *location_of(const struct ats_description *d,
                                              const struct ggml_tensor *tensor)
{
    const struct ats_tensor_entry *entry =
        ats_description_find((struct ats_description *)(uintptr_t)d, tensor);
    return entry == NULL || entry->root == ATS_NO_ROOT ? NULL : &d->locations[entry->root];
}

/* Adds the record of a weight to a list. False: it is no weight that both sides could read, or the
 * list is full. */
static bool add_weight(const struct ats_description *d, const struct ggml_tensor *tensor,
                       struct ats_record **list, uint32_t *n)
{
    const struct ats_location *location = location_of(d, tensor);
    if (location == NULL || location->record == NULL || location->written || !location->host_can ||
        !location->accel_can || tensor->view_src != NULL || tensor->op != GGML_OP_NONE ||
        !atomic_load(&location->record->buffer->is_weights) || *n == ATS_EXPERT_MOST_PARTS) {
        return false;
    }
    list[(*n)++] = location->record;
    return true;
}

static bool add_parts(const struct ats_description *d, const struct ggml_tensor *node,
                      struct parts *parts)
{
    if (node->op == GGML_OP_ADD_ID) {
        return add_weight(d, node->src[1], parts->biases, &parts->n_biases);
    }
    if (node->op != GGML_OP_MUL_MAT_ID) {
        return true;
    }
    const struct ggml_tensor *weight = node->src[0];
    return ggml_is_contiguous(weight) && weight->ne[3] == 1 &&
           (parts->n_weights == 0 || weight->ne[2] == parts->weights[0]->as_made.ne[2]) &&
           add_weight(d, weight, parts->weights, &parts->n_weights);
}

/* False: the region is not one whose experts could be in slots. */
static bool list_parts(const struct ats_description *d, const struct ggml_cgraph *cgraph,
                       const struct ats_expert_region *region, struct parts *parts)
{
    *parts =
        (struct parts){.ids = region->ids, .result = cgraph->nodes[region->first + region->n - 1]};
    if (parts->ids->type != GGML_TYPE_I32 || parts->ids->ne[0] > ATS_EXPERT_MOST_USED) {
        return false;
    }
    for (size_t i = region->first; i < region->first + region->n; i++) {
        /* an operator that is marked has been looked at before */
        if (!ats_op_is_empty(cgraph->nodes[i]) && d->ops[i].supported != ATS_ON_BOTH &&
            d->ops[i].region == 0) {
            return false;
        }
        if (!add_parts(d, cgraph->nodes[i], parts)) {
            return false;
        }
    }
    return true;
}

/* Bytes of one expert's part of a weight. */
static size_t part_bytes(const struct ats_record *weight)
{
    return weight->as_made.nb[2];
}

/* ---- wanting ---- */

static bool wants_slices(const struct ats_device *device)
{
    const enum ats_rule_kind rule = device->config->rule.kind;
    const bool fills = rule == ATS_RULE_AUTO || rule == ATS_RULE_FILL;
    switch (device->config->experts) {
    case ATS_EXPERTS_WHOLE:
        break;
    case ATS_EXPERTS_SLICES:
        return fills || rule == ATS_RULE_RANDOM;
    case ATS_EXPERTS_AUTO:
        return fills && ats_device_can_pin(device) && (!device->is_decided || device->slices);
    }
    return false;
}

/* They were asked for, and the rule has no place for them. */
static void tell_no_slices(struct ats_device *device)
{
    if (device->config->experts == ATS_EXPERTS_SLICES && !device->told_no_slices) {
        device->told_no_slices = true;
        ats_log_warn(
            "%s: no experts by slice: ATS_PLACEMENT says where whole tensors live; they go "
            "with the rules auto, fill and random\n",
            device->name);
    }
}

/* A region's experts, if none of them has a home yet. */
static bool is_unplaced(const struct parts *parts)
{
    for (uint32_t p = 0; p < parts->n_weights; p++) {
        if (parts->weights[p]->home != 0) {
            return false;
        }
    }
    return parts->n_weights > 0;
}

static struct ats_expert_layer layer_of(const struct parts *parts)
{
    struct ats_expert_layer layer = {.n_experts = (int32_t)parts->weights[0]->as_made.ne[2]};
    for (uint32_t p = 0; p < parts->n_weights; p++) {
        layer.expert_bytes += part_bytes(parts->weights[p]);
    }
    return layer;
}

/* Leaves the layers whole that are better off so. */
static void choose_whole(const struct ats_device *device, const struct ats_description *d,
                         struct ats_expert_layer *layers, size_t n)
{
    if (device->config->rule.kind == ATS_RULE_RANDOM) {
        return;
    }
    const size_t left = ats_device_vram_left(device);
    size_t others = ats_unplaced_bytes(device, d);
    const size_t all = others;
    for (size_t i = 0; i < n; i++) {
        const size_t bytes = (size_t)layers[i].n_experts * layers[i].expert_bytes;
        others -= bytes < others ? bytes : others;
    }
    const size_t for_experts = others < left ? left - others : 0;
    const bool whole =
        all <= left || (device->config->experts == ATS_EXPERTS_AUTO && !device->is_decided &&
                        !ats_expert_slices_win(layers, n, for_experts));
    ats_expert_choose_whole(layers, n, whole ? SIZE_MAX : for_experts);
}

void ats_experts_want(struct ats_stream *stream, const struct ats_description *description,
                      const struct ggml_cgraph *cgraph, const struct ats_expert_region *regions,
                      size_t n_regions)
{
    if (n_regions == 0) {
        return;
    }
    if (!wants_slices(stream->device)) {
        tell_no_slices(stream->device);
        return;
    }
    struct parts *parts = calloc(n_regions, sizeof(*parts));
    struct ats_expert_layer *layers = calloc(n_regions, sizeof(*layers));
    size_t n = 0; /* without memory none, and weights are placed as they are */
    for (size_t i = 0; parts != NULL && layers != NULL && i < n_regions; i++) {
        if (list_parts(description, cgraph, &regions[i], &parts[n]) && is_unplaced(&parts[n])) {
            layers[n] = layer_of(&parts[n]);
            n++;
        }
    }
    choose_whole(stream->device, description, layers, n);
    for (size_t i = 0; i < n; i++) {
        for (uint32_t p = 0; p < parts[i].n_weights; p++) {
            parts[i].weights[p]->sliced = !layers[i].whole;
        }
    }
    free(parts);
    free(layers);
}

/* Whether the graph has weights or state without a home. */
static bool brings_something(const struct ats_description *d)
{
    for (size_t r = 0; r < d->graph.n_roots; r++) {
        const struct ats_location *location = &d->locations[r];
        if (location->record != NULL && location->record->home == 0 && !location->is_node &&
            location->first_use != SIZE_MAX &&
            (location->written || atomic_load(&location->record->buffer->is_weights))) {
            return true;
        }
    }
    return false;
}

void ats_experts_make_way(struct ats_stream *stream, const struct ats_description *description)
{
    struct ats_device *device = stream->device;
    if (!brings_something(description)) {
        return;
    }
    for (struct ats_stream *s = device->streams; s != NULL; s = s->next) {
        if (s->experts.exchange != NULL) {
            ats_device_drain(device);
            ats_experts_release(s);
            device->epoch++;
        }
    }
}

/* ---- slots ---- */

/* Whether the store's part is of that weight, and not of one that was at its address before. */
static bool is_part(const struct ats_expert_store *store, uint32_t part,
                    const struct ats_record *weight)
{
    const struct ggml_tensor *made = &weight->as_made;
    const struct ggml_tensor *mine = &store->in_vram[part];
    return store->weights[part] == weight && made->type == mine->type &&
           made->ne[0] == mine->ne[0] && made->ne[1] == mine->ne[1] &&
           made->ne[2] == store->slots.n_experts;
}

static bool is_of(const struct ats_expert_store *store, const struct parts *parts)
{
    if (store->slots.n_parts != parts->n_weights) {
        return false;
    }
    for (uint32_t p = 0; p < parts->n_weights; p++) {
        if (!is_part(store, p, parts->weights[p])) {
            return false;
        }
    }
    return true;
}

static struct ats_expert_store *find_store(const struct ats_stream *stream,
                                           const struct parts *parts)
{
    for (size_t i = 0; i < stream->experts.n_stores; i++) {
        if (is_of(stream->experts.stores[i], parts)) {
            return stream->experts.stores[i];
        }
    }
    return NULL;
}

struct ats_expert_store *ats_experts_store(const struct ats_stream *stream,
                                           const struct ats_description *description,
                                           const struct ggml_cgraph *cgraph,
                                           const struct ats_expert_region *region)
{
    struct parts parts;
    return list_parts(description, cgraph, region, &parts) ? find_store(stream, &parts) : NULL;
}

struct ats_expert_store *ats_experts_store_of(const struct ats_stream *stream,
                                              const struct ats_record *weight, uint32_t *part)
{
    for (size_t i = 0; i < stream->experts.n_stores; i++) {
        struct ats_expert_store *store = stream->experts.stores[i];
        for (uint32_t p = 0; p < store->slots.n_parts; p++) {
            if (is_part(store, p, weight)) {
                *part = p;
                return store;
            }
        }
    }
    return NULL;
}

/* A weight with n_slots matrices, without a place. */
static struct ggml_tensor shaped(const struct ats_record *weight, int32_t n_slots)
{
    struct ggml_tensor tensor = weight->as_made;
    tensor.op = GGML_OP_NONE;
    tensor.flags = 0;
    memset(tensor.src, 0, sizeof(tensor.src));
    tensor.view_src = NULL;
    tensor.view_offs = 0;
    tensor.buffer = NULL;
    tensor.data = NULL;
    tensor.extra = NULL;
    tensor.ne[2] = n_slots;
    tensor.nb[3] = tensor.nb[2] * (size_t)n_slots;
    return tensor;
}

static size_t round_up(size_t n, size_t alignment)
{
    return (n + alignment - 1) / alignment * alignment;
}

static size_t list_bytes(const struct ats_device *device, int32_t n_slots)
{
    return round_up((size_t)n_slots * sizeof(int32_t),
                    ggml_backend_buft_get_alignment(device->accel_buffer_type));
}

/* What a layer's slots take in VRAM. */
static size_t slots_bytes(const struct ats_device *device, const struct parts *parts,
                          int32_t n_slots)
{
    size_t bytes = 0;
    for (uint32_t p = 0; p < parts->n_weights; p++) {
        const struct ggml_tensor tensor = shaped(parts->weights[p], n_slots);
        bytes += ats_vram_bytes(device, &tensor);
    }
    return bytes + list_bytes(device, n_slots);
}

static void free_store(struct ats_stream *stream, struct ats_expert_store *store)
{
    if (store == NULL) {
        return;
    }
    if (store->arrived != NULL) {
        ggml_backend_event_free(store->arrived);
    }
    if (store->buffer != NULL) {
        ats_observe_store(stream, store, false);
        ggml_backend_buffer_free(store->buffer);
    }
    stream->device->vram_used -= store->bytes;
    ats_expert_slots_free(&store->slots);
    free(store);
}

/* Gives the store's tensors their places. */
static bool settle_store(struct ats_stream *stream, struct ats_expert_store *store,
                         const struct parts *parts, int32_t n_slots)
{
    struct ats_device *device = stream->device;
    const size_t bytes = slots_bytes(device, parts, n_slots);
    store->buffer = bytes <= ats_device_vram_left(device)
                        ? ggml_backend_buft_alloc_buffer(device->accel_buffer_type, bytes)
                        : NULL;
    if (store->buffer == NULL) {
        return false;
    }
    store->bytes = bytes;
    device->vram_used += bytes;
    ggml_backend_buffer_set_usage(store->buffer, GGML_BACKEND_BUFFER_USAGE_WEIGHTS);
    char *at = ggml_backend_buffer_get_base(store->buffer);
    for (uint32_t p = 0; p < parts->n_weights; p++) {
        store->weights[p] = parts->weights[p];
        store->in_vram[p] = shaped(parts->weights[p], n_slots);
        ggml_backend_tensor_alloc(store->buffer, &store->in_vram[p], at);
        at += ats_vram_bytes(device, &store->in_vram[p]);
        ats_buffer_pin(parts->weights[p]->buffer);
    }
    store->list = (struct ggml_tensor){.type = GGML_TYPE_I32,
                                       .buffer = store->buffer,
                                       .ne = {n_slots, 1, 1, 1},
                                       .op = GGML_OP_NONE,
                                       .data = at};
    store->list.nb[0] = sizeof(int32_t);
    for (int d = 1; d < GGML_MAX_DIMS; d++) {
        store->list.nb[d] = sizeof(int32_t) * (size_t)n_slots;
    }
    ats_observe_store(stream, store, true);
    return true;
}

static struct ats_expert_store *make_store(struct ats_stream *stream, const struct parts *parts,
                                           int32_t n_slots)
{
    struct ats_expert_store *store = calloc(1, sizeof(*store));
    size_t sizes[ATS_EXPERT_MOST_PARTS];
    for (uint32_t p = 0; p < parts->n_weights; p++) {
        sizes[p] = part_bytes(parts->weights[p]);
    }
    if (store == NULL ||
        !ats_expert_slots_init(&store->slots, (int32_t)parts->weights[0]->as_made.ne[2], n_slots,
                               sizes, parts->n_weights,
                               ats_expert_copy_share(&stream->device->rates)) ||
        !settle_store(stream, store, parts, n_slots)) {
        free_store(stream, store);
        return NULL;
    }
    if (stream->experts.transfer != NULL) {
        store->arrived = ggml_backend_event_new(stream->device->accel);
        if (store->arrived == NULL) {
            free_store(stream, store);
            return NULL;
        }
    }
    return store;
}

/* The first experts of each layer; which ones are needed shows when tokens come. */
static bool fill_store(struct ats_stream *stream, struct ats_expert_store *store)
{
    struct ats_device *device = stream->device;
    ats_observe_slots(stream, store, NULL, NULL, NULL, (uint32_t)store->slots.n_slots);
    for (uint32_t p = 0; p < store->slots.n_parts; p++) {
        const size_t bytes = store->slots.part_bytes[p] * (size_t)store->slots.n_slots;
        ggml_backend_tensor_set_async(stream->accel, &store->in_vram[p],
                                      ats_record_host(store->weights[p]), 0, bytes);
        device->counters.copied_to_accel_bytes += bytes;
    }
    ats_observe_slots(stream, NULL, NULL, NULL, NULL, 0);
    ggml_backend_synchronize(stream->accel);
    struct ats_error err = {{0}};
    if (ats_accel_failed(stream->accel, &err)) {
        ats_log_warn("%s: no experts in VRAM: %s\n", device->name, err.text);
        return false;
    }
    ats_expert_slots_fill(&store->slots);
    return true;
}

/* ---- taking ---- */

size_t ats_experts_list_stride(const struct ats_device *device)
{
    return round_up(ATS_EXPERT_MOST_USED * sizeof(int32_t),
                    ggml_backend_buft_get_alignment(device->accel_buffer_type));
}

static size_t exchange_bytes(const struct ats_device *device, const struct parts *parts)
{
    return ATS_EXPERT_LISTS * ats_experts_list_stride(device) +
           (size_t)parts->result->ne[0] * (size_t)parts->ids->ne[0] * sizeof(float);
}

static void start_transfer_stream(struct ats_stream *stream)
{
    struct ats_experts *experts = &stream->experts;
    if (stream->device->config->transfer == ATS_TRANSFER_ASYNC) {
        experts->idle = ggml_backend_event_new(stream->device->accel);
    }
    if (experts->idle == NULL) {
        return;
    }
    experts->transfer = ggml_backend_dev_init(stream->device->accel, NULL);
    if (experts->transfer == NULL) {
        ggml_backend_event_free(experts->idle);
        experts->idle = NULL;
        return;
    }
    ats_observe_transfer(stream, experts->transfer);
}

static bool take_exchange(struct ats_stream *stream, size_t bytes)
{
    struct ats_experts *experts = &stream->experts;
    struct ats_device *device = stream->device;
    if (experts->exchange != NULL) {
        return true;
    }
    experts->exchange = bytes <= ats_device_vram_left(device)
                            ? ggml_backend_buft_alloc_buffer(device->accel_buffer_type, bytes)
                            : NULL;
    if (experts->exchange == NULL) {
        return false;
    }
    ggml_backend_buffer_set_usage(experts->exchange, GGML_BACKEND_BUFFER_USAGE_COMPUTE);
    experts->exchange_base = ggml_backend_buffer_get_base(experts->exchange);
    experts->exchange_bytes = bytes;
    experts->generation = device->weights_generation;
    device->vram_used += bytes;
    start_transfer_stream(stream);
    return true;
}

/* The accelerator adds the biases of its experts, so all are there too. */
static void take_biases(struct ats_stream *stream, const struct parts *parts)
{
    for (uint32_t i = 0; i < parts->n_biases; i++) {
        struct ats_record *bias = parts->biases[i];
        struct ats_error err = {{0}};
        if (bias->home == ATS_ON(ATS_HOST) && bias->block == NULL &&
            ats_vram_take(stream->device, &bias, 1, &err) &&
            ats_record_bring(bias, ATS_ACCEL, stream->accel, &err)) {
            bias->home = ATS_ON_BOTH;
            bias->displaced = 0;
        }
    }
}

/* Whether the accelerator can put columns into another order. */
static bool can_reorder(const struct ats_device *device, const struct parts *parts)
{
    const size_t column = (size_t)parts->result->ne[0] * sizeof(float);
    const int64_t n = parts->ids->ne[0];
    struct ggml_tensor columns = {
        .type = GGML_TYPE_F32,
        .ne = {parts->result->ne[0], n, 1, 1},
        .nb = {sizeof(float), column, column * (size_t)n, column * (size_t)n}};
    struct ggml_tensor order = {.type = GGML_TYPE_I32,
                                .ne = {n, 1, 1, 1},
                                .nb = {sizeof(int32_t), sizeof(int32_t) * (size_t)n,
                                       sizeof(int32_t) * (size_t)n, sizeof(int32_t) * (size_t)n}};
    struct ggml_tensor result = columns;
    result.op = GGML_OP_GET_ROWS;
    result.src[0] = &columns;
    result.src[1] = &order;
    return ggml_backend_dev_supports_op(device->accel, &result);
}

/* Whether the region's weights wait for slots. */
static bool is_waiting(const struct ats_stream *stream, const struct parts *parts)
{
    for (uint32_t p = 0; p < parts->n_weights; p++) {
        const struct ats_record *weight = parts->weights[p];
        if (!weight->sliced || weight->home != ATS_ON(ATS_HOST) ||
            (weight->valid & ATS_ON(ATS_HOST)) == 0 || weight->block != NULL) {
            return false;
        }
    }
    return parts->n_weights > 0 && find_store(stream, parts) == NULL &&
           can_reorder(stream->device, parts);
}

/* As many slots as the budget has for the layer; where placement is random, at random, not all. */
static int32_t count_slots(const struct ats_device *device, const struct parts *parts,
                           int32_t affordable)
{
    const struct ats_rule *rule = &device->config->rule;
    if (rule->kind != ATS_RULE_RANDOM) {
        return affordable;
    }
    struct ats_rng rng = {.state = rule->seed ^ parts->weights[0]->begin};
    const int64_t others = parts->weights[0]->as_made.ne[2] - 1;
    const int32_t drawn = 1 + (others > 0 ? (int32_t)ats_rng_below(&rng, (uint64_t)others) : 0);
    return drawn < affordable ? drawn : affordable;
}

struct waiting {
    struct parts *parts;
    struct ats_expert_layer *layers;
    size_t n;
    size_t exchange;
};

static bool list_waiting(struct ats_stream *stream, const struct ats_description *d,
                         const struct ggml_cgraph *cgraph, const struct ats_expert_region *regions,
                         size_t n_regions, struct waiting *w)
{
    *w = (struct waiting){.parts = calloc(n_regions + 1, sizeof(*w->parts)),
                          .layers = calloc(n_regions + 1, sizeof(*w->layers))};
    if (w->parts == NULL || w->layers == NULL) {
        return false;
    }
    for (size_t i = 0; i < n_regions; i++) {
        struct parts *parts = &w->parts[w->n];
        if (!list_parts(d, cgraph, &regions[i], parts) || !is_waiting(stream, parts)) {
            continue;
        }
        w->layers[w->n++] = layer_of(parts);
        const size_t bytes = exchange_bytes(stream->device, parts);
        w->exchange = bytes > w->exchange ? bytes : w->exchange;
    }
    return true;
}

/* What tensors take beside their matrices. */
static size_t padding_bytes(const struct ats_device *device, const struct waiting *w)
{
    const size_t alignment = ggml_backend_buft_get_alignment(device->accel_buffer_type);
    size_t bytes = 0;
    for (size_t i = 0; i < w->n; i++) {
        bytes += slots_bytes(device, &w->parts[i], 1) - w->layers[i].expert_bytes +
                 w->parts[i].n_weights * alignment + list_bytes(device, w->layers[i].n_experts);
    }
    return bytes;
}

static void tell(const struct ats_stream *stream, size_t n_layers)
{
    size_t slots = 0;
    size_t experts = 0;
    for (size_t i = 0; i < stream->experts.n_stores; i++) {
        slots += (size_t)stream->experts.stores[i]->slots.n_slots;
        experts += (size_t)stream->experts.stores[i]->slots.n_experts;
    }
    char text[32];
    ats_log_info("%s: experts by slice: %zu of %zu in VRAM (%s), %zu layers\n",
                 stream->device->name, slots, experts,
                 ats_format_bytes(stream->experts.vram_bytes, text, sizeof(text)), n_layers);
}

static void take_slots(struct ats_stream *stream, struct waiting *w)
{
    struct ats_experts *experts = &stream->experts;
    struct ats_device *device = stream->device;
    void *grown =
        realloc(experts->stores, (experts->n_stores + w->n) * sizeof(struct ats_expert_store *));
    const size_t padding = padding_bytes(device, w);
    if (grown == NULL || !take_exchange(stream, w->exchange) ||
        padding >= ats_device_vram_left(device)) {
        experts->stores = grown != NULL ? grown : experts->stores;
        return;
    }
    experts->stores = grown;
    ats_experts_refresh(stream);
    ats_expert_divide(w->layers, w->n, ats_device_vram_left(device) - padding);
    for (size_t i = 0; i < w->n; i++) {
        const int32_t n_slots = count_slots(device, &w->parts[i], w->layers[i].n_slots);
        struct ats_expert_store *store =
            n_slots > 0 ? make_store(stream, &w->parts[i], n_slots) : NULL;
        if (store != NULL && !fill_store(stream, store)) {
            free_store(stream, store);
            store = NULL;
        }
        if (store != NULL) {
            experts->stores[experts->n_stores++] = store;
            experts->vram_bytes += store->bytes;
        }
    }
    if (experts->n_stores > 0) {
        tell(stream, experts->n_stores);
    }
}

void ats_experts_take(struct ats_stream *stream, const struct ats_description *description,
                      const struct ggml_cgraph *cgraph, const struct ats_expert_region *regions,
                      size_t n_regions)
{
    struct waiting w;
    if (list_waiting(stream, description, cgraph, regions, n_regions, &w) && w.n > 0) {
        for (size_t i = 0; i < w.n; i++) {
            take_biases(stream, &w.parts[i]);
        }
        take_slots(stream, &w);
    }
    free(w.parts);
    free(w.layers);
}

/* ---- marking ---- */

static void mark_roots(struct ats_description *d, const struct parts *parts)
{
    for (size_t r = 0; r < d->graph.n_roots; r++) {
        for (uint32_t p = 0; p < parts->n_weights; p++) {
            if (d->locations[r].record == parts->weights[p]) {
                d->roots[r].sliced = true;
                d->roots[r].home = ATS_ON(ATS_ACCEL);
            }
        }
    }
}

void ats_experts_mark(struct ats_stream *stream, struct ats_description *description,
                      const struct ggml_cgraph *cgraph, const struct ats_expert_region *regions,
                      size_t n_regions)
{
    for (size_t i = 0; i < n_regions; i++) {
        struct parts parts;
        if (!list_parts(description, cgraph, &regions[i], &parts) || parts.result->ne[2] != 1 ||
            find_store(stream, &parts) == NULL ||
            exchange_bytes(stream->device, &parts) > stream->experts.exchange_bytes) {
            continue;
        }
        mark_roots(description, &parts);
        for (size_t k = regions[i].first; k < regions[i].first + regions[i].n; k++) {
            description->ops[k].region = (uint32_t)(i + 1);
            description->ops[k].supported = ATS_ON(ATS_ACCEL);
        }
    }
}

/* ---- giving back ---- */

void ats_experts_release(struct ats_stream *stream)
{
    struct ats_experts *experts = &stream->experts;
    if (experts->transfer != NULL) {
        ggml_backend_synchronize(experts->transfer);
    }
    for (size_t i = 0; i < experts->n_stores; i++) {
        free_store(stream, experts->stores[i]);
    }
    free(experts->stores);
    if (experts->exchange != NULL) {
        ggml_backend_buffer_free(experts->exchange);
        stream->device->vram_used -= experts->exchange_bytes;
    }
    if (experts->transfer != NULL) {
        ggml_backend_free(experts->transfer);
        ggml_backend_event_free(experts->idle);
    }
    *experts = (struct ats_experts){0};
}

void ats_experts_give_up(struct ats_stream *stream)
{
    struct ats_experts *experts = &stream->experts;
    for (size_t i = 0; i < experts->n_stores; i++) {
        stream->device->vram_used -= experts->stores[i]->bytes;
        experts->stores[i]->bytes = 0;
        ats_expert_slots_empty(&experts->stores[i]->slots);
    }
    stream->device->vram_used -= experts->exchange_bytes;
    experts->exchange_bytes = 0;
}

/* ---- during a pass ---- */

static void empty_slots(struct ats_stream *stream)
{
    for (size_t i = 0; i < stream->experts.n_stores; i++) {
        ats_expert_slots_empty(&stream->experts.stores[i]->slots);
        stream->experts.stores[i]->listed = false;
    }
}

void ats_experts_refresh(struct ats_stream *stream)
{
    const uint64_t generation = stream->device->weights_generation;
    if (stream->experts.generation != generation) {
        empty_slots(stream);
        stream->experts.generation = generation;
    }
}

static void order(struct ats_stream *stream, struct ats_expert_store *store,
                  bool (*next)(struct ats_expert_slots *slots, struct ats_expert_copy *copy))
{
    struct ats_device *device = stream->device;
    ggml_backend_t backend =
        stream->experts.transfer != NULL ? stream->experts.transfer : stream->accel;
    struct ats_expert_copy copy;
    bool whole = false;
    while (next(&store->slots, &copy)) {
        const size_t bytes = store->slots.part_bytes[copy.part];
        const char *host = ats_record_host(store->weights[copy.part]);
        ats_observe_slots(stream, store, NULL, &copy.slot, &copy.expert, 1);
        ggml_backend_tensor_set_async(backend, &store->in_vram[copy.part],
                                      host + bytes * (size_t)copy.expert, bytes * (size_t)copy.slot,
                                      bytes);
        device->counters.copied_to_accel_bytes += bytes;
        device->counters.expert_bytes += bytes;
        stream->in_flight = stream->in_flight || backend == stream->accel;
        store->listed = false;
        whole = whole || copy.last;
    }
    ats_observe_slots(stream, NULL, NULL, NULL, NULL, 0);
    if (whole && store->arrived != NULL) {
        ggml_backend_event_record(store->arrived, backend);
        store->fresh = true;
    }
}

void ats_experts_admit(struct ats_stream *stream, struct ats_expert_store *store)
{
    order(stream, store, ats_expert_slots_next);
}

void ats_experts_finish(struct ats_stream *stream, struct ats_expert_store *store)
{
    order(stream, store, ats_expert_slots_finish);
}

void ats_experts_keep(struct ats_stream *stream, bool well)
{
    if (!well) {
        empty_slots(stream);
    }
}
