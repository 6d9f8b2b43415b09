#include "backend/executor.h"

#include "backend/experts_run.h"
#include "backend/observe.h"
#include "backend/used.h"

static bool accel_ok(struct ats_stream *stream, struct ats_error *err)
{
    return !ats_accel_failed(stream->accel, err);
}

static bool transfer_ok(struct ats_stream *stream, struct ats_error *err)
{
    return (stream->staging.transfer == NULL || !ats_accel_failed(stream->staging.transfer, err)) &&
           (stream->experts.transfer == NULL || !ats_accel_failed(stream->experts.transfer, err));
}

/* Where the bytes are in VRAM. State may have got its place there after the plan was made, by a
 * graph that was the first to write it. */
static const struct ggml_tensor *accel_of(const struct ats_transfer *transfer)
{
    return transfer->record != NULL ? &transfer->record->accel : &transfer->accel;
}

/* Starts a copy of `bytes` behind `offset` to `side`; complete once the accelerator has been
 * waited for. */
static void start_copy(struct ats_stream *stream, const struct ats_transfer *transfer,
                       size_t offset, size_t bytes, enum ats_side side)
{
    struct ats_device *device = stream->device;
    char *host = transfer->buffer->base + transfer->begin + offset;
    ats_meter_copy(stream, bytes);
    if (side == ATS_ACCEL) {
        /* const in effect: the tensor only carries the address */
        struct ggml_tensor accel = *accel_of(transfer);
        ggml_backend_tensor_set_async(stream->accel, &accel, host, offset, bytes);
        device->counters.copied_to_accel_bytes += bytes;
    } else {
        ats_landing_get(stream, accel_of(transfer), host, offset, bytes);
        device->counters.copied_to_host_bytes += bytes;
    }
    stream->in_flight = true;
}

/* ---- what the graph expects to find ---- */

/* Calls `visit` for each stretch of an external's bytes that has one state: a record as a whole;
 * part of a compute buffer in pieces, if a program wrote some of them since the last graph. */
static void visit_stretches(const struct ats_external *external,
                            void (*visit)(void *data, const struct ats_external *external,
                                          size_t offset, size_t bytes, ats_side_set valid),
                            void *data)
{
    const struct ats_transfer *transfer = &external->transfer;
    if (transfer->record != NULL) {
        visit(data, external, 0, transfer->bytes, transfer->record->valid);
        return;
    }
    const struct ats_range_map *map = &transfer->buffer->ranges;
    const size_t end = transfer->begin + transfer->bytes;
    for (size_t at = transfer->begin; at < end;) {
        const size_t border = ats_range_map_border(map, at, end);
        visit(data, external, at - transfer->begin, border - at, ats_range_map_at(map, at));
        at = border;
    }
}

struct bringing {
    struct ats_stream *stream;
    bool must_arrive; /* before anything runs: the CPU reads it, or it is not made anew */
};

/* Starts the copies of a stretch to the sides that lack it. */
static void bring(void *data, const struct ats_external *external, size_t offset, size_t bytes,
                  ats_side_set valid)
{
    struct bringing *b = data;
    for (int s = 0; s < ATS_SIDES; s++) {
        const enum ats_side side = (enum ats_side)s;
        if ((external->needs & ATS_ON(side)) != 0 && (valid & ATS_ON(side)) == 0) {
            start_copy(b->stream, &external->transfer, offset, bytes, side);
            b->must_arrive =
                b->must_arrive || side == ATS_HOST || external->transfer.record != NULL;
        }
    }
}

static void mark_brought(void *data, const struct ats_external *external, size_t offset,
                         size_t bytes, ats_side_set valid)
{
    (void)data;
    const struct ats_transfer *transfer = &external->transfer;
    const ats_side_set now = valid | external->needs;
    if (transfer->record != NULL) {
        transfer->record->valid = now;
    } else if (now != valid) {
        const size_t begin = transfer->begin + offset;
        /* without memory for the entry the copy is made again next time */
        (void)ats_range_map_set(&transfer->buffer->ranges, begin, begin + bytes, now);
    }
}

/* False: a copy failed, and nothing has a new state. State is not made anew by the next graph, so
 * what did not arrive must not pass for valid. */
static bool bring_externals(struct ats_stream *stream, const struct ats_graph_plan *plan,
                            struct ats_error *err)
{
    struct bringing b = {.stream = stream};
    for (size_t i = 0; i < plan->n_externals; i++) {
        const struct ats_record *record = plan->externals[i].transfer.record;
        if (record != NULL && record->valid == 0) {
            return ats_fail(err, "tensor %s was lost with %s; make the context anew",
                            record->as_made.name, ggml_backend_dev_name(stream->device->accel));
        }
        visit_stretches(&plan->externals[i], bring, &b);
    }
    if (b.must_arrive) {
        ats_stream_wait(stream);
        if (stream->reports_errors && !accel_ok(stream, err)) {
            return false;
        }
    }
    for (size_t i = 0; i < plan->n_externals; i++) {
        visit_stretches(&plan->externals[i], mark_brought, NULL);
    }
    return true;
}

/* ---- splits ---- */

/* Views need no place in a stream, and no weight. */
static enum ggml_status run_split(struct ats_stream *stream, const struct ats_graph_plan *plan,
                                  const struct ats_plan_split *split, struct ats_error *err)
{
    for (size_t c = 0; c < split->n_copies; c++) {
        const struct ats_transfer *transfer = &plan->copies[split->first_copy + c];
        start_copy(stream, transfer, 0, transfer->bytes, split->side);
    }
    if (!split->computes) {
        return GGML_STATUS_SUCCESS;
    }
    if (split->experts != NULL) {
        return ats_experts_run(stream, split->experts, err);
    }
    if (split->by_use) {
        return ats_used_run(stream, plan, (size_t)(split - plan->splits), err);
    }
    if (!ats_promotions_await(stream, plan, (size_t)(split - plan->splits))) {
        return GGML_STATUS_FAILED;
    }
    struct ggml_cgraph graph = split->graph;
    if (split->side == ATS_ACCEL) {
        stream->in_flight = true;
        ats_meter_given(stream, split->profile_us[ATS_ACCEL]);
        return ggml_backend_graph_compute_async(stream->accel, &graph);
    }
    /* copies to this split must have arrived; and memory that the accelerator still
     * reads or writes may be the allocator's to reuse */
    ats_stream_wait(stream);
    if (stream->reports_errors && !accel_ok(stream, err)) {
        /* ids that did not arrive would be indices out of range */
        return GGML_STATUS_FAILED;
    }
    const enum ggml_status status = ggml_backend_graph_compute_async(stream->cpu.backend, &graph);
    ats_meter_cpu(stream, split->profile_us[ATS_HOST]);
    return status;
}

static bool leave_final_state(struct ats_device *device, const struct ats_graph_plan *plan)
{
    bool ok = true;
    for (size_t i = 0; i < plan->n_records; i++) {
        plan->records[i].record->valid = plan->records[i].valid;
        if (plan->records[i].record->is_weight) {
            /* other plans may copy it from where it was */
            device->weights_generation++;
            device->epoch++;
        }
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
    if (!bring_externals(stream, plan, err)) {
        return GGML_STATUS_FAILED; /* nothing has run, so nothing has a new state */
    }
    enum ggml_status status = GGML_STATUS_SUCCESS;
    ats_meter_begin(stream, plan);
    ats_experts_refresh(stream);
    ats_promotions_begin(stream, plan);
    for (size_t i = 0; i < plan->n_splits && status == GGML_STATUS_SUCCESS; i++) {
        ats_observe_split(stream, (int32_t)i);
        status =
            aborted(stream) ? GGML_STATUS_ABORTED : run_split(stream, plan, &plan->splits[i], err);
        if (status == GGML_STATUS_SUCCESS) {
            ats_promotions_advance(stream, plan, i);
        }
        if (status == GGML_STATUS_SUCCESS && plan->splits[i].share != NULL) {
            status = ats_share_finish(stream, plan->splits[i].share);
        }
    }
    ats_promotions_end(stream, plan);
    if (stream->landing.n_landed > 0) {
        ats_stream_wait(stream); /* where it belongs may be gone behind the pass */
    }
    if (stream->reports_errors) {
        ats_stream_wait(stream); /* only then is known whether all went well */
        if (!accel_ok(stream, err) || !transfer_ok(stream, err)) {
            status = GGML_STATUS_FAILED;
        }
    } else if (status != GGML_STATUS_SUCCESS) {
        ats_stream_wait(stream);
    }
    if (status == GGML_STATUS_FAILED && err->text[0] == '\0') {
        ats_fail(err, "a backend could not compute its part of the graph");
    }
    ats_meter_end(stream, status == GGML_STATUS_SUCCESS);
    ats_promotions_keep(stream, plan, status == GGML_STATUS_SUCCESS);
    /* a pass that a program broke off leaves slots as they are */
    ats_experts_keep(stream, status == GGML_STATUS_SUCCESS || status == GGML_STATUS_ABORTED);
    if (!leave_final_state(stream->device, plan) && status == GGML_STATUS_SUCCESS) {
        ats_fail(err, "out of memory");
        status = GGML_STATUS_ALLOC_FAILED;
    }
    stream->device->counters.graphs++;
    stream->device->counters.splits += plan->n_splits;
    stream->device->counters.last_splits = plan->n_splits;
    return status;
}
