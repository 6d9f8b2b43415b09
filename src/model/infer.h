/* A model's description from tensors alone, for those who see no file: a backend is given weights
 * and caches by name and shape, but no hyper-parameters.
 *
 * What follows from shapes is exact: layers, widths, experts, bytes of state per token and layer.
 * What does not is filled in where it hardly matters: how a row of keys is cut into heads, and
 * which tokens of the last layer are dropped early.
 *
 * Pure. */
#ifndef ATS_MODEL_INFER_H
#define ATS_MODEL_INFER_H

#include "model/model.h"

/* What is known besides weights. */
struct ats_model_clues {
    /* KV caches ("cache_k_l3": row, tokens, sequences) and recurrent state ("cache_s_l3"), as
     * llama.cpp allocates them. Borrowed. */
    const struct ats_model_tensor *state;
    size_t n_state;
    uint32_t n_used; /* experts per token, as the graph's routing has it; 0: not known yet, then a
                        sixteenth of all */
};

/* Builds the description and takes over `tensors` and their names, on failure too. *n_ctx gets the
 * tokens that the largest cache has room for (0: no cache). NULL with an error as of
 * ats_model_build. Caller frees with ats_model_free. */
struct ats_model *ats_model_infer(struct ats_model_tensor *tensors, size_t n_tensors,
                                  const struct ats_model_clues *clues, uint32_t *n_ctx,
                                  struct ats_error *err);

#endif
