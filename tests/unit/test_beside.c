/* What crosses the link beside the CPU: by hand, and as a property of random graphs. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "plan/beside.h"
#include "plan/hold.h"
#include "random_graph.h"
#include "seed.h"

#include <string.h>

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

static void assert_chosen(const struct ats_partition_costs *costs, size_t staging_bytes,
                          const char *expected, float expected_us)
{
    bool chosen[ROOTS];
    float us = -1;
    char text[ROOTS + 1] = "";
    assert_true(ats_choose_beside(&graph, costs, staging_bytes, candidates, chosen, &us));
    for (size_t r = 0; r < ROOTS; r++) {
        text[r] = chosen[r] ? 'x' : '-';
    }
    assert_string_equal(text, expected);
    assert_float_equal(us, expected_us, 1e-2);
}

/* Attention takes 100 us on the accelerator twice; the CPU four times 100, of which two are one. */
static void test_by_hand(void **state)
{
    (void)state;
    struct ats_partition_costs costs = {
        .least_link_bytes_per_us = 10, .link_beside_cpu_bytes_per_us = 4, .most_of_held = 1};
    /* before gate and up 1000 bytes have crossed, they are 6000: to wait for 500 us saves 180;
     * before down 1000 + 200 * 4 = 1800, and 120 us to wait save 90; before the next down 1800 +
     * 400 + 1000 are enough for 3000 */
    assert_chosen(&costs, 12000, "-----x", 200 + 300 + 10);
    /* the start of a copy counts once for 2 MiB: next to nothing */
    costs.copy_latency_us = 100;
    assert_chosen(&costs, 12000, "-----x", 200 + 300 + 10);
    costs.copy_latency_us = 0;
    /* from attention to the CPU, and back: the last down is on the accelerator's side */
    costs.split_us = 7;
    assert_chosen(&costs, 12000, "-----x", 200 + 300 + 10 + 2 * 7);
    costs.split_us = 0;
    /* a faster link beside the CPU: down would wait for 3000 - 1000 - 200 * 9 bytes, 20 us, and
     * then the last one for 190; the last one alone does not wait */
    costs.link_beside_cpu_bytes_per_us = 9;
    assert_chosen(&costs, 12000, "-----x", 200 + 300 + 10);
    /* both cross: 2000 + 200 * 9 are enough, then 800 + 10 * 20 + 100 * 20 */
    costs.least_link_bytes_per_us = 20;
    assert_chosen(&costs, 12000, "---x-x", 200 + 200 + 2 * 10);
    /* gate and up are 6000 at once, half of the staging memory, and 100 * 60 cross before them */
    costs.least_link_bytes_per_us = 60;
    assert_chosen(&costs, 12000, "-xxx-x", 200 + 20 + 30 + 20);
    assert_chosen(&costs, 11998, "---x-x", 200 + 200 + 2 * 10);
    /* less than what two of them take: none can be read while another crosses */
    assert_chosen(&costs, 5998, "------", 200 + 400);
    assert_chosen(&costs, 0, "------", 200 + 400);
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
    const struct ats_partition_costs costs = {
        .least_link_bytes_per_us = 10, .link_beside_cpu_bytes_per_us = 4, .most_of_held = 1};
    static const bool both[ROOTS] = {[3] = true, [5] = true};
    bool chosen[ROOTS];
    float us = 0;
    assert_true(ats_choose_beside(&experts, &costs, 8000, both, chosen, &us));
    assert_true(chosen[3] && !chosen[5]);
}

static void test_with_some_resident(void **state)
{
    (void)state;
    const struct ats_partition_costs costs = {.split_us = 7,
                                              .least_link_bytes_per_us = 10,
                                              .link_beside_cpu_bytes_per_us = 4,
                                              .most_of_held = 1};
    bool some[ROOTS] = {[3] = true};
    float us = 0;
    /* attention, gate and up on the CPU, down, attention, down on the CPU: three changes */
    assert_true(ats_resident_us(&graph, &costs, candidates, some, &us));
    assert_float_equal(us, 200 + 200 + 10 + 100 + 3 * 7, 1e-2);
    some[1] = true; /* gate with attention, up on the CPU */
    assert_true(ats_resident_us(&graph, &costs, candidates, some, &us));
    assert_float_equal(us, 200 + 10 + 100 + 10 + 100 + 3 * 7, 1e-2);
    some[2] = true;
    assert_true(ats_resident_us(&graph, &costs, candidates, some, &us));
    assert_float_equal(us, 200 + 20 + 10 + 100 + 7, 1e-2);
}

/* What is faster is taken: one weight that is held, or one that crosses in every pass. */
static void test_hold_or_cross(void **state)
{
    (void)state;
    struct ats_partition_costs costs = {
        .least_link_bytes_per_us = 10, .link_beside_cpu_bytes_per_us = 4, .most_of_held = 1};
    struct ats_root own[ROOTS];
    bool preferred = false;
    bool chosen[ROOTS] = {[3] = true, [5] = true};
    memcpy(own, roots, sizeof(own));
    own[3].held = true;
    own[5].held = true;
    assert_true(ats_prefer_beside(&graph, &costs, 12000, candidates, chosen, own, &preferred));
    assert_false(preferred); /* two held beat one that crosses */
    assert_true(chosen[3] && chosen[5] && own[3].held && !own[3].promoted);
    chosen[5] = false;
    own[5].held = false;
    costs.least_link_bytes_per_us = 20;
    costs.link_beside_cpu_bytes_per_us = 9;
    assert_true(ats_prefer_beside(&graph, &costs, 12000, candidates, chosen, own, &preferred));
    assert_true(preferred && chosen[3] && chosen[5] && !chosen[1]);
    assert_true(own[3].promoted && own[5].promoted && !own[3].held);
}

/* What is held is the best of three orders. */
static void test_best_to_hold(void **state)
{
    (void)state;
    struct ats_partition_costs costs = {
        .least_link_bytes_per_us = 10, .link_beside_cpu_bytes_per_us = 4, .most_of_held = 1};
    static const struct ats_holdable weights[] = {
        {.name = "blk.0.ffn_gate.weight", .bytes = 3000, .root = 1},
        {.name = "blk.0.ffn_up.weight", .bytes = 3000, .root = 2},
        {.name = "blk.0.ffn_down.weight", .bytes = 4000, .root = 3},
        {.name = "blk.1.ffn_down.weight", .bytes = 2500, .root = 5},
    };
    bool chosen[ROOTS];
    assert_true(ats_hold_best(&graph, &costs, weights, 4, 9000, candidates, chosen));
    assert_true(chosen[5] && chosen[1] && chosen[2] && !chosen[3]); /* by layers */
    /* the last layer, and then no half of the other; but up alone saves 90 us more, */
    assert_true(ats_hold_best(&graph, &costs, weights, 4, 6000, candidates, chosen));
    assert_true(chosen[5] && chosen[2] && !chosen[1] && !chosen[3]);
    costs.split_us = 46; /* unless it takes two changes of side more */
    assert_true(ats_hold_best(&graph, &costs, weights, 4, 6000, candidates, chosen));
    assert_true(chosen[5] && !chosen[1] && !chosen[2] && !chosen[3]);
    assert_true(ats_hold_best(&graph, &costs, weights, 4, 0, candidates, chosen));
    assert_true(!chosen[5] && !chosen[3] && !chosen[2] && !chosen[1]);
}

/* With a split that costs nothing, a choice is never slower than none, and what is chosen may be.
 */
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
        const bool none[GRAPH_MAX_ROOTS] = {false};
        for (size_t r = 0; r < g.desc.n_roots; r++) {
            can[r] = g.roots[r].home == ATS_ON(ATS_HOST) && test_chance(&rng, 70);
        }
        for (size_t i = 0; i < g.desc.n_ops; i++) { /* what both sides can use */
            for (uint32_t r = 0; r < g.ops[i].n_reads; r++) {
                const uint32_t root = g.reads[g.ops[i].first_read + r];
                can[root] = can[root] && g.ops[i].supported == ATS_ON_BOTH;
            }
        }
        const struct ats_partition_costs costs = {
            .split_us = (float)test_between(&rng, 0, 3),
            .least_link_bytes_per_us = (float)test_between(&rng, 1000, 9000),
            .link_beside_cpu_bytes_per_us = (float)test_between(&rng, 100, 3000)};
        const size_t staging_bytes = 1024 * test_between(&rng, 1, 512);
        float us = 0;
        float without_us = 0;
        float resident_us = 0;
        assert_true(ats_choose_beside(&g.desc, &costs, staging_bytes, can, chosen, &us));
        assert_true(ats_resident_us(&g.desc, &costs, can, none, &without_us));
        assert_true(ats_resident_us(&g.desc, &costs, can, chosen, &resident_us));
        assert_true(us <= without_us * (1 + 1e-5F));
        assert_true(resident_us <= us * (1 + 1e-5F)); /* what need not cross is not waited for */
        for (size_t r = 0; r < g.desc.n_roots; r++) {
            assert_true(!chosen[r] || (can[r] && g.roots[r].bytes <= staging_bytes / 2));
            n_chosen += chosen[r];
        }
    }
    assert_true(n_chosen > ROUNDS / 50);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_by_hand),
        cmocka_unit_test(test_experts_stay),
        cmocka_unit_test(test_with_some_resident),
        cmocka_unit_test(test_hold_or_cross),
        cmocka_unit_test(test_best_to_hold),
        cmocka_unit_test(test_random),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
