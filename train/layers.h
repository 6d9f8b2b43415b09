/* What a layer is made of, apart from products of matrices: rows in, rows out, and back.
 *
 * All work on `rows` rows, one after the other in memory, on the calling thread; `width` is a
 * multiple of VEC_ROW. Backward functions take the gradient of the result and give that of the
 * arguments. */
#ifndef ATS_TRAIN_LAYERS_H
#define ATS_TRAIN_LAYERS_H

#include <stddef.h>
#include <stdint.h>

/* y = gain x / sqrt(mean(x^2) + epsilon); `scale` (a float per row) keeps 1 / sqrt(...). */
void rms_norm(size_t rows, size_t width, const float *x, const float *gain, float *y, float *scale);

/* dx += the gradient; dgain += its sum over the rows. */
void rms_norm_back(size_t rows, size_t width, const float *x, const float *gain, const float *scale,
                   const float *dy, float *dx, float *dgain);

/* Turns neighbouring elements of each of `heads` heads of a row by position x base^(-2i / width);
 * `turns` has cosine and sine per position and pair, `direction` is 1, or -1 to turn back. Row r
 * has position r modulo `context`; `first` is the first row's number. Rows are `stride` apart. */
void rope(size_t first, size_t rows, size_t stride, size_t heads, size_t head_width, size_t context,
          const float *turns, float direction, float *x);

/* Fills `turns`: context x head_width floats. */
void rope_turns(size_t context, size_t head_width, float *turns);

/* h = silu(gate) up; a row of `gate_up` is gate, then up, each of `ff`. */
void swiglu(size_t rows, size_t ff, const float *gate_up, float *h);
void swiglu_back(size_t rows, size_t ff, const float *gate_up, const float *dh, float *dgate_up);

/* Rows of logits become the gradient of `weight` times the sum of the rows' losses. Returns the
 * sum of the losses: -log softmax(logits)[target]. */
double cross_entropy(size_t rows, size_t vocab, float *logits, const int32_t *targets,
                     float weight);

/* x = softmax(scale x) over the first `n` elements; the rest, up to `width`, becomes 0. */
void softmax(size_t n, size_t width, float scale, float *x);

/* x += y */
void add_to(size_t n, float *x, const float *y);

#endif
