/* Which parts of a device's address space are in use: a first-fit allocator
 * over offsets, with coalescing. It never touches the memory it manages.
 *
 * Blocks lie in an array sorted by offset, cover the space without gaps, and
 * two free blocks are never neighbours. A device has hundreds of buffers, not
 * millions: linear search for a fit, binary search for an address. Not
 * thread-safe; the owner locks. */
#ifndef ATS_EMU_HEAP_H
#define ATS_EMU_HEAP_H

#include <stdbool.h>
#include <stddef.h>

struct ats_emu_block {
    size_t offset;
    size_t size;
    bool used;
};

struct ats_emu_heap {
    struct ats_emu_block *blocks;
    size_t n_blocks;
    size_t capacity;
    size_t size;
    size_t used; /* bytes */
};

/* `size` > 0. False if there is no host memory for the block array. */
bool ats_emu_heap_init(struct ats_emu_heap *heap, size_t size);
void ats_emu_heap_destroy(struct ats_emu_heap *heap);

/* The lowest free range of `size` > 0 bytes at a multiple of `alignment` (a
 * power of two). False if there is none. */
bool ats_emu_heap_alloc(struct ats_emu_heap *heap, size_t size, size_t alignment, size_t *offset);

/* Frees the block that starts at `offset` and returns its size; 0 if there is none. */
size_t ats_emu_heap_free(struct ats_emu_heap *heap, size_t offset);

/* Whether [offset, offset + size) lies within one used block. */
bool ats_emu_heap_contains(const struct ats_emu_heap *heap, size_t offset, size_t size);

/* Whether the invariants above hold. For tests. */
bool ats_emu_heap_valid(const struct ats_emu_heap *heap);

#endif
