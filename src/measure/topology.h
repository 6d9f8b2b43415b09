/* The cores that this process may compute on, by hwloc: physical cores, their
 * hardware threads, faster kinds of cores first, and the last-level cache.
 *
 * Used by one thread. */
#ifndef ATS_MEASURE_TOPOLOGY_H
#define ATS_MEASURE_TOPOLOGY_H

#include "base/error.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct ats_topology;

/* NULL with an error if hwloc fails. Freed with ats_topology_free. */
struct ats_topology *ats_topology_new(struct ats_error *err);
void ats_topology_free(struct ats_topology *topology);

int ats_topology_cores(const struct ats_topology *topology);
int ats_topology_threads(const struct ats_topology *topology);

/* Cores of the fastest kind; all of them if there is one kind. */
int ats_topology_fast_cores(const struct ats_topology *topology);

/* Bytes of the last-level caches together; 0: not known. */
uint64_t ats_topology_cache_bytes(const struct ats_topology *topology);

/* Binds the calling thread, and those that it starts later, to the hardware threads that `count`
 * computing threads should use: one per core, faster cores first, second threads of cores last.
 * What the system does not allow is left as it is. */
void ats_topology_bind(struct ats_topology *topology, int count);

/* Those hardware threads as text, such as "0-7,16". */
void ats_topology_list(const struct ats_topology *topology, int count, char *text, size_t size);

#endif
