/* The windows of text that training steps see, in which order.
 *
 * The pieces of a text become one row of tokens with BPE_END before, between and after them. An
 * epoch cuts it into windows, from a place that the seed and the epoch decide, and shuffles them:
 * every token is seen once per epoch, and which windows a step sees depends on nothing but seed
 * and step. The first token of every window is replaced by BPE_END, as a prompt begins with it. */
#ifndef ATS_TRAIN_BATCHES_H
#define ATS_TRAIN_BATCHES_H

#include "bpe.h"
#include "text.h"

#include "base/error.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct tokens {
    int32_t *ids; /* owned */
    size_t n;
};

bool tokens_of_text(struct tokens *tokens, const struct bpe *bpe, const struct text *text,
                    struct ats_error *err);
void tokens_free(struct tokens *tokens);

/* A number that differs for different tokens: FNV-1a. */
uint64_t tokens_fingerprint(const struct tokens *tokens);

struct batches {
    const struct tokens *tokens;
    size_t context;
    uint64_t seed;
    size_t n_windows; /* per epoch */
    size_t epoch;     /* that `order` is of; SIZE_MAX at first */
    size_t begin;     /* of the epoch's first window */
    uint32_t *order;  /* owned */
};

/* `tokens` must outlive the batches. Fails if they do not fill two windows. */
bool batches_begin(struct batches *batches, const struct tokens *tokens, size_t context,
                   uint64_t seed, struct ats_error *err);
void batches_end(struct batches *batches);

/* Windows of step `step`, from 0: windows x (context + 1) tokens. */
void batches_of_step(struct batches *batches, size_t step, size_t windows, int32_t *ids);

#endif
