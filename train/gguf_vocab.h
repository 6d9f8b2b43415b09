/* A tokenizer as the keys of a GGUF file: `tokenizer.ggml.model` "gpt2". */
#ifndef ATS_TRAIN_GGUF_VOCAB_H
#define ATS_TRAIN_GGUF_VOCAB_H

#include "bpe.h"

#include <gguf.h>

bool gguf_vocab_set(struct gguf_context *meta, const struct bpe *bpe, struct ats_error *err);

#endif
