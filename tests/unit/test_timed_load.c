/* Load from elsewhere on the emulated accelerator against times worked out by hand, by real
 * waiting. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "timed.h"

#include <pthread.h>

/* ---- a product and a copy ---- */

struct setup {
    struct ats_emu_device *device;
    ggml_backend_t stream;
    struct timed_graph g;
    struct ggml_tensor *weights; /* f32, 2000 x 2000: 16 MB */
    uint8_t *pinned;
};

enum { SIDE = 2000, WEIGHT_BYTES = SIDE * SIDE * 4 };

/* launch 50 + (16 MB + 2 * 8 KB) / 4 GB/s = 4054 us */
static const double PRODUCT_US = 50 + (WEIGHT_BYTES + 16000) / 4e3;

/* latency 100 + 16 MB / 2 GB/s = 8100 us */
static const double COPY_US = 100 + WEIGHT_BYTES / 2e3;

static struct setup make_setup(const char *schedule)
{
    struct ats_emu_profile profile = ats_emu_profile_default();
    profile.timed = true;
    profile.rates = timed_rates();
    profile.memory = (size_t)1 << 30;
    struct ats_error err = {""};
    assert_true(ats_emu_load_parse(schedule, &profile.load, &err));
    struct setup s = {.device = ats_emu_device_create(&profile, 0, &err)};
    assert_non_null(s.device);
    s.stream = ggml_backend_dev_init(&s.device->dev, NULL);
    assert_non_null(s.stream);
    s.g = timed_graph_begin();
    s.weights = ggml_new_tensor_2d(s.g.context, GGML_TYPE_F32, SIDE, SIDE);
    struct ggml_tensor *input = ggml_new_tensor_2d(s.g.context, GGML_TYPE_F32, SIDE, 1);
    ggml_build_forward_expand(s.g.graph, ggml_mul_mat(s.g.context, s.weights, input));
    timed_graph_end(&s.g, s.device);
    s.pinned = ats_emu_pinned_alloc(WEIGHT_BYTES);
    assert_non_null(s.pinned);
    return s;
}

static void free_setup(struct setup *s)
{
    timed_graph_free(&s->g);
    ggml_backend_free(s->stream);
    ats_emu_pinned_free(s->pinned);
    ats_emu_device_destroy(s->device);
}

static void set_load(const struct setup *s, double compute, double link)
{
    struct ats_error err = {""};
    if (!ats_emu_set_load(&s->device->dev, compute, link, &err)) {
        fail_msg("%s", err.text);
    }
}

static void enter_product(const struct setup *s)
{
    assert_int_equal(ggml_backend_graph_compute_async(s->stream, s->g.graph), GGML_STATUS_SUCCESS);
}

static void run_product(void *data)
{
    enter_product(data);
    ggml_backend_synchronize(((struct setup *)data)->stream);
}

static void run_copy(void *data)
{
    const struct setup *s = data;
    ggml_backend_tensor_set_async(s->stream, s->weights, s->pinned, 0, WEIGHT_BYTES);
    ggml_backend_synchronize(s->stream);
}

static void test_operators_and_copies_take_longer(void **state)
{
    (void)state;
    struct setup s = make_setup("off");
    set_load(&s, 2.5, 1);
    assert_takes(s.device, &(struct timed_run){run_product, &s, 2.5 * PRODUCT_US});
    assert_takes(s.device, &(struct timed_run){run_copy, &s, COPY_US});
    set_load(&s, 1, 2.5);
    assert_takes(s.device, &(struct timed_run){run_product, &s, PRODUCT_US});
    assert_takes(s.device, &(struct timed_run){run_copy, &s, 2.5 * COPY_US});
    set_load(&s, 1, 1);
    assert_takes(s.device, &(struct timed_run){run_product, &s, PRODUCT_US});
    assert_takes(s.device, &(struct timed_run){run_copy, &s, COPY_US});
    free_setup(&s);
}

/* ---- changes while a command runs ---- */

/* Half of a product is done when a load of 3 comes. */
static void run_load_comes(void *data)
{
    const struct setup *s = data;
    const double begin_us = ats_emu_clock_us();
    enter_product(s);
    while (ats_emu_clock_us() - begin_us < PRODUCT_US / 2) {
    }
    set_load(s, 3, 1);
    ggml_backend_synchronize(s->stream);
    set_load(s, 1, 1);
}

/* 10 ms after a product began under a load of 10 another thread ends that: a thousandth of a second
 * of it is done. */
static const double HELD_US = 10000;

static void *end_load(void *data)
{
    const double begin_us = ats_emu_clock_us();
    while (ats_emu_clock_us() - begin_us < HELD_US) {
    }
    set_load(data, 1, 1);
    return NULL;
}

static void run_load_goes(void *data)
{
    const struct setup *s = data;
    pthread_t other;
    set_load(s, 10, 1);
    enter_product(s);
    assert_int_equal(pthread_create(&other, NULL, end_load, data), 0);
    ggml_backend_synchronize(s->stream);
    pthread_join(other, NULL);
}

static void test_what_runs_goes_on_at_the_new_speed(void **state)
{
    (void)state;
    struct setup s = make_setup("off");
    assert_takes(s.device, &(struct timed_run){run_load_comes, &s, 2 * PRODUCT_US});
    assert_takes(s.device,
                 &(struct timed_run){run_load_goes, &s, HELD_US + PRODUCT_US - HELD_US / 10});
    free_setup(&s);
}

/* ---- schedules ---- */

/* Four products are 16216 us of work: 10000 until the load of 2 comes, 2500 in the 5000 until it
 * goes, then the rest. */
static const double SCHEDULED_US = 10000 + 5000 + (4 * (50 + (WEIGHT_BYTES + 16000) / 4e3) - 12500);

static void test_a_schedule_counts_from_the_first_command(void **state)
{
    (void)state;
    double us = 0;
    double lag = 1;
    bool met = false;
    for (int i = 0; i < TIMED_TRIES && !met; i++) {
        timed_pause(i); /* of a device that is there, and has had no command */
        struct setup s = make_setup("10ms:compute=2,link=9;15ms:off");
        const struct ats_emu_counters before = timed_counters(s.device);
        const double begin_us = ats_emu_clock_us();
        for (int n = 0; n < 4; n++) {
            enter_product(&s);
        }
        ggml_backend_synchronize(s.stream);
        us = ats_emu_clock_us() - begin_us;
        lag = (timed_counters(s.device).lag_us - before.lag_us) / us;
        met = lag <= ATS_EMU_MAX_LAG / 2 && fabs(us / SCHEDULED_US - 1) <= 0.05;
        free_setup(&s);
    }
    if (!met) {
        fail_msg("%.0f us instead of %.0f (lag %.3f) in the last try", us, SCHEDULED_US, lag);
    }
}

/* ---- what is told, and what is refused ---- */

static void assert_described(const struct setup *s, const char *text)
{
    char *description = ats_emu_describe(&s->device->dev);
    assert_non_null(description);
    if (strstr(description, text) == NULL) {
        fail_msg("%s does not say %s", description, text);
    }
    free(description);
}

static void test_the_load_is_described(void **state)
{
    (void)state;
    struct setup s = make_setup("0s:compute=3;3600s:off");
    assert_described(&s, "\"load\":{\"compute\":3.0,\"link\":1.0}");
    set_load(&s, 2.5, 4);
    assert_described(&s, "\"load\":{\"compute\":2.5,\"link\":4.0}");
    free_setup(&s);
}

static void test_what_cannot_be_is_refused(void **state)
{
    (void)state;
    struct setup s = make_setup("off");
    static const double wrong[] = {0, 0.99, -1, 1001, INFINITY, NAN};
    for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
        struct ats_error err = {""};
        assert_false(ats_emu_set_load(&s.device->dev, wrong[i], 2, &err));
        assert_non_null(strstr(err.text, "EMU0"));
        assert_false(ats_emu_set_load(&s.device->dev, 2, wrong[i], &err));
    }
    assert_described(&s, "\"load\":{\"compute\":1.0,\"link\":1.0}");
    struct ats_error err = {""};
    assert_false(ats_emu_set_load(NULL, 2, 2, &err));
    assert_false(ats_emu_set_load(ats_emu_cpu_device(), 2, 2, &err));
    const struct ats_emu_profile exact = ats_emu_profile_default();
    struct ats_emu_device *device = ats_emu_device_create(&exact, 1, &err);
    assert_non_null(device);
    assert_false(ats_emu_set_load(&device->dev, 2, 2, &err));
    assert_non_null(strstr(err.text, "EMU1 computes in exact mode"));
    char *description = ats_emu_describe(&device->dev);
    assert_null(strstr(description, "load"));
    free(description);
    ats_emu_device_destroy(device);
    free_setup(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_operators_and_copies_take_longer),
        cmocka_unit_test(test_what_runs_goes_on_at_the_new_speed),
        cmocka_unit_test(test_a_schedule_counts_from_the_first_command),
        cmocka_unit_test(test_the_load_is_described),
        cmocka_unit_test(test_what_cannot_be_is_refused),
    };
    return cmocka_run_group_tests(tests, timed_load_ggml, NULL);
}
