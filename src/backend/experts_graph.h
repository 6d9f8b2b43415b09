/* The graphs that compute a region of experts (plan/experts_region.h) for some of its columns.
 *
 * For each number of columns there is one for either side, made once per plan: copies of the
 * region's tensors with that many columns, packed from the first on. The accelerator's read single
 * experts from slots, and ids that count slots. A last graph puts the packed columns of both sides
 * into the order that the rest of the model expects.
 *
 *   hits of n on the accelerator:   result of the region if n is all of them, else the exchange
 * area misses of n on the CPU:         host memory of the region's result order: exchange area ->
 * result of the region, on the accelerator
 *
 * On either side, tensors keep the addresses that llama.cpp's allocator gave to the region's, whose
 * order of operators they keep too: so what is alive beside the region is not touched. */
#ifndef ATS_BACKEND_EXPERTS_GRAPH_H
#define ATS_BACKEND_EXPERTS_GRAPH_H

#include "backend/experts.h"

struct ats_stream;

/* A graph with tensors of its own. */
struct ats_expert_graph {
    struct ggml_cgraph graph;
    struct ggml_tensor *tensors; /* two lists of ids, then columns */
    size_t n_tensors;
};

struct ats_expert_run {
    struct ats_expert_store *store; /* borrowed: the plan is void before it goes */
    const struct ggml_tensor *ids;  /* of llama.cpp's graph: their host memory is read */
    uint32_t n_used;
    float profile_us[ATS_SIDES]; /* that all columns take on a side, by the profile */
    size_t column_bytes;         /* of the result */
    const char *host_result;     /* its host memory */
    struct ggml_tensor result;   /* its place in VRAM */
    struct ggml_tensor packed;   /* the exchange area's results */
    struct ggml_tensor lists;    /* the exchange area's lists */
    size_t list_stride;
    struct ats_expert_graph *by_columns[ATS_SIDES]; /* n_used of each; that of n columns at n - 1 */
    struct ats_expert_graph order;
    int32_t *numbers;                       /* what goes to the lists; read until submitted */
    int32_t host_ids[ATS_EXPERT_MOST_USED]; /* experts of the misses */
};

/* Makes the graphs of the region nodes[first .. first + n) of `cgraph`, which has been marked.
 * False: out of memory, or the accelerator does not take the tensors. */
bool ats_expert_run_make(const struct ats_stream *stream, const struct ats_description *description,
                         const struct ggml_cgraph *cgraph, const struct ats_expert_region *region,
                         struct ats_expert_run *run, struct ats_error *err);

void ats_expert_run_free(struct ats_expert_run *run);

/* ---- the CPU's graph for columns of several tokens ---- */

/* Makes the CPU's graph of a region for up to `n` columns, each of an expert in `ids` and with an
 * input of its own in `input` [n_in, n]. Free it with ats_expert_graph_free, on failure too. */
bool ats_expert_host_graph_make(const struct ats_description *description,
                                const struct ggml_cgraph *cgraph,
                                const struct ats_expert_region *region, const int32_t *ids,
                                const struct ggml_tensor *input, uint32_t n,
                                struct ats_expert_graph *graph, struct ats_error *err);

/* Sets the number of columns, at least one and at most as many as it was made for. */
void ats_expert_host_graph_resize(struct ats_expert_graph *graph, uint32_t n);

void ats_expert_graph_free(struct ats_expert_graph *graph);

/* Whether a product of the region reads what is made outside of it as input: as such, or as a view
 * in another shape. */
bool ats_expert_reads_input(const struct ggml_cgraph *cgraph,
                            const struct ats_expert_region *region,
                            const struct ggml_tensor *product);

#endif
