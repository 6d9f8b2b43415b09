#include "emu/device.h"

#include "base/parse.h"
#include "emu/backend.h"
#include "emu/timed.h"

#include <stdio.h>
#include <stdlib.h>

/* From this batch on it pays to send an operator to the device though its
 * weights are on the host: the default of ggml's GPU backends. */
static const int64_t OFFLOAD_MIN_BATCH = 32;

/* ---- faults and admission ---- */

void ats_emu_fault_init(struct ats_emu_fault *fault)
{
    pthread_mutex_init(&fault->lock, NULL);
    atomic_init(&fault->latched, false);
}

void ats_emu_fault_destroy(struct ats_emu_fault *fault)
{
    pthread_mutex_destroy(&fault->lock);
}

void ats_emu_fault_latch(struct ats_emu_fault *fault, const char *text)
{
    pthread_mutex_lock(&fault->lock);
    if (!atomic_load(&fault->latched)) {
        snprintf(fault->text, sizeof(fault->text), "%s", text);
        atomic_store(&fault->latched, true);
    }
    pthread_mutex_unlock(&fault->lock);
}

bool ats_emu_fault_take(struct ats_emu_fault *fault, char *text, size_t size)
{
    if (!atomic_load(&fault->latched)) {
        return false;
    }
    pthread_mutex_lock(&fault->lock);
    const bool latched = atomic_load(&fault->latched);
    if (latched) {
        snprintf(text, size, "%s", fault->text);
        atomic_store(&fault->latched, false);
    }
    pthread_mutex_unlock(&fault->lock);
    return latched;
}

bool ats_emu_device_admit(struct ats_emu_device *device, enum ats_emu_op op,
                          struct ats_emu_fault *fault)
{
    char text[128];
    if (!atomic_load(&device->lost) && ats_emu_injector_hits(&device->injector, ATS_EMU_OP_LOSS)) {
        ats_log_error("%s: injected loss of the device\n", device->name);
        atomic_store(&device->lost, true);
    }
    if (atomic_load(&device->lost)) {
        snprintf(text, sizeof(text), "%s: the device is lost", device->name);
        ats_emu_fault_latch(fault, text);
        return false;
    }
    if (ats_emu_injector_hits(&device->injector, op)) {
        snprintf(text, sizeof(text), "%s: injected failure of a %s", device->name,
                 ats_emu_op_name(op));
        ats_emu_fault_latch(fault, text);
        return false;
    }
    return true;
}

uint8_t *ats_emu_device_reach(struct ats_emu_device *device, const void *address, size_t size)
{
    uint8_t *shadow = ats_emu_memory_shadow(&device->memory, address, size);
    if (shadow == NULL && ats_emu_pinned_contains(address, size)) {
        return (uint8_t *)address;
    }
    return shadow;
}

void ats_emu_device_drain(struct ats_emu_device *device)
{
    if (device->timed != NULL) {
        ats_emu_timed_drain(device);
        return;
    }
    pthread_mutex_lock(&device->streams_lock);
    for (struct ats_emu_stream *stream = device->streams; stream != NULL; stream = stream->next) {
        ats_emu_stream_synchronize(stream);
    }
    pthread_mutex_unlock(&device->streams_lock);
}

/* ---- ggml's device interface ---- */

static struct ats_emu_device *device_of(ggml_backend_dev_t dev)
{
    return dev->context;
}

static const char *device_name(ggml_backend_dev_t dev)
{
    return device_of(dev)->name;
}

static const char *device_description(ggml_backend_dev_t dev)
{
    return device_of(dev)->profile.description;
}

static void device_memory(ggml_backend_dev_t dev, size_t *available, size_t *total)
{
    struct ats_emu_device *device = device_of(dev);
    *available = atomic_load(&device->lost) ? 0 : ats_emu_memory_available(&device->memory);
    *total = device->memory.size;
}

static enum ggml_backend_dev_type device_type(ggml_backend_dev_t dev)
{
    (void)dev;
    return GGML_BACKEND_DEVICE_TYPE_GPU;
}

static void device_props(ggml_backend_dev_t dev, struct ggml_backend_dev_props *props)
{
    *props = (struct ggml_backend_dev_props){
        .name = device_name(dev),
        .description = device_description(dev),
        .type = device_type(dev),
        /* as a discrete GPU under ggml-cuda: models may be mapped, weights are copied */
        .caps = {.async = true, .host_buffer = true, .events = true, .mmap_support = true},
    };
    device_memory(dev, &props->memory_free, &props->memory_total);
}

static ggml_backend_t device_init_backend(ggml_backend_dev_t dev, const char *params)
{
    (void)params;
    struct ats_emu_device *device = device_of(dev);
    return device->timed != NULL ? ats_emu_timed_backend_new(device) : ats_emu_backend_new(device);
}

static ggml_backend_buffer_type_t device_buffer_type(ggml_backend_dev_t dev)
{
    return &device_of(dev)->buft;
}

static ggml_backend_buffer_type_t device_host_buffer_type(ggml_backend_dev_t dev)
{
    return &device_of(dev)->host_buft;
}

static bool device_supports_op(ggml_backend_dev_t dev, const struct ggml_tensor *op)
{
    (void)dev;
    return ats_emu_supports_op(op);
}

static bool device_supports_buft(ggml_backend_dev_t dev, ggml_backend_buffer_type_t buft)
{
    return buft == &device_of(dev)->buft;
}

static bool device_offload_op(ggml_backend_dev_t dev, const struct ggml_tensor *op)
{
    (void)dev;
    switch (op->op) {
    case GGML_OP_GET_ROWS:
        return false;
    case GGML_OP_MUL_MAT:
        return op->ne[1] >= OFFLOAD_MIN_BATCH;
    case GGML_OP_MUL_MAT_ID:
    case GGML_OP_ROPE:
    case GGML_OP_ROPE_BACK:
        return op->ne[2] >= OFFLOAD_MIN_BATCH;
    default:
        return op->ne[1] * op->ne[2] * op->ne[3] >= OFFLOAD_MIN_BATCH;
    }
}

static const struct ggml_backend_device_i device_interface = {
    .get_name = device_name,
    .get_description = device_description,
    .get_memory = device_memory,
    .get_type = device_type,
    .get_props = device_props,
    .init_backend = device_init_backend,
    .get_buffer_type = device_buffer_type,
    .get_host_buffer_type = device_host_buffer_type,
    .supports_op = device_supports_op,
    .supports_buft = device_supports_buft,
    .offload_op = device_offload_op,
    .event_new = ats_emu_event_new,
    .event_free = ats_emu_event_free,
    .event_synchronize = ats_emu_event_synchronize,
};

bool ats_emu_is_device(ggml_backend_dev_t dev)
{
    return dev != NULL && dev->iface.init_backend == device_init_backend;
}

/* ---- life ---- */

/* All devices, for what pinned memory needs (ats_emu_drain_all). `all_lock`
 * comes before every device's streams_lock. */
static pthread_mutex_t all_lock = PTHREAD_MUTEX_INITIALIZER;
static struct ats_emu_device *all_devices;

void ats_emu_drain_all(void)
{
    pthread_mutex_lock(&all_lock);
    for (struct ats_emu_device *device = all_devices; device != NULL; device = device->next) {
        ats_emu_device_drain(device);
    }
    pthread_mutex_unlock(&all_lock);
}

static void link_device(struct ats_emu_device *device)
{
    pthread_mutex_lock(&all_lock);
    device->next = all_devices;
    all_devices = device;
    pthread_mutex_unlock(&all_lock);
}

static void unlink_device(struct ats_emu_device *device)
{
    pthread_mutex_lock(&all_lock);
    struct ats_emu_device **link = &all_devices;
    while (*link != device) {
        link = &(*link)->next;
    }
    *link = device->next;
    pthread_mutex_unlock(&all_lock);
}

static void free_fields(struct ats_emu_device *device)
{
    pthread_mutex_destroy(&device->streams_lock);
    ats_emu_fault_destroy(&device->fault);
    ats_emu_injector_destroy(&device->injector);
    ats_emu_memory_destroy(&device->memory);
    free(device);
}

struct ats_emu_device *ats_emu_device_create(const struct ats_emu_profile *profile, int index,
                                             struct ats_error *err)
{
    struct ats_emu_device *device = calloc(1, sizeof(*device));
    if (device == NULL) {
        ats_fail(err, "out of host memory for an emulated device");
        return NULL;
    }
    if (!ats_emu_memory_init(&device->memory, profile->memory, err)) {
        free(device);
        return NULL;
    }
    device->profile = *profile;
    if (device->profile.max_buffer > device->memory.size) {
        device->profile.max_buffer = device->memory.size;
    }
    device->index = index;
    snprintf(device->name, sizeof(device->name), "EMU%d", index);
    snprintf(device->host_name, sizeof(device->host_name), "%s_Host", device->name);
    atomic_init(&device->lost, false);
    ats_emu_injector_init(&device->injector, &profile->inject);
    ats_emu_fault_init(&device->fault);
    pthread_mutex_init(&device->streams_lock, NULL);
    ats_emu_buffer_types_init(device);
    if (profile->timed && !ats_emu_timed_init(device, err)) {
        free_fields(device);
        return NULL;
    }
    device->dev = (struct ggml_backend_device){
        .iface = device_interface, .reg = ats_emu_registry(), .context = device};
    if (device->timed != NULL) {
        device->dev.iface.event_new = ats_emu_timed_event_new;
        device->dev.iface.event_free = ats_emu_timed_event_free;
        device->dev.iface.event_synchronize = ats_emu_timed_event_synchronize;
    }
    link_device(device);
    return device;
}

void ats_emu_device_destroy(struct ats_emu_device *device)
{
    unlink_device(device);
    if (device->timed != NULL) {
        ats_emu_timed_destroy(device);
    }
    free_fields(device);
}
