/* Products with matrices of experts of which only those come to staging memory that the pass uses
 * (plan/used.h).
 *
 * The CPU reads which experts the columns want when the router has computed, and gives them places
 * in staging memory: first those that are in slots, which a kernel copies there while the others
 * cross the link. The product reads ids that count places. Should staging memory have no room
 * for all, it is made for as many tokens as it has room for, and then for the others. */
#ifndef ATS_BACKEND_USED_H
#define ATS_BACKEND_USED_H

#include "backend/describe.h"
#include "backend/experts.h"
#include "backend/share.h"
#include "plan/used.h"

struct ats_graph_plan;

struct ats_used_step {
    struct ats_record *weight;      /* borrowed; the plan is void before the record goes */
    const struct ggml_tensor *ids;  /* of llama.cpp's graph: their host memory is read */
    const struct ggml_tensor *node; /* likewise */
    struct ats_used_matrix matrix;
    struct ats_used_shape shape;
    struct ats_expert_store *store; /* borrowed; NULL: nothing of it is in slots */
    struct ats_share *share;        /* borrowed; what the CPU takes of its layer, or NULL */
    struct ats_used found;
    int32_t *numbers; /* the lists; read until submitted */

    struct ggml_tensor bytes; /* the place of the experts */
    struct ggml_tensor lists; /* and that of the lists */
    struct ggml_tensor weight_there;
    struct ggml_tensor ids_there;
    struct ggml_tensor input;
    struct ggml_tensor product;
    struct ggml_tensor *product_node;
    struct ggml_cgraph product_graph;

    struct ggml_tensor slots; /* as rows of words */
    struct ggml_tensor list;
    struct ggml_tensor hits;
    struct ggml_tensor *hits_node;
    struct ggml_cgraph hits_graph;
    ggml_backend_event_t listed; /* the lists have come; NULL: they come in order */
};

/* The root, if it can pass by use; else one without experts. */
struct ats_used_matrix ats_used_matrix_of(const struct ats_device *device,
                                          const struct ats_description *description, size_t root);

/* For a root whose place in staging memory is `accel`; its operands have stand-ins. NULL with an
 * error. Freed with ats_used_free. */
struct ats_used_step *ats_used_make(const struct ats_stream *stream,
                                    struct ats_description *description, size_t root,
                                    const struct ats_used_shape *shape,
                                    const struct ggml_tensor *accel, struct ats_error *err);
void ats_used_free(struct ats_used_step *step);

/* Orders the copies for the tokens from `first` on, whose ids are in host memory, on `backend`;
 * records `listed` there if `first` is 0.
 * Returns the bytes of weights; without any, and with no token served, if an id is no expert's. */
size_t ats_used_copy(struct ats_used_step *step, ggml_backend_t backend, uint32_t first);

/* Computes split `split` of the plan, of which the step is; waits for the ids first. Needs the
 * device's read lock. The accelerator may still work on return. If it fails, the error may say why.
 */
enum ggml_status ats_used_run(struct ats_stream *stream, const struct ats_graph_plan *plan,
                              size_t split, struct ats_error *err);

#endif
