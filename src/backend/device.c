#include "backend/device.h"

#include "backend/buffer.h"
#include "backend/stream.h"
#include "base/parse.h"
#include "plan/staging.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static struct ats_device *devices[16];
static size_t n_devices;

size_t ats_device_count(void)
{
    return n_devices;
}

struct ats_device *ats_device_at(size_t index)
{
    return devices[index];
}

/* ---- memory ---- */

size_t ats_host_memory_available(size_t *total)
{
    size_t available_kib = 0;
    size_t total_kib = 0;
    FILE *in = fopen("/proc/meminfo", "r");
    if (in != NULL) {
        char line[128];
        while (fgets(line, sizeof(line), in) != NULL) {
            (void)sscanf(line, "MemAvailable: %zu kB", &available_kib);
            (void)sscanf(line, "MemTotal: %zu kB", &total_kib);
        }
        fclose(in);
    }
    *total = total_kib << 10;
    return available_kib << 10;
}

void ats_device_settle_budget(struct ats_device *device)
{
    if (device->budget_known) {
        return;
    }
    device->budget_known = true;
    size_t free_bytes = 0;
    size_t total_bytes = 0;
    ggml_backend_dev_memory(device->accel, &free_bytes, &total_bytes);
    device->vram_before = free_bytes;
    /* Drivers page when VRAM runs full and speed collapses, so a part is left alone; a
     * sixteenth until it is measured. */
    const size_t margin = total_bytes / 16;
    const size_t most = free_bytes > margin ? free_bytes - margin : 0;
    char text[2][32];
    if (!device->config->has_budget) {
        device->vram_budget = most;
    } else if (device->config->budget <= free_bytes) {
        device->vram_budget = device->config->budget;
    } else {
        device->vram_budget = most;
        ats_log_warn("%s: ATS_VRAM asks for %s, %s has less free; using %s\n", device->name,
                     ats_format_bytes(device->config->budget, text[0], sizeof(text[0])),
                     ggml_backend_dev_name(device->accel),
                     ats_format_bytes(most, text[1], sizeof(text[1])));
    }
    device->vram_wanted = device->vram_budget;
}

/* ---- ggml's device interface ---- */

static const char *device_get_name(ggml_backend_dev_t dev)
{
    return ats_device_of(dev)->name;
}

static const char *device_get_description(ggml_backend_dev_t dev)
{
    return ats_device_of(dev)->description;
}

/* What the device can really hold: a tensor has room in VRAM or in host memory. */
static void device_get_memory(ggml_backend_dev_t dev, size_t *free_bytes, size_t *total_bytes)
{
    struct ats_device *device = ats_device_of(dev);
    size_t vram_free = 0;
    size_t vram_total = 0;
    size_t host_total = 0;
    ggml_backend_dev_memory(device->accel, &vram_free, &vram_total);
    const size_t host_free = ats_host_memory_available(&host_total);
    if (device->config->has_budget) {
        pthread_rwlock_rdlock(&device->lock);
        const size_t used = device->vram_used;
        pthread_rwlock_unlock(&device->lock);
        const size_t left = device->config->budget > used ? device->config->budget - used : 0;
        vram_free = vram_free < left ? vram_free : left;
    }
    *free_bytes = vram_free + host_free / device->n_peers;
    *total_bytes = vram_total + host_total / device->n_peers;
}

static enum ggml_backend_dev_type device_get_type(ggml_backend_dev_t dev)
{
    (void)dev;
    return GGML_BACKEND_DEVICE_TYPE_GPU;
}

static void device_get_props(ggml_backend_dev_t dev, struct ggml_backend_dev_props *props)
{
    const struct ats_device *device = ats_device_of(dev);
    struct ggml_backend_dev_props accel;
    ggml_backend_dev_get_props(device->accel, &accel);
    *props = (struct ggml_backend_dev_props){
        .name = device->name,
        .description = device->description,
        .type = GGML_BACKEND_DEVICE_TYPE_GPU,
        .caps =
            {
                .async = true,
                .host_buffer = accel.caps.host_buffer,
                .buffer_from_host_ptr = true,
                .events = accel.caps.events,
                .mmap_support = true,
            },
    };
    device_get_memory(dev, &props->memory_free, &props->memory_total);
}

static ggml_backend_t device_init_backend(ggml_backend_dev_t dev, const char *params)
{
    (void)params;
    return ats_stream_create(ats_device_of(dev));
}

static ggml_backend_buffer_type_t device_get_buffer_type(ggml_backend_dev_t dev)
{
    return &ats_device_of(dev)->buffer_type;
}

/* Host memory that the accelerator's copies reach directly: llama.cpp keeps there what it hands
 * over and reads back (inputs, logits), which spares a staging copy per token. */
static ggml_backend_buffer_type_t device_get_host_buffer_type(ggml_backend_dev_t dev)
{
    return ggml_backend_dev_host_buffer_type(ats_device_of(dev)->accel);
}

static ggml_backend_buffer_t device_buffer_from_host_ptr(ggml_backend_dev_t dev, void *ptr,
                                                         size_t size, size_t max_tensor_size)
{
    (void)max_tensor_size;
    return ats_buffer_from_host_ptr(ats_device_of(dev), ptr, size);
}

/* A context reserves memory with graphs of its largest pass (llama.cpp's ubatch) before it computes
 * one, and asks for each operator who can do it: nothing else tells a backend how large passes will
 * be. */
static void note_pass(const struct ats_device *device, const struct ggml_tensor *op)
{
    const struct ggml_tensor *weights = op->op == GGML_OP_MUL_MAT ? op->src[0] : NULL;
    if (weights == NULL || weights->buffer == NULL || weights->ne[2] != 1 ||
        weights->buffer->buft != &device->buffer_type ||
        weights->buffer->context == NULL || /* of no bytes, as where llama.cpp tries what fits */
        weights->buffer->usage != GGML_BACKEND_BUFFER_USAGE_WEIGHTS) {
        return;
    }
    struct ats_buffer *buffer = weights->buffer->context;
    long long most = atomic_load(&buffer->pass_tokens);
    while (op->ne[1] > most &&
           !atomic_compare_exchange_weak(&buffer->pass_tokens, &most, op->ne[1])) {
    }
}

static bool device_supports_op(ggml_backend_dev_t dev, const struct ggml_tensor *op)
{
    const struct ats_device *device = ats_device_of(dev);
    note_pass(device, op);
    return ggml_backend_dev_supports_op(device->cpu, op) ||
           ggml_backend_dev_supports_op(device->accel, op);
}

static bool device_supports_buft(ggml_backend_dev_t dev, ggml_backend_buffer_type_t type)
{
    return type == &ats_device_of(dev)->buffer_type;
}

/* An ATS event is an event of the accelerator: the CPU side has nothing in flight when a
 * graph computation returns. */
static ggml_backend_event_t device_event_new(ggml_backend_dev_t dev)
{
    ggml_backend_event_t accel = ggml_backend_event_new(ats_device_of(dev)->accel);
    if (accel == NULL) {
        return NULL;
    }
    ggml_backend_event_t event = calloc(1, sizeof(*event));
    if (event == NULL) {
        ggml_backend_event_free(accel);
        return NULL;
    }
    *event = (struct ggml_backend_event){.device = dev, .context = accel};
    return event;
}

static void device_event_free(ggml_backend_dev_t dev, ggml_backend_event_t event)
{
    (void)dev;
    ggml_backend_event_free(event->context);
    free(event);
}

static void device_event_synchronize(ggml_backend_dev_t dev, ggml_backend_event_t event)
{
    (void)dev;
    ggml_backend_event_synchronize(event->context);
}

static const struct ggml_backend_device_i device_interface = {
    .get_name = device_get_name,
    .get_description = device_get_description,
    .get_memory = device_get_memory,
    .get_type = device_get_type,
    .get_props = device_get_props,
    .init_backend = device_init_backend,
    .get_buffer_type = device_get_buffer_type,
    .get_host_buffer_type = device_get_host_buffer_type,
    .buffer_from_host_ptr = device_buffer_from_host_ptr,
    .supports_op = device_supports_op,
    .supports_buft = device_supports_buft,
    .event_new = device_event_new,
    .event_free = device_event_free,
    .event_synchronize = device_event_synchronize,
};

/* ---- finding accelerators ---- */

/* The emulated accelerator in exact mode takes no times that mean anything. */
static bool takes_real_time(ggml_backend_dev_t accel)
{
    char *(*describe)(ggml_backend_dev_t) = NULL;
    void *address =
        ggml_backend_reg_get_proc_address(ggml_backend_dev_backend_reg(accel), "ats_emu_describe");
    if (address == NULL) {
        return true;
    }
    memcpy(&describe, &address, sizeof(describe));
    char *text = describe(accel);
    const bool is_timed = text != NULL && strstr(text, "\"timed\"") != NULL;
    free(text);
    return is_timed;
}

static struct ats_device *create(const struct ats_config *config, ggml_backend_reg_t reg,
                                 ggml_backend_dev_t accel, ggml_backend_dev_t cpu)
{
    struct ats_device *device = calloc(1, sizeof(*device));
    if (device == NULL) {
        return NULL;
    }
    device->ggml =
        (struct ggml_backend_device){.iface = device_interface, .reg = reg, .context = device};
    device->config = config;
    device->keeps_time = takes_real_time(accel);
    device->staging_way.places = ATS_STAGING_PLACES;
    device->rates = ats_plan_rates_assumed;
    device->accel = accel;
    device->cpu = cpu;
    device->accel_buffer_type = ggml_backend_dev_buffer_type(accel);
    snprintf(device->name, sizeof(device->name), "ATS%zu", n_devices);
    snprintf(device->description, sizeof(device->description), "%s (%.100s) and CPU",
             ggml_backend_dev_name(accel), ggml_backend_dev_description(accel));
    ats_buffer_type_init(device);
    /* contexts run often and things move seldom: a mover must not starve */
    pthread_rwlockattr_t attributes;
    pthread_rwlockattr_init(&attributes);
#ifdef __GLIBC__
    pthread_rwlockattr_setkind_np(&attributes, PTHREAD_RWLOCK_PREFER_WRITER_NONRECURSIVE_NP);
#endif
    pthread_rwlock_init(&device->lock, &attributes);
    pthread_rwlockattr_destroy(&attributes);
    return device;
}

/* Whether `name` is in the comma-separated list. */
static bool is_listed(const char *list, const char *name)
{
    const size_t length = strlen(name);
    for (const char *at = list; *at != '\0';) {
        const size_t word = strcspn(at, ",");
        if (word == length && strncmp(at, name, length) == 0) {
            return true;
        }
        at += word + (at[word] == ',');
    }
    return false;
}

static ggml_backend_dev_t accelerator_at(size_t index, ggml_backend_reg_t own)
{
    ggml_backend_dev_t dev = ggml_backend_dev_get(index);
    return ggml_backend_dev_type(dev) == GGML_BACKEND_DEVICE_TYPE_GPU &&
                   ggml_backend_dev_backend_reg(dev) != own
               ? dev
               : NULL;
}

static bool check_wanted(const char *wanted, ggml_backend_reg_t reg, struct ats_error *err)
{
    for (const char *at = wanted; *at != '\0';) {
        const size_t word = strcspn(at, ",");
        if (word == 0) {
            at++;
            continue;
        }
        char name[64];
        snprintf(name, sizeof(name), "%.*s", (int)word, at);
        bool found = false;
        char seen[256] = "";
        for (size_t i = 0; i < ggml_backend_dev_count(); i++) {
            ggml_backend_dev_t dev = accelerator_at(i, reg);
            if (dev != NULL) {
                found = found || strcmp(ggml_backend_dev_name(dev), name) == 0;
                const size_t used = strlen(seen);
                snprintf(seen + used, sizeof(seen) - used, " %s", ggml_backend_dev_name(dev));
            }
        }
        if (!found) {
            return ats_fail(err,
                            "ATS_ACCEL names %s, which is not an accelerator here; there is:%s",
                            name, seen[0] != '\0' ? seen : " none");
        }
        at += word + (at[word] == ',');
    }
    return true;
}

/* All or nothing: nobody has seen these yet. */
static void forget_devices(void)
{
    while (n_devices > 0) {
        struct ats_device *device = devices[--n_devices];
        pthread_rwlock_destroy(&device->lock);
        free(device);
    }
}

bool ats_devices_create(const struct ats_config *config, ggml_backend_reg_t reg,
                        struct ats_error *err)
{
    ggml_backend_dev_t cpu = ggml_backend_dev_by_type(GGML_BACKEND_DEVICE_TYPE_CPU);
    if (cpu == NULL) {
        return ats_fail(err, "ggml has no CPU backend loaded; load it before this library");
    }
    if (config->accel != NULL && !check_wanted(config->accel, reg, err)) {
        return false;
    }
    const size_t most = sizeof(devices) / sizeof(devices[0]);
    for (size_t i = 0; i < ggml_backend_dev_count() && n_devices < most; i++) {
        ggml_backend_dev_t accel = accelerator_at(i, reg);
        if (accel == NULL ||
            (config->accel != NULL && !is_listed(config->accel, ggml_backend_dev_name(accel)))) {
            continue;
        }
        struct ats_device *device = create(config, reg, accel, cpu);
        if (device == NULL) {
            forget_devices();
            return ats_fail(err, "out of memory");
        }
        devices[n_devices++] = device;
    }
    for (size_t i = 0; i < n_devices; i++) {
        devices[i]->n_peers = n_devices;
    }
    return true;
}
