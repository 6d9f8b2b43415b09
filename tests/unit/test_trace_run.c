/* Recordings of real runs: graphs whose weights stream through staging memory of the emulated
 * accelerator, with random pauses on its queues. The checker proves them right, the emulation's own
 * clock agrees, and a recording from which an order is taken out is found wrong.
 *
 * The library reads its environment once, so a seed is a process: test_trace_run SEED. */
#include "backend/stream.h"
#include "linked_graph.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "seed.h"
#include "trace/bars.h"
#include "trace/check.h"
#include "trace/recorder.h"
#include "trace/summary.h"

enum {
    WIDTH = 64,
    N_LAYERS = 12,
    N_GRAPHS = 3, /* one token, and more */
    N_PASSES = 24,
};

static uint64_t seed;

static struct ggml_tensor *weight(struct linked_graph *g, int layer, const char *name)
{
    struct ggml_tensor *w = ggml_new_tensor_2d(g->weights, GGML_TYPE_F32, WIDTH, WIDTH);
    ggml_format_name(w, "blk.%d.%s.weight", layer, name);
    return w;
}

static void make_graph(struct linked_graph *g, ggml_backend_dev_t dev, int64_t tokens, uint64_t uid)
{
    static const char *const names[] = {"attn_q", "ffn_up", "ffn_down"};
    assert_true(linked_graph_begin(g, 512));
    struct ggml_tensor *x = ggml_new_tensor_2d(g->ops, GGML_TYPE_F32, WIDTH, tokens);
    ggml_set_input(x);
    ggml_set_name(x, "input");
    for (int layer = 0; layer < N_LAYERS; layer++) {
        struct ggml_tensor *y = ggml_rms_norm(g->ops, x, 1e-6F);
        for (int i = 0; i < 3; i++) {
            y = ggml_mul_mat(g->ops, weight(g, layer, names[i]), y);
        }
        x = ggml_add(g->ops, x, y);
    }
    assert_true(linked_graph_end(g, dev, x));
    g->cgraph->uid = uid;
}

/* Passes of all graphs in random order; the recording is in the recorder afterwards. */
static void run(ggml_backend_dev_t dev)
{
    struct linked_graph graphs[N_GRAPHS];
    ggml_backend_t backend = ggml_backend_dev_init(dev, NULL);
    assert_non_null(backend);
    ats_stream_set_n_threads(backend, 1); /* threads would wait for each other by spinning */
    for (int i = 0; i < N_GRAPHS; i++) {
        make_graph(&graphs[i], dev, i == 0 ? 1 : 4 * i, (uint64_t)i + 1);
    }
    struct ats_rng rng = {.state = seed};
    for (int i = 0; i < N_PASSES; i++) {
        struct linked_graph *g = &graphs[ats_rng_below(&rng, N_GRAPHS)];
        assert_int_equal(GGML_STATUS_SUCCESS, ggml_backend_graph_compute_async(backend, g->cgraph));
        if (test_chance(&rng, 50)) {
            ggml_backend_synchronize(backend);
        }
    }
    ggml_backend_synchronize(backend);
    ggml_backend_free(backend);
    for (int i = 0; i < N_GRAPHS; i++) {
        linked_graph_free(&graphs[i]);
    }
}

static struct ats_trace_check result;

static bool is_right(const struct ats_trace *trace)
{
    struct ats_error err;
    assert_true(ats_trace_check(trace, &result, &err));
    return result.n_faults == 0;
}

/* The recording without the records that `drop` chooses. */
static struct ats_trace without(const struct ats_trace *trace,
                                bool (*drop)(const struct ats_trace *trace, size_t i, size_t which),
                                size_t which)
{
    struct ats_trace less = *trace;
    less.records = malloc(trace->n_records * sizeof(less.records[0]));
    less.n_records = 0;
    for (size_t i = 0; i < trace->n_records; i++) {
        if (!drop(trace, i, which)) {
            less.records[less.n_records++] = trace->records[i];
        }
    }
    return less;
}

static bool is_wait_of(const struct ats_trace *trace, size_t i, size_t role)
{
    return trace->records[i].kind == ATS_TRACE_EVENT_WAIT &&
           trace->lanes[trace->records[i].lane].role == role;
}

static bool is_synchronization(const struct ats_trace *trace, size_t i, size_t which)
{
    (void)which;
    return trace->records[i].kind == ATS_TRACE_SYNCHRONIZE;
}

static bool is_record(const struct ats_trace *trace, size_t i, size_t which)
{
    (void)trace;
    return i == which;
}

static void expect_wrong(const struct ats_trace *trace,
                         bool (*drop)(const struct ats_trace *trace, size_t i, size_t which),
                         size_t which, const char *text)
{
    struct ats_trace less = without(trace, drop, which);
    assert_true(less.n_records < trace->n_records);
    if (is_right(&less)) {
        fail_msg("no fault without what should give '%s'", text);
    }
    bool found = false;
    for (uint64_t i = 0; i < result.n_faults && i < ATS_TRACE_MAX_FAULTS; i++) {
        found = found || strstr(result.faults[i].text, text) != NULL;
    }
    if (!found) {
        fail_msg("no '%s' among the faults; the first is '%s'", text, result.faults[0].text);
    }
    free(less.records);
}

/* Of the waits of the compute stream, almost each alone is needed. */
static void take_out_single_waits(const struct ats_trace *trace)
{
    size_t n_waits = 0;
    size_t n_found = 0;
    for (size_t i = 0; i < trace->n_records; i++) {
        if (is_wait_of(trace, i, ATS_TRACE_COMPUTE_STREAM) && n_waits < 40) {
            struct ats_trace less = without(trace, is_record, i);
            n_waits++;
            n_found += !is_right(&less);
            free(less.records);
        }
    }
    printf("seed %llu: without one wait of the compute stream: %zu of %zu found\n",
           (unsigned long long)seed, n_found, n_waits);
    assert_true(n_waits > 10 && n_found * 10 > n_waits * 8);
}

static void expect_times(const struct ats_trace *trace)
{
    struct ats_trace_bars bars;
    struct ats_trace_summary summary;
    assert_true(ats_trace_bars_make(trace, &bars));
    assert_true(ats_trace_summarize(&bars, &summary));
    const struct ats_trace_totals *all = &summary.phases[ATS_PHASE_ALL];
    assert_int_equal(all->n_passes, N_PASSES);
    assert_true(all->exact); /* each command of a stream was told of */
    assert_true(all->accel_us > 0 && all->link_us > 0);
    assert_true(all->to_device_bytes > 0);
    assert_true(summary.phases[ATS_PHASE_DECODE].n_passes > 0);
    assert_true(summary.phases[ATS_PHASE_PREFILL].n_passes > 0);
    /* a stream does one thing at a time */
    for (size_t i = 1; i < bars.n_bars; i++) {
        const struct ats_trace_bar *a = &bars.bars[i - 1];
        const struct ats_trace_bar *b = &bars.bars[i];
        if (a->lane == b->lane && trace->lanes[a->lane].role != ATS_TRACE_CPU) {
            assert_true(a->end_ns <= b->begin_ns + 1000);
        }
    }
    ats_trace_bars_free(&bars);
}

static bool is_of_host(const struct ats_trace_record *record)
{
    return ats_trace_is_command(record) || record->kind == ATS_TRACE_SYNCHRONIZE ||
           record->kind == ATS_TRACE_EVENT_RECORD || record->kind == ATS_TRACE_EVENT_SYNC;
}

/* What the host gave to a stream, and did not wait for. */
static bool is_given(const struct ats_trace *trace, const struct ats_trace_record *record)
{
    return trace->lanes[record->lane].role != ATS_TRACE_CPU &&
           record->kind != ATS_TRACE_SYNCHRONIZE && record->kind != ATS_TRACE_EVENT_SYNC;
}

/* The host does one thing at a time; within a split, what it does right after giving a command to a
 * stream begins when that ended, and what it does after a wait or a computation later. */
static void expect_host_times(const struct ats_trace *trace)
{
    const struct ats_trace_record *last = NULL;
    size_t n_shared = 0;
    size_t n_read = 0;
    for (size_t i = 0; i < trace->n_records; i++) {
        const struct ats_trace_record *r = &trace->records[i];
        if (!is_of_host(r)) {
            continue;
        }
        assert_true(r->begin_ns <= r->end_ns);
        assert_true(last == NULL || last->end_ns <= r->begin_ns);
        const bool same = last != NULL && last->pass != 0 && last->pass == r->pass &&
                          last->split == r->split && is_given(trace, last);
        assert_true(!same || last->end_ns == r->begin_ns);
        n_shared += same;
        n_read += last != NULL && last->end_ns < r->begin_ns;
        last = r;
    }
    assert_true(n_shared > N_PASSES && n_read > N_PASSES);
}

static void test_run(void **state)
{
    (void)state;
    char text[32];
    setenv("ATS_EMULATE", "emu-small", 1);
    snprintf(text, sizeof(text), "%llu", (unsigned long long)seed);
    setenv("ATS_EMU_SEED", text, 1);
    setenv("ATS_EMU_DELAY_US", "150", 1);
    snprintf(text, sizeof(text), "random:%llu", (unsigned long long)seed);
    setenv("ATS_PROMOTE", "all", 1);
    setenv("ATS_PLACEMENT", text, 1);
    setenv("ATS_VRAM", "500K", 1);
    setenv("ATS_TRACE", "/dev/null", 1); /* where it goes at exit */
    setenv("ATS_TRACE_CHECK", "1", 1);
    ggml_backend_dev_t dev = linked_device("ATS0", getenv("ATS_LLAMA_BIN"));
    assert_non_null(dev);
    run(dev);
    struct ats_trace trace;
    assert_true(ats_trace_snapshot(&trace));
    assert_int_equal(trace.dropped, 0);
    const bool right = is_right(&trace);
    if (!right) {
        fail_msg("seed %llu: %s", (unsigned long long)seed, result.faults[0].text);
    }
    printf("seed %llu: %llu commands, %llu staged reads, %llu ordered pairs\n",
           (unsigned long long)seed, (unsigned long long)result.n_commands,
           (unsigned long long)result.n_staged_reads, (unsigned long long)result.n_ordered);
    assert_true(result.n_staged_reads > N_PASSES);
    assert_true(result.n_ordered > (uint64_t)4 * N_PASSES);
    assert_int_equal(result.n_timed, result.n_ordered);
    expect_times(&trace);
    expect_host_times(&trace);
    expect_wrong(&trace, is_wait_of, ATS_TRACE_COMPUTE_STREAM, "may read before it is written");
    expect_wrong(&trace, is_wait_of, ATS_TRACE_TRANSFER_STREAM, "may overwrite what is still read");
    expect_wrong(&trace, is_synchronization, 0, "may");
    take_out_single_waits(&trace);
    ats_trace_free(&trace);
}

int main(int argc, char **argv)
{
    seed = argc > 1 ? strtoull(argv[1], NULL, 10) : 1;
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_run)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
