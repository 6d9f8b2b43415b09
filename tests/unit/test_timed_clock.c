/* The emulated accelerator's timed mode against times worked out by hand, by real waiting. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "timed.h"

#include <pthread.h>

#define MB 1000000

/* ---- a model of one operator and one copy ---- */

struct setup {
    struct ats_emu_device *device;
    ggml_backend_t compute;
    ggml_backend_t transfer;
    ggml_backend_event_t copied;
    struct timed_graph g;
    struct ggml_tensor *weights; /* f32, 2000 x 2000: 16 MB */
    uint8_t *pinned;
    uint8_t *pageable;
};

enum { SIDE = 2000, WEIGHT_BYTES = SIDE * SIDE * 4, SHORT_BYTES = 6 * MB, STEPS = 4 };

/* One matrix-vector product: launch 50 + (16 MB + 2 * 8 KB) / 4 GB/s = 4054 us. */
static const double PRODUCT_US = 50 + (WEIGHT_BYTES + 16000) / 4e3;

/* The same bytes over the link: latency 100 + 16 MB / 2 GB/s = 8100 us. */
static const double COPY_US = 100 + WEIGHT_BYTES / 2e3;

static struct setup make_setup(const struct ats_device_rates *rates)
{
    struct setup s = {.device = timed_device(rates)};
    s.compute = ggml_backend_dev_init(&s.device->dev, NULL);
    s.transfer = ggml_backend_dev_init(&s.device->dev, NULL);
    assert_non_null(s.compute);
    assert_non_null(s.transfer);
    s.copied = ggml_backend_event_new(&s.device->dev);
    s.g = timed_graph_begin();
    s.weights = ggml_new_tensor_2d(s.g.context, GGML_TYPE_F32, SIDE, SIDE);
    struct ggml_tensor *input = ggml_new_tensor_2d(s.g.context, GGML_TYPE_F32, SIDE, 1);
    ggml_build_forward_expand(s.g.graph, ggml_mul_mat(s.g.context, s.weights, input));
    timed_graph_end(&s.g, s.device);
    s.pinned = ats_emu_pinned_alloc(WEIGHT_BYTES);
    s.pageable = malloc(WEIGHT_BYTES);
    assert_non_null(s.pinned);
    assert_non_null(s.pageable);
    memset(s.pageable, 1, WEIGHT_BYTES);
    return s;
}

static void free_setup(struct setup *s)
{
    timed_graph_free(&s->g);
    ggml_backend_event_free(s->copied);
    ggml_backend_free(s->compute);
    ggml_backend_free(s->transfer);
    ats_emu_pinned_free(s->pinned);
    free(s->pageable);
    ats_emu_device_destroy(s->device);
}

static void compute_once(const struct setup *s)
{
    assert_int_equal(ggml_backend_graph_compute_async(s->compute, s->g.graph), GGML_STATUS_SUCCESS);
}

static void upload(const struct setup *s, ggml_backend_t stream, const uint8_t *data)
{
    ggml_backend_tensor_set_async(stream, s->weights, data, 0, WEIGHT_BYTES);
}

static void run_product(void *data)
{
    compute_once(data);
    ggml_backend_synchronize(((struct setup *)data)->compute);
}

static void run_copy(void *data)
{
    const struct setup *s = data;
    upload(s, s->transfer, s->pinned);
    ggml_backend_synchronize(s->transfer);
}

static void test_one_operator_and_one_copy(void **state)
{
    (void)state;
    const struct ats_device_rates rates = timed_rates();
    struct setup s = make_setup(&rates);
    assert_takes(s.device, &(struct timed_run){run_product, &s, PRODUCT_US});
    assert_takes(s.device, &(struct timed_run){run_copy, &s, COPY_US});
    free_setup(&s);
}

/* ---- schedules ---- */

static void run_serial(void *data)
{
    const struct setup *s = data;
    for (int i = 0; i < STEPS; i++) {
        upload(s, s->compute, s->pinned);
        compute_once(s);
    }
    ggml_backend_synchronize(s->compute);
}

/* The copy for the next step runs while a step computes, and is the longer of the two. */
static void run_overlapped(void *data)
{
    const struct setup *s = data;
    for (int i = 0; i < STEPS; i++) {
        upload(s, s->transfer, s->pinned);
        ggml_backend_event_record(s->copied, s->transfer);
        ggml_backend_event_wait(s->compute, s->copied);
        compute_once(s);
    }
    ggml_backend_synchronize(s->compute);
}

static void test_serial_and_overlapped_schedules(void **state)
{
    (void)state;
    const struct ats_device_rates rates = timed_rates();
    struct setup s = make_setup(&rates);
    assert_takes(s.device, &(struct timed_run){run_serial, &s, STEPS * (COPY_US + PRODUCT_US)});
    assert_takes(s.device, &(struct timed_run){run_overlapped, &s, STEPS * COPY_US + PRODUCT_US});
    free_setup(&s);
}

/* ---- pinned and pageable memory ---- */

static double entering_us(const struct setup *s, const uint8_t *data)
{
    const double begin_us = ats_emu_clock_us();
    upload(s, s->transfer, data);
    return ats_emu_clock_us() - begin_us;
}

static void run_pageable(void *data)
{
    const struct setup *s = data;
    upload(s, s->transfer, s->pageable); /* returns when it is over */
}

static void test_pageable_copies_keep_the_thread_busy(void **state)
{
    (void)state;
    const struct ats_device_rates rates = timed_rates();
    struct setup s = make_setup(&rates);
    /* latency 100 + 16 MB / 0.5 GB/s, without a wait */
    assert_takes(s.device, &(struct timed_run){run_pageable, &s, 100 + WEIGHT_BYTES / 0.5e3});
    double least_us = INFINITY; /* a pinned one is entered at once; the machine may be busy */
    for (int i = 0; i < TIMED_TRIES && least_us > 1000; i++) {
        least_us = fmin(least_us, entering_us(&s, s.pinned));
        ggml_backend_synchronize(s.transfer);
    }
    assert_true(least_us < COPY_US / 8);
    free_setup(&s);
}

/* ---- the CPU and the link share memory ---- */

struct burner {
    _Atomic bool stop;
    _Atomic bool running;
};

static void *burn(void *argument)
{
    struct burner *burner = argument;
    atomic_store(&burner->running, true);
    while (!atomic_load(&burner->stop)) {
    }
    return NULL;
}

/* A link as fast as memory: 3 GB/s, of which the CPU takes 2 while its one thread runs. A copy
 * of 6 MB takes 100 us and then as long as 3 GB/s * wall - 2 GB/s * CPU time make 6 MB: 6 ms with a
 * thread that runs all the time, and less on a machine that does not let it. */
static bool copy_obeys_the_cpu(const struct setup *s, clockid_t burner, double *off)
{
    struct timespec cpu[2];
    const struct ats_emu_counters before = timed_counters(s->device);
    clock_gettime(burner, &cpu[0]);
    const double begin_us = ats_emu_clock_us();
    ggml_backend_tensor_set_async(s->transfer, s->weights, s->pinned, 0, SHORT_BYTES);
    ggml_backend_synchronize(s->transfer);
    const double wall_us = ats_emu_clock_us() - begin_us;
    clock_gettime(burner, &cpu[1]);
    const struct ats_emu_counters after = timed_counters(s->device);
    const double cpu_us = (double)(cpu[1].tv_sec - cpu[0].tv_sec) * 1e6 +
                          (double)(cpu[1].tv_nsec - cpu[0].tv_nsec) * 1e-3;
    *off = (3e3 * (wall_us - 100) - 2e3 * cpu_us) / SHORT_BYTES - 1;
    return after.lag_us - before.lag_us <= 0.025 * wall_us && cpu_us > 0.3 * wall_us &&
           fabs(*off) <= 0.05;
}

static void test_a_busy_cpu_slows_copies_down(void **state)
{
    (void)state;
    struct ats_device_rates rates = timed_rates();
    rates.h2d_gbps = 3;
    struct setup s = make_setup(&rates);
    struct burner burner = {0};
    pthread_t thread;
    assert_int_equal(pthread_create(&thread, NULL, burn, &burner), 0);
    clockid_t clock;
    assert_int_equal(pthread_getcpuclockid(thread, &clock), 0);
    while (!atomic_load(&burner.running)) {
    }
    bool met = false;
    double off = 0;
    for (int i = 0; i < TIMED_TRIES && !met; i++) {
        timed_pause(i);
        met = copy_obeys_the_cpu(&s, clock, &off);
    }
    atomic_store(&burner.stop, true);
    pthread_join(thread, NULL);
    if (!met) {
        fail_msg("no copy took what a busy CPU leaves; the last was off by %.3f", off);
    }
    /* and without it memory is the link's */
    assert_takes(s.device, &(struct timed_run){run_copy, &s, 100 + WEIGHT_BYTES / 3e3});
    free_setup(&s);
}

/* ---- copy kernels ---- */

struct kernel_setup {
    struct setup *s;
    struct ggml_cgraph *graph;
};

static void run_copy_kernel(void *data)
{
    const struct kernel_setup *k = data;
    assert_int_equal(ggml_backend_graph_compute_async(k->s->compute, k->graph),
                     GGML_STATUS_SUCCESS);
    ggml_backend_synchronize(k->s->compute);
}

static void test_copy_kernels_run_on_the_compute_queue(void **state)
{
    (void)state;
    const struct ats_device_rates rates = timed_rates();
    struct setup s = make_setup(&rates);
    /* 4 MB of activations to pinned memory by a copy kernel: launch 50 + 4 MB / 1 GB/s */
    const struct ggml_init_params params = {.mem_size = 1 << 20, .no_alloc = true};
    struct ggml_context *context = ggml_init(params);
    struct ggml_tensor *from = ggml_view_1d(context, s.weights, MB, 0);
    struct ggml_tensor *to = ggml_new_tensor_1d(context, GGML_TYPE_F32, MB);
    to->data = s.pinned;
    struct ggml_cgraph *graph = ggml_new_graph(context);
    ggml_build_forward_expand(graph, ggml_cpy(context, from, to));
    from->data = s.weights->data;
    struct kernel_setup k = {&s, graph};
    assert_takes(s.device, &(struct timed_run){run_copy_kernel, &k, 50 + 4000});
    const struct ats_emu_counters before = timed_counters(s.device);
    run_copy_kernel(&k);
    const struct ats_emu_counters after = timed_counters(s.device);
    assert_int_equal((uint64_t)(after.bytes_d2h - before.bytes_d2h + 0.5), 4 * MB);
    assert_int_equal(after.launches - before.launches, 1);
    assert_int_equal(after.copies_d2h - before.copies_d2h, 1);
    for (size_t i = 0; i < MB; i++) { /* what the host now reads is finite */
        float value;
        memcpy(&value, s.pinned + i * sizeof(value), sizeof(value));
        assert_true(isfinite(value));
    }
    ggml_free(context);
    free_setup(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_one_operator_and_one_copy),
        cmocka_unit_test(test_serial_and_overlapped_schedules),
        cmocka_unit_test(test_pageable_copies_keep_the_thread_busy),
        cmocka_unit_test(test_a_busy_cpu_slows_copies_down),
        cmocka_unit_test(test_copy_kernels_run_on_the_compute_queue),
    };
    return cmocka_run_group_tests(tests, timed_load_ggml, NULL);
}
