/* What the trainer computes is what llama.cpp computes from the exported file: logits, tokens, and
 * the model with experts. */
#include "bpe.h"
#include "net.h"
#include "text.h"

#include <ggml-backend.h>
#include <llama.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>

#include <cmocka.h>

#include "run.h"
#include "unit/seed.h"

enum { CONTEXT = 64 };

static const struct net_shape shape = {.vocab = 320,
                                       .width = 128,
                                       .layers = 3,
                                       .heads = 4,
                                       .kv_heads = 2,
                                       .ff = 256,
                                       .context = CONTEXT};

/* A folder with a random model as checkpoint and tokenizer. */
struct folder {
    char path[64];
    struct bpe bpe;
    struct run run;
};

static char *path_in(const struct folder *folder, const char *name)
{
    static char paths[4][128];
    static unsigned next;
    char *path = paths[next++ % 4];
    snprintf(path, sizeof paths[0], "%s/%s", folder->path, name);
    return path;
}

/* Starts the trainer's program and waits for it. */
static void run_trainer(const char *arguments)
{
    char command[1024];
    snprintf(command, sizeof command, "%s %s 2>/dev/null", TEST_TRAINER, arguments);
    const int status = system(command);
    if (!WIFEXITED(status) || WEXITSTATUS(status) != 0) {
        fail_msg("%s: status %d", command, status);
    }
}

static int set_up(void **state)
{
    static struct folder folder;
    /* twice, so that every pair occurs again and there are merges enough */
#define SENTENCES                                                                                  \
    "the quick brown fox isn't the lazy dog; 12 dogs jump, and the other one says: \"We'll see "   \
    "the brown thing then.\"\n\nThe end of the thing was the beginning of another thing, wasn't "  \
    "it?  Yes (it was).\n"
    static char words[] = SENTENCES SENTENCES;
    const struct text text = {words, sizeof words - 1};
    struct ats_error err;
    snprintf(folder.path, sizeof folder.path, "/tmp/ats-train-XXXXXX");
    assert_non_null(mkdtemp(folder.path));
    assert_true(bpe_learn(&folder.bpe, &text, shape.vocab, &err));
    assert_int_equal(folder.bpe.n_tokens, shape.vocab);
    assert_true(bpe_save(&folder.bpe, path_in(&folder, "tokenizer.txt"), &err));
    struct run_options options;
    memset(&options, 0, sizeof options);
    options.shape = shape;
    options.seed = test_seed();
    assert_true(run_new(&folder.run, &options, &err));
    for (size_t i = 0; i < folder.run.n_params; i++) {
        folder.run.params[i] *= 2.0f; /* logits that are not all alike */
    }
    assert_true(run_save(&folder.run, path_in(&folder, "run.bin"), &err));
    char arguments[512];
    snprintf(arguments, sizeof arguments,
             "export --run %s/run.bin --tokenizer %s/tokenizer.txt --type F32 --out %s/dense.gguf",
             folder.path, folder.path, folder.path);
    run_trainer(arguments);
    *state = &folder;
    return 0;
}

static int tear_down(void **state)
{
    struct folder *folder = *state;
    static const char *const names[] = {"tokenizer.txt", "run.bin", "dense.gguf", "experts.gguf"};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        unlink(path_in(folder, names[i]));
    }
    rmdir(folder->path);
    bpe_free(&folder->bpe);
    run_free(&folder->run);
    return 0;
}

static struct llama_model *load(const char *path)
{
    struct llama_model_params params = llama_model_default_params();
    ggml_backend_dev_t none[] = {NULL};
    params.devices = none;
    struct llama_model *model = llama_model_load_from_file(path, params);
    assert_non_null(model);
    return model;
}

/* Logits of llama.cpp for CONTEXT tokens, with keys and values in 32 bits. */
static void llama_logits(struct llama_model *model, const int32_t *tokens, float *logits)
{
    struct llama_context_params params = llama_context_default_params();
    params.n_ctx = params.n_batch = params.n_ubatch = CONTEXT;
    params.n_threads = params.n_threads_batch = 2;
    params.type_k = params.type_v = GGML_TYPE_F32;
    params.flash_attn_type = LLAMA_FLASH_ATTN_TYPE_DISABLED;
    struct llama_context *context = llama_init_from_model(model, params);
    assert_non_null(context);
    struct llama_batch batch = llama_batch_init(CONTEXT, 0, 1);
    batch.n_tokens = CONTEXT;
    for (int32_t i = 0; i < CONTEXT; i++) {
        batch.token[i] = tokens[i];
        batch.pos[i] = i;
        batch.n_seq_id[i] = 1;
        batch.seq_id[i][0] = 0;
        batch.logits[i] = 1;
    }
    assert_int_equal(llama_decode(context, batch), 0);
    for (int32_t i = 0; i < CONTEXT; i++) {
        memcpy(logits + (size_t)i * shape.vocab, llama_get_logits_ith(context, i),
               shape.vocab * sizeof *logits);
    }
    llama_batch_free(batch);
    llama_free(context);
}

/* Mean squared error over the mean square of b. */
static double nmse(const float *a, const float *b, size_t n)
{
    double error = 0.0;
    double square = 0.0;
    for (size_t i = 0; i < n; i++) {
        error += ((double)a[i] - (double)b[i]) * ((double)a[i] - (double)b[i]);
        square += (double)b[i] * (double)b[i];
    }
    return error / square;
}

static void random_tokens(int32_t *tokens, uint64_t stream)
{
    struct ats_rng rng = test_rng(stream);
    tokens[0] = BPE_END;
    for (int i = 1; i < CONTEXT; i++) {
        tokens[i] = (int32_t)ats_rng_below(&rng, shape.vocab);
    }
}

static void test_same_logits(void **state)
{
    const struct folder *folder = *state;
    struct ats_error err;
    struct pool *pool = pool_new(2, &err);
    struct net *net = net_new(&shape, 1, pool, &err);
    assert_non_null(net);
    struct llama_model *model = load(path_in(folder, "dense.gguf"));
    static float ours[CONTEXT * 320];
    static float theirs[CONTEXT * 320];
    for (uint64_t round = 0; round < 3; round++) {
        int32_t tokens[CONTEXT];
        random_tokens(tokens, round);
        net_logits(net, folder->run.params, tokens, ours);
        llama_logits(model, tokens, theirs);
        const double error = nmse(ours, theirs, sizeof ours / sizeof ours[0]);
        if (!(error < 1e-6)) {
            fail_msg("normalised error %g", error);
        }
    }
    llama_model_free(model);
    net_free(net);
    pool_free(pool);
}

/* All experts used, with equal weights: the block they were cut from. */
static void test_all_experts_are_the_block(void **state)
{
    const struct folder *folder = *state;
    struct llama_model *dense = load(path_in(folder, "dense.gguf"));
    static float expected[CONTEXT * 320];
    static float found[CONTEXT * 320];
    int32_t tokens[CONTEXT];
    random_tokens(tokens, 10);
    llama_logits(dense, tokens, expected);
    for (int used = 8; used >= 5; used -= 3) {
        char arguments[512];
        snprintf(arguments, sizeof arguments,
                 "experts --in %s/dense.gguf --out %s/experts.gguf --experts 8 --used %d",
                 folder->path, folder->path, used);
        run_trainer(arguments);
        struct llama_model *experts = load(path_in(folder, "experts.gguf"));
        llama_logits(experts, tokens, found);
        const double error = nmse(found, expected, sizeof found / sizeof found[0]);
        /* with random weights the experts left out are worth as much as the others */
        if (used == 8 ? !(error < 1e-9) : !(error > 1e-3)) {
            fail_msg("%d of 8 experts: normalised error %g", used, error);
        }
        llama_model_free(experts);
    }
    llama_model_free(dense);
}

static void compare_tokens(const struct folder *folder, const struct llama_vocab *vocab,
                           const char *text, size_t n)
{
    struct ats_error err;
    int32_t *ours;
    size_t n_ours;
    assert_true(bpe_encode(&folder->bpe, text, n, &ours, &n_ours, &err));
    llama_token theirs[256];
    const int32_t n_theirs = llama_tokenize(vocab, text, (int32_t)n, theirs,
                                            sizeof theirs / sizeof theirs[0], false, false);
    assert_int_equal(n_theirs, n_ours);
    assert_memory_equal(ours, theirs, n_ours * sizeof *ours);
    char back[256];
    const int32_t length =
        llama_detokenize(vocab, theirs, n_theirs, back, sizeof back, false, false);
    assert_int_equal(length, n);
    assert_memory_equal(back, text, n);
    free(ours);
}

static void test_same_tokens(void **state)
{
    const struct folder *folder = *state;
    static const char pool[] = "thequickbrown ' 's't're'll  \n\n12.,;:-()\"!?THE";
    struct llama_model *model = load(path_in(folder, "dense.gguf"));
    const struct llama_vocab *vocab = llama_model_get_vocab(model);
    assert_int_equal(llama_vocab_bos(vocab), BPE_END);
    assert_int_equal(llama_vocab_eos(vocab), BPE_END);
    assert_true(llama_vocab_get_add_bos(vocab));
    for (uint64_t round = 0; round < 500; round++) {
        struct ats_rng rng = test_rng(100 + round);
        char text[200];
        const size_t n = test_between(&rng, 1, sizeof text);
        for (size_t i = 0; i < n; i++) {
            const char usual = pool[ats_rng_below(&rng, sizeof pool - 1)];
            const char any = (char)test_between(&rng, ' ', '~');
            text[i] = (char)(test_chance(&rng, 10) ? any : usual);
        }
        compare_tokens(folder, vocab, text, n);
    }
    llama_model_free(model);
}

static void be_quiet(enum ggml_log_level level, const char *text, void *unused)
{
    (void)unused;
    if (level == GGML_LOG_LEVEL_ERROR) {
        fputs(text, stderr);
    }
}

int main(void)
{
    llama_log_set(be_quiet, NULL);
    ggml_backend_load_all_from_path(TEST_LLAMA_BIN);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_same_logits),
        cmocka_unit_test(test_all_experts_are_the_block),
        cmocka_unit_test(test_same_tokens),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
