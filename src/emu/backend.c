/* Backend instances: one stream each, behind ggml's backend interface. */
#include "emu/backend.h"

#include "emu/timed.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Above this, pageable memory is not staged: the call waits until the copy is
 * done, which keeps the promise (the source is free on return) without a copy
 * of, say, all weights in memory. A GPU driver stages through a small buffer. */
static const size_t MAX_STAGED_BYTES = (size_t)16 << 20;

static struct ats_emu_stream *stream_of(ggml_backend_t backend)
{
    return backend->context;
}

static const char *backend_name(ggml_backend_t backend)
{
    return stream_of(backend)->device->name;
}

static void backend_free(ggml_backend_t backend)
{
    ats_emu_stream_destroy(stream_of(backend));
    free(backend);
}

static void backend_synchronize(ggml_backend_t backend)
{
    ats_emu_stream_synchronize(stream_of(backend));
}

/* ---- copies ---- */

/* A tensor's bytes for this stream's device; NULL latches an error. */
static uint8_t *find_bytes(struct ats_emu_stream *stream, const struct ggml_tensor *tensor,
                           size_t offset, size_t size)
{
    uint8_t *bytes =
        ats_emu_device_reach(stream->device, (const uint8_t *)tensor->data + offset, size);
    if (bytes == NULL) {
        char text[256];
        snprintf(text, sizeof(text),
                 "%s: illegal address: %zu bytes at offset %zu of tensor '%s' (%p) are neither in "
                 "memory allocated on this device nor in pinned host memory",
                 stream->device->name, size, offset, tensor->name, tensor->data);
        ats_emu_fault_latch(&stream->fault, text);
    }
    return bytes;
}

static void submit_copy(struct ats_emu_stream *stream, const struct ats_emu_copy *copy,
                        void *staging, bool wait)
{
    struct ats_emu_command command = {
        .kind = ATS_EMU_COMMAND_COPY, .staging = staging, .copy = *copy};
    const uint64_t number = ats_emu_stream_submit(stream, &command);
    if (wait) {
        ats_emu_stream_wait(stream, number);
    }
}

/* Copies the rows into a block of their own, without gaps, and makes that the
 * source; NULL if there is no host memory for it. */
static void *stage(struct ats_emu_copy *copy)
{
    uint8_t *staging = malloc(copy->size * copy->n_copies);
    if (staging == NULL) {
        return NULL;
    }
    for (size_t i = 0; i < copy->n_copies; i++) {
        memcpy(staging + i * copy->size, copy->src + i * copy->src_stride, copy->size);
    }
    copy->src = staging;
    copy->src_stride = copy->size;
    return staging;
}

static void backend_set_2d_async(ggml_backend_t backend, struct ggml_tensor *tensor,
                                 const void *data, size_t offset, size_t size, size_t n_copies,
                                 size_t stride_tensor, size_t stride_data)
{
    struct ats_emu_stream *stream = stream_of(backend);
    if (size == 0 || n_copies == 0) {
        return;
    }
    struct ats_emu_copy copy = {
        .dst = find_bytes(stream, tensor, offset, (n_copies - 1) * stride_tensor + size),
        .src = data,
        .size = size,
        .n_copies = n_copies,
        .dst_stride = stride_tensor,
        .src_stride = stride_data,
    };
    if (copy.dst == NULL) {
        return;
    }
    const bool pinned = ats_emu_pinned_contains(data, (n_copies - 1) * stride_data + size);
    void *staging = !pinned && size * n_copies <= MAX_STAGED_BYTES ? stage(&copy) : NULL;
    submit_copy(stream, &copy, staging, !pinned && staging == NULL);
}

static void backend_get_2d_async(ggml_backend_t backend, const struct ggml_tensor *tensor,
                                 void *data, size_t offset, size_t size, size_t n_copies,
                                 size_t stride_tensor, size_t stride_data)
{
    struct ats_emu_stream *stream = stream_of(backend);
    if (size == 0 || n_copies == 0) {
        return;
    }
    const struct ats_emu_copy copy = {
        .dst = data,
        .src = find_bytes(stream, tensor, offset, (n_copies - 1) * stride_tensor + size),
        .size = size,
        .n_copies = n_copies,
        .dst_stride = stride_data,
        .src_stride = stride_tensor,
        .to_host = true,
    };
    /* without a source the error is latched, and the copy delivers poison */
    const bool pinned = ats_emu_pinned_contains(data, (n_copies - 1) * stride_data + size);
    submit_copy(stream, &copy, NULL, !pinned);
}

static void backend_set_async(ggml_backend_t backend, struct ggml_tensor *tensor, const void *data,
                              size_t offset, size_t size)
{
    backend_set_2d_async(backend, tensor, data, offset, size, 1, 0, 0);
}

static void backend_get_async(ggml_backend_t backend, const struct ggml_tensor *tensor, void *data,
                              size_t offset, size_t size)
{
    backend_get_2d_async(backend, tensor, data, offset, size, 1, 0, 0);
}

static bool is_exact(ggml_backend_t backend);

/* The copy runs on the source's stream after what that holds; the
 * destination's stream waits for it. As in CUDA, and as ggml-backend.h has it,
 * it does not wait for earlier work of the destination's stream. */
static bool backend_copy_async(ggml_backend_t backend_src, ggml_backend_t backend_dst,
                               const struct ggml_tensor *src, struct ggml_tensor *dst)
{
    if (!is_exact(backend_src) || !is_exact(backend_dst)) {
        return false;
    }
    struct ats_emu_stream *from = stream_of(backend_src);
    struct ats_emu_stream *to = stream_of(backend_dst);
    const size_t size = ggml_nbytes(src);
    const struct ats_emu_copy copy = {
        .dst = ats_emu_device_reach(to->device, dst->data, size),
        .src = ats_emu_device_reach(from->device, src->data, size),
        .size = size,
        .n_copies = 1,
        .peer = from == to ? NULL : to,
    };
    if (copy.dst == NULL || copy.src == NULL) {
        return false;
    }
    submit_copy(from, &copy, NULL, false);
    if (from != to) {
        struct ats_emu_ticket *copied = ats_emu_stream_record(from);
        if (copied == NULL) {
            ats_emu_stream_synchronize(from);
            return true;
        }
        ats_emu_stream_wait_ticket(to, copied);
        ats_emu_ticket_unref(copied);
    }
    return true;
}

/* ---- graphs ---- */

static struct ats_emu_graph *clone_graph(struct ats_emu_stream *stream,
                                         const struct ggml_cgraph *cgraph,
                                         struct ats_emu_compute *compute)
{
    struct ats_error err;
    pthread_mutex_lock(&stream->settings_lock);
    struct ats_emu_graph *graph = ats_emu_clone(&stream->cloner, stream->device, cgraph, &err);
    compute->n_threads = stream->n_threads;
    compute->abort_callback = stream->abort_callback;
    compute->abort_data = stream->abort_data;
    pthread_mutex_unlock(&stream->settings_lock);
    if (graph == NULL) {
        ats_log_error("%s\n", err.text);
    }
    return graph;
}

static enum ggml_status backend_compute(ggml_backend_t backend, struct ggml_cgraph *cgraph)
{
    struct ats_emu_stream *stream = stream_of(backend);
    if (ats_emu_stream_failed(stream)) {
        return GGML_STATUS_FAILED;
    }
    struct ats_emu_command command = {.kind = ATS_EMU_COMMAND_COMPUTE};
    struct ats_emu_compute *compute = &command.compute;
    compute->graph = clone_graph(stream, cgraph, compute);
    if (compute->graph == NULL) {
        return GGML_STATUS_FAILED;
    }
    enum ggml_status status = GGML_STATUS_SUCCESS;
    const bool wait = compute->abort_callback != NULL;
    compute->status = wait ? &status : NULL;
    const uint64_t number = ats_emu_stream_submit(stream, &command);
    if (number == 0) {
        return GGML_STATUS_ALLOC_FAILED;
    }
    if (wait) {
        ats_emu_stream_wait(stream, number);
    }
    return status;
}

void ats_emu_set_n_threads(ggml_backend_t backend, int n_threads)
{
    if (!is_exact(backend)) {
        return; /* timed: no thread computes */
    }
    struct ats_emu_stream *stream = stream_of(backend);
    pthread_mutex_lock(&stream->settings_lock);
    stream->n_threads = n_threads;
    pthread_mutex_unlock(&stream->settings_lock);
}

void ats_emu_set_abort_callback(ggml_backend_t backend, ggml_abort_callback callback, void *data)
{
    if (!is_exact(backend)) {
        return;
    }
    struct ats_emu_stream *stream = stream_of(backend);
    pthread_mutex_lock(&stream->settings_lock);
    stream->abort_callback = callback;
    stream->abort_data = data;
    pthread_mutex_unlock(&stream->settings_lock);
}

void ats_emu_observe(ggml_backend_t backend, ats_emu_ended_t ended, void *data)
{
    if (!is_exact(backend)) {
        ats_emu_timed_observe(backend, ended, data);
        return;
    }
    struct ats_emu_stream *stream = stream_of(backend);
    pthread_mutex_lock(&stream->lock);
    stream->ended = ended;
    stream->ended_data = data;
    pthread_mutex_unlock(&stream->lock);
}

void ats_emu_tag(ggml_backend_t backend, uint64_t tag)
{
    if (!is_exact(backend)) {
        ats_emu_timed_tag(backend, tag);
        return;
    }
    struct ats_emu_stream *stream = stream_of(backend);
    stream->tag = stream->ended != NULL ? tag : 0;
}

/* ---- events ---- */

/* An event is the last ticket recorded in it. */
struct event {
    pthread_mutex_t lock;
    struct ats_emu_ticket *ticket; /* NULL: never recorded */
};

static struct ats_emu_ticket *event_ticket(ggml_backend_event_t event)
{
    struct event *state = event->context;
    pthread_mutex_lock(&state->lock);
    struct ats_emu_ticket *ticket =
        state->ticket == NULL ? NULL : ats_emu_ticket_ref(state->ticket);
    pthread_mutex_unlock(&state->lock);
    return ticket;
}

ggml_backend_event_t ats_emu_event_new(ggml_backend_dev_t dev)
{
    struct event *state = calloc(1, sizeof(*state));
    ggml_backend_event_t event = calloc(1, sizeof(*event));
    if (state == NULL || event == NULL) {
        free(state);
        free(event);
        return NULL;
    }
    pthread_mutex_init(&state->lock, NULL);
    event->device = dev;
    event->context = state;
    return event;
}

void ats_emu_event_free(ggml_backend_dev_t dev, ggml_backend_event_t event)
{
    (void)dev;
    struct event *state = event->context;
    ats_emu_ticket_unref(state->ticket);
    pthread_mutex_destroy(&state->lock);
    free(state);
    free(event);
}

void ats_emu_event_synchronize(ggml_backend_dev_t dev, ggml_backend_event_t event)
{
    (void)dev;
    struct ats_emu_ticket *ticket = event_ticket(event);
    if (ticket != NULL) {
        ats_emu_ticket_wait(ticket);
        ats_emu_ticket_unref(ticket);
    }
}

static void backend_event_record(ggml_backend_t backend, ggml_backend_event_t event)
{
    struct event *state = event->context;
    struct ats_emu_ticket *ticket = ats_emu_stream_record(stream_of(backend));
    if (ticket == NULL) {
        backend_synchronize(backend); /* then there is nothing to wait for */
    }
    pthread_mutex_lock(&state->lock);
    struct ats_emu_ticket *before = state->ticket;
    state->ticket = ticket;
    pthread_mutex_unlock(&state->lock);
    ats_emu_ticket_unref(before);
}

static void backend_event_wait(ggml_backend_t backend, ggml_backend_event_t event)
{
    if (event->device->iface.event_free != ats_emu_event_free) {
        /* another backend's event: only the host can wait for it */
        ggml_backend_event_synchronize(event);
        return;
    }
    struct ats_emu_ticket *ticket = event_ticket(event);
    if (ticket != NULL) {
        ats_emu_stream_wait_ticket(stream_of(backend), ticket);
        ats_emu_ticket_unref(ticket);
    }
}

/* ---- life and errors ---- */

static const struct ggml_backend_i backend_interface = {
    .get_name = backend_name,
    .free = backend_free,
    .set_tensor_async = backend_set_async,
    .get_tensor_async = backend_get_async,
    .set_tensor_2d_async = backend_set_2d_async,
    .get_tensor_2d_async = backend_get_2d_async,
    .cpy_tensor_async = backend_copy_async,
    .synchronize = backend_synchronize,
    .graph_compute = backend_compute,
    .event_record = backend_event_record,
    .event_wait = backend_event_wait,
};

/* What tells our backends from others, also when somebody has put functions of his own in. */
static ggml_guid exact_guid = {0x61, 0x74, 0x73, 0x2d, 0x65, 0x6d, 0x75, 0x2d,
                               0x62, 0x61, 0x63, 0x6b, 0x65, 0x6e, 0x64, 0x31};

ggml_backend_t ats_emu_backend_new(struct ats_emu_device *device)
{
    struct ats_error err = {"out of host memory"};
    if (atomic_load(&device->lost)) {
        ats_log_error("%s is lost: no backend can be created on it\n", device->name);
        return NULL;
    }
    ggml_backend_t backend = calloc(1, sizeof(*backend));
    struct ats_emu_stream *stream = backend == NULL ? NULL : ats_emu_stream_create(device, &err);
    if (stream == NULL) {
        ats_log_error("%s: %s\n", device->name, err.text);
        free(backend);
        return NULL;
    }
    *backend = (struct ggml_backend){
        .guid = &exact_guid, .iface = backend_interface, .device = &device->dev, .context = stream};
    return backend;
}

static bool is_exact(ggml_backend_t backend)
{
    return backend != NULL && backend->guid == &exact_guid;
}

bool ats_emu_is_backend(ggml_backend_t backend)
{
    return is_exact(backend) || ats_emu_is_timed_backend(backend);
}

bool ats_emu_take_error(ggml_backend_t backend, char *text, size_t size)
{
    if (!is_exact(backend)) {
        return ats_emu_timed_take_error(backend, text, size);
    }
    struct ats_emu_stream *stream = stream_of(backend);
    struct ats_emu_device *device = stream->device;
    if (atomic_load(&device->lost)) {
        snprintf(text, size, "%s: the device is lost", device->name);
        return true;
    }
    return ats_emu_fault_take(&stream->fault, text, size) ||
           ats_emu_fault_take(&device->fault, text, size);
}
