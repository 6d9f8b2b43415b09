#include "measure/topology.h"

#include <hwloc.h>
#include <stdio.h>
#include <stdlib.h>

enum { MAX_THREADS = 1024 };

struct ats_topology {
    hwloc_topology_t hwloc;
    hwloc_bitmap_t allowed; /* to this process */
    int cores;
    int fast_cores;
    int threads;
    unsigned order[MAX_THREADS]; /* hardware threads by the system's number, best first */
};

/* How fast the kind of a core is; the same for all if the system does not say. */
static int kind_of(hwloc_topology_t hwloc, hwloc_const_cpuset_t set)
{
    const int index = hwloc_cpukinds_get_by_cpuset(hwloc, set, 0);
    int efficiency = -1;
    if (index >= 0 &&
        hwloc_cpukinds_get_info(hwloc, (unsigned)index, NULL, &efficiency, NULL, NULL, 0) != 0) {
        efficiency = -1;
    }
    return efficiency;
}

/* The n-th allowed hardware thread of a core; -1 if it has fewer. */
static int thread_of(const struct ats_topology *t, hwloc_obj_t core, int n)
{
    int pu = hwloc_bitmap_next(core->cpuset, -1);
    while (pu >= 0 && (!hwloc_bitmap_isset(t->allowed, (unsigned)pu) || n-- > 0)) {
        pu = hwloc_bitmap_next(core->cpuset, pu);
    }
    return pu;
}

/* Appends the n-th threads of all cores of one kind. */
static int append(struct ats_topology *t, int kind, int n)
{
    int added = 0;
    const int cores = hwloc_get_nbobjs_by_type(t->hwloc, HWLOC_OBJ_CORE);
    for (int i = 0; i < cores && t->threads < MAX_THREADS; i++) {
        hwloc_obj_t core = hwloc_get_obj_by_type(t->hwloc, HWLOC_OBJ_CORE, (unsigned)i);
        const int thread = kind_of(t->hwloc, core->cpuset) == kind ? thread_of(t, core, n) : -1;
        if (thread >= 0) {
            t->order[t->threads++] = (unsigned)thread;
            added++;
        }
    }
    return added;
}

/* First threads of all cores, faster kinds first; then second ones, and so on. */
static void rank(struct ats_topology *t)
{
    const int kinds = hwloc_cpukinds_get_nr(t->hwloc, 0);
    for (int n = 0; n < 8; n++) {
        for (int kind = kinds; kind >= -1; kind--) {
            const int added = append(t, kind, n);
            if (n == 0) {
                t->cores += added;
                t->fast_cores = t->fast_cores == 0 ? added : t->fast_cores;
            }
        }
    }
    if (t->threads > 0) {
        return;
    }
    /* a system that shows no cores */
    int pu = hwloc_bitmap_next(t->allowed, -1);
    for (; pu >= 0 && t->threads < MAX_THREADS; pu = hwloc_bitmap_next(t->allowed, pu)) {
        t->order[t->threads++] = (unsigned)pu;
    }
    t->cores = t->threads;
    t->fast_cores = t->threads;
}

struct ats_topology *ats_topology_new(struct ats_error *err)
{
    struct ats_topology *t = calloc(1, sizeof(*t));
    if (t == NULL || hwloc_topology_init(&t->hwloc) != 0) {
        free(t);
        ats_fail(err, "out of memory");
        return NULL;
    }
    t->allowed = hwloc_bitmap_alloc();
    if (t->allowed == NULL || hwloc_topology_load(t->hwloc) != 0 ||
        hwloc_get_cpubind(t->hwloc, t->allowed, HWLOC_CPUBIND_PROCESS) != 0) {
        ats_topology_free(t);
        ats_fail(err, "the topology of this machine's CPU cannot be read (hwloc fails)");
        return NULL;
    }
    rank(t);
    return t;
}

void ats_topology_free(struct ats_topology *topology)
{
    if (topology != NULL) {
        hwloc_bitmap_free(topology->allowed);
        hwloc_topology_destroy(topology->hwloc);
        free(topology);
    }
}

int ats_topology_cores(const struct ats_topology *topology)
{
    return topology->cores;
}

int ats_topology_threads(const struct ats_topology *topology)
{
    return topology->threads;
}

int ats_topology_fast_cores(const struct ats_topology *topology)
{
    return topology->fast_cores;
}

uint64_t ats_topology_cache_bytes(const struct ats_topology *topology)
{
    static const hwloc_obj_type_t types[] = {HWLOC_OBJ_L5CACHE, HWLOC_OBJ_L4CACHE,
                                             HWLOC_OBJ_L3CACHE, HWLOC_OBJ_L2CACHE};
    for (size_t i = 0; i < sizeof(types) / sizeof(types[0]); i++) {
        const int n = hwloc_get_nbobjs_by_type(topology->hwloc, types[i]);
        uint64_t bytes = 0;
        for (int j = 0; j < n; j++) {
            bytes +=
                hwloc_get_obj_by_type(topology->hwloc, types[i], (unsigned)j)->attr->cache.size;
        }
        if (bytes > 0) {
            return bytes;
        }
    }
    return 0;
}

/* NULL if memory is out; freed by the caller. */
static hwloc_bitmap_t first_threads(const struct ats_topology *t, int count)
{
    hwloc_bitmap_t set = hwloc_bitmap_alloc();
    for (int i = 0; set != NULL && i < count && i < t->threads; i++) {
        hwloc_bitmap_set(set, t->order[i]);
    }
    return set;
}

void ats_topology_bind(struct ats_topology *topology, int count)
{
    hwloc_bitmap_t set = first_threads(topology, count);
    if (set != NULL) {
        (void)hwloc_set_cpubind(topology->hwloc, set, HWLOC_CPUBIND_THREAD);
        hwloc_bitmap_free(set);
    }
}

void ats_topology_list(const struct ats_topology *topology, int count, char *text, size_t size)
{
    hwloc_bitmap_t set = first_threads(topology, count);
    text[0] = '\0';
    if (set != NULL) {
        hwloc_bitmap_list_snprintf(text, size, set);
        hwloc_bitmap_free(set);
    }
}
