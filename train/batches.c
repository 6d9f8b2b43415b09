#include "batches.h"

#include "base/rng.h"

#include <stdlib.h>
#include <string.h>

/* Appends tokens and an end; *room counts what fits. */
static bool append_piece(struct tokens *all, size_t *room, const int32_t *ids, size_t n,
                         struct ats_error *err)
{
    if (all->n + n + 1 > *room) {
        *room = 2 * (all->n + n + 1);
        int32_t *larger = realloc(all->ids, *room * sizeof *larger);
        if (larger == NULL) {
            return ats_fail(err, "out of memory for %zu tokens", *room);
        }
        all->ids = larger;
    }
    if (n > 0) {
        memcpy(all->ids + all->n, ids, n * sizeof *ids);
    }
    all->n += n;
    all->ids[all->n++] = BPE_END;
    return true;
}

bool tokens_of_text(struct tokens *tokens, const struct bpe *bpe, const struct text *text,
                    struct ats_error *err)
{
    *tokens = (struct tokens){0};
    size_t room = 0;
    const char *piece;
    size_t length;
    bool ok = append_piece(tokens, &room, NULL, 0, err);
    for (size_t at = 0; ok && text_piece(text, &at, &piece, &length);) {
        int32_t *ids;
        size_t n;
        ok = bpe_encode(bpe, piece, length, &ids, &n, err);
        ok = ok && append_piece(tokens, &room, ids, n, err);
        free(ids);
    }
    if (!ok) {
        tokens_free(tokens);
    }
    return ok;
}

void tokens_free(struct tokens *tokens)
{
    free(tokens->ids);
    *tokens = (struct tokens){0};
}

uint64_t tokens_fingerprint(const struct tokens *tokens)
{
    uint64_t hash = UINT64_C(0xcbf29ce484222325);
    for (size_t i = 0; i < tokens->n; i++) {
        hash = (hash ^ (uint32_t)tokens->ids[i]) * UINT64_C(0x100000001b3);
    }
    return hash;
}

bool batches_begin(struct batches *batches, const struct tokens *tokens, size_t context,
                   uint64_t seed, struct ats_error *err)
{
    *batches =
        (struct batches){.tokens = tokens, .context = context, .seed = seed, .epoch = SIZE_MAX};
    if (tokens->n < 2 * context + 1) {
        return ats_fail(err, "the text has %zu tokens; two windows of %zu need %zu", tokens->n,
                        context, 2 * context + 1);
    }
    /* the place of the first window may be any but must leave room for the last */
    batches->n_windows = (tokens->n - 1) / context - 1;
    batches->order = malloc(batches->n_windows * sizeof *batches->order);
    return batches->order != NULL ||
           ats_fail(err, "out of memory for %zu windows", batches->n_windows);
}

void batches_end(struct batches *batches)
{
    free(batches->order);
    batches->order = NULL;
}

/* Fisher and Yates. */
static void shuffle(struct batches *batches, size_t epoch)
{
    struct ats_rng rng = {batches->seed ^ (epoch + 1) * UINT64_C(0xD1342543DE82EF95)};
    batches->epoch = epoch;
    batches->begin = ats_rng_below(&rng, batches->context);
    for (size_t i = 0; i < batches->n_windows; i++) {
        const size_t j = ats_rng_below(&rng, i + 1);
        batches->order[i] = batches->order[j];
        batches->order[j] = (uint32_t)i;
    }
}

void batches_of_step(struct batches *batches, size_t step, size_t windows, int32_t *ids)
{
    for (size_t w = 0; w < windows; w++, ids += batches->context + 1) {
        const size_t number = step * windows + w;
        if (number / batches->n_windows != batches->epoch) {
            shuffle(batches, number / batches->n_windows);
        }
        const size_t window = batches->order[number % batches->n_windows];
        memcpy(ids, batches->tokens->ids + batches->begin + window * batches->context,
               (batches->context + 1) * sizeof *ids);
        ids[0] = BPE_END;
    }
}
