/* The physical bound: cases solved by hand, and random ones against a grid of placements that an
 * independent evaluation of the limits tries out. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "cost/bound.h"
#include "cost/simplex.h"
#include "seed.h"

#include <math.h>

static void assert_near(double value, double expected, double tolerance)
{
    if (!(fabs(value - expected) <= tolerance)) {
        fail_msg("%.9g is not within %.3g of %.9g", value, tolerance, expected);
    }
}

static double solve(const struct ats_bound_item *items, size_t n, double vram, double link,
                    double dram)
{
    struct ats_error err = {""};
    struct ats_bound bound;
    const struct ats_bound_limits limits = {vram, link, dram};
    if (!ats_bound_solve(items, n, &limits, &bound, &err)) {
        fail_msg("%s", err.text);
    }
    return bound.us;
}

/* ---- the program ---- */

/* Maximise 3x + 5y subject to x <= 4, 2y <= 12, 3x + 2y <= 18: x = 2, y = 6 (a textbook case). */
static void test_simplex(void **state)
{
    (void)state;
    static const double rows[4][3] = {{1, 0, 4}, {0, 2, 12}, {3, 2, 18}, {3, 5, 0}};
    struct ats_simplex s;
    assert_true(ats_simplex_init(&s, 3, 2));
    for (size_t r = 0; r < 4; r++) {
        for (size_t c = 0; c < 3; c++) {
            *ats_simplex_at(&s, r, c) = rows[r][c];
        }
    }
    double x[2];
    assert_true(ats_simplex_solve(&s, x));
    assert_near(x[0], 2, 1e-9);
    assert_near(x[1], 6, 1e-9);
    ats_simplex_free(&s);
    /* nothing limits y */
    assert_true(ats_simplex_init(&s, 1, 2));
    *ats_simplex_at(&s, 0, 0) = 1;
    *ats_simplex_at(&s, 0, 2) = 1;
    *ats_simplex_at(&s, 1, 1) = 1;
    assert_false(ats_simplex_solve(&s, x));
    ats_simplex_free(&s);
}

/* ---- by hand ---- */

/* 10 MB that the CPU computes in 1000 us (10 GB/s) and the GPU in 100 us (100 GB/s). */
static struct ats_bound_item ten_mb(bool parallel)
{
    return (struct ats_bound_item){.size_bytes = 10e6,
                                   .read_bytes = 10e6,
                                   .move_bytes = 10e6,
                                   .cpu_us = 1000,
                                   .gpu_us = 100,
                                   .parallel = parallel};
}

static void test_by_hand(void **state)
{
    (void)state;
    const struct ats_bound_item item = ten_mb(false);
    /* all fits */
    assert_near(solve(&item, 1, 10e6, 5, 50), 100, 1e-6);
    /* nothing fits, and the link brings nothing: all on the CPU */
    assert_near(solve(&item, 1, 0, 1e-9, 50), 1000, 1e-3);
    /* half fits, no link: 500 on the CPU and then 50 on the GPU */
    assert_near(solve(&item, 1, 5e6, 1e-9, 50), 550, 1e-3);
    /* nothing fits, link of 10 GB/s: a share m takes 1000 m over the link, and the operators in
     * series 1000 (1 - m) + 100 m: equal at m = 10/19 */
    assert_near(solve(&item, 1, 0, 10, 50), 1000.0 * 10 / 19, 1e-6);
    /* the same with 12.5 GB/s of host memory for both: all 10 MB come out of it, 800 us */
    assert_near(solve(&item, 1, 0, 10, 12.5), 800, 1e-6);
}

static void test_both_sides_at_once(void **state)
{
    (void)state;
    const struct ats_bound_item item = ten_mb(true);
    /* a share h on the GPU: 1000 (1 - h) = 100 h at h = 10/11 */
    assert_near(solve(&item, 1, 10e6, 5, 50), 1000.0 / 11, 1e-6);
    /* half resident, no link */
    assert_near(solve(&item, 1, 5e6, 1e-9, 50), 500, 1e-3);
    /* nothing resident, link of 10 GB/s: both take half */
    assert_near(solve(&item, 1, 0, 10, 50), 500, 1e-6);
}

static void test_denser_item_goes_first(void **state)
{
    (void)state;
    /* the second gains 900 us per 10 MB, the first 450: VRAM for one */
    struct ats_bound_item items[2] = {ten_mb(false), ten_mb(false)};
    items[0].cpu_us = 550;
    assert_near(solve(items, 2, 10e6, 1e-9, 50), 550 + 100, 1e-3);
    /* experts in one item, found more often than their share: 40 % resident, 90 % hit */
    double slope[] = {2.25, 1.0 / 6};
    double at_zero[] = {0, 5.0 / 6};
    const struct ats_bound_curve curve = {slope, at_zero, 2};
    assert_near(ats_bound_hit_rate(&curve, 0.4), 0.9, 1e-12);
    struct ats_bound_item experts = ten_mb(true);
    experts.hits = &curve;
    assert_near(solve(&experts, 1, 4e6, 1e-9, 50), 100, 1e-3);
    assert_near(solve(&experts, 1, 2e6, 1e-9, 50), 550, 1e-3);
}

static void test_reports_what_it_does(void **state)
{
    (void)state;
    struct ats_error err;
    struct ats_bound bound;
    const struct ats_bound_item item = ten_mb(false);
    const struct ats_bound_limits limits = {5e6, 1e-9, 50};
    assert_true(ats_bound_solve(&item, 1, &limits, &bound, &err));
    assert_near(bound.resident_bytes, 5e6, 1);
    assert_near(bound.cpu_bytes, 5e6, 10);
    assert_near(bound.cpu_share, 500.0 / 550, 1e-6);
    assert_near(bound.gpu_share, 50.0 / 550, 1e-6);
    const struct ats_bound_item broken = {.cpu_us = NAN};
    assert_false(ats_bound_solve(&broken, 1, &limits, &bound, &err));
    const struct ats_bound_limits no_link = {5e6, 0, 50};
    assert_false(ats_bound_solve(&item, 1, &no_link, &bound, &err));
}

/* ---- against a grid ---- */

enum { STEPS = 24 };

/* The time of two items with given shares, by the limits of shared hardware alone. */
static double time_of(const struct ats_bound_item *items, const double hit[2],
                      const double moved[2], const struct ats_bound_limits *limits)
{
    double cpu = 0;
    double gpu = 0;
    double over_link = 0;
    double from_memory = 0;
    double series = 0;
    for (int i = 0; i < 2; i++) {
        const double here = items[i].cpu_us * (1 - hit[i] - moved[i]);
        const double there = items[i].gpu_us * (hit[i] + moved[i]);
        cpu += here;
        gpu += there;
        over_link += items[i].move_bytes * moved[i];
        from_memory +=
            items[i].read_bytes * (1 - hit[i] - moved[i]) + items[i].move_bytes * moved[i];
        series += items[i].parallel ? fmax(here, there) : here + there;
    }
    const double link_us = over_link / (limits->link_gbps * 1e3);
    const double memory_us = from_memory / (limits->dram_gbps * 1e3);
    return fmax(fmax(fmax(cpu, gpu), fmax(link_us, memory_us)), series);
}

static double best_of_grid(const struct ats_bound_item *items,
                           const struct ats_bound_limits *limits)
{
    double best = INFINITY;
    for (int r0 = 0; r0 <= STEPS; r0++) {
        for (int r1 = 0; r1 <= STEPS; r1++) {
            const double hit[2] = {(double)r0 / STEPS, (double)r1 / STEPS};
            const double vram = hit[0] * items[0].size_bytes + hit[1] * items[1].size_bytes;
            for (int m0 = 0; m0 <= STEPS - r0 && vram <= limits->vram_bytes; m0++) {
                for (int m1 = 0; m1 <= STEPS - r1; m1++) {
                    const double moved[2] = {(double)m0 / STEPS, (double)m1 / STEPS};
                    best = fmin(best, time_of(items, hit, moved, limits));
                }
            }
        }
    }
    return best;
}

static double between(struct ats_rng *rng, double low, double high)
{
    return low + (high - low) * (double)ats_rng_below(rng, 1000001) / 1e6;
}

static struct ats_bound_item random_item(struct ats_rng *rng)
{
    const double bytes = between(rng, 1e6, 50e6);
    return (struct ats_bound_item){.size_bytes = bytes * between(rng, 1, 4),
                                   .read_bytes = bytes,
                                   .move_bytes = bytes,
                                   .cpu_us = bytes / 1e3 / between(rng, 5, 50),
                                   .gpu_us = bytes / 1e3 / between(rng, 20, 1000),
                                   .parallel = test_chance(rng, 50)};
}

static void test_against_grid(void **state)
{
    (void)state;
    struct ats_rng rng = test_rng(1);
    for (int round = 0; round < 60; round++) {
        const struct ats_bound_item items[2] = {random_item(&rng), random_item(&rng)};
        const double size = items[0].size_bytes + items[1].size_bytes;
        const struct ats_bound_limits limits = {between(&rng, 0, 1.2) * size, between(&rng, 1, 60),
                                                between(&rng, 20, 80)};
        const double bound = solve(items, 2, limits.vram_bytes, limits.link_gbps, limits.dram_gbps);
        const double grid = best_of_grid(items, &limits);
        /* rounding all shares down to the grid moves at most two steps of each item to the CPU */
        const double step = (items[0].cpu_us + items[1].cpu_us +
                             (items[0].read_bytes + items[1].read_bytes) / limits.dram_gbps / 1e3) *
                            2 / STEPS;
        if (bound > grid * (1 + 1e-9) || bound < grid - step) {
            fail_msg("round %d: bound %g, grid %g, step %g", round, bound, grid, step);
        }
    }
}

static void test_more_is_never_slower(void **state)
{
    (void)state;
    struct ats_rng rng = test_rng(2);
    for (int round = 0; round < 200; round++) {
        struct ats_bound_item items[5];
        double size = 0;
        for (int i = 0; i < 5; i++) {
            items[i] = random_item(&rng);
            size += items[i].size_bytes;
        }
        const double vram = between(&rng, 0, 1) * size;
        const double link = between(&rng, 1, 60);
        const double dram = between(&rng, 20, 80);
        const double bound = solve(items, 5, vram, link, dram);
        const double tolerance = bound * 1e-9;
        assert_true(solve(items, 5, vram * between(&rng, 1, 2), link, dram) <= bound + tolerance);
        assert_true(solve(items, 5, vram, link * between(&rng, 1, 2), dram) <= bound + tolerance);
        assert_true(solve(items, 5, vram, link, dram * between(&rng, 1, 2)) <= bound + tolerance);
    }
}

/* ---- hit rates ---- */

static void test_lru_curve(void **state)
{
    (void)state;
    const struct ats_routing_model model = ats_routing_model_default();
    struct ats_bound_curve curve;
    assert_true(ats_bound_lru_curve(&model, 7, 128, 8, 4000, &curve));
    assert_near(ats_bound_hit_rate(&curve, 0), 0, 1e-12);
    assert_near(ats_bound_hit_rate(&curve, 1), 1, 1e-9);
    /* published for 128 experts, 8 used: an LRU of 40 % hits 90 to 95 % */
    const double hit = ats_bound_hit_rate(&curve, 0.4);
    assert_true(hit > 0.90 && hit < 0.95);
    double last = 0;
    for (int i = 1; i <= 100; i++) { /* rising, and ever less steep */
        const double now = ats_bound_hit_rate(&curve, i / 100.0);
        assert_true(now >= last - 1e-12 && now >= i / 100.0 - 1e-9);
        last = now;
    }
    ats_bound_curve_free(&curve);
    /* if every token uses all experts, a cache finds what it holds */
    assert_true(ats_bound_lru_curve(&model, 7, 16, 16, 100, &curve));
    assert_near(ats_bound_hit_rate(&curve, 0.25), 0.25, 1e-9);
    ats_bound_curve_free(&curve);
    assert_false(ats_bound_lru_curve(&model, 7, 8, 9, 100, &curve));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_simplex),
        cmocka_unit_test(test_by_hand),
        cmocka_unit_test(test_both_sides_at_once),
        cmocka_unit_test(test_denser_item_goes_first),
        cmocka_unit_test(test_reports_what_it_does),
        cmocka_unit_test(test_against_grid),
        cmocka_unit_test(test_more_is_never_slower),
        cmocka_unit_test(test_lru_curve),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
