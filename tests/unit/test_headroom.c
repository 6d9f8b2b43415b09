/* Headroom: budgets and orders worked by hand, and a device whose memory comes and goes. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "plan/headroom.h"
#include "seed.h"

enum { MIB = 1 << 20 };

/* 6400 MiB in all, 6000 free at the start; 5600 wanted, of which 5000 are used. */
static struct ats_headroom device(size_t free_mib, size_t budget_mib)
{
    return (struct ats_headroom){.total = (size_t)6400 * MIB,
                                 .free = free_mib * MIB,
                                 .used = (size_t)5000 * MIB,
                                 .budget = budget_mib * MIB,
                                 .wanted = (size_t)5600 * MIB,
                                 .before = (size_t)6000 * MIB};
}

static size_t budget_mib(struct ats_headroom memory)
{
    return ats_headroom_budget(&memory) / MIB;
}

static void test_budget(void **state)
{
    (void)state;
    assert_int_equal(budget_mib(device(1000, 5600)), 5600); /* nobody else */
    assert_int_equal(budget_mib(device(700, 5600)), 5600);  /* 100 would be left, a 64th */
    assert_int_equal(budget_mib(device(699, 5600)), 5499);  /* so that 200 are */
    assert_int_equal(budget_mib(device(60, 5000)), 4860);
    assert_int_equal(budget_mib(device(0, 5600)), 4800);
    /* 400 are to be left */
    assert_int_equal(budget_mib(device(400, 5000)), 5000);
    assert_int_equal(budget_mib(device(450, 5000)), 5050);
    assert_int_equal(budget_mib(device(900, 5200)), 5500);
    assert_int_equal(budget_mib(device(1000, 5200)), 5600);
    assert_int_equal(budget_mib(device(5000, 5200)), 5600);
    /* what others took is less than a 64th */
    struct ats_headroom little = device(60, 5600);
    little.before = (size_t)5160 * MIB;
    assert_int_equal(budget_mib(little), 5600);
    little.before++;
    assert_int_equal(budget_mib(little), 4860);
    /* all of the device is ours by request: what is not free is ours */
    struct ats_headroom whole = {.total = (size_t)6400 * MIB,
                                 .free = 0,
                                 .used = (size_t)6400 * MIB,
                                 .budget = (size_t)6400 * MIB,
                                 .wanted = (size_t)6400 * MIB,
                                 .before = (size_t)6400 * MIB};
    assert_int_equal(budget_mib(whole), 6400);
    whole.used = 0; /* others have it all, and we have nothing to give */
    assert_int_equal(budget_mib(whole), 0);
}

static void test_order(void **state)
{
    (void)state;
    static const char *const in_order[] = {"blk.0.ffn_up_exps.weight",
                                           "blk.7.ffn_down_exps.weight",
                                           "blk.2.ffn_up.weight",
                                           "blk.11.ffn_down.weight",
                                           "blk.0.attn_q.weight",
                                           "blk.3.ssm_out.weight",
                                           "output.weight"};
    enum { N = sizeof(in_order) / sizeof(in_order[0]) };
    for (size_t i = 0; i < N; i++) {
        for (size_t j = 0; j < N; j++) {
            const int order = ats_leaves_before(in_order[i], in_order[j]);
            assert_int_equal((order > 0) - (order < 0), (i > j) - (i < j));
        }
    }
    assert_int_equal(ats_leaves_before("blk.4.ffn_up.weight", "blk.4.ffn_gate.weight"), 0);
}

static void test_when_to_look(void **state)
{
    (void)state;
    assert_int_equal(ats_look_at(1000, 999), ATS_LOOK_LATER);
    assert_int_equal(ats_look_at(1000, 1000), ATS_LOOK_IF_FREE);
    assert_int_equal(ats_look_at(1000, 10000999), ATS_LOOK_IF_FREE);
    assert_int_equal(ats_look_at(1000, 10001000), ATS_LOOK_NOW);

    assert_true(ats_look_again(7e6) == 7.5e6);
    /* 240 MB take 10 ms at 24 GB/s: a fiftieth of half a second */
    assert_true(ats_look_after_return(7e6, 240000000, 24000) == 8e6);
    assert_true(ats_look_after_return(7e6, 0, 24000) == 7.5e6);
}

static void test_failures(void **state)
{
    (void)state;
    /* what each adds, in seconds: twice the one before and a half, up to a minute */
    static const double adds_s[] = {0.5, 1.5, 3.5, 7.5, 15.5, 31.5, 60, 60};
    double wait_us = 0;
    double now_us = 3e6;
    for (size_t i = 0; i < sizeof(adds_s) / sizeof(adds_s[0]); i++) {
        const double due_us = ats_look_after_failure(now_us, &wait_us);
        assert_true(wait_us == 1e6 * adds_s[i]);
        assert_true(due_us == now_us + 0.5e6 + 1e6 * adds_s[i]);
        now_us = due_us;
    }
}

/* Whatever others do: never more than wanted, no swinging while nothing changes, and what is left
 * free at rest is at least a 64th if there is anything of ours to give. */
static void test_any(void **state)
{
    (void)state;
    struct ats_rng rng = {.state = test_seed()};
    for (int round = 0; round < 2000; round++) {
        struct ats_headroom m = {.total = 64 + ats_rng_below(&rng, 1 << 20)};
        m.before = m.total - ats_rng_below(&rng, m.total / 8 + 1);
        m.wanted = m.before - m.total / 16 < m.before ? m.before - m.total / 16 : 0;
        m.budget = m.wanted;
        m.used = m.wanted;
        size_t others = m.total - m.before;
        for (int step = 0; step < 20; step++) {
            others = ats_rng_below(&rng, m.total - m.used + 1); /* more is not free */
            size_t last = SIZE_MAX;
            for (int look = 0; look < 4; look++) {
                m.free = m.total > m.used + others ? m.total - m.used - others : 0;
                m.budget = ats_headroom_budget(&m);
                assert_true(m.budget <= m.wanted);
                assert_true(look < 2 || m.budget == last);
                last = m.budget;
                m.used = m.used < m.budget ? m.used : m.budget;
                const size_t room = m.total - others - m.used;
                const size_t more = m.budget - m.used < room ? m.budget - m.used : room;
                m.used += ats_rng_below(&rng, 2) == 0 ? 0 : more;
            }
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_budget),       cmocka_unit_test(test_order),
        cmocka_unit_test(test_when_to_look), cmocka_unit_test(test_failures),
        cmocka_unit_test(test_any),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
