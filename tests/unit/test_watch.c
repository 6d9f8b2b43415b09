/* Watching: rates by hand, and a small machine whose parts become slower and faster. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "plan/watch.h"
#include "seed.h"

#include <math.h>
#include <string.h>

/* ---- a machine ---- */

/* 3 GB of weights in host memory. Some of them cross the link in each pass, which the accelerator
 * uses in no time; the CPU reads the others at 36 GB/s. The accelerator has 30 ms of its own. */
static const double HOST_BYTES = 3e9;
static const double CPU_RATE = 36e3;
static const double LINK_RATE = 12e3;
static const double ACCEL_US = 30e3;

struct machine {
    struct ats_drift now;
    double noise; /* times vary by this share, either way */
    double work;  /* of a pass, over the usual */
    double n_tokens;
    struct ats_rng rng;
    double clock_us;
};

static double vary(struct machine *m)
{
    return 1 + m->noise * (2 * (double)ats_rng_below(&m->rng, 1000) / 1000 - 1);
}

/* What crosses if all takes as it is planned: as much as fills the time of a pass. */
static double crossing(const struct ats_drift *planned)
{
    const double cpu = CPU_RATE / planned->side[ATS_HOST];
    const double link = LINK_RATE / planned->link;
    return link * (HOST_BYTES / cpu + ACCEL_US * planned->side[ATS_ACCEL]) / (1 + link / cpu);
}

static struct ats_pass_times run(struct machine *m, const struct ats_drift *planned)
{
    const double bytes = crossing(planned);
    struct ats_pass_times pass = {
        .profile_us = {[ATS_HOST] = (HOST_BYTES - bytes) / CPU_RATE, [ATS_ACCEL] = ACCEL_US},
        .n_tokens = m->n_tokens,
        .crossed_bytes = bytes,
        /* late hosts are planned for by few changes of side */
        .n_stretches = planned->late_us > 1000 ? 1 : 10,
    };
    pass.late_us = pass.n_stretches > 1 ? pass.n_stretches * m->now.late_us : 0;
    pass.us[ATS_HOST] = pass.profile_us[ATS_HOST] * m->now.side[ATS_HOST] * m->work * vary(m);
    pass.us[ATS_ACCEL] = pass.profile_us[ATS_ACCEL] * m->now.side[ATS_ACCEL] * m->work * vary(m);
    const double work_us = pass.us[ATS_HOST] + pass.us[ATS_ACCEL] + pass.late_us;
    pass.wall_us = fmax(work_us, bytes * m->now.link / LINK_RATE);
    pass.stalled_us = pass.wall_us - work_us;
    pass.credit_bytes = LINK_RATE * pass.wall_us;
    m->clock_us += pass.wall_us;
    return pass;
}

/* Runs for so many passes; returns how often was planned anew. */
static size_t watch_passes(struct machine *m, struct ats_watch *watch, size_t n)
{
    size_t n_plans = 0;
    for (size_t i = 0; i < n; i++) {
        const struct ats_pass_times pass = run(m, &watch->planned);
        n_plans += ats_watch_pass(watch, &pass, m->clock_us) != ATS_WATCH_NOTHING;
    }
    return n_plans;
}

static struct machine quiet_machine(uint64_t seed)
{
    return (struct machine){
        .now = ats_no_drift, .noise = 0.05, .work = 1, .n_tokens = 1, .rng = {.state = seed}};
}

/* ---- tests ---- */

static void test_lateness(void **state)
{
    (void)state;
    /* the second is the quickest, at 1.5 times the profile: 1350 of the 2000 us of all three are
     * the accelerator's own; 100 us that are in none stay */
    static const struct ats_stretch stretches[] = {{1000, 400}, {600, 400}, {400, 100}};
    struct ats_pass_times pass = {.us = {[ATS_HOST] = 70, [ATS_ACCEL] = 2100}};
    ats_watch_take_lateness(&pass, stretches, 3);
    assert_float_equal(pass.us[ATS_ACCEL], 1450, 1e-9);
    assert_float_equal(pass.late_us, 650, 1e-9);
    assert_float_equal(pass.n_stretches, 3, 0);
    assert_float_equal(pass.us[ATS_HOST], 70, 0);

    /* a short one is not what others are measured by, however quick */
    static const struct ats_stretch with_short[] = {{1000, 400}, {30, 99}};
    pass = (struct ats_pass_times){.us = {[ATS_ACCEL] = 1030}};
    ats_watch_take_lateness(&pass, with_short, 2);
    assert_float_equal(pass.us[ATS_ACCEL], 1030, 1e-9); /* 2.5 * 499 would be more */
    assert_float_equal(pass.late_us, 0, 1e-9);
    assert_float_equal(pass.n_stretches, 2, 0);

    /* but is measured by them: 1000 + 2.5 * 80 */
    static const struct ats_stretch late_short[] = {{1000, 400}, {900, 80}};
    pass = (struct ats_pass_times){.us = {[ATS_ACCEL] = 1900}};
    ats_watch_take_lateness(&pass, late_short, 2);
    assert_float_equal(pass.us[ATS_ACCEL], 1200, 1e-9);
    assert_float_equal(pass.late_us, 700, 1e-9);

    /* nothing to go by */
    static const struct ats_stretch all_short[] = {{900, 80}, {90, 80}};
    pass = (struct ats_pass_times){.us = {[ATS_ACCEL] = 990}};
    ats_watch_take_lateness(&pass, all_short, 2);
    ats_watch_take_lateness(&pass, NULL, 0);
    assert_float_equal(pass.us[ATS_ACCEL], 990, 0);
    assert_float_equal(pass.late_us, 0, 0);
    assert_float_equal(pass.n_stretches, 0, 0);
}

static void test_rates(void **state)
{
    (void)state;
    const struct ats_drift drift = {.side = {[ATS_HOST] = 2, [ATS_ACCEL] = 4}, .link = 3};
    const struct ats_plan_rates *base = &ats_plan_rates_assumed;
    const struct ats_plan_rates rates = ats_plan_rates_drifted(base, &drift);
    assert_float_equal(rates.side[ATS_HOST].vram_gbps[ATS_FAMILY_Q4], 15, 1e-9);
    assert_float_equal(rates.side[ATS_HOST].launch_us, 4, 1e-9);
    assert_float_equal(rates.side[ATS_ACCEL].matmul_tflops[ATS_FAMILY_Q4], 2.5, 1e-9);
    assert_float_equal(rates.side[ATS_ACCEL].small_op_gbps, 62.5, 1e-9);
    assert_float_equal(rates.costs.link_bytes_per_us, 8000, 1e-2);
    /* the CPU reads 15 GB/s less, so the link gets 9 + 15 of its 24 */
    assert_float_equal(rates.costs.link_beside_cpu_bytes_per_us, 8000, 1e-2);
    assert_float_equal(rates.costs.split_us, 40, 1e-3);
    const struct ats_drift late = {.side = {1, 1}, .link = 1, .late_us = 25};
    assert_float_equal(ats_plan_rates_drifted(base, &late).costs.split_us, 65, 1e-3);
    const struct ats_plan_rates same = ats_plan_rates_drifted(base, &ats_no_drift);
    assert_memory_equal(&same, base, sizeof(same));
}

static void test_quiet(void **state)
{
    struct machine m = quiet_machine(*(uint64_t *)*state);
    struct ats_watch watch;
    ats_watch_start(&watch, 0);
    assert_int_equal(watch_passes(&m, &watch, 5000), 0);
}

/* A pass in eight is ten times as long. */
static void test_outliers(void **state)
{
    struct machine m = quiet_machine(*(uint64_t *)*state);
    struct ats_watch watch;
    ats_watch_start(&watch, 0);
    for (size_t i = 0; i < 4000; i++) {
        struct ats_pass_times pass = run(&m, &watch.planned);
        if (i % 8 == 3) {
            pass.us[ATS_HOST] *= 10;
            pass.us[ATS_ACCEL] *= 10;
            pass.late_us = pass.wall_us;
            pass.wall_us *= 10;
        }
        assert_int_equal(ats_watch_pass(&watch, &pass, m.clock_us), ATS_WATCH_NOTHING);
    }
}

/* Nothing that is no time moves anything. */
static void test_no_times(void **state)
{
    struct machine m = quiet_machine(*(uint64_t *)*state);
    struct ats_watch watch;
    ats_watch_start(&watch, 0);
    for (size_t i = 0; i < 100; i++) {
        struct ats_pass_times pass = run(&m, &watch.planned);
        pass.wall_us = i % 2 == 0 ? 0 : NAN;
        assert_int_equal(ats_watch_pass(&watch, &pass, m.clock_us), ATS_WATCH_NOTHING);
    }
    assert_int_equal(watch.n_passes, 0);
}

/* Later there is rest, but for tries whether the link is slower with the accelerator. */
static void check_load(struct machine *m, double *part, double drift, const double *planned,
                       struct ats_watch *watch)
{
    const size_t tries = part == &m->now.side[ATS_ACCEL] ? 8 : 0;
    const double before = *part;
    *part = drift;
    assert_in_range(watch_passes(m, watch, 15), 1, 2);
    assert_true(fabs(*planned / drift - 1) < 0.08);
    assert_in_range(watch_passes(m, watch, 2000), 0, tries);
    *part = before;
    assert_in_range(watch_passes(m, watch, 15), 1, 2);
    assert_true(fabs(*planned / before - 1) < 0.08);
    assert_int_equal(watch_passes(m, watch, 2000), 0);
}

/* A load is answered within 15 passes, and then there is rest; so is its end. */
static void test_loads(void **state)
{
    struct machine m = quiet_machine(*(uint64_t *)*state);
    struct ats_watch watch;
    ats_watch_start(&watch, 0);
    check_load(&m, &m.now.side[ATS_HOST], 2.5, &watch.planned.side[ATS_HOST], &watch);
    check_load(&m, &m.now.side[ATS_ACCEL], 2.5, &watch.planned.side[ATS_ACCEL], &watch);
    m.now.late_us = 4000;
    assert_int_equal(watch_passes(&m, &watch, 15), 1);
    assert_float_equal(watch.planned.late_us, 4000, 1);
    m.now.late_us = 0; /* of few changes of side it cannot be seen, so it is tried */
    watch_passes(&m, &watch, 60);
    assert_float_equal(watch.planned.late_us, 0, 1);
}

/* A slow link is found by waits for it, tried again ever more rarely, and found to be fast again.
 */
static void test_link(void **state)
{
    struct machine m = quiet_machine(*(uint64_t *)*state);
    struct ats_watch watch;
    ats_watch_start(&watch, 0);
    m.now.link = 3;
    assert_in_range(watch_passes(&m, &watch, 12), 1, 2);
    assert_in_range((int)(10 * watch.planned.link), 29, 36);
    const double begin_us = m.clock_us;
    size_t n_plans = 0;
    while (m.clock_us < begin_us + 600e6) {
        n_plans += watch_passes(&m, &watch, 1);
    }
    /* tries after 2, 4, ... 32 s and then each minute, each with a way back */
    assert_in_range(n_plans, 12, 32);
    m.now.link = 1;
    const double slow_us = run(&m, &watch.planned).wall_us;
    while (m.clock_us < begin_us + 1200e6) {
        watch_passes(&m, &watch, 1);
    }
    assert_true(watch.planned.link < 1.2);
    assert_true(run(&m, &watch.planned).wall_us < 0.9 * slow_us);
}

/* What took the CPU had taken the link as well: both are tried at once. */
static void test_link_recovers_with_a_side(void **state)
{
    struct machine m = quiet_machine(*(uint64_t *)*state);
    struct ats_watch watch;
    ats_watch_start(&watch, 0);
    m.now.link = 2.5;
    m.now.side[ATS_ACCEL] = 2.5;
    watch_passes(&m, &watch, 200);
    assert_true(watch.planned.link > 1.5);
    m.now = ats_no_drift;
    const double begin_us = m.clock_us;
    while (watch.planned.link > 1 || watch.planned.side[ATS_ACCEL] > 1.2) {
        watch_passes(&m, &watch, 1);
        assert_true(m.clock_us < begin_us + 2e6);
    }
}

/* Plans that change nothing for the better are taken back, and tried again ever more rarely. */
static void test_taken_back(void **state)
{
    struct machine m = quiet_machine(*(uint64_t *)*state);
    struct ats_watch watch;
    ats_watch_start(&watch, 0);
    m.now.side[ATS_HOST] = 1.5;
    bool was_taken_back = false;
    size_t n_plans = 0;
    for (size_t i = 0; i < 2000; i++) {
        struct ats_pass_times pass = run(&m, &ats_no_drift);
        if (watch.planned.side[ATS_HOST] > 1.2) {
            pass.wall_us *= 1.2; /* under the new plan */
        }
        const enum ats_watch_reason reason = ats_watch_pass(&watch, &pass, m.clock_us);
        n_plans += reason != ATS_WATCH_NOTHING;
        if (reason == ATS_WATCH_TAKEN_BACK) {
            was_taken_back = true;
            assert_true(watch.planned.side[ATS_HOST] < 1.1);
        }
    }
    assert_true(was_taken_back);
    assert_in_range(n_plans, 4, 20); /* tried again after 2, 4, 8, ... and then 60 s */
}

/* Passes that have more to do for a while, just when a plan is judged, mislead for a while only. */
static void test_misled(void **state)
{
    struct machine m = quiet_machine(*(uint64_t *)*state);
    struct ats_watch watch;
    ats_watch_start(&watch, 0);
    watch_passes(&m, &watch, 50);
    m.now.side[ATS_HOST] = 2.5;
    while (watch.planned.side[ATS_HOST] < 2) {
        watch_passes(&m, &watch, 1);
    }
    m.work = 2.2;
    watch_passes(&m, &watch, 20);
    m.work = 1;
    watch_passes(&m, &watch, 600);
    assert_true(fabs(watch.planned.side[ATS_HOST] / 2.5 - 1) < 0.08);
}

/* Passes of other numbers of tokens in between are not compared with these. */
static void test_tokens(void **state)
{
    struct machine m = quiet_machine(*(uint64_t *)*state);
    struct ats_watch watch;
    ats_watch_start(&watch, 0);
    for (size_t i = 0; i < 2000; i++) {
        m.n_tokens = i % 3 == 2 ? 4 : 1;
        m.work = i % 3 == 2 ? 3 : 1;
        assert_int_equal(watch_passes(&m, &watch, 1), 0);
    }
    m.n_tokens = 4; /* from now on all are such, and the profile is wrong for them */
    m.work = 3;
    assert_in_range(watch_passes(&m, &watch, 40), 1, 4);
}

/* A load that comes and goes: the more often, the fewer of its turns are followed. */
static void test_periodic(void **state)
{
    const uint64_t seed = *(uint64_t *)*state;
    for (uint64_t k = 0; k < 40; k++) {
        struct machine m = quiet_machine(seed + k);
        struct ats_watch watch;
        ats_watch_start(&watch, 0);
        const size_t half = 2 + (size_t)ats_rng_below(&m.rng, 60);
        size_t n_plans = 0;
        for (size_t turn = 0; turn * half < 3000; turn++) {
            m.now.side[ATS_HOST] = turn % 2 == 0 ? 1 : 2.5;
            n_plans += watch_passes(&m, &watch, half);
        }
        if (half < 30 && (double)n_plans > 3 + m.clock_us / 1.5e6) {
            fail_msg("seed %llu: %zu plans in 3000 passes of a load that turns every %zu",
                     (unsigned long long)(seed + k), n_plans, half);
        }
        /* never more than a turn, its correction, and the way back of a plan that was slower */
        assert_true(n_plans <= 3 * (3000 / half + 1));
        m.now.side[ATS_HOST] = 1;
        watch_passes(&m, &watch, 2000);
        assert_true(watch.planned.side[ATS_HOST] < 1.2);
    }
}

static void test_texts(void **state)
{
    (void)state;
    for (int r = 0; r < ATS_WATCH_REASONS; r++) {
        assert_true(strlen(ats_watch_reason_text((enum ats_watch_reason)r)) > 5);
    }
    assert_string_equal(ats_watch_reason_text((enum ats_watch_reason)99),
                        ats_watch_reason_text(ATS_WATCH_NOTHING));
}

int main(void)
{
    static uint64_t seed;
    seed = test_seed();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_lateness),
        cmocka_unit_test(test_rates),
        cmocka_unit_test_prestate(test_quiet, &seed),
        cmocka_unit_test_prestate(test_outliers, &seed),
        cmocka_unit_test_prestate(test_no_times, &seed),
        cmocka_unit_test_prestate(test_loads, &seed),
        cmocka_unit_test_prestate(test_link, &seed),
        cmocka_unit_test_prestate(test_link_recovers_with_a_side, &seed),
        cmocka_unit_test_prestate(test_taken_back, &seed),
        cmocka_unit_test_prestate(test_misled, &seed),
        cmocka_unit_test_prestate(test_tokens, &seed),
        cmocka_unit_test_prestate(test_periodic, &seed),
        cmocka_unit_test(test_texts),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
