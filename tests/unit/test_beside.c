/* What crosses the link beside the CPU: by hand, and as a property of random graphs. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "plan/beside.h"
#include "random_graph.h"
#include "seed.h"

#include <math.h>

enum { ROOTS = 6, OPS = 7 };

/* attention on the accelerator; gate, up, their activation, down; attention; down of the next
 * layer */
static const uint32_t reads[] = {0, 1, 2, 3, 4, 5};
static const struct ats_root roots[ROOTS] = {
    {.bytes = 500, .home = ATS_ON(ATS_ACCEL)}, {.bytes = 3000, .home = ATS_ON(ATS_HOST)},
    {.bytes = 3000, .home = ATS_ON(ATS_HOST)}, {.bytes = 3000, .home = ATS_ON(ATS_HOST)},
    {.bytes = 500, .home = ATS_ON(ATS_ACCEL)}, {.bytes = 3000, .home = ATS_ON(ATS_HOST)},
};
static const bool candidates[ROOTS] = {false, true, true, true, false, true};

#define OP(root_, host_us_, accel_us_)                                                             \
    {                                                                                              \
        .first_read = (root_), .n_reads = 1, .write = ATS_NO_ROOT, .supported = ATS_ON_BOTH,       \
        .cost_us = {                                                                               \
            [ATS_HOST] = (host_us_),                                                               \
            [ATS_ACCEL] = (accel_us_)                                                              \
        }                                                                                          \
    }

#define ACTIVATION                                                                                 \
    {                                                                                              \
        .write = ATS_NO_ROOT, .supported = ATS_ON_BOTH                                             \
    }

static const struct ats_op ops[OPS] = {
    OP(0, 900, 100), OP(1, 100, 10),  OP(2, 100, 10), ACTIVATION,
    OP(3, 100, 10),  OP(4, 900, 100), OP(5, 100, 10),
};

static const struct ats_graph_desc graph = {
    .ops = ops, .n_ops = OPS, .reads = reads, .roots = roots, .n_roots = ROOTS};

static void assert_chosen(const struct ats_beside *rule, const char *expected, float saved_us)
{
    bool chosen[ROOTS];
    float saved = -1;
    char text[ROOTS + 1] = "";
    assert_true(ats_choose_beside(&graph, rule, candidates, chosen, &saved));
    for (size_t r = 0; r < ROOTS; r++) {
        text[r] = chosen[r] ? 'x' : '-';
    }
    assert_string_equal(text, expected);
    assert_float_equal(saved, saved_us, 1e-3);
}

static void test_by_hand(void **state)
{
    (void)state;
    struct ats_beside rule = {
        .link_bytes_per_us = 10, .link_beside_cpu_bytes_per_us = 4, .staging_bytes = 8000};
    /* credit before gate and up: 1000, they are 6000; before down 1000 + 200 * 4 = 1800; before the
     * next down 1800 + 400 + 1000 = 3200 */
    assert_chosen(&rule, "-----x", 90);
    /* one copy, so the latency counts once for 2 MiB: nothing to speak of */
    rule.copy_latency_us = 100;
    assert_chosen(&rule, "-----x", 90);
    rule.copy_latency_us = 0;
    /* the last down begins on the accelerator's side and ends there: a switch less on it */
    rule.split_us = 7;
    assert_chosen(&rule, "-----x", 97);
    rule.split_us = 0;
    /* a faster link beside the CPU: down at 1000 + 200 * 10 = 3000, then 100 + 1000 are no 3000 */
    rule.link_beside_cpu_bytes_per_us = 10;
    assert_chosen(&rule, "---x--", 90);
    /* both: 3000 of 1000 + 200 * 15, then 1000 + 10 * 20 + 100 * 20 */
    rule.link_beside_cpu_bytes_per_us = 15;
    rule.link_bytes_per_us = 10;
    assert_chosen(&rule, "---x--", 90);
    rule.link_bytes_per_us = 20;
    assert_chosen(&rule, "---x-x", 180);
    /* gate and up want 6000 at once: half of the staging memory, and 100 * 60 before them */
    rule.link_bytes_per_us = 60;
    rule.staging_bytes = 12000;
    assert_chosen(&rule, "-xx--x", 270);
    rule.staging_bytes = 11998;
    assert_chosen(&rule, "---x-x", 180);
    /* credit is no more than the staging memory, however long the accelerator computes */
    rule.staging_bytes = 5998;
    assert_chosen(&rule, "------", 0);
    rule.staging_bytes = 0;
    assert_chosen(&rule, "------", 0);
}

static void test_experts_stay(void **state)
{
    (void)state;
    /* the CPU reads so little of the weight that its way is more than four times as long */
    static const struct ats_op few[OPS] = {
        OP(0, 900, 1000), OP(1, 100, 10),   OP(2, 100, 10), ACTIVATION,
        OP(3, 100, 10),   OP(4, 900, 1000), OP(5, 74, 10),
    };
    const struct ats_graph_desc experts = {
        .ops = few, .n_ops = OPS, .reads = reads, .roots = roots, .n_roots = ROOTS};
    static const bool only_last[ROOTS] = {[5] = true};
    const struct ats_beside rule = {
        .link_bytes_per_us = 10, .link_beside_cpu_bytes_per_us = 4, .staging_bytes = 8000};
    bool chosen[ROOTS];
    float saved = 0;
    assert_true(ats_choose_beside(&experts, &rule, only_last, chosen, &saved));
    assert_false(chosen[5]);
    static const bool both[ROOTS] = {[3] = true, [5] = true};
    assert_true(ats_choose_beside(&experts, &rule, both, chosen, &saved));
    assert_true(chosen[3] && !chosen[5]);
}

static void test_what_residents_save(void **state)
{
    (void)state;
    const bool some[ROOTS] = {[0] = true, [3] = true};
    assert_float_equal(ats_resident_saves_us(&graph, some), 800 + 90, 1e-3);
}

/* Whatever is chosen could have crossed the link in time: bytes up to any operator are no more than
 * what the link moves by then, with each operator on the side where the choice puts it. */
static void test_random(void **state)
{
    (void)state;
    struct ats_rng rng = test_rng(1);
    enum { ROUNDS = 2000 };
    size_t n_chosen = 0;
    for (int round = 0; round < ROUNDS; round++) {
        struct random_graph g;
        random_graph_make(&g, test_between(&rng, 1, GRAPH_MAX_OPS), true, &rng);
        bool can[GRAPH_MAX_ROOTS];
        bool chosen[GRAPH_MAX_ROOTS];
        for (size_t r = 0; r < g.desc.n_roots; r++) {
            can[r] = g.roots[r].home == ATS_ON(ATS_HOST) && test_chance(&rng, 70);
        }
        const struct ats_beside rule = {.split_us = (float)test_between(&rng, 0, 3),
                                        .link_bytes_per_us = (float)test_between(&rng, 1000, 9000),
                                        .link_beside_cpu_bytes_per_us =
                                            (float)test_between(&rng, 100, 3000),
                                        .staging_bytes = 1024 * test_between(&rng, 1, 512)};
        float saved = 0;
        assert_true(ats_choose_beside(&g.desc, &rule, can, chosen, &saved));
        assert_true(saved >= 0);
        double moved = 0;
        double could = 0;
        bool seen[GRAPH_MAX_ROOTS] = {false};
        for (size_t i = 0; i < g.desc.n_ops; i++) {
            const struct ats_op *op = &g.ops[i];
            double slowest = 0;
            for (uint32_t r = 0; r < op->n_reads; r++) {
                const uint32_t root = g.reads[op->first_read + r];
                if (chosen[root] && !seen[root]) {
                    assert_true(can[root]);
                    assert_true(g.roots[root].bytes <= rule.staging_bytes / 2);
                    moved += (double)g.roots[root].bytes;
                    n_chosen++;
                }
                seen[root] = true;
            }
            assert_true(moved <= could * (1 + 1e-5));
            slowest = fmax(op->cost_us[ATS_HOST], op->cost_us[ATS_ACCEL]);
            could += slowest * fmax(rule.link_bytes_per_us, rule.link_beside_cpu_bytes_per_us);
        }
    }
    assert_true(n_chosen > ROUNDS / 50);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_by_hand),
        cmocka_unit_test(test_experts_stay),
        cmocka_unit_test(test_what_residents_save),
        cmocka_unit_test(test_random),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
