/* Small models with random weights, for tests and for a first run.
 *
 * A model is described as data (its metadata and a list of tensors, each with a
 * rule that fills it) and then written. The same description and seed give the
 * same bytes on every machine: numbers come from integer arithmetic and
 * correctly rounded operations only. */
#ifndef ATS_CLI_SYNTH_H
#define ATS_CLI_SYNTH_H

#include "base/error.h"
#include "cli/synth_spec.h"
#include "cli/synth_topics.h"

#include <ggml.h>
#include <gguf.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* What the user may choose; 0 (or -1 for the type) means the architecture's default. */
struct synth_shape {
    uint32_t layers;
    uint32_t embd;
    uint32_t ff; /* width of a feed-forward block, or of one expert */
    uint32_t heads;
    uint32_t kv_heads;
    uint32_t experts;
    uint32_t experts_used;
};

/* How many rows of a vocabulary-sized tensor stay zero is decided by `row_mask`. */
struct synth_tensor {
    char name[GGML_MAX_NAME];
    enum ggml_type type;
    int n_dims;
    int64_t ne[GGML_MAX_DIMS];
    /* Every element is mean + spread * g, g random with variance 1, |g| < 3.47. */
    float mean;
    float spread;
    bool mask_rows; /* rows that `row_mask` marks are written as zeros */
    bool is_topics; /* token embeddings in topics; mean and spread are not used */
};

struct synth_model {
    struct gguf_context *meta; /* owned; tensors are added when it is written */
    struct synth_tensor *tensors;
    size_t n_tensors;
    size_t capacity;
    bool *row_mask; /* one per token: true = zero row; may be NULL */
    uint64_t seed;
    bool in_blocks; /* quantised tensors are random blocks, not quantised floats */
    struct synth_topics topics;
    bool is_meta_only; /* the file ends where the tensors' data would begin */
};

/* Adds a tensor; ne1 and ne2 of 0 mean fewer dimensions. `type` falls back to F16
 * or F32 where the rows are no multiple of its block. Returns it for adjustment,
 * until the next call. */
struct synth_tensor *synth_add(struct synth_model *model, enum ggml_type type, float spread,
                               int64_t ne0, int64_t ne1, int64_t ne2, const char *name, ...)
    __attribute__((format(printf, 7, 8)));

/* Fills metadata and tensors of a whole model. `n_vocab` tokens come from the
 * vocabulary already in model->meta. */
bool synth_describe(struct synth_model *model, const char *arch, const struct synth_shape *shape,
                    enum ggml_type type, uint32_t n_vocab, struct ats_error *err);

/* The architectures that synth_describe knows. */
size_t synth_arch_count(void);
const char *const *synth_arch_names(void);

/* Fills metadata and tensors of the model that `spec` describes, with `layers` layers and a
 * vocabulary of `n_vocab` tokens, without a tokenizer. */
bool synth_describe_spec(struct synth_model *model, const struct synth_spec *spec, uint32_t layers,
                         uint32_t n_vocab, struct ats_error *err);

/* Bytes of all tensors as they lie in the file, padding included. */
uint64_t synth_bytes(const struct synth_model *model);

/* The most layers with which the file has at most `bytes`; 0 with an error if the least depth has
 * more. */
uint32_t synth_layers_for(const struct synth_spec *spec, uint32_t n_vocab, uint64_t bytes,
                          struct ats_error *err);

/* Prints a line per known model, or, with a spec, that model's bytes by role. */
bool synth_list(const struct synth_spec *spec, struct ats_error *err);

/* Fills a LoRA adapter of the given rank for the GGUF file `base`. */
bool synth_describe_lora(struct synth_model *model, const char *base, uint32_t rank,
                         struct ats_error *err);

/* Writes the model to a temporary file beside `path` and renames it: `path` is
 * either complete or untouched. Shows progress if stderr is a terminal. */
bool synth_write(const struct synth_model *model, const char *path, struct ats_error *err);

void synth_free(struct synth_model *model);

#endif
