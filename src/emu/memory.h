/* The memory of an emulated device, and pinned host memory.
 *
 * A device address lies in a range that is reserved but not accessible, so
 * host code that dereferences one dies on the spot. The emulator itself uses a
 * second range, the shadow, at a fixed distance.
 *
 * Poison: the shadow is a private mapping of a small file of 0xFF bytes (NaN
 * in f32, f16 and bf16) repeated over the whole device. Reading untouched
 * memory gives poison and costs nothing; writing commits just the page
 * written; freeing drops the written pages, which brings the poison back. So a
 * 24 GiB device costs what is stored in it.
 *
 * Thread-safety: `lock` guards the heap; all else is fixed after creation.
 * Contents are guarded by nobody, as on a device: ordering is the caller's. */
#ifndef ATS_EMU_MEMORY_H
#define ATS_EMU_MEMORY_H

#include "base/error.h"
#include "emu/heap.h"

#include <pthread.h>
#include <stdint.h>

/* The byte that memory nobody wrote consists of. */
enum { ATS_EMU_POISON = 0xFF };

/* `size` bytes (whole pages) of poison that commit memory page by page when
 * written, to be unmapped by munmap; NULL with errno set on failure. */
uint8_t *ats_emu_map_poison(size_t size);

struct ats_emu_memory {
    uint8_t *device; /* never dereferenced */
    uint8_t *shadow;
    size_t size;      /* bytes, a multiple of the page size */
    size_t page_size; /* granularity of allocation: freeing drops whole pages */
    pthread_mutex_t lock;
    struct ats_emu_heap heap;
    size_t others; /* bytes that other programs have; under the lock */
};

bool ats_emu_memory_init(struct ats_emu_memory *memory, size_t size, struct ats_error *err);
void ats_emu_memory_destroy(struct ats_emu_memory *memory);

/* A device address for `size` bytes of poison, or NULL if it does not fit. */
void *ats_emu_memory_alloc(struct ats_emu_memory *memory, size_t size, size_t alignment);

/* Frees what alloc returned. The caller has made sure that nothing uses it;
 * what uses it all the same reads poison, and does no harm to the process. */
void ats_emu_memory_free(struct ats_emu_memory *memory, void *address);

/* Other programs have so many bytes, which are neither free nor given out from now on. */
void ats_emu_memory_occupy(struct ats_emu_memory *memory, size_t bytes);

size_t ats_emu_memory_available(struct ats_emu_memory *memory);

/* Whether `address` is within the device's range, allocated or not. */
bool ats_emu_memory_owns(const struct ats_emu_memory *memory, const void *address);

/* The shadow of [address, address + size), or NULL if that is not within one
 * allocation of this device. The caller holds `lock` for the _locked form. */
uint8_t *ats_emu_memory_shadow(struct ats_emu_memory *memory, const void *address, size_t size);
uint8_t *ats_emu_memory_shadow_locked(const struct ats_emu_memory *memory, const void *address,
                                      size_t size);

/* Pinned host memory: ordinary, poisoned, page-aligned. NULL on failure. The
 * registry knows every pinned range of the process, from here and from
 * ats_emu_pinned_register, which fails if the range overlaps a known one. */
void *ats_emu_pinned_alloc(size_t size);
void ats_emu_pinned_free(void *address);
bool ats_emu_pinned_register(void *address, size_t size);
bool ats_emu_pinned_unregister(void *address);
bool ats_emu_pinned_contains(const void *address, size_t size);

#endif
