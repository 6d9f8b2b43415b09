/* Placement by prediction, with a profile of round figures (machine.json): any budget gives the
 * same bits as the CPU, what is decided is carried out and told, and a profile that is missing or
 * broken costs a line and nothing else. */
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
#include <unistd.h>

enum { UBATCH = 16 };

/* Written by a scenario's process, read by the test's. */
static struct {
    size_t used_bytes;
    size_t decided;
    size_t shrunk; /* runs whose budget has been lowered */
    size_t sliced; /* of these, with experts by slice */
    size_t solved; /* of these, by a plan that is better than the rule */
    size_t few;    /* of these, with less staging memory */
} * shared;

static size_t used_bytes(void)
{
    size_t free_bytes = 0;
    size_t total_bytes = 0;
    ggml_backend_dev_memory(device_named("EMU0"), &free_bytes, &total_bytes);
    return total_bytes - free_bytes;
}

static void compare(struct llama_model *ats_model, struct llama_model *cpu_model, uint64_t text)
{
    static const size_t lengths[] = {40, 1, 1, 3, 1, 20, 1};
    struct llama_context_params params = context_params();
    params.n_ubatch = UBATCH;
    struct llama_context *ats = llama_init_from_model(ats_model, params);
    struct llama_context *cpu = llama_init_from_model(cpu_model, params);
    CHECK(ats != NULL && cpu != NULL, "no context");
    size_t n_past = 0;
    for (size_t i = 0; i < sizeof(lengths) / sizeof(lengths[0]); i++) {
        CHECK(decode_text(cpu, text, n_past, lengths[i], 0) == 0, "decode on the CPU");
        CHECK(decode_text(ats, text, n_past, lengths[i], 0) == 0, "decode");
        CHECK(memcmp(llama_get_logits_ith(ats, -1), llama_get_logits_ith(cpu, -1),
                     logits_size(cpu) * sizeof(float)) == 0,
              "step %zu differs from the CPU", i);
        n_past += lengths[i];
    }
    shared->used_bytes = used_bytes();
    llama_free(ats);
    llama_free(cpu);
}

static void run_model(const void *argument)
{
    const enum model_kind *kind = argument;
    models_start();
    struct llama_model *ats = model_load(model_path(*kind), "ATS0", LLAMA_LOAD_MODE_MMAP);
    struct llama_model *cpu = model_load(model_path(*kind), "", LLAMA_LOAD_MODE_MMAP);
    CHECK(ats != NULL && cpu != NULL, "cannot load");
    compare(ats, cpu, 1);
    shared->decided += scenario_logged("placed for this machine");
    shared->few += scenario_logged("with less staging memory");
    shared->solved += scenario_logged("placed for this machine: solver");
    shared->sliced += scenario_logged("placed for this machine: slices");
    compare(ats, cpu, 2); /* a second context finds the weights placed */
    CHECK(scenario_logged_errors() == 0, "an error");
    llama_model_free(ats);
    llama_model_free(cpu);
    llama_backend_free();
}

static void run_with_profile(const void *argument)
{
    run_model(argument);
    CHECK(!scenario_logged("no profile"), "the profile was not read");
    CHECK(!scenario_logged("placed for this machine") || scenario_logged("in passes of 16 tokens"),
          "predicted for passes that nobody makes");
}

static void run_without_profile(const void *argument)
{
    run_model(argument);
    CHECK(scenario_logged("built-in rates"), "nobody was told");
    CHECK(!scenario_logged("placed for this machine"), "by which profile?");
}

/* Nothing is asked, and nothing is told. */
static void run_off(const void *argument)
{
    run_model(argument);
    CHECK(!scenario_logged("profile") && !scenario_logged("placed for this machine"),
          "a profile was asked for");
}

/* The plan that is carried out with these settings. */
static char *plan_of(const char *settings, void (*run)(const void *), const enum model_kind *kind)
{
    char path[] = "/tmp/ats-test-plan-XXXXXX";
    char all[768];
    const int fd = mkstemp(path);
    assert_true(fd >= 0);
    close(fd);
    snprintf(all, sizeof(all), "%s ATS_PLAN_OUT=%s", settings, path);
    assert_true(scenario_run(all, all, run, kind));
    char *text = calloc(1, 1 << 16);
    assert_non_null(text);
    FILE *plan = fopen(path, "r");
    assert_non_null(plan);
    assert_true(fread(text, 1, (1 << 16) - 1, plan) > 0);
    fclose(plan);
    unlink(path);
    return text;
}

static bool same_plan(const char *settings, const char *other, const enum model_kind *kind)
{
    char *text[2] = {plan_of(settings, run_with_profile, kind),
                     plan_of(other, run_with_profile, kind)};
    const bool same = strcmp(text[0], text[1]) == 0;
    free(text[0]);
    free(text[1]);
    return same;
}

/* A plan that beats the rule is another one than the rule's. */
static void check_carried_out(const char *settings, const enum model_kind *kind)
{
    char by_rule[512];
    snprintf(by_rule, sizeof(by_rule), "%s ATS_PLACEMENT=fill", settings);
    assert_false(same_plan(settings, by_rule, kind));
}

static void run_plan(const void *argument)
{
    run_with_profile(argument);
    CHECK(!scenario_logged("less staging memory, as the plan"), "the plan says how much");
    CHECK(!scenario_logged("does not fit the budget"), "the plan does not fit");
}

static void run_plan_of_less_staging(const void *argument)
{
    run_with_profile(argument);
    CHECK(scenario_logged("less staging memory, as the plan"), "the plan has no room");
    CHECK(!scenario_logged("does not fit the budget"), "the plan does not fit");
}

static void check_followed(const char *settings, const char *plan, void (*run)(const void *),
                           const enum model_kind *kind, const char *expected)
{
    char path[] = "/tmp/ats-test-plan-XXXXXX";
    char all[768];
    const int fd = mkstemp(path);
    assert_true(fd >= 0);
    assert_int_equal(write(fd, plan, strlen(plan)), strlen(plan));
    close(fd);
    snprintf(all, sizeof(all), "%s ATS_PLACEMENT=%s", settings, path);
    char *followed = plan_of(all, run, kind);
    assert_string_equal(followed, expected);
    unlink(path);
    free(followed);
}

/* A plan that was made with less staging memory is followed as it was made, and without the line
 * that says so, too. */
static void check_plan_file(const char *settings, const enum model_kind *kind)
{
    static const char line[] = "staging 2 pieces\n";
    char *made = plan_of(settings, run_with_profile, kind);
    check_followed(settings, made, run_plan, kind, made);
    const char *says = strstr(made, line);
    if (says != NULL) {
        char *silent = strdup(made);
        assert_non_null(silent);
        strcpy(silent + (says - made), says + strlen(line));
        check_followed(settings, silent, run_plan_of_less_staging, kind, made);
        free(silent);
    }
    free(made);
}

static void test_less_staging_memory(void **state)
{
    (void)state;
    static const enum model_kind kind = MODEL_LARGE;
    assert_true(scenario_run("VRAM for all", "", run_off, &kind));
    const size_t most = shared->used_bytes;
    size_t n = 0;
    for (size_t percent = 30; percent < 90 && n < 2; percent += 5) {
        char settings[256];
        snprintf(settings, sizeof(settings), "ATS_PROFILE=%s ATS_EXPERTS=whole ATS_VRAM=%zu",
                 ATS_TEST_MACHINE, most * percent / 100);
        const size_t few = shared->few;
        const size_t solved = shared->solved;
        assert_true(scenario_run(settings, settings, run_with_profile, &kind));
        if (shared->few > few && shared->solved > solved) {
            check_plan_file(settings, &kind);
            n++;
        }
    }
    assert_true(n > 0);
}

/* Prompts and answers do not want the same weights in VRAM. */
static void test_sessions(void **state)
{
    (void)state;
    static const enum model_kind kinds[] = {MODEL_LARGE, MODEL_WIDE_EXPERTS, MODEL_HYBRID};
    size_t n = 0;
    for (size_t k = 0; k < sizeof(kinds) / sizeof(kinds[0]) && n == 0; k++) {
        assert_true(scenario_run("VRAM for all", "", run_off, &kinds[k]));
        const size_t most = shared->used_bytes;
        for (size_t percent = 20; percent < 95 && n == 0; percent += 5) {
            char common[256];
            char prompts[320];
            char answers[320];
            snprintf(common, sizeof(common), "ATS_PROFILE=%s ATS_EXPERTS=whole ATS_VRAM=%zu",
                     ATS_TEST_MACHINE, most * percent / 100);
            snprintf(prompts, sizeof(prompts), "%s ATS_SESSION=4000:1", common);
            snprintf(answers, sizeof(answers), "%s ATS_SESSION=16:4000", common);
            if (!same_plan(prompts, answers, &kinds[k])) {
                print_message("model %zu with %zu %% of it\n", k, percent);
                n++;
            }
        }
    }
    assert_true(n > 0);
}

static void test_any_budget(void **state)
{
    (void)state;
    static const enum model_kind kinds[] = {MODEL_LARGE,  MODEL_WIDE_EXPERTS, MODEL_EXPERTS,
                                            MODEL_HYBRID, MODEL_RECURRENT,    MODEL_DENSE};
    static const char *const more[] = {"",
                                       " ATS_EMU_DELAY_US=20",
                                       " ATS_TRANSFER=serial",
                                       " ATS_EXPERTS=whole",
                                       " ATS_SESSION=16:4000",
                                       " ATS_ADAPT=random:5",
                                       " ATS_ADAPT=random:6 ATS_EMU_DELAY_US=20"};
    enum { N_KINDS = sizeof(kinds) / sizeof(kinds[0]), BUDGETS = 4 };
    for (uint64_t k = 0; k < N_KINDS; k++) {
        assert_true(scenario_run("VRAM for all", "", run_off, &kinds[k]));
        const size_t most = shared->used_bytes;
        for (uint64_t i = 0; i < BUDGETS; i++) {
            if (!is_chosen(k * BUDGETS + i, N_KINDS * BUDGETS)) {
                continue;
            }
            struct ats_rng rng = test_rng(10 * k + i);
            const size_t budget = most * (20 + 20 * i + test_between(&rng, 0, 18)) / 100;
            char settings[256];
            snprintf(settings, sizeof(settings), "ATS_PROFILE=%s ATS_VRAM=%zu%s", ATS_TEST_MACHINE,
                     budget, more[ats_rng_below(&rng, sizeof(more) / sizeof(more[0]))]);
            const size_t solved = shared->solved;
            assert_true(scenario_run(settings, settings, run_with_profile, &kinds[k]));
            if (shared->solved > solved) {
                check_carried_out(settings, &kinds[k]);
            }
        }
    }
    /* small budgets leave no room for weights to pass through, and then nothing is predicted */
    print_message("%zu decided, %zu by the solver, %zu by slice, %zu with less staging memory\n",
                  shared->decided, shared->solved, shared->sliced, shared->few);
    assert_true(is_sanitized() || (shared->decided >= 2ULL * BUDGETS && shared->solved > 0));
}

static void test_profiles_that_do_not_serve(void **state)
{
    (void)state;
    static const enum model_kind kind = MODEL_LARGE;
    assert_true(scenario_run("no profile", "ATS_PROFILE=" ATS_TEST_LIBRARY " ATS_VRAM=8M",
                             run_without_profile, &kind));
    assert_true(scenario_run("off", "ATS_PROFILE=off ATS_VRAM=8M", run_off, &kind));
    /* exact emulation has no times: it is not measured */
    assert_true(scenario_run("exact", "ATS_VRAM=8M", run_off, &kind));
    /* another rule was asked for */
    assert_true(scenario_run("fill",
                             "ATS_PROFILE=" ATS_TEST_MACHINE " ATS_PLACEMENT=fill ATS_VRAM=8M",
                             run_model, &kind));
}

/* The accelerator refuses an allocation: the budget shrinks, and all else is as ever. */
static void run_refused(const void *argument)
{
    models_start();
    struct llama_model *ats = model_load(model_path(MODEL_LARGE), "ATS0", LLAMA_LOAD_MODE_MMAP);
    struct llama_model *cpu = model_load(model_path(MODEL_LARGE), "", LLAMA_LOAD_MODE_MMAP);
    CHECK(ats != NULL && cpu != NULL, "cannot load");
    inject("EMU0", argument);
    compare(ats, cpu, 1);
    shared->shrunk += scenario_logged("placed by the rule with a VRAM budget of");
    inject("EMU0", "off");
    compare(ats, cpu, 2);
    llama_model_free(ats);
    llama_model_free(cpu);
    llama_backend_free();
}

static void test_refused_allocations(void **state)
{
    (void)state;
    static const char *const specs[] = {"alloc:2", "alloc:3", "alloc:4", "alloc:5", "alloc:3+"};
    enum { N = sizeof(specs) / sizeof(specs[0]) };
    for (size_t i = 0; i < N; i++) {
        if (is_chosen(i, N)) {
            assert_true(scenario_run(specs[i], "ATS_PROFILE=" ATS_TEST_MACHINE " ATS_VRAM=16M",
                                     run_refused, specs[i]));
        }
    }
    assert_true(is_sanitized() || shared->shrunk >= 3);
}

static int make_models(void **state)
{
    (void)state;
    shared = mmap(NULL, sizeof(*shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    models_make();
    return shared == MAP_FAILED ? -1 : 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_any_budget),
        cmocka_unit_test(test_less_staging_memory),
        cmocka_unit_test(test_sessions),
        cmocka_unit_test(test_profiles_that_do_not_serve),
        cmocka_unit_test(test_refused_allocations),
    };
    return cmocka_run_group_tests(tests, make_models, NULL);
}
