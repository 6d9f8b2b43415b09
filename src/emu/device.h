/* An emulated device: its memory, its failures, the list of its streams, and
 * its face towards ggml.
 *
 * Ownership: ats_emu_start creates devices, and they live until the process
 * ends (ggml keeps pointers to them); tests create and destroy their own.
 * Streams and buffers point to their device.
 *
 * Locks, in the order in which they may be taken together:
 *   all_lock      the list of devices (device.c)
 *   streams_lock  the list of streams; held while a stream is unlinked or all
 *                 are waited for, so that none of them goes away meanwhile
 *   stream->lock  a stream's queue (stream.h)
 *   memory.lock, then the registry of pinned memory; leaves: fault.lock, injector.lock */
#ifndef ATS_EMU_DEVICE_H
#define ATS_EMU_DEVICE_H

#include "bind/ggml_bind.h"
#include "emu/inject.h"
#include "emu/memory.h"
#include "emu/profile.h"

#include <pthread.h>
#include <stdatomic.h>

struct ats_emu_stream;
struct ats_emu_timed;

/* The first failure since it was last taken. `latched` may be read without the lock. */
struct ats_emu_fault {
    pthread_mutex_t lock;
    atomic_bool latched;
    char text[256];
};

struct ats_emu_device {
    struct ats_emu_profile profile;
    char name[16];
    char host_name[24];
    int index;
    struct ats_emu_device *next; /* in the list of all devices (device.c) */
    struct ats_emu_memory memory;
    struct ats_emu_injector injector;
    struct ats_emu_fault fault; /* of operations on buffers, which have no stream */
    atomic_bool lost;           /* once true, stays true */

    pthread_mutex_t streams_lock;
    struct ats_emu_stream *streams;
    unsigned n_streams_created;

    struct ats_emu_timed *timed; /* timed.h; NULL in exact mode */
    _Atomic uint64_t n_reads;    /* of contents that nobody computed (contents.h) */

    struct ggml_backend_device dev;
    struct ggml_backend_buffer_type buft;
    struct ggml_backend_buffer_type host_buft;
};

/* A device that ggml does not know of yet; NULL on failure. */
struct ats_emu_device *ats_emu_device_create(const struct ats_emu_profile *profile, int index,
                                             struct ats_error *err);

/* All its streams and buffers must be gone. */
void ats_emu_device_destroy(struct ats_emu_device *device);

/* Registry "EMU", to which every emulated device belongs (registry.c). */
ggml_backend_reg_t ats_emu_registry(void);

void ats_emu_fault_init(struct ats_emu_fault *fault);
void ats_emu_fault_destroy(struct ats_emu_fault *fault);
void ats_emu_fault_latch(struct ats_emu_fault *fault, const char *text);
/* True and the text if one is latched; clears it. */
bool ats_emu_fault_take(struct ats_emu_fault *fault, char *text, size_t size);

/* Counts a copy or a graph that is about to be executed. False if it must not
 * be: it is to fail, or the device is lost; then `fault` tells. */
bool ats_emu_device_admit(struct ats_emu_device *device, enum ats_emu_op op,
                          struct ats_emu_fault *fault);

/* What the device reaches at `address`: the shadow of its own memory, pinned
 * host memory, or NULL. */
uint8_t *ats_emu_device_reach(struct ats_emu_device *device, const void *address, size_t size);

/* Waits for the commands that the device's streams hold now. */
void ats_emu_device_drain(struct ats_emu_device *device);

/* The same for all devices: pinned memory is shared by all of them. */
void ats_emu_drain_all(void);

/* ggml's CPU device, which computes for us; NULL if there is none (yet). */
ggml_backend_dev_t ats_emu_cpu_device(void);

/* The interfaces, by file: buffer.c, backend.c. */
void ats_emu_buffer_types_init(struct ats_emu_device *device);
ggml_backend_t ats_emu_backend_new(struct ats_emu_device *device);

#endif
