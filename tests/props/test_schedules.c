/* Thousands of schedules: every kind of model, decoded over the emulated accelerator with random
 * pauses on all of its queues, gives the CPU's bits at every pass.
 *
 * A pause is drawn before every command from a stream of random numbers of the queue, which goes on
 * from pass to pass, so each pass is another interleaving of the host, the compute stream and the
 * transfer streams: another schedule. What else shapes a schedule is drawn too, per scenario: where
 * tensors live, what streams, how graphs are planned, the budget, batch sizes, and how a text is
 * split. Results depend on how a text is split on any backend, so both sides get the same batches,
 * and all rows of each batch are compared.
 *
 *   ATS_SCHEDULES   schedules per kind of model, over all settings (default: few, over two of them)
 *
 * A schedule is a graph that the device has computed, by the device's own count. `make schedules`
 * runs thousands; the table has what ran. */
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

enum {
    FEW = 24, /* schedules per kind, unless asked for more */
    FEW_SETTINGS = 2,
    MOST_PER_PROCESS = 200,
    MOST_WANTED = 1000000,
    MOST_TOKENS = 64, /* of a batch */
    CONTEXT = 256,
    UBATCH = 16, /* where the budget depends on it */
};

/* ---- what is tried ---- */

enum budget { FREE, PART };

/* Each S behind a colon is replaced by a seed. */
static const struct setting {
    const char *name;
    const char *variables;
    enum budget budget; /* PART: VRAM for a part of the model */
    bool experts;       /* for models with experts only */
} settings[] = {
    {"random sides", "ATS_PLACEMENT=random:S ATS_PROMOTE=none", FREE, false},
    {"streamed", "ATS_PLACEMENT=random:S ATS_PROMOTE=all", FREE, false},
    {"filled", "ATS_PLACEMENT=fill ATS_PROMOTE=all", PART, false},
    {"in pieces", "ATS_PLACEMENT=random:S ATS_PROMOTE=random:S", FREE, false},
    {"replanned", "ATS_PLACEMENT=fill ATS_ADAPT=random:S", PART, false},
    {"slices", "ATS_EXPERTS=slices ATS_PLACEMENT=random:S ATS_PROMOTE=none", FREE, true},
    {"slices, in pieces", "ATS_EXPERTS=slices ATS_PLACEMENT=random:S ATS_PROMOTE=random:S", FREE,
     true},
    {"by use", "ATS_PLACEMENT=random:S ATS_PROMOTE=used", FREE, true},
    {"slices, by use", "ATS_EXPERTS=slices ATS_PLACEMENT=random:S ATS_PROMOTE=used", FREE, true},
    {"slices, streamed", "ATS_EXPERTS=slices ATS_PLACEMENT=random:S ATS_PROMOTE=all", FREE, true},
};
enum { N_SETTINGS = sizeof(settings) / sizeof(settings[0]) };

static const struct {
    const char *name;
    bool has_experts;
} kinds[N_MODELS] = {
    [MODEL_DENSE] = {"dense", false},
    [MODEL_EXPERTS] = {"experts", true},
    [MODEL_RECURRENT] = {"recurrent", false},
    [MODEL_HYBRID] = {"hybrid", true},
    [MODEL_CONVOLUTION] = {"convolution", false},
    [MODEL_EMBEDDING] = {"embedding", false},
    [MODEL_WIDE_EXPERTS] = {"wide experts", true},
    [MODEL_LARGE] = {"large", false},
};

/* What ran, of one kind with one setting. */
struct tally {
    unsigned long long scenarios;
    unsigned long long batches;
    unsigned long long schedules;
    unsigned long long differing; /* batches */
    unsigned long long crossed;   /* bytes of promoted weights */
    unsigned long long admitted;  /* bytes of experts into slots */
    unsigned long long used;      /* matrices of experts that passed by use */
    unsigned long long rounds;    /* that they took */
    unsigned long long shared;    /* columns that the CPU computed meanwhile */
};

/* Written by the scenarios' processes. */
static struct shared {
    struct tally tallies[N_MODELS][N_SETTINGS];
    unsigned long long used_bytes[N_MODELS]; /* of VRAM, with VRAM for all */
} * shared;

struct scenario {
    enum model_kind kind;
    size_t setting;
    uint32_t n_ubatch;
    uint64_t stream;
    unsigned long long n_schedules;
};

/* ---- a scenario ---- */

struct world {
    const struct scenario *scenario;
    struct tally *tally;
    struct ats_rng rng;
    struct llama_model *models[2];
    struct llama_context *contexts[2]; /* ATS, CPU */
    size_t n_past;
    unsigned long long pass;
    bool embeds;
};

static void open_world(struct world *w)
{
    const enum model_kind kind = w->scenario->kind;
    const enum llama_load_mode mode =
        test_chance(&w->rng, 50) ? LLAMA_LOAD_MODE_MMAP : LLAMA_LOAD_MODE_NONE;
    struct llama_context_params params = context_params();
    w->embeds = kind == MODEL_EMBEDDING;
    params.n_ctx = CONTEXT;
    params.n_ubatch = w->embeds ? MOST_TOKENS : w->scenario->n_ubatch;
    params.embeddings = w->embeds;
    params.pooling_type = LLAMA_POOLING_TYPE_NONE;
    params.flash_attn_type =
        test_chance(&w->rng, 50) ? LLAMA_FLASH_ATTN_TYPE_ENABLED : LLAMA_FLASH_ATTN_TYPE_DISABLED;
    for (int side = 0; side < 2; side++) {
        w->models[side] = model_load(model_path(kind), side == 0 ? "ATS0" : "", mode);
        CHECK(w->models[side] != NULL, "cannot load");
        w->contexts[side] = llama_init_from_model(w->models[side], params);
        CHECK(w->contexts[side] != NULL, "no context");
    }
}

static void close_world(struct world *w)
{
    for (int side = 0; side < 2; side++) {
        llama_free(w->contexts[side]);
        llama_model_free(w->models[side]);
    }
    llama_backend_free();
}

/* Mostly one token; some; or a prompt. */
static size_t draw_length(struct ats_rng *rng)
{
    if (test_chance(rng, 70)) {
        return 1;
    }
    return test_chance(rng, 75) ? test_between(rng, 2, 16) : test_between(rng, 17, MOST_TOKENS);
}

static void decode(struct world *w, size_t n)
{
    struct llama_batch batch = llama_batch_init(MOST_TOKENS, 0, 1);
    for (size_t i = 0; i < n; i++) {
        batch.token[i] = (llama_token)(300 + ats_rng_below(&w->rng, 20000));
        batch.pos[i] = (llama_pos)(w->n_past + i);
        batch.n_seq_id[i] = 1;
        batch.seq_id[i][0] = 0;
        batch.logits[i] = true;
    }
    batch.n_tokens = (int32_t)n;
    for (int side = 0; side < 2; side++) {
        const int32_t result = llama_decode(w->contexts[side], batch);
        CHECK(result == 0, "pass %llu: decode gives %d on the %s", w->pass, result,
              side == 0 ? "device" : "CPU");
    }
    llama_batch_free(batch);
    w->n_past += n;
}

static const float *row(const struct world *w, int side, size_t i)
{
    return w->embeds ? llama_get_embeddings_ith(w->contexts[side], (int32_t)i)
                     : llama_get_logits_ith(w->contexts[side], (int32_t)i);
}

/* The first row that differs, or n. */
static size_t first_difference(const struct world *w, size_t n)
{
    const size_t width =
        w->embeds ? (size_t)llama_model_n_embd(w->models[0]) : logits_size(w->contexts[0]);
    for (size_t i = 0; i < n; i++) {
        const float *got = row(w, 0, i);
        const float *expected = row(w, 1, i);
        CHECK(expected != NULL, "pass %llu: nothing on the CPU", w->pass);
        if (got == NULL || memcmp(got, expected, width * sizeof(float)) != 0) {
            return i;
        }
    }
    return n;
}

static void take_counters(const struct world *w, const struct tally *before)
{
    w->tally->schedules = before->schedules + device_counter("graphs");
    w->tally->crossed = before->crossed + device_counter("promoted_bytes");
    w->tally->admitted = before->admitted + device_counter("admitted_bytes");
    w->tally->used = before->used + device_counter("used_matrices");
    w->tally->rounds = before->rounds + device_counter("used_rounds");
    w->tally->shared = before->shared + device_counter("shared_columns");
}

static void run_scenario(const void *argument)
{
    const struct scenario *s = argument;
    struct world w = {
        .scenario = s, .tally = &shared->tallies[s->kind][s->setting], .rng = test_rng(s->stream)};
    const struct tally before = *w.tally;
    models_start();
    open_world(&w);
    /* a batch is a graph at least, so this ends */
    for (; w.tally->schedules - before.schedules < s->n_schedules; w.pass++) {
        const size_t n = draw_length(&w.rng);
        if (w.embeds || w.n_past + n > CONTEXT) {
            for (int side = 0; side < 2 && !w.embeds; side++) {
                llama_memory_clear(llama_get_memory(w.contexts[side]), true);
            }
            w.n_past = 0;
        }
        const unsigned long long graphs = w.tally->schedules;
        decode(&w, n);
        w.tally->batches++;
        take_counters(&w, &before);
        CHECK(w.tally->schedules > graphs, "pass %llu: the device has computed nothing", w.pass);
        const size_t different = first_difference(&w, n);
        w.tally->differing += different < n;
        CHECK(different == n, "pass %llu of %zu tokens after %zu: row %zu differs from the CPU's",
              w.pass, n, w.n_past - n, different);
    }
    CHECK(scenario_logged_errors() == 0, "an error was logged");
    close_world(&w);
}

/* ---- all of them ---- */

static void measure_all(const void *argument)
{
    const struct scenario *s = argument;
    struct world w = {.scenario = s, .rng = test_rng(s->stream)};
    models_start();
    open_world(&w);
    decode(&w, MOST_TOKENS);
    decode(&w, 1);
    shared->used_bytes[s->kind] = device_counter("used_bytes");
    close_world(&w);
}

/* Less than all takes: by a little, which is a share of the layers of a model with a large
 * vocabulary, or by much. */
static unsigned long long draw_budget(struct ats_rng *rng, unsigned long long used_bytes)
{
    const size_t thousandths =
        test_chance(rng, 60) ? test_between(rng, 1, 60) : test_between(rng, 60, 800);
    return used_bytes / 1000 * (1000 - thousandths);
}

/* The setting's variables with what is drawn in place of S, and the pauses. */
static void write_variables(const struct scenario *s, struct ats_rng *rng, char *text, size_t size)
{
    const struct setting *setting = &settings[s->setting];
    size_t n = (size_t)snprintf(
        text, size, "OMP_WAIT_POLICY=passive ATS_EMU_SEED=%llu ATS_EMU_DELAY_US=%zu ",
        (unsigned long long)ats_rng_below(rng, 1000000000), test_between(rng, 10, 120));
    if (setting->budget == PART) {
        n += (size_t)snprintf(text + n, size - n, "ATS_VRAM=%llu ",
                              draw_budget(rng, shared->used_bytes[s->kind]));
    }
    for (const char *c = setting->variables; *c != '\0' && n + 24 < size; c++) {
        if (*c == 'S' && c[-1] == ':') {
            n += (size_t)snprintf(text + n, size - n, "%llu",
                                  (unsigned long long)ats_rng_below(rng, 1000000));
        } else {
            text[n++] = *c;
        }
    }
    text[n] = '\0';
}

static bool run_one(struct scenario *s)
{
    static const uint32_t ubatches[] = {4, UBATCH, MOST_TOKENS};
    struct ats_rng rng = test_rng(s->stream + (UINT64_C(1) << 32));
    s->n_ubatch = settings[s->setting].budget == PART ? UBATCH : ubatches[ats_rng_below(&rng, 3)];
    char text[320];
    char title[64];
    write_variables(s, &rng, text, sizeof(text));
    snprintf(title, sizeof(title), "%s, %s", kinds[s->kind].name, settings[s->setting].name);
    shared->tallies[s->kind][s->setting].scenarios++;
    return scenario_run(title, text, run_scenario, s);
}

/* The settings for a kind of model, or, where few schedules are wanted, some of them. Returns how
 * many. */
static size_t list_settings(enum model_kind kind, bool few, size_t *list)
{
    size_t n = 0;
    for (size_t i = 0; i < N_SETTINGS; i++) {
        if (!settings[i].experts || kinds[kind].has_experts) {
            list[n++] = i;
        }
    }
    struct ats_rng rng = test_rng(UINT64_C(1) << 33 | kind);
    for (; few && n > FEW_SETTINGS; n--) {
        list[ats_rng_below(&rng, n)] = list[n - 1];
    }
    return n;
}

/* Schedules per kind that were asked for; 0: few. */
static unsigned long long wanted(void)
{
    const char *text = getenv("ATS_SCHEDULES");
    char *end = NULL;
    const unsigned long long n = text != NULL ? strtoull(text, &end, 10) : 0;
    if (text != NULL && (n == 0 || *end != '\0' || n > MOST_WANTED)) {
        fprintf(stderr, "ATS_SCHEDULES=%s is no number from 1 to %d\n", text, MOST_WANTED);
        exit(2);
    }
    return n;
}

static unsigned long long divided(unsigned long long n, unsigned long long by)
{
    return (n + by - 1) / by;
}

/* All settings in turn, again and again until all schedules have run. */
static bool run_kind(enum model_kind kind)
{
    size_t list[N_SETTINGS];
    const size_t n = list_settings(kind, wanted() == 0, list);
    const unsigned long long per_setting = divided(wanted() != 0 ? wanted() : FEW, n);
    const unsigned long long rounds = divided(per_setting, MOST_PER_PROCESS);
    struct scenario s = {.kind = kind,
                         .n_ubatch = UBATCH,
                         .stream = UINT64_C(1) << 34 | kind,
                         .n_schedules = divided(per_setting, rounds)};
    bool ok = true;
    for (size_t i = 0; i < n && shared->used_bytes[kind] == 0 && ok; i++) {
        ok = settings[list[i]].budget != PART ||
             scenario_run("VRAM for all", "ATS_PLACEMENT=fill", measure_all, &s);
    }
    for (unsigned long long round = 0; ok && round < rounds; round++) {
        for (size_t i = 0; i < n; i++) {
            s.setting = list[i];
            s.stream = (round * N_SETTINGS + s.setting) * N_MODELS + kind;
            ok = run_one(&s) && ok;
        }
        fprintf(stderr, "%s: round %llu of %llu\n", kinds[kind].name, round + 1, rounds);
    }
    return ok;
}

static void add(struct tally *to, const struct tally *from)
{
    to->scenarios += from->scenarios;
    to->batches += from->batches;
    to->schedules += from->schedules;
    to->differing += from->differing;
    to->crossed += from->crossed;
    to->admitted += from->admitted;
    to->used += from->used;
    to->rounds += from->rounds;
    to->shared += from->shared;
}

static void print_row(const char *kind, const char *setting, const struct tally *t)
{
    printf("%-13s %-17s %8llu %10llu %10llu %7.0f %7.0f\n", kind, setting, t->batches, t->schedules,
           t->differing, (double)t->crossed / 1e6, (double)t->admitted / 1e6);
}

/* MB: of weights that streamed, and of experts that were admitted to slots. */
static struct tally print_table(void)
{
    struct tally all = {0};
    printf("%-13s %-17s %8s %10s %10s %7s %7s\n", "model", "setting", "batches", "schedules",
           "differing", "MB str.", "MB adm.");
    for (size_t kind = 0; kind < N_MODELS; kind++) {
        for (size_t i = 0; i < N_SETTINGS; i++) {
            if (shared->tallies[kind][i].scenarios > 0) {
                print_row(kinds[kind].name, settings[i].name, &shared->tallies[kind][i]);
                add(&all, &shared->tallies[kind][i]);
            }
        }
    }
    print_row("all", "", &all);
    printf(
        "%llu schedules in %llu processes, seed %llu: %llu of %llu batches differ from the CPU\n",
        all.schedules, all.scenarios, (unsigned long long)test_seed(), all.differing, all.batches);
    return all;
}

static void share_tallies(void)
{
    shared = mmap(NULL, sizeof(*shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    assert_ptr_not_equal(shared, MAP_FAILED);
}

static void test_schedules(void **state)
{
    (void)state;
    share_tallies();
    bool ok = true;
    for (size_t kind = 0; kind < N_MODELS; kind++) {
        if (wanted() != 0 || is_chosen(kind, N_MODELS)) {
            ok = run_kind((enum model_kind)kind) && ok;
        }
    }
    const struct tally all = print_table();
    assert_true(ok);
    assert_int_equal(all.differing, 0);
    if (wanted() != 0) { /* then what settings are named for has happened */
        assert_true(all.schedules >= N_MODELS * wanted());
        assert_true(all.crossed > 0 && all.admitted > 0);
    }
    munmap(shared, sizeof(*shared));
}

/* Experts by use, in places with too little room for most batches. */
static void test_by_use(void **state)
{
    (void)state;
    share_tallies();
    for (size_t kind = 0; kind < N_MODELS; kind++) {
        for (size_t i = 0; i < N_SETTINGS && kinds[kind].has_experts; i++) {
            struct scenario s = {.kind = (enum model_kind)kind,
                                 .setting = i,
                                 .stream = UINT64_C(3) << 40 | i << 8 | kind,
                                 .n_schedules = FEW};
            assert_true(strstr(settings[i].name, "by use") == NULL || run_one(&s));
        }
    }
    const struct tally all = print_table();
    printf("%llu matrices by use in %llu rounds, %llu columns left to the CPU\n", all.used,
           all.rounds, all.shared);
    assert_int_equal(all.differing, 0);
    assert_true(all.used > 0 && all.rounds > all.used && all.shared > 0);
    munmap(shared, sizeof(*shared));
}

static int make_models(void **state)
{
    (void)state;
    models_make();
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_schedules),
                                       cmocka_unit_test(test_by_use)};
    return cmocka_run_group_tests(tests, make_models, NULL);
}
