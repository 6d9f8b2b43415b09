/* The CPU's share of a layer whose experts pass by use (plan/share.h).
 *
 * When the layer's ids are known, some of its experts are left to the CPU. The accelerator's
 * products leave out their columns, so that those results are void. When all operators of the
 * layer's experts have been given to the accelerator, with the copies that they wait for, the CPU
 * computes these columns, from the input to the result, and the accelerator puts them to their
 * places. */
#ifndef ATS_BACKEND_SHARE_H
#define ATS_BACKEND_SHARE_H

#include "backend/experts_graph.h"
#include "plan/share.h"

struct ats_graph_plan;

struct ats_share {
    const struct ggml_tensor *ids;   /* of llama.cpp's graph: their host memory is read */
    const struct ggml_tensor *input; /* likewise */
    struct ats_expert_store *store;  /* borrowed; NULL: no expert is in a slot */
    struct ats_share_costs costs;
    uint64_t draw; /* not 0, for tests: what is left is drawn at random, from this seed */
    uint32_t n_used;
    uint32_t n_tokens;
    uint32_t n_experts;
    uint32_t most_columns;
    float profile_us; /* of a column on the CPU */

    bool *left;         /* by expert: the CPU computes with it, in this pass */
    uint32_t n_columns; /* of these */
    int32_t *experts;   /* of each column */
    int32_t *places;    /* where it belongs in the result; read until submitted */
    float *inputs;      /* of each column; borrowed: layers follow each other */
    struct ats_share_expert *found;
    struct ats_expert_graph graph; /* the CPU's */
    size_t column_bytes;           /* of the result */
    const char *host_result;

    struct ggml_tensor columns; /* in scratch: the CPU's results, */
    struct ggml_tensor list;    /* and their places */
    struct ggml_tensor result;  /* of the layer's experts, flat */
    struct ggml_tensor put;     /* SET_ROWS */
    struct ggml_tensor *put_node;
    struct ggml_cgraph put_graph;
};

/* Notes which roots are weights of regions that the CPU can share, if they pass by use. */
void ats_shares_find(const struct ats_stream *stream, struct ats_description *description,
                     const struct ggml_cgraph *cgraph, const struct ats_expert_region *regions,
                     size_t n_regions);

/* Marks the stretches of the description's operators that the CPU shares: all weights of such a
 * region pass by use. Before sides are chosen. */
void ats_shares_mark(struct ats_description *description, const struct ggml_cgraph *cgraph,
                     const struct ats_expert_region *regions, size_t n_regions);

/* How many floats the region's share needs for the inputs of its columns. */
size_t ats_share_inputs(const struct ats_stream *stream, const struct ggml_cgraph *cgraph,
                        const struct ats_expert_region *region);

/* Makes the share of a region that has been marked; its operands have stand-ins. Free it with
 * ats_share_free, on failure too. */
bool ats_share_make(const struct ats_stream *stream, struct ats_description *description,
                    const struct ggml_cgraph *cgraph, const struct ats_expert_region *region,
                    float *inputs, struct ats_share *share, struct ats_error *err);
void ats_share_free(struct ats_share *share);

/* Chooses what is left to the CPU. The ids are in host memory, and experts of the layer. */
void ats_share_choose_left(struct ats_share *share);

/* Nothing is left to it. */
void ats_share_leave_nothing(struct ats_share *share);

/* Keeps the input of the CPU's columns, before other operators take its memory. */
void ats_share_keep_input(struct ats_share *share);

/* Computes the CPU's columns and gives them to the accelerator. Needs the device's read lock. */
enum ggml_status ats_share_finish(struct ats_stream *stream, struct ats_share *share);

#endif
