/* Copies between host and device in timed mode, and the device's buffers. */
#include "emu/contents.h"
#include "emu/timed.h"

#include <stdio.h>
#include <string.h>

/* A driver stages pageable copies up to this size at once and returns (CUDA documents it). */
static const size_t MAX_STAGED_BYTES = (size_t)64 << 10;

static size_t span(size_t size, size_t n_copies, size_t stride)
{
    return (n_copies - 1) * stride + size;
}

/* A tensor's bytes in the shadow; NULL latches an error. */
static uint8_t *find_bytes(const struct ats_emu_host_copy *c)
{
    const size_t size = span(c->size, c->n_copies, c->stride_tensor);
    uint8_t *bytes =
        ats_emu_device_reach(c->device, (const uint8_t *)c->tensor->data + c->offset, size);
    if (bytes == NULL) {
        char text[256];
        snprintf(text, sizeof(text),
                 "%s: illegal address: %zu bytes at offset %zu of tensor '%s' (%p) are neither in "
                 "memory allocated on this device nor in pinned host memory",
                 c->device->name, size, c->offset, c->tensor->name, c->tensor->data);
        ats_emu_fault_latch(c->fault, text);
    }
    return bytes;
}

/* Enters the copy at the time of the last look. */
static struct ats_ticket enter_copy(const struct ats_emu_host_copy *c,
                                    enum ats_timeline_direction direction, double max_gbps)
{
    const struct ats_timeline_copy copy = {
        .direction = direction,
        .bytes = (double)(c->size * c->n_copies),
        .latency_us = c->device->profile.rates.copy_latency_us,
        .max_gbps = max_gbps,
    };
    const struct ats_ticket ticket = ats_timeline_copy(ats_emu_clock_lock(), c->stream, &copy);
    ats_emu_clock_unlock();
    return ticket;
}

static void finish(const struct ats_emu_host_copy *c, struct ats_ticket ticket, bool wait,
                   const struct ats_emu_entry *entry)
{
    if (wait) {
        ats_emu_clock_own(entry);
        ats_emu_clock_wait(ticket, entry->us);
    } else {
        ats_emu_clock_entered(entry, c->device->profile.rates.copy_latency_us);
    }
}

void ats_emu_timed_upload(const struct ats_emu_host_copy *c, const void *data)
{
    struct ats_emu_entry entry = ats_emu_clock_enter();
    uint8_t *bytes = find_bytes(c);
    if (bytes == NULL) {
        return;
    }
    const size_t total = c->size * c->n_copies;
    ats_emu_clock_look(total);
    const bool stored = ats_emu_is_stored(c->tensor, total);
    for (size_t i = 0; stored && i < c->n_copies; i++) {
        memcpy(bytes + i * c->stride_tensor, (const uint8_t *)data + i * c->stride_host, c->size);
    }
    const bool pinned = ats_emu_pinned_contains(data, span(c->size, c->n_copies, c->stride_host));
    const bool staged = !pinned && total <= MAX_STAGED_BYTES;
    const double max_gbps = pinned || staged ? 0 : c->device->profile.rates.pageable_gbps;
    const struct ats_ticket ticket = enter_copy(c, ATS_TO_DEVICE, max_gbps);
    const struct ats_emu_rows source = {data, c->size, c->n_copies, c->stride_host};
    if (!stored && pinned) {
        ats_emu_clock_read_along(ticket, &source);
    } else if (!stored) {
        /* as the driver's staging does; a page that comes from a disk takes its own time */
        ats_emu_clock_read_now(&source);
        ats_emu_clock_own(&entry);
        entry = ats_emu_clock_enter();
    }
    finish(c, ticket, c->wait || max_gbps > 0, &entry);
}

void ats_emu_timed_download(const struct ats_emu_host_copy *c, void *data)
{
    const struct ats_emu_entry entry = ats_emu_clock_enter();
    const uint8_t *bytes = find_bytes(c);
    ats_emu_clock_look(c->size * c->n_copies);
    for (size_t i = 0; i < c->n_copies; i++) {
        uint8_t *row = (uint8_t *)data + i * c->stride_host;
        if (bytes == NULL) {
            memset(row, ATS_EMU_POISON, c->size);
        } else {
            ats_emu_read_contents(c->device, c->tensor, bytes + i * c->stride_tensor, row, c->size);
        }
    }
    if (bytes == NULL) {
        return;
    }
    const bool pinned = ats_emu_pinned_contains(data, span(c->size, c->n_copies, c->stride_host));
    const double max_gbps = pinned ? 0 : c->device->profile.rates.pageable_gbps;
    const struct ats_ticket ticket = enter_copy(c, ATS_TO_HOST, max_gbps);
    finish(c, ticket, c->wait || !pinned, &entry);
}

void ats_emu_timed_move(struct ats_emu_device *device, uint32_t stream, double bytes)
{
    const struct ats_op_shape shape = {.kind = ATS_COST_BYTES, .io_bytes = bytes};
    const double us = ats_cost_op_us(&device->profile.rates, &shape);
    ats_emu_clock_look(0);
    ats_timeline_compute(ats_emu_clock_lock(), stream, us, 1);
    ats_emu_clock_unlock();
}

/* ---- buffers: operations at once, on a stream of the device's own ---- */

static struct ats_emu_device *device_of(ggml_backend_buffer_t buffer)
{
    return buffer->buft->context;
}

static void buffer_free(ggml_backend_buffer_t buffer)
{
    struct ats_emu_device *device = device_of(buffer);
    ats_emu_timed_drain(device);
    ats_emu_memory_free(&device->memory, buffer->context);
}

static void *buffer_get_base(ggml_backend_buffer_t buffer)
{
    return buffer->context;
}

static struct ats_emu_host_copy buffer_copy(ggml_backend_buffer_t buffer,
                                            const struct ggml_tensor *tensor, size_t offset,
                                            size_t size)
{
    struct ats_emu_device *device = device_of(buffer);
    return (struct ats_emu_host_copy){.device = device,
                                      .stream = device->timed->stream,
                                      .fault = &device->fault,
                                      .tensor = tensor,
                                      .offset = offset,
                                      .size = size,
                                      .n_copies = 1,
                                      .wait = true};
}

static void buffer_set_2d(ggml_backend_buffer_t buffer, struct ggml_tensor *tensor,
                          const void *data, size_t offset, size_t size, size_t n_copies,
                          size_t stride_tensor, size_t stride_data)
{
    struct ats_emu_host_copy copy = buffer_copy(buffer, tensor, offset, size);
    copy.n_copies = n_copies;
    copy.stride_tensor = stride_tensor;
    copy.stride_host = stride_data;
    if (size > 0 && n_copies > 0 &&
        ats_emu_device_admit(copy.device, ATS_EMU_OP_COPY, copy.fault)) {
        ats_emu_timed_upload(&copy, data);
    }
}

static void buffer_get_2d(ggml_backend_buffer_t buffer, const struct ggml_tensor *tensor,
                          void *data, size_t offset, size_t size, size_t n_copies,
                          size_t stride_tensor, size_t stride_data)
{
    struct ats_emu_host_copy copy = buffer_copy(buffer, tensor, offset, size);
    copy.n_copies = n_copies;
    copy.stride_tensor = stride_tensor;
    copy.stride_host = stride_data;
    if (size == 0 || n_copies == 0) {
        return;
    }
    if (ats_emu_device_admit(copy.device, ATS_EMU_OP_COPY, copy.fault)) {
        ats_emu_timed_download(&copy, data);
        return;
    }
    for (size_t i = 0; i < n_copies; i++) {
        memset((uint8_t *)data + i * stride_data, ATS_EMU_POISON, size);
    }
}

static void buffer_set(ggml_backend_buffer_t buffer, struct ggml_tensor *tensor, const void *data,
                       size_t offset, size_t size)
{
    buffer_set_2d(buffer, tensor, data, offset, size, 1, 0, 0);
}

static void buffer_get(ggml_backend_buffer_t buffer, const struct ggml_tensor *tensor, void *data,
                       size_t offset, size_t size)
{
    buffer_get_2d(buffer, tensor, data, offset, size, 1, 0, 0);
}

/* Large areas keep what they hold: a KV cache that is cleared commits no memory. */
static void fill(ggml_backend_buffer_t buffer, const void *address, size_t size, uint8_t value)
{
    struct ats_emu_device *device = device_of(buffer);
    if (atomic_load(&device->lost)) {
        return;
    }
    uint8_t *bytes = ats_emu_memory_shadow(&device->memory, address, size);
    if (bytes != NULL && size <= ATS_EMU_MAX_STORED_BYTES) {
        memset(bytes, value, size);
    }
    const double begin_us = ats_emu_clock_us();
    ats_emu_timed_move(device, device->timed->stream, (double)size);
    const struct ats_ticket ticket =
        ats_timeline_record(ats_emu_clock_lock(), device->timed->stream);
    ats_emu_clock_unlock();
    ats_emu_clock_wait(ticket, begin_us);
}

static void buffer_memset(ggml_backend_buffer_t buffer, struct ggml_tensor *tensor, uint8_t value,
                          size_t offset, size_t size)
{
    fill(buffer, (const uint8_t *)tensor->data + offset, size, value);
}

static void buffer_clear(ggml_backend_buffer_t buffer, uint8_t value)
{
    fill(buffer, buffer->context, buffer->size, value);
}

/* Within one device. Between devices ggml goes by way of the host. */
static bool buffer_copy_tensor(ggml_backend_buffer_t buffer, const struct ggml_tensor *src,
                               struct ggml_tensor *dst)
{
    struct ats_emu_device *device = device_of(buffer);
    if (!ats_emu_memory_owns(&device->memory, src->data)) {
        return false;
    }
    const size_t size = ggml_nbytes(src);
    const uint8_t *from = ats_emu_memory_shadow(&device->memory, src->data, size);
    uint8_t *to = ats_emu_memory_shadow(&device->memory, dst->data, size);
    if (from == NULL || to == NULL ||
        !ats_emu_device_admit(device, ATS_EMU_OP_COPY, &device->fault)) {
        return from != NULL && to != NULL;
    }
    if (ats_emu_is_stored(src, size)) {
        memmove(to, from, size);
    }
    const double begin_us = ats_emu_clock_us();
    ats_emu_timed_move(device, device->timed->stream, 2 * (double)size);
    const struct ats_ticket ticket =
        ats_timeline_record(ats_emu_clock_lock(), device->timed->stream);
    ats_emu_clock_unlock();
    ats_emu_clock_wait(ticket, begin_us);
    return true;
}

const struct ggml_backend_buffer_i ats_emu_timed_buffer_interface = {
    .free_buffer = buffer_free,
    .get_base = buffer_get_base,
    .memset_tensor = buffer_memset,
    .set_tensor = buffer_set,
    .get_tensor = buffer_get,
    .set_tensor_2d = buffer_set_2d,
    .get_tensor_2d = buffer_get_2d,
    .cpy_tensor = buffer_copy_tensor,
    .clear = buffer_clear,
};
