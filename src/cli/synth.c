/* `ats synth`: writes a small GGUF model, or a LoRA adapter, with random weights. */
#include "cli/synth.h"
#include "base/parse.h"
#include "cli/cli.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

enum {
    KEY_ARCH = CLI_KEY_FIRST,
    KEY_OUT,
    KEY_VOCAB,
    KEY_LAYERS,
    KEY_EMBD,
    KEY_FF,
    KEY_HEADS,
    KEY_KV_HEADS,
    KEY_EXPERTS,
    KEY_EXPERTS_USED,
    KEY_SEED,
    KEY_TYPE,
    KEY_LORA_FOR,
    KEY_RANK,
    KEY_MODEL,
    KEY_LIST,
    KEY_SIZE,
    KEY_META_ONLY,
    KEY_VOCAB_SIZE,
    KEY_TOPIC_SHARE,
};

/* The most that llama.cpp accepts (LLAMA_MAX_LAYERS, LLAMA_MAX_EXPERTS), and widths
 * that keep a tensor's size far from overflow. */
enum {
    MAX_LAYERS = 512,
    MAX_EXPERTS = 512,
    MAX_WIDTH = 65536,
    MAX_RANK = 4096,
    MIN_VOCAB = 256,
    MAX_VOCAB = 4 << 20,
};

struct options {
    const char *arch;
    const char *out;
    const char *vocab;
    const char *lora_for;
    enum ggml_type type;
    uint64_t seed;
    uint32_t rank;
    struct synth_shape shape;
    const char *model; /* a name or a file: the following are for it */
    size_t size_bytes; /* 0: not given */
    uint32_t vocab_size;
    double topic_share; /* negative: as described */
    bool is_meta_only;
    bool is_list;
};

static const struct argp_option option_table[] = {
    {"arch", KEY_ARCH, "NAME", 0, "llama, qwen3moe, mamba, qwen3next, lfm2 or bert", 1},
    {"out", KEY_OUT, "FILE", 0, "The file to write (replaced as a whole, or not at all)", 1},
    {"vocab", KEY_VOCAB, "FILE", 0,
     "GGUF to copy the tokenizer from (default: one of $ATS_LLAMA_SRC/models/ggml-vocab-*.gguf)",
     1},
    {"seed", KEY_SEED, "N", 0, "Same seed, same bytes (default 1)", 1},
    {"type", KEY_TYPE, "TYPE", 0, "Type of the matrices: f32, f16, q8_0 (default) or q4_0", 1},
    {"layers", KEY_LAYERS, "N", 0, "Number of layers", 2},
    {"embd", KEY_EMBD, "N", 0, "Width of the model", 2},
    {"ff", KEY_FF, "N", 0, "Width of a feed-forward block, or of one expert", 2},
    {"heads", KEY_HEADS, "N", 0, "Attention heads", 2},
    {"kv-heads", KEY_KV_HEADS, "N", 0, "Attention heads of keys and values", 2},
    {"experts", KEY_EXPERTS, "N", 0, "Experts per layer", 2},
    {"experts-used", KEY_EXPERTS_USED, "N", 0, "Experts that a token uses", 2},
    {"lora-for", KEY_LORA_FOR, "MODEL", 0, "Write a LoRA adapter for this model instead", 3},
    {"rank", KEY_RANK, "N", 0, "Rank of the adapter (default 8)", 3},
    {"model", KEY_MODEL, "NAME", 0,
     "Write a published model's shapes, with fewer layers (--layers) and random weights; a name "
     "from --list, or a JSON file",
     4},
    {"list", KEY_LIST, NULL, 0, "Show the models that --model knows; with --model, its tensors", 4},
    {"size", KEY_SIZE, "BYTES", 0, "As many layers as this size allows: 2G", 4},
    {"meta-only", KEY_META_ONLY, NULL, 0, "All layers, metadata without weights: to plan with", 4},
    {"vocab-size", KEY_VOCAB_SIZE, "N", 0, "Tokens, if not as many as the model has", 4},
    {"topic-share", KEY_TOPIC_SHARE, "X", 0,
     "0 to 0.99: the higher, the more often tokens use the experts of the one before", 4},
    CLI_HELP_OPTION,
    {0},
};

static uint64_t number(const struct argp_state *state, const char *option, const char *text,
                       uint64_t least, uint64_t most)
{
    struct ats_error err;
    uint64_t value;
    if (!ats_parse_u64(text, most, &value, &err)) {
        cli_usage_error(state->argv[0], "--%s: %s", option, err.text);
    }
    if (value < least) {
        cli_usage_error(state->argv[0], "--%s must be at least %llu", option,
                        (unsigned long long)least);
    }
    return value;
}

static enum ggml_type matrix_type(const struct argp_state *state, const char *text)
{
    static const enum ggml_type types[] = {GGML_TYPE_F32, GGML_TYPE_F16, GGML_TYPE_Q8_0,
                                           GGML_TYPE_Q4_0};
    for (size_t i = 0; i < sizeof types / sizeof types[0]; i++) {
        if (strcmp(text, ggml_type_name(types[i])) == 0) {
            return types[i];
        }
    }
    cli_usage_error(state->argv[0], "--type '%s' is none of f32, f16, q8_0, q4_0", text);
}

static const char *arch_name(const struct argp_state *state, const char *text)
{
    const char *const *names = synth_arch_names();
    for (size_t i = 0; i < synth_arch_count(); i++) {
        if (strcmp(names[i], text) == 0) {
            return names[i];
        }
    }
    const char *close = cli_suggest(text, names, synth_arch_count());
    if (close != NULL) {
        cli_usage_error(state->argv[0], "unknown architecture '%s'; did you mean %s?", text, close);
    }
    cli_usage_error(state->argv[0], "unknown architecture '%s'", text);
}

static double fraction(const struct argp_state *state, const char *option, const char *text)
{
    char *end = NULL;
    const double value = strtod(text, &end);
    if (end == text || *end != '\0' || !(value >= 0.0 && value <= 0.99)) {
        cli_usage_error(state->argv[0], "--%s '%s' is no number from 0 to 0.99", option, text);
    }
    return value;
}

static size_t size_bytes(const struct argp_state *state, const char *text)
{
    struct ats_error err;
    size_t bytes;
    if (!ats_parse_bytes(text, &bytes, &err)) {
        cli_usage_error(state->argv[0], "--size: %s", err.text);
    }
    if (bytes == 0) {
        cli_usage_error(state->argv[0], "--size must be more than 0");
    }
    return bytes;
}

/* Options of `--model`. */
static error_t parse_model(int key, char *arg, struct argp_state *state)
{
    struct options *o = state->input;
    switch (key) {
    case KEY_MODEL:
        o->model = arg;
        return 0;
    case KEY_LIST:
        o->is_list = true;
        return 0;
    case KEY_SIZE:
        o->size_bytes = size_bytes(state, arg);
        return 0;
    case KEY_META_ONLY:
        o->is_meta_only = true;
        return 0;
    case KEY_VOCAB_SIZE:
        o->vocab_size = (uint32_t)number(state, "vocab-size", arg, MIN_VOCAB, MAX_VOCAB);
        return 0;
    case KEY_TOPIC_SHARE:
        o->topic_share = fraction(state, "topic-share", arg);
        return 0;
    default:
        return cli_parse_common(key, state);
    }
}

static error_t parse_shape(int key, char *arg, struct argp_state *state)
{
    struct options *o = state->input;
    switch (key) {
    case KEY_LAYERS:
        o->shape.layers = (uint32_t)number(state, "layers", arg, 1, MAX_LAYERS);
        return 0;
    case KEY_EMBD:
        o->shape.embd = (uint32_t)number(state, "embd", arg, 2, MAX_WIDTH);
        return 0;
    case KEY_FF:
        o->shape.ff = (uint32_t)number(state, "ff", arg, 1, MAX_WIDTH);
        return 0;
    case KEY_HEADS:
        o->shape.heads = (uint32_t)number(state, "heads", arg, 1, MAX_WIDTH);
        return 0;
    case KEY_KV_HEADS:
        o->shape.kv_heads = (uint32_t)number(state, "kv-heads", arg, 1, MAX_WIDTH);
        return 0;
    case KEY_EXPERTS:
        o->shape.experts = (uint32_t)number(state, "experts", arg, 1, MAX_EXPERTS);
        return 0;
    case KEY_EXPERTS_USED:
        o->shape.experts_used = (uint32_t)number(state, "experts-used", arg, 1, MAX_EXPERTS);
        return 0;
    default:
        return parse_model(key, arg, state);
    }
}

static error_t parse_option(int key, char *arg, struct argp_state *state)
{
    struct options *o = state->input;
    switch (key) {
    case KEY_ARCH:
        o->arch = arch_name(state, arg);
        return 0;
    case KEY_OUT:
        o->out = arg;
        return 0;
    case KEY_VOCAB:
        o->vocab = arg;
        return 0;
    case KEY_SEED:
        o->seed = number(state, "seed", arg, 0, UINT64_MAX);
        return 0;
    case KEY_TYPE:
        o->type = matrix_type(state, arg);
        return 0;
    case KEY_LORA_FOR:
        o->lora_for = arg;
        return 0;
    case KEY_RANK:
        o->rank = (uint32_t)number(state, "rank", arg, 1, MAX_RANK);
        return 0;
    default:
        return parse_shape(key, arg, state);
    }
}

static const struct argp argp = {
    option_table,
    parse_option,
    NULL,
    "Writes a small GGUF model with random weights and a real tokenizer, for tests and for a "
    "first run; or, for benchmarks, one with the shapes and types of a published model, fewer "
    "layers and no tokenizer. It loads in llama.cpp like any model; what it says makes no sense."
    "\v"
    "Examples:\n"
    "  ats synth --arch qwen3moe --out moe.gguf --vocab ggml-vocab-llama-spm.gguf\n"
    "  ats synth --arch llama --layers 12 --type q4_0 --seed 7 --out llama.gguf\n"
    "  ats synth --lora-for llama.gguf --out lora.gguf\n"
    "  ats synth --model qwen3-30b-a3b --layers 8 --out qwen3moe.gguf\n"
    "  ats synth --model gpt-oss-120b --meta-only --out plan.gguf\n"
    "\n"
    "What kind of model: llama is dense, qwen3moe a mixture of experts, mamba recurrent, "
    "qwen3next recurrent with attention and experts, lfm2 convolutions with attention, bert "
    "computes embeddings (its tokenizer: ggml-vocab-bert-bge.gguf).",
    NULL,
    NULL,
    NULL};

/* ggml explains on stderr why a file does not load; our error says it in one line. */
static void ignore_log(enum ggml_log_level level, const char *text, void *data)
{
    (void)level;
    (void)text;
    (void)data;
}

static char *default_vocab(const struct options *o, struct ats_error *err)
{
    const char *source = getenv("ATS_LLAMA_SRC");
    if (source == NULL || source[0] == '\0') {
        ats_fail(err, "no vocabulary: give --vocab FILE, or set ATS_LLAMA_SRC to a llama.cpp "
                      "checkout (its models/ folder has some)");
        return NULL;
    }
    const char *name = strcmp(o->arch, "bert") == 0 ? "bert-bge" : "llama-spm";
    return cli_format("%s/models/ggml-vocab-%s.gguf", source, name);
}

/* Copies the keys of `vocab` that start with "tokenizer.". */
static void copy_tokenizer(struct gguf_context *meta, const struct gguf_context *vocab)
{
    static const char prefix[] = "tokenizer.";
    gguf_set_kv(meta, vocab);
    for (int64_t i = gguf_get_n_kv(meta) - 1; i >= 0; i--) {
        const char *key = gguf_get_key(meta, i);
        if (strncmp(key, prefix, sizeof prefix - 1) != 0) {
            char *copy = cli_format("%s", key); /* removal frees the key under our feet */
            gguf_remove_key(meta, copy);
            free(copy);
        }
    }
}

/* Token types other than "normal" (end of text, control bytes, unused) get zero rows
 * in the output matrix: with random weights they would otherwise end the text early or
 * send control characters to the terminal. */
static bool *special_tokens(const struct gguf_context *vocab, size_t n_vocab)
{
    const int32_t normal = 1;
    int64_t key = gguf_find_key(vocab, "tokenizer.ggml.token_type");
    if (key < 0 || gguf_get_kv_type(vocab, key) != GGUF_TYPE_ARRAY ||
        gguf_get_arr_type(vocab, key) != GGUF_TYPE_INT32 || gguf_get_arr_n(vocab, key) != n_vocab) {
        return NULL;
    }
    const int32_t *types = gguf_get_arr_data(vocab, key);
    bool *special = cli_alloc(n_vocab * sizeof *special);
    for (size_t i = 0; i < n_vocab; i++) {
        special[i] = types[i] != normal;
    }
    return special;
}

static bool check_tokenizer(const struct options *o, const struct gguf_context *vocab,
                            const char *path, size_t *n_vocab, struct ats_error *err)
{
    int64_t model = gguf_find_key(vocab, "tokenizer.ggml.model");
    int64_t tokens = gguf_find_key(vocab, "tokenizer.ggml.tokens");
    if (model < 0 || gguf_get_kv_type(vocab, model) != GGUF_TYPE_STRING || tokens < 0 ||
        gguf_get_kv_type(vocab, tokens) != GGUF_TYPE_ARRAY ||
        gguf_get_arr_type(vocab, tokens) != GGUF_TYPE_STRING) {
        return ats_fail(err, "%s has no tokenizer to copy", path);
    }
    *n_vocab = gguf_get_arr_n(vocab, tokens);
    if (*n_vocab == 0 || *n_vocab > INT32_MAX) {
        return ats_fail(err, "%s has a vocabulary of %zu tokens", path, *n_vocab);
    }
    bool is_bert = strcmp(o->arch, "bert") == 0;
    if (is_bert != (strcmp(gguf_get_val_str(vocab, model), "bert") == 0)) {
        return ats_fail(err, "%s has a tokenizer of kind '%s', which does not suit %s", path,
                        gguf_get_val_str(vocab, model), o->arch);
    }
    return true;
}

static bool describe_model(struct synth_model *model, const struct options *o,
                           struct ats_error *err)
{
    char *path = o->vocab != NULL ? cli_format("%s", o->vocab) : default_vocab(o, err);
    if (path == NULL) {
        return false;
    }
    struct gguf_init_params params = {.no_alloc = true, .ctx = NULL};
    struct gguf_context *vocab = gguf_init_from_file(path, params);
    size_t n_vocab = 0;
    bool ok = vocab != NULL ||
              ats_fail(err, "cannot read the vocabulary %s: missing, cut short, or not GGUF", path);
    ok = ok && check_tokenizer(o, vocab, path, &n_vocab, err);
    if (ok) {
        copy_tokenizer(model->meta, vocab);
        model->row_mask = special_tokens(vocab, n_vocab);
        ok = synth_describe(model, o->arch, &o->shape, o->type, (uint32_t)n_vocab, err);
    }
    gguf_free(vocab);
    free(path);
    return ok;
}

static void print_result(const struct options *o, const struct synth_model *model)
{
    struct stat info;
    char size[32];
    if (stat(o->out, &info) == 0) {
        printf("%s: %zu tensors, %s, random weights from seed %llu\n", o->out, model->n_tensors,
               ats_format_bytes((size_t)info.st_size, size, sizeof size),
               (unsigned long long)o->seed);
    }
}

/* How many layers the file gets; 0 with an error. */
static uint32_t choose_layers(const struct options *o, const struct synth_spec *spec,
                              uint32_t n_vocab, struct ats_error *err)
{
    const uint32_t period = synth_spec_period(spec);
    const uint32_t layers = o->shape.layers;
    if (o->is_meta_only) {
        return spec->layers;
    }
    if (o->size_bytes > 0) {
        return synth_layers_for(spec, n_vocab, o->size_bytes, err);
    }
    if (layers == 0) {
        return spec->benchmark_layers;
    }
    if (layers > spec->layers || layers % period != 0) {
        char multiple[48] = "";
        if (period > 1) {
            snprintf(multiple, sizeof multiple, ", in multiples of %u", period);
        }
        ats_fail(err, "--layers %u: %s has %u to %u layers%s", layers, spec->name, period,
                 spec->layers, multiple);
        return 0;
    }
    return layers;
}

static bool read_spec(struct synth_spec *spec, const struct options *o, struct ats_error *err)
{
    if (!synth_spec_read(spec, o->model, err)) {
        return false;
    }
    if (o->topic_share >= 0.0) {
        if (spec->topics == 0) {
            return ats_fail(err, "--topic-share has no meaning for %s, which has no \"topics\"",
                            spec->name);
        }
        spec->topic_share = o->topic_share;
    }
    return true;
}

static bool describe_published(struct synth_model *model, const struct options *o,
                               struct ats_error *err)
{
    struct synth_spec spec;
    if (!read_spec(&spec, o, err)) {
        return false;
    }
    const uint32_t n_vocab = o->vocab_size > 0 ? o->vocab_size : spec.vocabulary;
    const uint32_t layers = choose_layers(o, &spec, n_vocab, err);
    model->is_meta_only = o->is_meta_only;
    return layers > 0 && synth_describe_spec(model, &spec, layers, n_vocab, err);
}

static int list(const struct options *o, const char *who)
{
    struct ats_error err = {""};
    struct synth_spec spec;
    const bool has_spec = o->model != NULL;
    const bool ok =
        (!has_spec || read_spec(&spec, o, &err)) && synth_list(has_spec ? &spec : NULL, &err);
    return ok ? CLI_OK : cli_error(who, &err);
}

/* Options that would be ignored are mistakes. */
static void check_combination(const struct options *o, const char *who)
{
    const bool has_model_option =
        o->size_bytes > 0 || o->is_meta_only || o->vocab_size > 0 || o->topic_share >= 0.0;
    if ((o->arch != NULL) + (o->lora_for != NULL) + (o->model != NULL) != 1) {
        cli_usage_error(who, "give one of --arch NAME, --model NAME and --lora-for MODEL");
    }
    if (o->model == NULL && has_model_option) {
        cli_usage_error(who, "--size, --meta-only, --vocab-size and --topic-share are for --model");
    }
    if (o->model == NULL) {
        return;
    }
    const struct synth_shape *s = &o->shape;
    if (o->vocab != NULL || (int)o->type >= 0 || s->embd + s->ff + s->heads + s->kv_heads > 0 ||
        s->experts + s->experts_used > 0) {
        cli_usage_error(who, "--model decides vocabulary, type and widths; of the shape, only "
                             "--layers and --vocab-size can be chosen");
    }
    if ((s->layers > 0) + (o->size_bytes > 0) + o->is_meta_only > 1) {
        cli_usage_error(who, "give one of --layers, --size and --meta-only");
    }
}

static bool describe(struct synth_model *model, struct options *o, struct ats_error *err)
{
    if (o->model != NULL) {
        return describe_published(model, o, err);
    }
    if (o->lora_for != NULL) {
        return synth_describe_lora(model, o->lora_for, o->rank, err);
    }
    o->type = (int)o->type >= 0 ? o->type : GGML_TYPE_Q8_0;
    return describe_model(model, o, err);
}

int cli_synth(int argc, char **argv)
{
    struct options o = {.type = (enum ggml_type) - 1, .seed = 1, .rank = 8, .topic_share = -1.0};
    cli_parse(&argp, argc, argv, &o);
    ggml_log_set(ignore_log, NULL);
    if (o.is_list) {
        return list(&o, argv[0]);
    }
    if (o.out == NULL || o.out[0] == '\0') {
        cli_usage_error(argv[0], "--out FILE is missing");
    }
    check_combination(&o, argv[0]);
    struct ats_error err = {""};
    struct synth_model model = {.meta = gguf_init_empty(), .seed = o.seed};
    bool ok = describe(&model, &o, &err) && synth_write(&model, o.out, &err);
    if (ok) {
        print_result(&o, &model);
    }
    synth_free(&model);
    return ok ? CLI_OK : cli_error(argv[0], &err);
}
