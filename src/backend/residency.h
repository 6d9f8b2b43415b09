/* Residency: VRAM of a device, and which records and mirrors occupy it.
 *
 * All functions need the device's write lock unless they say otherwise. */
#ifndef ATS_BACKEND_RESIDENCY_H
#define ATS_BACKEND_RESIDENCY_H

#include "backend/buffer.h"

/* One allocation of VRAM that holds one or more records; freed with the last. */
struct ats_vram_block {
    ggml_backend_buffer_t buffer;
    size_t size;
    size_t used; /* bytes given out, from the start */
    size_t n_records;
};

/* Gives each of the records a place in VRAM, in one allocation if the accelerator
 * allows. Does not copy data. On failure nothing has changed. */
bool ats_vram_take(struct ats_device *device, struct ats_record **records, size_t n,
                   struct ats_error *err);

/* Gives the record's VRAM back; its bytes must be valid in host memory or lost. */
void ats_vram_release(struct ats_record *record);

/* Takes VRAM for the mirror of a compute buffer, moving weights out by `accel` if it must. */
bool ats_mirror_take(struct ats_buffer *buffer, ggml_backend_t accel, struct ats_error *err);

void ats_mirror_release(struct ats_buffer *buffer);

/* What a tensor of this shape takes in VRAM, padding included. Any lock. */
size_t ats_vram_bytes(const struct ats_device *device, const struct ggml_tensor *tensor);

/* Makes the record's bytes valid on `side` too, by a copy that is ordered behind
 * the work of `accel`; VRAM must have been taken. Needs the read lock only, if the
 * caller owns the tensor. False: the copy failed. */
bool ats_record_bring(struct ats_record *record, enum ats_side side, ggml_backend_t accel,
                      struct ats_error *err);

/* Gives the host pages of a record back to the system, if it is valid in VRAM and
 * the memory is the buffer's own. */
void ats_record_drop_host(struct ats_record *record);

/* Moves weights out of VRAM, block by block in the order of plan/headroom.h, until `bytes` of the
 * budget are free; with 0, until no more is used than the budget. Makes all graph
 * plans void if it moved any. `accel` makes the copies; a weight that cannot be copied stays where
 * it is. */
bool ats_residency_make_room(struct ats_device *device, size_t bytes, ggml_backend_t accel,
                             struct ats_error *err);

/* Brings the group of weights back to VRAM that left last, if the budget has room for it, and makes
 * all graph plans void then. *moved: the bytes copied. False: it failed; nothing has moved. */
bool ats_residency_bring_back(struct ats_device *device, ggml_backend_t accel, size_t *moved);

/* Once there is VRAM again and all weights are back: slots of experts and staging memory, of which
 * some was given up, are taken anew when the next graph is planned. */
void ats_residency_spread(struct ats_device *device);

/* Waits until no backend instance of the device has work in flight. */
void ats_device_drain(struct ats_device *device);

/* The error that the accelerator latched, if it can tell (an emulated one can).
 * Needs no lock; called by the thread that uses `accel`. */
bool ats_accel_failed(ggml_backend_t accel, struct ats_error *err);

#endif
