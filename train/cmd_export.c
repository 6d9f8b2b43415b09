/* `ats-train export`: a checkpoint as a GGUF file. */
#include "commands.h"
#include "gguf_out.h"
#include "gguf_vocab.h"
#include "run.h"

#include "cli/cli.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Values of general.file_type, as llama.cpp's enum llama_ftype has them. */
static const struct {
    const char *name;
    enum ggml_type type;
    uint32_t file_type;
} types[] = {{"F32", GGML_TYPE_F32, 0}, {"F16", GGML_TYPE_F16, 1}, {"Q8_0", GGML_TYPE_Q8_0, 7}};
enum { N_TYPES = sizeof types / sizeof types[0], DEFAULT_TYPE = 2, QUANTISATION_VERSION = 2 };

struct options {
    const char *run;
    const char *tokenizer;
    const char *out;
    size_t type;
    const char *name;
    const char *description;
    const char *license;
};

enum {
    KEY_RUN = CLI_KEY_FIRST,
    KEY_TOKENIZER,
    KEY_TYPE,
    KEY_NAME,
    KEY_DESCRIPTION,
    KEY_LICENSE,
};

static const struct argp_option option_table[] = {
    {"run", KEY_RUN, "FILE", 0, "Checkpoint of `ats-train train`", 1},
    {"tokenizer", KEY_TOKENIZER, "FILE", 0, "The tokenizer that it was trained with", 1},
    {"out", 'o', "FILE", 0, "GGUF file to write", 1},
    {"type", KEY_TYPE, "TYPE", 0, "Of the matrices: F32, F16 or Q8_0 (Q8_0)", 2},
    {"name", KEY_NAME, "TEXT", 0, "The model's name", 2},
    {"description", KEY_DESCRIPTION, "TEXT", 0, "What it was trained on", 2},
    {"license", KEY_LICENSE, "TEXT", 0, "Its licence", 2},
    CLI_HELP_OPTION,
    {0},
};

static size_t find_type(struct argp_state *state, const char *name)
{
    for (size_t i = 0; i < N_TYPES; i++) {
        if (strcmp(types[i].name, name) == 0) {
            return i;
        }
    }
    cli_usage_error(state->name, "--type %s: use F32, F16 or Q8_0", name);
}

static error_t parse_option(int key, char *arg, struct argp_state *state)
{
    struct options *o = state->input;
    switch (key) {
    case KEY_RUN:
        o->run = arg;
        return 0;
    case KEY_TOKENIZER:
        o->tokenizer = arg;
        return 0;
    case 'o':
        o->out = arg;
        return 0;
    case KEY_TYPE:
        o->type = find_type(state, arg);
        return 0;
    case KEY_NAME:
        o->name = arg;
        return 0;
    case KEY_DESCRIPTION:
        o->description = arg;
        return 0;
    case KEY_LICENSE:
        o->license = arg;
        return 0;
    default:
        return cli_parse_common(key, state);
    }
}

static const struct argp argp = {option_table,
                                 parse_option,
                                 "--run=FILE --tokenizer=FILE --out=FILE",
                                 "Writes what has been trained as a GGUF file, which llama.cpp "
                                 "loads.\n\nOptions:",
                                 NULL,
                                 NULL,
                                 NULL};

static void set_keys(struct gguf_context *meta, const struct options *o, const struct run *run)
{
    const struct net_shape *s = &run->options.shape;
    gguf_set_val_str(meta, "general.architecture", "llama");
    gguf_set_val_str(meta, "general.type", "model");
    if (o->name != NULL) {
        gguf_set_val_str(meta, "general.name", o->name);
    }
    if (o->description != NULL) {
        gguf_set_val_str(meta, "general.description", o->description);
    }
    if (o->license != NULL) {
        gguf_set_val_str(meta, "general.license", o->license);
    }
    gguf_set_val_u32(meta, "general.file_type", types[o->type].file_type);
    gguf_set_val_u32(meta, "general.quantization_version", QUANTISATION_VERSION);
    gguf_set_val_u32(meta, "llama.vocab_size", s->vocab);
    gguf_set_val_u32(meta, "llama.context_length", s->context);
    gguf_set_val_u32(meta, "llama.embedding_length", s->width);
    gguf_set_val_u32(meta, "llama.block_count", s->layers);
    gguf_set_val_u32(meta, "llama.feed_forward_length", s->ff);
    gguf_set_val_u32(meta, "llama.attention.head_count", s->heads);
    gguf_set_val_u32(meta, "llama.attention.head_count_kv", s->kv_heads);
    gguf_set_val_f32(meta, "llama.attention.layer_norm_rms_epsilon", NET_NORM_EPSILON);
    gguf_set_val_u32(meta, "llama.rope.dimension_count", s->width / s->heads);
    gguf_set_val_f32(meta, "llama.rope.freq_base", NET_ROPE_BASE);
}

static bool write_model(const struct options *o, const struct run *run, const struct bpe *bpe,
                        struct ats_error *err)
{
    const struct net_shape *s = &run->options.shape;
    struct gguf_out out;
    if (!gguf_out_begin(&out, net_tensor_count(s), run->n_params * sizeof(float), err)) {
        return false;
    }
    set_keys(out.meta, o, run);
    bool ok = gguf_vocab_set(out.meta, bpe, err);
    for (size_t i = 0; i < net_tensor_count(s); i++) {
        const struct net_tensor t = net_tensor_at(s, i);
        const int64_t ne[2] = {(int64_t)t.columns, (int64_t)t.rows};
        const bool is_gain = t.rows == 1;
        const enum ggml_type type =
            is_gain ? GGML_TYPE_F32 : gguf_out_type(types[o->type].type, ne[0]);
        gguf_out_add(&out, t.name, type, is_gain ? 1 : 2, ne, run->params + t.offset);
    }
    ok = ok && gguf_out_write(&out, o->out, err);
    gguf_out_end(&out);
    return ok;
}

int command_export(int argc, char **argv)
{
    struct options o = {.type = DEFAULT_TYPE};
    cli_parse(&argp, argc, argv, &o);
    if (o.run == NULL || o.tokenizer == NULL || o.out == NULL) {
        cli_usage_error(argv[0], "--run, --tokenizer and --out are needed");
    }
    struct ats_error err;
    struct run run = {0};
    struct bpe bpe = {0};
    bool ok = run_load(&run, o.run, &err) && bpe_load(&bpe, o.tokenizer, &err);
    if (ok && bpe.n_tokens != run.options.shape.vocab) {
        ok = ats_fail(&err, "%s has %zu tokens, the model %u", o.tokenizer, bpe.n_tokens,
                      run.options.shape.vocab);
    }
    ok = ok && write_model(&o, &run, &bpe, &err);
    if (ok) {
        fprintf(stderr, "%s: step %zu, %s\n", o.out, run.step, types[o.type].name);
    }
    run_free(&run);
    bpe_free(&bpe);
    return ok ? CLI_OK : cli_error(argv[0], &err);
}
