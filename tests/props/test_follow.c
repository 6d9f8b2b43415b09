/* Following the device's memory: whatever other programs take and give back, results are the CPU's
 * bit by bit, weights make way before the device is full, and all of them come back. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "harness.h"
#include "models.h"

#include <string.h>
#include <time.h>

/* groups may share blocks in another way than before: some pages of padding */
enum { MOST_LOOKS = 40, PADDING = 128 << 10, MOST_CONTEXTS = 2 };

struct scenario {
    enum model_kind kind;
    uint64_t stream;
    bool slices;
    int n_steps;
    int n_contexts;     /* that share the budget; 0: one */
    size_t least_taken; /* by others in a step, in thousandths of what is free */
};

struct world {
    ggml_backend_dev_t device;
    struct llama_context *ats[MOST_CONTEXTS];
    int n_contexts;
    struct llama_context *cpu;
    size_t n_past;
    size_t total;
    size_t others;
};

static size_t free_bytes(struct world *w)
{
    size_t bytes = 0;
    ggml_backend_dev_memory(w->device, &bytes, &w->total);
    return bytes;
}

/* Bytes that ATS has. */
static size_t used_bytes(struct world *w)
{
    const size_t left = free_bytes(w);
    return w->total - left - w->others;
}

static void occupy(struct world *w, size_t bytes)
{
    bool (*function)(ggml_backend_dev_t, size_t) = NULL;
    void *address = ggml_backend_reg_get_proc_address(ggml_backend_dev_backend_reg(w->device),
                                                      "ats_emu_occupy");
    memcpy(&function, &address, sizeof(address));
    CHECK(function != NULL && function(w->device, bytes), "not an emulated device");
    w->others = bytes;
}

/* The device is looked at twice a second. */
static void wait_for_look(void)
{
    nanosleep(&(struct timespec){.tv_nsec = 520000000}, NULL);
}

static void decode(struct world *w, size_t n)
{
    CHECK(decode_text(w->cpu, 1, w->n_past, n, 0) == 0, "decode on the CPU");
    for (int i = 0; i < w->n_contexts; i++) {
        CHECK(decode_text(w->ats[i], 1, w->n_past, n, 0) == 0, "decode");
        CHECK(memcmp(llama_get_logits_ith(w->ats[i], -1), llama_get_logits_ith(w->cpu, -1),
                     logits_size(w->cpu) * sizeof(float)) == 0,
              "context %d differs from the CPU after %zu tokens, %zu bytes used by others", i,
              w->n_past + n, w->others);
    }
    w->n_past += n;
}

static void run_follow(const void *argument)
{
    const struct scenario *s = argument;
    models_start();
    struct ats_rng rng = test_rng(s->stream);
    const enum llama_load_mode mode =
        s->stream % 2 == 0 ? LLAMA_LOAD_MODE_NONE : LLAMA_LOAD_MODE_MMAP;
    struct llama_model *models[2] = {model_load(model_path(s->kind), "ATS0", mode),
                                     model_load(model_path(s->kind), "", LLAMA_LOAD_MODE_MMAP)};
    CHECK(models[0] != NULL && models[1] != NULL, "cannot load");
    struct world w = {.device = device_named("EMU0"),
                      .cpu = llama_init_from_model(models[1], context_params()),
                      .n_contexts = s->n_contexts > 0 ? s->n_contexts : 1};
    for (int i = 0; i < w.n_contexts; i++) {
        w.ats[i] = llama_init_from_model(models[0], context_params());
    }
    decode(&w, 5);
    const size_t all = used_bytes(&w);
    CHECK(scenario_logged("experts by slice") == s->slices, "experts by slice");
    bool left = false;
    for (int step = 0; step < s->n_steps; step++) {
        occupy(&w, w.others + free_bytes(&w) * test_between(&rng, s->least_taken, 1000) / 1000);
        wait_for_look();
        decode(&w, 1 + test_between(&rng, 0, 2));
        CHECK(free_bytes(&w) >= w.total / 64 || scenario_logged("no weights are left in VRAM"),
              "%zu bytes are left free", free_bytes(&w));
        left = left || used_bytes(&w) < all;
    }
    CHECK(left, "nothing made way");
    occupy(&w, 0);
    for (int look = 0; used_bytes(&w) + PADDING < all && look < MOST_LOOKS; look++) {
        wait_for_look();
        decode(&w, 1);
    }
    CHECK(used_bytes(&w) + PADDING >= all, "%zu of %zu bytes came back", used_bytes(&w), all);
    decode(&w, 3);
    CHECK(scenario_logged("others need VRAM"), "nobody was told");
    CHECK(scenario_logged_errors() == 0, "an error");
    for (int i = 0; i < w.n_contexts; i++) {
        llama_free(w.ats[i]);
    }
    llama_free(w.cpu);
    llama_model_free(models[0]);
    llama_model_free(models[1]);
    llama_backend_free();
}

static void test_follows(void **state)
{
    (void)state;
    static const struct scenario scenarios[] = {
        {.kind = MODEL_LARGE, .stream = 1, .n_steps = 6, .least_taken = 900},
        {.kind = MODEL_WIDE_EXPERTS, .stream = 2, .n_steps = 6, .least_taken = 900},
        {.kind = MODEL_HYBRID, .stream = 3, .n_steps = 6, .least_taken = 900},
        {.kind = MODEL_LARGE, .stream = 4, .n_steps = 6, .least_taken = 900},
        {.kind = MODEL_LARGE, .stream = 6, .n_contexts = 2, .n_steps = 6, .least_taken = 900},
        {.kind = MODEL_WIDE_EXPERTS,
         .stream = 7,
         .slices = true,
         .n_contexts = 2,
         .n_steps = 3,
         .least_taken = 950},
        /* so little is taken that slots shrink and no weight leaves */
        {.kind = MODEL_WIDE_EXPERTS,
         .stream = 5,
         .slices = true,
         .n_steps = 1,
         .least_taken = 1000},
    };
    static const char *const settings[] = {
        "ATS_EMU_MEMORY=64M",
        "ATS_EMU_MEMORY=64M ATS_EMU_DELAY_US=20",
        "ATS_EMU_MEMORY=16M",
        "ATS_EMU_MEMORY=64M ATS_ADAPT=random:9",
        "ATS_EMU_MEMORY=64M ATS_ADAPT=random:10",
        "ATS_EMU_MEMORY=64M ATS_VRAM=10M ATS_EXPERTS=slices",
        "ATS_EMU_MEMORY=64M ATS_VRAM=8M ATS_EXPERTS=slices ATS_EMU_DELAY_US=20"};
    for (size_t i = 0; i < sizeof(scenarios) / sizeof(scenarios[0]); i++) {
        if (is_chosen(i, sizeof(scenarios) / sizeof(scenarios[0]))) {
            assert_true(scenario_run("follow", settings[i], run_follow, &scenarios[i]));
        }
    }
}

/* Switched off, the budget is what it was. */
static void run_off(const void *argument)
{
    (void)argument;
    models_start();
    struct llama_model *model = model_load(model_path(MODEL_LARGE), "ATS0", LLAMA_LOAD_MODE_MMAP);
    CHECK(model != NULL, "cannot load");
    struct world w = {.device = device_named("EMU0"),
                      .ats = {llama_init_from_model(model, context_params())}};
    CHECK(decode_text(w.ats[0], 1, 0, 5, 0) == 0, "decode");
    const size_t all = used_bytes(&w);
    occupy(&w, free_bytes(&w));
    wait_for_look();
    CHECK(decode_text(w.ats[0], 1, 5, 1, 0) == 0, "decode");
    CHECK(used_bytes(&w) == all, "%zu of %zu bytes", used_bytes(&w), all);
    llama_free(w.ats[0]);
    llama_model_free(model);
    llama_backend_free();
}

static void test_off(void **state)
{
    (void)state;
    assert_true(scenario_run("off", "ATS_EMU_MEMORY=64M ATS_ADAPT=off", run_off, NULL));
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
        cmocka_unit_test(test_follows),
        cmocka_unit_test(test_off),
    };
    return cmocka_run_group_tests(tests, make_models, NULL);
}
