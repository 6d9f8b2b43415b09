/* Products with matrices of experts of which only those come to staging memory that the pass uses
 * (plan/used.h).
 *
 * The CPU reads which experts the columns want when the router has computed, and gives those that
 * are in no slot places in parcels. The accelerator computes the columns of experts in slots, while
 * the first parcel crosses the link, and then those of each parcel: it gathers their inputs in
 * scratch, makes the product there, and puts the results to their places. Should there be more
 * experts than the parcels of the plan have room for, the last one's place is used again. */
#ifndef ATS_BACKEND_USED_H
#define ATS_BACKEND_USED_H

#include "backend/describe.h"
#include "backend/experts.h"
#include "backend/share.h"
#include "plan/used.h"

struct ats_graph_plan;

/* In staging memory. */
struct ats_used_place {
    struct ggml_tensor bytes; /* of experts */
    struct ggml_tensor lists;
};

/* A matrix and the product with it. */
struct ats_used_step {
    struct ats_record *weight;      /* borrowed; the plan is void before the record goes */
    const struct ggml_tensor *ids;  /* of llama.cpp's graph: their host memory is read */
    const struct ggml_tensor *node; /* likewise */
    struct ats_used_matrix matrix;
    struct ats_used_shape shape;
    struct ats_used_place *places;  /* of the shape's parcels */
    struct ats_expert_store *store; /* borrowed; NULL: nothing of it is in slots */
    struct ggml_tensor slots;       /* its place in VRAM */
    struct ats_share *share;        /* borrowed; what the CPU takes of its layer, or NULL */
    struct ats_used found;          /* its lists are read until submitted */
    bool names_no_expert;           /* the ids of this pass are not good */
    uint32_t most_columns;          /* that scratch has room for */

    struct ggml_tensor experts;
    struct ggml_tensor lists[3]; /* rows of the input, ids, rows of the result */
    struct ggml_tensor input;    /* of the product, flat */
    struct ggml_tensor inputs;   /* in scratch: GET_ROWS, */
    struct ggml_tensor columns;  /* the same, one for each "token", */
    struct ggml_tensor product;  /* what is computed of them, */
    struct ggml_tensor results;  /* and this flat */
    struct ggml_tensor result;   /* of the product, flat */
    struct ggml_tensor put;      /* SET_ROWS */
    struct ggml_tensor *nodes[3];
    struct ggml_cgraph graph;
    ggml_backend_event_t listed; /* the first lists have come; NULL: they come in order */
};

/* The root, if it can pass by use; else one without experts. */
struct ats_used_matrix ats_used_matrix_of(const struct ats_stream *stream,
                                          const struct ats_description *description, size_t root);

/* Bytes of scratch that the root wants if its product has at least so many tokens, or 0. */
size_t ats_used_scratch_of(const struct ats_device *device,
                           const struct ats_description *description, size_t root, uint64_t tokens);

/* For a root whose operands have stand-ins. NULL with an error. Freed with ats_used_step_free. */
struct ats_used_step *ats_used_make(const struct ats_stream *stream,
                                    struct ats_description *description, size_t root,
                                    const struct ats_used_shape *shape, struct ats_error *err);
void ats_used_step_free(struct ats_used_step *step);

/* Where a parcel has its place. */
void ats_used_set_place(struct ats_used_step *step, uint32_t parcel,
                        const struct ggml_tensor *accel);

/* Orders the copies of a parcel on `backend`; of the first one once the ids are in host memory,
 * with `listed` recorded behind its lists. Returns the bytes of weights; 0 if an id is no expert's.
 */
size_t ats_used_copy(struct ats_used_step *step, ggml_backend_t backend, uint32_t parcel);

/* Computes split `split` of the plan, which is one of the step's parcels; waits for the ids first.
 * Needs the device's read lock. The accelerator may still work on return. If it fails, the error
 * may say why. */
enum ggml_status ats_used_run(struct ats_stream *stream, const struct ats_graph_plan *plan,
                              size_t split, struct ats_error *err);

#endif
