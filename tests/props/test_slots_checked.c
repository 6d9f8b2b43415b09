/* Recordings of runs with experts by slice: while a text is decoded, experts are admitted to slots
 * on a stream of their own, beside the readers of other slots, with random pauses on all queues.
 * The checker proves of each that every slot holds the expert that is read from it and that none
 * was given to another one early; and a recording from which an order is taken out, or in which an
 * expert goes elsewhere, is found wrong. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "harness.h"
#include "models.h"

#include "trace/check.h"
#include "trace/file.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { STEPS = 40, RUNS = 5, MOST_TRIED = 40 };

struct scenario {
    enum model_kind kind;
    uint64_t stream;
};

static struct ats_trace_check result;

/* Of all runs: a layer with a single slot, for one, has no slot in use when one is given away. */
static size_t n_wrong_experts_found;
static size_t n_early_found;

/* ---- the run ---- */

static void run_text(const void *argument)
{
    const struct scenario *s = argument;
    models_start();
    struct ats_rng rng = test_rng(s->stream);
    struct llama_model *model = model_load(model_path(s->kind), "ATS0", LLAMA_LOAD_MODE_MMAP);
    CHECK(model != NULL, "cannot load");
    struct llama_context *ctx = llama_init_from_model(model, context_params());
    CHECK(ctx != NULL, "no context");
    size_t n_past = 0;
    for (int step = 0; step < STEPS; step++) {
        const size_t n = step == 0 || test_chance(&rng, 8) ? test_between(&rng, 2, 16) : 1;
        if (n_past + n > 250) {
            llama_memory_clear(llama_get_memory(ctx), true);
            n_past = 0;
        }
        CHECK(decode_text(ctx, s->stream, n_past, n, 0) == 0, "step %d", step);
        n_past += n;
    }
    CHECK(device_counter("hits") > 0 && device_counter("admitted_bytes") > 0,
          "nothing was admitted: the test tests nothing");
    llama_free(ctx);
    llama_model_free(model);
    llama_backend_free();
}

/* ---- what is wrong with it when something is missing ---- */

static bool is_right(const struct ats_trace *trace)
{
    struct ats_error err;
    if (!ats_trace_check(trace, &result, &err)) {
        fail_msg("%s", err.text);
    }
    return result.n_faults == 0;
}

static bool has_fault(const char *text)
{
    for (uint64_t i = 0; i < result.n_faults && i < ATS_TRACE_MAX_FAULTS; i++) {
        if (strstr(result.faults[i].text, text) != NULL) {
            return true;
        }
    }
    return false;
}

static int role_of(const struct ats_trace *trace, size_t record)
{
    return trace->lanes[trace->records[record].lane].role;
}

/* Whether the compute stream waits here for copies into slots. */
static bool is_wait_for_admissions(const struct ats_trace *trace, size_t record)
{
    const struct ats_trace_record *r = &trace->records[record];
    if (r->kind != ATS_TRACE_EVENT_WAIT || role_of(trace, record) != ATS_TRACE_COMPUTE_STREAM) {
        return false;
    }
    for (size_t i = record; i-- > 0;) {
        const struct ats_trace_record *e = &trace->records[i];
        if (e->kind == ATS_TRACE_EVENT_RECORD && e->event == r->event) {
            return role_of(trace, i) == ATS_TRACE_SECOND_TRANSFER_STREAM;
        }
    }
    return false;
}

static bool is_admission(const struct ats_trace *trace, size_t record)
{
    return trace->records[record].kind == ATS_TRACE_WRITE && trace->records[record].count != 0 &&
           role_of(trace, record) == ATS_TRACE_SECOND_TRANSFER_STREAM;
}

static void expect_fault(const struct ats_trace *trace, const char *text)
{
    if (is_right(trace)) {
        fail_msg("no fault in what should give '%s'", text);
    }
    if (!has_fault(text)) {
        fail_msg("no '%s' among the faults; the first is '%s'", text, result.faults[0].text);
    }
}

/* Without any of the waits that `is` finds. */
static void expect_wrong_without(const struct ats_trace *trace,
                                 bool (*is)(const struct ats_trace *, size_t), const char *text)
{
    struct ats_trace less = *trace;
    less.records = malloc(trace->n_records * sizeof(less.records[0]));
    assert_non_null(less.records);
    less.n_records = 0;
    for (size_t i = 0; i < trace->n_records; i++) {
        if (!is(trace, i)) {
            less.records[less.n_records++] = trace->records[i];
        }
    }
    assert_true(less.n_records < trace->n_records);
    expect_fault(&less, text);
    free(less.records);
}

/* An admission that is another expert's is seen by whoever reads the slot next, unless nobody does
 * before it is given away. Returns how many of those tried are found. */
static size_t change_admissions(struct ats_trace *trace, size_t *n_tried)
{
    size_t n_found = 0;
    for (size_t i = 0; i < trace->n_records && *n_tried < MOST_TRIED; i++) {
        if (is_admission(trace, i)) {
            trace->records[i].count++;
            ++*n_tried;
            n_found += !is_right(trace) && has_fault("where something else was put last");
            trace->records[i].count--;
        }
    }
    return n_found;
}

/* A slot of the same tensor that the compute stream was told to read before the record, and that
 * the host has not waited for; or NULL. */
static const struct ats_trace_record *slot_in_use(const struct ats_trace *trace, size_t record)
{
    const struct ats_trace_record *r = &trace->records[record];
    for (size_t i = record; i-- > 0;) {
        const struct ats_trace_record *e = &trace->records[i];
        if (e->kind == ATS_TRACE_SYNCHRONIZE && role_of(trace, i) == ATS_TRACE_COMPUTE_STREAM) {
            return NULL;
        }
        if (e->kind == ATS_TRACE_READ && e->count != 0 && strcmp(e->name, r->name) == 0) {
            return e;
        }
    }
    return NULL;
}

/* An admission to a slot that is still read is always found. Returns how many were tried. */
static size_t expect_early_reuse_found(struct ats_trace *trace)
{
    size_t n_tried = 0;
    for (size_t i = 0; i < trace->n_records && n_tried < MOST_TRIED; i++) {
        const struct ats_trace_record *slot = is_admission(trace, i) ? slot_in_use(trace, i) : NULL;
        if (slot != NULL) {
            const uint64_t address = trace->records[i].address;
            trace->records[i].address = slot->address;
            expect_fault(trace, "may overwrite what is still read");
            trace->records[i].address = address;
            n_tried++;
        }
    }
    return n_tried;
}

static void check_recording(struct ats_trace *trace, const struct scenario *s)
{
    if (!is_right(trace)) {
        fail_msg("seed %llu, run %llu: %s", (unsigned long long)test_seed(),
                 (unsigned long long)s->stream, result.faults[0].text);
    }
    assert_int_equal(result.n_timed, result.n_ordered);
    const uint64_t n_reads = result.n_expert_reads;
    assert_true(n_reads > 0);
    size_t n_changed = 0;
    const size_t n_found = change_admissions(trace, &n_changed);
    const size_t n_early = expect_early_reuse_found(trace);
    printf("run %llu: %llu reads of single experts; of %zu admissions of another expert %zu found, "
           "of %zu to slots in use all\n",
           (unsigned long long)s->stream, (unsigned long long)n_reads, n_changed, n_found, n_early);
    n_wrong_experts_found += n_found;
    n_early_found += n_early;
    expect_wrong_without(trace, is_wait_for_admissions, "may read before it is written");
}

static void test_slots(void **state)
{
    (void)state;
    static const char *const promotions[] = {"none", "all", "auto", "used", "random:1", "random:2"};
    enum { N_PROMOTIONS = sizeof(promotions) / sizeof(promotions[0]) };
    for (uint64_t i = 0; i < RUNS; i++) {
        if (!is_chosen(i, RUNS)) {
            continue;
        }
        struct ats_rng rng = test_rng(500 + i);
        const struct scenario s = {.kind = i % 2 == 0 ? MODEL_WIDE_EXPERTS : MODEL_EXPERTS,
                                   .stream = i};
        char path[64];
        char settings[320];
        snprintf(path, sizeof(path), "/tmp/ats-test-slots-%ld.rec", (long)getpid());
        snprintf(settings, sizeof(settings),
                 "ATS_EXPERTS=slices ATS_PLACEMENT=random:%llu ATS_PROMOTE=%s ATS_EMU_DELAY_US=150 "
                 "ATS_EMU_SEED=%llu ATS_TRACE=%s ATS_TRACE_CHECK=1 OMP_WAIT_POLICY=passive",
                 (unsigned long long)ats_rng_below(&rng, 1000),
                 promotions[ats_rng_below(&rng, N_PROMOTIONS)],
                 (unsigned long long)ats_rng_below(&rng, 1000000), path);
        assert_true(scenario_run("slots", settings, run_text, &s));
        struct ats_trace trace;
        struct ats_error err;
        const bool ok = ats_trace_read(path, &trace, &err);
        unlink(path);
        if (!ok) {
            fail_msg("%s", err.text);
        }
        check_recording(&trace, &s);
        ats_trace_free(&trace);
    }
    assert_true(n_wrong_experts_found > 0 && n_early_found > 0);
}

static int make_models(void **state)
{
    (void)state;
    models_make();
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_slots)};
    return cmocka_run_group_tests(tests, make_models, NULL);
}
