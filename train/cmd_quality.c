/* `ats-train quality`: bits per byte of held-out text, of n-gram models and of GGUF files as
 * llama.cpp runs them. */
#include "commands.h"
#include "ngram.h"
#include "text.h"

#include "base/parse.h"
#include "cli/cli.h"

#include <ggml-backend.h>
#include <jansson.h>
#include <llama.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { MAX_MODELS = 16, N_ORDERS = 2, PROGRESS_AFTER_S = 2 };
static const unsigned orders[N_ORDERS] = {2, 4};

struct options {
    const char *text;
    const char *held_out;
    const char *models[MAX_MODELS];
    size_t n_models;
    uint64_t threads;
    bool json;
};

enum { KEY_HELD_OUT = CLI_KEY_FIRST, KEY_THREADS, KEY_JSON };

static const struct argp_option option_table[] = {
    {"text", 't', "FILE", 0, "Text that the n-gram models are counted on", 0},
    {"held-out", KEY_HELD_OUT, "FILE", 0, "Text to measure on", 0},
    {"threads", KEY_THREADS, "N", 0, "CPU threads (one per core)", 0},
    {"json", KEY_JSON, NULL, 0, "Print JSON", 0},
    CLI_HELP_OPTION,
    {0},
};

static error_t parse_option(int key, char *arg, struct argp_state *state)
{
    struct options *o = state->input;
    struct ats_error err;
    switch (key) {
    case 't':
        o->text = arg;
        return 0;
    case KEY_HELD_OUT:
        o->held_out = arg;
        return 0;
    case KEY_THREADS:
        if (!ats_parse_u64(arg, 256, &o->threads, &err) || o->threads == 0) {
            cli_usage_error(state->name, "--threads %s: a number from 1 to 256", arg);
        }
        return 0;
    case KEY_JSON:
        o->json = true;
        return 0;
    case ARGP_KEY_ARG:
        if (o->n_models == MAX_MODELS) {
            cli_usage_error(state->name, "at most %d models", MAX_MODELS);
        }
        o->models[o->n_models++] = arg;
        return 0;
    default:
        return cli_parse_common(key, state);
    }
}

static const struct argp argp = {
    option_table,
    parse_option,
    "--held-out=FILE [--text=FILE] [MODEL.gguf...]",
    "Bits that a model needs per byte of the held-out text: -log2 of the probabilities of its "
    "tokens, summed, over the bytes. Less is better.\n"
    "\n"
    "GGUF files are run by llama.cpp on the CPU, in windows of their training context that overlap "
    "by half: a token is predicted from half a window or more, near the start of a piece from what "
    "precedes. With --text also n-gram models of bytes, of order 2 and 4 (that many bytes of "
    "context), interpolated after Witten and Bell, counted on that text."
    "\n\nOptions:",
    NULL,
    NULL,
    NULL};

struct result {
    char name[64];
    double bits_per_byte;
};

static double now_s(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

/* A line that overwrites itself, once the work takes longer than a moment. */
struct progress {
    double started_s;
    int shown;
};

static void show_progress(struct progress *p, const char *what, size_t done, size_t total)
{
    const int percent = total > 0 ? (int)(done * 100 / total) : 100;
    if (percent == p->shown || !isatty(STDERR_FILENO) ||
        now_s() - p->started_s < PROGRESS_AFTER_S) {
        return;
    }
    p->shown = percent;
    fprintf(stderr, percent < 100 ? "\r%s %3d %%" : "\r\033[K", what, percent);
}

/* A GGUF model as llama.cpp runs it. */
struct llama {
    struct llama_model *model;
    struct llama_context *context;
    const struct llama_vocab *vocab;
    int32_t window; /* tokens */
};

static void be_quiet(enum ggml_log_level level, const char *text, void *unused)
{
    (void)unused;
    if (level == GGML_LOG_LEVEL_ERROR) {
        fputs(text, stderr);
    }
}

static bool llama_open(struct llama *llama, const char *path, const struct options *o,
                       struct ats_error *err)
{
    struct llama_model_params model = llama_model_default_params();
    ggml_backend_dev_t none[] = {NULL}; /* no accelerator */
    model.devices = none;
    llama->model = llama_model_load_from_file(path, model);
    if (llama->model == NULL) {
        return ats_fail(err, "llama.cpp cannot load %s", path);
    }
    llama->vocab = llama_model_get_vocab(llama->model);
    llama->window = llama_model_n_ctx_train(llama->model);
    struct llama_context_params context = llama_context_default_params();
    context.n_ctx = context.n_batch = context.n_ubatch = (uint32_t)llama->window;
    context.n_threads = context.n_threads_batch = (int32_t)o->threads;
    llama->context = llama_init_from_model(llama->model, context);
    if (llama->context == NULL || llama->window < 2 ||
        llama_vocab_bos(llama->vocab) == LLAMA_TOKEN_NULL) {
        return ats_fail(err,
                        "%s: a context of %d tokens could not be made, or the model has no "
                        "token that begins a text",
                        path, (int)llama->window);
    }
    return true;
}

static void llama_close(struct llama *llama)
{
    llama_free(llama->context);
    llama_model_free(llama->model);
}

/* -log2 softmax(logits)[token] */
static double bits_of(const float *logits, int32_t n, llama_token token)
{
    float max = logits[0];
    for (int32_t i = 1; i < n; i++) {
        max = fmaxf(max, logits[i]);
    }
    double sum = 0.0;
    for (int32_t i = 0; i < n; i++) {
        sum += exp((double)(logits[i] - max));
    }
    return (log(sum) - (double)(logits[token] - max)) / log(2.0);
}

/* Bits of tokens [from, begin + n) given the beginning mark and those from `begin` on. `batch` has
 * room for n tokens. */
static bool window_bits(struct llama *llama, struct llama_batch *batch, const llama_token *tokens,
                        int32_t begin, int32_t n, int32_t from, double *bits)
{
    batch->n_tokens = n;
    for (int32_t i = 0; i < n; i++) {
        batch->token[i] = i == 0 ? llama_vocab_bos(llama->vocab) : tokens[begin + i - 1];
        batch->pos[i] = i;
        batch->n_seq_id[i] = 1;
        batch->seq_id[i][0] = 0;
        batch->logits[i] = (int8_t)(begin + i >= from);
    }
    llama_memory_clear(llama_get_memory(llama->context), true);
    if (llama_decode(llama->context, *batch) != 0) {
        return false;
    }
    for (int32_t i = from - begin; i < n; i++) {
        const float *logits = llama_get_logits_ith(llama->context, i);
        if (logits == NULL) {
            return false;
        }
        *bits += bits_of(logits, llama_vocab_n_tokens(llama->vocab), tokens[begin + i]);
    }
    return true;
}

static bool piece_bits(struct llama *llama, struct llama_batch *batch, const llama_token *tokens,
                       int32_t n, double *bits)
{
    const int32_t step = llama->window / 2;
    for (int32_t from = 0, begin = 0; from < n; begin += step) {
        const int32_t end = begin + llama->window < n ? begin + llama->window : n;
        if (!window_bits(llama, batch, tokens, begin, end - begin, from, bits)) {
            return false;
        }
        from = end;
    }
    return true;
}

static bool text_bits(struct llama *llama, struct llama_batch *batch, const struct text *text,
                      double *bits, size_t *bytes)
{
    struct progress progress = {.started_s = now_s(), .shown = -1};
    llama_token *tokens = cli_alloc(text->n * sizeof *tokens); /* none is shorter than a byte */
    const char *piece;
    size_t length;
    bool ok = true;
    for (size_t at = 0; ok && text_piece(text, &at, &piece, &length);) {
        const int32_t n = llama_tokenize(llama->vocab, piece, (int32_t)length, tokens,
                                         (int32_t)text->n, false, false);
        ok = n >= 0 && piece_bits(llama, batch, tokens, n, bits);
        *bytes += length;
        show_progress(&progress, "measuring", at, text->n);
    }
    show_progress(&progress, "measuring", text->n, text->n);
    free(tokens);
    return ok;
}

static bool measure_model(const char *path, const struct text *text, const struct options *o,
                          struct result *result, struct ats_error *err)
{
    struct llama llama = {0};
    double bits = 0.0;
    size_t bytes = 0;
    bool ok = llama_open(&llama, path, o, err);
    if (ok) {
        struct llama_batch batch = llama_batch_init(llama.window, 0, 1);
        ok = text_bits(&llama, &batch, text, &bits, &bytes) ||
             ats_fail(err, "llama.cpp could not run %s over the text", path);
        llama_batch_free(batch);
    }
    llama_close(&llama);
    const char *slash = strrchr(path, '/');
    snprintf(result->name, sizeof result->name, "%s", slash != NULL ? slash + 1 : path);
    result->bits_per_byte = bytes > 0 ? bits / (double)bytes : 0.0;
    return ok;
}

static bool measure_ngrams(const struct options *o, const struct text *held_out,
                           struct result *results, struct ats_error *err)
{
    struct text text;
    if (!text_read(&text, o->text, err)) {
        return false;
    }
    bool ok = true;
    for (size_t i = 0; i < N_ORDERS && ok; i++) {
        struct ngram *model = ngram_count(&text, orders[i], err);
        ok = model != NULL;
        if (ok) {
            snprintf(results[i].name, sizeof results[i].name, "n-gram model of order %u",
                     orders[i]);
            results[i].bits_per_byte = ngram_bits_per_byte(model, held_out);
            ngram_free(model);
        }
    }
    text_free(&text);
    return ok;
}

static void print_table(const struct result *results, size_t n, const struct text *held_out)
{
    printf("%-40s  bits per byte\n", "model");
    for (size_t i = 0; i < n; i++) {
        printf("%-40.40s  %13.3f\n", results[i].name, results[i].bits_per_byte);
    }
    printf("\non %zu bytes of text\n", held_out->n);
}

static void print_json(const struct result *results, size_t n, const struct text *held_out)
{
    json_t *list = json_array();
    for (size_t i = 0; i < n; i++) {
        json_array_append_new(list, json_pack("{s:s, s:f}", "model", results[i].name,
                                              "bits_per_byte", results[i].bits_per_byte));
    }
    json_t *root = json_pack("{s:s, s:I, s:o}", "format", "ats-quality-1", "bytes",
                             (json_int_t)held_out->n, "models", list);
    json_dumpf(root, stdout, JSON_INDENT(2));
    putchar('\n');
    json_decref(root);
}

int command_quality(int argc, char **argv)
{
    const long cores = sysconf(_SC_NPROCESSORS_ONLN);
    struct options o = {.threads = cores > 0 ? (uint64_t)cores : 1};
    cli_parse(&argp, argc, argv, &o);
    if (o.held_out == NULL || (o.text == NULL && o.n_models == 0)) {
        cli_usage_error(argv[0], "--held-out is needed, and --text or a model");
    }
    struct ats_error err;
    struct text held_out;
    if (!text_read(&held_out, o.held_out, &err)) {
        return cli_error(argv[0], &err);
    }
    struct result results[N_ORDERS + MAX_MODELS];
    size_t n = 0;
    bool ok = o.text == NULL || measure_ngrams(&o, &held_out, results, &err);
    n += o.text != NULL ? N_ORDERS : 0;
    llama_log_set(be_quiet, NULL);
    ggml_backend_load_all_from_path(ATS_TRAIN_LLAMA_BIN);
    for (size_t i = 0; i < o.n_models && ok; i++) {
        ok = measure_model(o.models[i], &held_out, &o, &results[n++], &err);
    }
    if (ok) {
        (o.json ? print_json : print_table)(results, n, &held_out);
    }
    text_free(&held_out);
    return ok ? CLI_OK : cli_error(argv[0], &err);
}
