/* Streams and events of timed mode. A stream is a queue in the clock's
 * timeline; it has no thread. */
#include "emu/timed.h"

#include "emu/contents.h"
#include "emu/graph_cost.h"
#include "emu/report.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct stream {
    struct ats_emu_device *device;
    uint32_t id; /* in the timeline */
    struct ats_emu_fault fault;
};

static struct stream *stream_of(ggml_backend_t backend)
{
    return backend->context;
}

static bool has_failed(const struct stream *stream)
{
    const struct ats_emu_device *device = stream->device;
    return atomic_load(&device->lost) || atomic_load(&device->fault.latched) ||
           atomic_load(&stream->fault.latched);
}

static const char *backend_name(ggml_backend_t backend)
{
    return stream_of(backend)->device->name;
}

/* ---- order ---- */

static struct ats_ticket record(const struct stream *stream)
{
    const struct ats_ticket ticket = ats_timeline_record(ats_emu_clock_lock(), stream->id);
    ats_emu_clock_unlock();
    return ticket;
}

/* On a lost device nothing blocks. */
static void wait_for(const struct ats_emu_device *device, struct ats_ticket ticket)
{
    if (!atomic_load(&device->lost)) {
        ats_emu_clock_wait(ticket, ats_emu_clock_us());
    }
}

static void backend_synchronize(ggml_backend_t backend)
{
    const struct stream *stream = stream_of(backend);
    wait_for(stream->device, record(stream));
}

static void backend_free(ggml_backend_t backend)
{
    struct stream *stream = stream_of(backend);
    backend_synchronize(backend);
    ats_timeline_close(ats_emu_clock_lock(), stream->id);
    ats_emu_clock_unlock();
    ats_emu_fault_destroy(&stream->fault);
    free(stream);
    free(backend);
}

/* ---- copies ---- */

static void backend_set_2d(ggml_backend_t backend, struct ggml_tensor *tensor, const void *data,
                           size_t offset, size_t size, size_t n_copies, size_t stride_tensor,
                           size_t stride_data)
{
    struct stream *stream = stream_of(backend);
    const struct ats_emu_host_copy copy = {.device = stream->device,
                                           .stream = stream->id,
                                           .fault = &stream->fault,
                                           .tensor = tensor,
                                           .offset = offset,
                                           .size = size,
                                           .n_copies = n_copies,
                                           .stride_tensor = stride_tensor,
                                           .stride_host = stride_data};
    if (size > 0 && n_copies > 0 && !has_failed(stream) &&
        ats_emu_device_admit(stream->device, ATS_EMU_OP_COPY, &stream->fault)) {
        ats_emu_timed_upload(&copy, data);
    }
}

static void backend_get_2d(ggml_backend_t backend, const struct ggml_tensor *tensor, void *data,
                           size_t offset, size_t size, size_t n_copies, size_t stride_tensor,
                           size_t stride_data)
{
    struct stream *stream = stream_of(backend);
    const struct ats_emu_host_copy copy = {.device = stream->device,
                                           .stream = stream->id,
                                           .fault = &stream->fault,
                                           .tensor = tensor,
                                           .offset = offset,
                                           .size = size,
                                           .n_copies = n_copies,
                                           .stride_tensor = stride_tensor,
                                           .stride_host = stride_data};
    if (size == 0 || n_copies == 0) {
        return;
    }
    if (!has_failed(stream) &&
        ats_emu_device_admit(stream->device, ATS_EMU_OP_COPY, &stream->fault)) {
        ats_emu_timed_download(&copy, data);
        return;
    }
    for (size_t i = 0; i < n_copies; i++) {
        memset((uint8_t *)data + i * stride_data, ATS_EMU_POISON, size);
    }
}

static void backend_set(ggml_backend_t backend, struct ggml_tensor *tensor, const void *data,
                        size_t offset, size_t size)
{
    backend_set_2d(backend, tensor, data, offset, size, 1, 0, 0);
}

static void backend_get(ggml_backend_t backend, const struct ggml_tensor *tensor, void *data,
                        size_t offset, size_t size)
{
    backend_get_2d(backend, tensor, data, offset, size, 1, 0, 0);
}

/* Out over one device's link and in over the other's, one after the other. */
static void copy_between(struct stream *from, struct stream *to, double bytes)
{
    const double latency_us = from->device->profile.rates.copy_latency_us;
    const struct ats_timeline_copy out = {
        .direction = ATS_TO_HOST, .bytes = bytes, .latency_us = latency_us};
    const struct ats_timeline_copy in = {
        .direction = ATS_TO_DEVICE, .bytes = bytes, .latency_us = latency_us};
    ats_emu_clock_look((size_t)bytes);
    struct ats_timeline *timeline = ats_emu_clock_lock();
    ats_timeline_wait(timeline, to->id, ats_timeline_copy(timeline, from->id, &out));
    ats_timeline_copy(timeline, to->id, &in);
    ats_emu_clock_unlock();
}

static bool backend_copy(ggml_backend_t backend_src, ggml_backend_t backend_dst,
                         const struct ggml_tensor *src, struct ggml_tensor *dst)
{
    if (!ats_emu_is_timed_backend(backend_src) || !ats_emu_is_timed_backend(backend_dst)) {
        return false;
    }
    struct stream *from = stream_of(backend_src);
    struct stream *to = stream_of(backend_dst);
    const size_t size = ggml_nbytes(src);
    const uint8_t *in = ats_emu_memory_shadow(&from->device->memory, src->data, size);
    uint8_t *out = ats_emu_memory_shadow(&to->device->memory, dst->data, size);
    if (in == NULL || out == NULL) {
        return false;
    }
    if (has_failed(from) || has_failed(to) ||
        !ats_emu_device_admit(from->device, ATS_EMU_OP_COPY, &from->fault)) {
        return true;
    }
    if (ats_emu_is_stored(src, size)) {
        memmove(out, in, size);
    }
    if (from->device != to->device) {
        copy_between(from, to, (double)size);
        return true;
    }
    ats_emu_timed_move(from->device, from->id, 2 * (double)size);
    if (from != to) {
        struct ats_timeline *timeline = ats_emu_clock_lock();
        ats_timeline_wait(timeline, to->id, ats_timeline_record(timeline, from->id));
        ats_emu_clock_unlock();
    }
    return true;
}

/* ---- graphs ---- */

struct graph_in_order {
    struct stream *stream;
    unsigned launches;
};

static void enter_compute(void *context, double us, unsigned launches)
{
    struct graph_in_order *g = context;
    ats_timeline_compute(ats_emu_clock_lock(), g->stream->id, us, launches);
    ats_emu_clock_unlock();
    g->launches += launches;
}

static void enter_transfer(void *context, enum ats_timeline_direction direction, double bytes)
{
    struct graph_in_order *g = context;
    const struct ats_timeline_copy copy = {
        .direction = direction,
        .bytes = bytes,
        .latency_us = g->stream->device->profile.rates.launch_us,
        .kernel = true,
    };
    ats_timeline_copy(ats_emu_clock_lock(), g->stream->id, &copy);
    ats_emu_clock_unlock();
    g->launches++;
}

static enum ggml_status backend_compute(ggml_backend_t backend, struct ggml_cgraph *cgraph)
{
    const struct ats_emu_entry entry = ats_emu_clock_enter();
    struct stream *stream = stream_of(backend);
    struct ats_emu_device *device = stream->device;
    if (has_failed(stream) || !ats_emu_device_admit(device, ATS_EMU_OP_COMPUTE, &stream->fault)) {
        return GGML_STATUS_FAILED;
    }
    ats_emu_clock_look(0);
    struct graph_in_order g = {.stream = stream};
    const struct ats_emu_graph_sink sink = {&g, enter_compute, enter_transfer};
    struct ats_error err;
    if (!ats_emu_graph_cost(device, cgraph, &sink, &err)) {
        ats_log_error("%s\n", err.text);
        return GGML_STATUS_FAILED;
    }
    atomic_fetch_add(&device->timed->graphs, 1);
    ats_emu_clock_entered(&entry, g.launches * device->profile.rates.launch_us);
    return GGML_STATUS_SUCCESS;
}

/* ---- events ---- */

/* An event is the ticket recorded last; tickets are plain values. */
struct event {
    pthread_mutex_t lock;
    struct ats_ticket ticket;
};

static struct ats_ticket event_ticket(ggml_backend_event_t event)
{
    struct event *own = event->context;
    pthread_mutex_lock(&own->lock);
    const struct ats_ticket ticket = own->ticket;
    pthread_mutex_unlock(&own->lock);
    return ticket;
}

ggml_backend_event_t ats_emu_timed_event_new(ggml_backend_dev_t dev)
{
    struct event *own = calloc(1, sizeof(*own));
    ggml_backend_event_t event = calloc(1, sizeof(*event));
    if (own == NULL || event == NULL) {
        free(own);
        free(event);
        return NULL;
    }
    pthread_mutex_init(&own->lock, NULL);
    event->device = dev;
    event->context = own;
    return event;
}

void ats_emu_timed_event_free(ggml_backend_dev_t dev, ggml_backend_event_t event)
{
    (void)dev;
    struct event *own = event->context;
    pthread_mutex_destroy(&own->lock);
    free(own);
    free(event);
}

void ats_emu_timed_event_synchronize(ggml_backend_dev_t dev, ggml_backend_event_t event)
{
    wait_for(dev->context, event_ticket(event));
}

static void backend_event_record(ggml_backend_t backend, ggml_backend_event_t event)
{
    struct event *own = event->context;
    const struct ats_ticket ticket = record(stream_of(backend));
    pthread_mutex_lock(&own->lock);
    own->ticket = ticket;
    pthread_mutex_unlock(&own->lock);
}

static void backend_event_wait(ggml_backend_t backend, ggml_backend_event_t event)
{
    if (event->device->iface.event_free != ats_emu_timed_event_free) {
        /* another backend's event: only the host can wait for it */
        ggml_backend_event_synchronize(event);
        return;
    }
    ats_emu_clock_look(0);
    ats_timeline_wait(ats_emu_clock_lock(), stream_of(backend)->id, event_ticket(event));
    ats_emu_clock_unlock();
}

/* ---- life and errors ---- */

static const struct ggml_backend_i backend_interface = {
    .get_name = backend_name,
    .free = backend_free,
    .set_tensor_async = backend_set,
    .get_tensor_async = backend_get,
    .set_tensor_2d_async = backend_set_2d,
    .get_tensor_2d_async = backend_get_2d,
    .cpy_tensor_async = backend_copy,
    .synchronize = backend_synchronize,
    .graph_compute = backend_compute,
    .event_record = backend_event_record,
    .event_wait = backend_event_wait,
};

/* What tells our backends from others, also when somebody has put functions of his own in. */
static ggml_guid timed_guid = {0x61, 0x74, 0x73, 0x2d, 0x65, 0x6d, 0x75, 0x2d,
                               0x74, 0x69, 0x6d, 0x65, 0x64, 0x2d, 0x30, 0x31};

bool ats_emu_is_timed_backend(ggml_backend_t backend)
{
    return backend != NULL && backend->guid == &timed_guid;
}

ggml_backend_t ats_emu_timed_backend_new(struct ats_emu_device *device)
{
    if (atomic_load(&device->lost)) {
        ats_log_error("%s is lost: no backend can be created on it\n", device->name);
        return NULL;
    }
    ggml_backend_t backend = calloc(1, sizeof(*backend));
    struct stream *stream = calloc(1, sizeof(*stream));
    uint32_t id = 0;
    if (backend != NULL && stream != NULL) {
        id = ats_timeline_open(ats_emu_clock_lock(), device->timed->index);
        ats_emu_clock_unlock();
    }
    if (id == 0) {
        ats_log_error("%s: out of host memory for a stream\n", device->name);
        free(backend);
        free(stream);
        return NULL;
    }
    stream->device = device;
    stream->id = id;
    ats_emu_fault_init(&stream->fault);
    *backend = (struct ggml_backend){
        .guid = &timed_guid, .iface = backend_interface, .device = &device->dev, .context = stream};
    return backend;
}

void ats_emu_timed_observe(ggml_backend_t backend, ats_emu_ended_t ended, void *data)
{
    const struct ats_timeline_observer observer = {ended, data};
    ats_timeline_observe(ats_emu_clock_lock(), stream_of(backend)->id, observer);
    ats_emu_clock_unlock();
}

void ats_emu_timed_tag(ggml_backend_t backend, uint64_t tag)
{
    ats_timeline_tag(ats_emu_clock_lock(), stream_of(backend)->id, tag);
    ats_emu_clock_unlock();
}

bool ats_emu_timed_take_error(ggml_backend_t backend, char *text, size_t size)
{
    struct stream *stream = stream_of(backend);
    struct ats_emu_device *device = stream->device;
    if (atomic_load(&device->lost)) {
        snprintf(text, size, "%s: the device is lost", device->name);
        return true;
    }
    return ats_emu_fault_take(&stream->fault, text, size) ||
           ats_emu_fault_take(&device->fault, text, size);
}

void ats_emu_timed_drain(struct ats_emu_device *device)
{
    struct ats_ticket last = {0};
    do {
        last = ats_timeline_last(ats_emu_clock_lock(), device->timed->index);
        ats_emu_clock_unlock();
        /* with none left, this still waits for the reader */
        ats_emu_clock_wait(last, ats_emu_clock_us());
    } while (last.stream != 0);
}

bool ats_emu_timed_init(struct ats_emu_device *device, struct ats_error *err)
{
    const struct ats_device_rates *rates = &device->profile.rates;
    struct ats_emu_timed *timed = calloc(1, sizeof(*timed));
    if (timed == NULL || !ats_emu_clock_start(rates, err)) {
        free(timed);
        return timed == NULL ? ats_fail(err, "out of host memory for a timed device") : false;
    }
    const struct ats_timeline_link link = {rates->h2d_gbps, rates->d2h_gbps,
                                           (int)rates->copy_engines};
    struct ats_timeline *timeline = ats_emu_clock_lock();
    timed->index = ats_timeline_add_device(timeline, &link);
    timed->stream = timed->index < 0 ? 0 : ats_timeline_open(timeline, timed->index);
    ats_emu_clock_unlock();
    const struct ats_emu_load_schedule *load = &device->profile.load;
    if (timed->stream == 0 ||
        (load->n > 0 && !ats_emu_clock_set_loads(timed->index, load->steps, load->n))) {
        ats_emu_clock_stop();
        free(timed);
        return ats_fail(err, "out of host memory for a timed device");
    }
    device->timed = timed;
    return true;
}

bool ats_emu_set_load(ggml_backend_dev_t dev, double compute, double link, struct ats_error *err)
{
    if (!ats_emu_is_device(dev)) {
        return ats_fail(err, "not an emulated device");
    }
    const struct ats_emu_device *device = dev->context;
    if (device->timed == NULL) {
        return ats_fail(err,
                        "%s computes in exact mode, in which nothing takes a given time: only "
                        "a device in timed mode can have load",
                        device->name);
    }
    if (!ats_emu_load_is_factor(compute) || !ats_emu_load_is_factor(link)) {
        return ats_fail(err, "a load of compute=%g, link=%g on %s: factors are from 1 to 1000",
                        compute, link, device->name);
    }
    const struct ats_timeline_load load = {.compute = compute, .link = link};
    return ats_emu_clock_set_loads(device->timed->index, &load, 1) ||
           ats_fail(err, "out of host memory for the load of %s", device->name);
}

void ats_emu_timed_destroy(struct ats_emu_device *device)
{
    ats_emu_timed_drain(device);
    ats_timeline_close(ats_emu_clock_lock(), device->timed->stream);
    ats_emu_clock_unlock();
    ats_emu_clock_stop();
    free(device->timed);
    device->timed = NULL;
}
