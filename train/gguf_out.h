/* GGUF files through ggml's own functions: tensors of floats in, quantised tensors out. One
 * thread. */
#ifndef ATS_TRAIN_GGUF_OUT_H
#define ATS_TRAIN_GGUF_OUT_H

#include "base/error.h"

#include <ggml.h>
#include <gguf.h>
#include <stdbool.h>
#include <stddef.h>

struct gguf_out {
    struct gguf_context *meta;    /* set keys here */
    struct ggml_context *tensors; /* their data too */
};

/* Room for `n_tensors` tensors with `bytes` bytes of data in all. */
bool gguf_out_begin(struct gguf_out *out, size_t n_tensors, size_t bytes, struct ats_error *err);

/* The type that a tensor with rows of `columns` elements gets: `type`, or F16 where its blocks do
 * not divide the row. */
enum ggml_type gguf_out_type(enum ggml_type type, int64_t columns);

/* Adds a tensor of the shape ne[0 .. n_dims - 1] and converts `data` to its type. */
void gguf_out_add(struct gguf_out *out, const char *name, enum ggml_type type, int n_dims,
                  const int64_t *ne, const float *data);

/* Writes the file, or leaves what was there. */
bool gguf_out_write(const struct gguf_out *out, const char *path, struct ats_error *err);

void gguf_out_end(struct gguf_out *out);

#endif
