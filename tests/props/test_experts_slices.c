/* Experts by slice: prompts, single tokens and small batches in any order give the same bits as the
 * CPU, while experts move in and out of VRAM, with pauses in all queues; a failure at any time is
 * an error and never a wrong result. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "harness.h"
#include "models.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum { STEPS = 40, MOST_CONTEXTS = 2, BUDGET_UBATCH = 4 };

struct scenario {
    uint64_t stream;
    enum model_kind kind;
    size_t n_contexts;
    const char *spec; /* a failure, or NULL */
    uint32_t ubatch;  /* 0: at random */
};

/* ---- a text, decoded on both sides alike ---- */

struct session {
    struct llama_context *ats;
    struct llama_context *cpu;
    size_t n_past;
};

/* A prompt, a few tokens or, mostly, one. */
static size_t draw_length(struct ats_rng *rng, size_t step)
{
    if (step == 0 || test_chance(rng, 5)) {
        return test_between(rng, 8, 40);
    }
    return test_chance(rng, 10) ? test_between(rng, 2, 5) : 1;
}

static bool equal_bits(const struct session *s)
{
    const float *got = llama_get_logits_ith(s->ats, -1);
    const float *expected = llama_get_logits_ith(s->cpu, -1);
    CHECK(expected != NULL, "no logits on the CPU");
    return got != NULL && memcmp(got, expected, logits_size(s->cpu) * sizeof(float)) == 0;
}

static void start_anew(struct session *s)
{
    llama_memory_clear(llama_get_memory(s->ats), true);
    llama_memory_clear(llama_get_memory(s->cpu), true);
    s->n_past = 0;
}

/* Decodes `n` tokens of a text on both. Whether ATS did without an error; then it is right. */
static bool decode(struct session *s, uint64_t text, size_t n, size_t step)
{
    const size_t errors = scenario_logged_errors();
    const int32_t result = decode_text(s->ats, text, s->n_past, n, 0);
    CHECK(decode_text(s->cpu, text, s->n_past, n, 0) == 0, "step %zu: decode on the CPU", step);
    s->n_past += n;
    if (result == 0 && equal_bits(s)) {
        return true;
    }
    CHECK(scenario_logged_errors() > errors, "step %zu of %zu tokens: wrong, and no error", step,
          n);
    return false;
}

/* ---- scenarios ---- */

static void open_session(struct session *s, struct llama_model *ats, struct llama_model *cpu,
                         uint32_t ubatch)
{
    struct llama_context_params params = context_params();
    params.n_ubatch = ubatch;
    *s = (struct session){.ats = llama_init_from_model(ats, params),
                          .cpu = llama_init_from_model(cpu, params)};
    CHECK(s->ats != NULL && s->cpu != NULL, "no context");
}

static void walk(const struct scenario *scenario, struct session *sessions, struct ats_rng *rng)
{
    const size_t failing = scenario->spec != NULL ? test_between(rng, 0, STEPS / 2) : STEPS;
    for (size_t step = 0; step < STEPS; step++) {
        struct session *s = &sessions[ats_rng_below(rng, scenario->n_contexts)];
        const size_t n = draw_length(rng, s->n_past);
        if (s->n_past + n > 240 || test_chance(rng, 4)) {
            start_anew(s);
        }
        if (step == failing) {
            inject("EMU0", scenario->spec);
        }
        if (!decode(s, scenario->stream, n, step)) {
            CHECK(step >= failing, "step %zu: an error that nothing caused", step);
            inject("EMU0", "off");
            return;
        }
    }
}

static void run_walk(const void *argument)
{
    const struct scenario *scenario = argument;
    static const uint32_t ubatches[] = {1, 4, 16, 40};
    models_start();
    struct ats_rng rng = test_rng(scenario->stream);
    const enum llama_load_mode mode =
        test_chance(&rng, 50) ? LLAMA_LOAD_MODE_MMAP : LLAMA_LOAD_MODE_NONE;
    struct llama_model *ats = model_load(model_path(scenario->kind), "ATS0", mode);
    struct llama_model *cpu = model_load(model_path(scenario->kind), "", mode);
    CHECK(ats != NULL && cpu != NULL, "cannot load");
    struct session sessions[MOST_CONTEXTS];
    for (size_t i = 0; i < scenario->n_contexts; i++) {
        const uint32_t drawn = ubatches[ats_rng_below(&rng, 4)];
        open_session(&sessions[i], ats, cpu, scenario->ubatch != 0 ? scenario->ubatch : drawn);
    }
    walk(scenario, sessions, &rng);
    const bool lost = scenario->spec != NULL && strncmp(scenario->spec, "loss", 4) == 0;
    if (scenario->spec != NULL && !lost) {
        for (size_t i = 0; i < scenario->n_contexts; i++) { /* the same contexts serve again */
            start_anew(&sessions[i]);
            for (size_t step = 0; step < 6; step++) {
                CHECK(decode(&sessions[i], 99, step == 0 ? 12 : 1, step), "after the failure");
            }
        }
    }
    CHECK(scenario->spec != NULL || (device_counter("hits") > 0 && device_counter("misses") > 0),
          "%llu hits and %llu misses: the test tests nothing", device_counter("hits"),
          device_counter("misses"));
    for (size_t i = 0; i < scenario->n_contexts; i++) {
        llama_free(sessions[i].ats);
        llama_free(sessions[i].cpu);
    }
    llama_model_free(ats);
    llama_model_free(cpu);
    llama_backend_free();
}

static void run(const char *settings, struct scenario scenario)
{
    char all[256];
    snprintf(all, sizeof(all), "ATS_EXPERTS=slices %s", settings);
    char title[320];
    snprintf(title, sizeof(title), "model %d, %s%s%s", (int)scenario.kind, settings,
             scenario.spec != NULL ? ", " : "", scenario.spec != NULL ? scenario.spec : "");
    assert_true(scenario_run(title, all, run_walk, &scenario));
}

/* ---- tests ---- */

static void test_any_order(void **state)
{
    (void)state;
    static const char *const settings[] = {
        "ATS_PROMOTE=all ATS_EMU_DELAY_US=20",     "ATS_PROMOTE=all ATS_TRANSFER=serial",
        "ATS_PROMOTE=none ATS_EMU_DELAY_US=20",    "ATS_EMU_DELAY_US=20",
        "ATS_TRANSFER=serial ATS_EMU_DELAY_US=20",
    };
    enum { N = sizeof(settings) / sizeof(settings[0]) };
    for (uint64_t i = 0; i < 2ULL * N; i++) {
        if (!is_chosen(i, 2ULL * N)) {
            continue;
        }
        struct ats_rng rng = test_rng(100 + i);
        char text[160];
        snprintf(text, sizeof(text), "ATS_PLACEMENT=random:%llu %s",
                 (unsigned long long)ats_rng_below(&rng, 1000), settings[i % N]);
        run(text, (struct scenario){.stream = i,
                                    .kind = i % 3 == 2   ? MODEL_HYBRID
                                            : i % 3 == 1 ? MODEL_WIDE_EXPERTS
                                                         : MODEL_EXPERTS,
                                    .n_contexts = 1 + i / N % 2});
    }
}

/* What a run took with VRAM for all: written by a scenario's process, read by the test's. */
static unsigned long long *used_bytes;

static void run_with_all(const void *argument)
{
    const enum model_kind *kind = argument;
    models_start();
    struct llama_model *model = model_load(model_path(*kind), "ATS0", LLAMA_LOAD_MODE_MMAP);
    CHECK(model != NULL, "cannot load");
    struct session s;
    open_session(&s, model, model, BUDGET_UBATCH);
    CHECK(decode_text(s.ats, 1, 0, 12, 0) == 0, "decode");
    CHECK(decode_text(s.ats, 1, 12, 1, 0) == 0, "decode");
    *used_bytes = device_counter("used_bytes");
    llama_free(s.ats);
    llama_free(s.cpu);
    llama_model_free(model);
    llama_backend_free();
}

/* The rule `fill` with VRAM for all but two experts, and less and less. */
static void run_budgets(enum model_kind kind, unsigned long long expert_bytes, const char *settings)
{
    enum { N = 3 };
    assert_true(scenario_run("VRAM for all", "ATS_PLACEMENT=fill", run_with_all, &kind));
    for (uint64_t i = 0; i < N; i++) {
        if (!is_chosen(i, N)) {
            continue;
        }
        char text[128];
        snprintf(text, sizeof(text), "ATS_VRAM=%llu %s", *used_bytes - (2 + 3 * i) * expert_bytes,
                 settings);
        run(text, (struct scenario){
                      .stream = 30 + i, .kind = kind, .n_contexts = 1, .ubatch = BUDGET_UBATCH});
    }
}

static void test_budgets(void **state)
{
    (void)state;
    /* 8 experts in each of 2 layers, of three matrices whose numbers take 2 bytes */
    const unsigned long long narrow = 3ULL * 64 * 32 * 2;
    const unsigned long long wide = 3ULL * 128 * 1024 * 2;
    used_bytes =
        mmap(NULL, sizeof(*used_bytes), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    assert_ptr_not_equal(used_bytes, MAP_FAILED);
    /* of the narrow ones, staging memory would leave nothing */
    run_budgets(MODEL_EXPERTS, narrow, "ATS_PROMOTE=none ATS_EMU_DELAY_US=20");
    run_budgets(MODEL_WIDE_EXPERTS, wide, "ATS_PROMOTE=auto ATS_EMU_DELAY_US=20");
    run_budgets(MODEL_WIDE_EXPERTS, wide, "ATS_PROMOTE=all");
    run_budgets(MODEL_WIDE_EXPERTS, wide, "ATS_PROMOTE=all ATS_TRANSFER=serial");
    munmap(used_bytes, sizeof(*used_bytes));
}

static void test_failures(void **state)
{
    (void)state;
    static const char *const specs[] = {"copy:1",    "copy:2",    "copy:4",     "copy:7",
                                        "copy:12",   "copy:30",   "compute:1",  "compute:2",
                                        "compute:3", "compute:8", "compute:25", "loss:1",
                                        "loss:5",    "loss:17",   "loss:60",    "alloc:1+"};
    enum { N = sizeof(specs) / sizeof(specs[0]) };
    size_t met = 0;
    for (uint64_t i = 0; i < N; i++) {
        if (!is_chosen(i, N)) {
            continue;
        }
        struct ats_rng rng = test_rng(200 + i);
        char text[96];
        snprintf(text, sizeof(text), "ATS_PLACEMENT=random:%llu%s",
                 (unsigned long long)ats_rng_below(&rng, 1000),
                 test_chance(&rng, 50) ? " ATS_PROMOTE=all" : "");
        run(text, (struct scenario){
                      .stream = 60 + i, .kind = MODEL_EXPERTS, .n_contexts = 1, .spec = specs[i]});
        met += scenario_met_failure();
    }
    assert_true(met > 0 || is_sanitized());
}

static int make_models(void **state)
{
    (void)state;
    models_make();
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_any_order),
        cmocka_unit_test(test_budgets),
        cmocka_unit_test(test_failures),
    };
    return cmocka_run_group_tests(tests, make_models, NULL);
}
