/* Measuring a profile, on the emulated accelerator in exact mode: what it holds, and what becomes
 * of it if the device fails. Times themselves are not looked at. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "emu/emu_help.h"
#include "measure/bench.h"
#include "measure/grid.h"
#include "measure/measure.h"

#include <math.h>

/* Enough for a few points; those without which nothing can be predicted are measured in any case.
 */
static const double SHORT_BUDGET_US = 3e5;

static ggml_backend_dev_t device;

static int start(void **state)
{
    struct ats_error err = {""};
    if (load_ggml(state) != 0 || !ats_emu_start("emu-small", &err)) {
        return -1;
    }
    device = ggml_backend_dev_by_name("EMU0");
    return device != NULL ? 0 : -1;
}

static void inject_failure(const char *spec)
{
    struct ats_error err = {""};
    if (!ats_emu_inject(device, spec, &err)) {
        fail_msg("%s", err.text);
    }
}

struct heard {
    size_t calls;
    double last;
};

static void hear(void *context, double done, const char *what)
{
    struct heard *heard = context;
    assert_true(done >= heard->last && done <= 1);
    assert_true(what[0] != '\0');
    heard->last = done;
    heard->calls++;
}

static void test_a_profile_is_whole(void **state)
{
    (void)state;
    struct heard heard = {0};
    const struct ats_measure_options options = {.device = device,
                                                .threads = 1,
                                                .quick = true,
                                                .leave_core = true,
                                                .budget_us = SHORT_BUDGET_US,
                                                .span_bytes = 24 * MIB,
                                                .progress = hear,
                                                .context = &heard};
    struct ats_profile p;
    struct ats_error err = {""};
    if (!ats_measure(&options, &p, &err)) {
        fail_msg("%s", err.text);
    }
    assert_true(heard.calls > 5);
    assert_string_equal(p.identity.device, "EMU0");
    assert_string_equal(p.identity.driver, "emulated emu-small");
    assert_int_equal(p.identity.threads, 1);
    assert_true(p.quick);
    assert_true(p.free_bytes > 0 && p.free_bytes <= p.identity.device_bytes);
    assert_true(p.cores >= 1 && p.hw_threads >= p.cores);
    assert_true(p.n_counts >= 1);
    for (size_t i = 0; i < p.n_counts; i++) {
        assert_true(p.counts[i].read_gbps > 0 && p.counts[i].matvec_gbps > 0);
    }
    for (int side = 0; side < ATS_SIDES; side++) {
        size_t products = 0;
        size_t sums = 0;
        for (size_t i = 0; i < p.n_curves; i++) {
            const struct ats_profile_curve *c = &p.curves[i];
            products += (int)c->side == side && c->kind == ATS_COST_MATMUL;
            sums += (int)c->side == side && c->kind == ATS_COST_BYTES;
            assert_true(c->n_points > 0);
            for (size_t j = 0; j < c->n_points; j++) {
                assert_true(c->points[j].us > 0 && isfinite(c->points[j].us));
            }
        }
        assert_true(products >= 1);
        assert_int_equal(sums, 2);
    }
    for (int i = 0; i < 4; i++) {
        assert_true(p.copies[i / 2][i % 2].n_points >= 3);
    }
    ats_profile_free(&p);
}

static void test_failures_end_with_a_message(void **state)
{
    (void)state;
    static const struct {
        const char *spec;
        const char *says;
    } cases[] = {
        {"alloc:1", "out of memory"},
        {"alloc:2", "out of memory"},
        {"copy:1", "injected failure of a copy"},
        {"copy:20", "injected failure of a copy"},
        {"compute:1", "injected failure of a compute"},
        {"compute:30", "injected failure of a compute"},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        const struct ats_measure_options options = {.device = device,
                                                    .threads = 1,
                                                    .quick = true,
                                                    .leave_core = true,
                                                    .budget_us = SHORT_BUDGET_US,
                                                    .span_bytes = 24 * MIB};
        struct ats_profile p = {.best_threads = 77};
        struct ats_error err = {""};
        inject_failure(cases[i].spec);
        if (ats_measure(&options, &p, &err)) {
            fail_msg("%s: nothing failed", cases[i].spec);
        }
        if (strstr(err.text, cases[i].says) == NULL || strstr(err.text, "EMU0") == NULL) {
            fail_msg("%s: %s", cases[i].spec, err.text);
        }
        assert_int_equal(p.best_threads, 77);
        inject_failure("off");
    }
}

static void test_pageable_memory_stands_in_for_pinned(void **state)
{
    (void)state;
    const struct ats_measure_options options = {.device = device,
                                                .threads = 1,
                                                .quick = true,
                                                .leave_core = true,
                                                .budget_us = SHORT_BUDGET_US,
                                                .span_bytes = 24 * MIB};
    struct ats_profile p;
    struct ats_error err = {""};
    inject_failure("pinned:1+");
    if (!ats_measure(&options, &p, &err)) {
        fail_msg("%s", err.text);
    }
    inject_failure("off");
    assert_true(p.copies[0][ATS_PROFILE_PINNED].n_points >= 3);
    ats_profile_free(&p);
}

static void test_a_lost_device_ends_with_a_message(void **state)
{
    (void)state;
    const struct ats_measure_options options = {.device = device,
                                                .threads = 1,
                                                .quick = true,
                                                .leave_core = true,
                                                .budget_us = SHORT_BUDGET_US,
                                                .span_bytes = 24 * MIB};
    struct ats_profile p;
    struct ats_error err = {""};
    inject_failure("loss:40");
    assert_false(ats_measure(&options, &p, &err));
    assert_non_null(strstr(err.text, "lost"));
    assert_false(ats_measure(&options, &p, &err)); /* not even a backend */
    assert_non_null(strstr(err.text, "EMU0"));
}

/* ---- single points ---- */

static void test_shapes_that_do_not_fit_are_skipped(void **state)
{
    (void)state;
    struct ats_bench bench;
    struct ats_error err = {""};
    ggml_backend_dev_t cpu = ggml_backend_dev_by_type(GGML_BACKEND_DEVICE_TYPE_CPU);
    assert_true(ats_bench_open(&bench, ATS_HOST, cpu, 16 * MIB, &err));
    ats_bench_set_threads(&bench, 1);
    struct ats_profile_curve c = {
        .kind = ATS_COST_MATMUL, .type = "f16", .m = 64, .k = 64, .weight_bytes = 8192};
    struct ats_profile_point point;
    assert_int_equal(ats_bench_point(&bench, &c, 2, 1000, &point, &err), ATS_BENCH_DONE);
    assert_true(point.us > 0 && point.n >= 2 && point.n <= 2);
    c.m = 1 << 20; /* 128 MiB */
    c.weight_bytes = 128 * MIB;
    assert_int_equal(ats_bench_point(&bench, &c, 1, 1000, &point, &err), ATS_BENCH_SKIPPED);
    c.m = 64;
    assert_int_equal(ats_bench_point(&bench, &c, 1 << 20, 1000, &point, &err), ATS_BENCH_SKIPPED);
    strcpy(c.type, "q4_K"); /* in blocks of 256 */
    assert_int_equal(ats_bench_point(&bench, &c, 1, 1000, &point, &err), ATS_BENCH_SKIPPED);
    strcpy(c.type, "nonsense");
    assert_int_equal(ats_bench_point(&bench, &c, 1, 1000, &point, &err), ATS_BENCH_SKIPPED);
    /* all experts are used at last, and never more than there are */
    c = (struct ats_profile_curve){.kind = ATS_COST_EXPERTS,
                                   .type = "f16",
                                   .m = 32,
                                   .k = 64,
                                   .n_experts = 8,
                                   .n_used = 2,
                                   .weight_bytes = 4096};
    assert_int_equal(ats_bench_point(&bench, &c, 1, 1000, &point, &err), ATS_BENCH_DONE);
    assert_true(point.distinct >= 2 && point.distinct <= 2);
    assert_int_equal(ats_bench_point(&bench, &c, 200, 1000, &point, &err), ATS_BENCH_DONE);
    assert_true(point.distinct >= 8 && point.distinct <= 8);
    ats_bench_close(&bench);
}

static void test_more_work_takes_longer(void **state)
{
    (void)state;
    struct ats_bench bench;
    struct ats_error err = {""};
    ggml_backend_dev_t cpu = ggml_backend_dev_by_type(GGML_BACKEND_DEVICE_TYPE_CPU);
    assert_true(ats_bench_open(&bench, ATS_HOST, cpu, 32 * MIB, &err));
    ats_bench_set_threads(&bench, 1);
    struct ats_profile_curve c = {
        .kind = ATS_COST_MATMUL, .type = "f32", .m = 256, .k = 256, .weight_bytes = 262144};
    struct ats_profile_point few;
    struct ats_profile_point many;
    assert_int_equal(ats_bench_point(&bench, &c, 1, 2000, &few, &err), ATS_BENCH_DONE);
    assert_int_equal(ats_bench_point(&bench, &c, 512, 2000, &many, &err), ATS_BENCH_DONE);
    assert_true(many.us > few.us); /* by a factor of hundreds */
    ats_bench_close(&bench);
}

static void test_medians_and_quartiles(void **state)
{
    (void)state;
    double odd[] = {5, 1, 4};
    double even[] = {9, 1, 3, 7};
    assert_true(fabs(ats_bench_median(odd, 3) - 4) < 1e-12);
    assert_true(fabs(ats_bench_median(even, 4) - 5) < 1e-12);
    double runs[] = {9, 2, 5, 3, 7, 4, 8, 6, 1};
    assert_true(fabs(ats_bench_quartile(odd, 3) - 1) < 1e-12);
    assert_true(fabs(ats_bench_quartile(runs, 9) - 3) < 1e-12);
}

/* ---- what is measured ---- */

static double half_a_byte(const char *type, double k)
{
    (void)type;
    return k / 2;
}

static bool is_like(const struct ats_profile_curve *a, const struct ats_profile_curve *b)
{
    return a->kind == b->kind && fabs(a->m - b->m) < 0.5 && fabs(a->k - b->k) < 0.5 &&
           fabs(a->n_experts - b->n_experts) < 0.5 && fabs(a->heads - b->heads) < 0.5;
}

/* A check that looks at what was measured would pass by itself. */
static void test_held_back_shapes_are_not_in_the_grid(void **state)
{
    (void)state;
    size_t n = 0;
    size_t n_held = 0;
    struct ats_grid_shape *grid = ats_grid_shapes(half_a_byte, &n);
    struct ats_grid_shape *held = ats_grid_held(half_a_byte, &n_held);
    assert_true(n > 30 && n_held > 10);
    for (size_t i = 0; i < n_held; i++) {
        for (size_t j = 0; j < n; j++) {
            assert_false(is_like(&held[i].curve, &grid[j].curve));
        }
        assert_true(held[i].curve.weight_bytes > 0);
    }
    size_t n_quick = 0;
    for (size_t j = 0; j < n; j++) {
        n_quick += grid[j].is_quick;
    }
    assert_true(n_quick > 5 && n_quick < n / 2);
    free(grid);
    free(held);
    /* all batches of a pass are within the table, and passes end */
    size_t pass = 0;
    size_t batches = 0;
    while (ats_grid_pass(pass, false, &n) != NULL && pass < 100) {
        assert_true(n > 0);
        batches += n;
        pass++;
    }
    assert_true(pass < 100 && batches >= 12);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_profile_is_whole),
        cmocka_unit_test(test_failures_end_with_a_message),
        cmocka_unit_test(test_pageable_memory_stands_in_for_pinned),
        cmocka_unit_test(test_shapes_that_do_not_fit_are_skipped),
        cmocka_unit_test(test_more_work_takes_longer),
        cmocka_unit_test(test_medians_and_quartiles),
        cmocka_unit_test(test_held_back_shapes_are_not_in_the_grid),
        cmocka_unit_test(test_a_lost_device_ends_with_a_message), /* for good: the last one */
    };
    return cmocka_run_group_tests(tests, start, NULL);
}
