/* Load from elsewhere on an emulated device: the text that schedules it, and what it does to the
 * timeline. Expected times are worked out by hand. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "emu/load.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* ---- the text ---- */

static void assert_step(const struct ats_emu_load_schedule *s, size_t i, double at_us,
                        double compute, double link)
{
    assert_true(i < s->n);
    assert_true(s->steps[i].at_us == at_us);
    assert_true(s->steps[i].compute == compute);
    assert_true(s->steps[i].link == link);
}

static void test_texts_that_are_schedules(void **state)
{
    (void)state;
    struct ats_error err = {""};
    struct ats_emu_load_schedule s;
    assert_true(ats_emu_load_parse("10s:compute=2.5,link=4;40s:off", &s, &err));
    assert_int_equal(s.n, 2);
    assert_step(&s, 0, 10e6, 2.5, 4);
    assert_step(&s, 1, 40e6, 1, 1);
    assert_true(
        ats_emu_load_parse("0s:link=3;0.5s:compute=1.25;750ms:link=1000,compute=1", &s, &err));
    assert_int_equal(s.n, 3);
    assert_step(&s, 0, 0, 1, 3);
    assert_step(&s, 1, 0.5e6, 1.25, 1); /* what is not named has no load, whatever it had */
    assert_step(&s, 2, 0.75e6, 1, 1000);
    assert_true(ats_emu_load_parse("off", &s, &err));
    assert_int_equal(s.n, 0);
}

static void test_texts_that_are_none(void **state)
{
    (void)state;
    static const char *const wrong[] = {
        "",
        ";",
        "10:off",
        "10s",
        "10s:",
        "10s:of",
        "10s:off,",
        "10s:compute=2;",
        ";10s:compute=2",
        "10s:compute",
        "10s:compute=",
        "10s:compute=0.9",
        "10s:compute=1001",
        "10s:compute=-2",
        "10s:compute=2x",
        "10s:compute=2,",
        "10s:compute=2,compute=3",
        "10s:link=nan",
        "10s:link=1e2",
        "10s:gpu=2",
        "10s:off,link=2",
        "-1s:off",
        "1e3s:off",
        "10 s:off",
        " 10s:off",
        "10m:off",
        "0x10s:off",
        "1000001s:off",
        "18446744073709551616s:off",
        "10s:off;10s:compute=2",
        "10s:off;9999ms:compute=2",
        "off;10s:off",
    };
    for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
        struct ats_error err = {""};
        struct ats_emu_load_schedule s = {.n = 7};
        if (ats_emu_load_parse(wrong[i], &s, &err)) {
            fail_msg("'%s' was taken for a schedule", wrong[i]);
        }
        assert_int_equal(s.n, 7);
        assert_true(strlen(err.text) > 0 && strchr(err.text, '\n') == NULL);
    }
}

static void test_no_more_steps_than_fit(void **state)
{
    (void)state;
    char text[(ATS_EMU_LOAD_STEPS + 1) * 16];
    size_t n = 0;
    struct ats_emu_load_schedule s;
    struct ats_error err = {""};
    for (int i = 0; i <= ATS_EMU_LOAD_STEPS; i++) {
        const int room = (int)(sizeof(text) - n);
        n += (size_t)snprintf(text + n, (size_t)room, "%s%ds:link=2", i > 0 ? ";" : "", i);
        assert_int_equal(ats_emu_load_parse(text, &s, &err), i < ATS_EMU_LOAD_STEPS);
    }
    assert_int_equal(s.n, ATS_EMU_LOAD_STEPS);
    assert_non_null(strstr(err.text, "64"));
}

/* ---- the timeline ---- */

/* One device with a link of 10 GB/s in and 5 out, and memory of 40 GB/s. */
static struct ats_timeline *make_timeline(void)
{
    struct ats_timeline *t = ats_timeline_new(0, 40);
    assert_non_null(t);
    const struct ats_timeline_link link = {10, 5, 1};
    assert_int_equal(ats_timeline_add_device(t, &link), 0);
    return t;
}

static void set_load(struct ats_timeline *t, double at_us, double compute, double link)
{
    const struct ats_timeline_load load = {at_us, compute, link};
    assert_true(ats_timeline_set_loads(t, 0, &load, 1));
}

static void assert_done_at(const struct ats_timeline *t, struct ats_ticket ticket, double us)
{
    double at = -1;
    assert_true(ats_timeline_done(t, ticket, &at));
    if (fabs(at - us) > 1e-6) {
        fail_msg("done at %.6f us instead of %.6f", at, us);
    }
}

static void test_load_makes_operators_longer(void **state)
{
    (void)state;
    struct ats_timeline *t = make_timeline();
    const uint32_t stream = ats_timeline_open(t, 0);
    set_load(t, 0, 2.5, 1);
    const struct ats_ticket first = ats_timeline_compute(t, stream, 200, 1);
    const struct ats_ticket second = ats_timeline_compute(t, stream, 100, 1);
    assert_true(ats_timeline_next_us(t, 0) == 500);
    ats_timeline_advance(t, 1000, 0);
    assert_done_at(t, first, 500);
    assert_done_at(t, second, 750);
    assert_true(fabs(ats_timeline_totals(t, 0).compute_us - 750) < 1e-6); /* that long in use */
    ats_timeline_free(t);
}

/* Engine and kernel: latency 10 us and 1 MB at 10 GB/s are 110 us, both in a load of 3. */
static void test_load_makes_copies_longer(void **state)
{
    (void)state;
    for (int kernel = 0; kernel < 2; kernel++) {
        struct ats_timeline *t = make_timeline();
        const uint32_t stream = ats_timeline_open(t, 0);
        set_load(t, 0, 1, 3);
        const struct ats_timeline_copy copy = {
            .bytes = 1e6, .latency_us = 10, .kernel = kernel > 0};
        const struct ats_ticket copied = ats_timeline_copy(t, stream, &copy);
        const struct ats_ticket computed = ats_timeline_compute(t, stream, 100, 1);
        ats_timeline_advance(t, 1000, 0);
        assert_done_at(t, copied, 330);
        assert_done_at(t, computed, 430); /* operators have no load */
        ats_timeline_free(t);
    }
}

/* What is slower than the loaded link takes what it took: own limit 2 GB/s against 10 / 2.5. */
static void test_load_matters_only_where_the_link_limits(void **state)
{
    (void)state;
    struct ats_timeline *t = make_timeline();
    const uint32_t stream = ats_timeline_open(t, 0);
    set_load(t, 0, 1, 2.5);
    const struct ats_timeline_copy copy = {.bytes = 1e6, .max_gbps = 2};
    const struct ats_ticket limited = ats_timeline_copy(t, stream, &copy);
    ats_timeline_advance(t, 1000, 0);
    assert_done_at(t, limited, 500);
    ats_timeline_free(t);
}

/* Two copies share what is left of the link, 5 GB/s: 1 MB each take 400 us together. */
static void test_copies_share_a_loaded_link(void **state)
{
    (void)state;
    struct ats_timeline *t = make_timeline();
    const uint32_t engine = ats_timeline_open(t, 0);
    const uint32_t kernel = ats_timeline_open(t, 0);
    set_load(t, 0, 1, 2);
    const struct ats_timeline_copy by_engine = {.bytes = 1e6};
    const struct ats_timeline_copy by_kernel = {.bytes = 1e6, .kernel = true};
    const struct ats_ticket a = ats_timeline_copy(t, engine, &by_engine);
    const struct ats_ticket b = ats_timeline_copy(t, kernel, &by_kernel);
    ats_timeline_advance(t, 1000, 0);
    assert_done_at(t, a, 400);
    assert_done_at(t, b, 400);
    ats_timeline_free(t);
}

/* 1000 us of work: 300 done when the load of 2 comes, 200 more until it goes at 700. */
static void test_what_runs_goes_on_at_the_new_speed(void **state)
{
    (void)state;
    for (int steps = 1; steps <= 7; steps += 6) { /* however often somebody looks */
        struct ats_timeline *t = make_timeline();
        const uint32_t stream = ats_timeline_open(t, 0);
        const struct ats_timeline_load loads[] = {{300, 2, 1}, {700, 1, 1}};
        assert_true(ats_timeline_set_loads(t, 0, loads, 2));
        const struct ats_ticket work = ats_timeline_compute(t, stream, 1000, 1);
        for (int i = 1; i <= steps; i++) {
            ats_timeline_advance(t, 2000.0 * i / steps, 0);
        }
        assert_done_at(t, work, 1200);
        assert_true(ats_timeline_load(t, 0).compute == 1);
        ats_timeline_free(t);
    }
}

/* 4 MB at 10 GB/s: 1 MB has crossed when a load of 4 comes, and the rest takes 1200 us. */
static void test_a_copy_under_way_goes_on_at_the_new_rate(void **state)
{
    (void)state;
    struct ats_timeline *t = make_timeline();
    const uint32_t stream = ats_timeline_open(t, 0);
    const struct ats_timeline_copy copy = {.bytes = 4e6};
    const struct ats_ticket ticket = ats_timeline_copy(t, stream, &copy);
    ats_timeline_advance(t, 100, 0);
    set_load(t, 0, 1, 4);
    assert_true(fabs(ats_timeline_moved(t, ticket) - 1e6) < 1e-3);
    assert_true(fabs(ats_timeline_next_us(t, 0) - 1300) < 1e-6);
    ats_timeline_advance(t, 2000, 0);
    assert_done_at(t, ticket, 1300);
    ats_timeline_free(t);
}

/* Times count from the first command, which comes at 5000; a load of now does not wait for it. */
static void test_times_count_from_the_first_command(void **state)
{
    (void)state;
    struct ats_timeline *t = make_timeline();
    const uint32_t stream = ats_timeline_open(t, 0);
    const struct ats_timeline_load loads[] = {{0, 4, 1}, {200, 1, 1}};
    assert_true(ats_timeline_set_loads(t, 0, loads, 2));
    assert_true(ats_timeline_load(t, 0).compute == 4);
    assert_true(isinf(ats_timeline_next_us(t, 0)));
    ats_timeline_advance(t, 5000, 0);
    assert_true(ats_timeline_load(t, 0).compute == 4);
    const struct ats_ticket work = ats_timeline_compute(t, stream, 150, 1);
    assert_true(ats_timeline_next_us(t, 0) == 5200); /* the change comes before its end */
    ats_timeline_advance(t, 6000, 0);
    assert_done_at(t, work, 5300); /* 50 of it in 200, the other 100 without load */
    ats_timeline_free(t);
}

static void test_a_new_load_replaces_what_was_planned(void **state)
{
    (void)state;
    struct ats_timeline *t = make_timeline();
    const uint32_t stream = ats_timeline_open(t, 0);
    set_load(t, 100, 10, 1);
    const struct ats_ticket work = ats_timeline_compute(t, stream, 300, 1);
    ats_timeline_advance(t, 50, 0);
    set_load(t, 0, 2, 1);
    ats_timeline_advance(t, 1000, 0);
    assert_done_at(t, work, 50 + 2 * 250);
    /* a plan of which a part is past: that holds at once */
    const struct ats_timeline_load loads[] = {{100, 3, 1}, {200, 5, 7}, {1500, 1, 1}};
    assert_true(ats_timeline_set_loads(t, 0, loads, 3));
    assert_true(ats_timeline_load(t, 0).compute == 5);
    assert_true(ats_timeline_load(t, 0).link == 7);
    ats_timeline_free(t);
}

static void test_devices_have_loads_of_their_own(void **state)
{
    (void)state;
    struct ats_timeline *t = make_timeline();
    const struct ats_timeline_link link = {10, 5, 1};
    assert_int_equal(ats_timeline_add_device(t, &link), 1);
    const uint32_t loaded = ats_timeline_open(t, 0);
    const uint32_t quiet = ats_timeline_open(t, 1);
    set_load(t, 0, 3, 1);
    const struct ats_ticket a = ats_timeline_compute(t, loaded, 100, 1);
    const struct ats_ticket b = ats_timeline_compute(t, quiet, 100, 1);
    ats_timeline_advance(t, 1000, 0);
    assert_done_at(t, a, 300);
    assert_done_at(t, b, 100);
    ats_timeline_free(t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_texts_that_are_schedules),
        cmocka_unit_test(test_texts_that_are_none),
        cmocka_unit_test(test_no_more_steps_than_fit),
        cmocka_unit_test(test_load_makes_operators_longer),
        cmocka_unit_test(test_load_makes_copies_longer),
        cmocka_unit_test(test_load_matters_only_where_the_link_limits),
        cmocka_unit_test(test_copies_share_a_loaded_link),
        cmocka_unit_test(test_what_runs_goes_on_at_the_new_speed),
        cmocka_unit_test(test_a_copy_under_way_goes_on_at_the_new_rate),
        cmocka_unit_test(test_times_count_from_the_first_command),
        cmocka_unit_test(test_a_new_load_replaces_what_was_planned),
        cmocka_unit_test(test_devices_have_loads_of_their_own),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
