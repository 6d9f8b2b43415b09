/* Graphs: copying one at enqueue, and computing the copy later.
 *
 * graph_compute returns before the graph is computed, and the caller may then
 * change or free graph and tensors. So all that the computation reads is
 * copied into one block: tensor structs, with data pointers moved to where the
 * emulator reaches them, and the use counts by which ggml decides what to
 * fuse. The block depends on nothing of the caller's. */
#ifndef ATS_EMU_COMPUTE_H
#define ATS_EMU_COMPUTE_H

#include "bind/ggml_bind.h"
#include "emu/device.h"

/* A self-contained copy of a graph; one allocation, reused through the cloner's pool. */
struct ats_emu_graph {
    struct ats_emu_graph *next; /* in the pool */
    size_t capacity;            /* bytes of the whole block */
    struct ggml_cgraph cgraph;
};

struct ats_emu_clone_slot {
    const struct ggml_tensor *tensor;
    uint32_t index;
    uint32_t epoch; /* the slot is in use if it is the cloner's */
};

/* Scratch memory for copying graphs. The caller of ats_emu_clone locks;
 * `pool_lock` is for the queue thread, which returns blocks. */
struct ats_emu_cloner {
    const struct ggml_tensor **tensors; /* the distinct tensors of the graph at hand */
    bool *reached;                      /* whether their data was found */
    size_t n_tensors;
    size_t capacity;
    struct ats_emu_clone_slot *slots; /* hash table, tensor to index */
    size_t n_slots;                   /* a power of two */
    uint32_t epoch;
    pthread_mutex_t pool_lock;
    struct ats_emu_graph *pool;
    unsigned pool_size;
};

void ats_emu_cloner_init(struct ats_emu_cloner *cloner);
void ats_emu_cloner_destroy(struct ats_emu_cloner *cloner);

/* Fails if a tensor that is read or written lies neither in the device's
 * memory nor in pinned host memory, or if an operator cannot be computed. */
struct ats_emu_graph *ats_emu_clone(struct ats_emu_cloner *cloner, struct ats_emu_device *device,
                                    const struct ggml_cgraph *cgraph, struct ats_error *err);
void ats_emu_clone_release(struct ats_emu_cloner *cloner, struct ats_emu_graph *graph);

/* What the emulator computes: all that the CPU backend does, except operators that call back into
 * host code. */
bool ats_emu_supports_op(const struct ggml_tensor *op);

/* A private instance of ggml's CPU backend. */
struct ats_emu_engine {
    ggml_backend_t cpu;
    ggml_backend_set_n_threads_t set_n_threads;
    ggml_backend_set_abort_callback_t set_abort_callback;
    int n_threads; /* as set last; 0: never */
};

bool ats_emu_engine_init(struct ats_emu_engine *engine, struct ats_error *err);
void ats_emu_engine_destroy(struct ats_emu_engine *engine);

/* Computes on the calling thread. `abort_callback` is asked after each node. */
enum ggml_status ats_emu_engine_compute(struct ats_emu_engine *engine, struct ats_emu_graph *graph,
                                        int n_threads, ggml_abort_callback abort_callback,
                                        void *abort_data);

#endif
