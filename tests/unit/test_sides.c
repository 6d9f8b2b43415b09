/* Which side a rule gives operators whose side is free, and that it forces none. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "plan/rates.h"
#include "plan/sides.h"
#include "random_graph.h"

#include <string.h>

enum { N = 8 };

static const struct ats_rule host = {.kind = ATS_RULE_HOST};
static const struct ats_rule vram = {.kind = ATS_RULE_VRAM};
static const struct ats_rule fill = {.kind = ATS_RULE_FILL};
static const struct ats_rule table = {.kind = ATS_RULE_TABLE};

/* A chain: operator i reads root i and writes root i + 1, in a tenth of the time on `fast`. */
struct chain {
    struct ats_op ops[N];
    uint32_t reads[N];
    struct ats_root roots[N + 1];
    struct ats_graph_desc graph;
};

static void make_chain(struct chain *c, enum ats_side fast)
{
    memset(c, 0, sizeof(*c));
    for (uint32_t i = 0; i < N; i++) {
        c->reads[i] = i;
        c->ops[i] = (struct ats_op){
            .first_read = i, .n_reads = 1, .write = (int32_t)i + 1, .supported = ATS_ON_BOTH};
        c->ops[i].cost_us[fast] = 100.0F;
        c->ops[i].cost_us[ats_other_side(fast)] = 1000.0F;
    }
    for (uint32_t i = 0; i <= N; i++) {
        c->roots[i].bytes = 4096;
    }
    c->graph = (struct ats_graph_desc){
        .ops = c->ops, .n_ops = N, .reads = c->reads, .roots = c->roots, .n_roots = N + 1};
}

/* One letter per operator: h or a. */
static void assert_sides(const struct chain *c, const struct ats_rule *rule, const char *expected)
{
    enum ats_side sides[N];
    char text[N + 1] = "";
    assert_true(ats_choose_sides(&c->graph, rule, &ats_plan_rates_assumed.costs, 3, sides));
    for (size_t i = 0; i < N; i++) {
        text[i] = "ha"[sides[i]];
    }
    assert_string_equal(text, expected);
}

static void test_host_and_vram_decide_against_the_costs(void **state)
{
    (void)state;
    struct chain c;
    make_chain(&c, ATS_ACCEL);
    assert_sides(&c, &fill, "aaaaaaaa");
    assert_sides(&c, &table, "aaaaaaaa");
    assert_sides(&c, &host, "hhhhhhhh");
    assert_sides(&c, &vram, "aaaaaaaa");
    make_chain(&c, ATS_HOST);
    assert_sides(&c, &fill, "hhhhhhhh");
    assert_sides(&c, &table, "hhhhhhhh");
    assert_sides(&c, &host, "hhhhhhhh");
    assert_sides(&c, &vram, "aaaaaaaa");
}

static void test_an_operator_with_one_side_keeps_it(void **state)
{
    (void)state;
    struct chain c;
    make_chain(&c, ATS_HOST);
    c.ops[3].supported = ATS_ON(ATS_HOST);
    assert_sides(&c, &vram, "aaahaaaa");
    make_chain(&c, ATS_ACCEL);
    c.ops[0].supported = ATS_ON(ATS_ACCEL);
    c.ops[5].supported = ATS_ON(ATS_ACCEL);
    assert_sides(&c, &host, "ahhhhahh");
}

static void test_data_with_a_home_decides_before_the_rule(void **state)
{
    (void)state;
    struct chain c;
    make_chain(&c, ATS_HOST);
    c.roots[2].home = ATS_ON(ATS_HOST); /* written by operator 1, read by operator 2 */
    assert_sides(&c, &vram, "ahhaaaaa");
    make_chain(&c, ATS_ACCEL);
    c.roots[0].home = ATS_ON(ATS_ACCEL); /* a weight of operator 0 */
    assert_sides(&c, &host, "ahhhhhhh");
}

static void test_fill_is_the_partition(void **state)
{
    (void)state;
    for (uint64_t round = 0; round < 200; round++) {
        struct ats_rng rng = test_rng(round);
        struct random_graph g;
        random_graph_make(&g, GRAPH_MAX_OPS, true, &rng);
        enum ats_side chosen[GRAPH_MAX_OPS];
        enum ats_side cheapest[GRAPH_MAX_OPS];
        assert_true(ats_choose_sides(&g.desc, round % 2 == 0 ? &fill : &table,
                                     &ats_plan_rates_assumed.costs, round, chosen));
        assert_true(ats_partition(&g.desc, &ats_plan_rates_assumed.costs, cheapest));
        assert_memory_equal(chosen, cheapest, sizeof(chosen));
    }
}

static void test_random_is_legal_repeatable_and_new_each_round(void **state)
{
    (void)state;
    size_t on_accel = 0;
    size_t differing = 0;
    for (uint64_t round = 0; round < 200; round++) {
        struct ats_rng rng = test_rng(round);
        struct random_graph g;
        random_graph_make(&g, GRAPH_MAX_OPS, true, &rng);
        const struct ats_rule random = {.kind = ATS_RULE_RANDOM, .seed = ats_rng_next(&rng)};
        enum ats_side sides[GRAPH_MAX_OPS];
        enum ats_side again[GRAPH_MAX_OPS];
        enum ats_side next[GRAPH_MAX_OPS];
        assert_true(
            ats_choose_sides(&g.desc, &random, &ats_plan_rates_assumed.costs, round, sides));
        assert_true(
            ats_choose_sides(&g.desc, &random, &ats_plan_rates_assumed.costs, round, again));
        assert_true(
            ats_choose_sides(&g.desc, &random, &ats_plan_rates_assumed.costs, round + 1, next));
        assert_memory_equal(sides, again, sizeof(sides));
        differing += memcmp(sides, next, sizeof(sides)) != 0;
        for (size_t i = 0; i < GRAPH_MAX_OPS; i++) {
            assert_true((g.ops[i].supported & ATS_ON(sides[i])) != 0);
            on_accel += sides[i] == ATS_ACCEL;
        }
    }
    assert_true(differing > 180);
    assert_in_range(on_accel, 200 * GRAPH_MAX_OPS / 4, 200 * GRAPH_MAX_OPS * 3 / 4);
}

static void test_empty_graph(void **state)
{
    (void)state;
    const struct ats_graph_desc graph = {0};
    const struct ats_rule random = {.kind = ATS_RULE_RANDOM};
    assert_true(ats_choose_sides(&graph, &host, &ats_plan_rates_assumed.costs, 0, NULL));
    assert_true(ats_choose_sides(&graph, &fill, &ats_plan_rates_assumed.costs, 0, NULL));
    assert_true(ats_choose_sides(&graph, &random, &ats_plan_rates_assumed.costs, 0, NULL));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_host_and_vram_decide_against_the_costs),
        cmocka_unit_test(test_an_operator_with_one_side_keeps_it),
        cmocka_unit_test(test_data_with_a_home_decides_before_the_rule),
        cmocka_unit_test(test_fill_is_the_partition),
        cmocka_unit_test(test_random_is_legal_repeatable_and_new_each_round),
        cmocka_unit_test(test_empty_graph),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
