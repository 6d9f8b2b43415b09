#include "backend/executor.h"

static bool accel_ok(struct ats_stream *stream, struct ats_error *err)
{
    return !ats_accel_failed(stream->accel, err);
}

static void wait_for_accel(struct ats_stream *stream)
{
    if (stream->in_flight) {
        ggml_backend_synchronize(stream->accel);
        stream->in_flight = false;
    }
}

/* Starts a copy to `side`; complete once the accelerator has been waited for. */
static void start_copy(struct ats_stream *stream, const struct ats_transfer *transfer,
                       enum ats_side side)
{
    struct ats_device *device = stream->device;
    char *host = transfer->buffer->base + transfer->begin;
    if (side == ATS_ACCEL) {
        /* const in effect: the tensor only carries the address */
        struct ggml_tensor accel = transfer->accel;
        ggml_backend_tensor_set_async(stream->accel, &accel, host, 0, transfer->bytes);
        device->counters.copied_to_accel_bytes += transfer->bytes;
    } else {
        ggml_backend_tensor_get_async(stream->accel, &transfer->accel, host, 0, transfer->bytes);
        device->counters.copied_to_host_bytes += transfer->bytes;
    }
    stream->in_flight = true;
}

/* ---- what the graph expects to find ---- */

static ats_side_set valid_now(const struct ats_transfer *transfer)
{
    return transfer->record != NULL ? transfer->record->valid
                                    : ats_range_map_at(&transfer->buffer->ranges, transfer->begin);
}

static bool bring_externals(struct ats_stream *stream, const struct ats_graph_plan *plan,
                            struct ats_error *err)
{
    bool to_host = false;
    for (size_t i = 0; i < plan->n_externals; i++) {
        const struct ats_external *external = &plan->externals[i];
        const struct ats_transfer *transfer = &external->transfer;
        const ats_side_set valid = valid_now(transfer);
        const ats_side_set missing = external->needs & (ats_side_set)~valid;
        if (missing == 0) {
            continue;
        }
        if (valid == 0) {
            return ats_fail(err, "tensor %s was lost with %s; make the context anew",
                            transfer->record->as_made.name,
                            ggml_backend_dev_name(stream->device->accel));
        }
        const enum ats_side side = (missing & ATS_ON(ATS_ACCEL)) != 0 ? ATS_ACCEL : ATS_HOST;
        start_copy(stream, transfer, side);
        to_host = to_host || side == ATS_HOST;
        if (transfer->record != NULL) {
            transfer->record->valid |= ATS_ON(side);
        } else {
            /* without memory for the entry the copy is made again next time */
            (void)ats_range_map_set(&transfer->buffer->ranges, transfer->begin,
                                    transfer->begin + transfer->bytes, valid | ATS_ON(side));
        }
    }
    if (to_host) {
        wait_for_accel(stream);
    }
    return true;
}

/* ---- splits ---- */

static enum ggml_status run_split(struct ats_stream *stream, const struct ats_graph_plan *plan,
                                  const struct ats_plan_split *split)
{
    for (size_t c = 0; c < split->n_copies; c++) {
        start_copy(stream, &plan->copies[split->first_copy + c], split->side);
    }
    if (!split->computes) {
        return GGML_STATUS_SUCCESS;
    }
    struct ggml_cgraph graph = split->graph;
    if (split->side == ATS_ACCEL) {
        stream->in_flight = true;
        return ggml_backend_graph_compute_async(stream->accel, &graph);
    }
    /* copies to this split must have arrived; and memory that the accelerator still
     * reads or writes may be the allocator's to reuse */
    wait_for_accel(stream);
    return ggml_backend_graph_compute_async(stream->cpu.backend, &graph);
}

static bool leave_final_state(const struct ats_graph_plan *plan)
{
    bool ok = true;
    for (size_t i = 0; i < plan->n_records; i++) {
        plan->records[i].record->valid = plan->records[i].valid;
    }
    for (size_t i = 0; i < plan->n_ranges; i++) {
        const struct ats_plan_ranges *ranges = &plan->ranges[i];
        ok = ats_range_map_overlay(&ranges->buffer->ranges, ranges->map.ranges,
                                   ranges->map.n_ranges, &ranges->buffer->scratch) &&
             ok;
    }
    return ok;
}

static bool aborted(const struct ats_stream *stream)
{
    return stream->abort_callback != NULL && stream->abort_callback(stream->abort_data);
}

enum ggml_status ats_execute(struct ats_stream *stream, const struct ats_graph_plan *plan,
                             struct ats_error *err)
{
    enum ggml_status status =
        bring_externals(stream, plan, err) ? GGML_STATUS_SUCCESS : GGML_STATUS_FAILED;
    for (size_t i = 0; i < plan->n_splits && status == GGML_STATUS_SUCCESS; i++) {
        status = aborted(stream) ? GGML_STATUS_ABORTED : run_split(stream, plan, &plan->splits[i]);
    }
    if (stream->reports_errors) {
        wait_for_accel(stream); /* only then is known whether all went well */
        if (!accel_ok(stream, err)) {
            status = GGML_STATUS_FAILED;
        }
    } else if (status != GGML_STATUS_SUCCESS) {
        wait_for_accel(stream);
    }
    if (status == GGML_STATUS_FAILED && err->text[0] == '\0') {
        ats_fail(err, "a backend could not compute its part of the graph");
    }
    if (!leave_final_state(plan) && status == GGML_STATUS_SUCCESS) {
        ats_fail(err, "out of memory");
        status = GGML_STATUS_ALLOC_FAILED;
    }
    stream->device->counters.graphs++;
    stream->device->counters.splits += plan->n_splits;
    stream->device->counters.last_splits = plan->n_splits;
    return status;
}
