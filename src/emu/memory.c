#include "emu/memory.h"

#include <errno.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

/* The poison file: large enough that a device of MAX_MAPPINGS times its size
 * stays well below the kernel's default limit of 65530 mappings per process. */
static const size_t MIN_POISON_BYTES = (size_t)8 << 20;
static const size_t MAX_MAPPINGS = 4096;

static size_t poison_bytes_for(size_t size)
{
    size_t bytes = MIN_POISON_BYTES;
    while (size / bytes > MAX_MAPPINGS) {
        bytes *= 2;
    }
    return bytes;
}

/* A file of `bytes` bytes of poison, or -1 with errno set. */
static int create_poison_file(size_t bytes)
{
    const int fd = memfd_create("ats-emu-poison", MFD_CLOEXEC);
    if (fd < 0) {
        return -1;
    }
    if (ftruncate(fd, (off_t)bytes) == 0) {
        void *content = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
        if (content != MAP_FAILED) {
            memset(content, ATS_EMU_POISON, bytes);
            munmap(content, bytes);
            return fd;
        }
    }
    const int error = errno;
    close(fd);
    errno = error;
    return -1;
}

uint8_t *ats_emu_map_poison(size_t size)
{
    const size_t poison_bytes = poison_bytes_for(size);
    const int fd = create_poison_file(size < poison_bytes ? size : poison_bytes);
    if (fd < 0) {
        return NULL;
    }
    uint8_t *base = mmap(NULL, size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    for (size_t at = 0; base != MAP_FAILED && at < size; at += poison_bytes) {
        const size_t bytes = size - at < poison_bytes ? size - at : poison_bytes;
        void *piece = mmap(base + at, bytes, PROT_READ | PROT_WRITE,
                           MAP_PRIVATE | MAP_FIXED | MAP_NORESERVE, fd, 0);
        if (piece == MAP_FAILED) {
            const int error = errno;
            munmap(base, size);
            errno = error;
            base = MAP_FAILED;
        }
    }
    const int error = errno;
    close(fd); /* the mappings keep the file */
    errno = error;
    return base == MAP_FAILED ? NULL : base;
}

static size_t round_up(size_t value, size_t unit)
{
    return (value + unit - 1) / unit * unit;
}

static size_t page_size(void)
{
    return (size_t)sysconf(_SC_PAGESIZE);
}

bool ats_emu_memory_init(struct ats_emu_memory *memory, size_t size, struct ats_error *err)
{
    *memory = (struct ats_emu_memory){.page_size = page_size()};
    memory->size = size / memory->page_size * memory->page_size;
    void *device =
        mmap(NULL, memory->size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (device == MAP_FAILED) {
        return ats_fail(err, "cannot reserve %zu bytes of address space for device memory: %s",
                        memory->size, strerror(errno));
    }
    memory->device = device;
    memory->shadow = ats_emu_map_poison(memory->size);
    if (memory->shadow == NULL) {
        ats_fail(err, "cannot map %zu bytes of emulated device memory: %s", memory->size,
                 strerror(errno));
        munmap(memory->device, memory->size);
        return false;
    }
    if (!ats_emu_heap_init(&memory->heap, memory->size)) {
        munmap(memory->device, memory->size);
        munmap(memory->shadow, memory->size);
        return ats_fail(err, "out of host memory");
    }
    pthread_mutex_init(&memory->lock, NULL);
    return true;
}

void ats_emu_memory_destroy(struct ats_emu_memory *memory)
{
    munmap(memory->device, memory->size);
    munmap(memory->shadow, memory->size);
    ats_emu_heap_destroy(&memory->heap);
    pthread_mutex_destroy(&memory->lock);
}

/* Under the lock. */
static size_t available(const struct ats_emu_memory *memory)
{
    const size_t left = memory->size - memory->heap.used;
    return left > memory->others ? left - memory->others : 0;
}

void *ats_emu_memory_alloc(struct ats_emu_memory *memory, size_t size, size_t alignment)
{
    if (size == 0 || size > memory->size) {
        return NULL;
    }
    const size_t align = alignment > memory->page_size ? alignment : memory->page_size;
    size_t offset = 0;
    pthread_mutex_lock(&memory->lock);
    const bool fits =
        size <= available(memory) &&
        ats_emu_heap_alloc(&memory->heap, round_up(size, memory->page_size), align, &offset);
    pthread_mutex_unlock(&memory->lock);
    return fits ? memory->device + offset : NULL;
}

void ats_emu_memory_free(struct ats_emu_memory *memory, void *address)
{
    const size_t offset = (size_t)((uint8_t *)address - memory->device);
    pthread_mutex_lock(&memory->lock);
    const size_t size = ats_emu_heap_free(&memory->heap, offset);
    /* within the lock: the next owner of the range may write at once */
    if (size > 0 && madvise(memory->shadow + offset, size, MADV_DONTNEED) != 0) {
        memset(memory->shadow + offset, ATS_EMU_POISON, size);
    }
    pthread_mutex_unlock(&memory->lock);
}

size_t ats_emu_memory_available(struct ats_emu_memory *memory)
{
    pthread_mutex_lock(&memory->lock);
    const size_t bytes = available(memory);
    pthread_mutex_unlock(&memory->lock);
    return bytes;
}

void ats_emu_memory_occupy(struct ats_emu_memory *memory, size_t bytes)
{
    pthread_mutex_lock(&memory->lock);
    memory->others = bytes;
    pthread_mutex_unlock(&memory->lock);
}

bool ats_emu_memory_owns(const struct ats_emu_memory *memory, const void *address)
{
    return (uintptr_t)address - (uintptr_t)memory->device < memory->size;
}

uint8_t *ats_emu_memory_shadow_locked(const struct ats_emu_memory *memory, const void *address,
                                      size_t size)
{
    const size_t offset = (uintptr_t)address - (uintptr_t)memory->device;
    if (!ats_emu_heap_contains(&memory->heap, offset, size)) {
        return NULL;
    }
    return memory->shadow + offset;
}

uint8_t *ats_emu_memory_shadow(struct ats_emu_memory *memory, const void *address, size_t size)
{
    pthread_mutex_lock(&memory->lock);
    uint8_t *shadow = ats_emu_memory_shadow_locked(memory, address, size);
    pthread_mutex_unlock(&memory->lock);
    return shadow;
}
