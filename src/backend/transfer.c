#include "backend/transfer.h"

#include "backend/graph_plan.h"
#include "backend/residency.h"

#include <string.h>

/* ---- staging memory ---- */

/* A second instance of the accelerator with an event to order it; without either, copies run
 * on the compute stream. */
static void start_transfer_stream(struct ats_stream *stream)
{
    struct ats_staging_area *area = &stream->staging;
    if (stream->device->config->transfer != ATS_TRANSFER_ASYNC) {
        return;
    }
    area->free = ggml_backend_event_new(stream->device->accel);
    if (area->free == NULL) {
        return;
    }
    area->transfer = ggml_backend_dev_init(stream->device->accel, NULL);
    if (area->transfer == NULL) {
        ggml_backend_event_free(area->free);
        area->free = NULL;
    }
}

bool ats_staging_take(struct ats_stream *stream, size_t bytes)
{
    struct ats_device *device = stream->device;
    struct ats_staging_area *area = &stream->staging;
    if (bytes > device->vram_budget - device->vram_used) {
        return false;
    }
    area->buffer = ggml_backend_buft_alloc_buffer(device->accel_buffer_type, bytes);
    if (area->buffer == NULL) {
        return false;
    }
    ggml_backend_buffer_set_usage(area->buffer, GGML_BACKEND_BUFFER_USAGE_WEIGHTS);
    area->base = ggml_backend_buffer_get_base(area->buffer);
    area->size = bytes;
    device->vram_used += bytes;
    start_transfer_stream(stream);
    return true;
}

void ats_staging_release(struct ats_stream *stream)
{
    struct ats_staging_area *area = &stream->staging;
    if (area->transfer != NULL) {
        ggml_backend_synchronize(area->transfer);
        ggml_backend_free(area->transfer);
        ggml_backend_event_free(area->free);
    }
    if (area->buffer != NULL) {
        ggml_backend_buffer_free(area->buffer);
        stream->device->vram_used -= area->size;
    }
    area->buffer = NULL;
    area->base = NULL;
    area->size = 0;
    area->transfer = NULL;
    area->free = NULL;
    area->read_before = false;
    area->held = 0;
}

void ats_staging_forget(struct ats_device *device)
{
    for (struct ats_stream *stream = device->streams; stream != NULL; stream = stream->next) {
        stream->staging.held = 0;
    }
}

/* ---- pinned host memory ---- */

typedef bool (*register_host_buffer_t)(void *address, size_t size);
typedef void (*unregister_host_buffer_t)(void *address);

static void *accel_proc(const struct ats_device *device, const char *name)
{
    return ggml_backend_reg_get_proc_address(ggml_backend_dev_backend_reg(device->accel), name);
}

void ats_buffer_pin(struct ats_buffer *buffer)
{
    struct ats_device *device = buffer->device;
    if (buffer->pin_tried) {
        return;
    }
    buffer->pin_tried = true;
    void *address = accel_proc(device, "ggml_backend_register_host_buffer");
    register_host_buffer_t pin = NULL;
    memcpy(&pin, &address, sizeof(pin));
    buffer->pinned = pin != NULL && pin(buffer->base, buffer->size);
    if (!buffer->pinned && !device->told_pageable) {
        device->told_pageable = true;
        ats_log_warn("%s: %s cannot page-lock the weights in host memory; copies of them are "
                     "slower and keep a CPU thread busy\n",
                     device->name, ggml_backend_dev_name(device->accel));
    }
}

void ats_buffer_unpin(struct ats_buffer *buffer)
{
    if (!buffer->pinned) {
        return;
    }
    void *address = accel_proc(buffer->device, "ggml_backend_unregister_host_buffer");
    unregister_host_buffer_t unpin = NULL;
    memcpy(&unpin, &address, sizeof(unpin));
    if (unpin != NULL) {
        unpin(buffer->base);
    }
    buffer->pinned = false;
}

/* ---- events of a plan ---- */

bool ats_promotions_arm(struct ats_stream *stream, struct ats_graph_plan *plan)
{
    if (stream->staging.transfer == NULL) {
        return true;
    }
    bool ok = true;
    for (size_t i = 0; ok && i < plan->n_promotions; i++) {
        struct ats_promotion_step *step = &plan->promotions[i];
        step->arrived = ggml_backend_event_new(stream->device->accel);
        ok = step->arrived != NULL;
        if (ok && step->after_split != ATS_NO_SPLIT) {
            struct ats_plan_split *split = &plan->splits[step->after_split];
            split->done =
                split->done != NULL ? split->done : ggml_backend_event_new(stream->device->accel);
            ok = split->done != NULL;
        }
    }
    if (!ok) {
        ats_promotions_disarm(plan);
    }
    return ok;
}

void ats_promotions_disarm(struct ats_graph_plan *plan)
{
    for (size_t i = 0; i < plan->n_promotions; i++) {
        if (plan->promotions[i].arrived != NULL) {
            ggml_backend_event_free(plan->promotions[i].arrived);
            plan->promotions[i].arrived = NULL;
        }
    }
    for (size_t i = 0; i < plan->n_splits; i++) {
        if (plan->splits[i].done != NULL) {
            ggml_backend_event_free(plan->splits[i].done);
            plan->splits[i].done = NULL;
        }
    }
}

/* ---- a pass ---- */

/* What an accelerator reads behind a row must be numbers, but is never seen in a result. */
static const char zeros[4096];

static void copy_in(struct ats_stream *stream, const struct ats_promotion_step *step,
                    ggml_backend_t backend)
{
    struct ats_device *device = stream->device;
    struct ggml_tensor accel = step->accel;
    ggml_backend_tensor_set_async(backend, &accel, ats_record_host(step->record), 0,
                                  step->record->bytes);
    for (size_t done = 0; done < step->padding;) {
        const size_t left = step->padding - done;
        const size_t n = left < sizeof(zeros) ? left : sizeof(zeros);
        ggml_backend_tensor_set_async(backend, &accel, zeros, step->record->bytes + done, n);
        done += n;
    }
    device->counters.copied_to_accel_bytes += step->record->bytes;
    device->counters.promoted_bytes += step->record->bytes;
}

static bool is_armed(const struct ats_graph_plan *plan)
{
    return plan->n_promotions > 0 && plan->promotions[0].arrived != NULL;
}

/* Starts the copies whose places are free once the first `n_splits` splits are done, in order:
 * an event must be recorded before anything can wait for it. */
static void copy_ahead(struct ats_stream *stream, const struct ats_graph_plan *plan,
                       size_t n_splits)
{
    struct ats_staging_area *area = &stream->staging;
    while (area->next < plan->n_promotions) {
        const struct ats_promotion_step *step = &plan->promotions[area->next];
        if (step->after_split >= (int32_t)n_splits) {
            return;
        }
        if (step->after_split != ATS_NO_SPLIT) {
            ggml_backend_event_wait(area->transfer, plan->splits[step->after_split].done);
        }
        copy_in(stream, step, area->transfer);
        ggml_backend_event_record(step->arrived, area->transfer);
        area->next++;
    }
}

/* What the plan holds is copied as a whole before anything else runs. */
static void fill_held(struct ats_stream *stream, const struct ats_graph_plan *plan)
{
    struct ats_staging_area *area = &stream->staging;
    if (is_armed(plan)) {
        copy_ahead(stream, plan, 0);
        ggml_backend_event_wait(stream->accel, plan->promotions[plan->n_promotions - 1].arrived);
    } else {
        for (; area->next < plan->n_promotions; area->next++) {
            copy_in(stream, &plan->promotions[area->next], stream->accel);
        }
    }
    stream->in_flight = true;
}

void ats_promotions_begin(struct ats_stream *stream, const struct ats_graph_plan *plan)
{
    struct ats_staging_area *area = &stream->staging;
    area->all_there = plan->n_promotions == 0 || (plan->held != 0 && plan->held == area->held);
    if (area->all_there) {
        return;
    }
    area->held = 0;
    area->next = 0;
    if (is_armed(plan) && area->read_before) {
        ggml_backend_event_wait(area->transfer, area->free);
    }
    if (plan->held != 0) {
        fill_held(stream, plan);
    } else if (is_armed(plan)) {
        copy_ahead(stream, plan, 0);
    }
}

void ats_promotions_await(struct ats_stream *stream, const struct ats_graph_plan *plan,
                          size_t split)
{
    const struct ats_plan_split *s = &plan->splits[split];
    for (size_t i = s->first_promotion; i < s->first_promotion + s->n_promotions; i++) {
        const struct ats_promotion_step *step = &plan->promotions[i];
        if (step->arrived != NULL) {
            ggml_backend_event_wait(stream->accel, step->arrived);
        } else {
            copy_in(stream, step, stream->accel);
        }
        stream->in_flight = true;
    }
}

void ats_promotions_advance(struct ats_stream *stream, const struct ats_graph_plan *plan,
                            size_t split)
{
    if (stream->staging.all_there || !is_armed(plan)) {
        return;
    }
    if (plan->splits[split].done != NULL) {
        ggml_backend_event_record(plan->splits[split].done, stream->accel);
    }
    copy_ahead(stream, plan, split + 1);
}

void ats_promotions_end(struct ats_stream *stream, const struct ats_graph_plan *plan, bool done)
{
    struct ats_staging_area *area = &stream->staging;
    if (plan->n_promotions == 0) {
        return;
    }
    if (is_armed(plan)) {
        /* on both streams: a pass that was broken off leaves copies that nothing waits for */
        if (!area->all_there && area->next > 0) {
            ggml_backend_event_wait(stream->accel, plan->promotions[area->next - 1].arrived);
        }
        ggml_backend_event_record(area->free, stream->accel);
        area->read_before = true;
    }
    if (!area->all_there && done) {
        area->held = plan->held;
    }
}
