/* Staging memory and promotion: places checked by an area whose bytes know their owner, the rule
 * by hand and by its definition. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "plan/hold.h"
#include "plan/promote.h"
#include "plan/staging.h"
#include "random_graph.h"

enum { MAX_STAGED = 64, MAX_AREA = 256 };

/* ---- staging ---- */

static void test_by_hand(void **state)
{
    (void)state;
    /* an area of 10: two of 4 fit, the third takes the first's place, the fourth (6 bytes,
     * needs all but 4) those of the second and third */
    struct ats_staged staged[] = {
        {.bytes = 4, .first_split = 1, .last_split = 1},
        {.bytes = 4, .first_split = 3, .last_split = 3},
        {.bytes = 4, .first_split = 5, .last_split = 5},
        {.bytes = 6, .first_split = 7, .last_split = 7},
    };
    assert_true(ats_staging_assign(staged, 4, 10, 2));
    assert_int_equal(staged[0].offset, 0);
    assert_int_equal(staged[0].after, ATS_STAGED_AT_ONCE);
    assert_int_equal(staged[1].offset, 4);
    assert_int_equal(staged[1].after, ATS_STAGED_AT_ONCE);
    assert_int_equal(staged[2].offset, 0);
    assert_int_equal(staged[2].after, 0);
    assert_int_equal(staged[3].offset, 4);
    assert_int_equal(staged[3].after, 1);
}

static size_t size_of(size_t whole, size_t piece, size_t budget, unsigned places)
{
    const struct ats_staging_need need = {.whole = whole, .piece = piece};
    return ats_staging_size(&need, budget, places);
}

static void test_size_by_hand(void **state)
{
    (void)state;
    const size_t mib = (size_t)1 << 20;
    assert_int_equal(size_of(100 * mib, 0, 6144 * mib, ATS_STAGING_PLACES), 304 * mib);
    assert_int_equal(size_of(681 * mib, 0, 6144 * mib, ATS_STAGING_PLACES), 2047 * mib);
    assert_int_equal(size_of(682 * mib, 0, 6144 * mib, ATS_STAGING_PLACES),
                     2048 * mib); /* a third */
    assert_int_equal(size_of(SIZE_MAX, 0, 6144 * mib, ATS_STAGING_PLACES), 2048 * mib);
    assert_int_equal(size_of(mib, 0, 64 * mib, ATS_STAGING_PLACES),
                     4 * mib); /* 1 MiB for the small ones */
    assert_int_equal(size_of(mib, 0, 3 * mib, ATS_STAGING_PLACES), mib);
    assert_int_equal(size_of(1, 0, 0, ATS_STAGING_PLACES), 0);
    assert_int_equal(size_of(100 * mib, 0, 6144 * mib, ATS_STAGING_FEW_PLACES), 204 * mib);
    assert_int_equal(size_of(50 * mib, 28 * mib, 6144 * mib, ATS_STAGING_PLACES), 172 * mib);
    assert_int_equal(size_of(60 * mib, 28 * mib, 6144 * mib, ATS_STAGING_PLACES), 184 * mib);
    assert_int_equal(size_of(0, 28 * mib, 6144 * mib, ATS_STAGING_PLACES), 172 * mib);
}

static void test_what_does_not_fit(void **state)
{
    (void)state;
    struct ats_staged too_large[] = {{.bytes = 11}};
    assert_false(ats_staging_assign(too_large, 1, 10, 1));
    struct ats_staged together[] = {{.bytes = 6, .first_split = 2, .last_split = 2},
                                    {.bytes = 5, .first_split = 2, .last_split = 2}};
    assert_false(ats_staging_assign(together, 2, 10, 1));
    assert_true(ats_staging_assign(together, 2, 11, 1));
    /* one that is read until the end keeps its place */
    struct ats_staged held[] = {{.bytes = 6, .first_split = 0, .last_split = 9},
                                {.bytes = 4, .first_split = 1, .last_split = 1},
                                {.bytes = 4, .first_split = 2, .last_split = 2},
                                {.bytes = 5, .first_split = 3, .last_split = 3}};
    assert_true(ats_staging_assign(held, 3, 10, 1));
    assert_int_equal(held[2].offset, 6);
    assert_int_equal(held[2].after, 1);
    assert_false(ats_staging_assign(held, 4, 10, 1));
    assert_true(ats_staging_assign(held, 0, 0, 1));
}

/* Executes copies as early as `after` allows and reads as splits come; every read must find its
 * own bytes. */
static void run_area(const struct ats_staged *staged, size_t n, uint32_t n_splits)
{
    int owner[MAX_AREA];
    memset(owner, -1, sizeof(owner));
    size_t next = 0;
    for (uint32_t split = 0; split <= n_splits; split++) {
        /* the first `split` splits are done */
        while (next < n &&
               (staged[next].after < 0 || staged[staged[next].after].last_split < split)) {
            for (size_t b = 0; b < staged[next].bytes; b++) {
                owner[staged[next].offset + b] = (int)next;
            }
            next++;
        }
        for (size_t i = 0; i < n; i++) {
            if (staged[i].first_split > split || staged[i].last_split < split) {
                continue;
            }
            assert_true(i < next); /* else the split would wait for ever */
            for (size_t b = 0; b < staged[i].bytes; b++) {
                if (owner[staged[i].offset + b] != (int)i) {
                    fail_msg("weight %zu has lost its bytes to %d before split %u", i,
                             owner[staged[i].offset + b], split);
                }
            }
        }
    }
    assert_int_equal(next, n);
}

static void test_random_areas(void **state)
{
    (void)state;
    size_t assigned = 0;
    for (uint64_t round = 0; round < 20000; round++) {
        struct ats_rng rng = test_rng(round);
        struct ats_staged staged[MAX_STAGED];
        const size_t n = test_between(&rng, 1, MAX_STAGED);
        const size_t capacity = test_between(&rng, 16, MAX_AREA);
        const size_t alignment = (size_t)1 << ats_rng_below(&rng, 4);
        uint32_t split = 0;
        for (size_t i = 0; i < n; i++) {
            split += (uint32_t)ats_rng_below(&rng, 3);
            staged[i] = (struct ats_staged){
                .bytes = test_between(&rng, 1, capacity / 3),
                .first_split = split,
                .last_split =
                    split + (test_chance(&rng, 10) ? (uint32_t)ats_rng_below(&rng, 5) : 0),
            };
        }
        if (!ats_staging_assign(staged, n, capacity, alignment)) {
            continue;
        }
        assigned++;
        for (size_t i = 0; i < n; i++) {
            assert_int_equal(staged[i].offset % alignment, 0);
            assert_true(staged[i].offset + staged[i].bytes <= capacity);
        }
        run_area(staged, n, split + 5);
    }
    assert_true(assigned > 2000); /* else little was tested */
}

/* ---- holding ---- */

static void assert_held(const struct ats_holdable *weights, size_t n, size_t capacity,
                        enum ats_hold_order order, const char *expected)
{
    bool held[MAX_STAGED];
    char text[MAX_STAGED + 1] = "";
    ats_hold(weights, n, capacity, order, held);
    for (size_t i = 0; i < n; i++) {
        text[i] = held[i] ? 'h' : '-';
    }
    if (strcmp(text, expected) != 0) {
        fail_msg("capacity %zu holds %s, expected %s", capacity, text, expected);
    }
}

static void test_hold_by_hand(void **state)
{
    (void)state;
    static const struct ats_holdable weights[] = {
        {.name = "blk.0.ffn_gate.weight", .bytes = 10},
        {.name = "blk.0.ffn_up.weight", .bytes = 10},
        {.name = "blk.0.ffn_down.weight", .bytes = 15},
        {.name = "blk.1.ffn_gate.weight", .bytes = 10},
        {.name = "blk.1.ffn_up.weight", .bytes = 10},
        {.name = "blk.1.ffn_down.weight", .bytes = 15},
        {.name = "blk.2.ffn_up_exps.weight", .bytes = 8},
    };
    const enum ats_hold_order layers = ATS_HOLD_LAYERS;
    assert_held(weights, 7, 0, layers, "-------");
    assert_held(weights, 7, 8, layers, "------h");
    assert_held(weights, 7, 22, layers, "------h"); /* gate alone is no half */
    assert_held(weights, 7, 23, layers, "-----hh"); /* down is */
    assert_held(weights, 7, 28, layers, "---hh-h"); /* gate and up before down */
    assert_held(weights, 7, 43, layers, "---hhhh");
    assert_held(weights, 7, 58, layers, "--hhhhh");
    assert_held(weights, 7, 63, layers, "hh-hhhh");
    assert_held(weights, 7, SIZE_MAX, layers, "hhhhhhh");
    assert_held(weights, 0, 10, layers, "");
    assert_held(weights, 7, 22, ATS_HOLD_LAYERS_AND_MORE, "----h-h");
    assert_held(weights, 7, 38, ATS_HOLD_LAYERS_AND_MORE, "-h-hh-h");
    assert_held(weights, 7, 22, ATS_HOLD_LARGEST, "-----h-"); /* then nothing fits */
    assert_held(weights, 7, 38, ATS_HOLD_LARGEST, "--h--hh");
    assert_held(weights, 7, 45, ATS_HOLD_LARGEST, "--h-hh-");
    assert_held(weights, 7, SIZE_MAX, ATS_HOLD_LARGEST, "hhhhhhh");
    assert_held(weights, 0, 10, ATS_HOLD_LARGEST, "");
}

/* ---- promotion ---- */

static void test_rule_by_hand(void **state)
{
    (void)state;
    /* weight 0 is read by operators 0 and 1, weight 1 by operator 2 */
    const uint32_t reads[] = {0, 0, 1};
    const struct ats_op ops[] = {
        {.first_read = 0, .n_reads = 1, .cost_us = {[ATS_HOST] = 60, [ATS_ACCEL] = 5}},
        {.first_read = 1, .n_reads = 1, .cost_us = {[ATS_HOST] = 60, [ATS_ACCEL] = 5}},
        {.first_read = 2, .n_reads = 1, .cost_us = {[ATS_HOST] = 60, [ATS_ACCEL] = 5}},
    };
    const struct ats_root roots[] = {{.bytes = 1000}, {.bytes = 1000}};
    const struct ats_graph_desc graph = {
        .ops = ops, .n_ops = 3, .reads = reads, .roots = roots, .n_roots = 2};
    const bool both[] = {true, true};
    bool promoted[2];
    /* copies of 100 us: shorter than 120 us on the CPU, longer than 60 us */
    struct ats_promotion rule = {
        .kind = ATS_PROMOTE_FASTER, .link_bytes_per_us = 10, .most_bytes = 1000};
    ats_promote(&graph, &rule, both, promoted);
    assert_true(promoted[0]);
    assert_false(promoted[1]);
    rule.link_bytes_per_us = 20;
    ats_promote(&graph, &rule, both, promoted);
    assert_true(promoted[1]);
    /* the CPU takes 180 us for both, the link 100 us, or 40 with 50 bytes/us; 60 and 20 for one */
    const bool second[] = {false, true};
    rule.has_cpu_load = true;
    ats_promote(&graph, &rule, both, promoted);
    assert_false(promoted[0] || promoted[1]);
    rule.link_bytes_per_us = 50;
    ats_promote(&graph, &rule, both, promoted);
    assert_true(promoted[0] && promoted[1]);
    ats_promote(&graph, &rule, second, promoted);
    assert_false(promoted[0] || promoted[1]);
    rule.has_cpu_load = false;
    ats_promote(&graph, &rule, second, promoted);
    assert_true(promoted[1]);
    rule.link_bytes_per_us = 20;
    rule.serial = true; /* 50 us and 10 on the accelerator, 50 and 5 */
    ats_promote(&graph, &rule, both, promoted);
    assert_true(promoted[0] && promoted[1]);
    rule.link_bytes_per_us = 1000.0F / 56;
    ats_promote(&graph, &rule, both, promoted);
    assert_true(promoted[0]);
    assert_false(promoted[1]);
    rule.serial = false;
    rule.link_bytes_per_us = 20;
    rule.copy_latency_us = 11; /* 61 us in all */
    ats_promote(&graph, &rule, both, promoted);
    assert_true(promoted[0]);
    assert_false(promoted[1]);
    rule.most_bytes = 999;
    ats_promote(&graph, &rule, both, promoted);
    assert_false(promoted[0] || promoted[1]);
    rule = (struct ats_promotion){.kind = ATS_PROMOTE_ALL, .most_bytes = SIZE_MAX};
    const bool one[] = {false, true};
    ats_promote(&graph, &rule, one, promoted);
    assert_false(promoted[0]);
    assert_true(promoted[1]);
    rule.kind = ATS_PROMOTE_NONE;
    ats_promote(&graph, &rule, both, promoted);
    assert_false(promoted[0] || promoted[1]);
}

/* A slow accelerator is no gain, however fast the copy. */
static void test_slow_accelerator(void **state)
{
    (void)state;
    const uint32_t reads[] = {0};
    const struct ats_op op = {.n_reads = 1, .cost_us = {[ATS_HOST] = 60, [ATS_ACCEL] = 60}};
    const struct ats_root root = {.bytes = 1};
    const struct ats_graph_desc graph = {
        .ops = &op, .n_ops = 1, .reads = reads, .roots = &root, .n_roots = 1};
    const struct ats_promotion rule = {
        .kind = ATS_PROMOTE_FASTER, .link_bytes_per_us = 10, .most_bytes = SIZE_MAX};
    bool promoted = true;
    ats_promote(&graph, &rule, &promoted, &promoted);
    assert_false(promoted);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_by_hand),          cmocka_unit_test(test_what_does_not_fit),
        cmocka_unit_test(test_size_by_hand),     cmocka_unit_test(test_random_areas),
        cmocka_unit_test(test_rule_by_hand),     cmocka_unit_test(test_hold_by_hand),
        cmocka_unit_test(test_slow_accelerator),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
