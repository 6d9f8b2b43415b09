/* The partition against brute force: the best of all 2^n assignments, under the objective that
 * partition.h documents, written here a second time. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "plan/partition.h"
#include "plan/rates.h"
#include "random_graph.h"

#include <math.h>

/* Powers of two: times are exact in float. */
static const struct ats_partition_costs exact_costs = {.split_us = 32.0F,
                                                       .link_bytes_per_us = 4096.0F};

/* ---- the objective, from its documentation ---- */

/* Bytes that are written before operator `at` by the graph and read by it or later: what has to
 * cross if the sides change there. Data with a home is accounted for where it is used. */
static double live_bytes(const struct ats_graph_desc *graph, size_t at)
{
    double bytes = 0;
    for (uint32_t root = 0; root < graph->n_roots; root++) {
        bool written = false;
        bool read = false;
        for (size_t i = 0; i < graph->n_ops; i++) {
            written = written || (i < at && graph->ops[i].write == (int32_t)root);
            read = read || (i >= at && random_graph_is_read(graph, &graph->ops[i], root));
        }
        if (written && read && graph->roots[root].home == 0) {
            bytes += (double)graph->roots[root].bytes;
        }
    }
    return bytes;
}

/* Time to reach data that lives on the other side only; what is written goes there and back. */
static double home_us(const struct ats_graph_desc *graph, const struct ats_op *op,
                      enum ats_side side, double link_bytes_per_us)
{
    double bytes = 0;
    for (uint32_t r = 0; r < op->n_reads; r++) {
        const struct ats_root *root = &graph->roots[graph->reads[op->first_read + r]];
        bytes += root->home == ATS_ON(ats_other_side(side)) ? (double)root->bytes : 0;
    }
    if (op->write != ATS_NO_ROOT && graph->roots[op->write].home == ATS_ON(ats_other_side(side))) {
        bytes += 2 * (double)graph->roots[op->write].bytes;
    }
    return bytes / link_bytes_per_us;
}

/* The sides that the operator may run on: those that can compute it, and of these the home of what
 * it writes, then of each thing it reads in order, each as far as that leaves a side. */
static ats_side_set allowed(const struct ats_graph_desc *graph, const struct ats_op *op)
{
    ats_side_set homes[8] = {op->write >= 0 ? graph->roots[op->write].home : 0};
    for (uint32_t r = 0; r < op->n_reads; r++) {
        homes[1 + r] = graph->roots[graph->reads[op->first_read + r]].home;
    }
    ats_side_set sides = op->supported;
    for (uint32_t h = 0; h <= op->n_reads; h++) {
        sides = (sides & homes[h]) != 0 ? sides & homes[h] : sides;
    }
    return sides;
}

/* Time of a serial pass with these sides; infinite if an operator may not run on its side. */
static double pass_us(const struct ats_graph_desc *graph, const struct ats_partition_costs *costs,
                      const enum ats_side *sides, const double *live)
{
    double time = 0;
    for (size_t i = 0; i < graph->n_ops; i++) {
        const struct ats_op *op = &graph->ops[i];
        if ((allowed(graph, op) & ATS_ON(sides[i])) == 0) {
            return INFINITY;
        }
        time += (double)op->cost_us[sides[i]] +
                home_us(graph, op, sides[i], (double)costs->link_bytes_per_us);
        if (i > 0 && sides[i] != sides[i - 1]) {
            time += (double)costs->split_us + live[i] / (double)costs->link_bytes_per_us;
        }
    }
    return time;
}

static double best_pass_us(const struct ats_graph_desc *graph,
                           const struct ats_partition_costs *costs, const double *live)
{
    double best = INFINITY;
    for (unsigned mask = 0; mask < 1U << graph->n_ops; mask++) {
        enum ats_side sides[16];
        for (size_t i = 0; i < graph->n_ops; i++) {
            sides[i] = (mask >> i & 1U) != 0 ? ATS_ACCEL : ATS_HOST;
        }
        const double time = pass_us(graph, costs, sides, live);
        best = time < best ? time : best;
    }
    return best;
}

/* ---- tests ---- */

static void test_is_the_best_of_all(void **state)
{
    (void)state;
    size_t changes = 0;
    for (uint64_t round = 0; round < 3000; round++) {
        struct ats_rng rng = test_rng(round);
        struct random_graph g;
        random_graph_make(&g, test_between(&rng, 1, round % 16 == 0 ? 12 : 9), true, &rng);
        for (size_t r = 0; r < g.desc.n_roots; r++) { /* half of them with less that decides */
            g.roots[r].home = round % 2 == 0 || test_chance(&rng, 30) ? g.roots[r].home : 0;
        }
        double live[16];
        for (size_t i = 0; i < g.desc.n_ops; i++) {
            live[i] = live_bytes(&g.desc, i);
        }
        struct ats_partition_costs costs = exact_costs;
        costs.split_us = (float)(1U << ats_rng_below(&rng, 8));
        enum ats_side sides[16];
        assert_true(ats_partition(&g.desc, &costs, sides));
        const double time = pass_us(&g.desc, &costs, sides, live);
        const double best = best_pass_us(&g.desc, &costs, live);
        if (time != best) {
            fail_msg("round %llu: the partition takes %.3f us, the best one %.3f us",
                     (unsigned long long)round, time, best);
        }
        for (size_t i = 1; i < g.desc.n_ops; i++) {
            changes += sides[i] != sides[i - 1];
        }
    }
    assert_true(changes > 500); /* else the test has compared trivial partitions */
}

static void test_split_cost_prevents_fragments(void **state)
{
    (void)state;
    /* sides alternate in cost by 2 us; a split costs 40, so none pays */
    struct ats_op ops[40];
    for (size_t i = 0; i < 40; i++) {
        ops[i] = (struct ats_op){.write = ATS_NO_ROOT,
                                 .supported = ATS_ON_BOTH,
                                 .cost_us = {i % 2 != 0 ? 3.0F : 1.0F, i % 2 != 0 ? 1.0F : 3.0F}};
    }
    const struct ats_graph_desc graph = {.ops = ops, .n_ops = 40};
    enum ats_side sides[40];
    assert_true(ats_partition(&graph, &ats_plan_rates_assumed.costs, sides));
    for (size_t i = 1; i < 40; i++) {
        assert_int_equal(sides[i], sides[0]);
    }
}

/* The link gets what the CPU leaves of the memory that both share. */
static void test_rates_of_a_machine(void **state)
{
    (void)state;
    struct ats_device_rates cpu = {.launch_us = 2};
    struct ats_device_rates device = {
        .h2d_gbps = 24, .dram_limit_gbps = 45, .cpu_gbps = 36, .copy_latency_us = 10};
    struct ats_plan_rates rates = ats_plan_rates_of(&cpu, &device, 40);
    assert_float_equal(rates.costs.split_us, 40, 0);
    assert_float_equal(rates.costs.copy_latency_us, 10, 0);
    assert_float_equal(rates.costs.link_bytes_per_us, 24e3, 0);
    assert_float_equal(rates.costs.least_link_bytes_per_us, 24e3, 0);
    assert_float_equal(rates.costs.link_beside_cpu_bytes_per_us, 9e3, 0);
    assert_true(rates.side[ATS_HOST].launch_us == 2);
    device.cpu_gbps = 50; /* more than both together: noise */
    assert_float_equal(ats_plan_rates_of(&cpu, &device, 0).costs.link_beside_cpu_bytes_per_us, 0,
                       0);
    device.cpu_gbps = 10; /* the link itself is the limit */
    rates = ats_plan_rates_of(&cpu, &device, 0);
    assert_float_equal(rates.costs.link_beside_cpu_bytes_per_us, 24e3, 0);
    device.dram_limit_gbps = 20; /* or the memory */
    assert_float_equal(ats_plan_rates_of(&cpu, &device, 0).costs.link_bytes_per_us, 20e3, 0);
}

static void test_empty_graph(void **state)
{
    (void)state;
    const struct ats_graph_desc graph = {0};
    assert_true(ats_partition(&graph, &ats_plan_rates_assumed.costs, NULL));
    ats_partition_random(&graph, 1, NULL);
}

static void test_large_graph_is_legal_and_repeatable(void **state)
{
    (void)state;
    for (uint64_t round = 0; round < 300; round++) {
        struct ats_rng rng = test_rng(7000 + round);
        struct random_graph g;
        random_graph_make(&g, GRAPH_MAX_OPS, true, &rng);
        enum ats_side first[GRAPH_MAX_OPS];
        enum ats_side second[GRAPH_MAX_OPS];
        assert_true(ats_partition(&g.desc, &ats_plan_rates_assumed.costs, first));
        assert_true(ats_partition(&g.desc, &ats_plan_rates_assumed.costs, second));
        assert_memory_equal(first, second, sizeof(first));
        for (size_t i = 0; i < g.desc.n_ops; i++) {
            assert_true((allowed(&g.desc, &g.ops[i]) & ATS_ON(first[i])) != 0);
        }
    }
}

static void test_random_partition(void **state)
{
    (void)state;
    size_t on_side[ATS_SIDES] = {0};
    size_t bound = 0;
    size_t differing = 0;
    for (uint64_t round = 0; round < 1000; round++) {
        struct ats_rng rng = test_rng(20000 + round);
        struct random_graph g;
        random_graph_make(&g, GRAPH_MAX_OPS, true, &rng);
        const uint64_t seed = ats_rng_next(&rng);
        enum ats_side sides[GRAPH_MAX_OPS];
        enum ats_side again[GRAPH_MAX_OPS];
        enum ats_side other[GRAPH_MAX_OPS];
        ats_partition_random(&g.desc, seed, sides);
        ats_partition_random(&g.desc, seed, again);
        ats_partition_random(&g.desc, seed + 1, other);
        assert_memory_equal(sides, again, sizeof(sides));
        differing += memcmp(sides, other, sizeof(sides)) != 0;
        for (size_t i = 0; i < g.desc.n_ops; i++) {
            const ats_side_set may = allowed(&g.desc, &g.ops[i]);
            assert_true((may & ATS_ON(sides[i])) != 0);
            if (may != ATS_ON_BOTH) {
                bound++;
            } else {
                on_side[sides[i]]++;
            }
        }
    }
    assert_true(differing > 900);
    assert_true(bound > 1000);
    /* what is free goes to either side about equally often */
    const double share = (double)on_side[ATS_ACCEL] / (double)(on_side[0] + on_side[1]);
    assert_true(share > 0.4 && share < 0.6);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_is_the_best_of_all),
        cmocka_unit_test(test_split_cost_prevents_fragments),
        cmocka_unit_test(test_rates_of_a_machine),
        cmocka_unit_test(test_empty_graph),
        cmocka_unit_test(test_large_graph_is_legal_and_repeatable),
        cmocka_unit_test(test_random_partition),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
