/* The load experiments' own parts: the text of phases, and the process that takes CPU time. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "load/competitor.h"
#include "load/phases.h"

#include <errno.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

/* ---- phases ---- */

static void test_texts_that_are_phases(void **state)
{
    (void)state;
    struct ats_error err = {""};
    struct load_phase p[LOAD_PHASES];
    size_t n = 0;
    assert_true(load_phases_parse(
        "20s;30s:cpu=60;0.5s:compute=2.5,link=3;512t;120s:cpu=0-30.5,link=2", p, &n, &err));
    assert_int_equal(n, 5);
    assert_true(p[0].seconds == 20 && p[0].tokens == 0);
    assert_false(load_phase_has_cpu(&p[0]));
    assert_false(load_phase_has_accel(&p[0]));
    assert_true(p[1].seconds == 30 && p[1].cpu_from == 60 && p[1].cpu_to == 60);
    assert_true(load_phase_has_cpu(&p[1]));
    assert_false(load_phase_has_accel(&p[1]));
    assert_true(p[2].seconds == 0.5 && p[2].compute == 2.5 && p[2].link == 3);
    assert_true(load_phase_has_accel(&p[2]));
    assert_true(p[3].seconds == 0 && p[3].tokens == 512);
    assert_true(p[4].cpu_from == 0 && p[4].cpu_to == 30.5 && p[4].compute == 1 && p[4].link == 2);
    assert_true(load_phase_has_cpu(&p[4]));
}

static void test_texts_that_are_none(void **state)
{
    (void)state;
    static const char *const wrong[] = {
        "",
        ";",
        "20",
        "s",
        "20m",
        "0s",
        "-1s",
        "20s;",
        "20s:",
        "20s:cpu",
        "20s:cpu=",
        "20s:cpu=96",
        "20s:cpu=-",
        "20s:cpu=10-",
        "20s:cpu=0-96",
        "20s:cpu=5x",
        "20s,cpu=5",
        "20s:cpu=5:link=2",
        "1.5t",
        "0t",
        "20s:link=0.5",
        "20s:link=1e3",
        "20s:gpu=2",
        "20s:cpu=5,",
        "3601s",
        "9999999t",
        " 20s",
        "20s :cpu=5",
        "20s:cpu=nan",
        "20s:link=1001",
    };
    for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
        struct ats_error err = {""};
        struct load_phase p[LOAD_PHASES];
        size_t n = 0;
        if (load_phases_parse(wrong[i], p, &n, &err)) {
            fail_msg("'%s' was taken for phases", wrong[i]);
        }
        assert_true(strlen(err.text) > 0);
    }
    char text[(LOAD_PHASES + 1) * 3 + 1] = "";
    struct load_phase p[LOAD_PHASES];
    size_t n = 0;
    struct ats_error err = {""};
    for (int i = 0; i <= LOAD_PHASES; i++) {
        const size_t length = strlen(text);
        snprintf(text + length, sizeof(text) - length, "%s", i > 0 ? ";1s" : "1s");
        assert_int_equal(load_phases_parse(text, p, &n, &err), i < LOAD_PHASES);
    }
}

/* ---- the process that takes CPU time ---- */

static const double PERIOD_MS = 2;

static void start(struct competitor *c)
{
    struct ats_error err = {""};
    if (!competitor_start(c, ATS_TEST_CPU_LOAD, PERIOD_MS, &err)) {
        fail_msg("%s", err.text);
    }
}

/* The share that it has over a third of a second. Others that want the core do not keep it from
 * that if it may take priority; otherwise one undisturbed try is enough. */
static double share_of(double wanted)
{
    struct competitor c;
    struct ats_error err = {""};
    start(&c);
    assert_true(competitor_set(&c, wanted, &err));
    usleep(333000);
    const double share = competitor_share(&c);
    if (!competitor_stop(&c, &err)) {
        fail_msg("%s", err.text);
    }
    return share;
}

static void test_it_takes_what_it_is_told(void **state)
{
    (void)state;
    static const double wanted[] = {0, 0.3, 0.6};
    for (size_t i = 0; i < 3; i++) {
        double off = 1;
        for (int tries = 0; tries < 20 && off > 0.03; tries++) {
            off = fabs(share_of(wanted[i]) - wanted[i]);
        }
        if (off > 0.03) {
            fail_msg("a share of %.1f is off by %.3f", wanted[i], off);
        }
    }
}

static void test_it_ends_when_told(void **state)
{
    (void)state;
    struct competitor c;
    struct ats_error err = {""};
    start(&c);
    assert_true(competitor_set(&c, 0.1, &err));
    const pid_t pid = c.pid;
    assert_true(competitor_stop(&c, &err));
    assert_int_equal(kill(pid, 0), -1);
    assert_int_equal(errno, ESRCH);
    assert_true(competitor_stop(&c, &err)); /* there is none */
}

/* A process that started it and is killed takes it along, through nothing but its death. */
static void test_it_ends_with_its_parent(void **state)
{
    (void)state;
    assert_int_equal(prctl(PR_SET_CHILD_SUBREAPER, 1), 0);
    int ends[2];
    assert_int_equal(pipe(ends), 0);
    const pid_t parent = fork();
    assert_true(parent >= 0);
    if (parent == 0) {
        struct competitor c;
        struct ats_error err;
        pid_t pid = 0;
        if (competitor_start(&c, ATS_TEST_CPU_LOAD, PERIOD_MS, &err) &&
            competitor_set(&c, 0.1, &err)) {
            pid = c.pid;
        }
        if (write(ends[1], &pid, sizeof(pid)) != sizeof(pid)) {
            _exit(1);
        }
        pause();
        _exit(1);
    }
    pid_t pid = 0;
    assert_int_equal(read(ends[0], &pid, sizeof(pid)), sizeof(pid));
    assert_true(pid > 0);
    assert_int_equal(waitpid(pid, NULL, WNOHANG), -1); /* not ours yet */
    assert_int_equal(kill(parent, SIGKILL), 0);
    assert_int_equal(waitpid(parent, NULL, 0), parent);
    int status = 1;
    assert_int_equal(waitpid(pid, &status, 0), pid); /* or the test's time runs out */
    assert_int_equal(status, 0);
    close(ends[0]);
    close(ends[1]);
}

static void test_what_cannot_be_started_is_told(void **state)
{
    (void)state;
    struct competitor c;
    struct ats_error err = {""};
    assert_false(competitor_start(&c, "/nowhere/cpu-load", PERIOD_MS, &err));
    assert_non_null(strstr(err.text, "/nowhere/cpu-load"));
    assert_true(competitor_stop(&c, &err));
    start(&c); /* and one that fails by itself */
    assert_true(competitor_set(&c, 7, &err));
    assert_false(competitor_stop(&c, &err));
    assert_non_null(strstr(err.text, "failed"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_texts_that_are_phases),
        cmocka_unit_test(test_texts_that_are_none),
        cmocka_unit_test(test_it_takes_what_it_is_told),
        cmocka_unit_test(test_it_ends_when_told),
        cmocka_unit_test(test_it_ends_with_its_parent),
        cmocka_unit_test(test_what_cannot_be_started_is_told),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
