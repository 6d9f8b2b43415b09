/* ATS buffers: memory of an ATS device as ggml sees it.
 *
 * A buffer is an area of host memory: the address of a tensor is its host
 * address. Behind it, tensors may also (or only) live in VRAM, in two ways:
 *
 * - A *compute* buffer (ggml's graph allocator recycles its memory from tensor to
 *   tensor) has a mirror in VRAM of the same layout. Which bytes are valid on
 *   which side is a range map.
 * - Any other buffer keeps a *record* per tensor: its bytes are valid in host
 *   memory, in VRAM, or both. A record that lives in VRAM only has given its host
 *   pages back to the system.
 *
 * So the CPU runs llama.cpp's own tensors as they are, and the accelerator runs
 * stand-ins whose addresses are in VRAM.
 *
 * Locking: see device.h. */
#ifndef ATS_BACKEND_BUFFER_H
#define ATS_BACKEND_BUFFER_H

#include "backend/device.h"
#include "backend/range_map.h"
#include "plan/placement.h"
#include "plan/side.h"

#include <stdatomic.h>
#include <string.h>

struct ats_vram_block;

/* A tensor in a buffer that is not a compute buffer. Owned by its buffer; its
 * address is stable. */
struct ats_record {
    struct ats_buffer *buffer;
    size_t begin; /* offset in the buffer */
    size_t bytes;
    struct ggml_tensor as_made; /* the tensor when ggml first told of it: name, type, shape */
    ats_side_set valid;
    ats_side_set home; /* where the placement wants it; 0: not placed */
    bool is_decided;   /* the machine's profile has been asked where it should live (decide.h) */
    enum ats_where decided;
    bool is_weight;         /* a weight, as of its placement */
    ats_side_set displaced; /* 0, or where it is at home when others need no VRAM (follow.h) */
    bool stuck;             /* it could not be copied out of VRAM when that was needed */
    bool sliced; /* of its experts, single ones are to be in VRAM (experts.h), not the whole */
    struct ats_vram_block *block; /* VRAM that it occupies, or NULL */
    struct ggml_tensor accel;     /* its stand-in in VRAM, if block is not NULL */
};

/* A part of a record's bytes: `n` stretches of `bytes` each, `stride` from one to the next, the
 * first at `offset`. */
struct ats_part {
    size_t offset;
    size_t bytes;
    size_t n;
    size_t stride;
};

/* A range of a buffer's memory, whole pages where the buffer has them. */
struct ats_pin {
    char *address;
    size_t size;
};

struct ats_buffer {
    struct ats_device *device;
    ggml_backend_buffer_t ggml;
    char *base;
    size_t size;
    bool owns_memory; /* false: the file mapping of llama.cpp */
    bool pin_tried;
    struct ats_pin *pins; /* host memory that the accelerator has page-locked, in order */
    size_t n_pins;

    struct ats_record **records; /* sorted by begin, disjoint */
    size_t n_records;
    size_t records_capacity;

    ggml_backend_buffer_t mirror; /* VRAM of a compute buffer, or NULL until needed */
    char *mirror_base;
    struct ats_range_map ranges;
    struct ats_range_map scratch;

    /* of the largest pass that a context of its weights has made room for; 0: none */
    atomic_llong pass_tokens;
    atomic_bool is_weights; /* as of the last graph that uses it, or write into it */

    struct ats_buffer *next;
    struct ats_buffer *previous;
};

/* ggml's interface of the buffer type of `device`. */
void ats_buffer_type_init(struct ats_device *device);

/* A buffer over memory that belongs to the caller (llama.cpp's file mapping). */
ggml_backend_buffer_t ats_buffer_from_host_ptr(struct ats_device *device, void *ptr, size_t size);

/* The ATS buffer behind a ggml buffer, or NULL if it is another backend's (or an
 * empty dummy without memory). */
struct ats_buffer *ats_buffer_of(ggml_backend_buffer_t buffer);

static inline bool ats_buffer_is_compute(const struct ats_buffer *buffer)
{
    return buffer->ggml->usage == GGML_BACKEND_BUFFER_USAGE_COMPUTE;
}

/* Notes whether it holds weights. ggml sets a buffer's usage without a lock, so only a thread that
 * uses the buffer may look: for a graph that computes with it, or for a write into it. */
static inline void ats_buffer_note_usage(struct ats_buffer *buffer)
{
    atomic_store(&buffer->is_weights, buffer->ggml->usage == GGML_BACKEND_BUFFER_USAGE_WEIGHTS);
}

/* The record that holds the bytes at `offset`, or NULL. */
struct ats_record *ats_buffer_find(const struct ats_buffer *buffer, size_t offset);

/* The record of a root tensor, or NULL: it has none. Needs a lock. */
struct ats_record *ats_buffer_known(const struct ats_buffer *buffer,
                                    const struct ggml_tensor *root);

/* The record of a root tensor; makes one if ggml never announced the tensor.
 * Needs the write lock. NULL: out of memory. */
struct ats_record *ats_buffer_record(struct ats_buffer *buffer, const struct ggml_tensor *root);

/* Whether it is a weight that lives in host memory only. Needs a lock. */
static inline bool ats_record_is_host_weight(const struct ats_record *record)
{
    return record->is_weight && record->home == ATS_ON(ATS_HOST) && record->block == NULL;
}

/* Address of a record's host copy. */
static inline void *ats_record_host(const struct ats_record *record)
{
    return record->buffer->base + record->begin;
}

/* A tensor of raw bytes in another backend's buffer, to copy to and from it. */
struct ggml_tensor ats_raw_tensor(ggml_backend_buffer_t buffer, void *data, size_t bytes);

/* The same of weights, which are no integers: words, the last one perhaps in part. */
struct ggml_tensor ats_words_tensor(ggml_backend_buffer_t buffer, void *data, size_t bytes);

/* Gives it the name of the tensor whose bytes these are, for messages and recordings. */
static inline void ats_name_after(struct ggml_tensor *raw, const struct ggml_tensor *tensor)
{
    memcpy(raw->name, tensor->name, sizeof(raw->name));
}

/* Reads `size` bytes of `tensor` behind `offset`, ordered behind the work of
 * `accel` if that is given. Needs the read lock. */
void ats_buffer_read(const struct ggml_tensor *tensor, void *data, size_t offset, size_t size,
                     ggml_backend_t accel);

#endif
