/* Rounds: by hand, against brute force, and monotone; prints the time for 2000 units. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "plan/round.h"
#include "seed.h"

#include <math.h>
#include <time.h>

enum { MOST_UNITS = 14, LARGE = 2000 };

/* The time of a schedule, by the formulas of the header. */
static double time_of(const struct ats_round *round, const struct ats_round_unit *units, size_t n,
                      uint32_t on_accel)
{
    double us = 0;
    double credit = 0;
    for (size_t i = 0; i < n; i++) {
        const uint32_t side = on_accel >> i & 1;
        const ats_side_set allowed = units[i].allowed;
        const bool large = (double)units[i].at_once > (double)round->capacity / 2;
        if ((side == 1 && (allowed & ATS_ON(ATS_ACCEL)) == 0) ||
            (side == 0 && (allowed & ATS_ON(ATS_HOST)) == 0) ||
            (side == 1 && large && (allowed & ATS_ON(ATS_HOST)) != 0)) {
            return INFINITY;
        }
        us += i > 0 && side != (on_accel >> (i - 1) & 1) ? (double)round->split_us : 0;
        if (side == 1) {
            const double most = large ? (double)round->capacity / 2 : INFINITY;
            const double bytes = fmin((double)units[i].bytes, most);
            us += fmax(bytes - credit, 0) / (double)round->bytes_per_us[ATS_ACCEL];
            credit = fmax(credit - bytes, 0);
        }
        const double own = (double)units[i].us[side == 1 ? ATS_ACCEL : ATS_HOST];
        const double rate = (double)round->bytes_per_us[side == 1 ? ATS_ACCEL : ATS_HOST];
        us += own;
        credit = fmin(credit + own * rate, (double)round->capacity);
    }
    return us;
}

static double brute_force(const struct ats_round *round, const struct ats_round_unit *units,
                          size_t n)
{
    double best = INFINITY;
    for (uint32_t sides = 0; sides < UINT32_C(1) << n; sides++) {
        best = fmin(best, time_of(round, units, n, sides));
    }
    return best;
}

static uint32_t as_bits(const enum ats_side *sides, size_t n)
{
    uint32_t bits = 0;
    for (size_t i = 0; i < n; i++) {
        bits |= (uint32_t)(sides[i] == ATS_ACCEL) << i;
    }
    return bits;
}

static struct ats_round_unit unit(double host_us, double accel_us, double bytes)
{
    return (struct ats_round_unit){
        .us = {[ATS_HOST] = (float)host_us, [ATS_ACCEL] = (float)accel_us},
        .allowed = ATS_ON_BOTH,
        .bytes = (float)bytes,
        .at_once = (float)bytes};
}

/* Attention is on the accelerator, the CPU has three weights that take it 100 us and the link 300.
 */
static void test_by_hand(void **state)
{
    (void)state;
    struct ats_round round = {
        .split_us = 5, .bytes_per_us = {[ATS_HOST] = 4, [ATS_ACCEL] = 10}, .capacity = 8000};
    struct ats_round_unit units[] = {unit(900, 100, 0), unit(100, 10, 3000), unit(100, 10, 3000),
                                     unit(900, 100, 0), unit(100, 10, 3000)};
    units[0].allowed = ATS_ON(ATS_ACCEL);
    units[3].allowed = ATS_ON(ATS_ACCEL);
    enum ats_side sides[5];
    float us = 0;
    /* 1000 bytes cross with attention, 800 with two weights on the CPU, 1000 with attention: 2800
     * of 3000 for the last, which waits for 20 us and saves 90 and a split */
    assert_true(ats_plan_round(&round, units, 5, sides, &us));
    assert_int_equal(as_bits(sides, 5), 0x19);
    assert_float_equal(us, 100 + 5 + 200 + 5 + 100 + 20 + 10, 1e-3);
    /* no link beside the CPU: 100 us to wait for the last one are too many */
    round.bytes_per_us[ATS_HOST] = 0;
    assert_true(ats_plan_round(&round, units, 5, sides, &us));
    assert_int_equal(as_bits(sides, 5), 0x09);
    assert_float_equal(us, 100 + 5 + 200 + 5 + 100 + 5 + 100, 1e-3);
    /* too large for half of the staging memory */
    round.bytes_per_us[ATS_HOST] = 100;
    round.capacity = 5999;
    assert_true(ats_plan_round(&round, units, 5, sides, &us));
    assert_int_equal(as_bits(sides, 5), 0x09);
    /* but in pieces two cross: 5999 bytes have while the CPU had one, and 1100 more come between */
    units[1].at_once = 1000;
    units[2].at_once = 1000;
    units[4].at_once = 1000;
    assert_true(ats_plan_round(&round, units, 5, sides, &us));
    assert_int_equal(as_bits(sides, 5), 0x1d);
    assert_float_equal(us, 100 + 5 + 100 + 5 + 10 + 100 + 10, 1e-3);
    /* nothing to do */
    assert_true(ats_plan_round(&round, units, 0, sides, &us));
    assert_float_equal(us, 0, 0);
}

static void draw(struct ats_rng *rng, struct ats_round *round, struct ats_round_unit *units,
                 size_t n)
{
    static const ats_side_set sets[] = {ATS_ON_BOTH, ATS_ON_BOTH, ATS_ON_BOTH, ATS_ON(ATS_HOST),
                                        ATS_ON(ATS_ACCEL)};
    const float link = (float)test_between(rng, 1, 40);
    *round = (struct ats_round){
        .split_us = (float)test_between(rng, 0, 30),
        .bytes_per_us =
            {[ATS_HOST] = link * (float)test_between(rng, 0, 100) / 100, [ATS_ACCEL] = link},
        .capacity = test_chance(rng, 20) ? 1e9F : (float)test_between(rng, 1, 20000)};
    for (size_t i = 0; i < n; i++) {
        const double accel = (double)test_between(rng, 0, 200);
        units[i] = unit((double)test_between(rng, 0, 900), accel,
                        test_chance(rng, 40) ? 0 : (double)test_between(rng, 0, 9000));
        units[i].at_once /= (float)test_between(rng, 1, 5); /* pieces */
        units[i].allowed = sets[ats_rng_below(rng, 5)];
    }
}

static void test_equals_brute_force(void **state)
{
    (void)state;
    enum { ROUNDS = 4000, FEW_UNITS = 10 };
    struct ats_rng rng = test_rng(1);
    size_t promoted = 0;
    for (int i = 0; i < ROUNDS; i++) {
        struct ats_round round;
        struct ats_round_unit units[MOST_UNITS];
        enum ats_side sides[MOST_UNITS];
        const size_t n = test_between(&rng, 1, i % 10 == 0 ? MOST_UNITS : FEW_UNITS);
        float us = -1;
        draw(&rng, &round, units, n);
        assert_true(ats_plan_round(&round, units, n, sides, &us));
        const double own = time_of(&round, units, n, as_bits(sides, n));
        const double best = brute_force(&round, units, n);
        if (!(fabs((double)us - own) <= 1e-4 * (1 + own) && own <= best * (1 + 1e-9) + 1e-9)) {
            fail_msg("round %d of %zu units: %g us, really %g, best %g", i, n, (double)us, own,
                     best);
        }
        for (size_t k = 0; k < n; k++) {
            promoted +=
                sides[k] == ATS_ACCEL && units[k].bytes > 0 && units[k].allowed == ATS_ON_BOTH;
        }
    }
    assert_true(promoted > ROUNDS / 2);
}

/* More of anything is never slower: link, staging memory, or sides to choose from. */
static void test_monotone(void **state)
{
    (void)state;
    struct ats_rng rng = test_rng(2);
    for (int i = 0; i < 2000; i++) {
        struct ats_round round;
        struct ats_round_unit units[60];
        enum ats_side sides[60];
        float before = 0;
        float after = 0;
        draw(&rng, &round, units, 60);
        assert_true(ats_plan_round(&round, units, 60, sides, &before));
        switch (i % 3) {
        case 0:
            round.bytes_per_us[ATS_HOST] *= 1.5F;
            round.bytes_per_us[ATS_ACCEL] *= 1.5F;
            break;
        case 1:
            round.capacity *= 2;
            break;
        default:
            for (size_t k = 0; k < 60; k++) { /* a large one may not be allowed to cross */
                if (units[k].at_once <= round.capacity / 2 && test_chance(&rng, 30)) {
                    units[k].allowed = ATS_ON_BOTH;
                }
            }
            break;
        }
        for (size_t k = 0; k < 60 && i % 3 == 1; k++) { /* what was too large alone still is */
            units[k].bytes =
                units[k].at_once > round.capacity / 4 && (units[k].allowed & ATS_ON(ATS_HOST)) == 0
                    ? 0
                    : units[k].bytes;
        }
        assert_true(ats_plan_round(&round, units, 60, sides, &after));
        assert_true((double)after <= (double)before * (1 + 1e-5));
    }
}

static double now_ms(void)
{
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec * 1e3 + (double)t.tv_nsec * 1e-6;
}

/* Prints the time; what it should be is for people to judge, as machines differ. */
static void test_large(void **state)
{
    (void)state;
    static struct ats_round_unit units[LARGE];
    static enum ats_side sides[LARGE];
    struct ats_rng rng = test_rng(3);
    struct ats_round round;
    float us = 0;
    double best_ms = INFINITY;
    for (int i = 0; i < 20; i++) {
        draw(&rng, &round, units, LARGE);
        const double begin = now_ms();
        assert_true(ats_plan_round(&round, units, LARGE, sides, &us));
        best_ms = fmin(best_ms, now_ms() - begin);
    }
    print_message("%d units: %.2f ms\n", LARGE, best_ms);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_by_hand),
        cmocka_unit_test(test_equals_brute_force),
        cmocka_unit_test(test_monotone),
        cmocka_unit_test(test_large),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
