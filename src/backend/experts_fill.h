/* Using a weight as a whole, for a large batch, while some of its experts are in slots: these need
 * not cross the link again. A kernel puts them to their places in staging memory, and the others
 * are copied from host memory, neighbours together. */
#ifndef ATS_BACKEND_EXPERTS_FILL_H
#define ATS_BACKEND_EXPERTS_FILL_H

#include "backend/experts.h"

struct ats_expert_fill {
    struct ats_expert_store *store; /* borrowed: the plan is void before it goes */
    uint32_t part;
    struct ggml_tensor place;  /* the weight's in staging memory, a row of words per expert */
    struct ggml_tensor slots;  /* the slots, likewise */
    struct ggml_tensor result; /* SET_ROWS */
    struct ggml_tensor *node;
    struct ggml_cgraph graph;
    struct ats_part of; /* the weight: the same bytes of each expert */
    int32_t widest_gap; /* experts that are copied because that is faster than leaving them out */
};

/* For a part of the weight of a record that is to be copied to `accel` in staging memory. NULL:
 * nothing of it is in slots, the accelerator has no such kernel, or memory is out; then it is
 * copied as a whole. Freed with ats_expert_fill_free. */
struct ats_expert_fill *ats_expert_fill_make(const struct ats_stream *stream,
                                             const struct ats_partition_costs *costs,
                                             const struct ats_record *weight,
                                             const struct ats_part *of,
                                             const struct ggml_tensor *accel);

void ats_expert_fill_free(struct ats_expert_fill *fill);

/* At the beginning of a pass: what is on its way to slots is ordered to the end, and comes before
 * what the compute stream is given from now on. */
void ats_expert_fill_begin(struct ats_stream *stream);

/* Orders the copies of what is in no slot, to `accel` on `backend`. Returns their bytes. */
size_t ats_expert_fill_copy(const struct ats_expert_fill *fill, const struct ats_record *weight,
                            struct ggml_tensor *accel, ggml_backend_t backend);

/* Puts what is in slots to its place, on the compute stream, behind those copies: on the transfer
 * stream the link would wait for it. False: the accelerator refuses. */
bool ats_expert_fill_scatter(struct ats_stream *stream, struct ats_expert_fill *fill);

#endif
