#include "backend/transfer.h"

#include "backend/experts_fill.h"
#include "backend/graph_plan.h"
#include "backend/observe.h"
#include "backend/residency.h"
#include "backend/used.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

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
        return;
    }
    ats_observe_transfer(stream, area->transfer);
}

bool ats_staging_take(struct ats_stream *stream, size_t ring, size_t scratch)
{
    const size_t bytes = ring + scratch;
    struct ats_device *device = stream->device;
    struct ats_staging_area *area = &stream->staging;
    if (bytes > ats_device_vram_left(device)) {
        return false;
    }
    area->buffer = ggml_backend_buft_alloc_buffer(device->accel_buffer_type, bytes);
    if (area->buffer == NULL) {
        return false;
    }
    /* not as weights: then CUDA would zero a tensor's padding when a plan is made, in bytes that
     * the plan at work uses for another. copy_in zeroes it instead. */
    ggml_backend_buffer_set_usage(area->buffer, GGML_BACKEND_BUFFER_USAGE_COMPUTE);
    area->base = ggml_backend_buffer_get_base(area->buffer);
    area->size = bytes;
    area->ring = ring;
    area->way = device->staging_way;
    device->vram_used += bytes;
    ats_observe_staging(stream, true);
    start_transfer_stream(stream);
    return true;
}

void ats_staging_release(struct ats_stream *stream)
{
    struct ats_staging_area *area = &stream->staging;
    if (area->transfer != NULL) {
        ggml_backend_synchronize(area->transfer);
    }
    ats_observe_staging(stream, false);
    if (area->transfer != NULL) {
        ggml_backend_free(area->transfer);
        ggml_backend_event_free(area->free);
    }
    if (area->buffer != NULL) {
        ggml_backend_buffer_free(area->buffer);
        stream->device->vram_used -= area->size;
    }
    *area = (struct ats_staging_area){0};
}

void ats_staging_give_up(struct ats_stream *stream)
{
    stream->device->vram_used -= stream->staging.size;
    stream->staging.size = 0;
    stream->staging.ring = 0;
    stream->staging.held = 0;
}

/* ---- pinned host memory ---- */

typedef bool (*register_host_buffer_t)(void *address, size_t size);
typedef void (*unregister_host_buffer_t)(void *address);

static void *accel_proc(const struct ats_device *device, const char *name)
{
    return ggml_backend_reg_get_proc_address(ggml_backend_dev_backend_reg(device->accel), name);
}

bool ats_device_can_pin(const struct ats_device *device)
{
    return accel_proc(device, "ggml_backend_register_host_buffer") != NULL;
}

/* Adds the run of host weights that starts at records[first] to the list; returns the index behind
 * it. Neighbours whose pages meet are one run, whatever small lies between them, because a page can
 * be locked once. */
static size_t add_run(struct ats_buffer *buffer, size_t first, size_t page)
{
    const uintptr_t low = (uintptr_t)buffer->base;
    const uintptr_t high = low + buffer->size;
    uintptr_t begin = (low + buffer->records[first]->begin) / page * page;
    uintptr_t end = 0;
    size_t i = first;
    for (; i < buffer->n_records; i++) {
        const struct ats_record *record = buffer->records[i];
        if (end != 0 && low + record->begin > end) {
            break;
        }
        if (!ats_record_is_host_weight(record)) {
            continue; /* the next one may begin on the same page */
        }
        end = (low + record->begin + record->bytes + page - 1) / page * page;
    }
    begin = begin > low ? begin : low;
    end = end < high ? end : high;
    buffer->pins[buffer->n_pins++] = (struct ats_pin){(char *)begin, end - begin};
    return i;
}

/* Registers the runs; those that cannot be locked leave the list. */
static void lock_runs(struct ats_buffer *buffer, register_host_buffer_t pin)
{
    size_t n = 0;
    for (size_t i = 0; i < buffer->n_pins; i++) {
        if (pin != NULL && pin(buffer->pins[i].address, buffer->pins[i].size)) {
            buffer->pins[n++] = buffer->pins[i];
        }
    }
    struct ats_device *device = buffer->device;
    if (n < buffer->n_pins && !device->told_pageable) {
        device->told_pageable = true;
        ats_log_warn("%s: %s does not page-lock %zu of %zu stretches of weights in host memory, so "
                     "copies of them are slower and keep a CPU thread busy (CUDA wants "
                     "GGML_CUDA_REGISTER_HOST=1; see also ulimit -l)\n",
                     device->name, ggml_backend_dev_name(device->accel), buffer->n_pins - n,
                     buffer->n_pins);
    }
    buffer->n_pins = n;
}

void ats_buffer_pin(struct ats_buffer *buffer)
{
    if (buffer->pin_tried) {
        return;
    }
    buffer->pin_tried = true;
    buffer->pins = calloc(buffer->n_records + 1, sizeof(*buffer->pins));
    if (buffer->pins == NULL) {
        return;
    }
    const size_t page = (size_t)sysconf(_SC_PAGESIZE);
    for (size_t i = 0; i < buffer->n_records;) {
        i = ats_record_is_host_weight(buffer->records[i]) ? add_run(buffer, i, page) : i + 1;
    }
    void *address = accel_proc(buffer->device, "ggml_backend_register_host_buffer");
    register_host_buffer_t pin = NULL;
    memcpy(&pin, &address, sizeof(pin));
    lock_runs(buffer, pin);
}

void ats_buffer_unpin(struct ats_buffer *buffer)
{
    void *address = accel_proc(buffer->device, "ggml_backend_unregister_host_buffer");
    unregister_host_buffer_t unpin = NULL;
    memcpy(&unpin, &address, sizeof(unpin));
    for (size_t i = 0; unpin != NULL && i < buffer->n_pins; i++) {
        unpin(buffer->pins[i].address);
    }
    free(buffer->pins);
    buffer->pins = NULL;
    buffer->n_pins = 0;
}

/* ---- events of a plan ---- */

void ats_promotions_arm(struct ats_stream *stream, struct ats_graph_plan *plan)
{
    if (stream->staging.transfer == NULL) {
        return;
    }
    bool ok = true;
    for (size_t i = 0; ok && i < plan->n_promotions; i++) {
        struct ats_promotion_step *step = &plan->promotions[i];
        step->arrived = ggml_backend_event_new(stream->device->accel);
        ok = step->arrived != NULL;
        if (ok && step->used != NULL && step->parcel == 0 && step->used->store != NULL) {
            step->used->listed = ggml_backend_event_new(stream->device->accel);
            ok = step->used->listed != NULL;
        }
        if (ok && step->after_split != ATS_NO_SPLIT) {
            struct ats_plan_split *split = &plan->splits[step->after_split];
            split->done =
                split->done != NULL ? split->done : ggml_backend_event_new(stream->device->accel);
            ok = split->done != NULL;
        }
    }
    if (!ok) {
        ats_log_warn("%s: no memory for events; weights are copied in order\n",
                     stream->device->name);
        ats_promotions_disarm(plan);
    }
}

void ats_promotions_disarm(struct ats_graph_plan *plan)
{
    for (size_t i = 0; i < plan->n_promotions; i++) {
        if (plan->promotions[i].arrived != NULL) {
            ggml_backend_event_free(plan->promotions[i].arrived);
            plan->promotions[i].arrived = NULL;
        }
        if (plan->promotions[i].used != NULL && plan->promotions[i].used->listed != NULL) {
            ggml_backend_event_free(plan->promotions[i].used->listed);
            plan->promotions[i].used->listed = NULL;
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

static void copy_in(struct ats_stream *stream, const struct ats_graph_plan *plan,
                    const struct ats_promotion_step *step, ggml_backend_t backend)
{
    struct ats_device *device = stream->device;
    struct ggml_tensor accel = step->accel;
    const char *host = ats_record_host(step->record);
    const struct ats_part *part = &step->part;
    const size_t chunk = plan->chunk != 0 ? plan->chunk : step->bytes;
    size_t crossed = 0;
    if (step->used != NULL) {
        crossed = ats_used_copy(step->used, backend, step->parcel);
        device->counters.copied_to_accel_bytes += crossed;
        device->counters.promoted_bytes += crossed;
        return;
    }
    if (step->fill != NULL) {
        crossed = ats_expert_fill_copy(step->fill, step->record, &accel, backend);
    } else if (part->n > 1) {
        ggml_backend_tensor_set_2d_async(backend, &accel, host + part->offset, 0, part->bytes,
                                         part->n, part->bytes, part->stride);
        crossed = step->bytes;
    }
    while (step->fill == NULL && crossed < step->bytes) {
        const size_t left = step->bytes - crossed;
        const size_t n = left < chunk ? left : chunk;
        ggml_backend_tensor_set_async(backend, &accel, host + part->offset + crossed, crossed, n);
        crossed += n;
    }
    for (size_t done = 0; done < step->padding;) {
        const size_t left = step->padding - done;
        const size_t n = left < sizeof(zeros) ? left : sizeof(zeros);
        ggml_backend_tensor_set_async(backend, &accel, zeros, step->bytes + done, n);
        done += n;
    }
    device->counters.copied_to_accel_bytes += crossed;
    device->counters.promoted_bytes += crossed;
}

static bool is_armed(const struct ats_graph_plan *plan)
{
    return plan->n_promotions > 0 && plan->promotions[0].arrived != NULL;
}

/* Whether it matters how long weights are on their way. */
static bool is_timed(const struct ats_stream *stream, const struct ats_graph_plan *plan)
{
    return plan->chunk != 0 && ats_meter_watches(stream);
}

/* Starts the copies whose places are free once the first `n_splits` splits are done, in order:
 * an event must be recorded before anything can wait for it. */
static void copy_ahead(struct ats_stream *stream, const struct ats_graph_plan *plan,
                       size_t n_splits)
{
    struct ats_staging_area *area = &stream->staging;
    while (area->next < plan->n_promotions) {
        struct ats_promotion_step *step = &plan->promotions[area->next];
        if (step->after_split >= (int32_t)n_splits ||
            (step->used != NULL && step->used->ids != area->known_ids)) {
            return;
        }
        if (step->after_split != ATS_NO_SPLIT) {
            ggml_backend_event_wait(area->transfer, plan->splits[step->after_split].done);
        }
        if (is_timed(stream, plan) && step->used == NULL) {
            ats_meter_note_given(stream, step);
        }
        copy_in(stream, plan, step, area->transfer);
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
            copy_in(stream, plan, &plan->promotions[area->next], stream->accel);
        }
    }
    stream->in_flight = true;
}

/* Lets the accelerator's driver recycle what the last pass left in the plan's events: Vulkan's
 * does so when one is waited for. All are passed, so this takes no time. */
static void recycle_events(const struct ats_graph_plan *plan)
{
    for (size_t i = 0; i < plan->n_promotions; i++) {
        ggml_backend_event_synchronize(plan->promotions[i].arrived);
        if (plan->promotions[i].used != NULL && plan->promotions[i].parcel == 0 &&
            plan->promotions[i].used->listed != NULL) {
            ggml_backend_event_synchronize(plan->promotions[i].used->listed);
        }
    }
    for (size_t i = 0; i < plan->n_splits; i++) {
        if (plan->splits[i].done != NULL) {
            ggml_backend_event_synchronize(plan->splits[i].done);
        }
    }
}

void ats_promotions_begin(struct ats_stream *stream, const struct ats_graph_plan *plan)
{
    struct ats_staging_area *area = &stream->staging;
    const uint64_t generation = stream->device->weights_generation;
    area->known_ids = NULL;
    area->all_there = plan->n_promotions == 0 || (plan->held != 0 && plan->held == area->held &&
                                                  generation == area->generation);
    if (area->all_there) {
        return;
    }
    area->held = 0;
    area->generation = generation;
    area->next = 0;
    if (plan->has_fills) {
        ats_expert_fill_begin(stream);
    }
    if (is_armed(plan)) {
        if (!stream->in_flight) {
            recycle_events(plan);
            ggml_backend_event_synchronize(area->free);
        }
        /* whatever reads staging memory now has been given to the compute stream before */
        ggml_backend_event_record(area->free, stream->accel);
        ggml_backend_event_wait(area->transfer, area->free);
    }
    if (plan->held != 0) {
        fill_held(stream, plan);
    } else if (is_armed(plan)) {
        copy_ahead(stream, plan, 0);
    }
}

void ats_promotions_ids_known(struct ats_stream *stream, const struct ats_graph_plan *plan,
                              size_t split)
{
    if (is_armed(plan)) {
        copy_ahead(stream, plan, split);
    }
}

bool ats_promotions_await(struct ats_stream *stream, const struct ats_graph_plan *plan,
                          size_t split)
{
    const struct ats_plan_split *s = &plan->splits[split];
    for (size_t i = s->first_promotion; i < s->first_promotion + s->n_promotions; i++) {
        const struct ats_promotion_step *step = &plan->promotions[i];
        if (step->arrived != NULL) {
            if (is_timed(stream, plan) && step->used == NULL) {
                const double since_us = ats_meter_now_us();
                ggml_backend_event_synchronize(step->arrived);
                ats_meter_arrived(stream, step, since_us);
            }
            ggml_backend_event_wait(stream->accel, step->arrived);
        } else {
            copy_in(stream, plan, step, stream->accel);
        }
        stream->in_flight = true;
        if (step->fill != NULL && !ats_expert_fill_scatter(stream, step->fill)) {
            return false;
        }
    }
    return true;
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

void ats_promotions_end(struct ats_stream *stream, const struct ats_graph_plan *plan)
{
    struct ats_staging_area *area = &stream->staging;
    if (!area->all_there && is_armed(plan) && area->next > 0) {
        /* a pass that was broken off leaves copies that no split waits for */
        ggml_backend_event_wait(stream->accel, plan->promotions[area->next - 1].arrived);
        stream->in_flight = true;
    }
}

void ats_promotions_keep(struct ats_stream *stream, const struct ats_graph_plan *plan, bool well)
{
    if (!well) {
        stream->staging.held = 0;
    } else if (!stream->staging.all_there) {
        stream->staging.held = plan->held;
    }
}
