#include "backend/residency.h"

#include "backend/stream.h"
#include "base/parse.h"
#include "plan/headroom.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

static size_t round_up(size_t n, size_t alignment)
{
    return (n + alignment - 1) / alignment * alignment;
}

size_t ats_vram_bytes(const struct ats_device *device, const struct ggml_tensor *tensor)
{
    const size_t bytes = ggml_backend_buft_get_alloc_size(device->accel_buffer_type, tensor);
    return round_up(bytes, ggml_backend_buft_get_alignment(device->accel_buffer_type));
}

bool ats_accel_failed(ggml_backend_t accel, struct ats_error *err)
{
    bool (*take_error)(ggml_backend_t, char *, size_t);
    return ats_backend_proc(accel, "ats_backend_take_error", &take_error) &&
           take_error(accel, err->text, sizeof(err->text));
}

void ats_device_drain(struct ats_device *device)
{
    for (struct ats_stream *stream = device->streams; stream != NULL; stream = stream->next) {
        ggml_backend_synchronize(stream->accel);
        if (stream->staging.transfer != NULL) {
            ggml_backend_synchronize(stream->staging.transfer);
        }
        if (stream->experts.transfer != NULL) {
            ggml_backend_synchronize(stream->experts.transfer);
        }
    }
}

/* ---- taking and giving back ---- */

static ggml_backend_buffer_t take_buffer(struct ats_device *device, size_t size,
                                         struct ats_error *err)
{
    ats_device_settle_budget(device);
    char text[32];
    if (size > ats_device_vram_left(device)) {
        ats_fail(err, "%s has no room for %s more within its VRAM budget",
                 ggml_backend_dev_name(device->accel), ats_format_bytes(size, text, sizeof(text)));
        return NULL;
    }
    ggml_backend_buffer_t buffer = ggml_backend_buft_alloc_buffer(device->accel_buffer_type, size);
    if (buffer == NULL) {
        ats_fail(err, "%s could not allocate %s of VRAM", ggml_backend_dev_name(device->accel),
                 ats_format_bytes(size, text, sizeof(text)));
        return NULL;
    }
    device->vram_used += size;
    return buffer;
}

static void settle_record(struct ats_record *record, struct ats_vram_block *block)
{
    record->accel = record->as_made;
    record->accel.op = GGML_OP_NONE;
    record->accel.flags = 0;
    memset(record->accel.src, 0, sizeof(record->accel.src));
    record->accel.view_src = NULL;
    record->accel.view_offs = 0;
    record->accel.buffer = NULL;
    record->accel.data = NULL;
    record->accel.extra = NULL;
    char *base = ggml_backend_buffer_get_base(block->buffer);
    record->block = block;
    block->n_records++;
    ggml_backend_tensor_alloc(block->buffer, &record->accel, base + block->used);
}

/* Takes one block for records[first .. last). */
static bool take_block(struct ats_device *device, struct ats_record **records, size_t first,
                       size_t last, struct ats_error *err)
{
    size_t size = 0;
    bool all_weights = true;
    for (size_t i = first; i < last; i++) {
        size += ats_vram_bytes(device, &records[i]->as_made);
        all_weights = all_weights && atomic_load(&records[i]->buffer->is_weights);
    }
    struct ats_vram_block *block = calloc(1, sizeof(*block));
    if (block == NULL) {
        return ats_fail(err, "out of memory");
    }
    block->size = size;
    block->buffer = take_buffer(device, size, err);
    if (block->buffer == NULL) {
        free(block);
        return false;
    }
    if (all_weights) {
        ggml_backend_buffer_set_usage(block->buffer, GGML_BACKEND_BUFFER_USAGE_WEIGHTS);
    }
    for (size_t i = first; i < last; i++) {
        settle_record(records[i], block);
        block->used += ats_vram_bytes(device, &records[i]->as_made);
    }
    return true;
}

bool ats_vram_take(struct ats_device *device, struct ats_record **records, size_t n,
                   struct ats_error *err)
{
    const size_t limit = ggml_backend_buft_get_max_size(device->accel_buffer_type);
    size_t first = 0;
    while (first < n) {
        size_t size = 0;
        size_t last = first;
        while (last < n) {
            const size_t bytes = ats_vram_bytes(device, &records[last]->as_made);
            if (last > first && bytes > limit - size) {
                break;
            }
            size += bytes;
            last++;
        }
        if (!take_block(device, records, first, last, err)) {
            for (size_t i = 0; i < first; i++) {
                ats_vram_release(records[i]);
            }
            return false;
        }
        first = last;
    }
    return true;
}

void ats_vram_release(struct ats_record *record)
{
    struct ats_vram_block *block = record->block;
    if (block == NULL) {
        return;
    }
    record->block = NULL;
    record->accel = (struct ggml_tensor){0};
    record->valid = ATS_ON(ATS_HOST);
    if (--block->n_records == 0) {
        ggml_backend_buffer_free(block->buffer);
        record->buffer->device->vram_used -= block->size;
        free(block);
    }
}

bool ats_mirror_take(struct ats_buffer *buffer, ggml_backend_t accel, struct ats_error *err)
{
    if (buffer->mirror != NULL) {
        return true;
    }
    struct ats_device *device = buffer->device;
    ats_device_settle_budget(device);
    if (!ats_residency_make_room(device, buffer->size, accel, err)) {
        return false;
    }
    buffer->mirror = take_buffer(device, buffer->size, err);
    if (buffer->mirror == NULL) {
        return false;
    }
    ggml_backend_buffer_set_usage(buffer->mirror, GGML_BACKEND_BUFFER_USAGE_COMPUTE);
    buffer->mirror_base = ggml_backend_buffer_get_base(buffer->mirror);
    return true;
}

void ats_mirror_release(struct ats_buffer *buffer)
{
    if (buffer->mirror != NULL) {
        ggml_backend_buffer_free(buffer->mirror);
        buffer->device->vram_used -= buffer->size;
        buffer->mirror = NULL;
        buffer->mirror_base = NULL;
    }
}

/* ---- moving bytes ---- */

/* Reads a record's bytes from VRAM to its host memory. An accelerator may have page-locked that
 * for reading only, and more of it than it was asked to: then through memory of ours. */
static bool read_back(struct ats_record *record, ggml_backend_t accel, struct ats_error *err)
{
    if (record->buffer->n_pins == 0) {
        ggml_backend_tensor_get_async(accel, &record->accel, ats_record_host(record), 0,
                                      record->bytes);
        return true;
    }
    void *bytes = malloc(record->bytes);
    if (bytes == NULL) {
        return ats_fail(err, "out of memory");
    }
    ggml_backend_tensor_get_async(accel, &record->accel, bytes, 0, record->bytes);
    ggml_backend_synchronize(accel);
    memcpy(ats_record_host(record), bytes, record->bytes);
    free(bytes);
    return true;
}

bool ats_record_bring(struct ats_record *record, enum ats_side side, ggml_backend_t accel,
                      struct ats_error *err)
{
    struct ats_device *device = record->buffer->device;
    if ((record->valid & ATS_ON(side)) != 0) {
        return true;
    }
    if (record->valid == 0) {
        return ats_fail(err, "tensor %s was lost with %s; make the context or the model anew",
                        record->as_made.name, ggml_backend_dev_name(device->accel));
    }
    if (side == ATS_ACCEL) {
        ggml_backend_tensor_set_async(accel, &record->accel, ats_record_host(record), 0,
                                      record->bytes);
        device->counters.copied_to_accel_bytes += record->bytes;
    } else {
        if (!read_back(record, accel, err)) {
            return false;
        }
        device->counters.copied_to_host_bytes += record->bytes;
    }
    ggml_backend_synchronize(accel);
    if (ats_accel_failed(accel, err)) {
        return false;
    }
    record->valid |= ATS_ON(side);
    return true;
}

void ats_record_drop_host(struct ats_record *record)
{
    struct ats_buffer *buffer = record->buffer;
    /* page-locked pages must stay: the accelerator knows them by their frames */
    if (!buffer->owns_memory || buffer->n_pins > 0 || (record->valid & ATS_ON(ATS_ACCEL)) == 0) {
        return;
    }
    record->valid = ATS_ON(ATS_ACCEL);
    /* whole pages only: the ones at the ends hold bytes of the neighbours too */
    const size_t page = (size_t)sysconf(_SC_PAGESIZE);
    const size_t first = round_up(record->begin, page);
    const size_t last = (record->begin + record->bytes) / page * page;
    if (first < last) {
        madvise(buffer->base + first, last - first, MADV_DONTNEED);
    }
}

/* ---- making room ---- */

static bool demote(struct ats_record *record, ggml_backend_t accel, struct ats_error *err)
{
    if (!ats_record_bring(record, ATS_HOST, accel, err)) {
        ats_log_warn("%s: tensor %s stays in VRAM: %s\n", record->buffer->device->name,
                     record->as_made.name, err->text);
        return false;
    }
    ats_vram_release(record);
    record->home = ATS_ON(ATS_HOST);
    return true;
}

/* Demotes all that shares a block with `first`, as only the whole block gives VRAM back.
 * Returns how many records moved. */
static size_t demote_block(struct ats_record *first, ggml_backend_t accel, struct ats_error *err)
{
    struct ats_device *device = first->buffer->device;
    const struct ats_vram_block *block = first->block;
    size_t left = block->n_records;
    size_t moved = 0;
    for (struct ats_buffer *buffer = device->buffers; buffer != NULL && left > 0;
         buffer = buffer->next) {
        for (size_t i = 0; i < buffer->n_records && left > 0; i++) {
            struct ats_record *record = buffer->records[i];
            if (record->block == block) {
                left--;
                const ats_side_set home = record->home;
                if (demote(record, accel, err)) {
                    record->displaced = home;
                    moved++;
                }
            }
        }
    }
    return moved;
}

static bool has_room(const struct ats_device *device, size_t bytes)
{
    return bytes <= device->vram_budget && device->vram_used <= device->vram_budget - bytes;
}

/* Of the weights in VRAM, the one that leaves first; of those that have left, the one that comes
 * back first. NULL: none. */
static struct ats_record *find_next(const struct ats_device *device, bool displaced)
{
    struct ats_record *found = NULL;
    for (struct ats_buffer *buffer = device->buffers; buffer != NULL; buffer = buffer->next) {
        for (size_t i = 0; i < buffer->n_records; i++) {
            struct ats_record *record = buffer->records[i];
            if (displaced ? record->displaced == 0 || record->block != NULL
                          : record->block == NULL || !record->is_weight || record->stuck) {
                continue;
            }
            const int order =
                found == NULL ? 0 : ats_leaves_before(record->as_made.name, found->as_made.name);
            if (found == NULL || (displaced ? order > 0 : order < 0)) {
                found = record;
            }
        }
    }
    return found;
}

static size_t demote_until(struct ats_device *device, size_t bytes, ggml_backend_t accel,
                           struct ats_error *err)
{
    size_t moved = 0;
    for (struct ats_buffer *buffer = device->buffers; buffer != NULL; buffer = buffer->next) {
        for (size_t i = 0; i < buffer->n_records; i++) {
            buffer->records[i]->stuck = false; /* it may go this time */
        }
    }
    while (!has_room(device, bytes)) {
        struct ats_record *record = find_next(device, false);
        if (record == NULL) {
            break;
        }
        moved += demote_block(record, accel, err);
        record->stuck = record->block != NULL; /* it could not be copied: not asked again */
    }
    return moved;
}

/* Gives back what streams have in VRAM beside weights: experts in slots are in host memory too, and
 * weights that pass through can stay where they are; that of the stream which asks is part of what
 * it plans. */
static void release_streams(struct ats_device *device, size_t bytes,
                            const struct ggml_backend *asks)
{
    for (struct ats_stream *s = device->streams; s != NULL; s = s->next) {
        if (s->experts.exchange != NULL && !has_room(device, bytes)) {
            ats_experts_release(s);
            device->epoch++;
            device->squeezed = true;
        }
        if (s->accel != asks && s->staging.buffer != NULL && !has_room(device, bytes)) {
            ats_staging_release(s);
            device->epoch++;
            device->squeezed = true;
        }
    }
}

bool ats_residency_make_room(struct ats_device *device, size_t bytes, ggml_backend_t accel,
                             struct ats_error *err)
{
    if (has_room(device, bytes)) {
        return true;
    }
    char text[32];
    ats_format_bytes(bytes, text, sizeof(text));
    if (bytes > device->vram_budget) {
        return ats_fail(err,
                        "%s needs %s of VRAM for one compute buffer, more than its budget; a "
                        "smaller -ub or a larger ATS_VRAM helps",
                        device->name, text);
    }
    ats_device_drain(device);
    release_streams(device, bytes, accel);
    const size_t moved = demote_until(device, bytes, accel, err);
    if (bytes == 0) { /* nothing is being planned: the last to go */
        release_streams(device, bytes, NULL);
    }
    if (moved > 0) {
        device->epoch++;
        ats_log_info("%s: moved %zu weights to host memory, to make room for %s\n", device->name,
                     moved, bytes > 0 ? text : "others");
    }
    return has_room(device, bytes) || ats_fail(err, "%s has no room for %s within its VRAM budget",
                                               device->name, bytes > 0 ? text : "what it uses");
}

/* ---- coming back ---- */

/* The records that leave together with `first` and have left. NULL: out of memory. */
static struct ats_record **list_group(const struct ats_device *device,
                                      const struct ats_record *first, size_t *n)
{
    struct ats_record **group = NULL;
    for (int pass = 0; pass < 2; pass++) {
        *n = 0;
        for (struct ats_buffer *buffer = device->buffers; buffer != NULL; buffer = buffer->next) {
            for (size_t i = 0; i < buffer->n_records; i++) {
                struct ats_record *record = buffer->records[i];
                if (record->displaced != 0 && record->block == NULL &&
                    ats_leaves_before(record->as_made.name, first->as_made.name) == 0) {
                    if (group != NULL) {
                        group[*n] = record;
                    }
                    ++*n;
                }
            }
        }
        group = pass == 0 ? calloc(*n, sizeof(struct ats_record *)) : group;
        if (group == NULL) {
            break;
        }
    }
    return group;
}

static bool bring_group(struct ats_record **group, size_t n, ggml_backend_t accel,
                        struct ats_error *err)
{
    for (size_t i = 0; i < n; i++) {
        if (!ats_record_bring(group[i], ATS_ACCEL, accel, err)) {
            return false;
        }
    }
    for (size_t i = 0; i < n; i++) {
        group[i]->home = group[i]->displaced;
        group[i]->displaced = 0;
        if (group[i]->home == ATS_ON(ATS_ACCEL)) {
            ats_record_drop_host(group[i]);
        }
    }
    return true;
}

/* False: it failed, and may be tried again. */
static bool bring_back(struct ats_device *device, struct ats_record **group, size_t n,
                       ggml_backend_t accel, size_t *moved)
{
    size_t vram = 0;
    size_t bytes = 0;
    for (size_t i = 0; i < n; i++) {
        vram += ats_vram_bytes(device, &group[i]->as_made);
        bytes += group[i]->bytes;
    }
    struct ats_error err = {{0}};
    if (!has_room(device, vram)) {
        return true;
    }
    ats_device_drain(device);
    if (!ats_vram_take(device, group, n, &err)) {
        return false;
    }
    device->epoch++;
    if (!bring_group(group, n, accel, &err)) {
        for (size_t i = 0; i < n; i++) {
            ats_vram_release(group[i]);
        }
        return false;
    }
    char text[32];
    ats_log_info("%s: %s of weights came back to VRAM\n", device->name,
                 ats_format_bytes(bytes, text, sizeof(text)));
    *moved = bytes;
    return true;
}

bool ats_residency_bring_back(struct ats_device *device, ggml_backend_t accel, size_t *moved)
{
    const struct ats_record *first = find_next(device, true);
    size_t n = 0;
    *moved = 0;
    if (first == NULL) {
        return true;
    }
    struct ats_record **group = list_group(device, first, &n);
    const bool ok = group != NULL && bring_back(device, group, n, accel, moved);
    free(group);
    return ok;
}

void ats_residency_spread(struct ats_device *device)
{
    if (!device->squeezed || find_next(device, true) != NULL) {
        return;
    }
    device->squeezed = false;
    ats_device_drain(device);
    for (struct ats_stream *s = device->streams; s != NULL; s = s->next) {
        ats_experts_release(s);
    }
    device->epoch++;
}
