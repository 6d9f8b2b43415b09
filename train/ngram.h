/* What the trained model is compared with: n-gram models of bytes.
 *
 * A model of order n predicts a byte from the n bytes before it. Orders are interpolated after
 * Witten and Bell ("The Zero-Frequency Problem", IEEE Transactions on Information Theory 37(4),
 * 1991, method C), in the recursive form of Chen and Goodman ("An Empirical Study of Smoothing
 * Techniques for Language Modeling", 1998):
 *
 *     p_k(c | h) = (count(h c) + kinds(h) p_(k-1)(c | h')) / (count(h) + kinds(h))
 *
 * with h the last k bytes, h' the last k - 1, count(h) how often h was followed by a byte, kinds(h)
 * by how many different ones, and p_(-1) = 1 / 256. A context that never occurred leaves the
 * shorter one's probability. At the start of a piece contexts are as long as what precedes. */
#ifndef ATS_TRAIN_NGRAM_H
#define ATS_TRAIN_NGRAM_H

#include "text.h"

#include "base/error.h"

#include <stdbool.h>
#include <stddef.h>

enum { NGRAM_MAX_ORDER = 6 };

struct ngram;

/* Counts all pieces. NULL with an error: order above NGRAM_MAX_ORDER, or memory short. */
struct ngram *ngram_count(const struct text *text, unsigned order, struct ats_error *err);

/* The probability of the byte text[at], given text[0] .. text[at - 1]. */
double ngram_probability(const struct ngram *model, const char *text, size_t at);

/* Bits per byte over all pieces of a text; 0 for one without any. */
double ngram_bits_per_byte(const struct ngram *model, const struct text *text);

void ngram_free(struct ngram *model);

#endif
