/* The CPU side of a stream: an instance of ggml's CPU backend and its threads.
 *
 * A ggml built with OpenMP keeps its threads from one graph to the next. One without starts
 * new threads for every graph unless it is given a pool; with a graph per split that would
 * cost more than small splits take, so a pool is kept here.
 *
 * Used by one thread at a time, as the stream is. */
#ifndef ATS_BACKEND_CPU_SIDE_H
#define ATS_BACKEND_CPU_SIDE_H

#include "bind/ggml_bind.h"

struct ats_cpu_side {
    ggml_backend_t backend;
    int n_threads; /* of the latest setting; 0: none yet */
    bool needs_pool;
    ggml_threadpool_t pool; /* NULL until needed */
    int pool_threads;
};

/* Starts the CPU backend of `cpu`. False: it could not. */
bool ats_cpu_side_start(struct ats_cpu_side *side, ggml_backend_dev_t cpu);

void ats_cpu_side_stop(struct ats_cpu_side *side);

/* Sets the number of threads of the graphs to come. Cheap if nothing changes. */
void ats_cpu_side_set_n_threads(struct ats_cpu_side *side, int n_threads);

/* A function that the backend's registry offers by name, or NULL. `function` points to a
 * function pointer that receives it. */
bool ats_backend_proc(ggml_backend_t backend, const char *name, void *function);

#endif
