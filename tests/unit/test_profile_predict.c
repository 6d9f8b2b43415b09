/* Measured profiles: the times read out of them. Expected times are worked out by hand in the
 * comments, from round numbers. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "profile/predict.h"
#include "profile_help.h"
#include "seed.h"
#include "sim/machine.h"

#include <math.h>
#include <stdio.h>

static struct ats_op_shape q4_matmul(double m, double k, double n)
{
    return (struct ats_op_shape){.kind = ATS_COST_MATMUL,
                                 .family = ATS_FAMILY_Q4,
                                 .m = m,
                                 .k = k,
                                 .n = n,
                                 .batch = 1,
                                 .weight_bytes = 0.5 * m * k};
}

/* ---- predictions ---- */

static void test_batches_are_interpolated(void **state)
{
    (void)state;
    struct ats_profile p = make_profile();
    const struct {
        double n;
        double us;
    } cases[] = {
        {1, 12},  {2, 14},            /* 12 + (18 - 12) / 3 */
        {4, 18},  {10, 39},           /* 18 + (60 - 18) / 2 */
        {16, 60}, {18, 60 + 2 * 3.5}, /* on with 3.5 us per column */
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        const struct ats_op_shape s = q4_matmul(1000, 1000, cases[i].n);
        assert_near(ats_profile_op_us(&p, ATS_HOST, "q4_K", &s), cases[i].us);
        assert_near(ats_profile_op_us(&p, ATS_HOST, NULL, &s), cases[i].us); /* the usual type */
    }
    ats_profile_free(&p);
}

static void test_large_shapes_grow_as_smaller_ones_do(void **state)
{
    (void)state;
    struct ats_profile p = make_profile();
    /* the small matrix was measured further, with a better kernel from 64 columns on */
    struct ats_profile_curve *small = &p.curves[0];
    assert_true(ats_profile_add_point(small->points, &small->n_points,
                                      (struct ats_profile_point){64, 120, 0}));
    struct ats_op_shape s = q4_matmul(2000, 2000, 40);
    /* the small one: 60 + 24 * 60 / 48 = 90 at 40 columns, 60 at 16; the large one has 222 there */
    assert_near(ats_profile_op_us(&p, ATS_HOST, "q4_K", &s), 222 * 90.0 / 60);
    s.n = 16;
    assert_near(ats_profile_op_us(&p, ATS_HOST, "q4_K", &s), 222);
    s.n = 40; /* the other side has no further curve: 12 us per column */
    assert_near(ats_profile_op_us(&p, ATS_ACCEL, "q4_K", &s), 222 + 24 * 12);
    ats_profile_free(&p);
}

static void test_sizes_are_interpolated(void **state)
{
    (void)state;
    struct ats_profile p = make_profile();
    const struct {
        double m;
        double us;
    } cases[] = {
        {500, 2 + 10.0 / 2},   /* half of the small one's work beyond the launch */
        {2500, 12 + 30 * 0.5}, /* between 1e6 and 4e6 elements */
        {8000, 2 + 40.0 * 2},  /* twice the large one's work */
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        const struct ats_op_shape s = q4_matmul(cases[i].m, 1000, 1);
        assert_near(ats_profile_op_us(&p, ATS_HOST, "q4_K", &s), cases[i].us);
    }
    /* several products at once are as much work as one of that size */
    struct ats_op_shape s = q4_matmul(1250, 1000, 1);
    s.batch = 2;
    s.weight_bytes *= 2;
    assert_near(ats_profile_op_us(&p, ATS_HOST, "q4_K", &s), 27);
    /* fused: without the launch */
    s = q4_matmul(1000, 1000, 1);
    s.fused = true;
    assert_near(ats_profile_op_us(&p, ATS_ACCEL, "q4_K", &s), 2);
    ats_profile_free(&p);
}

static void test_other_types_follow_their_bytes(void **state)
{
    (void)state;
    struct ats_profile p = make_profile();
    /* Q6_K at 0.8 bytes an element, Q4_K has 0.5: 2 + 10 * 1.6; an exact shape of another type is
     * no answer of its own */
    struct ats_op_shape s = q4_matmul(1000, 1000, 1);
    s.weight_bytes = 0.8e6;
    assert_near(ats_profile_op_us(&p, ATS_HOST, "q6_K", &s), 18);
    /* no family member: F16 by Q4_K, four times the bytes */
    s.weight_bytes = 2e6;
    s.family = ATS_FAMILY_F16;
    assert_near(ats_profile_op_us(&p, ATS_HOST, "f16", &s), 42);
    /* a kin is preferred to a type with nearer bytes: Q8_0 (1.0625) and F16 (2) for BF16 (2),
     * Q4_K at half for a Q3 of 1 byte */
    static const double f16[][3] = {{1, 102, 0}};
    static const double q8[][3] = {{1, 52, 0}};
    const struct ats_profile_curve curve = {.kind = ATS_COST_MATMUL, .m = 1000, .k = 1000};
    struct ats_profile_curve with = curve;
    with.weight_bytes = 2e6;
    add_curve(&p, with, "f16", f16, 1);
    with.weight_bytes = 1e6;
    add_curve(&p, with, "q8_0", q8, 1);
    assert_near(ats_profile_op_us(&p, ATS_HOST, "bf16", &s), 102);
    s.weight_bytes = 1e6;
    assert_near(ats_profile_op_us(&p, ATS_HOST, "q3_K", &s), 2 + 10 * 2);
    ats_profile_free(&p);
}

static void test_experts_by_their_columns(void **state)
{
    (void)state;
    struct ats_profile p = make_profile();
    /* of 8 experts 2 per token. One token: 2 experts with a column each, 5 us per expert; 16
     * tokens on all 8: 4 columns each, 8 us per expert */
    static const double points[][3] = {{1, 2 + 2 * 5, 2}, {16, 2 + 8 * 8, 8}};
    add_curve(&p,
              (struct ats_profile_curve){.kind = ATS_COST_EXPERTS,
                                         .m = 500,
                                         .k = 1000,
                                         .n_experts = 8,
                                         .n_used = 2,
                                         .weight_bytes = 0.25e6},
              "q4_K", points, 2);
    struct ats_op_shape s = {.kind = ATS_COST_EXPERTS,
                             .family = ATS_FAMILY_Q4,
                             .m = 500,
                             .k = 1000,
                             .n = 1,
                             .n_experts = 8,
                             .n_used = 2,
                             .n_distinct = 2,
                             .weight_bytes = 0.25e6};
    assert_near(ats_profile_op_us(&p, ATS_HOST, "q4_K", &s), 12);
    s.n = 10;
    s.n_distinct = 8; /* 2.5 columns each: 5 + 3 * 0.5 */
    assert_near(ats_profile_op_us(&p, ATS_HOST, "q4_K", &s), 2 + 8 * 6.5);
    s.n_experts = 64; /* others of the same size, of twice the work */
    s.m = 1000;
    s.weight_bytes = 0.5e6;
    assert_near(ats_profile_op_us(&p, ATS_HOST, "q4_K", &s), 2 + 8 * 13);
    /* without a measurement: each expert as a product of its own, of one column here */
    s = (struct ats_op_shape){.kind = ATS_COST_EXPERTS,
                              .family = ATS_FAMILY_Q4,
                              .m = 1000,
                              .k = 1000,
                              .n = 1,
                              .n_experts = 8,
                              .n_used = 3,
                              .n_distinct = 3,
                              .weight_bytes = 0.5e6};
    assert_near(ats_profile_op_us(&p, ATS_ACCEL, "q4_K", &s), 10 + 3 * 2);
    ats_profile_free(&p);
}

static void test_attention_by_the_nearest_heads(void **state)
{
    (void)state;
    struct ats_profile p = make_profile();
    static const double wide[][3] = {{1, 12, 0}, {11, 32, 0}};
    static const double narrow[][3] = {{1, 102, 0}};
    struct ats_profile_curve curve = {.kind = ATS_COST_ATTENTION, .m = 100, .k = 128, .heads = 32};
    curve.weight_bytes = 2.0 * 2 * 100 * 128 * 8;
    add_curve(&p, curve, "f16", wide, 2);
    curve.weight_bytes = 2.0 * 2 * 100 * 128 * 32;
    add_curve(&p, curve, "f16", narrow, 1);
    struct ats_op_shape s = {.kind = ATS_COST_ATTENTION,
                             .m = 200,
                             .k = 128,
                             .n = 1,
                             .batch = 32,
                             .weight_bytes = 2.0 * 2 * 200 * 128 * 8};
    assert_near(ats_profile_op_us(&p, ATS_HOST, NULL, &s), 2 + 2 * 10);
    s.weight_bytes *= 4; /* each head has keys of its own */
    assert_near(ats_profile_op_us(&p, ATS_HOST, NULL, &s), 2 + 2 * 100);
    s.m = 100;
    s.n = 6;
    s.weight_bytes = 2.0 * 2 * 100 * 128 * 6; /* nearer to 8 heads than to 32 */
    assert_near(ats_profile_op_us(&p, ATS_HOST, NULL, &s), 22);
    /* not measured on the accelerator: as products of 200 x 64 x 8 F16 weights, 102400 elements,
     * by Q4_K: 10 + (12 - 10) * 0.1024 * 4 */
    s = (struct ats_op_shape){.kind = ATS_COST_ATTENTION,
                              .m = 200,
                              .k = 32,
                              .n = 1,
                              .batch = 8,
                              .weight_bytes = 2.0 * 2 * 200 * 32 * 8};
    assert_near(ats_profile_op_us(&p, ATS_ACCEL, NULL, &s), 10 + 2 * 0.1024 * 4);
    ats_profile_free(&p);
}

static void test_bytes_are_the_mean_of_what_was_measured(void **state)
{
    (void)state;
    struct ats_profile p = make_profile();
    struct ats_op_shape s = {.kind = ATS_COST_BYTES, .io_bytes = 1e4};
    assert_near(ats_profile_op_us(&p, ATS_ACCEL, NULL, &s), 13);
    s.io_bytes = 505e3; /* in the middle: 21 and 32 */
    assert_near(ats_profile_op_us(&p, ATS_ACCEL, NULL, &s), 26.5);
    s.io_bytes = 2e6; /* 10 + 20 * 2 and 10 + 40 * 2 */
    assert_near(ats_profile_op_us(&p, ATS_ACCEL, NULL, &s), 70);
    s.io_bytes = 0;
    assert_near(ats_profile_op_us(&p, ATS_ACCEL, NULL, &s), 10);
    s.kind = ATS_COST_NONE;
    assert_near(ats_profile_op_us(&p, ATS_ACCEL, NULL, &s), 0);
    ats_profile_free(&p);
}

static void test_copies_and_splits(void **state)
{
    (void)state;
    struct ats_profile p = make_profile();
    assert_near(ats_profile_copy_latency_us(&p), 10); /* 12 us for 4000 bytes, 0.5 us per 1000 */
    assert_near(ats_profile_copy_us(&p, 1, false, true), 12);
    assert_near(ats_profile_copy_us(&p, 12e3, false, true), 16);
    assert_near(ats_profile_copy_us(&p, 12e3, true, true), 32);
    assert_near(ats_profile_copy_us(&p, 12e3, false, false), 64);
    assert_near(ats_profile_copy_us(&p, 2e6, false, true), 10 + 2 * 100);
    assert_near(ats_profile_split_us(&p), 30);
    ats_profile_free(&p);
}

static void test_rates_sum_a_profile_up(void **state)
{
    (void)state;
    struct ats_profile p = make_profile();
    struct ats_device_rates device;
    struct ats_device_rates cpu;
    ats_profile_rates(&p, &device, &cpu);
    /* Q4_K's 144 / 256 bytes an element for 4e6 elements, in 40 us beyond the CPU's launch */
    assert_near(cpu.vram_gbps[ATS_FAMILY_Q4], 4e6 * 144 / 256 / 40 / 1e3);
    assert_near(device.vram_gbps[ATS_FAMILY_Q4], 4e6 * 144 / 256 / 32 / 1e3);
    /* 512 columns: 222 + 496 * 12 us, less the launch */
    assert_near(cpu.matmul_tflops[ATS_FAMILY_Q4], 2 * 4e6 * 512 / 6172 / 1e6);
    assert_near(device.h2d_gbps, 10); /* 1e6 bytes in 100 us */
    assert_near(device.d2h_gbps, 1e3 / 210);
    assert_near(device.pageable_gbps, 1e3 / 430);
    assert_near(device.launch_us, 10);
    assert_near(device.dram_limit_gbps, 9 + 30); /* what the link gets beside the CPU, and that */
    assert_near(device.cpu_gbps, 15);
    assert_true(device.attention_efficiency > 0 && device.attention_efficiency <= 1);
    p.round_trip_us = 400;
    const struct ats_plan_rates rates = ats_profile_plan_rates(&p);
    assert_near(rates.costs.split_us, 200);
    assert_near(rates.costs.copy_latency_us, device.copy_latency_us);
    assert_near(rates.costs.link_bytes_per_us, 10e3);
    assert_near(rates.costs.least_link_bytes_per_us, 10e3);
    assert_near(rates.costs.link_beside_cpu_bytes_per_us, 10e3); /* 39 - 15, more than the link */
    assert_near(rates.side[ATS_HOST].launch_us, cpu.launch_us);
    const struct ats_sim_overheads overheads = ats_sim_overheads_default();
    const struct ats_sim_machine machine = ats_sim_machine_of_profile(&p, &overheads);
    assert_int_equal(machine.vram_bytes, (uint64_t)7 << 30);
    const struct ats_op_shape s = q4_matmul(1000, 1000, 4);
    assert_near(ats_sim_machine_op_us(&machine, ATS_ACCEL, "q4_K", &s), 18);
    /* the round trip's copies of 16 KiB are entered as copies: half of 400 us less their mean;
     * pinned they take 12 us and 0.5 for every 1000 bytes beyond 4000, pageable four times that,
     * and twice that to the host */
    const double pinned = 12 + 0.0005 * (16384 - 4000);
    assert_near(machine.overheads.split_us, 200 - pinned * (4 + 8) / 2);
    ats_profile_free(&p);
}

/* ---- properties ---- */

static double random_us(struct ats_rng *rng)
{
    return 1 + (double)ats_rng_below(rng, 1000000) / 100;
}

static void add_random_curve(struct ats_profile *p, struct ats_rng *rng, enum ats_cost_kind kind)
{
    static const char *const types[] = {"q4_K", "q6_K", "f16"};
    const char *type = types[ats_rng_below(rng, 3)];
    struct ats_profile_curve c = {.side = ATS_HOST, .kind = kind};
    c.m = (double)test_between(rng, 1, 5000);
    c.k = (double)(32 * test_between(rng, 1, 200));
    c.weight_bytes = c.m * c.k * (type[0] == 'f' ? 2 : 0.6);
    if (kind == ATS_COST_EXPERTS) {
        c.n_experts = (double)test_between(rng, 8, 64);
        c.n_used = (double)test_between(rng, 1, 8);
    } else if (kind == ATS_COST_ATTENTION) {
        c.heads = 8;
        c.k = 64;
        c.weight_bytes = 2 * 2 * c.m * c.k * (double)test_between(rng, 1, 8);
        type = "f16";
    } else if (kind == ATS_COST_BYTES) {
        c = (struct ats_profile_curve){.side = ATS_HOST, .kind = kind};
        type = "add";
    }
    snprintf(c.type, sizeof(c.type), "%s", type);
    struct ats_profile_curve *added = ats_profile_add_curve(p, &c);
    const size_t n_points = test_between(rng, 1, 8);
    for (size_t i = 0; i < n_points; i++) {
        const double n = (double)test_between(rng, 1, kind == ATS_COST_BYTES ? 1000000 : 600);
        const double distinct = ats_cost_expected_experts(c.n_experts > 0 ? c.n_experts : 1,
                                                          c.n_used > 0 ? c.n_used : 1, n);
        ats_profile_add_point(added->points, &added->n_points,
                              (struct ats_profile_point){n, random_us(rng), distinct});
    }
}

/* Noise in every direction: what is predicted from it rises all the same. */
static struct ats_profile random_profile(struct ats_rng *rng)
{
    struct ats_profile p = {.launch_us = {(double)test_between(rng, 0, 20), 1}};
    static const enum ats_cost_kind kinds[] = {ATS_COST_MATMUL, ATS_COST_EXPERTS,
                                               ATS_COST_ATTENTION, ATS_COST_BYTES};
    for (size_t i = 0; i < 4; i++) {
        const size_t n = test_between(rng, 1, 6);
        for (size_t j = 0; j < n; j++) {
            add_random_curve(&p, rng, kinds[i]);
        }
    }
    for (int i = 0; i < 4; i++) {
        struct ats_profile_copies *c = &p.copies[i / 2][i % 2];
        for (size_t j = test_between(rng, 1, 6); j > 0; j--) {
            ats_profile_add_point(c->points, &c->n_points,
                                  (struct ats_profile_point){(double)test_between(rng, 1, 100000),
                                                             random_us(rng), 0});
        }
    }
    ats_profile_settle(&p);
    return p;
}

static struct ats_op_shape random_shape(struct ats_rng *rng)
{
    static const enum ats_cost_kind kinds[] = {ATS_COST_MATMUL, ATS_COST_EXPERTS,
                                               ATS_COST_ATTENTION, ATS_COST_BYTES};
    struct ats_op_shape s = {.kind = kinds[ats_rng_below(rng, 4)],
                             .family = ATS_FAMILY_Q4,
                             .fused = test_chance(rng, 20),
                             .m = 0.5 + (double)test_between(rng, 6000, 9000),
                             .k = (double)(32 * test_between(rng, 1, 300)),
                             .n = (double)test_between(rng, 1, 1000),
                             .batch = 1,
                             .n_experts = 40,
                             .n_used = 4};
    s.batch = s.kind == ATS_COST_ATTENTION ? 8 : 1;
    s.weight_bytes = 0.6 * s.m * s.k;
    s.io_bytes = (double)test_between(rng, 0, 2000000);
    return s;
}

static void test_more_work_is_never_faster(void **state)
{
    (void)state;
    enum { ROUNDS = 10000 };
    for (uint64_t round = 0; round < ROUNDS; round++) {
        struct ats_rng rng = test_rng(round);
        struct ats_profile p = random_profile(&rng);
        const struct ats_op_shape s = random_shape(&rng);
        static const char *const types[] = {"q4_K", "f16", "q8_0", "mxfp4"};
        const char *type = types[ats_rng_below(&rng, 4)];
        const double us = ats_profile_op_us(&p, ATS_HOST, type, &s);
        assert_true(isfinite(us) && us >= 0);
        struct ats_op_shape more = s;
        more.n += (double)test_between(&rng, 1, 300);
        more.io_bytes += 1000;
        assert_true(ats_profile_op_us(&p, ATS_HOST, type, &more) >= us - 1e-9 * us);
        more = s;
        const double growth = 1 + (double)test_between(&rng, 1, 300) / 100;
        more.m *= growth;
        more.weight_bytes *= growth;
        assert_true(ats_profile_op_us(&p, ATS_HOST, type, &more) >= us - 1e-9 * us);
        const double bytes = (double)test_between(&rng, 1, 200000);
        const bool to_host = test_chance(&rng, 50);
        const bool pinned = test_chance(&rng, 50);
        assert_true(ats_profile_copy_us(&p, bytes * growth, to_host, pinned) >=
                    ats_profile_copy_us(&p, bytes, to_host, pinned) * (1 - 1e-9));
        ats_profile_free(&p);
    }
}

static double mean(const double *values, size_t from, size_t to)
{
    double sum = 0;
    for (size_t i = from; i <= to; i++) {
        sum += values[i];
    }
    return sum / (double)(to - from + 1);
}

static void test_monotone_by_the_definition(void **state)
{
    (void)state;
    for (uint64_t round = 0; round < 2000; round++) {
        struct ats_rng rng = test_rng(50000 + round);
        double values[12];
        double pooled[12];
        const size_t n = test_between(&rng, 1, 12);
        for (size_t i = 0; i < n; i++) {
            values[i] = pooled[i] = (double)ats_rng_below(&rng, 50);
        }
        ats_profile_make_monotone(pooled, n);
        for (size_t x = 0; x < n; x++) {
            double most = 0;
            for (size_t i = 0; i <= x; i++) {
                double least = INFINITY;
                for (size_t j = x; j < n; j++) {
                    least = fmin(least, mean(values, i, j));
                }
                most = fmax(most, least);
            }
            assert_near(pooled[x], most);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_batches_are_interpolated),
        cmocka_unit_test(test_large_shapes_grow_as_smaller_ones_do),
        cmocka_unit_test(test_sizes_are_interpolated),
        cmocka_unit_test(test_other_types_follow_their_bytes),
        cmocka_unit_test(test_experts_by_their_columns),
        cmocka_unit_test(test_attention_by_the_nearest_heads),
        cmocka_unit_test(test_bytes_are_the_mean_of_what_was_measured),
        cmocka_unit_test(test_copies_and_splits),
        cmocka_unit_test(test_rates_sum_a_profile_up),
        cmocka_unit_test(test_more_work_is_never_faster),
        cmocka_unit_test(test_monotone_by_the_definition),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
