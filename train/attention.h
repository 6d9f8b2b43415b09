/* Causal attention of one group of heads (a key-value head and the query heads that share it) in
 * one window, on the calling thread.
 *
 * A row of `qkv` holds all query heads, then the key heads, then the value heads, each of `head`
 * floats, queries and keys already turned to their positions. Probabilities are kept for the way
 * back: softmax(Q K^T / sqrt(head)), a square of context x context per query head. */
#ifndef ATS_TRAIN_ATTENTION_H
#define ATS_TRAIN_ATTENTION_H

#include "matmul.h"
#include "net.h"

/* First rows of the window; rows of `out` hold all query heads. `probs` starts at the window. */
void attend(const struct net_shape *shape, size_t group, struct matmul_space *space,
            const float *qkv, float *probs, float *out);

/* dqkv's columns of this group are written. `scratch` has room for ATTEND_BLOCK x context. */
void attend_back(const struct net_shape *shape, size_t group, struct matmul_space *space,
                 const float *qkv, const float *probs, const float *out, const float *dout,
                 float *scratch, float *dqkv);

enum { ATTEND_BLOCK = 128 }; /* queries at a time; keys beyond the last of them are left out */

#endif
