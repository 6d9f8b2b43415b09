/* `ats top` without its files: from two looks at the figures to rates, by numbers worked out by
 * hand; the table, JSON, and Prometheus' text. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "plan/watch.h"
#include "top/show.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define S(seconds) ((uint64_t)((seconds)*1e9 + 0.5))

static struct ats_live_device device_before(void)
{
    return (struct ats_live_device){
        .name = "ATS0",
        .accelerator = "CUDA0",
        .figures = {[ATS_LIVE_UPDATED_NS] = S(9.5),
                    [ATS_LIVE_BUSY_NS] = S(7),
                    [ATS_LIVE_CONTEXTS] = 1,
                    [ATS_LIVE_BUDGET_BYTES] = 6442450944,       /* 6 GiB */
                    [ATS_LIVE_USED_BYTES] = 5368709120,         /* 5 GiB */
                    [ATS_LIVE_WEIGHTS_VRAM_BYTES] = 4294967296, /* 4 GiB */
                    [ATS_LIVE_WEIGHTS_HOST_BYTES] = 8589934592, /* 8 GiB */
                    [ATS_LIVE_STATE_VRAM_BYTES] = 536870912,    /* 512 MiB */
                    [ATS_LIVE_STATE_HOST_BYTES] = 0,
                    [ATS_LIVE_GRAPHS] = 100,
                    [ATS_LIVE_SPLITS] = 1000,
                    [ATS_LIVE_LAST_SPLITS] = 10,
                    [ATS_LIVE_TO_ACCEL_BYTES] = 10000000000,
                    [ATS_LIVE_TO_HOST_BYTES] = 1000000000,
                    [ATS_LIVE_PROMOTED_BYTES] = 4000000000,
                    [ATS_LIVE_EXPERT_HITS] = 300,
                    [ATS_LIVE_EXPERT_MISSES] = 100,
                    [ATS_LIVE_PROMPT_TOKENS] = 512,
                    [ATS_LIVE_PROMPT_NS] = S(2),
                    [ATS_LIVE_ANSWER_TOKENS] = 100,
                    [ATS_LIVE_ANSWER_NS] = S(5),
                    [ATS_LIVE_CPU_NS] = S(3),
                    [ATS_LIVE_ACCEL_NS] = S(2),
                    [ATS_LIVE_STALLED_NS] = S(0.5)}};
}

/* Two seconds later: 30 tokens in 0.6 s of passes of one, 256 in 0.4 s of others, 1 s together; a
 * pass has run for a second and goes on. */
static struct ats_live_device device_now(void)
{
    struct ats_live_device d = device_before();
    uint64_t *f = d.figures;
    f[ATS_LIVE_UPDATED_NS] = S(10.9);
    f[ATS_LIVE_BUSY_NS] = S(7.5);
    f[ATS_LIVE_BUSY_SINCE_NS] = S(11);
    f[ATS_LIVE_GRAPHS] += 31;
    f[ATS_LIVE_SPLITS] += 2015; /* 65 each */
    f[ATS_LIVE_LAST_SPLITS] = 65;
    f[ATS_LIVE_TO_ACCEL_BYTES] += 11200000000;
    f[ATS_LIVE_TO_HOST_BYTES] += 500000000;
    f[ATS_LIVE_PROMOTED_BYTES] += UINT64_C(286) << 20; /* 1 MiB per token */
    f[ATS_LIVE_EXPERT_HITS] += 831;
    f[ATS_LIVE_EXPERT_MISSES] += 169;
    f[ATS_LIVE_PROMPT_TOKENS] += 256;
    f[ATS_LIVE_PROMPT_NS] += S(0.4);
    f[ATS_LIVE_ANSWER_TOKENS] += 30;
    f[ATS_LIVE_ANSWER_NS] += S(0.6);
    f[ATS_LIVE_CPU_NS] += S(0.62);
    f[ATS_LIVE_ACCEL_NS] += S(0.71);
    f[ATS_LIVE_STALLED_NS] += S(0.03);
    f[ATS_LIVE_REPLANS] = 3;
    f[ATS_LIVE_ROLLBACKS] = 1;
    f[ATS_LIVE_REPLAN_NS] = S(0.0125);
    f[ATS_LIVE_REPLAN_REASON] = ATS_WATCH_CPU_SLOWER;
    return d;
}

static void expect(double value, double expected)
{
    if (!(fabs(value - expected) <= 1e-9 * fabs(expected))) {
        fail_msg("%.17g, expected %.17g", value, expected);
    }
}

static void test_rates(void **state)
{
    (void)state;
    const struct ats_live_device before = device_before();
    const struct ats_live_device now = device_now();
    const struct ats_top_rates r = ats_top_compare(&before, S(10), &now, S(12));
    expect(r.pass_s, 1);
    assert_int_equal(r.answer_tokens, 30);
    assert_int_equal(r.prompt_tokens, 256);
    expect(r.answer_per_s, 50);
    expect(r.prompt_per_s, 640);
    expect(r.busy, 0.75); /* half a second of passes that ended, and one of the running one */
    expect(r.cpu, 0.62);
    expect(r.accel, 0.71);
    expect(r.stalled, 0.03);
    expect(r.to_accel_gbps, 11.2);
    expect(r.to_host_gbps, 0.5);
    expect(r.promoted_per_token, 1048576);
    expect(r.splits_per_graph, 65);
    expect(r.expert_hits, 0.831);

    assert_int_equal(ats_top_busy_ns(&now, S(12)), S(8.5));
    assert_int_equal(ats_top_busy_ns(&now, S(10)), S(7.5)); /* an older look at the clock */
    expect(ats_top_idle_s(&before, S(12)), 2.5);
    expect(ats_top_idle_s(&now, S(12)), 0); /* it computes */
    assert_null(ats_top_reason(&before));
    assert_string_equal(ats_top_reason(&now), "the CPU is slower");
}

/* Where nothing happened there is no rate, and no division by zero. */
static void test_no_rates(void **state)
{
    (void)state;
    const struct ats_live_device d = device_before();
    struct ats_live_device later = d;
    const struct ats_top_rates none = ats_top_compare(NULL, 0, &d, S(10));
    assert_true(isnan(none.answer_per_s) && isnan(none.busy) && isnan(none.expert_hits));
    const struct ats_top_rates same = ats_top_compare(&d, S(10), &d, S(12));
    assert_true(isnan(same.answer_per_s) && isnan(same.prompt_per_s) && isnan(same.cpu));
    assert_true(isnan(same.to_accel_gbps) && isnan(same.promoted_per_token));
    assert_true(isnan(same.splits_per_graph) && isnan(same.expert_hits));
    expect(same.busy, 0);
    assert_true(isnan(ats_top_compare(&d, S(10), &d, S(10)).busy));
    /* answers alone */
    later.figures[ATS_LIVE_ANSWER_TOKENS] += 4;
    later.figures[ATS_LIVE_ANSWER_NS] += S(0.5);
    const struct ats_top_rates answers = ats_top_compare(&d, S(10), &later, S(11));
    expect(answers.answer_per_s, 8);
    assert_true(isnan(answers.prompt_per_s));
    expect(answers.to_accel_gbps, 0);
    /* what cannot be: counters that go back, more time than there was */
    later.figures[ATS_LIVE_ANSWER_TOKENS] = 1;
    later.figures[ATS_LIVE_BUSY_NS] += S(100);
    const struct ats_top_rates odd = ats_top_compare(&d, S(10), &later, S(11));
    expect(odd.answer_per_s, 0);
    expect(odd.busy, 1);
}

static struct ats_live_process process_of(const struct ats_live_device *device, const char *file)
{
    struct ats_live_process p = {.pid = 12345, .started_s = 1000, .n_devices = 1};
    strcpy(p.program, "llama-server");
    snprintf(p.file, sizeof(p.file), "%s", file);
    p.devices[0] = *device;
    return p;
}

static struct ats_top_sample sample_of(const struct ats_live_process *processes, size_t n,
                                       double at_s, const struct ats_top_sample *before)
{
    struct ats_top_sample sample;
    assert_true(ats_top_sample_make(&sample, processes, n, 1700 + at_s, S(at_s), before));
    return sample;
}

/* Processes are told by their files: one with the same number is another one. */
static void test_samples(void **state)
{
    (void)state;
    const struct ats_live_device before = device_before();
    const struct ats_live_device now = device_now();
    struct ats_live_process two[2] = {process_of(&before, "1-a.live"),
                                      process_of(&before, "1-b.live")};
    struct ats_top_sample first = sample_of(two, 2, 10, NULL);
    assert_int_equal(first.n, 2);
    expect(first.interval_s, 0);
    assert_true(isnan(first.entries[0].rates[0].busy));

    two[0] = process_of(&now, "1-b.live");
    two[1] = process_of(&now, "1-c.live");
    struct ats_top_sample second = sample_of(two, 2, 12, &first);
    expect(second.interval_s, 2);
    expect(second.entries[0].rates[0].answer_per_s, 50);
    assert_true(isnan(second.entries[1].rates[0].answer_per_s));

    /* a pass runs and none has ended: what was seen last goes on, but for what is of this sample */
    struct ats_top_sample third = sample_of(two, 1, 14, &second);
    const struct ats_top_rates *r = &third.entries[0].rates[0];
    expect(r->answer_per_s, 50);
    expect(r->cpu, 0.62);
    expect(r->busy, 1);
    assert_int_equal(r->answer_tokens, 0);
    /* none runs: nothing goes on */
    two[0].devices[0].figures[ATS_LIVE_BUSY_SINCE_NS] = 0;
    struct ats_top_sample fourth = sample_of(two, 1, 16, &third);
    assert_true(isnan(fourth.entries[0].rates[0].answer_per_s));

    struct ats_top_sample none = sample_of(NULL, 0, 18, &fourth);
    assert_int_equal(none.n, 0);
    ats_top_sample_free(&first);
    ats_top_sample_free(&second);
    ats_top_sample_free(&third);
    ats_top_sample_free(&fourth);
    ats_top_sample_free(&none);
}

static struct ats_top_sample shown_sample(void)
{
    const struct ats_live_device before = device_before();
    const struct ats_live_device now = device_now();
    const struct ats_live_process p = process_of(&before, "1-a.live");
    const struct ats_live_process q = process_of(&now, "1-a.live");
    struct ats_top_sample first = sample_of(&p, 1, 10, NULL);
    struct ats_top_sample second = sample_of(&q, 1, 12, &first);
    ats_top_sample_free(&first);
    return second;
}

static char *printed(const struct ats_top_sample *sample, const struct ats_top_style *style)
{
    char *text = NULL;
    size_t n = 0;
    FILE *out = open_memstream(&text, &n);
    assert_non_null(out);
    ats_top_print(out, sample, style);
    assert_int_equal(fclose(out), 0);
    return text;
}

static void test_table(void **state)
{
    (void)state;
    static const char expected[] =
        "ats top  10:20:30  1 process\n"
        "\n"
        "llama-server, process 12345, for 11:52 min\n"
        "ATS0 = CPU + CUDA0                           busy 75 %, in a pass for 1 s\n"
        "  answers               50.0 tokens/s    prompts    640.0 tokens/s\n"
        "  CPU computes      [############        ]   62 % of the passes\n"
        "  CUDA0 works       [##############      ]   71 % as the host sees it\n"
        "  VRAM in use       [#################   ]  5.0 GiB of 6.0 GiB\n"
        "  in VRAM           weights 4.0 GiB, KV and state 512 MiB\n"
        "  in host memory    weights 8.0 GiB, KV and state 0 B\n"
        "  link              11.2 GB/s there, 0.50 GB/s back; waited for it 3 %\n"
        "  per pass          65.0 splits; 1.0 MiB promoted per token; experts hit 83 %\n"
        "  planned anew      3, taken back 1; latest: the CPU is slower\n";
    struct ats_top_sample sample = shown_sample();
    char *text = printed(&sample, &(struct ats_top_style){.clock = "10:20:30", .line_end = "\n"});
    assert_string_equal(text, expected);
    free(text);
    ats_top_sample_free(&sample);
}

/* Names of any length, on a small screen with colours: lines that fit, as many as fit. */
static void test_table_fits(void **state)
{
    (void)state;
    struct ats_top_sample sample = shown_sample();
    struct ats_live_process *p = &sample.entries[0].process;
    memset(p->program, 'p', sizeof(p->program) - 1);
    memset(p->devices[0].accelerator, 'a', sizeof(p->devices[0].accelerator) - 1);
    for (int f = 0; f < ATS_LIVE_FIGURES; f++) {
        p->devices[0].figures[f] = f == ATS_LIVE_REPLAN_REASON ? ATS_WATCH_LINK_TRIED : UINT64_MAX;
    }
    p->devices[0].figures[ATS_LIVE_EMULATED] = 1;
    sample.n_other = 2;
    char *text = printed(&sample, &(struct ats_top_style){.clock = "10:20:30", .line_end = "\n"});
    size_t n_lines = 0;
    for (const char *line = text; *line != '\0'; n_lines++) {
        const char *end = strchr(line, '\n');
        assert_non_null(end);
        assert_in_range(end - line, 0, ATS_TOP_COLUMNS);
        line = end + 1;
    }
    assert_int_equal(n_lines, 14);
    assert_non_null(strstr(text, "2 more of another version"));
    assert_non_null(strstr(text, ", EMULATED"));
    assert_null(strchr(text, '\033'));
    free(text);

    text =
        printed(&sample,
                &(struct ats_top_style){
                    .clock = "10:20:30", .line_end = "\033[K\n", .most_lines = 5, .colours = true});
    n_lines = 0;
    for (const char *at = text; (at = strstr(at, "\033[K\n")) != NULL; at++) {
        n_lines++;
    }
    assert_int_equal(n_lines, 4); /* and one without an end, as the screen would scroll */
    assert_non_null(strstr(text, "\033[1mATS0\033[0m = CPU"));
    assert_non_null(strstr(text, "q quits"));
    free(text);
    ats_top_sample_free(&sample);
}

static double real_at(const json_t *object, const char *first, const char *second)
{
    const json_t *value = json_object_get(object, first);
    value = second != NULL ? json_object_get(value, second) : value;
    assert_true(json_is_number(value));
    return json_number_value(value);
}

static void test_json(void **state)
{
    (void)state;
    struct ats_top_sample sample = shown_sample();
    sample.n_other = 1;
    json_t *root = ats_top_json(&sample);
    assert_non_null(root);
    assert_string_equal(json_string_value(json_object_get(root, "format")), "ats-top-1");
    expect(real_at(root, "interval_s", NULL), 2);
    expect(real_at(root, "other_versions", NULL), 1);
    const json_t *process = json_array_get(json_object_get(root, "processes"), 0);
    expect(real_at(process, "pid", NULL), 12345);
    const json_t *device = json_array_get(json_object_get(process, "devices"), 0);
    assert_string_equal(json_string_value(json_object_get(device, "name")), "ATS0");
    assert_string_equal(json_string_value(json_object_get(device, "replan_reason")),
                        "the CPU is slower");
    const json_t *rates = json_object_get(device, "rates");
    expect(real_at(rates, "answer", "tokens_per_s"), 50);
    expect(real_at(rates, "prompt", "tokens"), 256);
    expect(real_at(rates, "expert_hit_rate", NULL), 0.831);
    const json_t *memory = json_object_get(device, "memory");
    expect(real_at(memory, "host", "weights_bytes"), 8589934592.0);
    const json_t *totals = json_object_get(device, "totals");
    expect(real_at(totals, "answer", "tokens"), 130);
    expect(real_at(totals, "busy_ns", NULL), 8.5e9);
    json_decref(root);
    ats_top_sample_free(&sample);

    /* the first sample has no rates: null, and not NaN, which is no JSON */
    const struct ats_live_device d = device_before();
    const struct ats_live_process p = process_of(&d, "1-a.live");
    struct ats_top_sample first = sample_of(&p, 1, 10, NULL);
    root = ats_top_json(&first);
    char *text = json_dumps(root, JSON_COMPACT);
    assert_non_null(strstr(text, "\"cpu\":null"));
    assert_non_null(strstr(text, "\"replan_reason\":null"));
    free(text);
    json_decref(root);
    ats_top_sample_free(&first);
}

static void test_prometheus(void **state)
{
    (void)state;
    static const char *const lines[] = {
        "# HELP ats_answer_tokens_total Passes of one token.\n"
        "# TYPE ats_answer_tokens_total counter\n"
        "ats_answer_tokens_total{pid=\"12345\",device=\"ATS0\"} 130\n",
        "ats_processes 1\n",
        "ats_process_info{pid=\"12345\",program=\"a\\\\b\\\"c\"} 1\n",
        "ats_start_time_seconds{pid=\"12345\"} 1000\n",
        "ats_device_info{pid=\"12345\",device=\"ATS0\",accelerator=\"CUDA0\",emulated=\"false\"} "
        "1\n",
        "# TYPE ats_busy_seconds_total counter\n"
        "ats_busy_seconds_total{pid=\"12345\",device=\"ATS0\"} 8.500000000\n",
        "ats_replan_seconds_total{pid=\"12345\",device=\"ATS0\"} 0.012500000\n",
        "# TYPE ats_vram_budget_bytes gauge\n"
        "ats_vram_budget_bytes{pid=\"12345\",device=\"ATS0\"} 6442450944\n",
        "ats_last_replan_info{pid=\"12345\",device=\"ATS0\",reason=\"the CPU is slower\"} 1\n",
    };
    const struct ats_live_device d = device_now();
    struct ats_live_process p = process_of(&d, "1-a.live");
    strcpy(p.program, "a\\b\"c");
    char *text = NULL;
    size_t n = 0;
    FILE *out = open_memstream(&text, &n);
    ats_top_prometheus(out, &p, 1, S(12));
    assert_int_equal(fclose(out), 0);
    for (size_t i = 0; i < sizeof(lines) / sizeof(lines[0]); i++) {
        if (strstr(text, lines[i]) == NULL) {
            fail_msg("missing: %sin:\n%s", lines[i], text);
        }
    }
    free(text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rates),      cmocka_unit_test(test_no_rates),
        cmocka_unit_test(test_samples),    cmocka_unit_test(test_table),
        cmocka_unit_test(test_table_fits), cmocka_unit_test(test_json),
        cmocka_unit_test(test_prometheus),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
