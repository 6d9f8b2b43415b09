/* Makes one allocation of the code under test fail, on demand.
 *
 * The linker's --wrap sends the allocations of every object of this program here (see the target
 * in CMakeLists.txt): the library's, the emulator's and the test's own, but not those of shared
 * libraries such as ggml, which ends the program itself when it gets no memory. Wrapped are malloc,
 * calloc, realloc, aligned_alloc, strdup, getline, and mmap of anonymous memory.
 *
 * Thread-safety: counters are atomic; arm and disarm by one thread. */
#ifndef ATS_TESTS_ALLOC_HOOK_H
#define ATS_TESTS_ALLOC_HOOK_H

#include <stdbool.h>

/* Lets allocation number `n` from now on fail (from 1, on any thread), and only that one unless
 * `all_behind`. */
void alloc_hook_arm(unsigned long n, bool all_behind);

/* Ends that. Returns whether an allocation has failed. */
bool alloc_hook_disarm(void);

/* Blocks of the heap that are allocated and not freed. */
long alloc_hook_live(void);

#endif
