/* `ats-train experts`: a model with experts from one without. */
#include "commands.h"
#include "gguf_out.h"
#include "split.h"

#include "base/parse.h"
#include "cli/cli.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { DEFAULT_EXPERTS = 8, DEFAULT_USED = 6, MAX_BYTES = 1 << 30 };

struct options {
    const char *in;
    const char *out;
    uint64_t experts;
    uint64_t used;
};

enum { KEY_EXPERTS = CLI_KEY_FIRST, KEY_USED };

static const struct argp_option option_table[] = {
    {"in", 'i', "FILE", 0, "GGUF file of the architecture llama, without experts", 0},
    {"out", 'o', "FILE", 0, "GGUF file to write", 0},
    {"experts", KEY_EXPERTS, "N", 0, "Experts per layer (8)", 0},
    {"used", KEY_USED, "N", 0, "Of them used for a token (6)", 0},
    CLI_HELP_OPTION,
    {0},
};

static error_t parse_option(int key, char *arg, struct argp_state *state)
{
    struct options *o = state->input;
    struct ats_error err;
    switch (key) {
    case 'i':
        o->in = arg;
        return 0;
    case 'o':
        o->out = arg;
        return 0;
    case KEY_EXPERTS:
        if (!ats_parse_u64(arg, SPLIT_MAX_EXPERTS, &o->experts, &err) || o->experts == 0) {
            cli_usage_error(state->name, "--experts %s: a number from 1 to %d", arg,
                            SPLIT_MAX_EXPERTS);
        }
        return 0;
    case KEY_USED:
        if (!ats_parse_u64(arg, SPLIT_MAX_EXPERTS, &o->used, &err) || o->used == 0) {
            cli_usage_error(state->name, "--used %s: a number from 1 to %d", arg,
                            SPLIT_MAX_EXPERTS);
        }
        return 0;
    default:
        return cli_parse_common(key, state);
    }
}

static const struct argp argp = {
    option_table,
    parse_option,
    "--in=FILE --out=FILE",
    "Cuts the feed-forward blocks of a model into experts and gives them a router, from the "
    "weights alone. With --used as large as --experts the result computes what the model did; "
    "with less it leaves out the experts that matter least for a token."
    "\n\nOptions:",
    NULL,
    NULL,
    NULL};

/* The model that is cut. */
struct source {
    struct gguf_context *meta;
    struct ggml_context *tensors;
};

static bool source_open(struct source *source, const char *path, struct ats_error *err)
{
    const struct gguf_init_params params = {.ctx = &source->tensors};
    source->meta = gguf_init_from_file(path, params);
    if (source->meta == NULL) {
        return ats_fail(err, "cannot read %s as a GGUF file", path);
    }
    const int64_t arch = gguf_find_key(source->meta, "general.architecture");
    if (arch < 0 || gguf_get_kv_type(source->meta, arch) != GGUF_TYPE_STRING ||
        strcmp(gguf_get_val_str(source->meta, arch), "llama") != 0 ||
        gguf_find_key(source->meta, "llama.expert_count") >= 0) {
        return ats_fail(err, "%s: a model of the architecture llama without experts is needed",
                        path);
    }
    return true;
}

static void source_close(struct source *source)
{
    gguf_free(source->meta);
    ggml_free(source->tensors);
}

static struct ggml_tensor *tensor_of(const struct source *source, const char *name, int layer)
{
    char full[GGML_MAX_NAME];
    snprintf(full, sizeof full, "blk.%d.%s.weight", layer, name);
    return ggml_get_tensor(source->tensors, full);
}

/* The tensor's numbers as floats, for the caller to free. */
static float *floats_of(const struct ggml_tensor *tensor)
{
    const size_t n = (size_t)ggml_nelements(tensor);
    float *floats = cli_alloc(n * sizeof *floats);
    if (tensor->type == GGML_TYPE_F32) {
        memcpy(floats, tensor->data, n * sizeof *floats);
    } else {
        ggml_get_type_traits(tensor->type)->to_float(tensor->data, floats, (int64_t)n);
    }
    return floats;
}

static bool can_read(const struct ggml_tensor *tensor, int64_t columns, int64_t rows)
{
    return tensor != NULL && tensor->ne[0] == columns && ggml_nrows(tensor) == rows &&
           (tensor->type == GGML_TYPE_F32 || ggml_get_type_traits(tensor->type)->to_float != NULL);
}

/* The four tensors of a layer's block. */
struct block_tensors {
    struct ggml_tensor *gain, *gate, *up, *down;
};

static bool find_block(const struct source *source, int layer, struct block_tensors *block)
{
    block->gain = tensor_of(source, "ffn_norm", layer);
    block->gate = tensor_of(source, "ffn_gate", layer);
    block->up = tensor_of(source, "ffn_up", layer);
    block->down = tensor_of(source, "ffn_down", layer);
    if (block->gate == NULL) {
        return false;
    }
    const int64_t width = block->gate->ne[0];
    const int64_t ff = block->gate->ne[1];
    return can_read(block->gain, width, 1) && can_read(block->gate, width, ff) &&
           can_read(block->up, width, ff) && can_read(block->down, ff, width);
}

/* Rows of gate or up in their experts' order: experts x size rows of width are ff rows again. */
static void add_rows(struct gguf_out *out, const char *name, int layer, enum ggml_type type,
                     const float *rows, const struct split_block *b, size_t experts,
                     const uint32_t *order)
{
    char full[GGML_MAX_NAME];
    snprintf(full, sizeof full, "blk.%d.%s.weight", layer, name);
    const int64_t ne[3] = {(int64_t)b->width, (int64_t)(b->ff / experts), (int64_t)experts};
    float *ordered = cli_alloc(b->ff * b->width * sizeof *ordered);
    for (size_t n = 0; n < b->ff; n++) {
        memcpy(ordered + n * b->width, rows + order[n] * b->width, b->width * sizeof *ordered);
    }
    gguf_out_add(out, full, gguf_out_type(type, ne[0]), 3, ne, ordered);
    free(ordered);
}

/* Experts' results are averaged, the block's parts are summed: so `used` times as much. */
static void add_down(struct gguf_out *out, int layer, enum ggml_type type,
                     const struct split_block *b, size_t experts, size_t used,
                     const uint32_t *order)
{
    char full[GGML_MAX_NAME];
    snprintf(full, sizeof full, "blk.%d.ffn_down_exps.weight", layer);
    const size_t size = b->ff / experts;
    const int64_t ne[3] = {(int64_t)size, (int64_t)b->width, (int64_t)experts};
    float *ordered = cli_alloc(b->ff * b->width * sizeof *ordered);
    for (size_t n = 0; n < b->ff; n++) {
        for (size_t r = 0; r < b->width; r++) {
            ordered[(n / size * b->width + r) * size + n % size] =
                (float)used * b->down[r * b->ff + order[n]];
        }
    }
    gguf_out_add(out, full, gguf_out_type(type, ne[0]), 3, ne, ordered);
    free(ordered);
}

static void add_router(struct gguf_out *out, int layer, const struct split_block *b, size_t experts,
                       const uint32_t *order, bool chooses)
{
    char full[GGML_MAX_NAME];
    snprintf(full, sizeof full, "blk.%d.ffn_gate_inp.weight", layer);
    const int64_t ne[2] = {(int64_t)b->width, (int64_t)experts};
    float *router = cli_alloc(experts * b->width * sizeof *router);
    if (chooses) {
        split_router(b, experts, order, router);
    } else {
        memset(router, 0, experts * b->width * sizeof *router);
    }
    gguf_out_add(out, full, GGML_TYPE_F32, 2, ne, router);
    free(router);
}

static bool add_block(struct gguf_out *out, int layer, const struct block_tensors *block,
                      const struct options *o, struct ats_error *err)
{
    float *gain = floats_of(block->gain);
    float *gate = floats_of(block->gate);
    float *up = floats_of(block->up);
    float *down = floats_of(block->down);
    const struct split_block b = {.width = (size_t)block->gate->ne[0],
                                  .ff = (size_t)block->gate->ne[1],
                                  .gain = gain,
                                  .gate = gate,
                                  .up = up,
                                  .down = down};
    uint32_t *order = cli_alloc(b.ff * sizeof *order);
    for (size_t i = 0; i < b.ff; i++) {
        order[i] = (uint32_t)i;
    }
    /* Where all experts are used there is nothing to choose: units stay in their order, and a
     * router of zeros gives all experts the same weight. */
    const bool chooses = o->used < o->experts;
    const bool ok = !chooses || split_group(&b, o->experts, order) ||
                    ats_fail(err, "out of memory for the experts of layer %d", layer);
    if (ok) {
        add_router(out, layer, &b, o->experts, order, chooses);
        add_rows(out, "ffn_gate_exps", layer, block->gate->type, gate, &b, o->experts, order);
        add_rows(out, "ffn_up_exps", layer, block->up->type, up, &b, o->experts, order);
        add_down(out, layer, block->down->type, &b, o->experts, o->used, order);
    }
    free(gain);
    free(gate);
    free(up);
    free(down);
    free(order);
    return ok;
}

static bool is_of_block(const char *name)
{
    return strstr(name, ".ffn_gate.") != NULL || strstr(name, ".ffn_up.") != NULL ||
           strstr(name, ".ffn_down.") != NULL;
}

static void copy_others(struct gguf_out *out, const struct source *source)
{
    for (struct ggml_tensor *t = ggml_get_first_tensor(source->tensors); t != NULL;
         t = ggml_get_next_tensor(source->tensors, t)) {
        if (gguf_find_tensor(source->meta, t->name) >= 0 && !is_of_block(t->name)) {
            gguf_add_tensor(out->meta, t);
        }
    }
}

static bool write_experts(const struct source *source, const struct options *o,
                          struct ats_error *err)
{
    struct block_tensors block;
    int layers = 0;
    size_t floats = 0;
    while (find_block(source, layers, &block)) {
        floats += 3 * (size_t)ggml_nelements(block.gate) + o->experts * (size_t)block.gate->ne[0];
        layers++;
        if ((uint64_t)block.gate->ne[1] % o->experts != 0) {
            return ats_fail(err, "%d hidden units do not make %d experts of equal size",
                            (int)block.gate->ne[1], (int)o->experts);
        }
    }
    const int64_t count = gguf_find_key(source->meta, "llama.block_count");
    if (layers == 0 || count < 0 || gguf_get_kv_type(source->meta, count) != GGUF_TYPE_UINT32 ||
        gguf_get_val_u32(source->meta, count) != (uint32_t)layers) {
        return ats_fail(err, "%s: block %d has no gate, up and down matrices that can be cut",
                        o->in, layers);
    }
    if (floats > MAX_BYTES / sizeof(float)) {
        return ats_fail(err, "%s is too large for this", o->in);
    }
    struct gguf_out out;
    if (!gguf_out_begin(&out, 4 * (size_t)layers, floats * sizeof(float), err)) {
        return false;
    }
    gguf_set_kv(out.meta, source->meta);
    find_block(source, 0, &block);
    gguf_set_val_u32(out.meta, "llama.expert_count", (uint32_t)o->experts);
    gguf_set_val_u32(out.meta, "llama.expert_used_count", (uint32_t)o->used);
    gguf_set_val_u32(out.meta, "llama.feed_forward_length",
                     (uint32_t)block.gate->ne[1] / (uint32_t)o->experts);
    copy_others(&out, source);
    bool ok = true;
    for (int i = 0; i < layers && ok; i++) {
        find_block(source, i, &block);
        ok = add_block(&out, i, &block, o, err);
    }
    ok = ok && gguf_out_write(&out, o->out, err);
    gguf_out_end(&out);
    return ok;
}

int command_experts(int argc, char **argv)
{
    struct options o = {.experts = DEFAULT_EXPERTS, .used = DEFAULT_USED};
    cli_parse(&argp, argc, argv, &o);
    if (o.in == NULL || o.out == NULL) {
        cli_usage_error(argv[0], "--in and --out are needed");
    }
    if (o.used > o.experts) {
        cli_usage_error(argv[0], "--used %d of --experts %d", (int)o.used, (int)o.experts);
    }
    struct ats_error err;
    struct source source = {0};
    const bool ok = source_open(&source, o.in, &err) && write_experts(&source, &o, &err);
    source_close(&source);
    return ok ? CLI_OK : cli_error(argv[0], &err);
}
