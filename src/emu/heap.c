#include "emu/heap.h"

#include <stdlib.h>
#include <string.h>

enum { FIRST_CAPACITY = 64 };

bool ats_emu_heap_init(struct ats_emu_heap *heap, size_t size)
{
    *heap = (struct ats_emu_heap){.size = size};
    heap->blocks = malloc(FIRST_CAPACITY * sizeof(heap->blocks[0]));
    if (heap->blocks == NULL) {
        return false;
    }
    heap->capacity = FIRST_CAPACITY;
    heap->n_blocks = 1;
    heap->blocks[0] = (struct ats_emu_block){.offset = 0, .size = size, .used = false};
    return true;
}

void ats_emu_heap_destroy(struct ats_emu_heap *heap)
{
    free(heap->blocks);
    *heap = (struct ats_emu_heap){0};
}

/* An allocation adds two blocks at most: one before it, one behind it. */
static bool reserve_two(struct ats_emu_heap *heap)
{
    if (heap->n_blocks + 2 <= heap->capacity) {
        return true;
    }
    const size_t capacity = heap->capacity * 2;
    struct ats_emu_block *blocks = realloc(heap->blocks, capacity * sizeof(blocks[0]));
    if (blocks == NULL) {
        return false;
    }
    heap->blocks = blocks;
    heap->capacity = capacity;
    return true;
}

static void insert_block(struct ats_emu_heap *heap, size_t at, struct ats_emu_block block)
{
    memmove(heap->blocks + at + 1, heap->blocks + at,
            (heap->n_blocks - at) * sizeof(heap->blocks[0]));
    heap->blocks[at] = block;
    heap->n_blocks++;
}

static void remove_block(struct ats_emu_heap *heap, size_t at)
{
    heap->n_blocks--;
    memmove(heap->blocks + at, heap->blocks + at + 1,
            (heap->n_blocks - at) * sizeof(heap->blocks[0]));
}

/* Bytes to skip in a block so that the rest starts at a multiple of `alignment`. */
static size_t padding(const struct ats_emu_block *block, size_t alignment)
{
    return (alignment - block->offset % alignment) % alignment;
}

bool ats_emu_heap_alloc(struct ats_emu_heap *heap, size_t size, size_t alignment, size_t *offset)
{
    if (size == 0 || !reserve_two(heap)) {
        return false;
    }
    for (size_t i = 0; i < heap->n_blocks; i++) {
        const struct ats_emu_block block = heap->blocks[i];
        const size_t pad = padding(&block, alignment);
        if (block.used || pad > block.size || block.size - pad < size) {
            continue;
        }
        const size_t rest = block.size - pad - size;
        heap->blocks[i] = (struct ats_emu_block){block.offset + pad, size, true};
        if (rest > 0) {
            insert_block(heap, i + 1,
                         (struct ats_emu_block){block.offset + pad + size, rest, false});
        }
        if (pad > 0) {
            insert_block(heap, i, (struct ats_emu_block){block.offset, pad, false});
        }
        heap->used += size;
        *offset = block.offset + pad;
        return true;
    }
    return false;
}

/* The block that holds `offset`, which is below the heap's size. */
static size_t find_block(const struct ats_emu_heap *heap, size_t offset)
{
    size_t low = 0;
    size_t high = heap->n_blocks;
    while (high - low > 1) {
        const size_t middle = low + (high - low) / 2;
        if (heap->blocks[middle].offset <= offset) {
            low = middle;
        } else {
            high = middle;
        }
    }
    return low;
}

size_t ats_emu_heap_free(struct ats_emu_heap *heap, size_t offset)
{
    if (offset >= heap->size) {
        return 0;
    }
    size_t at = find_block(heap, offset);
    if (!heap->blocks[at].used || heap->blocks[at].offset != offset) {
        return 0;
    }
    const size_t size = heap->blocks[at].size;
    heap->blocks[at].used = false;
    heap->used -= size;
    if (at + 1 < heap->n_blocks && !heap->blocks[at + 1].used) {
        heap->blocks[at].size += heap->blocks[at + 1].size;
        remove_block(heap, at + 1);
    }
    if (at > 0 && !heap->blocks[at - 1].used) {
        heap->blocks[at - 1].size += heap->blocks[at].size;
        remove_block(heap, at);
    }
    return size;
}

bool ats_emu_heap_contains(const struct ats_emu_heap *heap, size_t offset, size_t size)
{
    if (offset >= heap->size) {
        return false;
    }
    const struct ats_emu_block *block = &heap->blocks[find_block(heap, offset)];
    return block->used && size <= block->size - (offset - block->offset);
}

bool ats_emu_heap_valid(const struct ats_emu_heap *heap)
{
    size_t end = 0;
    size_t used = 0;
    for (size_t i = 0; i < heap->n_blocks; i++) {
        const struct ats_emu_block *block = &heap->blocks[i];
        const bool free_neighbours = i > 0 && !block->used && !heap->blocks[i - 1].used;
        if (block->offset != end || block->size == 0 || free_neighbours) {
            return false;
        }
        end += block->size;
        used += block->used ? block->size : 0;
    }
    return end == heap->size && used == heap->used;
}
