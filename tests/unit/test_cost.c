/* The pure parts below the emulated accelerator: cost model, timeline, routing. Expected times
 * are worked out by hand in the comments, with round rates. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "cost/cost.h"
#include "cost/routing.h"
#include "cost/timeline.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void assert_near(double value, double expected, double tolerance)
{
    if (!(fabs(value - expected) <= tolerance)) {
        fail_msg("%.9g is not within %.3g of %.9g", value, tolerance, expected);
    }
}

/* ---- cost ---- */

static struct ats_device_rates round_rates(void)
{
    return (struct ats_device_rates){
        .vram_gbps = {100, 100, 100, 100, 100},
        .matmul_tflops = {10, 10, 10, 10, 10},
        .matmul_half_batch = 25,
        .small_op_gbps = 50,
        .attention_efficiency = 0.5,
        .launch_us = 5,
        .h2d_gbps = 20,
        .d2h_gbps = 10,
        .pageable_gbps = 4,
        .copy_latency_us = 10,
        .copy_engines = 1,
        .dram_limit_gbps = 40,
        .cpu_gbps = 30,
        .cpu_threads = 8,
    };
}

static void test_matmul_is_bound_by_memory_or_arithmetic(void **state)
{
    (void)state;
    const struct ats_device_rates rates = round_rates();
    /* one column: 10 MB at 100 GB/s = 100 us; 2 * 4000 * 4000 flops at 10 T / 26 = 83.2 us */
    struct ats_op_shape s = {.kind = ATS_COST_MATMUL,
                             .family = ATS_FAMILY_Q4,
                             .m = 4000,
                             .n = 1,
                             .k = 4000,
                             .batch = 1,
                             .weight_bytes = 10e6};
    assert_near(ats_cost_op_us(&rates, &s), 5 + 100, 1e-6);
    s.fused = true;
    assert_near(ats_cost_op_us(&rates, &s), 100, 1e-6);
    /* 475 columns reach 475 / 500 = 0.95 of 10 TFLOP/s: 15.2e9 flops in 1600 us */
    s.n = 475;
    assert_near(ats_cost_op_us(&rates, &s), 1600, 1e-6);
}

static void test_experts_read_what_is_used(void **state)
{
    (void)state;
    const struct ats_device_rates rates = round_rates();
    struct ats_op_shape s = {.kind = ATS_COST_EXPERTS,
                             .family = ATS_FAMILY_Q4,
                             .m = 100,
                             .n = 1,
                             .k = 100,
                             .n_experts = 128,
                             .n_used = 8,
                             .weight_bytes = 1e6};
    assert_near(ats_cost_op_us(&rates, &s), 5 + 80, 1e-6); /* 8 MB at 100 GB/s */
    /* two tokens: 128 * (1 - (120 / 128)^2) = 15.5 experts */
    s.n = 2;
    assert_near(ats_cost_op_us(&rates, &s), 5 + 155, 1e-6);
    s.n_distinct = 9;
    assert_near(ats_cost_op_us(&rates, &s), 5 + 90, 1e-6);
    /* arithmetic: 75 tokens of 1 expert in 1 used, 75 columns reach 0.75 * 10 TFLOP/s:
     * 2 * 1e4 * 1e4 * 75 = 15e9 flops in 2000 us */
    s = (struct ats_op_shape){.kind = ATS_COST_EXPERTS,
                              .family = ATS_FAMILY_Q4,
                              .m = 1e4,
                              .n = 75,
                              .k = 1e4,
                              .n_experts = 4,
                              .n_used = 1,
                              .n_distinct = 1,
                              .weight_bytes = 5e7};
    assert_near(ats_cost_op_us(&rates, &s), 5 + 2000, 1e-6);
}

static void test_attention_bytes_and_copies(void **state)
{
    (void)state;
    const struct ats_device_rates rates = round_rates();
    /* 4 * 1000 keys * 75 queries * 128 wide * 32 heads = 1.2288e9 flops at 10 * 0.5 * 0.75 T */
    struct ats_op_shape s = {.kind = ATS_COST_ATTENTION,
                             .family = ATS_FAMILY_F16,
                             .m = 1000,
                             .n = 75,
                             .k = 128,
                             .batch = 32,
                             .weight_bytes = 1e6};
    assert_near(ats_cost_op_us(&rates, &s), 5 + 1228.8 / 3.75, 1e-6);
    s = (struct ats_op_shape){.kind = ATS_COST_BYTES, .io_bytes = 1e6};
    assert_near(ats_cost_op_us(&rates, &s), 5 + 20, 1e-6);
    assert_near(ats_cost_copy_us(&rates, 1e6, false, true), 10 + 50, 1e-6);
    assert_near(ats_cost_copy_us(&rates, 1e6, true, true), 10 + 100, 1e-6);
    assert_near(ats_cost_copy_us(&rates, 1e6, false, false), 10 + 250, 1e-6);
}

static void test_scaling_keeps_ratios(void **state)
{
    (void)state;
    const struct ats_device_rates rates = round_rates();
    struct ats_device_rates scaled = rates;
    ats_rates_scale(&scaled, 0.25);
    const struct ats_op_shape shapes[] = {
        {.kind = ATS_COST_MATMUL, .m = 10, .n = 300, .k = 20, .batch = 1, .weight_bytes = 1e5},
        {.kind = ATS_COST_EXPERTS, .m = 10, .n = 3, .k = 9, .n_experts = 8, .n_used = 2},
        {.kind = ATS_COST_ATTENTION, .m = 10, .n = 3, .k = 9, .batch = 8},
        {.kind = ATS_COST_BYTES, .io_bytes = 4711},
    };
    for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++) {
        const double us = ats_cost_op_us(&rates, &shapes[i]);
        assert_near(ats_cost_op_us(&scaled, &shapes[i]), 4 * us, 1e-9 * us);
    }
    for (int pinned = 0; pinned < 2; pinned++) {
        const double us = ats_cost_copy_us(&rates, 12345, false, pinned != 0);
        assert_near(ats_cost_copy_us(&scaled, 12345, false, pinned != 0), 4 * us, 1e-9 * us);
    }
    assert_near(scaled.dram_limit_gbps, 10, 1e-9);
    assert_near(scaled.cpu_threads, 8, 0);
}

/* ---- timeline ---- */

/* A device with 10 GB/s in, 5 GB/s out, in a machine with 40 GB/s. */
static struct ats_timeline *make_timeline(int copy_engines)
{
    struct ats_timeline *t = ats_timeline_new(0, 40);
    assert_non_null(t);
    const struct ats_timeline_link link = {10, 5, copy_engines};
    assert_int_equal(ats_timeline_add_device(t, &link), 0);
    return t;
}

static void assert_done_at(const struct ats_timeline *t, struct ats_ticket ticket, double us)
{
    double at = -1;
    assert_true(ats_timeline_done(t, ticket, &at));
    assert_near(at, us, 1e-6 * us + 1e-6);
}

static struct ats_ticket copy_in(struct ats_timeline *t, uint32_t stream, double bytes)
{
    const struct ats_timeline_copy copy = {.bytes = bytes, .latency_us = 10};
    return ats_timeline_copy(t, stream, &copy);
}

static void test_serial_schedule(void **state)
{
    (void)state;
    struct ats_timeline *t = make_timeline(1);
    const uint32_t stream = ats_timeline_open(t, 0);
    /* 1 MB at 10 GB/s: 10 + 100 us; then 200 us of compute; four times */
    struct ats_ticket last = {0};
    for (int i = 0; i < 4; i++) {
        copy_in(t, stream, 1e6);
        last = ats_timeline_compute(t, stream, 200, 3);
    }
    ats_timeline_advance(t, 1239, 0);
    assert_false(ats_timeline_done(t, last, NULL));
    ats_timeline_advance(t, 5000, 0);
    assert_done_at(t, last, 4 * 310);
    const struct ats_timeline_totals totals = ats_timeline_totals(t, 0);
    assert_near(totals.compute_us, 800, 1e-6);
    assert_near(totals.copy_us[ATS_TO_DEVICE], 440, 1e-6);
    assert_near(totals.link_us, 440, 1e-6);
    assert_near(totals.both_us, 0, 1e-6);
    assert_near(totals.bytes[ATS_TO_DEVICE], 4e6, 1e-3);
    assert_int_equal(totals.launches, 12);
    assert_int_equal(totals.copies[ATS_TO_DEVICE], 4);
    assert_near(ats_timeline_busy_us(t), 1240, 1e-6);
    ats_timeline_free(t);
}

static void test_overlapped_schedule(void **state)
{
    (void)state;
    struct ats_timeline *t = make_timeline(1);
    const uint32_t compute = ats_timeline_open(t, 0);
    const uint32_t transfer = ats_timeline_open(t, 0);
    /* the copy for step i + 1 runs during step i: 110 + 4 * 200 */
    struct ats_ticket last = {0};
    for (int i = 0; i < 4; i++) {
        const struct ats_ticket copied = copy_in(t, transfer, 1e6);
        ats_timeline_wait(t, compute, copied);
        last = ats_timeline_compute(t, compute, 200, 1);
    }
    ats_timeline_advance(t, 5000, 0);
    assert_done_at(t, last, 110 + 800);
    /* of four copies of 110 us, all but the first beside an operator */
    assert_near(ats_timeline_totals(t, 0).link_us, 440, 1e-6);
    assert_near(ats_timeline_totals(t, 0).both_us, 330, 1e-6);
    ats_timeline_free(t);
}

static void test_results_do_not_depend_on_the_steps(void **state)
{
    (void)state;
    double ends[2];
    for (int round = 0; round < 2; round++) {
        struct ats_timeline *t = make_timeline(2);
        const uint32_t a = ats_timeline_open(t, 0);
        const uint32_t b = ats_timeline_open(t, 0);
        copy_in(t, a, 3e6);
        copy_in(t, b, 5e5);
        ats_timeline_compute(t, b, 123, 1);
        const struct ats_timeline_copy out = {
            .direction = ATS_TO_HOST, .bytes = 2e6, .kernel = true};
        const struct ats_ticket last = ats_timeline_copy(t, b, &out);
        for (int now = 0; now < 3000; now += round == 0 ? 3000 : 7) {
            ats_timeline_advance(t, now, 33);
        }
        ats_timeline_advance(t, 3000, 33);
        assert_true(ats_timeline_done(t, last, &ends[round]));
        ats_timeline_free(t);
    }
    assert_near(ends[0], ends[1], 1e-3);
}

static void test_one_copy_engine_queues_two_do_not(void **state)
{
    (void)state;
    for (int engines = 1; engines <= 2; engines++) {
        struct ats_timeline *t = make_timeline(engines);
        const uint32_t in = ats_timeline_open(t, 0);
        const uint32_t out = ats_timeline_open(t, 0);
        const struct ats_ticket first = copy_in(t, in, 1e6); /* 110 us */
        const struct ats_timeline_copy back = {
            .direction = ATS_TO_HOST, .bytes = 1e6, .latency_us = 10}; /* 210 us */
        const struct ats_ticket second = ats_timeline_copy(t, out, &back);
        ats_timeline_advance(t, 1000, 0);
        assert_done_at(t, first, 110);
        assert_done_at(t, second, engines == 1 ? 320 : 210);
        ats_timeline_free(t);
    }
}

static void test_copy_kernels_share_the_link(void **state)
{
    (void)state;
    struct ats_timeline *t = make_timeline(1);
    const uint32_t compute = ats_timeline_open(t, 0);
    const uint32_t transfer = ats_timeline_open(t, 0);
    /* both move from 0 us on at 5 GB/s: the kernel's 1 MB ends at 200 us, when the other has
     * 1 MB left for the whole link: 300 us. Compute behind the kernel waits for it. */
    const struct ats_timeline_copy large = {.bytes = 2e6};
    const struct ats_timeline_copy small = {.bytes = 1e6, .kernel = true};
    const struct ats_ticket engine = ats_timeline_copy(t, transfer, &large);
    const struct ats_ticket kernel = ats_timeline_copy(t, compute, &small);
    const struct ats_ticket after = ats_timeline_compute(t, compute, 50, 1);
    ats_timeline_advance(t, 1000, 0);
    assert_done_at(t, kernel, 200);
    assert_done_at(t, engine, 300);
    assert_done_at(t, after, 250);
    ats_timeline_free(t);
}

static void test_the_cpu_takes_from_the_link(void **state)
{
    (void)state;
    struct ats_timeline *t = make_timeline(1);
    const uint32_t stream = ats_timeline_open(t, 0);
    const struct ats_timeline_copy copy = {.bytes = 2e6};
    const struct ats_ticket ticket = ats_timeline_copy(t, stream, &copy);
    ats_timeline_advance(t, 100, 0); /* 1 MB at 10 GB/s */
    assert_near(ats_timeline_moved(t, ticket), 1e6, 1);
    assert_near(ats_timeline_next_us(t, 38), 350, 1e-6);
    ats_timeline_advance(t, 200, 38); /* 0.4 MB: 40 - 38 is below the tenth that is left, 4 */
    assert_near(ats_timeline_moved(t, ticket), 1.4e6, 1);
    ats_timeline_advance(t, 1000, 32); /* 0.6 MB at 8 GB/s */
    assert_done_at(t, ticket, 275);
    ats_timeline_free(t);
}

static void test_pageable_limit_and_idle(void **state)
{
    (void)state;
    struct ats_timeline *t = make_timeline(1);
    const uint32_t stream = ats_timeline_open(t, 0);
    ats_timeline_advance(t, 500, 0);
    assert_false(ats_timeline_busy(t, 0));
    const struct ats_timeline_copy copy = {.bytes = 1e6, .max_gbps = 2, .latency_us = 10};
    const struct ats_ticket ticket = ats_timeline_copy(t, stream, &copy);
    assert_true(ats_timeline_busy(t, 0));
    ats_timeline_advance(t, 2000, 0);
    assert_done_at(t, ticket, 500 + 510);
    assert_near(ats_timeline_busy_us(t), 510, 1e-6);
    assert_true(isinf(ats_timeline_next_us(t, 0)));
    /* nothing waits for a stream that is gone */
    const uint32_t other = ats_timeline_open(t, 0);
    const struct ats_ticket lost = ats_timeline_compute(t, other, 1e6, 1);
    ats_timeline_wait(t, stream, lost);
    const struct ats_ticket last = ats_timeline_compute(t, stream, 5, 1);
    assert_false(ats_timeline_done(t, last, NULL));
    ats_timeline_close(t, other);
    ats_timeline_advance(t, 3000, 0);
    assert_done_at(t, last, 2005);
    ats_timeline_free(t);
}

static void test_computes_share_one_engine(void **state)
{
    (void)state;
    struct ats_timeline *t = make_timeline(1);
    struct ats_ticket last[3];
    for (int s = 0; s < 3; s++) {
        const uint32_t stream = ats_timeline_open(t, 0);
        for (int i = 0; i < 100; i++) { /* more than a ring holds at first */
            last[s] = ats_timeline_compute(t, stream, 1, 1);
        }
    }
    ats_timeline_advance(t, 1000, 0);
    /* in turns, since each command queues for the engine anew */
    assert_done_at(t, last[0], 298);
    assert_done_at(t, last[1], 299);
    assert_done_at(t, last[2], 300);
    ats_timeline_free(t);
}

/* ---- routing ---- */

struct locality {
    double next;   /* fraction of selections that the token before made */
    double near;   /* that one of the eight before made */
    double median; /* reuse distance */
    double lru;    /* hits of an LRU cache of 40 % of the experts */
    double skew;   /* most used expert relative to the mean */
};

enum { TOKENS = 10000, MAX_USED = 16, MAX_EXPERTS = 512, WARM_UP = 200 };

static int lru_rank(int32_t *stack, int32_t n, int32_t expert)
{
    int32_t at = 0;
    while (at < n && stack[at] != expert) {
        at++;
    }
    memmove(stack + 1, stack, (size_t)at * sizeof(stack[0]));
    stack[0] = expert;
    return at;
}

static struct locality measure(int32_t n_experts, int32_t n_used)
{
    const struct ats_routing_model model = ats_routing_model_default();
    struct ats_routing routing;
    assert_true(ats_routing_init(&routing, &model, 7, 3, n_experts, n_used));
    static int64_t last[MAX_EXPERTS];
    static int64_t uses[MAX_EXPERTS];
    static int32_t stack[MAX_EXPERTS];
    static int64_t distances[TOKENS + 1];
    memset(last, 0, sizeof last);
    memset(uses, 0, sizeof uses);
    memset(distances, 0, sizeof distances);
    for (int32_t i = 0; i < n_experts; i++) {
        stack[i] = i;
    }
    struct locality found = {0};
    double n = 0;
    for (int64_t token = 1; token <= TOKENS; token++) {
        int32_t experts[MAX_USED];
        ats_routing_next(&routing, experts);
        for (int32_t i = 0; i < n_used; i++) {
            assert_in_range(experts[i], 0, n_experts - 1);
            assert_true(last[experts[i]] < token); /* distinct */
            const int64_t distance = last[experts[i]] > 0 ? token - last[experts[i]] : TOKENS;
            last[experts[i]] = token;
            const bool hit = lru_rank(stack, n_experts, experts[i]) < n_experts * 2 / 5;
            if (token > WARM_UP) {
                found.next += distance == 1;
                found.near += distance <= 8;
                found.lru += hit;
                distances[distance]++;
                uses[experts[i]]++;
                n++;
            }
        }
    }
    double below = 0;
    while (below < n / 2) {
        below += (double)distances[(int64_t)++found.median];
    }
    for (int32_t i = 0; i < n_experts; i++) {
        found.skew = fmax(found.skew, (double)uses[i] * n_experts / n);
    }
    found.next /= n;
    found.near /= n;
    found.lru /= n;
    ats_routing_free(&routing);
    return found;
}

static void test_routing_locality(void **state)
{
    (void)state;
    static const int32_t shapes[][2] = {{128, 8}, {512, 10}, {32, 4}};
    for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++) {
        const struct locality l = measure(shapes[i][0], shapes[i][1]);
        printf("%d/%d: next %.3f near %.3f median %.0f lru %.3f skew %.2f\n", shapes[i][0],
               shapes[i][1], l.next, l.near, l.median, l.lru, l.skew);
        assert_near(l.next, 0.45, 0.03);
        assert_near(l.near, 0.80, 0.03);
        assert_near(l.median, 2, 0);
        assert_true(l.skew < 2.5);
    }
    const struct locality qwen = measure(128, 8);
    assert_in_range((int)(qwen.lru * 100), 90, 95);
}

static void test_routing_is_a_function_of_seed_and_layer(void **state)
{
    (void)state;
    const struct ats_routing_model model = ats_routing_model_default();
    int32_t experts[4][50 * 8];
    static const uint64_t keys[4][2] = {{1, 5}, {1, 5}, {1, 6}, {2, 5}};
    for (int i = 0; i < 4; i++) {
        struct ats_routing routing;
        assert_true(ats_routing_init(&routing, &model, keys[i][0], keys[i][1], 64, 8));
        for (int token = 0; token < 50; token++) {
            ats_routing_next(&routing, &experts[i][(size_t)token * 8]);
        }
        ats_routing_free(&routing);
    }
    assert_memory_equal(experts[0], experts[1], sizeof experts[0]);
    assert_memory_not_equal(experts[0], experts[2], sizeof experts[0]);
    assert_memory_not_equal(experts[0], experts[3], sizeof experts[0]);
}

static void test_routing_extremes(void **state)
{
    (void)state;
    const struct ats_routing_model model = {0.9, 0.99, 1};
    struct ats_routing routing;
    assert_false(ats_routing_init(&routing, &model, 1, 1, 4, 5));
    assert_false(ats_routing_init(&routing, &model, 1, 1, ATS_ROUTING_MAX_EXPERTS + 1, 5));
    assert_true(ats_routing_init(&routing, &model, 1, 1, 6, 6)); /* all of them, each time */
    for (int token = 0; token < 20; token++) {
        int32_t experts[6];
        unsigned seen = 0;
        ats_routing_next(&routing, experts);
        for (int i = 0; i < 6; i++) {
            seen |= 1u << experts[i];
        }
        assert_int_equal(seen, 63);
    }
    ats_routing_free(&routing);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_matmul_is_bound_by_memory_or_arithmetic),
        cmocka_unit_test(test_experts_read_what_is_used),
        cmocka_unit_test(test_attention_bytes_and_copies),
        cmocka_unit_test(test_scaling_keeps_ratios),
        cmocka_unit_test(test_serial_schedule),
        cmocka_unit_test(test_overlapped_schedule),
        cmocka_unit_test(test_results_do_not_depend_on_the_steps),
        cmocka_unit_test(test_one_copy_engine_queues_two_do_not),
        cmocka_unit_test(test_copy_kernels_share_the_link),
        cmocka_unit_test(test_the_cpu_takes_from_the_link),
        cmocka_unit_test(test_pageable_limit_and_idle),
        cmocka_unit_test(test_computes_share_one_engine),
        cmocka_unit_test(test_routing_locality),
        cmocka_unit_test(test_routing_is_a_function_of_seed_and_layer),
        cmocka_unit_test(test_routing_extremes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
