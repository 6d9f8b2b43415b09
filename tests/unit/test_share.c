/* The CPU's share of a layer's experts: against all subsets, by hand, and what is expected. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "plan/share.h"
#include "seed.h"

#include <math.h>
#include <string.h>

enum { MOST = 10 };

/* By the header, if the CPU has the experts of `set`; infinity, if it may not. */
static double time_of(const struct ats_share_costs *costs, const struct ats_share_expert *experts,
                      uint32_t n, uint32_t set, uint64_t most_columns)
{
    double own = set != 0 ? (double)costs->fixed_us : 0;
    uint64_t columns = 0;
    uint32_t n_left = 0;
    for (uint32_t i = 0; i < n; i++) {
        if ((set >> i & 1) != 0) {
            const double n_columns = experts[i].n_columns + (double)costs->half;
            own += fmax((double)costs->read_us, (double)costs->column_us * n_columns);
            columns += experts[i].n_columns;
            n_left++;
        }
    }
    const double link = (double)costs->link_us * (n - n_left);
    return columns <= most_columns ? fmax(own, own + link - (double)costs->beside * own) : INFINITY;
}

static void test_equals_all_subsets(void **state)
{
    (void)state;
    enum { ROUNDS = 4000 };
    struct ats_rng rng = test_rng(1);
    size_t n_shared = 0;
    for (int round = 0; round < ROUNDS; round++) {
        const struct ats_share_costs costs = {
            .link_us = (float)test_between(&rng, 1, 100),
            .read_us = (float)test_between(&rng, 1, 100),
            .column_us = (float)test_between(&rng, 0, 40),
            .half = (float)test_between(&rng, 0, 5),
            .fixed_us = (float)test_between(&rng, 0, 100),
            .beside = (float)test_between(&rng, 0, 10) / 10,
        };
        const uint32_t n = (uint32_t)test_between(&rng, 0, MOST);
        const uint64_t most = test_chance(&rng, 50) ? UINT64_MAX : test_between(&rng, 0, 40);
        struct ats_share_expert experts[MOST];
        bool seen[MOST] = {false};
        for (uint32_t i = 0; i < n; i++) {
            experts[i] = (struct ats_share_expert){(int32_t)i, (uint32_t)test_between(&rng, 1, 9)};
        }
        double best = INFINITY;
        for (uint32_t set = 0; set < UINT32_C(1) << n; set++) {
            best = fmin(best, time_of(&costs, experts, n, set, most));
        }
        const uint32_t k = ats_share_choose(&costs, experts, n, most);
        assert_true(k <= n);
        const double own = time_of(&costs, experts, n, (UINT32_C(1) << k) - 1, most);
        if (!(fabs(own - best) <= 1e-6 * best)) {
            fail_msg("round %d: %u of %u left, %g us, best %g", round, k, n, own, best);
        }
        for (uint32_t i = 0; i < n; i++) { /* the same experts, sorted */
            assert_false(seen[experts[i].expert]);
            seen[experts[i].expert] = true;
            assert_true(i == 0 || experts[i - 1].n_columns <= experts[i].n_columns);
        }
        n_shared += k > 0;
    }
    assert_true(n_shared > ROUNDS / 8);
}

static void test_by_hand(void **state)
{
    (void)state;
    const struct ats_share_costs costs = {
        .link_us = 100, .read_us = 70, .column_us = 50, .fixed_us = 20, .beside = 0.5};
    /* with none left 400; one: 90 and 300 - 45; two: 160 and 200 - 80; three: 310 and 100 - 155 */
    struct ats_share_expert experts[] = {{7, 9}, {3, 1}, {8, 3}, {5, 1}};
    assert_int_equal(ats_share_choose(&costs, experts, 4, UINT64_MAX), 2);
    assert_int_equal(experts[0].expert, 3);
    assert_int_equal(experts[1].expert, 5);
    assert_int_equal(ats_share_choose(&costs, experts, 4, 1), 1);
    assert_int_equal(ats_share_choose(&costs, experts, 4, 0), 0);
    assert_int_equal(ats_share_choose(&costs, experts, 1, UINT64_MAX), 1);
    assert_int_equal(ats_share_choose(&costs, experts, 0, UINT64_MAX), 0);
    assert_float_equal((float)ats_share_us(&costs, 310, 6), 755, 1e-3);
    assert_float_equal((float)ats_share_us(&costs, 310, 1), 310, 1e-3);
    /* 0.5 (20 + 70 k) = 100 (17 - k); with four columns 0.5 (20 + 200 k) = 100 (17 - k), 1710 us */
    double us = 0;
    assert_float_equal((float)ats_share_expected(&costs, 17, 17, 1000, &us), 12.519F, 1e-3);
    assert_float_equal((float)us, 20 + 70 * 12.519F, 0.1);
    assert_float_equal((float)ats_share_expected(&costs, 17, 17 * 4, 1000, &us), 0, 0);
    assert_float_equal((float)us, 1700, 1e-3);
    assert_float_equal((float)ats_share_expected(&costs, 17, 17, 4, &us), 4, 1e-3);
    assert_float_equal((float)us, 300 + 1300 - 150, 1e-3);
    assert_float_equal((float)ats_share_expected(&costs, 0, 0, 1000, &us), 0, 0);
    assert_true(ats_share_may_pay(&costs)); /* 70 of which the link has half, against 100 */
    struct ats_share_costs slow = costs;
    slow.column_us = 200;
    assert_false(ats_share_may_pay(&slow));
    struct ats_share_costs alone = costs; /* nothing crosses beside the CPU */
    alone.beside = 0;
    assert_float_equal((float)ats_share_expected(&alone, 17, 17, 1000, &us), 17, 1e-3);
    assert_float_equal((float)us, 20 + 17 * 70, 1e-3);
}

/* The rates' units: 24 GB/s beside 20 of the CPU, a tenth of a TFLOP/s. */
static void test_costs(void **state)
{
    (void)state;
    struct ats_plan_rates rates = ats_plan_rates_assumed;
    rates.side[ATS_HOST].vram_gbps[ATS_FAMILY_Q4] = 20;
    rates.side[ATS_HOST].matmul_tflops[ATS_FAMILY_Q4] = 0.1;
    rates.costs.link_bytes_per_us = 12000;
    rates.costs.link_beside_cpu_bytes_per_us = 3000;
    rates.costs.copy_latency_us = 10;
    const struct ats_share_costs costs = ats_share_costs_of(&rates, ATS_FAMILY_Q4, 6e6, 3, 2e7);
    assert_float_equal(costs.link_us, 500 + 30, 1e-2);
    assert_float_equal(costs.beside, 0.25, 1e-6);
    assert_float_equal(costs.read_us, 300, 1e-2);
    assert_float_equal(costs.column_us, 200, 1e-2);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_equals_all_subsets),
        cmocka_unit_test(test_by_hand),
        cmocka_unit_test(test_costs),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
