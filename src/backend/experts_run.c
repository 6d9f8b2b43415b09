#include "backend/experts_run.h"

#include "backend/observe.h"
#include "backend/residency.h"
#include "backend/stream.h"

#include <string.h>

/* What a token's ids say, in host memory. False: they are no experts of this layer. */
static bool read_ids(const struct ats_expert_run *run, int32_t *experts, struct ats_error *err)
{
    for (uint32_t i = 0; i < run->n_used; i++) {
        memcpy(&experts[i], (const char *)run->ids->data + i * run->ids->nb[0], sizeof(int32_t));
        if (experts[i] < 0 || experts[i] >= run->store->slots.n_experts) {
            return ats_fail(err, "%s names expert %d of %d", run->ids->name, (int)experts[i],
                            (int)run->store->slots.n_experts);
        }
    }
    return true;
}

/* Fills the lists: slots and experts of the hits, and for each column its place among the packed
 * ones, hits before misses. Starts their copy. */
static void send_lists(struct ats_stream *stream, struct ats_expert_run *run,
                       const int32_t *experts, const struct ats_expert_columns *columns)
{
    const size_t stride = run->list_stride / sizeof(int32_t);
    int32_t *slots = run->numbers + ATS_EXPERT_SLOT_IDS * stride;
    int32_t *ids = run->numbers + ATS_EXPERT_IDS * stride;
    int32_t *order = run->numbers + ATS_EXPERT_ORDER * stride;
    for (uint32_t i = 0; i < columns->n_hits; i++) {
        slots[i] = columns->slot[i];
        ids[i] = experts[columns->hit[i]];
        order[columns->hit[i]] = (int32_t)i;
    }
    for (uint32_t i = 0; i < columns->n_misses; i++) {
        order[columns->miss[i]] = (int32_t)(columns->n_hits + i);
    }
    const size_t bytes = ATS_EXPERT_ORDER * run->list_stride + run->n_used * sizeof(int32_t);
    ggml_backend_tensor_set_async(stream->accel, &run->lists, run->numbers, 0, bytes);
    stream->device->counters.copied_to_accel_bytes += bytes;
}

static double share_of(const struct ats_expert_run *run, uint32_t n_columns)
{
    return (double)n_columns / run->n_used;
}

static enum ggml_status compute_hits(struct ats_stream *stream, struct ats_expert_run *run,
                                     const int32_t *experts,
                                     const struct ats_expert_columns *columns)
{
    struct ats_expert_store *store = run->store;
    if (store->fresh) {
        ggml_backend_event_wait(stream->accel, store->arrived);
        store->fresh = false;
    }
    send_lists(stream, run, experts, columns);
    stream->in_flight = true;
    ats_meter_given(stream, run->profile_us[ATS_ACCEL] * share_of(run, columns->n_hits));
    const size_t stride = run->list_stride / sizeof(int32_t);
    ats_observe_slots(stream, store, NULL, run->numbers + ATS_EXPERT_SLOT_IDS * stride,
                      run->numbers + ATS_EXPERT_IDS * stride, columns->n_hits);
    const enum ggml_status status = ggml_backend_graph_compute_async(
        stream->accel, &run->by_columns[ATS_ACCEL][columns->n_hits - 1].graph);
    ats_observe_slots(stream, NULL, NULL, NULL, NULL, 0);
    return status;
}

/* The CPU's columns, and their copy to where the accelerator expects them. */
static enum ggml_status compute_misses(struct ats_stream *stream, struct ats_expert_run *run,
                                       const int32_t *experts,
                                       const struct ats_expert_columns *columns)
{
    for (uint32_t i = 0; i < columns->n_misses; i++) {
        run->host_ids[i] = experts[columns->miss[i]];
    }
    ats_meter_look(stream); /* ids and copies were not the CPU side's work */
    const enum ggml_status status = ggml_backend_graph_compute_async(
        stream->cpu.backend, &run->by_columns[ATS_HOST][columns->n_misses - 1].graph);
    if (status != GGML_STATUS_SUCCESS) {
        return status;
    }
    ats_meter_cpu(stream, run->profile_us[ATS_HOST] * share_of(run, columns->n_misses));
    const size_t bytes = columns->n_misses * run->column_bytes;
    ats_meter_copy(stream, bytes);
    ggml_backend_tensor_set_async(stream->accel, columns->n_hits == 0 ? &run->result : &run->packed,
                                  run->host_result, columns->n_hits * run->column_bytes, bytes);
    stream->device->counters.copied_to_accel_bytes += bytes;
    stream->in_flight = true;
    return GGML_STATUS_SUCCESS;
}

enum ggml_status ats_experts_run(struct ats_stream *stream, struct ats_expert_run *run,
                                 struct ats_error *err)
{
    int32_t experts[ATS_EXPERT_MOST_USED];
    struct ats_expert_columns columns;
    /* the ids and the input have arrived, and the layer's slots have no reader left */
    ats_stream_wait(stream);
    if ((stream->reports_errors && ats_accel_failed(stream->accel, err)) ||
        !read_ids(run, experts, err)) {
        return GGML_STATUS_FAILED;
    }
    ats_expert_slots_use(&run->store->slots, experts, run->n_used, &columns);
    stream->device->counters.expert_hits += columns.n_hits;
    stream->device->counters.expert_misses += columns.n_misses;
    enum ggml_status status = GGML_STATUS_SUCCESS;
    if (columns.n_hits > 0) {
        status = compute_hits(stream, run, experts, &columns);
    }
    ats_experts_admit(stream, run->store);
    if (status == GGML_STATUS_SUCCESS && columns.n_misses > 0) {
        status = compute_misses(stream, run, experts, &columns);
    }
    if (status == GGML_STATUS_SUCCESS && columns.n_hits > 0 && columns.n_misses > 0) {
        status = ggml_backend_graph_compute_async(stream->accel, &run->order.graph);
    }
    return status;
}
