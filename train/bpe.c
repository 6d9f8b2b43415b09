#include "bpe.h"

#include <stdlib.h>
#include <string.h>
#include <uthash.h>

enum kind { LETTER, DIGIT, SPACE, OTHER };

static enum kind kind_of(char byte)
{
    const unsigned char c = (unsigned char)byte;
    if ((c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c >= 0x80) {
        return LETTER;
    }
    if (c >= '0' && c <= '9') {
        return DIGIT;
    }
    return c == ' ' || (c >= '\t' && c <= '\r') ? SPACE : OTHER;
}

/* 's 't 'm 'd 're 've 'll, or 0. */
static size_t contraction(const char *text, size_t n)
{
    if (n >= 2 && strchr("stmd", text[1]) != NULL && text[1] != '\0') {
        return 2;
    }
    static const char *const endings[] = {"re", "ve", "ll"};
    for (size_t i = 0; n >= 3 && i < sizeof endings / sizeof endings[0]; i++) {
        if (memcmp(text + 1, endings[i], 2) == 0) {
            return 3;
        }
    }
    return 0;
}

size_t bpe_word(const char *text, size_t n)
{
    if (text[0] == '\'') {
        const size_t length = contraction(text, n);
        if (length > 0) {
            return length;
        }
    }
    const size_t first = text[0] == ' ' && n > 1 ? 1 : 0;
    const enum kind kind = kind_of(text[first]);
    if (kind != SPACE) {
        size_t end = first + 1;
        while (end < n && kind_of(text[end]) == kind) {
            end++;
        }
        return end;
    }
    size_t spaces = 1;
    while (spaces < n && kind_of(text[spaces]) == SPACE) {
        spaces++;
    }
    /* the last one belongs to the word that follows */
    return spaces > 1 && spaces < n ? spaces - 1 : spaces;
}

/* A distinct word: how often it occurs and the tokens that it consists of. */
struct word {
    const char *bytes; /* in the text */
    size_t n_tokens;
    uint32_t count;
    int32_t *tokens;
    UT_hash_handle hh;
};

static void free_words(struct word *words)
{
    struct word *first = words; /* the list stays when the table goes */
    HASH_CLEAR(hh, words);
    while (first != NULL) {
        struct word *next = first->hh.next;
        free(first->tokens);
        free(first);
        first = next;
    }
}

/* The word, entered with a token per byte if it is new; NULL if memory is short. */
static struct word *find_or_add(struct word **words, const char *bytes, size_t length)
{
    struct word *word;
    HASH_FIND(hh, *words, bytes, length, word);
    if (word != NULL) {
        return word;
    }
    word = calloc(1, sizeof *word);
    if (word == NULL || (word->tokens = calloc(length, sizeof *word->tokens)) == NULL) {
        free(word);
        return NULL;
    }
    word->bytes = bytes;
    word->n_tokens = length;
    for (size_t i = 0; i < length; i++) {
        word->tokens[i] = BPE_FIRST_BYTE + (unsigned char)bytes[i];
    }
    HASH_ADD_KEYPTR(hh, *words, word->bytes, length, word);
    return word;
}

/* Counts of pairs while learning. `best` is the right half of a row's most frequent pair; a row
 * whose counts changed is looked through again before it is used. */
struct pairs {
    size_t n;        /* tokens in all */
    uint32_t *count; /* n x n */
    uint32_t *best;
    bool *changed;
};

static void count_pairs(struct pairs *pairs, const struct word *word)
{
    for (size_t i = 0; i + 1 < word->n_tokens; i++) {
        const size_t left = (size_t)word->tokens[i];
        pairs->count[left * pairs->n + (size_t)word->tokens[i + 1]] += word->count;
        pairs->changed[left] = true;
    }
}

static void uncount_pairs(struct pairs *pairs, const struct word *word)
{
    for (size_t i = 0; i + 1 < word->n_tokens; i++) {
        const size_t left = (size_t)word->tokens[i];
        pairs->count[left * pairs->n + (size_t)word->tokens[i + 1]] -= word->count;
        pairs->changed[left] = true;
    }
}

/* The most frequent pair among the first `known` tokens; its count, 0 if there is none. */
static uint32_t best_pair(struct pairs *pairs, size_t known, struct bpe_merge *merge)
{
    uint32_t most = 0;
    for (size_t left = 0; left < known; left++) {
        const uint32_t *row = pairs->count + left * pairs->n;
        if (pairs->changed[left]) {
            uint32_t best = 0;
            for (uint32_t right = 1; right < known; right++) {
                best = row[right] > row[best] ? right : best;
            }
            pairs->best[left] = best;
            pairs->changed[left] = false;
        }
        if (row[pairs->best[left]] > most) {
            most = row[pairs->best[left]];
            *merge = (struct bpe_merge){(int32_t)left, (int32_t)pairs->best[left]};
        }
    }
    return most;
}

/* Replaces the pair wherever it occurs in the word, from the left; true if it did. */
static bool merge_word(int32_t *tokens, size_t *n, struct bpe_merge merge, int32_t merged)
{
    size_t kept = 0;
    for (size_t i = 0; i < *n; i++) {
        const bool matches = tokens[i] == merge.left && i + 1 < *n && tokens[i + 1] == merge.right;
        tokens[kept++] = matches ? merged : tokens[i];
        i += matches;
    }
    const bool found = kept < *n;
    *n = kept;
    return found;
}

static bool has_pair(const struct word *word, struct bpe_merge merge)
{
    for (size_t i = 0; i + 1 < word->n_tokens; i++) {
        if (word->tokens[i] == merge.left && word->tokens[i + 1] == merge.right) {
            return true;
        }
    }
    return false;
}

static void learn_merges(struct bpe *bpe, struct pairs *pairs, struct word *words)
{
    for (const struct word *w = words; w != NULL; w = w->hh.next) {
        count_pairs(pairs, w);
    }
    while (bpe->n_tokens < pairs->n) {
        struct bpe_merge merge = {0};
        if (best_pair(pairs, bpe->n_tokens, &merge) < 2) {
            return;
        }
        const int32_t merged = (int32_t)bpe->n_tokens;
        bpe->merges[bpe->n_tokens - BPE_FIRST_MERGE] = merge;
        bpe->n_tokens++;
        for (struct word *w = words; w != NULL; w = w->hh.next) {
            if (has_pair(w, merge)) {
                uncount_pairs(pairs, w);
                merge_word(w->tokens, &w->n_tokens, merge, merged);
                count_pairs(pairs, w);
            }
        }
    }
}

static bool collect_words(struct word **words, const char *text, size_t n)
{
    for (size_t at = 0; at < n;) {
        const size_t length = bpe_word(text + at, n - at);
        struct word *word = find_or_add(words, text + at, length);
        if (word == NULL) {
            return false;
        }
        word->count++;
        at += length;
    }
    return true;
}

static bool collect_all_words(struct word **words, const struct text *text)
{
    const char *piece;
    size_t n;
    for (size_t at = 0; text_piece(text, &at, &piece, &n);) {
        if (!collect_words(words, piece, n)) {
            return false;
        }
    }
    return true;
}

bool bpe_learn(struct bpe *bpe, const struct text *text, size_t n_tokens, struct ats_error *err)
{
    *bpe = (struct bpe){0};
    if (n_tokens <= BPE_FIRST_MERGE || n_tokens > BPE_MAX_TOKENS || text->n > UINT32_MAX) {
        return ats_fail(err, "a vocabulary of %zu tokens: it must be %d to %d", n_tokens,
                        BPE_FIRST_MERGE + 1, BPE_MAX_TOKENS);
    }
    struct word *words = NULL;
    struct pairs pairs = {
        .n = n_tokens,
        .count = calloc(n_tokens * n_tokens, sizeof *pairs.count),
        .best = calloc(n_tokens, sizeof *pairs.best),
        .changed = calloc(n_tokens, sizeof *pairs.changed),
    };
    bpe->merges = calloc(n_tokens - BPE_FIRST_MERGE, sizeof *bpe->merges);
    bpe->n_tokens = BPE_FIRST_MERGE;
    const bool ok = pairs.count != NULL && pairs.best != NULL && pairs.changed != NULL &&
                    bpe->merges != NULL && collect_all_words(&words, text);
    if (ok) {
        learn_merges(bpe, &pairs, words);
    } else {
        bpe_free(bpe);
        ats_fail(err, "out of memory for a vocabulary of %zu tokens", n_tokens);
    }
    free_words(words);
    free(pairs.count);
    free(pairs.best);
    free(pairs.changed);
    return ok;
}

/* A merge and the token that it makes. */
struct rank {
    struct bpe_merge merge;
    int32_t merged;
};

struct encoder {
    struct rank *ranks; /* sorted by merge */
    size_t n_ranks;
    struct word *words; /* seen so far, with their final tokens */
};

static int compare_ranks(const void *a, const void *b)
{
    const struct bpe_merge *x = &((const struct rank *)a)->merge;
    const struct bpe_merge *y = &((const struct rank *)b)->merge;
    if (x->left != y->left) {
        return x->left < y->left ? -1 : 1;
    }
    return x->right < y->right ? -1 : x->right > y->right;
}

static bool encoder_begin(struct encoder *encoder, const struct bpe *bpe)
{
    const size_t n = bpe->n_tokens - BPE_FIRST_MERGE;
    *encoder = (struct encoder){.ranks = calloc(n + 1, sizeof *encoder->ranks), .n_ranks = n};
    if (encoder->ranks == NULL) {
        return false;
    }
    for (size_t i = 0; i < n; i++) {
        encoder->ranks[i] = (struct rank){bpe->merges[i], (int32_t)(BPE_FIRST_MERGE + i)};
    }
    qsort(encoder->ranks, n, sizeof *encoder->ranks, compare_ranks);
    return true;
}

static void encoder_end(struct encoder *encoder)
{
    free(encoder->ranks);
    free_words(encoder->words);
}

/* Merges the pair that was learned first, again and again. */
static void encode_word(const struct encoder *encoder, struct word *word)
{
    for (;;) {
        const struct rank *first = NULL;
        for (size_t i = 0; i + 1 < word->n_tokens; i++) {
            const struct rank pair = {.merge = {word->tokens[i], word->tokens[i + 1]}};
            const struct rank *rank = bsearch(&pair, encoder->ranks, encoder->n_ranks,
                                              sizeof *encoder->ranks, compare_ranks);
            if (rank != NULL && (first == NULL || rank->merged < first->merged)) {
                first = rank;
            }
        }
        if (first == NULL) {
            return;
        }
        merge_word(word->tokens, &word->n_tokens, first->merge, first->merged);
    }
}

bool bpe_encode(const struct bpe *bpe, const char *text, size_t n, int32_t **tokens,
                size_t *n_tokens, struct ats_error *err)
{
    *tokens = NULL;
    *n_tokens = 0;
    if (n == 0) {
        return true;
    }
    struct encoder encoder;
    int32_t *out = malloc(n * sizeof *out); /* no token is shorter than a byte */
    bool ok = encoder_begin(&encoder, bpe) && out != NULL;
    for (size_t at = 0; at < n && ok;) {
        const size_t length = bpe_word(text + at, n - at);
        struct word *word = find_or_add(&encoder.words, text + at, length);
        ok = word != NULL;
        if (ok) {
            if (word->count++ == 0) {
                encode_word(&encoder, word);
            }
            memcpy(out + *n_tokens, word->tokens, word->n_tokens * sizeof *out);
            *n_tokens += word->n_tokens;
        }
        at += length;
    }
    encoder_end(&encoder);
    if (!ok) {
        free(out);
        return ats_fail(err, "out of memory for the tokens of %zu bytes", n);
    }
    *tokens = out;
    return true;
}

size_t bpe_bytes(const struct bpe *bpe, int32_t token, char *bytes, size_t size)
{
    if (token < BPE_FIRST_BYTE || (size_t)token >= bpe->n_tokens) {
        return 0;
    }
    if (token < BPE_FIRST_MERGE) {
        if (size > 0) {
            bytes[0] = (char)(token - BPE_FIRST_BYTE);
        }
        return 1;
    }
    const struct bpe_merge merge = bpe->merges[token - BPE_FIRST_MERGE];
    const size_t left = bpe_bytes(bpe, merge.left, bytes, size);
    const size_t used = left < size ? left : size;
    return left + bpe_bytes(bpe, merge.right, bytes + used, size - used);
}

void bpe_free(struct bpe *bpe)
{
    free(bpe->merges);
    *bpe = (struct bpe){0};
}
