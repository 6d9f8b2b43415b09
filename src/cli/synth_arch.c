/* Metadata and tensors of each architecture, named and shaped as llama.cpp's
 * loader asks for them (its src/models/<arch>.cpp and src/llama-arch.cpp).
 *
 * Scales keep activations near one in every layer: 1/sqrt(inputs) for a matrix,
 * ones for norms. Two matrices are sharper on purpose. Output logits get a
 * standard deviation of 4, as trained models have, so that greedy decoding has
 * clear winners; router logits get 2, so that rounding on another device rarely
 * flips a choice of experts. */
#include "cli/cli.h"
#include "cli/synth.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const float logit_std = 4.0f;
static const float router_std = 2.0f;

/* A description under construction: the model plus what every builder needs. */
struct builder {
    struct synth_model *model;
    const char *arch;
    struct synth_shape shape;
    enum ggml_type type;
    int64_t embd;
    int64_t ff;
    int64_t n_vocab;
    int64_t q_dim;
    int64_t kv_dim;
    int64_t head_dim;
};

struct synth_tensor *synth_add(struct synth_model *model, enum ggml_type type, float spread,
                               int64_t ne0, int64_t ne1, int64_t ne2, const char *name, ...)
{
    if (model->n_tensors == model->capacity) {
        model->capacity = model->capacity > 0 ? model->capacity * 2 : 64;
        struct synth_tensor *grown = cli_alloc(model->capacity * sizeof *grown);
        if (model->n_tensors > 0) {
            memcpy(grown, model->tensors, model->n_tensors * sizeof *grown);
        }
        free(model->tensors);
        model->tensors = grown;
    }
    struct synth_tensor *t = &model->tensors[model->n_tensors++];
    *t = (struct synth_tensor){
        .type = type,
        .n_dims = ne2 > 0   ? 3
                  : ne1 > 0 ? 2
                            : 1,
        .ne = {ne0, ne1 > 0 ? ne1 : 1, ne2 > 0 ? ne2 : 1, 1},
        .spread = spread,
    };
    if (ne0 % ggml_blck_size(t->type) != 0) {
        t->type = GGML_TYPE_F16;
    }
    va_list args;
    va_start(args, name);
    vsnprintf(t->name, sizeof t->name, name, args);
    va_end(args);
    return t;
}

static float inverse_root(int64_t n)
{
    return 1.0f / sqrtf((float)n);
}

/* A weight matrix of layer `il`: `name` is what stands between "blk.N." and ".weight". */
static struct synth_tensor *matrix(struct builder *b, uint32_t il, const char *name, int64_t in,
                                   int64_t out)
{
    return synth_add(b->model, b->type, inverse_root(in), in, out, 0, "blk.%u.%s.weight", il, name);
}

/* A stack of matrices, one per expert. */
static void experts(struct builder *b, uint32_t il, const char *name, int64_t in, int64_t out)
{
    synth_add(b->model, b->type, inverse_root(in), in, out, b->shape.experts, "blk.%u.%s.weight",
              il, name);
}

/* Something small that llama.cpp computes in F32. */
static struct synth_tensor *vector(struct builder *b, uint32_t il, const char *name, int64_t n,
                                   float mean, float spread)
{
    struct synth_tensor *t =
        synth_add(b->model, GGML_TYPE_F32, spread, n, 0, 0, "blk.%u.%s", il, name);
    t->mean = mean;
    return t;
}

static void norm(struct builder *b, uint32_t il, const char *name, int64_t n)
{
    char full[48];
    snprintf(full, sizeof full, "%s.weight", name);
    vector(b, il, full, n, 1.0f, 0.0f);
}

/* Layer norm with a bias, as in BERT. */
static void norm_with_bias(struct builder *b, uint32_t il, const char *name, int64_t n)
{
    char full[48];
    norm(b, il, name, n);
    snprintf(full, sizeof full, "%s.bias", name);
    vector(b, il, full, n, 0.0f, 0.0f);
}

static void global_norm(struct builder *b, const char *name, float mean)
{
    synth_add(b->model, GGML_TYPE_F32, 0.0f, b->embd, 0, 0, "%s", name)->mean = mean;
}

static void embedding(struct builder *b)
{
    synth_add(b->model, b->type, 1.0f, b->embd, b->n_vocab, 0, "token_embd.weight");
}

static void output(struct builder *b, const char *norm_name)
{
    global_norm(b, norm_name, 1.0f);
    struct synth_tensor *t = synth_add(b->model, b->type, logit_std * inverse_root(b->embd),
                                       b->embd, b->n_vocab, 0, "output.weight");
    t->mask_rows = true;
}

static void attention(struct builder *b, uint32_t il, bool qk_norm, int64_t q_dim)
{
    matrix(b, il, "attn_q", b->embd, q_dim);
    matrix(b, il, "attn_k", b->embd, b->kv_dim);
    matrix(b, il, "attn_v", b->embd, b->kv_dim);
    matrix(b, il, "attn_output", b->q_dim, b->embd);
    if (qk_norm) {
        norm(b, il, "attn_q_norm", b->head_dim);
        norm(b, il, "attn_k_norm", b->head_dim);
    }
}

static void gated_ff(struct builder *b, uint32_t il)
{
    matrix(b, il, "ffn_gate", b->embd, b->ff);
    matrix(b, il, "ffn_up", b->embd, b->ff);
    matrix(b, il, "ffn_down", b->ff, b->embd);
}

static void expert_ff(struct builder *b, uint32_t il)
{
    synth_add(b->model, GGML_TYPE_F32, router_std * inverse_root(b->embd), b->embd,
              b->shape.experts, 0, "blk.%u.ffn_gate_inp.weight", il);
    experts(b, il, "ffn_gate_exps", b->embd, b->ff);
    experts(b, il, "ffn_up_exps", b->embd, b->ff);
    experts(b, il, "ffn_down_exps", b->ff, b->embd);
}

/* Metadata: keys carry the architecture as prefix. */
static const char *key(const struct builder *b, const char *name)
{
    static char text[96]; /* gguf_set_* copies it at once */
    snprintf(text, sizeof text, "%s.%s", b->arch, name);
    return text;
}

static void set_u32(struct builder *b, const char *name, uint32_t value)
{
    gguf_set_val_u32(b->model->meta, key(b, name), value);
}

static void set_f32(struct builder *b, const char *name, float value)
{
    gguf_set_val_f32(b->model->meta, key(b, name), value);
}

static const uint32_t context_length = 2048;

static void common_meta(struct builder *b)
{
    struct gguf_context *meta = b->model->meta;
    gguf_set_val_str(meta, "general.architecture", b->arch);
    gguf_set_val_str(meta, "general.type", "model");
    char name[64];
    snprintf(name, sizeof name, "random %s", b->arch);
    gguf_set_val_str(meta, "general.name", name);
    gguf_set_val_str(meta, "general.description",
                     "random weights written by `ats synth`; says nothing sensible");
    gguf_set_val_u32(meta, "general.quantization_version", 2);
    set_u32(b, "context_length", context_length);
    set_u32(b, "embedding_length", b->shape.embd);
    set_u32(b, "block_count", b->shape.layers);
    set_u32(b, "feed_forward_length", b->shape.ff);
    set_u32(b, "vocab_size", (uint32_t)b->n_vocab);
}

static void attention_meta(struct builder *b)
{
    set_u32(b, "attention.head_count", b->shape.heads);
    set_u32(b, "attention.head_count_kv", b->shape.kv_heads);
    set_f32(b, "attention.layer_norm_rms_epsilon", 1e-6f);
    set_u32(b, "rope.dimension_count", (uint32_t)b->head_dim);
    set_f32(b, "rope.freq_base", 10000.0f);
}

static void expert_meta(struct builder *b)
{
    set_u32(b, "expert_count", b->shape.experts);
    set_u32(b, "expert_used_count", b->shape.experts_used);
    set_u32(b, "expert_feed_forward_length", b->shape.ff);
}

static void build_llama(struct builder *b)
{
    attention_meta(b);
    embedding(b);
    for (uint32_t il = 0; il < b->shape.layers; il++) {
        norm(b, il, "attn_norm", b->embd);
        attention(b, il, false, b->q_dim);
        norm(b, il, "ffn_norm", b->embd);
        gated_ff(b, il);
    }
    output(b, "output_norm.weight");
}

static void build_qwen3moe(struct builder *b)
{
    attention_meta(b);
    expert_meta(b);
    embedding(b);
    for (uint32_t il = 0; il < b->shape.layers; il++) {
        norm(b, il, "attn_norm", b->embd);
        attention(b, il, true, b->q_dim);
        norm(b, il, "ffn_norm", b->embd);
        expert_ff(b, il);
    }
    output(b, "output_norm.weight");
}

/* Decay rates are negative and time steps land between softplus(-6.7) = 0.001 and
 * softplus(-2.5) = 0.08, the range that Mamba (Gu and Dao, 2023) starts from. */
static const float decay_mean = -4.0f;
static const float decay_spread = 1.0f;
static const float time_step_mean = -4.6f;
static const float time_step_spread = 0.6f;
static const int64_t conv_kernel = 4;

static void build_mamba(struct builder *b)
{
    const int64_t inner = 2 * b->embd; /* llama.cpp accepts no other expansion */
    const int64_t state = 16;
    const int64_t rank = b->embd / 16 > 0 ? b->embd / 16 : 1;
    set_u32(b, "attention.head_count", 0);
    set_f32(b, "attention.layer_norm_rms_epsilon", 1e-5f);
    set_u32(b, "ssm.conv_kernel", (uint32_t)conv_kernel);
    set_u32(b, "ssm.inner_size", (uint32_t)inner);
    set_u32(b, "ssm.state_size", (uint32_t)state);
    set_u32(b, "ssm.time_step_rank", (uint32_t)rank);
    embedding(b);
    for (uint32_t il = 0; il < b->shape.layers; il++) {
        norm(b, il, "attn_norm", b->embd);
        matrix(b, il, "ssm_in", b->embd, 2 * inner);
        matrix(b, il, "ssm_conv1d", conv_kernel, inner)->type = GGML_TYPE_F32;
        vector(b, il, "ssm_conv1d.bias", inner, 0.0f, 0.0f);
        matrix(b, il, "ssm_x", inner, rank + 2 * state);
        matrix(b, il, "ssm_dt", rank, inner);
        vector(b, il, "ssm_dt.bias", inner, time_step_mean, time_step_spread);
        synth_add(b->model, GGML_TYPE_F32, decay_spread, state, inner, 0, "blk.%u.ssm_a", il)
            ->mean = decay_mean;
        vector(b, il, "ssm_d", inner, 1.0f, 0.0f);
        matrix(b, il, "ssm_out", inner, b->embd);
    }
    output(b, "output_norm.weight");
}

/* Three layers of gated delta net, then one of attention. */
static void linear_attention(struct builder *b, uint32_t il, int64_t head, int64_t k_heads,
                             int64_t v_heads)
{
    const int64_t key_dim = head * k_heads;
    const int64_t value_dim = head * v_heads;
    matrix(b, il, "attn_qkv", b->embd, 2 * key_dim + value_dim);
    matrix(b, il, "attn_gate", b->embd, value_dim);
    matrix(b, il, "ssm_conv1d", conv_kernel, 2 * key_dim + value_dim)->type = GGML_TYPE_F32;
    vector(b, il, "ssm_dt.bias", v_heads, time_step_mean, time_step_spread);
    vector(b, il, "ssm_a", v_heads, decay_mean, decay_spread);
    matrix(b, il, "ssm_ba", b->embd, 2 * v_heads);
    norm(b, il, "ssm_norm", head);
    matrix(b, il, "ssm_out", value_dim, b->embd);
}

static void build_qwen3next(struct builder *b)
{
    const uint32_t attention_interval = 4;
    const int64_t head = 64;
    const int64_t k_heads = 2;
    const int64_t v_heads = 4;
    attention_meta(b);
    expert_meta(b);
    set_u32(b, "attention.key_length", (uint32_t)b->head_dim);
    set_u32(b, "attention.value_length", (uint32_t)b->head_dim);
    set_u32(b, "full_attention_interval", attention_interval);
    set_u32(b, "expert_shared_feed_forward_length", b->shape.ff);
    set_u32(b, "ssm.conv_kernel", (uint32_t)conv_kernel);
    set_u32(b, "ssm.inner_size", (uint32_t)(head * v_heads));
    set_u32(b, "ssm.state_size", (uint32_t)head);
    set_u32(b, "ssm.time_step_rank", (uint32_t)v_heads);
    set_u32(b, "ssm.group_count", (uint32_t)k_heads);
    embedding(b);
    for (uint32_t il = 0; il < b->shape.layers; il++) {
        norm(b, il, "attn_norm", b->embd);
        norm(b, il, "post_attention_norm", b->embd);
        if ((il + 1) % attention_interval == 0) {
            attention(b, il, true, 2 * b->q_dim); /* queries and their gates */
        } else {
            linear_attention(b, il, head, k_heads, v_heads);
        }
        expert_ff(b, il);
        vector(b, il, "ffn_gate_inp_shexp.weight", b->embd, 0.0f, inverse_root(b->embd));
        matrix(b, il, "ffn_gate_shexp", b->embd, b->ff);
        matrix(b, il, "ffn_up_shexp", b->embd, b->ff);
        matrix(b, il, "ffn_down_shexp", b->ff, b->embd);
    }
    output(b, "output_norm.weight");
}

/* Short convolutions, and attention in every third layer. */
static void build_lfm2(struct builder *b)
{
    const uint32_t attention_interval = 3;
    const int64_t cache = 3;
    attention_meta(b);
    set_u32(b, "shortconv.l_cache", (uint32_t)cache);
    uint32_t *kv_heads = cli_alloc(b->shape.layers * sizeof *kv_heads);
    embedding(b);
    for (uint32_t il = 0; il < b->shape.layers; il++) {
        norm(b, il, "attn_norm", b->embd);
        if ((il + 1) % attention_interval == 0) {
            kv_heads[il] = b->shape.kv_heads;
            attention(b, il, true, b->q_dim);
        } else {
            matrix(b, il, "shortconv.conv", cache, b->embd)->type = GGML_TYPE_F32;
            matrix(b, il, "shortconv.in_proj", b->embd, 3 * b->embd);
            matrix(b, il, "shortconv.out_proj", b->embd, b->embd);
        }
        norm(b, il, "ffn_norm", b->embd);
        gated_ff(b, il);
    }
    gguf_set_arr_data(b->model->meta, key(b, "attention.head_count_kv"), GGUF_TYPE_UINT32, kv_heads,
                      b->shape.layers);
    free(kv_heads);
    output(b, "token_embd_norm.weight"); /* the name that converters really write */
}

static void build_bert(struct builder *b)
{
    const uint32_t pooling_mean = 1;
    set_u32(b, "context_length", 512);
    set_u32(b, "attention.head_count", b->shape.heads);
    set_f32(b, "attention.layer_norm_epsilon", 1e-12f);
    gguf_set_val_bool(b->model->meta, key(b, "attention.causal"), false);
    set_u32(b, "pooling_type", pooling_mean);
    embedding(b);
    synth_add(b->model, GGML_TYPE_F32, 0.1f, b->embd, 2, 0, "token_types.weight");
    synth_add(b->model, GGML_TYPE_F32, 0.1f, b->embd, 512, 0, "position_embd.weight");
    global_norm(b, "token_embd_norm.weight", 1.0f);
    global_norm(b, "token_embd_norm.bias", 0.0f);
    for (uint32_t il = 0; il < b->shape.layers; il++) {
        attention(b, il, false, b->q_dim);
        norm_with_bias(b, il, "attn_output_norm", b->embd);
        matrix(b, il, "ffn_up", b->embd, b->ff);
        vector(b, il, "ffn_up.bias", b->ff, 0.0f, 0.0f);
        matrix(b, il, "ffn_down", b->ff, b->embd);
        vector(b, il, "ffn_down.bias", b->embd, 0.0f, 0.0f);
        norm_with_bias(b, il, "layer_output_norm", b->embd);
    }
}

struct arch {
    struct synth_shape shape;
    void (*build)(struct builder *b);
};

/* In the order of `archs`. Head size 64 in all of them: GPU flash-attention kernels
 * have it. */
static const char *const arch_names[] = {"llama", "qwen3moe", "mamba", "qwen3next", "lfm2", "bert"};
enum { N_ARCHS = sizeof arch_names / sizeof arch_names[0] };

static const struct arch archs[N_ARCHS] = {
    {{.layers = 6, .embd = 256, .ff = 768, .heads = 4, .kv_heads = 2}, build_llama},
    {{6, 256, 256, 4, 2, 16, 4}, build_qwen3moe},
    {{.layers = 6, .embd = 256}, build_mamba},
    {{4, 256, 128, 4, 2, 16, 4}, build_qwen3next},
    {{.layers = 6, .embd = 256, .ff = 768, .heads = 4, .kv_heads = 2}, build_lfm2},
    {{.layers = 4, .embd = 256, .ff = 1024, .heads = 4, .kv_heads = 4}, build_bert},
};

size_t synth_arch_count(void)
{
    return N_ARCHS;
}

const char *const *synth_arch_names(void)
{
    return arch_names;
}

/* Takes the user's value, or the default where the user gave none. An
 * architecture without the property has the default 0 and takes no value. */
static bool choose(uint32_t *value, uint32_t given, const char *option, const char *arch,
                   struct ats_error *err)
{
    if (given == 0) {
        return true;
    }
    if (*value == 0) {
        return ats_fail(err, "--%s has no meaning for %s", option, arch);
    }
    *value = given;
    return true;
}

static bool check_shape(const struct synth_shape *s, struct ats_error *err)
{
    if (s->heads > 0 && (s->embd % s->heads != 0 || s->embd / s->heads % 2 != 0)) {
        return ats_fail(err, "--embd %u does not divide into %u heads of an even size", s->embd,
                        s->heads);
    }
    if (s->kv_heads > 0 && s->heads % s->kv_heads != 0) {
        return ats_fail(err, "--heads %u is no multiple of --kv-heads %u", s->heads, s->kv_heads);
    }
    if (s->experts_used > s->experts) {
        return ats_fail(err, "--experts-used %u is more than --experts %u", s->experts_used,
                        s->experts);
    }
    return true;
}

bool synth_describe(struct synth_model *model, const char *arch, const struct synth_shape *shape,
                    enum ggml_type type, uint32_t n_vocab, struct ats_error *err)
{
    size_t at = 0;
    while (at < N_ARCHS && strcmp(arch_names[at], arch) != 0) {
        at++;
    }
    if (at == N_ARCHS) {
        return ats_fail(err, "unknown architecture '%s'", arch);
    }
    struct builder b = {.model = model, .arch = arch_names[at], .shape = archs[at].shape};
    struct synth_shape *s = &b.shape;
    if (!choose(&s->layers, shape->layers, "layers", arch, err) ||
        !choose(&s->embd, shape->embd, "embd", arch, err) ||
        !choose(&s->ff, shape->ff, "ff", arch, err) ||
        !choose(&s->heads, shape->heads, "heads", arch, err) ||
        !choose(&s->kv_heads, shape->kv_heads, "kv-heads", arch, err) ||
        !choose(&s->experts, shape->experts, "experts", arch, err) ||
        !choose(&s->experts_used, shape->experts_used, "experts-used", arch, err) ||
        !check_shape(s, err)) {
        return false;
    }
    b.type = type;
    b.embd = s->embd;
    b.ff = s->ff;
    b.n_vocab = n_vocab;
    b.head_dim = s->heads > 0 ? s->embd / s->heads : 0;
    b.q_dim = s->embd;
    b.kv_dim = b.head_dim * s->kv_heads;
    common_meta(&b);
    archs[at].build(&b);
    return true;
}
