/* The language model that is trained here: the architecture `llama` of llama.cpp, forward and
 * backward, in 32-bit floats.
 *
 * Per layer: RMS norm, causal attention with rotary positions and fewer key than query heads, RMS
 * norm, a feed-forward block with SiLU gate. The embedding is the output matrix too.
 *
 * Sources: Touvron et al., "LLaMA", 2023 (the whole); Zhang and Sennrich, "Root Mean Square Layer
 * Normalization", 2019; Su et al., "RoFormer", 2021 (rotary positions, neighbouring elements as
 * pairs); Shazeer, "GLU Variants Improve Transformer", 2020; Ainslie et al., "GQA", 2023.
 *
 * A struct net is used by one thread at a time; inside it works on all threads of its pool. */
#ifndef ATS_TRAIN_NET_H
#define ATS_TRAIN_NET_H

#include "base/error.h"
#include "matmul.h"
#include "pool.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct net_shape {
    uint32_t vocab;
    uint32_t width; /* of the residual stream */
    uint32_t layers;
    uint32_t heads;    /* of queries; width / heads is a head's width */
    uint32_t kv_heads; /* of keys and values */
    uint32_t ff;       /* hidden units of a feed-forward block */
    uint32_t context;  /* tokens of a window */
};

#define NET_ROPE_BASE 10000.0f
#define NET_NORM_EPSILON 1e-5f

/* False with an error unless the code can compute the shape: rows are whole vectors (VEC_ROW),
 * heads divide. */
bool net_shape_check(const struct net_shape *shape, struct ats_error *err);

/* Where a tensor lies in the flat array of parameters: `rows` rows of `columns`, row by row. Names
 * are those of GGUF files. A gain of a norm has one row. */
struct net_tensor {
    char name[48];
    size_t offset;
    size_t rows;
    size_t columns;
};

size_t net_tensor_count(const struct net_shape *shape);
struct net_tensor net_tensor_at(const struct net_shape *shape, size_t index);
size_t net_param_count(const struct net_shape *shape);

/* Random weights: matrices with standard deviation 0.6 / sqrt(columns), those that write into the
 * residual stream smaller by sqrt(2 layers), the embedding 0.02, gains 1. */
void net_init_params(const struct net_shape *shape, uint64_t seed, float *params);

struct net;

/* Room for `windows` windows at once. `pool` must outlive the net. NULL with an error if memory is
 * short. */
struct net *net_new(const struct net_shape *shape, size_t windows, struct pool *pool,
                    struct ats_error *err);
void net_free(struct net *net);

/* Mean loss in nats per token over all windows.
 *
 *   tokens  windows x (context + 1): position t of a window predicts token t + 1
 *   grads   NULL, or as many floats as parameters: the loss's gradient is written there */
double net_loss(struct net *net, const float *params, const int32_t *tokens, size_t windows,
                float *grads);

/* Logits of one window of `context` tokens: context x vocab floats. */
void net_logits(struct net *net, const float *params, const int32_t *tokens, float *logits);

#endif
