/* The tokenizer against a plain one that counts everything anew for each merge, and against cuts
 * that follow from GPT-2's pattern. */
#include "batches.h"
#include "bpe.h"
#include "text.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "unit/seed.h"

static void test_words(void **state)
{
    (void)state;
    const struct {
        const char *text;
        const char *cut; /* a bar after each word */
    } cases[] = {
        {"Hello world", "Hello| world|"},
        {"it's don't I'm we'd we're I've you'll",
         "it|'s| don|'t| I|'m| we|'d| we|'re| I|'ve| you|'ll|"},
        {"'Tis 'x 'r", "'|Tis| '|x| '|r|"},
        {"1,200 men42", "1|,|200| men|42|"},
        {"a  b   c", "a| | b|  | c|"},
        {"end.\n\nNext", "end|.|\n|\n|Next|"},
        {"tail  ", "tail|  |"},
        {" ", " |"},
        {"x \n", "x| \n|"},
        {"(yes!) --no", "(|yes|!)| --|no|"},
        {"\ta", "\t|a|"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char cut[128] = "";
        const char *text = cases[i].text;
        const size_t n = strlen(text);
        for (size_t at = 0; at < n;) {
            const size_t length = bpe_word(text + at, n - at);
            assert_in_range(length, 1, n - at);
            const size_t used = strlen(cut);
            snprintf(cut + used, sizeof cut - used, "%.*s|", (int)length, text + at);
            at += length;
        }
        assert_string_equal(cut, cases[i].cut);
    }
}

/* A text of few letters, so that pairs repeat; pieces too. */
static struct text random_text(struct ats_rng *rng, size_t n)
{
    static const char letters[] = "aabbc  'st\n12.-";
    struct text text = {.bytes = malloc(n + 1), .n = n};
    for (size_t i = 0; i < n; i++) {
        const char letter = letters[ats_rng_below(rng, sizeof letters - 1)];
        text.bytes[i] = (char)(test_chance(rng, 1) ? '\f' : letter);
    }
    text.bytes[n] = '\0';
    return text;
}

/* All words of all pieces as tokens; `ends` has where each ends. */
struct plain_words {
    int32_t *tokens;
    size_t *ends;
    size_t n_tokens;
    size_t n_words;
};

static struct plain_words plain_words_of(const struct text *text)
{
    struct plain_words w = {.tokens = calloc(text->n + 1, sizeof *w.tokens),
                            .ends = malloc(text->n * sizeof *w.ends)};
    const char *piece;
    size_t length;
    for (size_t at = 0; text_piece(text, &at, &piece, &length);) {
        for (size_t p = 0; p < length;) {
            const size_t word = bpe_word(piece + p, length - p);
            for (size_t i = 0; i < word; i++) {
                w.tokens[w.n_tokens++] = BPE_FIRST_BYTE + (unsigned char)piece[p + i];
            }
            w.ends[w.n_words++] = w.n_tokens;
            p += word;
        }
    }
    return w;
}

static void plain_merge(struct plain_words *w, struct bpe_merge merge, int32_t merged)
{
    size_t kept = 0;
    size_t at = 0;
    for (size_t i = 0; i < w->n_words; i++) {
        for (; at < w->ends[i]; at++) {
            if (at + 1 < w->ends[i] && w->tokens[at] == merge.left &&
                w->tokens[at + 1] == merge.right) {
                w->tokens[kept++] = merged;
                at++;
            } else {
                w->tokens[kept++] = w->tokens[at];
            }
        }
        at = w->ends[i];
        w->ends[i] = kept;
    }
    w->n_tokens = kept;
}

static size_t plain_count(const struct plain_words *w, int32_t left, int32_t right)
{
    size_t count = 0;
    for (size_t i = 0, begin = 0; i < w->n_words; begin = w->ends[i++]) {
        for (size_t t = begin; t + 1 < w->ends[i]; t++) {
            count += w->tokens[t] == left && w->tokens[t + 1] == right;
        }
    }
    return count;
}

/* The pair that is most frequent, of several the smallest. */
static size_t plain_best(const struct plain_words *w, struct bpe_merge *best)
{
    size_t most = 0;
    for (size_t i = 0, begin = 0; i < w->n_words; begin = w->ends[i++]) {
        for (size_t t = begin; t + 1 < w->ends[i]; t++) {
            const struct bpe_merge pair = {w->tokens[t], w->tokens[t + 1]};
            const size_t count = plain_count(w, pair.left, pair.right);
            const bool smaller =
                pair.left < best->left || (pair.left == best->left && pair.right < best->right);
            if (count > most || (count == most && smaller)) {
                most = count;
                *best = pair;
            }
        }
    }
    return most;
}

static void test_learns_and_encodes(void **state)
{
    (void)state;
    for (uint64_t round = 0; round < 12; round++) {
        struct ats_rng rng = test_rng(round);
        struct text text = random_text(&rng, test_between(&rng, 20, 400));
        struct ats_error err;
        struct bpe bpe;
        assert_true(bpe_learn(&bpe, &text, BPE_FIRST_MERGE + 15, &err));
        struct plain_words words = plain_words_of(&text);
        for (size_t i = 0; i < bpe.n_tokens - BPE_FIRST_MERGE; i++) {
            struct bpe_merge best = {0};
            assert_true(plain_best(&words, &best) >= 2);
            assert_int_equal(bpe.merges[i].left, best.left);
            assert_int_equal(bpe.merges[i].right, best.right);
            plain_merge(&words, best, (int32_t)(BPE_FIRST_MERGE + i));
        }
        if (bpe.n_tokens < BPE_FIRST_MERGE + 15) {
            struct bpe_merge best = {0};
            assert_true(plain_best(&words, &best) < 2);
        }
        /* what learning left of the words is how they are encoded */
        struct tokens tokens;
        assert_true(tokens_of_text(&tokens, &bpe, &text, &err));
        size_t at = 0;
        for (size_t i = 0; i < tokens.n; i++) {
            if (tokens.ids[i] != BPE_END) {
                assert_int_equal(tokens.ids[i], words.tokens[at++]);
            }
        }
        assert_int_equal(at, words.n_tokens);
        tokens_free(&tokens);
        free(words.tokens);
        free(words.ends);
        bpe_free(&bpe);
        text_free(&text);
    }
}

static void test_any_bytes_round_trip(void **state)
{
    (void)state;
    struct ats_rng rng = test_rng(50);
    struct text text = random_text(&rng, 3000);
    struct ats_error err;
    struct bpe bpe;
    assert_true(bpe_learn(&bpe, &text, 330, &err));
    for (int round = 0; round < 50; round++) {
        char bytes[200];
        const size_t n = test_between(&rng, 1, sizeof bytes);
        for (size_t i = 0; i < n; i++) {
            const char known = text.bytes[ats_rng_below(&rng, text.n)];
            const char any = (char)ats_rng_below(&rng, 256);
            bytes[i] = (char)(test_chance(&rng, 50) ? any : known);
        }
        int32_t *tokens;
        size_t n_tokens;
        assert_true(bpe_encode(&bpe, bytes, n, &tokens, &n_tokens, &err));
        char back[200];
        size_t length = 0;
        for (size_t i = 0; i < n_tokens; i++) {
            length += bpe_bytes(&bpe, tokens[i], back + length, sizeof back - length);
            assert_true(length <= sizeof back);
        }
        assert_int_equal(length, n);
        assert_memory_equal(back, bytes, n);
        free(tokens);
    }
    bpe_free(&bpe);
    text_free(&text);
}

static void test_file(void **state)
{
    (void)state;
    struct ats_rng rng = test_rng(60);
    struct text text = random_text(&rng, 2000);
    struct ats_error err;
    struct bpe bpe;
    struct bpe again;
    char path[] = "/tmp/ats-bpe-XXXXXX";
    const int fd = mkstemp(path);
    assert_true(fd >= 0);
    close(fd);
    assert_true(bpe_learn(&bpe, &text, 300, &err));
    assert_true(bpe_save(&bpe, path, &err));
    assert_true(bpe_load(&again, path, &err));
    assert_int_equal(again.n_tokens, bpe.n_tokens);
    assert_memory_equal(again.merges, bpe.merges,
                        (bpe.n_tokens - BPE_FIRST_MERGE) * sizeof *bpe.merges);
    bpe_free(&again);
    unlink(path);
    assert_false(bpe_load(&again, path, &err));
    bpe_free(&bpe);
    text_free(&text);
}

static void test_bad_files(void **state)
{
    (void)state;
    const struct {
        const char *text;
        const char *message;
    } cases[] = {
        {"", "first line"},
        {"ats-bpe-1 100\n", "first line"},
        {"ats-bpe-1 999999\n", "first line"},
        {"ats-bpe-1 258\n", "line 2"},
        {"ats-bpe-1 258\n1\n", "line 2"},
        {"ats-bpe-1 258\n0 1\n", "line 2"},
        {"ats-bpe-1 258\n1 257\n", "line 2"},
        {"ats-bpe-1 259\n1 2\n1 258\n", "line 3"},
        {"ats-bpe-1 258\n1 2", "line 2"},
        {"ats-bpe-1 258\n1 2\n1 2\n", "more than"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct bpe bpe;
        struct ats_error err;
        assert_false(bpe_parse(&bpe, cases[i].text, "the file", &err));
        assert_non_null(strstr(err.text, cases[i].message));
        assert_null(bpe.merges);
    }
}

/* Changed files are read or refused, never more. */
static void test_fuzzed_files(void **state)
{
    (void)state;
    for (uint64_t round = 0; round < 2000; round++) {
        struct ats_rng rng = test_rng(1000 + round);
        char text[] = "ats-bpe-1 260\n1 2\n257 3\n98 258\n";
        const size_t n = sizeof text - 1;
        for (size_t i = test_between(&rng, 1, 4); i > 0; i--) {
            text[ats_rng_below(&rng, n)] = (char)ats_rng_below(&rng, 128);
        }
        struct bpe bpe;
        struct ats_error err;
        if (bpe_parse(&bpe, text, "fuzz", &err)) {
            for (size_t i = 0; i + BPE_FIRST_MERGE < bpe.n_tokens; i++) {
                assert_in_range(bpe.merges[i].left, 1, BPE_FIRST_MERGE + i - 1);
                assert_in_range(bpe.merges[i].right, 1, BPE_FIRST_MERGE + i - 1);
            }
            bpe_free(&bpe);
        }
    }
}

static void test_bad_sizes(void **state)
{
    (void)state;
    char bytes[] = "abc";
    const struct text text = {bytes, 3};
    struct bpe bpe;
    struct ats_error err;
    assert_false(bpe_learn(&bpe, &text, BPE_FIRST_MERGE, &err));
    assert_false(bpe_learn(&bpe, &text, BPE_MAX_TOKENS + 1, &err));
}

/* Every epoch has each token of its windows once, in windows that begin with an end. */
static void test_batches(void **state)
{
    (void)state;
    enum { CONTEXT = 16, WINDOWS = 3, N = 1000, ROW = CONTEXT + 1, IDS = WINDOWS * ROW };
    int32_t ids[N];
    for (int i = 0; i < N; i++) {
        ids[i] = i + 1;
    }
    const struct tokens tokens = {ids, N};
    struct batches batches;
    struct batches fresh;
    struct ats_error err;
    assert_true(batches_begin(&batches, &tokens, CONTEXT, 7, &err));
    const size_t per_epoch = batches.n_windows;
    assert_int_equal(per_epoch, 61);
    int32_t window[IDS];
    int32_t same[IDS];
    int seen[N + 1] = {0};
    for (size_t step = 0; step < per_epoch; step++) { /* three epochs */
        batches_of_step(&batches, step, WINDOWS, window);
        for (size_t i = 0; i < IDS; i++) {
            if (i % ROW == 0) {
                assert_int_equal(window[i], BPE_END);
            } else {
                seen[window[i]]++;
                assert_true(i % ROW == 1 || window[i] == window[i - 1] + 1);
            }
        }
        /* a step does not depend on those before */
        assert_true(batches_begin(&fresh, &tokens, CONTEXT, 7, &err));
        batches_of_step(&fresh, step, WINDOWS, same);
        assert_memory_equal(window, same, sizeof window);
        batches_end(&fresh);
    }
    size_t total = 0;
    for (int i = 0; i <= N; i++) {
        assert_in_range(seen[i], 0, 3);
        total += (size_t)seen[i];
    }
    assert_int_equal(total, 3 * per_epoch * CONTEXT);
    for (int i = 2 * CONTEXT; i < N - 2 * CONTEXT; i++) {
        assert_int_equal(seen[i], 3);
    }
    batches_end(&batches);
    const struct tokens too_few = {ids, (size_t)CONTEXT * 2};
    assert_false(batches_begin(&batches, &too_few, CONTEXT, 7, &err));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_words),
        cmocka_unit_test(test_learns_and_encodes),
        cmocka_unit_test(test_any_bytes_round_trip),
        cmocka_unit_test(test_file),
        cmocka_unit_test(test_bad_files),
        cmocka_unit_test(test_fuzzed_files),
        cmocka_unit_test(test_bad_sizes),
        cmocka_unit_test(test_batches),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
