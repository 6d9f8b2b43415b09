/* The recorder: records of several threads come out complete and in order; memory is bounded, and
 * the oldest go first; and what tells of emulated commands tells the right times. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "cost/timeline.h"
#include "trace/recorder.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

enum {
    N_THREADS = 4,
    N_EACH = 3000, /* not a multiple of a chunk */
};

static void add(uint64_t begin_ns, uint64_t number)
{
    const struct ats_trace_record record = {
        .begin_ns = begin_ns, .end_ns = begin_ns, .number = number, .kind = ATS_TRACE_PLAN};
    ats_trace_add(&record);
}

static void *add_many(void *data)
{
    const uint64_t thread = *(const uint64_t *)data;
    for (uint64_t i = 0; i < N_EACH; i++) {
        /* a time that two threads have at once, and one that goes on from record to record */
        add(1 + i / 2 * 2, thread * N_EACH + i);
    }
    return NULL;
}

static struct ats_trace snapshot(void)
{
    struct ats_trace trace;
    assert_true(ats_trace_snapshot(&trace));
    return trace;
}

static void test_threads(void **state)
{
    (void)state;
    struct ats_error err;
    assert_true(ats_trace_start(64 << 20, false, &err));
    pthread_t threads[N_THREADS];
    uint64_t numbers[N_THREADS];
    for (uint64_t t = 0; t < N_THREADS; t++) {
        numbers[t] = t;
        assert_int_equal(0, pthread_create(&threads[t], NULL, add_many, &numbers[t]));
    }
    for (int i = 0; i < 20; i++) { /* while they run: what is there is whole */
        struct ats_trace some = snapshot();
        for (size_t r = 0; r < some.n_records; r++) {
            assert_int_equal(some.records[r].kind, ATS_TRACE_PLAN);
        }
        ats_trace_free(&some);
    }
    for (int t = 0; t < N_THREADS; t++) {
        pthread_join(threads[t], NULL);
    }
    struct ats_trace trace = snapshot();
    assert_int_equal(trace.n_records, N_THREADS * N_EACH);
    assert_int_equal(trace.dropped, 0);
    static bool seen[N_THREADS * N_EACH];
    uint64_t next[N_THREADS] = {0};
    for (size_t i = 0; i < trace.n_records; i++) {
        const struct ats_trace_record *r = &trace.records[i];
        assert_false(seen[r->number]);
        seen[r->number] = true;
        assert_true(i == 0 || r[-1].begin_ns <= r->begin_ns);
        /* of one thread in the order of recording, equal times or not */
        assert_int_equal(r->number % N_EACH, next[r->number / N_EACH]);
        next[r->number / N_EACH]++;
    }
    ats_trace_free(&trace);
    ats_trace_stop();
}

static void test_oldest_are_dropped(void **state)
{
    (void)state;
    struct ats_error err;
    assert_true(ats_trace_start(0, true, &err));
    assert_true(ats_trace_wants_operands());
    enum { N = 20000 }; /* more than a megabyte holds */
    for (uint64_t i = 0; i < N; i++) {
        add(i + 1, i);
    }
    struct ats_trace trace = snapshot();
    assert_true(trace.has_operands);
    assert_true(trace.dropped > 0);
    assert_int_equal(trace.n_records + trace.dropped, N);
    const size_t room = ATS_TRACE_LEAST_BYTES / sizeof(struct ats_trace_record);
    assert_true(trace.n_records <= room);
    assert_true(trace.n_records > room - (size_t)2 * ATS_TRACE_CHUNK_RECORDS);
    for (size_t i = 0; i < trace.n_records; i++) {
        assert_int_equal(trace.records[i].number, trace.dropped + i);
    }
    ats_trace_free(&trace);
    ats_trace_stop();
}

/* What one recorder has is not the next one's; records while none is on go nowhere. */
static void test_again(void **state)
{
    (void)state;
    struct ats_error err;
    add(1, 1);
    assert_true(ats_trace_start(0, false, &err));
    add(2, 2);
    struct ats_trace trace = snapshot();
    assert_int_equal(trace.n_records, 1);
    assert_int_equal(trace.records[0].number, 2);
    ats_trace_free(&trace);
    ats_trace_stop();
    add(3, 3);
}

static void test_lanes(void **state)
{
    (void)state;
    struct ats_error err;
    assert_true(ats_trace_start(0, false, &err));
    struct ats_trace_lane lane = {.context = 1, .role = ATS_TRACE_CPU, .device = "CPU"};
    assert_int_equal(ats_trace_lane(&lane), 0);
    lane.role = ATS_TRACE_COMPUTE_STREAM;
    assert_int_equal(ats_trace_lane(&lane), 1);
    lane.role = ATS_TRACE_CPU;
    strcpy(lane.device, "new");
    assert_int_equal(ats_trace_lane(&lane), 0);
    struct ats_trace trace = snapshot();
    assert_int_equal(trace.n_lanes, 2);
    assert_string_equal(trace.lanes[0].device, "new");
    assert_false(trace.is_incomplete);
    ats_trace_free(&trace);
    for (lane.context = 2; lane.context < ATS_TRACE_MAX_LANES; lane.context++) {
        assert_true(ats_trace_lane(&lane) >= 0);
    }
    lane.context++;
    assert_int_equal(ats_trace_lane(&lane), -1);
    trace = snapshot();
    assert_true(trace.is_incomplete);
    ats_trace_free(&trace);
    ats_trace_stop();
}

/* ---- the observer of the emulation's timeline ---- */

static struct {
    uint64_t tag;
    double begin_us;
    double end_us;
} told[16];
static size_t n_told;

static void tell(void *data, uint64_t tag, double begin_us, double end_us)
{
    assert_ptr_equal(data, told);
    told[n_told].tag = tag;
    told[n_told].begin_us = begin_us;
    told[n_told++].end_us = end_us;
}

static void expect_told(size_t i, uint64_t tag, double begin_us, double end_us)
{
    assert_int_equal(told[i].tag, tag);
    assert_float_equal(told[i].begin_us, begin_us, 1e-6);
    assert_float_equal(told[i].end_us, end_us, 1e-6);
}

/* A copy of 40 us (latency 10, 30 kB at 1 GB/s), for which a computation of 20 us waits; the next
 * one is not told of. A second copy waits for the engine that the first one has. */
static void test_timeline_observer(void **state)
{
    (void)state;
    struct ats_timeline *t = ats_timeline_new(100, 1000);
    const struct ats_timeline_link link = {1, 1, 1};
    const int device = ats_timeline_add_device(t, &link);
    const uint32_t transfer = ats_timeline_open(t, device);
    const uint32_t compute = ats_timeline_open(t, device);
    const struct ats_timeline_observer observer = {tell, told};
    ats_timeline_observe(t, transfer, observer);
    ats_timeline_observe(t, compute, observer);
    const struct ats_timeline_copy copy = {
        .direction = ATS_TO_DEVICE, .bytes = 30000, .latency_us = 10};
    ats_timeline_tag(t, transfer, 1);
    const struct ats_ticket copied = ats_timeline_copy(t, transfer, &copy);
    ats_timeline_tag(t, compute, 2);
    ats_timeline_wait(t, compute, copied);
    ats_timeline_tag(t, compute, 3);
    ats_timeline_compute(t, compute, 20, 1);
    ats_timeline_tag(t, compute, 0);
    ats_timeline_compute(t, compute, 5, 1);
    ats_timeline_tag(t, compute, 4);
    ats_timeline_copy(t, compute, &copy);
    ats_timeline_tag(t, transfer, 5);
    ats_timeline_copy(t, transfer, &copy); /* 140 to 180 */
    ats_timeline_advance(t, 1000, 0);
    ats_timeline_free(t);
    assert_int_equal(n_told, 5);
    expect_told(0, 1, 100, 140);
    expect_told(1, 2, 100, 140); /* the wait */
    expect_told(2, 3, 140, 160);
    expect_told(3, 5, 140, 180);
    expect_told(4, 4, 180, 220); /* from when it has the engine, not from 165 on */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_threads),
        cmocka_unit_test(test_oldest_are_dropped),
        cmocka_unit_test(test_again),
        cmocka_unit_test(test_lanes),
        cmocka_unit_test(test_timeline_observer),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
