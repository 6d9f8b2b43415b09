#include "backend/experts_fill.h"

#include "backend/observe.h"
#include "backend/stand_ins.h"
#include "backend/stream.h"

#include <stdlib.h>

/* `n` rows of words, `stride` from one to the next. */
static struct ggml_tensor rows(size_t row_bytes, size_t stride, int64_t n,
                               ggml_backend_buffer_t buffer, void *data)
{
    return (struct ggml_tensor){
        .type = GGML_TYPE_F32,
        .buffer = buffer,
        .ne = {(int64_t)(row_bytes / sizeof(float)), n, 1, 1},
        .nb = {sizeof(float), stride, stride * (size_t)n, stride * (size_t)n},
        .op = GGML_OP_NONE,
        .data = data,
    };
}

static bool make_graph(const struct ats_stream *stream, struct ats_expert_fill *fill)
{
    struct ats_expert_store *store = fill->store;
    fill->result = fill->place;
    fill->result.op = GGML_OP_SET_ROWS;
    fill->result.flags = GGML_TENSOR_FLAG_COMPUTE;
    fill->result.view_src = &fill->place;
    fill->result.src[0] = &fill->slots;
    fill->result.src[1] = &store->list;
    fill->result.src[2] = &fill->place;
    fill->node = &fill->result;
    struct ats_error err = {{0}};
    if (!ggml_backend_dev_supports_op(stream->device->accel, &fill->result) ||
        !ats_graph_make_counts(&fill->graph, 4) || !ats_stand_in_init(&fill->place, &err) ||
        !ats_stand_in_init(&fill->slots, &err) || !ats_stand_in_init(&fill->result, &err)) {
        return false;
    }
    ats_graph_set_uses(&fill->graph, &fill->result, 1);
    fill->graph = ats_graph_slice(&fill->graph, &fill->node, 0, 1);
    return true;
}

struct ats_expert_fill *ats_expert_fill_make(const struct ats_stream *stream,
                                             const struct ats_partition_costs *costs,
                                             const struct ats_record *weight,
                                             const struct ats_part *of,
                                             const struct ggml_tensor *accel)
{
    uint32_t part = 0;
    struct ats_expert_store *store =
        weight->sliced ? ats_experts_store_of(stream, weight, &part) : NULL;
    if (store == NULL || store->slots.part_bytes[part] % sizeof(float) != 0) {
        return NULL;
    }
    struct ats_part each = *of;
    if (of->bytes == weight->bytes) { /* all of it */
        each.n = (size_t)store->slots.n_experts;
        each.bytes = store->slots.part_bytes[part];
        each.stride = each.bytes;
    }
    if (each.bytes % sizeof(float) != 0 || each.offset % sizeof(float) != 0) {
        return NULL;
    }
    struct ats_expert_fill *fill = calloc(1, sizeof(*fill));
    if (fill == NULL) {
        return NULL;
    }
    const struct ggml_tensor *slots = &store->in_vram[part];
    fill->store = store;
    fill->widest_gap = ats_expert_widest_gap(each.bytes, costs);
    fill->part = part;
    fill->of = each;
    fill->place = rows(each.bytes, each.bytes, store->slots.n_experts, accel->buffer, accel->data);
    ats_name_after(&fill->place, &weight->as_made);
    fill->slots = rows(each.bytes, store->slots.part_bytes[part], store->slots.n_slots,
                       slots->buffer, (char *)slots->data + each.offset);
    if (!make_graph(stream, fill)) {
        ats_expert_fill_free(fill);
        return NULL;
    }
    return fill;
}

void ats_expert_fill_free(struct ats_expert_fill *fill)
{
    if (fill != NULL) {
        ats_graph_free_counts(&fill->graph);
        free(fill);
    }
}

void ats_expert_fill_begin(struct ats_stream *stream)
{
    struct ats_experts *experts = &stream->experts;
    for (size_t i = 0; i < experts->n_stores; i++) {
        ats_experts_finish(stream, experts->stores[i]);
        experts->stores[i]->serves = ats_expert_slots_full(&experts->stores[i]->slots);
    }
    if (experts->transfer != NULL) {
        ggml_backend_event_record(experts->idle, experts->transfer);
        ggml_backend_event_wait(stream->accel, experts->idle);
    }
}

/* `n` experts' part of the weight, from `first` on. */
static size_t copy_experts(const struct ats_expert_fill *fill, const struct ats_record *weight,
                           struct ggml_tensor *accel, ggml_backend_t backend, int32_t first,
                           int32_t n)
{
    const struct ats_part *of = &fill->of;
    const char *host =
        (const char *)ats_record_host(weight) + of->offset + of->stride * (size_t)first;
    const size_t offset = of->bytes * (size_t)first;
    const size_t bytes = of->bytes * (size_t)n;
    if (of->stride == of->bytes) {
        ggml_backend_tensor_set_async(backend, accel, host, offset, bytes);
    } else {
        ggml_backend_tensor_set_2d_async(backend, accel, host, offset, of->bytes, (size_t)n,
                                         of->bytes, of->stride);
    }
    return bytes;
}

size_t ats_expert_fill_copy(const struct ats_expert_fill *fill, const struct ats_record *weight,
                            struct ggml_tensor *accel, ggml_backend_t backend)
{
    const struct ats_expert_slots *slots = &fill->store->slots;
    const int32_t gap = fill->widest_gap;
    size_t crossed = 0;
    int32_t n = slots->n_experts;
    if (!fill->store->serves) {
        return copy_experts(fill, weight, accel, backend, 0, n);
    }
    for (int32_t first = 0; ats_expert_slots_run(slots, gap, &first, &n); first += n) {
        crossed += copy_experts(fill, weight, accel, backend, first, n);
    }
    return crossed;
}

bool ats_expert_fill_scatter(struct ats_stream *stream, struct ats_expert_fill *fill)
{
    struct ats_expert_store *store = fill->store;
    if (!store->serves) {
        return true;
    }
    if (!store->listed) {
        ggml_backend_tensor_set_async(stream->accel, &store->list, store->slots.expert_of, 0,
                                      (size_t)store->slots.n_slots * sizeof(int32_t));
        store->listed = true;
    }
    stream->in_flight = true;
    ats_observe_slots(stream, store, fill, NULL, store->slots.expert_of,
                      (uint32_t)store->slots.n_slots);
    const enum ggml_status status = ggml_backend_graph_compute_async(stream->accel, &fill->graph);
    ats_observe_slots(stream, NULL, NULL, NULL, NULL, 0);
    return status == GGML_STATUS_SUCCESS;
}
