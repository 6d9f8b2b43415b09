#include "gguf_vocab.h"

#include <stdlib.h>
#include <string.h>

static const char end_text[] = "<|endoftext|>";

enum { MAX_TOKEN_BYTES = 1 << 10, TOKEN_NORMAL = 1, TOKEN_CONTROL = 3 };

/* GPT-2 writes tokens with a printable character per byte: the byte's own in Latin-1 if that is
 * printable and no blank, otherwise the next one from U+0100 on. */
static unsigned character_of(unsigned byte)
{
    unsigned others = 0;
    for (unsigned b = 0; b < 256; b++) {
        const bool own = (b >= '!' && b <= '~') || (b >= 0xA1 && b <= 0xFF && b != 0xAD);
        if (b == byte) {
            return own ? b : 256 + others;
        }
        others += !own;
    }
    return 0;
}

/* Appends the bytes' characters in UTF-8 to `text`; returns the new length. */
static size_t append(char *text, size_t length, const char *bytes, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        const unsigned c = character_of((unsigned char)bytes[i]);
        if (c < 0x80) {
            text[length++] = (char)c;
        } else {
            text[length++] = (char)(0xC0 | c >> 6);
            text[length++] = (char)(0x80 | (c & 0x3F));
        }
    }
    text[length] = '\0';
    return length;
}

/* The written form of a token, or of two with a blank between; NULL: out of memory or too long. */
static char *write_tokens(const struct bpe *bpe, int32_t first, int32_t second)
{
    char bytes[MAX_TOKEN_BYTES];
    char *text = malloc(4 * MAX_TOKEN_BYTES + 2);
    const size_t n = bpe_bytes(bpe, first, bytes, sizeof bytes);
    if (text == NULL || n > sizeof bytes) {
        free(text);
        return NULL;
    }
    size_t length = append(text, 0, bytes, n);
    if (second != BPE_END) {
        const size_t m = bpe_bytes(bpe, second, bytes, sizeof bytes);
        if (m > sizeof bytes) {
            free(text);
            return NULL;
        }
        text[length++] = ' ';
        append(text, length, bytes, m);
    }
    return text;
}

static void free_strings(char **strings, size_t n)
{
    for (size_t i = 0; strings != NULL && i < n; i++) {
        free(strings[i]);
    }
    free(strings);
}

static bool set_tokens(struct gguf_context *meta, const struct bpe *bpe)
{
    char **tokens = calloc(bpe->n_tokens, sizeof *tokens);
    int32_t *types = calloc(bpe->n_tokens, sizeof *types);
    bool ok = tokens != NULL && types != NULL;
    for (size_t i = 0; i < bpe->n_tokens && ok; i++) {
        tokens[i] = i == BPE_END ? strdup(end_text) : write_tokens(bpe, (int32_t)i, BPE_END);
        types[i] = i == BPE_END ? TOKEN_CONTROL : TOKEN_NORMAL;
        ok = tokens[i] != NULL;
    }
    if (ok) {
        gguf_set_arr_str(meta, "tokenizer.ggml.tokens", (const char **)tokens, bpe->n_tokens);
        gguf_set_arr_data(meta, "tokenizer.ggml.token_type", GGUF_TYPE_INT32, types, bpe->n_tokens);
    }
    free_strings(tokens, bpe->n_tokens);
    free(types);
    return ok;
}

static bool set_merges(struct gguf_context *meta, const struct bpe *bpe)
{
    const size_t n = bpe->n_tokens - BPE_FIRST_MERGE;
    char **merges = calloc(n + 1, sizeof *merges);
    bool ok = merges != NULL;
    for (size_t i = 0; i < n && ok; i++) {
        merges[i] = write_tokens(bpe, bpe->merges[i].left, bpe->merges[i].right);
        ok = merges[i] != NULL;
    }
    if (ok) {
        gguf_set_arr_str(meta, "tokenizer.ggml.merges", (const char **)merges, n);
    }
    free_strings(merges, n);
    return ok;
}

bool gguf_vocab_set(struct gguf_context *meta, const struct bpe *bpe, struct ats_error *err)
{
    gguf_set_val_str(meta, "tokenizer.ggml.model", "gpt2");
    /* GPT-2's way to cut text, and a name under which llama.cpp gives every blank back: with
     * "gpt-2" its detokenizer drops those before punctuation. */
    gguf_set_val_str(meta, "tokenizer.ggml.pre", "trillion");
    if (!set_tokens(meta, bpe) || !set_merges(meta, bpe)) {
        return ats_fail(err, "out of memory for the vocabulary, or a token of more than %d bytes",
                        MAX_TOKEN_BYTES);
    }
    gguf_set_val_u32(meta, "tokenizer.ggml.bos_token_id", BPE_END);
    gguf_set_val_u32(meta, "tokenizer.ggml.eos_token_id", BPE_END);
    gguf_set_val_bool(meta, "tokenizer.ggml.add_bos_token", true);
    gguf_set_val_bool(meta, "tokenizer.ggml.add_eos_token", false);
    return true;
}
