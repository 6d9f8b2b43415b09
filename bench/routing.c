/* Which experts a model's routers choose on the benchmark's token stream, and how local that is.
 *
 * Runs a GGUF model on the CPU with plain llama.cpp, records the chosen experts of every layer and
 * token, checks that all logits are finite, and prints figures per layer and their means. For a
 * model without experts only the logits are checked. */
#include "routing_figures.h"
#include "token_stream.h"

#include "base/error.h"
#include "base/parse.h"

#include <argp.h>
#include <ggml-backend.h>
#include <jansson.h>
#include <llama.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { UBATCH_TOKENS = 64, MAX_LAYERS = 512, FAILED = 1, USAGE = 2 };

struct options {
    const char *model;
    const char *json;
    uint32_t n_tokens;
    uint32_t threads;
    struct token_stream stream;
};

struct layer {
    int32_t *ids; /* [n_tokens][n_used] */
    size_t n_used;
    size_t n_experts;
    size_t n_tokens; /* recorded so far */
};

struct recorder {
    struct layer layers[MAX_LAYERS];
    size_t most_tokens;
    bool is_bad; /* something did not fit, see `why` */
    struct ats_error why;
};

/* ---- command line ---- */

enum { KEY_SEED = 0x100, KEY_STAY, KEY_TOPICS, KEY_JSON };

static const struct argp_option option_table[] = {
    {"tokens", 'n', "N", 0, "Length of the stream (default 1024)", 0},
    {"threads", 't', "N", 0, "CPU threads (default 2)", 0},
    {"seed", KEY_SEED, "N", 0, "Seed of the stream (default 1)", 0},
    {"stay", KEY_STAY, "N", 0, "Mean tokens per topic (default 32)", 0},
    {"topics", KEY_TOPICS, "N", 0, "Topics (default 64)", 0},
    {"json", KEY_JSON, "FILE", 0, "Write the figures as JSON too", 0},
    {0},
};

static uint64_t number(struct argp_state *state, const char *text, uint64_t least, uint64_t most)
{
    struct ats_error err;
    uint64_t value = 0;
    if (!ats_parse_u64(text, most, &value, &err)) {
        argp_error(state, "%s", err.text);
    }
    if (value < least) {
        argp_error(state, "'%s' is less than %llu", text, (unsigned long long)least);
    }
    return value;
}

static error_t parse_option(int key, char *arg, struct argp_state *state)
{
    struct options *o = state->input;
    switch (key) {
    case 'n':
        o->n_tokens = (uint32_t)number(state, arg, 128, 65536);
        return 0;
    case 't':
        o->threads = (uint32_t)number(state, arg, 1, 512);
        return 0;
    case KEY_SEED:
        o->stream.seed = number(state, arg, 0, UINT64_MAX);
        return 0;
    case KEY_STAY:
        o->stream.mean_stay_tokens = (uint32_t)number(state, arg, 1, 1U << 30);
        return 0;
    case KEY_TOPICS:
        o->stream.n_topics = (uint32_t)number(state, arg, 1, 1U << 20);
        return 0;
    case KEY_JSON:
        o->json = arg;
        return 0;
    case ARGP_KEY_ARG:
        if (o->model != NULL) {
            argp_error(state, "one model at a time");
        }
        o->model = arg;
        return 0;
    case ARGP_KEY_NO_ARGS:
        argp_error(state, "a model is missing");
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

static const struct argp argp = {
    option_table,
    parse_option,
    "MODEL.gguf",
    "Measures how local a model's choice of experts is on the benchmark's token stream, on the "
    "CPU.",
    NULL,
    NULL,
    NULL};

/* ---- recording ---- */

static bool layer_of(const char *name, size_t *layer)
{
    static const char prefix[] = "ffn_moe_topk-";
    if (strncmp(name, prefix, sizeof prefix - 1) != 0) {
        return false;
    }
    *layer = strtoul(name + sizeof prefix - 1, NULL, 10);
    return *layer < MAX_LAYERS;
}

/* The ids are a view of the sorted indices of all experts: a row per token, longer than wanted. */
static bool record(struct recorder *r, struct layer *layer, const struct ggml_tensor *t)
{
    const size_t n_used = (size_t)t->ne[0];
    const size_t n_tokens = (size_t)t->ne[1];
    if (layer->ids == NULL) {
        layer->n_used = n_used;
        layer->n_experts = t->view_src != NULL ? (size_t)t->view_src->ne[0] : n_used;
        layer->ids = malloc(r->most_tokens * n_used * sizeof *layer->ids);
    }
    if (layer->ids == NULL || n_used != layer->n_used ||
        layer->n_tokens + n_tokens > r->most_tokens || t->type != GGML_TYPE_I32) {
        return ats_fail(&r->why, "%s has an unexpected form, or memory is out", t->name);
    }
    for (size_t i = 0; i < n_tokens; i++) {
        ggml_backend_tensor_get(t, layer->ids + (layer->n_tokens + i) * n_used, i * t->nb[1],
                                n_used * sizeof *layer->ids);
    }
    layer->n_tokens += n_tokens;
    return true;
}

static bool observe(struct ggml_tensor *t, bool is_question, void *data)
{
    struct recorder *r = data;
    size_t layer;
    if (!layer_of(t->name, &layer)) {
        return !is_question;
    }
    if (!is_question && !record(r, &r->layers[layer], t)) {
        r->is_bad = true;
    }
    return true;
}

/* ---- running ---- */

static bool all_finite(const float *values, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        if (!isfinite(values[i])) {
            return false;
        }
    }
    return true;
}

static bool decode(struct llama_context *ctx, const int32_t *tokens, size_t first, size_t n,
                   size_t n_vocab, struct ats_error *err)
{
    struct llama_batch batch = llama_batch_init((int32_t)n, 0, 1);
    batch.n_tokens = (int32_t)n;
    for (size_t i = 0; i < n; i++) {
        batch.token[i] = tokens[first + i];
        batch.pos[i] = (llama_pos)(first + i);
        batch.n_seq_id[i] = 1;
        batch.seq_id[i][0] = 0;
        batch.logits[i] = true; /* otherwise the last layer routes the last token alone */
    }
    const int32_t status = llama_decode(ctx, batch);
    bool ok = status == 0 || ats_fail(err, "llama_decode gave %d at token %zu", status, first);
    for (size_t i = 0; i < n && ok; i++) {
        ok = all_finite(llama_get_logits_ith(ctx, (int32_t)i), n_vocab) ||
             ats_fail(err, "token %zu has logits that are infinite or no numbers", first + i);
    }
    llama_batch_free(batch);
    return ok;
}

static bool run(struct llama_model *model, const struct options *o, struct recorder *r,
                struct ats_error *err)
{
    struct llama_context_params params = llama_context_default_params();
    params.n_ctx = o->n_tokens;
    params.n_batch = UBATCH_TOKENS;
    params.n_ubatch = UBATCH_TOKENS;
    params.n_threads = (int32_t)o->threads;
    params.n_threads_batch = (int32_t)o->threads;
    params.cb_eval = observe;
    params.cb_eval_user_data = r;
    struct llama_context *ctx = llama_init_from_model(model, params);
    if (ctx == NULL) {
        return ats_fail(err, "%s: no context", o->model);
    }
    struct token_stream stream = o->stream;
    stream.n_vocab = (uint32_t)llama_vocab_n_tokens(llama_model_get_vocab(model));
    int32_t *tokens = malloc(o->n_tokens * sizeof *tokens);
    bool ok = tokens != NULL && token_stream_fill(&stream, tokens, o->n_tokens);
    if (!ok) {
        ats_fail(err, "no stream of %u topics over %u tokens", stream.n_topics, stream.n_vocab);
    }
    for (size_t at = 0; at < o->n_tokens && ok; at += UBATCH_TOKENS) {
        const size_t n = o->n_tokens - at < UBATCH_TOKENS ? o->n_tokens - at : UBATCH_TOKENS;
        ok = decode(ctx, tokens, at, n, stream.n_vocab, err);
    }
    if (ok && r->is_bad) {
        *err = r->why;
        ok = false;
    }
    free(tokens);
    llama_free(ctx);
    return ok;
}

/* ---- figures ---- */

static void add_figures(struct routing_figures *sum, const struct routing_figures *f)
{
    sum->repeat_next += f->repeat_next;
    sum->repeat_within_8 += f->repeat_within_8;
    sum->median_reuse_tokens += f->median_reuse_tokens;
    sum->top_tenth += f->top_tenth;
    sum->lru_eighth += f->lru_eighth;
    sum->lru_quarter += f->lru_quarter;
    sum->lru_40_percent += f->lru_40_percent;
}

static struct routing_figures divided(const struct routing_figures *sum, double n)
{
    return (struct routing_figures){sum->repeat_next / n,         sum->repeat_within_8 / n,
                                    sum->median_reuse_tokens / n, sum->top_tenth / n,
                                    sum->lru_eighth / n,          sum->lru_quarter / n,
                                    sum->lru_40_percent / n};
}

static void print_figures(const char *name, const struct routing_figures *f)
{
    printf("%-6s %5.1f %5.1f %6.1f %6.1f %6.1f %6.1f %6.1f\n", name, 100 * f->repeat_next,
           100 * f->repeat_within_8, f->median_reuse_tokens, 100 * f->top_tenth,
           100 * f->lru_eighth, 100 * f->lru_quarter, 100 * f->lru_40_percent);
}

static json_t *figures_json(const struct routing_figures *f)
{
    return json_pack("{s:f, s:f, s:f, s:f, s:f, s:f, s:f}", "repeat_next", f->repeat_next,
                     "repeat_within_8", f->repeat_within_8, "median_reuse_tokens",
                     f->median_reuse_tokens, "top_tenth", f->top_tenth, "lru_eighth", f->lru_eighth,
                     "lru_quarter", f->lru_quarter, "lru_40_percent", f->lru_40_percent);
}

static bool write_json(const struct options *o, const struct recorder *r,
                       const struct routing_figures *mean, size_t n_layers, json_t *layers,
                       struct ats_error *err)
{
    json_t *root = json_pack(
        "{s:s, s:s, s:i, s:i, s:i, s:i, s:o}", "format", "ats-routing-1", "model", o->model,
        "tokens", (int)o->n_tokens, "topics", (int)o->stream.n_topics, "mean_stay_tokens",
        (int)o->stream.mean_stay_tokens, "layers", (int)n_layers, "by_layer", layers);
    if (n_layers > 0) {
        json_object_set_new(root, "mean", figures_json(mean));
        json_object_set_new(root, "experts", json_integer((json_int_t)r->layers[0].n_experts));
        json_object_set_new(root, "experts_used", json_integer((json_int_t)r->layers[0].n_used));
    }
    const bool ok = json_dump_file(root, o->json, JSON_INDENT(1) | JSON_REAL_PRECISION(6)) == 0 ||
                    ats_fail(err, "cannot write %s", o->json);
    json_decref(root);
    return ok;
}

static bool report(const struct options *o, const struct recorder *r, struct ats_error *err)
{
    struct routing_figures sum = {0};
    json_t *by_layer = json_array();
    size_t n = 0;
    for (size_t il = 0; il < MAX_LAYERS; il++) {
        const struct layer *layer = &r->layers[il];
        struct routing_figures f;
        if (layer->ids == NULL) {
            continue;
        }
        if (!routing_measure(&f, layer->ids, layer->n_tokens, layer->n_used, layer->n_experts)) {
            json_decref(by_layer);
            return ats_fail(err, "layer %zu: no figures from %zu tokens", il, layer->n_tokens);
        }
        if (n++ == 0) {
            printf("%zu experts, %zu used, %zu tokens; in per cent, reuse in tokens\n"
                   "layer   next  in 8  reuse  top10  LRU12  LRU25  LRU40\n",
                   layer->n_experts, layer->n_used, layer->n_tokens);
        }
        char name[24];
        snprintf(name, sizeof name, "%zu", il);
        print_figures(name, &f);
        add_figures(&sum, &f);
        json_array_append_new(by_layer, figures_json(&f));
    }
    struct routing_figures mean = {0};
    if (n > 0) {
        mean = divided(&sum, (double)n);
        print_figures("mean", &mean);
    }
    printf("all logits of %u tokens are finite\n", o->n_tokens);
    if (o->json == NULL) {
        json_decref(by_layer);
        return true;
    }
    return write_json(o, r, &mean, n, by_layer, err);
}

static void log_errors(enum ggml_log_level level, const char *text, void *data)
{
    (void)data;
    if (level == GGML_LOG_LEVEL_ERROR) {
        fputs(text, stderr);
    }
}

static struct llama_model *load(const struct options *o)
{
    static ggml_backend_dev_t no_devices[] = {NULL};
    ggml_backend_load_all_from_path(ATS_ROUTING_LLAMA_BIN);
    llama_backend_init();
    struct llama_model_params params = llama_model_default_params();
    params.devices = no_devices;
    params.n_gpu_layers = 0;
    return llama_model_load_from_file(o->model, params);
}

int main(int argc, char **argv)
{
    struct options o = {
        .n_tokens = 1024,
        .threads = 2,
        .stream = {.seed = 1,
                   .n_topics = TOKEN_STREAM_TOPICS,
                   .mean_stay_tokens = TOKEN_STREAM_STAY_TOKENS},
    };
    argp_err_exit_status = USAGE;
    argp_parse(&argp, argc, argv, 0, NULL, &o);
    llama_log_set(log_errors, NULL);
    struct recorder *r = calloc(1, sizeof *r);
    struct llama_model *model = load(&o);
    struct ats_error err = {""};
    bool ok = r != NULL && model != NULL;
    if (!ok) {
        ats_fail(&err, "cannot load %s", o.model);
    }
    if (ok) {
        r->most_tokens = o.n_tokens;
        ok = run(model, &o, r, &err) && report(&o, r, &err);
    }
    if (!ok) {
        fprintf(stderr, "routing: %s\n", err.text);
    }
    for (size_t il = 0; r != NULL && il < MAX_LAYERS; il++) {
        free(r->layers[il].ids);
    }
    free(r);
    llama_model_free(model);
    return ok ? 0 : FAILED;
}
