/* Small models for the tests, written by `ats synth` into a folder that is removed at exit, and
 * libllama with the parameters that make results comparable bit by bit. */
#ifndef ATS_TESTS_MODELS_H
#define ATS_TESTS_MODELS_H

#include "harness.h"

#include <llama.h>

enum model_kind {
    MODEL_DENSE,
    MODEL_EXPERTS,
    MODEL_RECURRENT,
    MODEL_HYBRID,
    MODEL_CONVOLUTION,
    MODEL_EMBEDDING,
    MODEL_WIDE_EXPERTS, /* each matrix is large enough to be worth a copy of its own */
    MODEL_LARGE,        /* dense, 22 MiB: does not fit into small budgets */
    N_MODELS,
};

/* Writes all models and LoRA adapters for the dense and the expert model; exits if it cannot. */
void models_make(void);

const char *model_path(enum model_kind kind);
const char *lora_path(void); /* for MODEL_DENSE */

/* In a scenario: loads the backends and starts libllama. */
void models_start(void);

/* The model on the devices named (e.g. "ATS0" or "ATS0,ATS1"), or on the CPU alone (""). */
struct llama_model *model_load(const char *path, const char *devices, enum llama_load_mode mode);

/* Parameters of a context with one sequence; change them as needed. */
struct llama_context_params context_params(void);

/* Deterministic tokens for position `i` of a text. */
llama_token text_token(uint64_t text, size_t i);

/* Decodes `n` tokens of a text from position `first` on in sequence `seq`, with logits for the
 * last one. Returns what llama_decode returns. */
int32_t decode_text(struct llama_context *ctx, uint64_t text, size_t first, size_t n,
                    llama_seq_id seq);

/* Number of values in one row of logits. */
size_t logits_size(const struct llama_context *ctx);

#endif
