#include "backend/experts_fill.h"

#include "backend/stand_ins.h"
#include "backend/stream.h"
#include "plan/partition.h"

#include <stdlib.h>

/* `n` rows of words. */
static struct ggml_tensor rows(size_t row_bytes, int64_t n, ggml_backend_buffer_t buffer,
                               void *data)
{
    return (struct ggml_tensor){
        .type = GGML_TYPE_F32,
        .buffer = buffer,
        .ne = {(int64_t)(row_bytes / sizeof(float)), n, 1, 1},
        .nb = {sizeof(float), row_bytes, row_bytes * (size_t)n, row_bytes * (size_t)n},
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
                                             const struct ats_record *weight,
                                             const struct ggml_tensor *accel)
{
    uint32_t part = 0;
    struct ats_expert_store *store =
        weight->sliced ? ats_experts_store_of(stream, weight, &part) : NULL;
    if (store == NULL || store->slots.part_bytes[part] % sizeof(float) != 0) {
        return NULL;
    }
    struct ats_expert_fill *fill = calloc(1, sizeof(*fill));
    if (fill == NULL) {
        return NULL;
    }
    const size_t bytes = store->slots.part_bytes[part];
    const struct ggml_tensor *slots = &store->in_vram[part];
    fill->store = store;
    fill->part = part;
    fill->expert_bytes = bytes;
    fill->place = rows(bytes, store->slots.n_experts, accel->buffer, accel->data);
    fill->slots = rows(bytes, store->slots.n_slots, slots->buffer, slots->data);
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

void ats_expert_fill_begin(struct ats_stream *stream, ggml_backend_t backend)
{
    if (stream->experts.transfer != NULL) {
        ggml_backend_event_record(stream->experts.idle, stream->experts.transfer);
        ggml_backend_event_wait(backend, stream->experts.idle);
    }
}

/* Puts what is in slots to its places. False: nothing is there. */
static bool scatter(struct ats_expert_fill *fill, ggml_backend_t backend)
{
    struct ats_expert_store *store = fill->store;
    if (store->listed_on != backend) {
        if (ats_expert_slots_list(&store->slots, store->places) == 0) {
            return false;
        }
        ggml_backend_tensor_set_async(backend, &store->list, store->places, 0,
                                      (size_t)store->slots.n_slots * sizeof(int32_t));
        store->listed_on = backend;
    }
    return ggml_backend_graph_compute_async(backend, &fill->graph) == GGML_STATUS_SUCCESS;
}

/* How many experts may lie between two runs: to copy them too takes no longer than another copy. */
static int32_t widest_gap(const struct ats_expert_fill *fill)
{
    const float bytes =
        ats_partition_default_costs.copy_latency_us * ats_partition_default_costs.link_bytes_per_us;
    return (int32_t)(bytes / (float)fill->expert_bytes);
}

size_t ats_expert_fill_copy(struct ats_expert_fill *fill, const struct ats_record *weight,
                            struct ggml_tensor *accel, ggml_backend_t backend)
{
    const struct ats_expert_slots *slots = &fill->store->slots;
    const char *host = ats_record_host(weight);
    if (!scatter(fill, backend)) {
        ggml_backend_tensor_set_async(backend, accel, host, 0, weight->bytes);
        return weight->bytes;
    }
    size_t crossed = 0;
    int32_t n = 0;
    for (int32_t first = 0; ats_expert_slots_run(slots, widest_gap(fill), &first, &n); first += n) {
        const size_t offset = fill->expert_bytes * (size_t)first;
        const size_t bytes = fill->expert_bytes * (size_t)n;
        ggml_backend_tensor_set_async(backend, accel, host + offset, offset, bytes);
        crossed += bytes;
    }
    return crossed;
}
