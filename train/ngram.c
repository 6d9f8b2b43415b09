#include "ngram.h"

#include <math.h>
#include <stdint.h>
#include <stdlib.h>

/* A string of up to seven bytes and what is known of it. Its key is the bytes below a one, so
 * strings of all lengths differ, and none is 0. */
struct entry {
    uint64_t key;      /* 0: free */
    uint32_t count;    /* how often the string occurs */
    uint32_t followed; /* how often a byte follows that is counted with it as context */
    uint32_t kinds;    /* how many different bytes do */
};

struct ngram {
    unsigned order;
    struct entry *entries; /* 2^bits of them, less than half in use */
    unsigned bits;
    size_t used;
};

/* Fibonacci hashing (Knuth, The Art of Computer Programming, volume 3, 6.4), then the next free. */
static struct entry *find(struct entry *entries, unsigned bits, uint64_t key)
{
    size_t at = (size_t)((key * UINT64_C(0x9E3779B97F4A7C15)) >> (64 - bits));
    const size_t mask = ((size_t)1 << bits) - 1;
    while (entries[at].key != 0 && entries[at].key != key) {
        at = (at + 1) & mask;
    }
    return &entries[at];
}

static bool grow(struct ngram *model)
{
    const unsigned bits = model->bits + 1;
    struct entry *entries = calloc((size_t)1 << bits, sizeof *entries);
    if (entries == NULL) {
        return false;
    }
    for (size_t i = 0; i < (size_t)1 << model->bits; i++) {
        if (model->entries[i].key != 0) {
            *find(entries, bits, model->entries[i].key) = model->entries[i];
        }
    }
    free(model->entries);
    model->entries = entries;
    model->bits = bits;
    return true;
}

/* The entry of a key, new if need be; there must be room. */
static struct entry *find_or_add(struct ngram *model, uint64_t key)
{
    struct entry *entry = find(model->entries, model->bits, key);
    if (entry->key == 0) {
        entry->key = key;
        model->used++;
    }
    return entry;
}

/* The `length` bytes before `end`. */
static uint64_t key_of(const char *end, size_t length)
{
    uint64_t key = 1;
    for (const char *at = end - length; at < end; at++) {
        key = key << 8 | (unsigned char)*at;
    }
    return key;
}

enum { MOST_NEW_ENTRIES = 2 * (NGRAM_MAX_ORDER + 1) }; /* of one byte */

static bool count_byte(struct ngram *model, const char *piece, size_t at)
{
    if (model->used + MOST_NEW_ENTRIES > (size_t)1 << (model->bits - 1) && !grow(model)) {
        return false;
    }
    for (size_t k = 0; k <= model->order && k <= at; k++) {
        struct entry *with = find_or_add(model, key_of(piece + at + 1, k + 1));
        with->count++;
        const bool is_new = with->count == 1;
        struct entry *context = find_or_add(model, key_of(piece + at, k));
        context->followed++;
        context->kinds += is_new;
    }
    return true;
}

struct ngram *ngram_count(const struct text *text, unsigned order, struct ats_error *err)
{
    if (order > NGRAM_MAX_ORDER) {
        ats_fail(err, "an n-gram model of order %u: at most %d", order, NGRAM_MAX_ORDER);
        return NULL;
    }
    struct ngram *model = calloc(1, sizeof *model);
    bool ok = model != NULL;
    if (ok) {
        model->order = order;
        model->bits = 10;
        model->entries = calloc((size_t)1 << model->bits, sizeof *model->entries);
        ok = model->entries != NULL;
    }
    const char *piece;
    size_t length;
    for (size_t next = 0; ok && text_piece(text, &next, &piece, &length);) {
        for (size_t at = 0; at < length && ok; at++) {
            ok = count_byte(model, piece, at);
        }
    }
    if (!ok) {
        ngram_free(model);
        ats_fail(err, "out of memory for an n-gram model of order %u", order);
        return NULL;
    }
    return model;
}

double ngram_probability(const struct ngram *model, const char *text, size_t at)
{
    double p = 1.0 / 256.0;
    for (size_t k = 0; k <= model->order && k <= at; k++) {
        const struct entry *context = find(model->entries, model->bits, key_of(text + at, k));
        if (context->followed == 0) {
            break; /* nor has any longer one been seen */
        }
        const struct entry *with = find(model->entries, model->bits, key_of(text + at + 1, k + 1));
        const double kinds = context->kinds;
        p = ((double)with->count + kinds * p) / ((double)context->followed + kinds);
    }
    return p;
}

double ngram_bits_per_byte(const struct ngram *model, const struct text *text)
{
    double bits = 0.0;
    size_t bytes = 0;
    const char *piece;
    size_t length;
    for (size_t next = 0; text_piece(text, &next, &piece, &length);) {
        for (size_t at = 0; at < length; at++) {
            bits -= log2(ngram_probability(model, piece, at));
        }
        bytes += length;
    }
    return bytes > 0 ? bits / (double)bytes : 0.0;
}

void ngram_free(struct ngram *model)
{
    if (model != NULL) {
        free(model->entries);
        free(model);
    }
}
