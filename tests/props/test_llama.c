/* libllama on ATS devices: any sequence of operations on contexts and models gives the same bits
 * as on the CPU device.
 *
 * A scenario keeps a few models, each loaded twice: on ATS and on the CPU alone. Random
 * operations are done to both: contexts with random parameters come and go, batches of random
 * split are decoded, sequences are cut, copied, saved and restored, adapters switched. Logits,
 * embeddings and saved state are compared bit by bit. Results depend on how a text is split into
 * batches on any backend, so both sides always get the same batches. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "harness.h"
#include "models.h"

#include <stdatomic.h>
#include <string.h>

enum {
    ATS = 0,
    CPU = 1,
    SIDES = 2,
    MAX_SESSIONS = 4,
    MAX_SEQUENCES = 3,
    MAX_LOADED = 2,
};

struct loaded {
    enum model_kind kind;
    struct llama_model *model[SIDES];
    struct llama_adapter_lora *lora[SIDES];
    size_t n_sessions;
};

struct session {
    struct loaded *loaded;
    struct llama_context *ctx[SIDES];
    bool embeddings;
    size_t n_sequences;
    size_t n_past[MAX_SEQUENCES];
};

struct scenario {
    uint64_t stream;
    const char *devices;
    size_t n_steps;
};

struct world {
    const struct scenario *scenario;
    struct ats_rng rng;
    struct loaded loaded[MAX_LOADED];
    struct session sessions[MAX_SESSIONS];
    size_t step;
    const char *doing;
};

/* ---- comparing ---- */

static void same_floats(const struct world *w, const char *what, const float *got,
                        const float *expected, size_t n)
{
    CHECK(got != NULL && expected != NULL, "step %zu: no %s", w->step, what);
    for (size_t i = 0; i < n; i++) {
        CHECK(memcmp(&got[i], &expected[i], sizeof(float)) == 0,
              "step %zu, %s: %s[%zu] is %g, on the CPU %g", w->step, w->doing, what, i,
              (double)got[i], (double)expected[i]);
    }
}

static void compare_outputs(const struct world *w, const struct session *s,
                            const struct llama_batch *batch)
{
    const size_t width = s->embeddings ? (size_t)llama_model_n_embd(s->loaded->model[ATS])
                                       : logits_size(s->ctx[ATS]);
    for (int32_t i = 0; i < batch->n_tokens; i++) {
        if (batch->logits[i] == 0) {
            continue;
        }
        float *rows[SIDES];
        for (int side = 0; side < SIDES; side++) {
            rows[side] = s->embeddings ? llama_get_embeddings_ith(s->ctx[side], i)
                                       : llama_get_logits_ith(s->ctx[side], i);
        }
        same_floats(w, s->embeddings ? "embedding" : "logits", rows[ATS], rows[CPU], width);
    }
}

/* ---- models and contexts ---- */

static void do_load(struct world *w)
{
    static const enum llama_load_mode modes[] = {LLAMA_LOAD_MODE_NONE, LLAMA_LOAD_MODE_MMAP};
    struct loaded *l = &w->loaded[ats_rng_below(&w->rng, MAX_LOADED)];
    if (l->model[ATS] != NULL) {
        return;
    }
    *l = (struct loaded){.kind = (enum model_kind)ats_rng_below(&w->rng, MODEL_EMBEDDING)};
    const enum llama_load_mode mode = modes[ats_rng_below(&w->rng, 2)];
    for (int side = 0; side < SIDES; side++) {
        l->model[side] =
            model_load(model_path(l->kind), side == ATS ? w->scenario->devices : "", mode);
        CHECK(l->model[side] != NULL, "step %zu: cannot load", w->step);
    }
}

static void do_unload(struct world *w)
{
    struct loaded *l = &w->loaded[ats_rng_below(&w->rng, MAX_LOADED)];
    if (l->model[ATS] == NULL || l->n_sessions > 0) {
        return;
    }
    for (int side = 0; side < SIDES; side++) {
        llama_model_free(l->model[side]); /* and its adapters */
    }
    *l = (struct loaded){0};
}

static void do_open(struct world *w)
{
    struct session *s = &w->sessions[ats_rng_below(&w->rng, MAX_SESSIONS)];
    struct loaded *l = &w->loaded[ats_rng_below(&w->rng, MAX_LOADED)];
    if (s->ctx[ATS] != NULL || l->model[ATS] == NULL) {
        return;
    }
    *s = (struct session){.loaded = l, .n_sequences = test_between(&w->rng, 1, MAX_SEQUENCES)};
    struct llama_context_params params = context_params();
    static const uint32_t ubatches[] = {1, 2, 5, 16, 40};
    params.n_ctx = (uint32_t)(256 * test_between(&w->rng, 1, 3));
    params.n_batch = params.n_ctx;
    params.n_ubatch = ubatches[ats_rng_below(&w->rng, 5)];
    params.n_seq_max = (uint32_t)s->n_sequences;
    params.kv_unified = test_chance(&w->rng, 50);
    params.offload_kqv = test_chance(&w->rng, 75);
    params.op_offload = test_chance(&w->rng, 50);
    if (test_chance(&w->rng, 50)) {
        params.flash_attn_type = LLAMA_FLASH_ATTN_TYPE_ENABLED;
    }
    for (int side = 0; side < SIDES; side++) {
        s->ctx[side] = llama_init_from_model(l->model[side], params);
        CHECK(s->ctx[side] != NULL, "step %zu: no context", w->step);
    }
    l->n_sessions++;
}

static void close_session(struct session *s)
{
    for (int side = 0; side < SIDES; side++) {
        llama_free(s->ctx[side]);
    }
    s->loaded->n_sessions--;
    *s = (struct session){0};
}

/* A session that is open, or NULL. */
static struct session *pick(struct world *w)
{
    struct session *s = &w->sessions[ats_rng_below(&w->rng, MAX_SESSIONS)];
    return s->ctx[ATS] != NULL ? s : NULL;
}

static void do_close(struct world *w)
{
    struct session *s = pick(w);
    if (s != NULL) {
        close_session(s);
    }
}

/* ---- decoding ---- */

static void add_token(struct world *w, struct session *s, struct llama_batch *batch,
                      llama_seq_id seq, bool wants_logits)
{
    const int32_t i = batch->n_tokens++;
    batch->token[i] = (llama_token)(300 + ats_rng_below(&w->rng, 20000));
    batch->pos[i] = (llama_pos)s->n_past[seq]++;
    batch->n_seq_id[i] = 1;
    batch->seq_id[i][0] = seq;
    batch->logits[i] = wants_logits;
}

static void forget(struct session *s, llama_seq_id seq)
{
    for (int side = 0; side < SIDES; side++) {
        CHECK(llama_memory_seq_rm(llama_get_memory(s->ctx[side]), seq, -1, -1), "forget");
    }
    s->n_past[seq] = 0;
}

static void do_decode(struct world *w)
{
    enum { LONGEST = 48 };
    struct session *s = pick(w);
    if (s == NULL) {
        return;
    }
    struct llama_batch batch = llama_batch_init(LONGEST, 0, 1);
    const size_t n = test_chance(&w->rng, 50) ? 1 : test_between(&w->rng, 1, LONGEST / 3);
    const llama_seq_id only = (llama_seq_id)ats_rng_below(&w->rng, s->n_sequences);
    const bool all = test_chance(&w->rng, 30); /* one after the other in one batch */
    for (size_t seq = 0; seq < s->n_sequences; seq++) {
        if (s->n_past[seq] > 200) {
            forget(s, (llama_seq_id)seq);
        }
        for (size_t i = 0; i < n && (all || (llama_seq_id)seq == only); i++) {
            add_token(w, s, &batch, (llama_seq_id)seq,
                      i + 1 == n || s->embeddings || test_chance(&w->rng, 10));
        }
    }
    int32_t results[SIDES];
    for (int side = 0; side < SIDES; side++) {
        results[side] = llama_decode(s->ctx[side], batch);
    }
    CHECK(results[ATS] == results[CPU], "step %zu: decode gives %d, on the CPU %d", w->step,
          results[ATS], results[CPU]);
    CHECK(results[ATS] == 0, "step %zu: decode gives %d on both", w->step, results[ATS]);
    compare_outputs(w, s, &batch);
    llama_batch_free(batch);
}

static void do_switch_embeddings(struct world *w)
{
    struct session *s = pick(w);
    if (s == NULL) {
        return;
    }
    s->embeddings = !s->embeddings;
    for (int side = 0; side < SIDES; side++) {
        llama_set_embeddings(s->ctx[side], s->embeddings);
    }
}

static void do_switch_lora(struct world *w)
{
    struct session *s = pick(w);
    if (s == NULL || s->loaded->kind != MODEL_DENSE) {
        return;
    }
    float scale = test_chance(&w->rng, 50) ? 1.0F : 0.25F;
    const size_t n = test_chance(&w->rng, 70) ? 1 : 0;
    for (int side = 0; side < SIDES; side++) {
        struct llama_adapter_lora **lora = &s->loaded->lora[side];
        if (*lora == NULL) {
            *lora = llama_adapter_lora_init(s->loaded->model[side], lora_path());
            CHECK(*lora != NULL, "no adapter");
        }
        CHECK(llama_set_adapters_lora(s->ctx[side], lora, n, &scale) == 0, "adapter");
    }
}

/* ---- sequences and state ---- */

static void do_remove(struct world *w)
{
    struct session *s = pick(w);
    if (s == NULL) {
        return;
    }
    const llama_seq_id seq = (llama_seq_id)ats_rng_below(&w->rng, s->n_sequences);
    const size_t from = (size_t)ats_rng_below(&w->rng, s->n_past[seq] + 1);
    bool removed[SIDES];
    for (int side = 0; side < SIDES; side++) {
        removed[side] =
            llama_memory_seq_rm(llama_get_memory(s->ctx[side]), seq, (llama_pos)from, -1);
    }
    CHECK(removed[ATS] == removed[CPU], "step %zu: removal", w->step);
    if (removed[ATS]) {
        s->n_past[seq] = from;
    } else {
        forget(s, seq); /* recurrent state has no past to go back to */
    }
}

static void do_copy(struct world *w)
{
    struct session *s = pick(w);
    if (s == NULL || s->n_sequences < 2) {
        return;
    }
    const llama_seq_id from = (llama_seq_id)ats_rng_below(&w->rng, s->n_sequences);
    const llama_seq_id to = (llama_seq_id)((size_t)(from + 1) % s->n_sequences);
    forget(s, to);
    for (int side = 0; side < SIDES; side++) {
        llama_memory_seq_cp(llama_get_memory(s->ctx[side]), from, to, -1, -1);
    }
    s->n_past[to] = s->n_past[from];
}

static void same_bytes(const struct world *w, const uint8_t *got, const uint8_t *expected, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        CHECK(got[i] == expected[i], "step %zu, %s: byte %zu of %zu of the state differs", w->step,
              w->doing, i, n);
    }
}

static void do_save_all(struct world *w)
{
    struct session *s = pick(w);
    if (s == NULL) {
        return;
    }
    uint8_t *data[SIDES];
    size_t bytes[SIDES];
    for (int side = 0; side < SIDES; side++) {
        const size_t size = llama_state_get_size(s->ctx[side]);
        data[side] = malloc(size);
        bytes[side] = llama_state_get_data(s->ctx[side], data[side], size);
    }
    CHECK(bytes[ATS] == bytes[CPU] && bytes[ATS] > 0, "step %zu: size of the state", w->step);
    same_bytes(w, data[ATS], data[CPU], bytes[ATS]);
    for (int side = 0; side < SIDES; side++) {
        llama_memory_clear(llama_get_memory(s->ctx[side]), test_chance(&w->rng, 50));
        CHECK(llama_state_set_data(s->ctx[side], data[side], bytes[side]) == bytes[side],
              "step %zu: restoring", w->step);
        free(data[side]);
    }
}

static void do_save_sequence(struct world *w)
{
    struct session *s = pick(w);
    if (s == NULL) {
        return;
    }
    const llama_seq_id from = (llama_seq_id)ats_rng_below(&w->rng, s->n_sequences);
    const llama_seq_id to = (llama_seq_id)ats_rng_below(&w->rng, s->n_sequences);
    uint8_t *data[SIDES];
    size_t bytes[SIDES];
    for (int side = 0; side < SIDES; side++) {
        const size_t size = llama_state_seq_get_size(s->ctx[side], from);
        data[side] = malloc(size);
        bytes[side] = llama_state_seq_get_data(s->ctx[side], data[side], size, from);
    }
    CHECK(bytes[ATS] == bytes[CPU], "step %zu: size of a sequence", w->step);
    same_bytes(w, data[ATS], data[CPU], bytes[ATS]);
    const size_t n_past = s->n_past[from];
    forget(s, to);
    for (int side = 0; side < SIDES && n_past > 0; side++) {
        /* what the CPU saved must do for ATS as well */
        CHECK(llama_state_seq_set_data(s->ctx[side], data[1 - side], bytes[side], to) ==
                  bytes[side],
              "step %zu: restoring a sequence", w->step);
    }
    s->n_past[to] = n_past;
    free(data[ATS]);
    free(data[CPU]);
}

/* ---- the walk ---- */

static const struct {
    const char *name;
    void (*run)(struct world *);
    unsigned weight;
} operations[] = {
    {"load", do_load, 6},
    {"unload", do_unload, 3},
    {"open", do_open, 10},
    {"close", do_close, 3},
    {"decode", do_decode, 60},
    {"embeddings", do_switch_embeddings, 3},
    {"adapter", do_switch_lora, 6},
    {"remove", do_remove, 6},
    {"copy", do_copy, 5},
    {"save all", do_save_all, 3},
    {"save a sequence", do_save_sequence, 6},
};

static void end(struct world *w)
{
    for (size_t i = 0; i < MAX_SESSIONS; i++) {
        if (w->sessions[i].ctx[ATS] != NULL) {
            close_session(&w->sessions[i]);
        }
    }
    for (size_t i = 0; i < MAX_LOADED; i++) {
        for (int side = 0; side < SIDES && w->loaded[i].model[ATS] != NULL; side++) {
            llama_model_free(w->loaded[i].model[side]);
        }
    }
}

static void run_walk(const void *argument)
{
    const struct scenario *scenario = argument;
    models_start();
    struct world w = {.scenario = scenario, .rng = test_rng(scenario->stream)};
    do_load(&w);
    do_open(&w);
    for (w.step = 0; w.step < scenario->n_steps; w.step++) {
        const size_t op = draw_weighted(&w.rng, &operations[0].weight, sizeof(operations[0]),
                                        sizeof(operations) / sizeof(operations[0]));
        w.doing = operations[op].name;
        operations[op].run(&w);
    }
    end(&w);
    llama_backend_free();
}

static void walk(const char *title, const char *settings, struct scenario scenario)
{
    scenario.n_steps = is_sanitized() ? scenario.n_steps / 3 : scenario.n_steps;
    assert_true(scenario_run(title, settings, run_walk, &scenario));
}

static void test_any_operations(void **state)
{
    (void)state;
    static const char *const settings[] = {
        "ATS_PLACEMENT=host",
        "ATS_PLACEMENT=vram",
        "ATS_PLACEMENT=fill",
        "ATS_VRAM=1M ATS_PROMOTE=all ATS_EMU_DELAY_US=20",
        "ATS_VRAM=1M ATS_PROMOTE=random:1 ATS_TRANSFER=serial",
        "ATS_PLACEMENT=fill ATS_EMU_DELAY_US=20",
        "ATS_VRAM=3M ATS_ADAPT=random:3 ATS_EMU_DELAY_US=20",
    };
    for (size_t i = 0; i < sizeof(settings) / sizeof(settings[0]); i++) {
        if (is_chosen(i, sizeof(settings) / sizeof(settings[0]))) {
            walk("any operations", settings[i], (struct scenario){i, "ATS0", 120});
        }
    }
    for (uint64_t i = 0; i < 4; i++) {
        if (!is_chosen(i, 4)) {
            continue;
        }
        struct ats_rng rng = test_rng(900 + i);
        char text[96];
        snprintf(text, sizeof(text), "ATS_PLACEMENT=random:%llu",
                 (unsigned long long)ats_rng_next(&rng));
        walk("random placement", text, (struct scenario){10 + i, "ATS0", 120});
    }
}

static void test_budgets(void **state)
{
    (void)state;
    static const char *const budgets[] = {"0", "64K", "1M", "3M", "8M", "16M"};
    for (uint64_t i = 0; i < sizeof(budgets) / sizeof(budgets[0]); i++) {
        if (!is_chosen(i, sizeof(budgets) / sizeof(budgets[0]))) {
            continue;
        }
        char text[96];
        snprintf(text, sizeof(text), "ATS_VRAM=%s ATS_PLACEMENT=%s", budgets[i],
                 i % 2 == 0 ? "fill" : "random:31");
        walk("budget", text, (struct scenario){30 + i, "ATS0", 80});
    }
    walk("small VRAM", "ATS_EMU_MEMORY=6M", (struct scenario){40, "ATS0", 80});
}

static void test_two_devices(void **state)
{
    (void)state;
    walk("two devices", "ATS_EMULATE=emu-small,emu-small ATS_PLACEMENT=random:5",
         (struct scenario){50, "ATS0,ATS1", 100});
    walk("two devices", "ATS_EMULATE=emu-small,emu-small ATS_VRAM=3M",
         (struct scenario){51, "ATS0,ATS1", 100});
}

/* ---- embeddings of a model without memory ---- */

static void run_bert(const void *argument)
{
    (void)argument;
    models_start();
    struct world w = {.rng = test_rng(60), .doing = "embed"};
    struct llama_model *model[SIDES];
    struct llama_context *ctx[SIDES];
    struct llama_context_params params = context_params();
    params.embeddings = true;
    params.pooling_type = LLAMA_POOLING_TYPE_MEAN;
    params.n_ubatch = 64;
    params.n_seq_max = 2;
    for (int side = 0; side < SIDES; side++) {
        model[side] = model_load(model_path(MODEL_EMBEDDING), side == ATS ? "ATS0" : "",
                                 LLAMA_LOAD_MODE_MMAP);
        CHECK(model[side] != NULL, "cannot load");
        ctx[side] = llama_init_from_model(model[side], params);
        CHECK(ctx[side] != NULL, "no context");
    }
    for (w.step = 0; w.step < 20; w.step++) {
        const size_t n = test_between(&w.rng, 1, 50);
        for (int side = 0; side < SIDES; side++) {
            CHECK(decode_text(ctx[side], w.step, 0, n, 0) == 0, "step %zu", w.step);
        }
        same_floats(&w, "embedding", llama_get_embeddings_seq(ctx[ATS], 0),
                    llama_get_embeddings_seq(ctx[CPU], 0), (size_t)llama_model_n_embd(model[ATS]));
    }
    for (int side = 0; side < SIDES; side++) {
        llama_free(ctx[side]);
        llama_model_free(model[side]);
    }
}

static void test_embedding_model(void **state)
{
    (void)state;
    assert_true(scenario_run("embedding model", "ATS_PLACEMENT=random:8", run_bert, NULL));
    assert_true(scenario_run("embedding model", "ATS_VRAM=300K", run_bert, NULL));
}

/* ---- a second context when VRAM is full ---- */

static void run_second_context(const void *argument)
{
    (void)argument;
    models_start();
    struct world w = {.rng = test_rng(61), .doing = "a second context"};
    struct llama_model *model[SIDES];
    struct llama_context *ctx[SIDES][2];
    for (int side = 0; side < SIDES; side++) {
        model[side] =
            model_load(model_path(MODEL_LARGE), side == ATS ? "ATS0" : "", LLAMA_LOAD_MODE_NONE);
        CHECK(model[side] != NULL, "cannot load");
    }
    for (size_t c = 0; c < 2; c++) {
        for (int side = 0; side < SIDES; side++) {
            ctx[side][c] = llama_init_from_model(model[side], context_params());
            CHECK(ctx[side][c] != NULL, "no context");
        }
        CHECK(!scenario_logged("moved"), "weights were moved for the first context already");
        for (size_t i = 0; i < 6; i++) { /* both contexts from the second on */
            for (size_t k = 0; k <= c; k++) {
                const size_t first = (c - k) * 18 + i * 3;
                for (int side = 0; side < SIDES; side++) {
                    CHECK(decode_text(ctx[side][k], k, first, 3, 0) == 0, "decode");
                }
                same_floats(&w, "logits", llama_get_logits_ith(ctx[ATS][k], -1),
                            llama_get_logits_ith(ctx[CPU][k], -1), logits_size(ctx[ATS][k]));
            }
        }
        if (c == 1) {
            CHECK(scenario_logged("moved"), "VRAM was not full: the test tests nothing");
        }
    }
    for (int side = 0; side < SIDES; side++) {
        llama_free(ctx[side][0]);
        llama_free(ctx[side][1]);
        llama_model_free(model[side]);
    }
}

static void test_second_context_when_vram_is_full(void **state)
{
    (void)state;
    static const char *const settings[] = {"ATS_VRAM=6M ATS_PLACEMENT=vram",
                                           "ATS_VRAM=12M ATS_PLACEMENT=fill"};
    for (size_t i = 0; i < 2; i++) {
        assert_true(scenario_run("second context", settings[i], run_second_context, NULL));
    }
}

/* ---- abort ---- */

static atomic_long calls_left;

static bool abort_soon(void *data)
{
    (void)data;
    return atomic_fetch_sub(&calls_left, 1) <= 0;
}

static void run_abort(const void *argument)
{
    const enum model_kind kind = *(const enum model_kind *)argument;
    models_start();
    struct world w = {.rng = test_rng(70), .doing = "after an abort"};
    struct llama_model *model[SIDES];
    struct llama_context *ctx[SIDES];
    for (int side = 0; side < SIDES; side++) {
        model[side] = model_load(model_path(kind), side == ATS ? "ATS0" : "", LLAMA_LOAD_MODE_MMAP);
        CHECK(model[side] != NULL, "cannot load");
        ctx[side] = llama_init_from_model(model[side], context_params());
        CHECK(ctx[side] != NULL, "no context");
        CHECK(decode_text(ctx[side], 1, 0, 5, 0) == 0, "decode");
    }
    size_t n_past = 5;
    size_t aborted = 0;
    for (w.step = 0; w.step < 30; w.step++) {
        atomic_store(&calls_left, (long)ats_rng_below(&w.rng, 1U << ats_rng_below(&w.rng, 9)));
        llama_set_abort_callback(ctx[ATS], abort_soon, NULL);
        const size_t n = test_chance(&w.rng, 50) ? 1 : test_between(&w.rng, 2, 6);
        const int32_t result = decode_text(ctx[ATS], 1, n_past, n, 0);
        CHECK(result == 0 || result == 2, "step %zu: decode gives %d", w.step, result);
        llama_set_abort_callback(ctx[ATS], NULL, NULL);
        if (result == 2) {
            aborted++;
            /* the tokens before stay; recurrent state cannot go back, so it starts anew */
            if (!llama_memory_seq_rm(llama_get_memory(ctx[ATS]), 0, (llama_pos)n_past, -1)) {
                for (int side = 0; side < SIDES; side++) {
                    llama_memory_clear(llama_get_memory(ctx[side]), true);
                }
                n_past = 0;
            }
            CHECK(decode_text(ctx[ATS], 1, n_past, n, 0) == 0, "step %zu: again", w.step);
        }
        CHECK(decode_text(ctx[CPU], 1, n_past, n, 0) == 0, "CPU");
        same_floats(&w, "logits", llama_get_logits_ith(ctx[ATS], -1),
                    llama_get_logits_ith(ctx[CPU], -1), logits_size(ctx[ATS]));
        n_past += n;
    }
    CHECK(aborted >= 3, "only %zu decodes were aborted: the test tests nothing", aborted);
    for (int side = 0; side < SIDES; side++) {
        llama_free(ctx[side]);
        llama_model_free(model[side]);
    }
}

static void test_abort(void **state)
{
    (void)state;
    static const enum model_kind kinds[] = {MODEL_DENSE, MODEL_RECURRENT, MODEL_HYBRID};
    static const char *const settings[] = {"ATS_PLACEMENT=random:3", "ATS_PLACEMENT=vram",
                                           "ATS_PLACEMENT=random:4"};
    for (size_t i = 0; i < 3; i++) {
        assert_true(scenario_run("abort", settings[i], run_abort, &kinds[i]));
    }
}

int main(void)
{
    models_make();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_any_operations),
        cmocka_unit_test(test_budgets),
        cmocka_unit_test(test_two_devices),
        cmocka_unit_test(test_embedding_model),
        cmocka_unit_test(test_second_context_when_vram_is_full),
        cmocka_unit_test(test_abort),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
