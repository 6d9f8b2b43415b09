/* The tokenizer: byte pairs merged by frequency (Sennrich et al., "Neural Machine Translation of
 * Rare Words with Subword Units", 2016), on bytes, with GPT-2's way to cut text into words
 * (Radford et al., 2019), as llama.cpp does it.
 *
 * Text is ASCII: bytes from 0x80 on count as letters here, which is llama.cpp's cut only for
 * letters. Every byte has a token, so any text can be encoded.
 *
 * Token 0 ends a piece of text, tokens 1 to 256 are the bytes, the rest are merges in the order in
 * which they were learned. A struct is read-only after it is made: any number of threads may
 * encode. */
#ifndef ATS_TRAIN_BPE_H
#define ATS_TRAIN_BPE_H

#include "text.h"

#include "base/error.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    BPE_END = 0,
    BPE_FIRST_BYTE = 1,
    BPE_FIRST_MERGE = 257,
    BPE_MAX_TOKENS = 1 << 14,
};

struct bpe_merge {
    int32_t left;
    int32_t right;
};

struct bpe {
    size_t n_tokens;
    struct bpe_merge *merges; /* n_tokens - BPE_FIRST_MERGE; owned */
};

/* Length of the first word of text, 1 to n bytes; n > 0. */
size_t bpe_word(const char *text, size_t n);

/* Learns merges from all pieces until there are `n_tokens` tokens or no pair occurs twice. The most
 * frequent pair is merged; among equals that of the smallest tokens. */
bool bpe_learn(struct bpe *bpe, const struct text *text, size_t n_tokens, struct ats_error *err);

/* Encodes text, without ends. *tokens is allocated, for the caller to free; empty text gives none
 * (and NULL). */
bool bpe_encode(const struct bpe *bpe, const char *text, size_t n, int32_t **tokens,
                size_t *n_tokens, struct ats_error *err);

/* The bytes of a token, at most `size` of them; returns how many it has. BPE_END has none. */
size_t bpe_bytes(const struct bpe *bpe, int32_t token, char *bytes, size_t size);

/* As a text file: a line with the number of tokens, then a line per merge. */
bool bpe_save(const struct bpe *bpe, const char *path, struct ats_error *err);
bool bpe_load(struct bpe *bpe, const char *path, struct ats_error *err);

/* The same from memory; `name` is for messages. */
bool bpe_parse(struct bpe *bpe, const char *text, const char *name, struct ats_error *err);

void bpe_free(struct bpe *bpe);

#endif
