#include "backend/buffer.h"

#include "backend/residency.h"
#include "backend/transfer.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

/* ---- finding things ---- */

/* Index of the first record that ends behind `offset`. */
static size_t first_ending_behind(const struct ats_buffer *buffer, size_t offset)
{
    size_t low = 0;
    size_t high = buffer->n_records;
    while (low < high) {
        const size_t middle = low + (high - low) / 2;
        const struct ats_record *record = buffer->records[middle];
        if (record->begin + record->bytes > offset) {
            high = middle;
        } else {
            low = middle + 1;
        }
    }
    return low;
}

struct ats_record *ats_buffer_find(const struct ats_buffer *buffer, size_t offset)
{
    const size_t i = first_ending_behind(buffer, offset);
    return i < buffer->n_records && buffer->records[i]->begin <= offset ? buffer->records[i] : NULL;
}

struct ggml_tensor ats_raw_tensor(ggml_backend_buffer_t buffer, void *data, size_t bytes)
{
    return (struct ggml_tensor){
        .type = GGML_TYPE_I8,
        .buffer = buffer,
        .ne = {(int64_t)bytes, 1, 1, 1},
        .nb = {1, bytes, bytes, bytes},
        .op = GGML_OP_NONE,
        .data = data,
    };
}

struct ggml_tensor ats_words_tensor(ggml_backend_buffer_t buffer, void *data, size_t bytes)
{
    const size_t n = (bytes + sizeof(float) - 1) / sizeof(float);
    const size_t whole = n * sizeof(float);
    return (struct ggml_tensor){
        .type = GGML_TYPE_F32,
        .buffer = buffer,
        .ne = {(int64_t)n, 1, 1, 1},
        .nb = {sizeof(float), whole, whole, whole},
        .op = GGML_OP_NONE,
        .data = data,
    };
}

/* ---- records ---- */

static void forget_record(struct ats_record *record)
{
    record->buffer->device->weights_generation++;
    ats_vram_release(record);
    free(record);
}

/* Removes the records that overlap [begin, end): their tensors are gone, their
 * bytes stay in host memory. */
static void forget_overlapping(struct ats_buffer *buffer, size_t begin, size_t end)
{
    const size_t first = first_ending_behind(buffer, begin);
    size_t last = first;
    while (last < buffer->n_records && buffer->records[last]->begin < end) {
        struct ats_record *record = buffer->records[last++];
        if ((record->valid & ATS_ON(ATS_HOST)) == 0 && record->block != NULL) {
            ggml_backend_tensor_get(&record->accel, ats_record_host(record), 0, record->bytes);
        }
        forget_record(record);
    }
    if (last == first) {
        return;
    }
    memmove(&buffer->records[first], &buffer->records[last],
            (buffer->n_records - last) * sizeof(struct ats_record *));
    buffer->n_records -= last - first;
    buffer->device->epoch++; /* graph plans may refer to what is gone */
}

static bool grow_records(struct ats_buffer *buffer)
{
    if (buffer->n_records < buffer->records_capacity) {
        return true;
    }
    const size_t capacity = 2 * buffer->records_capacity + 64;
    void *records = realloc(buffer->records, capacity * sizeof(struct ats_record *));
    if (records == NULL) {
        return false;
    }
    buffer->records = records;
    buffer->records_capacity = capacity;
    return true;
}

struct ats_record *ats_buffer_known(const struct ats_buffer *buffer, const struct ggml_tensor *root)
{
    const size_t begin = (size_t)((char *)root->data - buffer->base);
    struct ats_record *record = ats_buffer_find(buffer, begin);
    return record != NULL && record->begin == begin && record->bytes == ggml_nbytes(root) ? record
                                                                                          : NULL;
}

struct ats_record *ats_buffer_record(struct ats_buffer *buffer, const struct ggml_tensor *root)
{
    const size_t begin = (size_t)((char *)root->data - buffer->base);
    const size_t bytes = ggml_nbytes(root);
    struct ats_record *record = ats_buffer_known(buffer, root);
    if (record != NULL) {
        if (record->block == NULL) {
            record->as_made = *root;
        }
        return record;
    }
    forget_overlapping(buffer, begin, begin + bytes);
    record = calloc(1, sizeof(*record));
    if (record == NULL || !grow_records(buffer)) {
        free(record);
        return NULL;
    }
    *record = (struct ats_record){
        .buffer = buffer,
        .begin = begin,
        .bytes = bytes,
        .as_made = *root,
        .valid = ATS_ON(ATS_HOST),
    };
    const size_t at = first_ending_behind(buffer, begin);
    memmove(&buffer->records[at + 1], &buffer->records[at],
            (buffer->n_records - at) * sizeof(struct ats_record *));
    buffer->records[at] = record;
    buffer->n_records++;
    return record;
}

/* ---- access to bytes ----
 *
 * A stretch is a piece of a buffer with one validity: a record or a part of it, a
 * part of a compute buffer, or memory that belongs to no tensor. */

struct stretch {
    size_t begin;
    size_t end;
    ats_side_set valid;
    struct ggml_tensor accel; /* where it is in VRAM, if valid there */
    size_t accel_offset;
};

static struct stretch stretch_at(const struct ats_buffer *buffer, size_t begin, size_t end)
{
    struct stretch s = {.begin = begin, .end = end, .valid = ATS_ON(ATS_HOST)};
    if (ats_buffer_is_compute(buffer)) {
        s.valid = ats_range_map_at(&buffer->ranges, begin);
        s.end = ats_range_map_border(&buffer->ranges, begin, end);
        if ((s.valid & ATS_ON(ATS_ACCEL)) != 0) {
            s.accel = ats_raw_tensor(buffer->mirror, buffer->mirror_base, buffer->size);
            s.accel_offset = begin;
        }
        return s;
    }
    const size_t i = first_ending_behind(buffer, begin);
    if (i == buffer->n_records) {
        return s;
    }
    const struct ats_record *record = buffer->records[i];
    if (record->begin > begin) {
        s.end = record->begin < end ? record->begin : end;
        return s;
    }
    s.end = record->begin + record->bytes < end ? record->begin + record->bytes : end;
    s.valid = record->valid;
    s.accel = record->accel;
    s.accel_offset = begin - record->begin;
    return s;
}

static struct ats_buffer *buffer_of_tensor(const struct ggml_tensor *tensor)
{
    return ats_buffer_of(tensor->view_src != NULL ? tensor->view_src->buffer : tensor->buffer);
}

void ats_buffer_read(const struct ggml_tensor *tensor, void *data, size_t offset, size_t size,
                     ggml_backend_t accel)
{
    const struct ats_buffer *buffer = buffer_of_tensor(tensor);
    const size_t begin = (size_t)((char *)tensor->data - buffer->base) + offset;
    for (size_t at = begin; at < begin + size;) {
        struct stretch s = stretch_at(buffer, at, begin + size);
        ats_name_after(&s.accel, tensor);
        char *out = (char *)data + (at - begin);
        if ((s.valid & ATS_ON(ATS_HOST)) != 0) {
            memcpy(out, buffer->base + at, s.end - at);
        } else if (s.valid == 0) {
            /* lost with an accelerator, which the log has said; there is no way to report it */
            memset(out, 0, s.end - at);
        } else if (accel != NULL) {
            ggml_backend_tensor_get_async(accel, &s.accel, out, s.accel_offset, s.end - at);
        } else {
            ggml_backend_tensor_get(&s.accel, out, s.accel_offset, s.end - at);
        }
        at = s.end;
    }
}

/* Fills VRAM with one value; not every backend can do it by itself. */
static void fill_accel(struct ggml_tensor *tensor, uint8_t value, size_t offset, size_t size)
{
    if (tensor->buffer->iface.memset_tensor != NULL) {
        ggml_backend_tensor_memset(tensor, value, offset, size);
        return;
    }
    enum { PIECE = 64 * 1024 };
    char piece[PIECE];
    memset(piece, value, sizeof(piece));
    for (size_t done = 0; done < size; done += PIECE) {
        const size_t n = size - done < PIECE ? size - done : PIECE;
        ggml_backend_tensor_set(tensor, piece, offset + done, n);
    }
}

/* Writes `size` bytes (or the value `fill`, if data is NULL) at `begin` to every
 * side on which they are valid, so that no validity changes. */
static void write_valid_sides(struct ats_buffer *buffer, const void *data, uint8_t fill,
                              size_t begin, size_t size)
{
    for (size_t at = begin; at < begin + size;) {
        struct stretch s = stretch_at(buffer, at, begin + size);
        const size_t n = s.end - at;
        const char *from = data != NULL ? (const char *)data + (at - begin) : NULL;
        /* graphs take the inputs of compute buffers from host memory in any case */
        if ((s.valid & ATS_ON(ATS_HOST)) != 0 || ats_buffer_is_compute(buffer)) {
            if (from != NULL) {
                memcpy(buffer->base + at, from, n);
            } else {
                memset(buffer->base + at, fill, n);
            }
        }
        if ((s.valid & ATS_ON(ATS_ACCEL)) != 0) {
            if (from != NULL) {
                ggml_backend_tensor_set(&s.accel, from, s.accel_offset, n);
            } else {
                fill_accel(&s.accel, fill, s.accel_offset, n);
            }
        }
        at = s.end;
    }
}

/* A record whose bytes were lost with an accelerator lives again once it is written whole. */
static void revive(struct ats_buffer *buffer, size_t begin, size_t size)
{
    struct ats_record *record = ats_buffer_find(buffer, begin);
    if (record != NULL && record->valid == 0 && record->begin == begin && record->bytes <= size) {
        record->valid = ATS_ON(ATS_HOST);
    }
}

/* Bytes of a compute buffer are about to be written: from then on they are valid in host memory
 * only. Graphs bring them to where they read them. */
static void supersede(struct ats_buffer *buffer, size_t begin, size_t size)
{
    if (ats_buffer_is_compute(buffer) &&
        ats_range_map_touches(&buffer->ranges, begin, begin + size, ATS_ACCEL)) {
        /* without memory for the new entry both sides are written: slower, and right */
        (void)ats_range_map_set(&buffer->ranges, begin, begin + size, ATS_ON(ATS_HOST));
    }
}

/* Behind a write: what was copied from the weights before is old. */
static void note_change(struct ats_buffer *buffer)
{
    ats_buffer_note_usage(buffer);
    if (atomic_load(&buffer->is_weights)) {
        buffer->device->weights_generation++;
    }
}

static void write_tensor(struct ggml_tensor *tensor, const void *data, uint8_t fill, size_t offset,
                         size_t size)
{
    struct ats_buffer *buffer = buffer_of_tensor(tensor);
    pthread_rwlock_rdlock(&buffer->device->lock);
    const size_t begin = (size_t)((char *)tensor->data - buffer->base) + offset;
    supersede(buffer, begin, size);
    revive(buffer, begin, size);
    write_valid_sides(buffer, data, fill, begin, size);
    note_change(buffer);
    pthread_rwlock_unlock(&buffer->device->lock);
}

/* ---- ggml's buffer interface ---- */

static void buffer_set_tensor(ggml_backend_buffer_t ggml, struct ggml_tensor *tensor,
                              const void *data, size_t offset, size_t size)
{
    (void)ggml;
    write_tensor(tensor, data, 0, offset, size);
}

static void buffer_memset_tensor(ggml_backend_buffer_t ggml, struct ggml_tensor *tensor,
                                 uint8_t value, size_t offset, size_t size)
{
    (void)ggml;
    write_tensor(tensor, NULL, value, offset, size);
}

static void buffer_get_tensor(ggml_backend_buffer_t ggml, const struct ggml_tensor *tensor,
                              void *data, size_t offset, size_t size)
{
    const struct ats_buffer *buffer = ggml->context;
    pthread_rwlock_rdlock(&buffer->device->lock);
    ats_buffer_read(tensor, data, offset, size, NULL);
    pthread_rwlock_unlock(&buffer->device->lock);
}

static void *buffer_get_base(ggml_backend_buffer_t ggml)
{
    const struct ats_buffer *buffer = ggml->context;
    return buffer->base;
}

static enum ggml_status buffer_init_tensor(ggml_backend_buffer_t ggml, struct ggml_tensor *tensor)
{
    struct ats_buffer *buffer = ggml->context;
    if (tensor->view_src != NULL || ats_buffer_is_compute(buffer) || ggml_nbytes(tensor) == 0) {
        return GGML_STATUS_SUCCESS;
    }
    pthread_rwlock_wrlock(&buffer->device->lock);
    const bool ok = ats_buffer_record(buffer, tensor) != NULL;
    pthread_rwlock_unlock(&buffer->device->lock);
    return ok ? GGML_STATUS_SUCCESS : GGML_STATUS_ALLOC_FAILED;
}

static void buffer_clear(ggml_backend_buffer_t ggml, uint8_t value)
{
    struct ats_buffer *buffer = ggml->context;
    pthread_rwlock_wrlock(&buffer->device->lock);
    ats_device_drain(buffer->device); /* work in flight may write what is cleared */
    for (size_t i = 0; i < buffer->n_records; i++) {
        revive(buffer, buffer->records[i]->begin, buffer->size);
    }
    if (value == 0 && buffer->owns_memory && buffer->n_pins == 0) {
        /* anonymous memory reads as zero once it is given back, without being touched */
        madvise(buffer->base, buffer->size, MADV_DONTNEED);
        for (size_t i = 0; i < buffer->n_records; i++) {
            struct ats_record *record = buffer->records[i];
            if ((record->valid & ATS_ON(ATS_ACCEL)) != 0) {
                fill_accel(&record->accel, value, 0, record->bytes);
            }
        }
        if (ats_buffer_is_compute(buffer)) {
            buffer->ranges.n_ranges = 0;
        }
    } else {
        write_valid_sides(buffer, NULL, value, 0, buffer->size);
    }
    note_change(buffer);
    pthread_rwlock_unlock(&buffer->device->lock);
}

static void buffer_reset(ggml_backend_buffer_t ggml)
{
    struct ats_buffer *buffer = ggml->context;
    if (ats_buffer_is_compute(buffer)) {
        pthread_rwlock_rdlock(&buffer->device->lock);
        if (buffer->mirror != NULL && buffer->mirror->iface.reset != NULL) {
            buffer->mirror->iface.reset(buffer->mirror);
        }
        pthread_rwlock_unlock(&buffer->device->lock);
        return;
    }
    pthread_rwlock_wrlock(&buffer->device->lock);
    ats_device_drain(buffer->device);
    forget_overlapping(buffer, 0, buffer->size);
    pthread_rwlock_unlock(&buffer->device->lock);
}

static void buffer_free(ggml_backend_buffer_t ggml)
{
    struct ats_buffer *buffer = ggml->context;
    struct ats_device *device = buffer->device;
    pthread_rwlock_wrlock(&device->lock);
    ats_device_drain(device);
    for (size_t i = 0; i < buffer->n_records; i++) {
        forget_record(buffer->records[i]);
    }
    ats_mirror_release(buffer);
    if (buffer->previous != NULL) {
        buffer->previous->next = buffer->next;
    } else {
        device->buffers = buffer->next;
    }
    if (buffer->next != NULL) {
        buffer->next->previous = buffer->previous;
    }
    pthread_rwlock_unlock(&device->lock);
    ats_buffer_unpin(buffer);
    if (buffer->owns_memory) {
        munmap(buffer->base, buffer->size);
    }
    ats_range_map_free(&buffer->ranges);
    ats_range_map_free(&buffer->scratch);
    free(buffer->records);
    free(buffer);
}

static const struct ggml_backend_buffer_i buffer_interface = {
    .free_buffer = buffer_free,
    .get_base = buffer_get_base,
    .init_tensor = buffer_init_tensor,
    .memset_tensor = buffer_memset_tensor,
    .set_tensor = buffer_set_tensor,
    .get_tensor = buffer_get_tensor,
    /* 2D access and copies from other buffers: ggml's own loops over set and get */
    .clear = buffer_clear,
    .reset = buffer_reset,
};

struct ats_buffer *ats_buffer_of(ggml_backend_buffer_t buffer)
{
    return buffer != NULL && buffer->iface.get_tensor == buffer_get_tensor ? buffer->context : NULL;
}

/* ---- ggml's buffer type interface ---- */

static ggml_backend_buffer_t make_buffer(struct ats_device *device, void *base, size_t size,
                                         bool owns_memory)
{
    struct ats_buffer *buffer = calloc(1, sizeof(*buffer));
    if (buffer == NULL) {
        return NULL;
    }
    *buffer = (struct ats_buffer){
        .device = device, .base = base, .size = size, .owns_memory = owns_memory};
    buffer->ggml = ggml_backend_buffer_init(&device->buffer_type, buffer_interface, buffer, size);
    pthread_rwlock_wrlock(&device->lock);
    buffer->next = device->buffers;
    if (buffer->next != NULL) {
        buffer->next->previous = buffer;
    }
    device->buffers = buffer;
    pthread_rwlock_unlock(&device->lock);
    return buffer->ggml;
}

ggml_backend_buffer_t ats_buffer_from_host_ptr(struct ats_device *device, void *ptr, size_t size)
{
    return make_buffer(device, ptr, size, false);
}

static const char *type_get_name(ggml_backend_buffer_type_t type)
{
    const struct ats_device *device = type->context;
    return device->name;
}

static ggml_backend_buffer_t type_alloc_buffer(ggml_backend_buffer_type_t type, size_t size)
{
    struct ats_device *device = type->context;
    void *base = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (base == MAP_FAILED) {
        ats_log_error("%s: cannot get %zu MiB of host memory; use a smaller context or model\n",
                      device->name, size >> 20);
        return NULL;
    }
    ggml_backend_buffer_t buffer = make_buffer(device, base, size, true);
    if (buffer == NULL) {
        munmap(base, size);
    }
    return buffer;
}

static size_t type_get_alignment(ggml_backend_buffer_type_t type)
{
    enum { CACHE_LINE = 64 };
    const struct ats_device *device = type->context;
    const size_t accel = ggml_backend_buft_get_alignment(device->accel_buffer_type);
    return accel > CACHE_LINE ? accel : CACHE_LINE;
}

static size_t type_get_max_size(ggml_backend_buffer_type_t type)
{
    const struct ats_device *device = type->context;
    return ggml_backend_buft_get_max_size(device->accel_buffer_type);
}

/* Results of operators are mirrored, so both sides must have room for what the
 * accelerator adds to them. Weights take their VRAM separately, and a file mapping
 * has no room behind its last tensor. */
static size_t type_get_alloc_size(ggml_backend_buffer_type_t type, const struct ggml_tensor *tensor)
{
    const struct ats_device *device = type->context;
    const size_t bytes = ggml_nbytes(tensor);
    if (tensor->op == GGML_OP_NONE) {
        return bytes;
    }
    const size_t accel = ggml_backend_buft_get_alloc_size(device->accel_buffer_type, tensor);
    return accel > bytes ? accel : bytes;
}

void ats_buffer_type_init(struct ats_device *device)
{
    device->buffer_type = (struct ggml_backend_buffer_type){
        .iface =
            {
                .get_name = type_get_name,
                .alloc_buffer = type_alloc_buffer,
                .get_alignment = type_get_alignment,
                .get_max_size = type_get_max_size,
                .get_alloc_size = type_get_alloc_size,
                .is_host = NULL, /* no: bytes may be in VRAM only */
            },
        .device = &device->ggml,
        .context = device,
    };
}
