/* Recordings in files: written and read back the same; damaged ones, at random too, are refused or
 * harmless. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "seed.h"
#include "trace/check.h"
#include "trace/export.h"
#include "trace/file.h"
#include "trace_help.h"

enum { ROUNDS = 3000 };

static struct made made;
static char path[64];

static void make_random(struct ats_rng *rng)
{
    make_trace(&made, 2);
    for (int i = 0; i < 60; i++) {
        const size_t lane = test_between(rng, 0, 2 * LANES - 1);
        const enum ats_trace_kind kind =
            (enum ats_trace_kind)test_between(rng, ATS_TRACE_PASS, ATS_TRACE_KINDS - 1);
        struct ats_trace_record *r = make(&made, kind, lane);
        r->number = test_between(rng, 0, 20);
        r->bytes = test_between(rng, 0, 100);
        r->address = test_between(rng, 0, 300);
        r->host = test_between(rng, 0, 5);
        r->space = test_between(rng, 0, 2);
        r->count = (uint32_t)test_between(rng, 0, 3);
        snprintf(r->name, sizeof(r->name), "%s", test_chance(rng, 50) ? "blk.0.w" : "x");
    }
}

static void write_it(void)
{
    struct ats_error err;
    assert_true(ats_trace_write(&made.trace, path, &err));
}

static void test_round_trip(void **state)
{
    (void)state;
    struct ats_rng rng = test_rng(0);
    make_random(&rng);
    made.trace.dropped = 7;
    made.trace.is_incomplete = true;
    write_it();
    struct ats_trace read;
    struct ats_error err;
    assert_true(ats_trace_read(path, &read, &err));
    assert_int_equal(read.n_records, made.trace.n_records);
    assert_memory_equal(read.records, made.records, read.n_records * sizeof(read.records[0]));
    assert_int_equal(read.n_lanes, 2 * LANES);
    assert_memory_equal(read.lanes, made.trace.lanes, sizeof(read.lanes[0]) * read.n_lanes);
    assert_int_equal(read.dropped, 7);
    assert_true(read.is_incomplete && read.has_operands);
    ats_trace_free(&read);
}

static void refuse(const char *text)
{
    struct ats_trace read;
    struct ats_error err;
    assert_false(ats_trace_read(path, &read, &err));
    if (strstr(err.text, text) == NULL) {
        fail_msg("'%s' is not in '%s'", text, err.text);
    }
    assert_null(read.records);
}

static void test_refused(void **state)
{
    (void)state;
    struct ats_rng rng = test_rng(1);
    make_random(&rng);
    made.records[3].kind = ATS_TRACE_KINDS;
    write_it();
    refuse("record 3 makes no sense");
    make_random(&rng);
    made.records[5].end_ns = made.records[5].begin_ns - 1;
    write_it();
    refuse("record 5");
    make_random(&rng);
    made.records[6].begin_ns = 1; /* not in order */
    write_it();
    refuse("record 6");
    make_random(&rng);
    memset(made.records[7].name, 'x', sizeof(made.records[7].name));
    write_it();
    refuse("record 7");
    make_random(&rng);
    made.trace.lanes[2].role = ATS_TRACE_ROLES;
    write_it();
    refuse("lane 2");
    make_random(&rng);
    write_it();
    assert_int_equal(truncate(path, 1000), 0);
    refuse("its length is wrong");
    assert_int_equal(truncate(path, 10), 0);
    refuse("not a recording");
    FILE *out = fopen(path, "w");
    fputs("{\"traceEvents\": [], \"something\": \"long enough to be a header of a recording\"}",
          out);
    fclose(out);
    refuse("not a recording");
    struct ats_trace read;
    struct ats_error err;
    assert_false(ats_trace_read("/nonexistent/file", &read, &err));
    assert_non_null(strstr(err.text, "/nonexistent/file"));
    assert_false(ats_trace_read("/tmp", &read, &err));
    assert_non_null(strstr(err.text, "not a recording"));
}

/* Everything that is done with a recording. */
static void use(const struct ats_trace *trace)
{
    struct ats_error err;
    struct ats_trace_bars bars;
    struct ats_trace_summary summary;
    static struct ats_trace_check check;
    assert_true(ats_trace_bars_make(trace, &bars));
    assert_true(ats_trace_summarize(&bars, &summary));
    const struct ats_trace_totals *all = &summary.phases[ATS_PHASE_ALL];
    assert_true(all->both_us <= all->link_us && all->both_us <= all->compute_us);
    assert_true(all->cpu_us <= all->wall_us && all->overlap <= 1);
    json_t *json = ats_trace_summary_json(&bars, &summary);
    FILE *out = fopen("/dev/null", "w");
    assert_true(json != NULL && out != NULL);
    assert_true(ats_trace_write_chrome(out, &bars, json));
    assert_true(ats_trace_write_page(out, &bars, json));
    fclose(out);
    json_decref(json);
    ats_trace_bars_free(&bars);
    (void)ats_trace_check(trace, &check, &err);
}

static void test_mutated(void **state)
{
    (void)state;
    size_t n_read = 0;
    for (size_t round = 0; round < ROUNDS; round++) {
        struct ats_rng rng = test_rng(round + 2);
        make_random(&rng);
        write_it();
        FILE *file = fopen(path, "r+");
        assert_non_null(file);
        fseek(file, 0, SEEK_END);
        const long size = ftell(file);
        const size_t times = test_between(&rng, 0, 6);
        for (size_t i = 0; i < times; i++) {
            const long at = (long)ats_rng_below(&rng, (uint64_t)size);
            fseek(file, test_chance(&rng, 15) ? at % 64 : at, SEEK_SET);
            fputc((int)(test_chance(&rng, 50) ? ats_rng_below(&rng, 4) : ats_rng_below(&rng, 256)),
                  file);
        }
        fclose(file);
        struct ats_trace read;
        struct ats_error err = {{0}};
        if (ats_trace_read(path, &read, &err)) {
            use(&read);
            ats_trace_free(&read);
            n_read++;
        } else {
            assert_true(err.text[0] != '\0');
        }
    }
    assert_true(n_read > ROUNDS / 20 && n_read < ROUNDS);
}

static int make_file(void **state)
{
    (void)state;
    strcpy(path, "/tmp/ats-test-trace-XXXXXX");
    const int fd = mkstemp(path);
    return fd < 0 ? -1 : close(fd);
}

static int remove_file(void **state)
{
    (void)state;
    return unlink(path);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_round_trip),
        cmocka_unit_test(test_refused),
        cmocka_unit_test(test_mutated),
    };
    return cmocka_run_group_tests(tests, make_file, remove_file);
}
