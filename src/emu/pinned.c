/* The registry of pinned host memory, shared by all emulated devices as it is
 * by all GPUs of a process. `registry_lock` guards it; look-ups are frequent
 * and come from every enqueuing thread, hence a reader-writer lock. */
#include "emu/memory.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

struct range {
    uintptr_t start;
    size_t size;
    size_t mapped; /* bytes that pinned_alloc mapped; 0 if the memory is the caller's */
};

static pthread_rwlock_t registry_lock = PTHREAD_RWLOCK_INITIALIZER;
static struct range *ranges; /* sorted by start, without overlaps */
static size_t n_ranges;
static size_t capacity;

/* The number of ranges that start at or below `address`. */
static size_t count_up_to(uintptr_t address)
{
    size_t low = 0;
    size_t high = n_ranges;
    while (low < high) {
        const size_t middle = low + (high - low) / 2;
        if (ranges[middle].start <= address) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    return low;
}

static bool add_range(struct range range)
{
    const size_t at = count_up_to(range.start);
    const bool overlaps_before = at > 0 && range.start - ranges[at - 1].start < ranges[at - 1].size;
    const bool overlaps_after = at < n_ranges && ranges[at].start - range.start < range.size;
    if (overlaps_before || overlaps_after) {
        return false;
    }
    if (n_ranges == capacity) {
        const size_t wanted = capacity == 0 ? 16 : capacity * 2;
        struct range *grown = realloc(ranges, wanted * sizeof(grown[0]));
        if (grown == NULL) {
            return false;
        }
        ranges = grown;
        capacity = wanted;
    }
    memmove(ranges + at + 1, ranges + at, (n_ranges - at) * sizeof(ranges[0]));
    ranges[at] = range;
    n_ranges++;
    return true;
}

static bool take_range(const void *address, bool mapped, struct range *taken)
{
    const size_t at = count_up_to((uintptr_t)address);
    if (at == 0 || ranges[at - 1].start != (uintptr_t)address ||
        (ranges[at - 1].mapped > 0) != mapped) {
        return false;
    }
    *taken = ranges[at - 1];
    n_ranges--;
    memmove(ranges + at - 1, ranges + at, (n_ranges - at + 1) * sizeof(ranges[0]));
    if (n_ranges == 0) {
        free(ranges);
        ranges = NULL;
        capacity = 0;
    }
    return true;
}

static bool add_locked(struct range range)
{
    pthread_rwlock_wrlock(&registry_lock);
    const bool added = add_range(range);
    pthread_rwlock_unlock(&registry_lock);
    return added;
}

static bool take_locked(const void *address, bool mapped, struct range *taken)
{
    pthread_rwlock_wrlock(&registry_lock);
    const bool found = take_range(address, mapped, taken);
    pthread_rwlock_unlock(&registry_lock);
    return found;
}

void *ats_emu_pinned_alloc(size_t size)
{
    const size_t page = (size_t)sysconf(_SC_PAGESIZE);
    if (size == 0 || size > SIZE_MAX / 2) {
        return NULL;
    }
    const size_t bytes = (size + page - 1) / page * page;
    void *address = ats_emu_map_poison(bytes);
    if (address == NULL) {
        return NULL;
    }
    if (!add_locked((struct range){(uintptr_t)address, size, bytes})) {
        munmap(address, bytes);
        return NULL;
    }
    return address;
}

void ats_emu_pinned_free(void *address)
{
    struct range range;
    if (take_locked(address, true, &range)) {
        munmap(address, range.mapped);
    }
}

bool ats_emu_pinned_register(void *address, size_t size)
{
    if (address == NULL || size == 0 || size > UINTPTR_MAX - (uintptr_t)address) {
        return false;
    }
    return add_locked((struct range){(uintptr_t)address, size, 0});
}

bool ats_emu_pinned_unregister(void *address)
{
    struct range range;
    return take_locked(address, false, &range);
}

bool ats_emu_pinned_contains(const void *address, size_t size)
{
    pthread_rwlock_rdlock(&registry_lock);
    const size_t at = count_up_to((uintptr_t)address);
    bool inside = false;
    if (at > 0) {
        const struct range *range = &ranges[at - 1];
        const size_t offset = (uintptr_t)address - range->start;
        inside = offset < range->size && size <= range->size - offset;
    }
    pthread_rwlock_unlock(&registry_lock);
    return inside;
}
