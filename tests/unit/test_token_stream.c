/* The benchmark's token stream, and the figures about routing, on cases worked out by hand. */
#include "routing_figures.h"
#include "token_stream.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static void test_bad_parameters(void **state)
{
    (void)state;
    int32_t token = -7;
    const struct token_stream bad[] = {
        {1, 100, 0, 32}, {1, 100, 101, 32}, {1, 100, 10, 0}, {1, 0, 0, 1}, {1, UINT32_MAX, 10, 5}};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        assert_false(token_stream_fill(&bad[i], &token, 1));
    }
    assert_int_equal(token, -7);
}

static void test_range_and_prefix(void **state)
{
    (void)state;
    enum { N = 5000 };
    static int32_t long_one[N];
    static int32_t short_one[N / 2];
    static int32_t other[N];
    /* a vocabulary that is no multiple of the topics, and the least one */
    const struct token_stream streams[] = {{5, 1003, 64, 32}, {5, 64, 64, 2}};
    for (size_t s = 0; s < 2; s++) {
        assert_true(token_stream_fill(&streams[s], long_one, N));
        assert_true(token_stream_fill(&streams[s], short_one, N / 2));
        assert_memory_equal(long_one, short_one, sizeof short_one);
        bool seen[1003] = {false};
        size_t n_seen = 0;
        for (size_t i = 0; i < N; i++) {
            assert_in_range(long_one[i], 0, streams[s].n_vocab - 1);
            n_seen += !seen[long_one[i]];
            seen[long_one[i]] = true;
        }
        assert_true(n_seen > streams[s].n_vocab * 3 / 4);
        struct token_stream reseeded = streams[s];
        reseeded.seed = 6;
        assert_true(token_stream_fill(&reseeded, other, N));
        assert_memory_not_equal(long_one, other, sizeof other);
    }
}

/* A topic ends with probability 1 / stay, and the next is another with 63 / 64. 100000 tokens with
 * a stay of 32 change about 3076 times, give or take 55. */
static void test_length_of_stays(void **state)
{
    (void)state;
    enum { N = 100000 };
    int32_t *tokens = malloc(N * sizeof *tokens);
    const struct token_stream stream = {9, 151936, 64, 32};
    assert_true(token_stream_fill(&stream, tokens, N));
    size_t changes = 0;
    size_t by_topic[64] = {0};
    for (size_t i = 0; i < N; i++) {
        changes += i > 0 && tokens[i] % 64 != tokens[i - 1] % 64;
        by_topic[tokens[i] % 64]++;
    }
    assert_in_range(changes, 3076 - 4 * 55, 3076 + 4 * 55);
    for (size_t t = 0; t < 64; t++) {
        assert_in_range(by_topic[t], 1, N / 16);
    }
    free(tokens);
}

/* Two experts of 20 in turn: 0 1, 2 3, 0 1, 2 3, ... Everything is used again after 2 tokens. */
static void test_alternating_experts(void **state)
{
    (void)state;
    enum { N = 256 };
    int32_t ids[N * 2];
    for (int t = 0; t < N; t++) {
        ids[2 * t] = t % 2 * 2;
        ids[2 * t + 1] = t % 2 * 2 + 1;
    }
    struct routing_figures f;
    assert_true(routing_measure(&f, ids, N, 2, 20));
    assert_true(f.repeat_next == 0.0);
    assert_true(f.repeat_within_8 == 1.0);
    assert_true(f.median_reuse_tokens == 2.0);
    assert_true(f.top_tenth == 0.5);      /* 2 of 4 experts that are used */
    assert_true(f.lru_eighth == 0.0);     /* room for 2 */
    assert_true(f.lru_quarter == 1.0);    /* for 5 */
    assert_true(f.lru_40_percent == 1.0); /* for 8 */
}

/* Expert 0 always, and one that walks round the other 9: used again after 9 tokens. */
static void test_one_expert_stays(void **state)
{
    (void)state;
    enum { N = 256 };
    int32_t ids[N * 2];
    for (int t = 0; t < N; t++) {
        ids[2 * t] = 0;
        ids[2 * t + 1] = 1 + t % 9;
    }
    struct routing_figures f;
    assert_true(routing_measure(&f, ids, N, 2, 10));
    assert_true(f.repeat_next == 0.5);
    assert_true(f.repeat_within_8 == 0.5);
    assert_true(f.median_reuse_tokens == 1.0);
    assert_true(f.top_tenth == 0.5);
    assert_true(f.lru_eighth == 0.0);     /* room for 1: the other one comes between */
    assert_true(f.lru_40_percent == 0.5); /* room for 4: expert 0 */
}

static void test_figures_refuse(void **state)
{
    (void)state;
    static int32_t ids[128];
    struct routing_figures f;
    assert_true(routing_measure(&f, ids, 128, 1, 4));
    assert_false(routing_measure(&f, ids, 127, 1, 4));
    ids[100] = 4;
    assert_false(routing_measure(&f, ids, 128, 1, 4));
    ids[100] = -1;
    assert_false(routing_measure(&f, ids, 128, 1, 4));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_bad_parameters),   cmocka_unit_test(test_range_and_prefix),
        cmocka_unit_test(test_length_of_stays),  cmocka_unit_test(test_alternating_experts),
        cmocka_unit_test(test_one_expert_stays), cmocka_unit_test(test_figures_refuse),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
