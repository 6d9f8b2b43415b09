#include "backend/stream.h"

#include "backend/executor.h"
#include "backend/follow.h"
#include "backend/live.h"
#include "backend/loss.h"
#include "backend/observe.h"
#include "backend/residency.h"
#include "backend/stats.h"

#include <stdlib.h>

/* ---- functions that llama.cpp looks up by name ---- */

void ats_stream_set_n_threads(ggml_backend_t backend, int n_threads)
{
    struct ats_stream *stream = backend->context;
    ats_cpu_side_set_n_threads(&stream->cpu, n_threads);
    ggml_backend_set_n_threads_t set_n_threads;
    if (ats_backend_proc(stream->accel, "ggml_backend_set_n_threads", &set_n_threads)) {
        set_n_threads(stream->accel, n_threads);
    }
}

static void set_abort_callback(ggml_backend_t backend, ggml_abort_callback callback, void *data)
{
    ggml_backend_set_abort_callback_t set_callback;
    if (ats_backend_proc(backend, "ggml_backend_set_abort_callback", &set_callback)) {
        set_callback(backend, callback, data);
    }
}

void ats_stream_set_abort_callback(ggml_backend_t backend, ggml_abort_callback callback, void *data)
{
    struct ats_stream *stream = backend->context;
    stream->abort_callback = callback;
    stream->abort_data = data;
    set_abort_callback(stream->cpu.backend, callback, data);
    set_abort_callback(stream->accel, callback, data);
}

/* ---- ggml's backend interface ---- */

static const char *stream_get_name(ggml_backend_t backend)
{
    const struct ats_stream *stream = backend->context;
    return stream->device->name;
}

/* Logs a failure and finds out whether the accelerator is gone. */
static void report(struct ats_stream *stream, const struct ats_error *err)
{
    ats_log_error("%s: %s\n", stream->device->name, err->text);
    if (ats_device_check_loss(stream->device)) {
        stream->reports_errors = false; /* there is nothing left that could fail */
    }
}

static void drained(struct ats_stream *stream)
{
    stream->in_flight = false;
    ats_meter_idle(stream);
    ats_landing_move(stream);
}

void ats_stream_wait(struct ats_stream *stream)
{
    if (stream->in_flight) {
        ggml_backend_synchronize(stream->accel);
        drained(stream);
    }
}

/* The lock keeps others from draining this stream meanwhile: a ggml backend is used by one
 * thread at a time. */
static void stream_synchronize(ggml_backend_t backend)
{
    struct ats_stream *stream = backend->context;
    struct ats_error err = {{0}};
    pthread_rwlock_rdlock(&stream->device->lock);
    ggml_backend_synchronize(stream->accel);
    drained(stream);
    ats_meter_settle(stream);
    const bool failed = stream->reports_errors && ats_accel_failed(stream->accel, &err);
    pthread_rwlock_unlock(&stream->device->lock);
    ats_live_idle(stream);
    if (failed) {
        stream->staging.held = 0;
        ats_experts_keep(stream, false);
        /* ggml has no way to tell the reader of a result; the log does */
        report(stream, &err);
    }
}

static void stream_free(ggml_backend_t backend)
{
    struct ats_stream *stream = backend->context;
    struct ats_device *device = stream->device;
    stream_synchronize(backend);
    ats_live_stream_end(stream);
    pthread_rwlock_wrlock(&device->lock);
    if (stream->previous != NULL) {
        stream->previous->next = stream->next;
    } else {
        device->streams = stream->next;
    }
    if (stream->next != NULL) {
        stream->next->previous = stream->previous;
    }
    pthread_rwlock_unlock(&device->lock);
    for (size_t i = 0; i < ATS_PLAN_CACHE; i++) {
        ats_graph_plan_free(stream->plans[i]);
    }
    pthread_rwlock_wrlock(&device->lock);
    ats_experts_release(stream);
    ats_staging_release(stream);
    ats_landing_close(stream);
    pthread_rwlock_unlock(&device->lock);
    ggml_backend_free(stream->accel);
    ats_cpu_side_stop(&stream->cpu);
    ats_observe_stream_end(stream);
    free(stream);
    ats_stats_write(device->config);
}

static void stream_set_tensor_async(ggml_backend_t backend, struct ggml_tensor *tensor,
                                    const void *data, size_t offset, size_t size)
{
    /* work in flight may still read the bytes that are about to change */
    stream_synchronize(backend);
    ggml_backend_tensor_set(tensor, data, offset, size);
}

static void stream_get_tensor_async(ggml_backend_t backend, const struct ggml_tensor *tensor,
                                    void *data, size_t offset, size_t size)
{
    struct ats_stream *stream = backend->context;
    pthread_rwlock_rdlock(&stream->device->lock);
    ats_buffer_read(tensor, data, offset, size, stream->accel);
    stream->in_flight = true;
    pthread_rwlock_unlock(&stream->device->lock);
}

static enum ggml_status stream_graph_compute(ggml_backend_t backend, struct ggml_cgraph *cgraph)
{
    struct ats_stream *stream = backend->context;
    struct ats_device *device = stream->device;
    struct ats_error err = {{0}};
    enum ggml_status status = GGML_STATUS_FAILED;
    bool again = true;
    ats_live_pass(stream);
    ats_observe_pass(stream, cgraph);
    ats_meter_judge(stream);
    ats_follow(stream);
    while (again) {
        struct ats_graph_plan *plan = ats_graph_plan_get(stream, cgraph, &err);
        again = false;
        ats_observe_planned(stream);
        if (plan != NULL) {
            pthread_rwlock_rdlock(&device->lock);
            /* another context may have moved weights between the two locks */
            again = plan->epoch != device->epoch;
            if (!again) {
                ats_replan_begin(stream, cgraph, plan);
                status = ats_execute(stream, plan, &err);
            }
            pthread_rwlock_unlock(&device->lock);
            ats_replan_end(stream);
        }
    }
    ats_observe_pass_end(stream);
    if (!stream->in_flight) { /* else when it has been waited for */
        ats_meter_settle(stream);
    }
    ats_live_pass_end(stream);
    if (err.text[0] != '\0') {
        report(stream, &err);
    }
    return status;
}

static void stream_event_record(ggml_backend_t backend, ggml_backend_event_t event)
{
    const struct ats_stream *stream = backend->context;
    if (stream->accel->device != stream->device->accel) {
        return; /* a stand-in for a lost accelerator, which has nothing in flight */
    }
    pthread_rwlock_rdlock(&stream->device->lock);
    ggml_backend_event_record(event->context, stream->accel);
    pthread_rwlock_unlock(&stream->device->lock);
}

static void stream_event_wait(ggml_backend_t backend, ggml_backend_event_t event)
{
    (void)backend;
    /* the CPU side has no queue that could wait, so the caller waits for it */
    ggml_backend_event_synchronize(event->context);
}

/* Lets the accelerator order the nodes as it likes before memory is given out. Any order
 * it may choose is a valid one for the CPU as well. */
static void stream_graph_optimize(ggml_backend_t backend, struct ggml_cgraph *cgraph,
                                  struct ggml_backend_graph_optimize_params *params)
{
    const struct ats_stream *stream = backend->context;
    if (stream->accel->iface.graph_optimize != NULL &&
        stream->device->config->rule.kind != ATS_RULE_HOST) {
        stream->accel->iface.graph_optimize(stream->accel, cgraph, params);
    }
}

static const struct ggml_backend_i stream_interface = {
    .get_name = stream_get_name,
    .free = stream_free,
    .set_tensor_async = stream_set_tensor_async,
    .get_tensor_async = stream_get_tensor_async,
    .synchronize = stream_synchronize,
    .graph_compute = stream_graph_compute,
    .event_record = stream_event_record,
    .event_wait = stream_event_wait,
    .graph_optimize = stream_graph_optimize,
};

static ggml_guid_t stream_guid(void)
{
    static ggml_guid guid = {0x61, 0x74, 0x73, 0x2d, 0x67, 0x67, 0x6d, 0x6c,
                             0x9f, 0x1e, 0x40, 0xb2, 0x83, 0xd5, 0x07, 0x5a};
    return &guid;
}

/* An instance of the accelerator. In place of a lost one, an instance of the CPU that gets
 * nothing to do. */
static ggml_backend_t start_accel(struct ats_device *device)
{
    ggml_backend_t accel = NULL;
    if (!device->accel_lost) {
        accel = ggml_backend_dev_init(device->accel, NULL);
    }
    if (accel == NULL && ats_device_check_loss(device)) {
        accel = ggml_backend_dev_init(device->cpu, NULL);
    }
    return accel;
}

ggml_backend_t ats_stream_create(struct ats_device *device)
{
    struct ats_stream *stream = calloc(1, sizeof(*stream));
    if (stream == NULL) {
        return NULL;
    }
    stream->device = device;
    stream->accel = start_accel(device);
    const bool has_cpu = ats_cpu_side_start(&stream->cpu, device->cpu);
    if (stream->accel == NULL || !has_cpu) {
        ats_log_error("%s: cannot start %s\n", device->name,
                      ggml_backend_dev_name(stream->accel == NULL ? device->accel : device->cpu));
        if (stream->accel != NULL) {
            ggml_backend_free(stream->accel);
        }
        if (has_cpu) {
            ats_cpu_side_stop(&stream->cpu);
        }
        free(stream);
        return NULL;
    }
    ats_observe_stream(stream);
    ats_meter_start(stream);
    bool (*take_error)(ggml_backend_t, char *, size_t);
    stream->reports_errors = ats_backend_proc(stream->accel, "ats_backend_take_error", &take_error);
    stream->ggml = (struct ggml_backend){
        .guid = stream_guid(),
        .iface = stream_interface,
        .device = &device->ggml,
        .context = stream,
    };
    pthread_rwlock_wrlock(&device->lock);
    stream->next = device->streams;
    if (stream->next != NULL) {
        stream->next->previous = stream;
    }
    device->streams = stream;
    pthread_rwlock_unlock(&device->lock);
    ats_live_stream(stream);
    return &stream->ggml;
}
