/* Injected failures of the accelerator, at every stage of a run: libllama reports an error or its
 * results are right. Nothing crashes, hangs, or is silently wrong; afterwards the same process
 * computes correctly again, unless the accelerator is gone for good, and then a new model runs on
 * the CPU. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "harness.h"
#include "models.h"

#include <stdlib.h>
#include <string.h>

enum {
    PROMPT = 12, /* tokens */
    STEPS = 5,   /* the prompt, and single tokens behind it */
    TEXT = 7,
};

/* When the failure is armed. */
enum stage { AT_LOAD, AT_FIRST_DECODE, IN_GENERATION, AT_RESTORE, N_STAGES };

static const char *const stage_names[N_STAGES] = {"at load", "at first decode", "in generation",
                                                  "at restore"};

struct scenario {
    enum model_kind kind;
    enum stage stage;
    enum llama_load_mode mode;
    const char *spec;
};

/* What the CPU gives, step by step. */
struct reference {
    struct llama_model *model;
    float *logits[STEPS];
    size_t n;
};

/* ---- decoding ---- */

static size_t first_of(size_t step)
{
    return step == 0 ? 0 : PROMPT + step - 1;
}

static int32_t decode_step(struct llama_context *ctx, size_t step)
{
    return decode_text(ctx, TEXT, first_of(step), step == 0 ? PROMPT : 1, 0);
}

static struct llama_context *make_context(struct llama_model *model)
{
    return llama_init_from_model(model, context_params());
}

static void make_reference(struct reference *r, enum model_kind kind)
{
    r->model = model_load(model_path(kind), "", LLAMA_LOAD_MODE_MMAP);
    CHECK(r->model != NULL, "cannot load on the CPU");
    struct llama_context *ctx = make_context(r->model);
    CHECK(ctx != NULL, "no context on the CPU");
    r->n = logits_size(ctx);
    for (size_t step = 0; step < STEPS; step++) {
        CHECK(decode_step(ctx, step) == 0, "decode on the CPU");
        r->logits[step] = malloc(r->n * sizeof(float));
        memcpy(r->logits[step], llama_get_logits_ith(ctx, -1), r->n * sizeof(float));
    }
    llama_free(ctx);
}

static void free_reference(struct reference *r)
{
    for (size_t step = 0; step < STEPS; step++) {
        free(r->logits[step]);
    }
    llama_model_free(r->model);
}

static bool is_right(struct llama_context *ctx, const struct reference *r, size_t step)
{
    const float *logits = llama_get_logits_ith(ctx, -1);
    return logits != NULL && memcmp(logits, r->logits[step], r->n * sizeof(float)) == 0;
}

/* A read that fails after the graph has run has no way to be an error of llama.cpp's. The
 * emulator delivers 0xFF bytes then, which are NaNs. */
static bool could_not_be_read(struct llama_context *ctx, const struct reference *r)
{
    const unsigned char *bytes = (const unsigned char *)llama_get_logits_ith(ctx, -1);
    for (size_t i = 0; i < r->n * sizeof(float); i++) {
        if (bytes[i] != 0xFF) {
            return false;
        }
    }
    return true;
}

/* Decodes from `step` on until an error; returns the step that failed, STEPS if none. */
static size_t decode_from(struct llama_context *ctx, const struct reference *r, size_t step,
                          const char *when)
{
    for (; step < STEPS; step++) {
        const size_t errors = scenario_logged_errors();
        if (decode_step(ctx, step) != 0) {
            CHECK(scenario_logged_errors() > errors, "%s: step %zu failed without a word", when,
                  step);
            return step;
        }
        if (!is_right(ctx, r, step)) {
            CHECK(could_not_be_read(ctx, r), "%s: step %zu is wrong and no error", when, step);
            CHECK(scenario_logged_errors() > errors, "%s: step %zu is lost without a word", when,
                  step);
            return step;
        }
    }
    return STEPS;
}

/* ---- one scenario ---- */

static bool is_loss(const struct scenario *s)
{
    return strncmp(s->spec, "loss", 4) == 0;
}

/* Goes back to before the failed step and tries again: right, or an error again. Recurrent state
 * cannot go back. Neither may it be started anew without clearing it: llama.cpp multiplies the
 * old state by zero, which leaves the NaNs of a failed computation. */
static void try_same_context(struct llama_context *ctx, const struct reference *r, size_t step,
                             enum model_kind kind)
{
    llama_memory_t memory = llama_get_memory(ctx);
    if (kind != MODEL_DENSE || !llama_memory_seq_rm(memory, 0, (llama_pos)first_of(step), -1)) {
        llama_memory_clear(memory, true);
        step = 0;
    }
    decode_from(ctx, r, step, "again in the same context");
}

static void check_new_context(struct llama_model *model, const struct reference *r,
                              const char *when)
{
    struct llama_context *ctx = make_context(model);
    CHECK(ctx != NULL, "%s: no context", when);
    const size_t reached = decode_from(ctx, r, 0, when);
    CHECK(reached == STEPS, "%s: step %zu fails", when, reached);
    llama_free(ctx);
}

/* The state after the prompt, saved before anything fails. */
static uint8_t *save_prompt(struct llama_model *model, size_t *bytes)
{
    struct llama_context *ctx = make_context(model);
    CHECK(ctx != NULL && decode_step(ctx, 0) == 0, "decode before the failure");
    const size_t size = llama_state_seq_get_size(ctx, 0);
    uint8_t *data = malloc(size);
    *bytes = llama_state_seq_get_data(ctx, data, size, 0);
    CHECK(*bytes > 0, "save before the failure");
    llama_free(ctx);
    return data;
}

static void restore_and_decode(const struct scenario *s, struct llama_context *ctx,
                               const struct reference *r, const uint8_t *data, size_t bytes)
{
    inject("EMU0", s->spec);
    const size_t errors = scenario_logged_errors();
    if (llama_state_seq_set_data(ctx, data, bytes, 0) != bytes) {
        CHECK(scenario_logged_errors() > errors, "restoring failed without a word");
    } else if (scenario_logged_errors() == errors) {
        decode_from(ctx, r, 1, "after restoring");
    }
}

/* The part of a scenario in which the failure happens, with a model that may be none. */
static void fail_somewhere(const struct scenario *s, struct llama_model *model,
                           const struct reference *r)
{
    size_t bytes = 0;
    uint8_t *data = s->stage == AT_RESTORE && model != NULL ? save_prompt(model, &bytes) : NULL;
    struct llama_context *ctx = model != NULL ? make_context(model) : NULL;
    if (ctx == NULL) {
        CHECK(s->stage == AT_LOAD, "no context before the failure");
    } else if (s->stage == AT_RESTORE) {
        restore_and_decode(s, ctx, r, data, bytes);
        inject("EMU0", is_loss(s) ? s->spec : "off");
    } else {
        if (s->stage == AT_FIRST_DECODE) {
            inject("EMU0", s->spec);
        } else if (s->stage == IN_GENERATION) {
            CHECK(decode_step(ctx, 0) == 0 && is_right(ctx, r, 0), "before the failure");
            inject("EMU0", s->spec);
        }
        const size_t first = s->stage == IN_GENERATION ? 1 : 0;
        const size_t step = decode_from(ctx, r, first, stage_names[s->stage]);
        if (!is_loss(s)) {
            inject("EMU0", "off");
        }
        if (step < STEPS) {
            try_same_context(ctx, r, step, s->kind);
        }
    }
    free(data);
    llama_free(ctx);
    if (!is_loss(s)) {
        inject("EMU0", "off");
    }
}

static void check_after_loss(const struct scenario *s, const struct reference *r)
{
    inject("EMU0", "loss:1"); /* if the run was too short to meet it */
    struct llama_model *first = model_load(model_path(s->kind), "ATS0", s->mode);
    struct llama_context *ctx = first != NULL ? make_context(first) : NULL;
    if (ctx != NULL) { /* the device may go only now */
        decode_from(ctx, r, 0, "while the device is lost");
    }
    llama_free(ctx);
    llama_model_free(first);
    scenario_forget_log();
    struct llama_model *model = model_load(model_path(s->kind), "ATS0", s->mode);
    CHECK(model != NULL, "a new model does not load after the loss");
    check_new_context(model, r, "a new model after the loss");
    CHECK(scenario_logged("ats: ATS0"), "no line in the log says that ATS0 runs without EMU0");
    llama_model_free(model);
    check_new_context(r->model, r, "the CPU after the loss");
}

static void run_scenario(const void *argument)
{
    const struct scenario *s = argument;
    models_start();
    struct reference r = {0};
    make_reference(&r, s->kind);
    if (s->stage == AT_LOAD) {
        inject("EMU0", s->spec);
    }
    const size_t errors = scenario_logged_errors();
    struct llama_model *model = model_load(model_path(s->kind), "ATS0", s->mode);
    CHECK(model != NULL || s->stage == AT_LOAD, "cannot load");
    CHECK(model != NULL || scenario_logged_errors() > errors, "loading failed without a word");
    fail_somewhere(s, model, &r);
    if (is_loss(s)) {
        llama_model_free(model);
        check_after_loss(s, &r);
    } else {
        model = model != NULL ? model : model_load(model_path(s->kind), "ATS0", s->mode);
        CHECK(model != NULL, "the model does not load after the failure");
        check_new_context(model, &r, "a new context after the failure");
        llama_model_free(model);
        model = model_load(model_path(s->kind), "ATS0", s->mode);
        CHECK(model != NULL, "a new model does not load after the failure");
        check_new_context(model, &r, "a new model after the failure");
        llama_model_free(model);
    }
    free_reference(&r);
    llama_backend_free();
}

/* ---- tests ---- */

/* Each spec at one stage, another one for each seed. All are tried, so that one run shows all
 * that fails. At least `least` of them must have met their failure. */
static void run_all(const char *const *specs, size_t n, size_t least)
{
    static const enum model_kind kinds[] = {MODEL_DENSE, MODEL_HYBRID, MODEL_RECURRENT};
    static const char *const rules[] = {"random:1", "fill", "vram", "random:2", "random:3"};
    const bool all = getenv("ATS_TEST_ALL") != NULL;
    struct ats_rng rng = test_rng((uint64_t)specs[0][0]);
    size_t failed = 0;
    size_t met = 0;
    for (size_t i = 0; i < (all ? N_STAGES * n : n); i++) {
        if (!is_chosen(i, n)) {
            continue;
        }
        const struct scenario s = {
            .kind = kinds[ats_rng_below(&rng, 3)],
            .stage = all ? (enum stage)(i / n) : (enum stage)ats_rng_below(&rng, N_STAGES),
            .mode = test_chance(&rng, 50) ? LLAMA_LOAD_MODE_MMAP : LLAMA_LOAD_MODE_NONE,
            .spec = specs[i % n],
        };
        char title[96];
        char settings[96];
        snprintf(title, sizeof(title), "%s %s, model %d, %s", s.spec, stage_names[s.stage],
                 (int)s.kind, s.mode == LLAMA_LOAD_MODE_MMAP ? "mapped" : "read");
        snprintf(settings, sizeof(settings), "ATS_PLACEMENT=%s", rules[ats_rng_below(&rng, 5)]);
        failed += !scenario_run(title, settings, run_scenario, &s);
        met += scenario_met_failure();
    }
    if (failed > 0) {
        fail_msg("%zu scenarios failed", failed);
    }
    if (met < least && !is_sanitized()) {
        fail_msg("only %zu scenarios met their failure: the others test nothing", met);
    }
}

#define RUN_ALL(least, ...)                                                                        \
    do {                                                                                           \
        static const char *const specs[] = {__VA_ARGS__};                                          \
        run_all(specs, sizeof(specs) / sizeof(specs[0]), least);                                   \
    } while (0)

static void test_nothing_injected(void **state)
{
    (void)state;
    RUN_ALL(0, "off");
}

static void test_allocation(void **state)
{
    (void)state;
    RUN_ALL(1, "alloc:1", "alloc:2", "alloc:3", "alloc:4", "alloc:6", "alloc:1+", "alloc:2+",
            "alloc:3+", "pinned:1+");
}

static void test_copy(void **state)
{
    (void)state;
    RUN_ALL(2, "copy:1", "copy:2", "copy:3", "copy:5", "copy:8", "copy:13", "copy:21", "copy:34",
            "copy:1+", "copy:4+");
}

/* Copies fail while weights and state move in for the first graph; state that had moved already
 * must neither be lost nor pass for valid where it did not arrive. */
static void test_copy_of_state(void **state)
{
    (void)state;
    static const char *const specs[] = {"copy:2+", "copy:3+", "copy:4+", "copy:5+", "copy:7+"};
    size_t failed = 0;
    size_t met = 0;
    for (size_t i = 0; i < sizeof(specs) / sizeof(specs[0]); i++) {
        const struct scenario s = {
            .kind = MODEL_DENSE, .stage = AT_LOAD, .mode = LLAMA_LOAD_MODE_MMAP, .spec = specs[i]};
        failed += !scenario_run(specs[i], "ATS_PLACEMENT=random:1", run_scenario, &s);
        met += scenario_met_failure();
    }
    assert_int_equal(failed, 0);
    assert_true(met > 0);
}

static void test_compute(void **state)
{
    (void)state;
    RUN_ALL(1, "compute:1", "compute:2", "compute:3", "compute:5", "compute:9", "compute:1+",
            "compute:4+");
}

static void test_loss(void **state)
{
    (void)state;
    RUN_ALL(3, "loss:1", "loss:2", "loss:3", "loss:5", "loss:9", "loss:20", "loss:50");
}

/* ---- a failure while weights are moved out of VRAM for a second context ---- */

static void run_demotion(const void *argument)
{
    const char *spec = argument;
    models_start();
    struct reference r = {0};
    make_reference(&r, MODEL_LARGE);
    /* not mapped: what is in VRAM has no copy in host memory */
    struct llama_model *model = model_load(model_path(MODEL_LARGE), "ATS0", LLAMA_LOAD_MODE_NONE);
    CHECK(model != NULL, "cannot load");
    struct llama_context *first = make_context(model);
    CHECK(first != NULL && decode_step(first, 0) == 0 && is_right(first, &r, 0), "first context");
    inject("EMU0", spec);
    struct llama_context *second = make_context(model);
    if (second != NULL) {
        decode_from(second, &r, 0, "the second context");
    }
    inject("EMU0", "off");
    CHECK(scenario_logged("injected"), "nothing was moved: the test tests nothing");
    decode_from(first, &r, 1, "the first context afterwards");
    llama_free(second);
    second = make_context(model);
    if (second != NULL) { /* weights that could not be read back are lost, but not silently */
        decode_from(second, &r, 0, "a third context");
    }
    llama_free(second);
    llama_free(first);
    llama_model_free(model);
    model = model_load(model_path(MODEL_LARGE), "ATS0", LLAMA_LOAD_MODE_NONE);
    CHECK(model != NULL, "cannot load afterwards");
    check_new_context(model, &r, "a new model");
    llama_model_free(model);
    free_reference(&r);
}

static void test_demotion(void **state)
{
    (void)state;
    static const char *const specs[] = {"copy:1", "copy:2", "copy:1+", "alloc:1"};
    size_t failed = 0;
    for (size_t i = 0; i < sizeof(specs) / sizeof(specs[0]); i++) {
        failed += !scenario_run(specs[i], "ATS_VRAM=6M ATS_PLACEMENT=vram", run_demotion, specs[i]);
    }
    assert_int_equal(failed, 0);
}

/* ---- a failure while weights pass through staging memory, or are copied to stay there ---- */

struct promotion_scenario {
    const char *settings;
    const char *spec;
};

/* A number of the device's summary. */
static long long summary_number(const char *name)
{
    ggml_backend_dev_t device = device_named("ATS0");
    void *address = ggml_backend_reg_get_proc_address(ggml_backend_dev_backend_reg(device),
                                                      "ats_device_summary");
    char *(*summary)(ggml_backend_dev_t) = NULL;
    memcpy(&summary, &address, sizeof(summary));
    CHECK(summary != NULL, "the library has no summary");
    char *text = summary(device);
    const char *found = strstr(text, name);
    CHECK(found != NULL, "the summary has no %s: %s", name, text);
    const long long number = strtoll(strchr(found, ':') + 1, NULL, 10);
    free(text);
    return number;
}

static void run_promotion(const void *argument)
{
    const struct promotion_scenario *s = argument;
    models_start();
    struct reference r = {0};
    make_reference(&r, MODEL_LARGE);
    struct llama_model *model = model_load(model_path(MODEL_LARGE), "ATS0", LLAMA_LOAD_MODE_MMAP);
    CHECK(model != NULL, "cannot load");
    struct llama_context *ctx = make_context(model);
    CHECK(ctx != NULL && decode_step(ctx, 0) == 0 && is_right(ctx, &r, 0), "the prompt");
    inject("EMU0", s->spec);
    size_t step = decode_from(ctx, &r, 1, "with the failure");
    inject("EMU0", "off");
    if (step < STEPS) {
        CHECK(llama_memory_seq_rm(llama_get_memory(ctx), 0, (llama_pos)first_of(step), -1),
              "going back");
        step = decode_from(ctx, &r, step, "again in the same context");
        CHECK(step == STEPS, "step %zu fails again without a failure", step);
    }
    CHECK(summary_number("promoted_bytes") > 0, "nothing was promoted: the test tests nothing");
    llama_free(ctx);
    check_new_context(model, &r, "a new context");
    llama_model_free(model);
    free_reference(&r);
    llama_backend_free();
}

static void test_promotion(void **state)
{
    (void)state;
    static const char *const settings[] = {"ATS_VRAM=12M ATS_PROMOTE=auto",
                                           "ATS_VRAM=12M ATS_PROMOTE=all",
                                           "ATS_VRAM=12M ATS_PROMOTE=all ATS_TRANSFER=serial",
                                           "ATS_VRAM=12M ATS_PROMOTE=auto ATS_TRANSFER=serial"};
    static const char *const specs[] = {"off",     "copy:1",  "copy:2",    "copy:3",
                                        "copy:4",  "copy:5",  "copy:6",    "copy:8",
                                        "copy:11", "copy:20", "compute:1", "compute:3"};
    enum { N_SETTINGS = 4, N_SPECS = 12 };
    size_t failed = 0;
    size_t met = 0;
    for (size_t i = 0; i < (size_t)N_SETTINGS * N_SPECS; i++) {
        const struct promotion_scenario s = {settings[i / N_SPECS], specs[i % N_SPECS]};
        char title[96];
        snprintf(title, sizeof(title), "%s, %s", s.settings, s.spec);
        if (is_chosen(i, (size_t)N_SETTINGS * N_SPECS)) {
            failed += !scenario_run(title, s.settings, run_promotion, &s);
            met += scenario_met_failure();
        }
    }
    assert_int_equal(failed, 0);
    assert_true(met >= 8 || is_sanitized());
}

int main(void)
{
    models_make();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_nothing_injected),
        cmocka_unit_test(test_allocation),
        cmocka_unit_test(test_copy),
        cmocka_unit_test(test_copy_of_state),
        cmocka_unit_test(test_compute),
        cmocka_unit_test(test_loss),
        cmocka_unit_test(test_demotion),
        cmocka_unit_test(test_promotion),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
