/* The checker: hand-made recordings, right ones and each way to be wrong; and random ones, against
 * a checker that knows nothing but bytes and paths. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "seed.h"
#include "trace/check.h"
#include "trace_help.h"

enum {
    STAGING = 77, /* spaces */
    MIRROR = 78,
    HOST_A = 5000, /* addresses of weights in host memory */
    HOST_B = 6000,
};

static struct made made;
static struct ats_trace_check result;

static void check(void)
{
    struct ats_error err;
    assert_true(ats_trace_check(&made.trace, &result, &err));
}

static void expect_fault(const char *text)
{
    check();
    assert_true(result.n_faults > 0);
    if (strstr(result.faults[0].text, text) == NULL) {
        fail_msg("'%s' is not in '%s'", text, result.faults[0].text);
    }
}

/* ---- streaming: A and B pass through the same 100 bytes ---- */

/* Records that tests leave out. */
struct streaming {
    size_t wait_for_a;
    size_t wait_for_reader;
    size_t wait_for_b;
    size_t copy_a;
    size_t copy_b;
    size_t compute_a;
    size_t compute_b;
};

static size_t last_made(void)
{
    return made.trace.n_records - 1;
}

static struct streaming make_streaming(void)
{
    struct streaming s;
    make_trace(&made, 1);
    struct ats_trace_record *area = make(&made, ATS_TRACE_STAGING, CPU);
    area->space = STAGING;
    area->address = 1000;
    area->bytes = 200;
    make_copy(&made, ATS_TRACE_TO_DEVICE, TRANSFER, "A", STAGING, 1000, HOST_A, 100);
    s.copy_a = last_made();
    make_event(&made, ATS_TRACE_EVENT_RECORD, TRANSFER, 1);
    make_event(&made, ATS_TRACE_EVENT_WAIT, COMPUTE, 1);
    s.wait_for_a = last_made();
    make_operand(&made, ATS_TRACE_READ, COMPUTE, "A", STAGING, 1000, 90);
    make_operand(&made, ATS_TRACE_WRITE, COMPUTE, "y", MIRROR, 0, 64);
    make(&made, ATS_TRACE_COMPUTE, COMPUTE);
    s.compute_a = last_made();
    make_event(&made, ATS_TRACE_EVENT_RECORD, COMPUTE, 2);
    make_event(&made, ATS_TRACE_EVENT_WAIT, TRANSFER, 2);
    s.wait_for_reader = last_made();
    make_copy(&made, ATS_TRACE_TO_DEVICE, TRANSFER, "B", STAGING, 1050, HOST_B, 100);
    s.copy_b = last_made();
    make_event(&made, ATS_TRACE_EVENT_RECORD, TRANSFER, 1);
    make_event(&made, ATS_TRACE_EVENT_WAIT, COMPUTE, 1);
    s.wait_for_b = last_made();
    make_operand(&made, ATS_TRACE_READ, COMPUTE, "B", STAGING, 1050, 100);
    make_operand(&made, ATS_TRACE_READ, COMPUTE, "y", MIRROR, 0, 64);
    make_operand(&made, ATS_TRACE_WRITE, COMPUTE, "z", MIRROR, 64, 64);
    make(&made, ATS_TRACE_COMPUTE, COMPUTE);
    s.compute_b = last_made();
    return s;
}

static void test_streaming_in_order(void **state)
{
    (void)state;
    const struct streaming s = make_streaming();
    check();
    assert_int_equal(result.n_faults, 0);
    assert_int_equal(result.n_commands, 7); /* 2 copies, 2 computes, 3 waits */
    assert_int_equal(result.n_staged_reads, 2);
    assert_int_equal(result.n_reads, 5);  /* A, B, y; and both copies read host memory */
    assert_int_equal(result.n_writes, 4); /* both copies, y, z */
    /* A read behind its copy; B over bytes 50..90 that were read, and 90..100 that were not;
     * B read behind its copy */
    assert_int_equal(result.n_ordered, 3);
    assert_int_equal(result.n_timed, 0); /* nobody told when anything ran */
    (void)s;
}

static void test_streaming_without_a_wait(void **state)
{
    (void)state;
    struct streaming s = make_streaming();
    take_out(&made, s.wait_for_a);
    expect_fault("may read before it is written A");
    assert_int_equal(result.faults[0].other, s.copy_a);
    assert_int_equal(result.faults[0].record, s.compute_a - 1);

    s = make_streaming();
    take_out(&made, s.wait_for_reader);
    expect_fault("may overwrite what is still read, by writing B");
    assert_int_equal(result.faults[0].record, s.copy_b - 1);
    assert_int_equal(result.faults[0].other, s.compute_a);

    s = make_streaming();
    take_out(&made, s.wait_for_b);
    expect_fault("may read before it is written B");
    assert_int_equal(result.n_faults, 1);
}

/* An event marks what came before it was recorded, not what came later. */
static void test_event_recorded_too_early(void **state)
{
    (void)state;
    const struct streaming s = make_streaming();
    const struct ats_trace_record event = made.records[s.copy_a + 1];
    made.records[s.copy_a + 1] = made.records[s.copy_a];
    made.records[s.copy_a] = event;
    expect_fault("may read before it is written A");
}

static void test_wrong_content(void **state)
{
    (void)state;
    struct streaming s = make_streaming();
    strcpy(made.records[s.copy_b].name, "C");
    expect_fault("where something else was put last, B");

    /* computed there, instead of copied: right under its name */
    for (int wrong = 0; wrong < 2; wrong++) {
        s = make_streaming();
        made.trace.n_records = s.wait_for_b + 1;
        make_operand(&made, ATS_TRACE_WRITE, COMPUTE, wrong ? "C" : "B", STAGING, 1100, 20);
        make(&made, ATS_TRACE_COMPUTE, COMPUTE);
        make_operand(&made, ATS_TRACE_READ, COMPUTE, "B", STAGING, 1050, 100);
        make(&made, ATS_TRACE_COMPUTE, COMPUTE);
        if (wrong) {
            expect_fault("where something else was put last, B");
        } else {
            check();
            assert_int_equal(result.n_faults, 0);
        }
    }

    s = make_streaming();
    made.records[s.copy_b].bytes = 60; /* the rest is A's, or nobody's */
    expect_fault("B");
    bool nobody = false;
    for (uint64_t i = 0; i < result.n_faults; i++) {
        nobody = nobody || strstr(result.faults[i].text, "where nothing was put, B") != NULL;
    }
    assert_true(nobody);
}

static void test_staging_given_back(void **state)
{
    (void)state;
    make_streaming();
    make(&made, ATS_TRACE_SYNCHRONIZE, COMPUTE);
    struct ats_trace_record *area = make(&made, ATS_TRACE_STAGING, CPU);
    area->space = STAGING;
    area->address = 1000;
    area->bytes = 200;
    make_operand(&made, ATS_TRACE_READ, COMPUTE, "B", STAGING, 1050, 100);
    make(&made, ATS_TRACE_COMPUTE, COMPUTE);
    expect_fault("where nothing was put, B");
}

/* ---- slots: two of 50 bytes, of a layer's experts ---- */

enum { SLOTS = 79, SLOT_BYTES = 50, SLOT_BASE = 2000 };

/* An operand of the command to come: a slot, with this expert of W. */
static void make_slot(enum ats_trace_kind kind, size_t lane, size_t slot, uint32_t expert)
{
    make_operand(&made, kind, lane, "W", SLOTS, SLOT_BASE + slot * SLOT_BYTES, SLOT_BYTES);
    made.records[last_made()].count = expert + 1;
}

static size_t make_admission(size_t slot, uint32_t expert)
{
    make_slot(ATS_TRACE_WRITE, TRANSFER, slot, expert);
    make_copy(&made, ATS_TRACE_TO_DEVICE, TRANSFER, "W", SLOTS, SLOT_BASE + slot * SLOT_BYTES,
              HOST_A + expert * SLOT_BYTES, SLOT_BYTES);
    return last_made();
}

static size_t make_hit(size_t slot, uint32_t expert)
{
    make_slot(ATS_TRACE_READ, COMPUTE, slot, expert);
    make_operand(&made, ATS_TRACE_WRITE, COMPUTE, "y", MIRROR, 0, 64);
    make(&made, ATS_TRACE_COMPUTE, COMPUTE);
    return last_made();
}

static void make_area(uint64_t bytes)
{
    struct ats_trace_record *area = make(&made, ATS_TRACE_STAGING, CPU);
    area->space = SLOTS;
    area->address = SLOT_BASE;
    area->bytes = bytes;
}

/* Experts 0 and 1 are put into slots 0 and 1 by one copy, and 5 replaces 1 while 0 is used. */
struct slots {
    size_t hit;       /* of expert 0 */
    size_t admission; /* of expert 5 */
    size_t wait;      /* for it */
};

static struct slots make_slots(void)
{
    struct slots s;
    make_trace(&made, 1);
    make_area((uint64_t)2 * SLOT_BYTES);
    make_slot(ATS_TRACE_WRITE, COMPUTE, 0, 0);
    make_slot(ATS_TRACE_WRITE, COMPUTE, 1, 1);
    make_copy(&made, ATS_TRACE_TO_DEVICE, COMPUTE, "W", SLOTS, SLOT_BASE, HOST_A,
              (uint64_t)2 * SLOT_BYTES);
    make(&made, ATS_TRACE_SYNCHRONIZE, COMPUTE);
    s.hit = make_hit(0, 0);
    s.admission = make_admission(1, 5);
    make_event(&made, ATS_TRACE_EVENT_RECORD, TRANSFER, 7);
    make(&made, ATS_TRACE_SYNCHRONIZE, COMPUTE); /* the next token's ids */
    make_event(&made, ATS_TRACE_EVENT_WAIT, COMPUTE, 7);
    s.wait = last_made();
    make_hit(1, 5);
    return s;
}

/* An admission beside a reader of other slots, in tensors that are one for both. */
static void test_slots_in_order(void **state)
{
    (void)state;
    make_slots();
    check();
    assert_int_equal(result.n_faults, 0);
    assert_int_equal(result.n_staged_reads, 2);
    assert_int_equal(result.n_expert_reads, 2);
    assert_int_equal(result.n_writes, 5); /* two slots by one copy, one by another; y, y */
    /* 5 over 1, by another stream; 5 read behind its copy */
    assert_int_equal(result.n_ordered, 2);
}

static void test_slot_reused_early(void **state)
{
    (void)state;
    struct slots s = make_slots();
    s.hit = make_hit(0, 0);
    s.admission = make_admission(0, 6);
    expect_fault("may overwrite what is still read, by writing W[6]");
    assert_int_equal(result.n_faults, 1);
    assert_int_equal(result.faults[0].record, s.admission);
    assert_int_equal(result.faults[0].other, s.hit);

    make_slots();
    make_hit(0, 0);
    make(&made, ATS_TRACE_SYNCHRONIZE, COMPUTE); /* as above, in time */
    make_admission(0, 6);
    check();
    assert_int_equal(result.n_faults, 0);
}

static void test_slot_read_early(void **state)
{
    (void)state;
    const struct slots s = make_slots();
    take_out(&made, s.wait);
    expect_fault("may read before it is written W[5]");
    assert_int_equal(result.faults[0].other, s.admission);
}

static void test_slot_has_another_expert(void **state)
{
    (void)state;
    make_slots();
    make_hit(1, 1); /* it was there before */
    expect_fault("where something else was put last, W[1]");

    make_slots();
    make_hit(0, 1); /* in the wrong slot */
    expect_fault("where something else was put last, W[1]");

    make_slots(); /* put there under the weight's name, but as no expert in particular */
    make(&made, ATS_TRACE_SYNCHRONIZE, COMPUTE);
    make_copy(&made, ATS_TRACE_TO_DEVICE, COMPUTE, "W", SLOTS, SLOT_BASE, HOST_A, SLOT_BYTES);
    make_hit(0, 0);
    expect_fault("where something else was put last, W[0]");
}

static void test_slots_given_back(void **state)
{
    (void)state;
    make_slots();
    make(&made, ATS_TRACE_SYNCHRONIZE, COMPUTE);
    make_area(0);
    check();
    assert_int_equal(result.n_faults, 0);

    make_slots(); /* the last reader may still run */
    make_area(0);
    expect_fault("may be given back while in use, by W[5]");

    make_slots(); /* a copy may still run */
    make_admission(0, 6);
    make(&made, ATS_TRACE_SYNCHRONIZE, COMPUTE);
    make_area((uint64_t)2 * SLOT_BYTES);
    expect_fault("may be given back while in use, by W[6]");
}

/* ---- host and stream ---- */

/* The stream copies y to host memory, `how` it is waited for, and the CPU reads it. */
static void make_readback(enum ats_trace_kind how)
{
    make_trace(&made, 1);
    make_operand(&made, ATS_TRACE_WRITE, COMPUTE, "y", MIRROR, 0, 64);
    make(&made, ATS_TRACE_COMPUTE, COMPUTE);
    make_copy(&made, ATS_TRACE_TO_HOST, COMPUTE, "y", MIRROR, 0, 9000, 64);
    if (how == ATS_TRACE_EVENT_SYNC) {
        make_event(&made, ATS_TRACE_EVENT_RECORD, COMPUTE, 3);
    }
    if (how != ATS_TRACE_KINDS) {
        make_event(&made, how, COMPUTE, 3);
    }
    make_operand(&made, ATS_TRACE_READ, CPU, "y", 0, 9000, 64);
    make_operand(&made, ATS_TRACE_WRITE, CPU, "z", 0, 9100, 64);
    make(&made, ATS_TRACE_COMPUTE, CPU);
}

static void test_readback(void **state)
{
    (void)state;
    make_readback(ATS_TRACE_SYNCHRONIZE);
    check();
    assert_int_equal(result.n_faults, 0);
    assert_int_equal(result.n_ordered, 1);
    make_readback(ATS_TRACE_EVENT_SYNC);
    check();
    assert_int_equal(result.n_faults, 0);
    make_readback(ATS_TRACE_KINDS);
    expect_fault("may read before it is written y");
}

/* The CPU writes what a copy still reads, unless it has waited. */
static void test_source_overwritten(void **state)
{
    (void)state;
    for (int waits = 0; waits < 2; waits++) {
        make_trace(&made, 1);
        make_operand(&made, ATS_TRACE_WRITE, CPU, "x", 0, 9000, 64);
        make(&made, ATS_TRACE_COMPUTE, CPU);
        make_copy(&made, ATS_TRACE_TO_DEVICE, COMPUTE, "x", MIRROR, 0, 9000, 64);
        if (waits) {
            make(&made, ATS_TRACE_SYNCHRONIZE, COMPUTE);
        }
        make_operand(&made, ATS_TRACE_WRITE, CPU, "v", 0, 9060, 8);
        make(&made, ATS_TRACE_COMPUTE, CPU);
        if (waits) {
            check();
            assert_int_equal(result.n_faults, 0);
        } else {
            expect_fault("may overwrite what is still read, by writing v");
        }
    }
}

/* What the host has waited for is behind it, on every stream. */
static void test_order_through_the_host(void **state)
{
    (void)state;
    make_trace(&made, 1);
    make_copy(&made, ATS_TRACE_TO_DEVICE, TRANSFER, "A", MIRROR, 0, HOST_A, 64);
    make(&made, ATS_TRACE_SYNCHRONIZE, TRANSFER);
    make_operand(&made, ATS_TRACE_READ, COMPUTE, "A", MIRROR, 0, 64);
    make(&made, ATS_TRACE_COMPUTE, COMPUTE);
    check();
    assert_int_equal(result.n_faults, 0);
    assert_int_equal(result.n_ordered, 1);
}

static void test_contexts_are_apart(void **state)
{
    (void)state;
    make_trace(&made, 2);
    make_copy(&made, ATS_TRACE_TO_DEVICE, TRANSFER, "A", MIRROR, 0, HOST_A, 64);
    make_operand(&made, ATS_TRACE_READ, LANES + COMPUTE, "A", MIRROR, 0, 64);
    make(&made, ATS_TRACE_COMPUTE, LANES + COMPUTE);
    check();
    assert_int_equal(result.n_faults, 0);
    assert_int_equal(result.n_ordered, 0);
}

/* ---- the accelerator's own times ---- */

static void test_times(void **state)
{
    (void)state;
    const struct streaming s = make_streaming();
    const uint64_t copy = made.records[s.copy_a].number;
    const uint64_t compute = made.records[s.compute_a].number;
    make_ran(&made, TRANSFER, copy, 10000, 50000);
    make_ran(&made, COMPUTE, compute, 50000, 70000);
    check();
    assert_int_equal(result.n_faults, 0);
    assert_int_equal(result.n_timed, 1);
    made.records[made.trace.n_records - 1].begin_ns = 40000;
    expect_fault("ran too early, by the accelerator's own times, for A");
}

static void test_not_checkable(void **state)
{
    (void)state;
    struct ats_error err;
    make_streaming();
    made.trace.has_operands = false;
    assert_false(ats_trace_check(&made.trace, &result, &err));
    assert_non_null(strstr(err.text, "ATS_TRACE_CHECK=1"));
    made.trace.has_operands = true;
    made.trace.dropped = 3;
    assert_false(ats_trace_check(&made.trace, &result, &err));
    assert_non_null(strstr(err.text, "first 3 records"));
    made.trace.dropped = 0;
    made.trace.is_incomplete = true;
    assert_false(ats_trace_check(&made.trace, &result, &err));
}

/* ---- random recordings against brute force ---- */

enum {
    STEPS = 24,
    BYTES = 8, /* of each of two memories */
    EVENTS = 3,
    ROUNDS = 20000,
};

struct access {
    size_t step;
    int agent;
    bool writes;
    size_t space;
    size_t begin;
    size_t end;
};

/* Nodes are steps; before[a][b]: a has happened before b. What an agent does next is behind what it
 * did last and behind all that leads to it. */
struct brute {
    bool before[STEPS + 1][STEPS + 1];
    size_t n_steps;
    bool agent_has[LANES][STEPS + 1]; /* what has happened before the agent's next step */
    bool event_has[EVENTS][STEPS + 1];
    struct access accesses[4 * STEPS];
    size_t n_accesses;
    size_t first_fault; /* record, or SIZE_MAX */
};

static void has(bool *to, const bool *from)
{
    for (size_t i = 0; i <= STEPS; i++) {
        to[i] = to[i] || from[i];
    }
}

/* A step of an agent; returns its index. */
static size_t brute_step(struct brute *b, size_t agent)
{
    const size_t step = b->n_steps++;
    has(b->agent_has[agent], b->agent_has[CPU]);
    for (size_t i = 0; i < step; i++) {
        b->before[i][step] = b->agent_has[agent][i];
    }
    b->agent_has[agent][step] = true;
    return step;
}

static bool overlap(const struct access *a, const struct access *c, size_t byte)
{
    return a->space == c->space && byte >= a->begin && byte < a->end && byte >= c->begin &&
           byte < c->end;
}

/* For each byte: the last write before this access, and the last reads since it, by any agent. */
static bool is_faulty(const struct brute *b, const struct access *c)
{
    for (size_t byte = c->begin; byte < c->end; byte++) {
        size_t i = b->n_accesses;
        bool seen[LANES] = {false};
        while (i > 0) {
            const struct access *a = &b->accesses[--i];
            if (!overlap(a, c, byte) || a->step == c->step) {
                continue;
            }
            const bool newest = !seen[a->agent];
            seen[a->agent] = true;
            if (a->writes) {
                if (!b->before[a->step][c->step]) {
                    return true;
                }
                break;
            }
            if (c->writes && newest && !b->before[a->step][c->step]) {
                return true;
            }
        }
    }
    return false;
}

static void brute_access(struct brute *b, const struct access *c, size_t record)
{
    if (b->first_fault == SIZE_MAX && is_faulty(b, c)) {
        b->first_fault = record;
    }
    b->accesses[b->n_accesses++] = *c;
}

static struct access random_access(struct ats_rng *rng, size_t step, size_t agent, bool writes)
{
    struct access a = {.step = step, .agent = (int)agent, .writes = writes};
    a.space = agent == CPU ? 0 : 1;
    a.begin = test_between(rng, 0, BYTES - 1);
    a.end = test_between(rng, a.begin + 1, BYTES);
    return a;
}

static void random_compute(struct ats_rng *rng, struct brute *b)
{
    const size_t lane = test_between(rng, CPU, TRANSFER);
    const size_t step = brute_step(b, lane);
    const struct access read = random_access(rng, step, lane, false);
    const struct access write = random_access(rng, step, lane, true);
    make_operand(&made, ATS_TRACE_READ, lane, "t", read.space, read.begin, read.end - read.begin);
    make_operand(&made, ATS_TRACE_WRITE, lane, "t", write.space, write.begin,
                 write.end - write.begin);
    make(&made, ATS_TRACE_COMPUTE, lane);
    brute_access(b, &read, last_made());
    brute_access(b, &write, last_made());
}

static void random_copy(struct ats_rng *rng, struct brute *b)
{
    const size_t lane = test_between(rng, COMPUTE, TRANSFER);
    const bool in = test_chance(rng, 50);
    const size_t step = brute_step(b, lane);
    struct access device = random_access(rng, step, lane, in);
    struct access host = device;
    host.space = 0;
    host.writes = !in;
    make_copy(&made, in ? ATS_TRACE_TO_DEVICE : ATS_TRACE_TO_HOST, lane, "t", 1, device.begin,
              host.begin, device.end - device.begin);
    brute_access(b, in ? &host : &device, last_made());
    brute_access(b, in ? &device : &host, last_made());
}

static void random_order(struct ats_rng *rng, struct brute *b)
{
    const size_t lane = test_between(rng, COMPUTE, TRANSFER);
    const size_t event = test_between(rng, 0, EVENTS - 1);
    switch (ats_rng_below(rng, 4)) {
    case 0:
        make(&made, ATS_TRACE_SYNCHRONIZE, lane);
        has(b->agent_has[CPU], b->agent_has[lane]);
        break;
    case 1:
        make_event(&made, ATS_TRACE_EVENT_RECORD, lane, 100 + event);
        memcpy(b->event_has[event], b->agent_has[lane], sizeof(b->event_has[event]));
        has(b->event_has[event], b->agent_has[CPU]);
        break;
    case 2:
        make_event(&made, ATS_TRACE_EVENT_WAIT, lane, 100 + event);
        has(b->agent_has[lane], b->event_has[event]);
        break;
    default:
        make_event(&made, ATS_TRACE_EVENT_SYNC, lane, 100 + event);
        has(b->agent_has[CPU], b->event_has[event]);
        break;
    }
}

static void test_against_brute_force(void **state)
{
    (void)state;
    size_t n_faulty = 0;
    for (size_t round = 0; round < ROUNDS; round++) {
        struct ats_rng rng = test_rng(round);
        struct brute b = {.first_fault = SIZE_MAX};
        make_trace(&made, 1);
        const unsigned orders = (unsigned)test_between(&rng, 40, 90); /* percent */
        while (b.n_steps < STEPS && made.trace.n_records < 150) {
            if (test_chance(&rng, orders)) {
                random_order(&rng, &b);
            } else if (test_chance(&rng, 50)) {
                random_copy(&rng, &b);
            } else {
                random_compute(&rng, &b);
            }
        }
        check();
        const size_t found = result.n_faults == 0 ? SIZE_MAX : result.faults[0].record;
        if (found != b.first_fault) {
            fail_msg("seed %llu, round %zu: first fault at record %zd, by brute force %zd",
                     (unsigned long long)test_seed(), round, (ssize_t)found,
                     (ssize_t)b.first_fault);
        }
        n_faulty += found != SIZE_MAX;
    }
    /* both kinds are there */
    assert_true(n_faulty > ROUNDS / 20 && n_faulty < ROUNDS - ROUNDS / 200);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_streaming_in_order),
        cmocka_unit_test(test_streaming_without_a_wait),
        cmocka_unit_test(test_event_recorded_too_early),
        cmocka_unit_test(test_wrong_content),
        cmocka_unit_test(test_staging_given_back),
        cmocka_unit_test(test_slots_in_order),
        cmocka_unit_test(test_slot_reused_early),
        cmocka_unit_test(test_slot_read_early),
        cmocka_unit_test(test_slot_has_another_expert),
        cmocka_unit_test(test_slots_given_back),
        cmocka_unit_test(test_readback),
        cmocka_unit_test(test_source_overwritten),
        cmocka_unit_test(test_order_through_the_host),
        cmocka_unit_test(test_contexts_are_apart),
        cmocka_unit_test(test_times),
        cmocka_unit_test(test_not_checkable),
        cmocka_unit_test(test_against_brute_force),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
