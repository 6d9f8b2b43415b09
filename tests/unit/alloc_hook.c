#include "alloc_hook.h"

#include <errno.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/types.h>

static atomic_bool armed;
static atomic_bool failed;
static atomic_bool keeps_failing;
static atomic_ulong left; /* allocations until the one that fails */
static atomic_long live;

void alloc_hook_arm(unsigned long n, bool all_behind)
{
    atomic_store(&failed, false);
    atomic_store(&keeps_failing, all_behind);
    atomic_store(&left, n);
    atomic_store(&armed, true);
}

bool alloc_hook_disarm(void)
{
    atomic_store(&armed, false);
    return atomic_load(&failed);
}

long alloc_hook_live(void)
{
    return atomic_load(&live);
}

static bool fails(void)
{
    if (!atomic_load(&armed)) {
        return false;
    }
    const bool hit = atomic_fetch_sub(&left, 1) == 1;
    if (hit) {
        atomic_store(&failed, true);
    }
    if (hit || (atomic_load(&keeps_failing) && atomic_load(&failed))) {
        errno = ENOMEM;
        return true;
    }
    return false;
}

static void *counted(void *block)
{
    atomic_fetch_add(&live, block != NULL);
    return block;
}

/* ---- what the linker puts in place of the C library's functions, which it calls __real_ ---- */

void *__real_malloc(size_t size);
void *__real_calloc(size_t n, size_t size);
void *__real_realloc(void *block, size_t size);
void *__real_aligned_alloc(size_t alignment, size_t size);
char *__real_strdup(const char *text);
void __real_free(void *block);
ssize_t __real_getline(char **line, size_t *size, FILE *in);
ssize_t __real___getdelim(char **line, size_t *size, int end, FILE *in);
void *__real_mmap(void *at, size_t size, int protection, int flags, int fd, off_t offset);

void *__wrap_malloc(size_t size);
void *__wrap_calloc(size_t n, size_t size);
void *__wrap_realloc(void *block, size_t size);
void *__wrap_aligned_alloc(size_t alignment, size_t size);
char *__wrap_strdup(const char *text);
void __wrap_free(void *block);
ssize_t __wrap_getline(char **line, size_t *size, FILE *in);
ssize_t __wrap___getdelim(char **line, size_t *size, int end, FILE *in);
void *__wrap_mmap(void *at, size_t size, int protection, int flags, int fd, off_t offset);

void *__wrap_malloc(size_t size)
{
    return fails() ? NULL : counted(__real_malloc(size));
}

void *__wrap_calloc(size_t n, size_t size)
{
    return fails() ? NULL : counted(__real_calloc(n, size));
}

void *__wrap_realloc(void *block, size_t size)
{
    if (fails()) {
        return NULL;
    }
    return block == NULL ? counted(__real_realloc(NULL, size)) : __real_realloc(block, size);
}

void *__wrap_aligned_alloc(size_t alignment, size_t size)
{
    return fails() ? NULL : counted(__real_aligned_alloc(alignment, size));
}

char *__wrap_strdup(const char *text)
{
    return fails() ? NULL : counted(__real_strdup(text));
}

void __wrap_free(void *block)
{
    atomic_fetch_sub(&live, block != NULL);
    __real_free(block);
}

/* The C library allocates the line; without memory it returns -1 and does not set the stream's
 * error. */
ssize_t __wrap_getline(char **line, size_t *size, FILE *in)
{
    return __wrap___getdelim(line, size, '\n', in);
}

/* What getline is inlined to by glibc's headers. */
ssize_t __wrap___getdelim(char **line, size_t *size, int end, FILE *in)
{
    if (fails()) {
        return -1;
    }
    const bool had_none = *line == NULL;
    const ssize_t length = __real___getdelim(line, size, end, in);
    if (had_none) {
        counted(*line);
    }
    return length;
}

void *__wrap_mmap(void *at, size_t size, int protection, int flags, int fd, off_t offset)
{
    if ((flags & MAP_ANONYMOUS) != 0 && fails()) {
        return MAP_FAILED;
    }
    return __real_mmap(at, size, protection, flags, fd, offset);
}
