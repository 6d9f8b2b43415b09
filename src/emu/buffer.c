/* Buffers: device memory and pinned host memory as ggml sees them.
 *
 * Operations on a buffer happen at once and on the calling thread; they are
 * not ordered with any stream, as CUDA's are not with non-default streams. A
 * failure has nobody to be returned to, so it is latched in the device. */
#include "emu/device.h"
#include "emu/timed.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A buffer's context is its address. */
static struct ats_emu_device *device_of(ggml_backend_buffer_t buffer)
{
    return buffer->buft->context;
}

/* ---- device memory ---- */

static void device_buffer_free(ggml_backend_buffer_t buffer)
{
    struct ats_emu_device *device = device_of(buffer);
    /* A stream may still use the buffer. On a lost device too this is short: its streams skip
     * what they hold. */
    ats_emu_device_drain(device);
    ats_emu_memory_free(&device->memory, buffer->context);
}

static void *buffer_get_base(ggml_backend_buffer_t buffer)
{
    return buffer->context;
}

/* What `size` bytes at `offset` of a tensor's data are for us; NULL latches an error. */
static uint8_t *find_bytes(ggml_backend_buffer_t buffer, const struct ggml_tensor *tensor,
                           size_t offset, size_t size)
{
    struct ats_emu_device *device = device_of(buffer);
    uint8_t *bytes =
        ats_emu_memory_shadow(&device->memory, (const uint8_t *)tensor->data + offset, size);
    if (bytes == NULL) {
        char text[256];
        snprintf(text, sizeof(text),
                 "%s: illegal address: %zu bytes at offset %zu of tensor '%s' (%p) are not in "
                 "allocated device memory",
                 device->name, size, offset, tensor->name, tensor->data);
        ats_emu_fault_latch(&device->fault, text);
    }
    return bytes;
}

static bool admit_copy(struct ats_emu_device *device)
{
    return ats_emu_device_admit(device, ATS_EMU_OP_COPY, &device->fault);
}

static void device_buffer_memset(ggml_backend_buffer_t buffer, struct ggml_tensor *tensor,
                                 uint8_t value, size_t offset, size_t size)
{
    uint8_t *bytes = find_bytes(buffer, tensor, offset, size);
    if (bytes != NULL && !atomic_load(&device_of(buffer)->lost)) {
        memset(bytes, value, size);
    }
}

static void device_buffer_set_2d(ggml_backend_buffer_t buffer, struct ggml_tensor *tensor,
                                 const void *data, size_t offset, size_t size, size_t n_copies,
                                 size_t stride_tensor, size_t stride_data)
{
    if (n_copies == 0) {
        return;
    }
    uint8_t *bytes = find_bytes(buffer, tensor, offset, (n_copies - 1) * stride_tensor + size);
    if (bytes == NULL || !admit_copy(device_of(buffer))) {
        return;
    }
    for (size_t i = 0; i < n_copies; i++) {
        memcpy(bytes + i * stride_tensor, (const uint8_t *)data + i * stride_data, size);
    }
}

static void device_buffer_get_2d(ggml_backend_buffer_t buffer, const struct ggml_tensor *tensor,
                                 void *data, size_t offset, size_t size, size_t n_copies,
                                 size_t stride_tensor, size_t stride_data)
{
    if (n_copies == 0) {
        return;
    }
    const uint8_t *bytes =
        find_bytes(buffer, tensor, offset, (n_copies - 1) * stride_tensor + size);
    const bool go = bytes != NULL && admit_copy(device_of(buffer));
    for (size_t i = 0; i < n_copies; i++) {
        uint8_t *row = (uint8_t *)data + i * stride_data;
        if (go) {
            memcpy(row, bytes + i * stride_tensor, size);
        } else {
            memset(row, ATS_EMU_POISON, size);
        }
    }
}

static void device_buffer_set(ggml_backend_buffer_t buffer, struct ggml_tensor *tensor,
                              const void *data, size_t offset, size_t size)
{
    device_buffer_set_2d(buffer, tensor, data, offset, size, 1, 0, 0);
}

static void device_buffer_get(ggml_backend_buffer_t buffer, const struct ggml_tensor *tensor,
                              void *data, size_t offset, size_t size)
{
    device_buffer_get_2d(buffer, tensor, data, offset, size, 1, 0, 0);
}

static void device_buffer_clear(ggml_backend_buffer_t buffer, uint8_t value)
{
    struct ats_emu_device *device = device_of(buffer);
    uint8_t *bytes = ats_emu_memory_shadow(&device->memory, buffer->context, buffer->size);
    if (bytes != NULL && !atomic_load(&device->lost)) {
        memset(bytes, value, buffer->size);
    }
}

/* Between emulated devices, in any combination; ggml does the rest by way of the host. */
static bool device_buffer_copy(ggml_backend_buffer_t buffer, const struct ggml_tensor *src,
                               struct ggml_tensor *dst)
{
    ggml_backend_buffer_t src_buffer = src->view_src != NULL ? src->view_src->buffer : src->buffer;
    if (src_buffer == NULL || src_buffer->iface.free_buffer != device_buffer_free) {
        return false;
    }
    const size_t size = ggml_nbytes(src);
    const uint8_t *from = find_bytes(src_buffer, src, 0, size);
    uint8_t *to = find_bytes(buffer, dst, 0, size);
    if (from == NULL || to == NULL) {
        return true; /* the error is latched; a detour by way of the host fails alike */
    }
    /* each of two devices counts the copy; on one device it is one */
    struct ats_emu_device *device = device_of(buffer);
    struct ats_emu_device *src_device = device_of(src_buffer);
    const bool src_ok =
        src_device == device || ats_emu_device_admit(src_device, ATS_EMU_OP_COPY, &device->fault);
    if (src_ok && admit_copy(device)) {
        memmove(to, from, size);
    }
    return true;
}

static const struct ggml_backend_buffer_i device_buffer_interface = {
    .free_buffer = device_buffer_free,
    .get_base = buffer_get_base,
    .memset_tensor = device_buffer_memset,
    .set_tensor = device_buffer_set,
    .get_tensor = device_buffer_get,
    .set_tensor_2d = device_buffer_set_2d,
    .get_tensor_2d = device_buffer_get_2d,
    .cpy_tensor = device_buffer_copy,
    .clear = device_buffer_clear,
};

static const char *device_buft_name(ggml_backend_buffer_type_t buft)
{
    const struct ats_emu_device *device = buft->context;
    return device->name;
}

static ggml_backend_buffer_t device_buft_alloc(ggml_backend_buffer_type_t buft, size_t size)
{
    struct ats_emu_device *device = buft->context;
    if (atomic_load(&device->lost)) {
        ats_log_error("%s is lost: cannot allocate %zu bytes\n", device->name, size);
        return NULL;
    }
    if (ats_emu_injector_hits(&device->injector, ATS_EMU_OP_ALLOC)) {
        ats_log_error("%s: injected failure of an allocation of %zu bytes\n", device->name, size);
        return NULL;
    }
    void *address = NULL;
    if (size <= device->profile.max_buffer) {
        address = ats_emu_memory_alloc(&device->memory, size, device->profile.alignment);
    }
    if (address == NULL) {
        ats_log_error("%s: cannot allocate %zu bytes: %zu of %zu bytes are free, the largest "
                      "buffer is %zu bytes\n",
                      device->name, size, ats_emu_memory_available(&device->memory),
                      device->memory.size, device->profile.max_buffer);
        return NULL;
    }
    return ggml_backend_buffer_init(
        buft, device->timed != NULL ? ats_emu_timed_buffer_interface : device_buffer_interface,
        address, size);
}

static size_t buft_alignment(ggml_backend_buffer_type_t buft)
{
    const struct ats_emu_device *device = buft->context;
    return device->profile.alignment;
}

static size_t device_buft_max_size(ggml_backend_buffer_type_t buft)
{
    const struct ats_emu_device *device = buft->context;
    return device->profile.max_buffer;
}

/* ---- pinned host memory ---- */

static void host_buffer_free(ggml_backend_buffer_t buffer)
{
    ats_emu_drain_all(); /* streams of any device may still read or write it */
    ats_emu_pinned_free(buffer->context);
}

static void host_buffer_memset(ggml_backend_buffer_t buffer, struct ggml_tensor *tensor,
                               uint8_t value, size_t offset, size_t size)
{
    (void)buffer;
    memset((uint8_t *)tensor->data + offset, value, size);
}

static void host_buffer_set(ggml_backend_buffer_t buffer, struct ggml_tensor *tensor,
                            const void *data, size_t offset, size_t size)
{
    (void)buffer;
    memcpy((uint8_t *)tensor->data + offset, data, size);
}

static void host_buffer_get(ggml_backend_buffer_t buffer, const struct ggml_tensor *tensor,
                            void *data, size_t offset, size_t size)
{
    (void)buffer;
    memcpy(data, (const uint8_t *)tensor->data + offset, size);
}

static void host_buffer_clear(ggml_backend_buffer_t buffer, uint8_t value)
{
    memset(buffer->context, value, buffer->size);
}

static const struct ggml_backend_buffer_i host_buffer_interface = {
    .free_buffer = host_buffer_free,
    .get_base = buffer_get_base,
    .memset_tensor = host_buffer_memset,
    .set_tensor = host_buffer_set,
    .get_tensor = host_buffer_get,
    .clear = host_buffer_clear,
};

static const char *host_buft_name(ggml_backend_buffer_type_t buft)
{
    const struct ats_emu_device *device = buft->context;
    return device->host_name;
}

static ggml_backend_buffer_t host_buft_alloc(ggml_backend_buffer_type_t buft, size_t size)
{
    struct ats_emu_device *device = buft->context;
    void *address = NULL;
    if (!atomic_load(&device->lost) &&
        !ats_emu_injector_hits(&device->injector, ATS_EMU_OP_PINNED)) {
        address = ats_emu_pinned_alloc(size);
    }
    if (address == NULL) {
        ats_log_warn("%s: cannot pin %zu bytes, using pageable memory\n", device->name, size);
        ggml_backend_dev_t cpu = ats_emu_cpu_device();
        return cpu == NULL
                   ? NULL
                   : ggml_backend_buft_alloc_buffer(ggml_backend_dev_buffer_type(cpu), size);
    }
    return ggml_backend_buffer_init(buft, host_buffer_interface, address, size);
}

static bool host_buft_is_host(ggml_backend_buffer_type_t buft)
{
    (void)buft;
    return true;
}

void ats_emu_buffer_types_init(struct ats_emu_device *device)
{
    device->buft = (struct ggml_backend_buffer_type){
        .iface = {.get_name = device_buft_name,
                  .alloc_buffer = device_buft_alloc,
                  .get_alignment = buft_alignment,
                  .get_max_size = device_buft_max_size},
        .device = &device->dev,
        .context = device,
    };
    device->host_buft = (struct ggml_backend_buffer_type){
        .iface = {.get_name = host_buft_name,
                  .alloc_buffer = host_buft_alloc,
                  .get_alignment = buft_alignment,
                  .is_host = host_buft_is_host},
        .device = &device->dev,
        .context = device,
    };
}
