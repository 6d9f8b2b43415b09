/* Bars and totals of hand-made recordings, and what is written of them: figures worked out by
 * hand, in round numbers of microseconds. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "trace/bars.h"
#include "trace/export.h"
#include "trace/summary.h"
#include "trace_help.h"

static struct made made;
static struct ats_trace_bars bars;
static struct ats_trace_summary summary;

static const uint64_t US = 1000;

/* The host's time of the last record, in microseconds behind 1 ms. */
static void at(uint64_t begin_us, uint64_t end_us)
{
    struct ats_trace_record *r = &made.records[made.trace.n_records - 1];
    r->begin_ns = (1000 + begin_us) * US;
    r->end_ns = (1000 + end_us) * US;
}

static void ran(size_t lane, uint64_t number, uint64_t begin_us, uint64_t end_us)
{
    make_ran(&made, lane, number, (1000 + begin_us) * US, (1000 + end_us) * US);
}

static void pass(uint64_t begin_us, uint64_t end_us, uint32_t tokens)
{
    make(&made, ATS_TRACE_PASS, CPU)->count = tokens;
    at(begin_us, end_us);
}

static void compute(size_t lane, uint64_t begin_us, uint64_t end_us)
{
    struct ats_trace_record *r = make(&made, ATS_TRACE_COMPUTE, lane);
    strcpy(r->name, "first");
    strcpy(r->last, "last");
    r->count = 5;
    at(begin_us, end_us);
}

/* Prefill from 0 to 100: weights travel from 5 to 45 (8000 bytes), the stream waits for them from
 * 10 to 45, computes from 45 to 85; meanwhile the CPU computes from 20 to 30; the host waits from
 * 30 to 100. Then a token: 200 to 260, the CPU computes from 210 to 250. */
static void make_run(void)
{
    make_trace(&made, 1);
    pass(0, 100, 512);
    make_copy(&made, ATS_TRACE_TO_DEVICE, TRANSFER, "blk.0.w", 7, 0, 5000, 8000); /* command 1 */
    at(1, 3);
    make_event(&made, ATS_TRACE_EVENT_RECORD, TRANSFER, 9);
    at(3, 4);
    make_event(&made, ATS_TRACE_EVENT_WAIT, COMPUTE, 9); /* command 2 */
    at(4, 5);
    compute(COMPUTE, 5, 8); /* command 3 */
    compute(CPU, 20, 30);   /* command 4 */
    make(&made, ATS_TRACE_SYNCHRONIZE, COMPUTE);
    at(30, 100);
    ran(TRANSFER, 1, 5, 45);
    ran(COMPUTE, 2, 10, 45);
    ran(COMPUTE, 3, 45, 85);
    pass(200, 260, 1);
    compute(CPU, 210, 250);
}

static void look(void)
{
    ats_trace_bars_free(&bars);
    assert_true(ats_trace_bars_make(&made.trace, &bars));
    assert_true(ats_trace_summarize(&bars, &summary));
}

static const struct ats_trace_bar *bar_of(size_t lane, enum ats_trace_bar_kind kind)
{
    for (size_t i = 0; i < bars.n_bars; i++) {
        if (bars.bars[i].lane == lane && bars.bars[i].kind == kind) {
            return &bars.bars[i];
        }
    }
    fail_msg("no bar of kind %d on lane %zu", kind, lane);
    return NULL;
}

static void expect_bar(size_t lane, enum ats_trace_bar_kind kind, uint64_t begin_us,
                       uint64_t end_us, const char *name)
{
    const struct ats_trace_bar *bar = bar_of(lane, kind);
    assert_int_equal(bar->begin_ns, (1000 + begin_us) * US);
    assert_int_equal(bar->end_ns, (1000 + end_us) * US);
    assert_string_equal(bar->name, name);
}

static void test_bars(void **state)
{
    (void)state;
    make_run();
    look();
    expect_bar(TRANSFER, ATS_BAR_TO_DEVICE, 5, 45, "blk.0.w");
    assert_int_equal(bar_of(TRANSFER, ATS_BAR_TO_DEVICE)->bytes, 8000);
    expect_bar(COMPUTE, ATS_BAR_STALL, 10, 45, "blk.0.w"); /* what it waits for */
    expect_bar(COMPUTE, ATS_BAR_COMPUTE, 45, 85, "first");
    assert_string_equal(bar_of(COMPUTE, ATS_BAR_COMPUTE)->last, "last");
    assert_int_equal(bar_of(COMPUTE, ATS_BAR_COMPUTE)->count, 5);
    expect_bar(CPU, ATS_BAR_COMPUTE, 20, 30, "first");
    expect_bar(CPU, ATS_BAR_WAIT, 30, 100, "first");
    expect_bar(CPU, ATS_BAR_SUBMIT, 1, 3, "blk.0.w");
    for (size_t i = 0; i < bars.n_bars; i++) {
        assert_true(bars.bars[i].exact);
        assert_int_equal(bars.bars[i].pass, bars.bars[i].begin_ns >= 1200 * US);
    }
    assert_int_equal(bars.n_passes, 2);
    assert_int_equal(bars.passes[0].decoded, 0);
    assert_int_equal(bars.passes[1].decoded, 1);
    assert_int_equal(bars.begin_ns, 1000 * US);
    assert_int_equal(bars.end_ns, 1260 * US);
    /* two commands of streams have two bars each, two of the CPU one, a stall, a wait */
    assert_int_equal(bars.n_bars, 8);
}

static void near(double value, double expected)
{
    assert_float_equal(value, expected, 1e-6);
}

static void test_totals(void **state)
{
    (void)state;
    make_run();
    look();
    const struct ats_trace_totals *p = &summary.phases[ATS_PHASE_PREFILL];
    assert_int_equal(p->n_passes, 1);
    assert_int_equal(p->n_tokens, 512);
    near(p->wall_us, 100);
    near(p->cpu_us, 10);
    near(p->accel_us, 40);
    near(p->compute_us, 50);
    near(p->link_us, 40);
    near(p->both_us, 10);
    near(p->overlap, 10.0 / 40);
    near(p->stall_us, 35);
    near(p->wait_us, 70);
    near(p->submit_us, 5);
    near(p->to_device_bytes, 8000);
    near(p->to_device_us, 40);
    near(p->to_host_us, 0);
    assert_int_equal(p->n_splits, 2);
    assert_int_equal(p->n_synchronizations, 1);
    assert_int_equal(p->n_event_waits, 0);
    assert_true(p->exact);
    const struct ats_trace_totals *d = &summary.phases[ATS_PHASE_DECODE];
    assert_int_equal(d->n_passes, 1);
    near(d->wall_us, 60);
    near(d->cpu_us, 40);
    near(d->link_us, 0);
    near(d->overlap, 0);
    const struct ats_trace_totals *a = &summary.phases[ATS_PHASE_ALL];
    near(a->wall_us, 160);
    near(a->cpu_us, 50);
    assert_int_equal(a->n_splits, 3);
}

/* A pass that returns before its work is over lasts until then, and bars that overlap count once.
 */
static void test_work_in_flight(void **state)
{
    (void)state;
    make_trace(&made, 1);
    pass(0, 10, 2);
    compute(COMPUTE, 1, 2); /* 1 */
    compute(COMPUTE, 2, 3); /* 2 */
    ran(COMPUTE, 1, 5, 40);
    ran(COMPUTE, 2, 30, 60);
    look();
    near(summary.phases[ATS_PHASE_ALL].wall_us, 60);
    near(summary.phases[ATS_PHASE_ALL].accel_us, 55);
}

/* Without a clock of the accelerator: from when a command was given to when the host knew. */
static void test_windows(void **state)
{
    (void)state;
    make_trace(&made, 1);
    pass(0, 100, 1);
    make_copy(&made, ATS_TRACE_TO_DEVICE, TRANSFER, "w", 7, 0, 5000, 64); /* 1 */
    at(1, 2);
    make_event(&made, ATS_TRACE_EVENT_RECORD, TRANSFER, 9);
    at(2, 3);
    make_event(&made, ATS_TRACE_EVENT_WAIT, COMPUTE, 9);
    at(3, 4);
    compute(COMPUTE, 4, 5);
    make_event(&made, ATS_TRACE_EVENT_RECORD, COMPUTE, 8);
    at(5, 6);
    compute(COMPUTE, 6, 7);
    make_event(&made, ATS_TRACE_EVENT_SYNC, COMPUTE, 8); /* behind the first compute alone */
    at(7, 50);
    make(&made, ATS_TRACE_SYNCHRONIZE, COMPUTE); /* and so the copy is over, too */
    at(60, 80);
    make_copy(&made, ATS_TRACE_TO_HOST, COMPUTE, "y", 7, 0, 5000, 64);
    at(82, 83); /* nobody waits for this one */
    look();
    expect_bar(TRANSFER, ATS_BAR_TO_DEVICE, 1, 80, "w");
    const struct ats_trace_bar *first = bar_of(COMPUTE, ATS_BAR_COMPUTE);
    assert_int_equal(first[0].end_ns, 1050 * US);
    assert_int_equal(first[1].begin_ns, 1006 * US);
    assert_int_equal(first[1].end_ns, 1080 * US);
    expect_bar(COMPUTE, ATS_BAR_TO_HOST, 82, 100, "y");
    assert_false(first->exact);
    assert_false(summary.phases[ATS_PHASE_ALL].exact);
    assert_int_equal(summary.phases[ATS_PHASE_ALL].n_event_waits, 1);
    near(summary.phases[ATS_PHASE_ALL].accel_us, 76); /* 4 to 80 */
}

/* Tokens are counted from the last prompt on, per context. */
static void test_token_numbers(void **state)
{
    (void)state;
    make_trace(&made, 2);
    static const struct {
        uint32_t tokens;
        uint32_t context;
        uint32_t decoded;
    } rows[] = {{8, 0, 0}, {1, 0, 1}, {1, 1, 1}, {1, 0, 2}, {3, 0, 0}, {1, 0, 1}, {1, 1, 2}};
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        make(&made, ATS_TRACE_PASS, (size_t)rows[i].context * LANES)->count = rows[i].tokens;
    }
    look();
    assert_int_equal(bars.n_passes, 7);
    char text[48];
    for (size_t i = 0; i < bars.n_passes; i++) {
        assert_int_equal(bars.passes[i].decoded, rows[i].decoded);
    }
    assert_string_equal(ats_trace_pass_name(&bars.passes[3], text, sizeof(text)), "token 2");
    assert_string_equal(ats_trace_pass_name(&bars.passes[4], text, sizeof(text)),
                        "prefill, 3 tokens");
    assert_string_equal(ats_trace_lane_name(&made.trace, 4, text, sizeof(text)),
                        "context 2: EMU0 compute stream");
}

/* ---- what is written ---- */

static char *written(bool (*write)(FILE *, const struct ats_trace_bars *, const json_t *))
{
    json_t *json = ats_trace_summary_json(&bars, &summary);
    assert_non_null(json);
    char *text = NULL;
    size_t size = 0;
    FILE *out = open_memstream(&text, &size);
    assert_non_null(out);
    assert_true(write(out, &bars, json));
    fclose(out);
    json_decref(json);
    return text;
}

static void test_chrome(void **state)
{
    (void)state;
    make_run();
    look();
    char *text = written(ats_trace_write_chrome);
    json_t *root = json_loads(text, JSON_REJECT_DUPLICATES, NULL);
    assert_non_null(root);
    near(json_number_value(json_object_get(
             json_object_get(json_object_get(json_object_get(root, "otherData"), "phases"),
                             "prefill"),
             "stall_us")),
         35);
    double compute_us = 0;
    double copied = 0;
    size_t begins = 0;
    size_t i;
    json_t *event;
    json_array_foreach(json_object_get(root, "traceEvents"), i, event)
    {
        const char *phase = json_string_value(json_object_get(event, "ph"));
        const char *kind = json_string_value(json_object_get(event, "cat"));
        begins += strcmp(phase, "b") == 0;
        if (strcmp(phase, "X") == 0 && strcmp(kind, "compute") == 0) {
            compute_us += json_number_value(json_object_get(event, "dur"));
        } else if (strcmp(phase, "X") == 0 && strcmp(kind, "to device") == 0) {
            const json_t *args = json_object_get(event, "args");
            copied += json_number_value(json_object_get(args, "bytes"));
            near(json_number_value(json_object_get(args, "gbps")), 0.2); /* 8000 bytes in 40 us */
            near(json_number_value(json_object_get(event, "ts")), 5);
        }
    }
    near(compute_us, 90);
    near(copied, 8000);
    assert_int_equal(begins, 2); /* passes; all bars are exact */
    json_decref(root);
    free(text);
}

/* A name cannot end the page's script, and the data is JSON. */
static void test_page(void **state)
{
    (void)state;
    make_run();
    strcpy(made.records[1].name, "</script><!--<script>\\\"");
    look();
    char *text = written(ats_trace_write_page);
    assert_null(strstr(text, "@DATA@"));
    assert_null(strstr(text, "</script><!--"));
    const char *begin = strstr(text, "id=\"data\">");
    assert_non_null(begin);
    begin += strlen("id=\"data\">");
    const char *end = strstr(begin, "</script>");
    assert_non_null(end);
    json_t *data = json_loadb(begin, (size_t)(end - begin), JSON_REJECT_DUPLICATES, NULL);
    assert_non_null(data);
    const json_t *columns = json_object_get(data, "bars");
    const char *key;
    json_t *column;
    json_object_foreach((json_t *)columns, key, column)
    {
        assert_int_equal(json_array_size(column), bars.n_bars);
    }
    bool found = false;
    size_t i;
    json_t *name;
    json_array_foreach(json_object_get(data, "names"), i, name)
    {
        found = found || strcmp(json_string_value(name), "</script><!--<script>\\\"") == 0;
    }
    assert_true(found);
    json_decref(data);
    free(text);
}

static int clean_up(void **state)
{
    (void)state;
    ats_trace_bars_free(&bars);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_bars),           cmocka_unit_test(test_totals),
        cmocka_unit_test(test_work_in_flight), cmocka_unit_test(test_windows),
        cmocka_unit_test(test_token_numbers),  cmocka_unit_test(test_chrome),
        cmocka_unit_test(test_page),
    };
    return cmocka_run_group_tests(tests, NULL, clean_up);
}
