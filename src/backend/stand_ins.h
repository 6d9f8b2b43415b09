/* Stand-ins: the tensors of a graph as the accelerator sees them.
 *
 * Each is a copy of llama.cpp's tensor whose address and buffer are in VRAM and
 * whose sources and view source are stand-ins too. They form a graph with the same
 * order of nodes and the same use counts, so that the accelerator's fusion of
 * neighbouring operators works as on the whole graph. */
#ifndef ATS_BACKEND_STAND_INS_H
#define ATS_BACKEND_STAND_INS_H

#include "backend/describe.h"
#include "backend/residency.h"
#include "plan/schedule.h"

struct ats_stand_ins {
    struct ggml_tensor *tensors;
    size_t n_tensors;
    struct ggml_tensor **nodes; /* one per node of the graph; NULL: runs on the CPU only, or in
                                  pieces */
    struct ggml_cgraph graph;   /* use counts and hash set; its views are run */
};

/* Makes the stand-ins of all operators that `sides` puts on the accelerator. VRAM of
 * the records and mirrors they touch must have been taken. Fills the stand_in
 * members of the description's entries. */
bool ats_stand_ins_make(struct ats_description *description, const struct ggml_cgraph *cgraph,
                        const enum ats_side *sides, const struct ats_schedule *schedule,
                        struct ats_stand_ins *out, struct ats_error *err);

void ats_stand_ins_free(struct ats_stand_ins *stand_ins);

/* Address in VRAM of the byte at `data` of a root at `location`. */
void *ats_accel_address(const struct ats_location *location, const void *data);

/* The accelerator's buffer that holds the root, or NULL if it has no place there. */
ggml_backend_buffer_t ats_accel_buffer(const struct ats_location *location);

/* Makes a tensor that has its place in a buffer of the accelerator known to it. */
bool ats_stand_in_init(struct ggml_tensor *copy, struct ats_error *err);

/* How often the whole graph of llama.cpp that `cgraph` is or is a part of reads `tensor`. */
int32_t ats_graph_uses(const struct ggml_cgraph *cgraph, const struct ggml_tensor *tensor);

/* Gives a graph of ours room for the use counts of `n` tensors. False: out of memory; what there is
 * must be freed all the same. */
bool ats_graph_make_counts(struct ggml_cgraph *graph, size_t n);
void ats_graph_set_uses(struct ggml_cgraph *graph, struct ggml_tensor *tensor, int32_t uses);
void ats_graph_free_counts(struct ggml_cgraph *graph);

/* A slice of `graph` that shares its use counts, with an identity of its own. */
struct ggml_cgraph ats_graph_slice(const struct ggml_cgraph *graph, struct ggml_tensor **nodes,
                                   size_t first, size_t n);

#endif
