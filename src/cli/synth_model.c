/* Tensors and metadata of a described model, named and shaped as llama.cpp v0.5.0 asks for them
 * (src/models/<arch>.cpp, src/llama-arch.cpp).
 *
 * Scales keep activations near one. What a layer adds to the residual stream is small, a tenth of
 * an embedding at most, so that the stream stays close to the embedding through all layers: then
 * routers, which differ from layer to layer, still see topic and token, and nothing grows with
 * depth. Router logits have a standard deviation of 2 and output logits of 4, as in synth_arch.c.
 */
#include "cli/cli.h"
#include "cli/synth.h"
#include "cli/synth_mix.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

static const float residual_scale = 0.1f;
static const float router_std = 2.0f;
static const float logit_std = 4.0f;
static const float bias_std = 0.02f;
/* Linear attention: forgets at a rate that differs between heads and never becomes negative (a
 * random number is within 3.47 standard deviations). */
static const float decay_mean = -4.0f;
static const float decay_std = 1.0f;
static const float time_step_mean = -4.6f;
static const float time_step_std = 0.6f;

struct build {
    struct synth_model *model;
    const struct synth_spec *spec;
    uint32_t layers;
    uint32_t il; /* the layer that is being built */
};

static float inverse_root(int64_t n)
{
    return 1.0f / sqrtf((float)n);
}

/* A tensor of the type that the mix gives it. */
static struct synth_tensor *add(struct build *b, const char *name, int64_t ne0, int64_t ne1,
                                int64_t ne2, float spread)
{
    const int n_dims = ne2 > 0 ? 3 : ne1 > 0 ? 2 : 1;
    const enum ggml_type type = synth_mix_type(b->spec, name, n_dims, ne0, b->il, b->layers);
    return synth_add(b->model, type, spread, ne0, ne1, ne2, "%s", name);
}

static struct synth_tensor *in_layer(struct build *b, const char *name, int64_t ne0, int64_t ne1,
                                     int64_t ne2, float spread)
{
    char full[GGML_MAX_NAME];
    snprintf(full, sizeof full, "blk.%u.%s", b->il, name);
    return add(b, full, ne0, ne1, ne2, spread);
}

/* Matrices of `in` inputs; the second kind writes to the residual stream. */
static void matrix(struct build *b, const char *name, int64_t in, int64_t out)
{
    in_layer(b, name, in, out, 0, inverse_root(in));
}

static void to_residual(struct build *b, const char *name, int64_t in)
{
    in_layer(b, name, in, b->spec->embedding, 0, residual_scale * inverse_root(in));
}

static void vector(struct build *b, const char *name, int64_t n, float mean, float spread)
{
    in_layer(b, name, n, 0, 0, spread)->mean = mean;
}

static void norm(struct build *b, const char *name, int64_t n)
{
    vector(b, name, n, 1.0f, 0.0f);
}

/* `q_dim` is the width of the queries, with their gates where a model has them. */
static void attention(struct build *b, int64_t q_dim, bool qk_norm)
{
    const struct synth_spec *s = b->spec;
    const int64_t kv_dim = (int64_t)s->kv_heads * s->head_dim;
    matrix(b, "attn_q.weight", s->embedding, q_dim);
    matrix(b, "attn_k.weight", s->embedding, kv_dim);
    matrix(b, "attn_v.weight", s->embedding, kv_dim);
    if (s->qkv_bias) {
        vector(b, "attn_q.bias", q_dim, 0.0f, bias_std);
        vector(b, "attn_k.bias", kv_dim, 0.0f, bias_std);
        vector(b, "attn_v.bias", kv_dim, 0.0f, bias_std);
    }
    to_residual(b, "attn_output.weight", (int64_t)s->heads * s->head_dim);
    if (qk_norm) {
        norm(b, "attn_q_norm.weight", s->head_dim);
        norm(b, "attn_k_norm.weight", s->head_dim);
    }
}

static void feed_forward(struct build *b)
{
    matrix(b, "ffn_gate.weight", b->spec->embedding, b->spec->feed_forward);
    matrix(b, "ffn_up.weight", b->spec->embedding, b->spec->feed_forward);
    to_residual(b, "ffn_down.weight", b->spec->feed_forward);
}

static void experts(struct build *b)
{
    const struct synth_spec *s = b->spec;
    const int64_t width = s->expert_feed_forward;
    in_layer(b, "ffn_gate_inp.weight", s->embedding, s->experts, 0,
             router_std * inverse_root(s->embedding));
    in_layer(b, "ffn_gate_exps.weight", s->embedding, width, s->experts,
             inverse_root(s->embedding));
    in_layer(b, "ffn_up_exps.weight", s->embedding, width, s->experts, inverse_root(s->embedding));
    in_layer(b, "ffn_down_exps.weight", width, s->embedding, s->experts,
             residual_scale * inverse_root(width));
}

static void shared_expert(struct build *b)
{
    const struct synth_spec *s = b->spec;
    vector(b, "ffn_gate_inp_shexp.weight", s->embedding, 0.0f, inverse_root(s->embedding));
    matrix(b, "ffn_gate_shexp.weight", s->embedding, s->shared_feed_forward);
    matrix(b, "ffn_up_shexp.weight", s->embedding, s->shared_feed_forward);
    to_residual(b, "ffn_down_shexp.weight", s->shared_feed_forward);
}

static int64_t q_width(const struct synth_spec *s)
{
    return (int64_t)s->heads * s->head_dim;
}

static void layer_llama(struct build *b)
{
    norm(b, "attn_norm.weight", b->spec->embedding);
    attention(b, q_width(b->spec), false);
    norm(b, "ffn_norm.weight", b->spec->embedding);
    feed_forward(b);
}

static void layer_qwen3(struct build *b)
{
    norm(b, "attn_norm.weight", b->spec->embedding);
    attention(b, q_width(b->spec), true);
    norm(b, "ffn_norm.weight", b->spec->embedding);
    feed_forward(b);
}

static void layer_qwen3moe(struct build *b)
{
    norm(b, "attn_norm.weight", b->spec->embedding);
    attention(b, q_width(b->spec), true);
    norm(b, "ffn_norm.weight", b->spec->embedding);
    experts(b);
}

/* Norms after attention and feed-forward decide what the residual stream gets. The gate and the
 * up projection are one matrix. */
static void layer_glm4(struct build *b)
{
    const struct synth_spec *s = b->spec;
    norm(b, "attn_norm.weight", s->embedding);
    attention(b, q_width(s), false);
    vector(b, "post_attention_norm.weight", s->embedding, residual_scale, 0.0f);
    norm(b, "ffn_norm.weight", s->embedding);
    matrix(b, "ffn_up.weight", s->embedding, 2 * (int64_t)s->feed_forward);
    matrix(b, "ffn_down.weight", s->feed_forward, s->embedding);
    vector(b, "post_ffw_norm.weight", s->embedding, residual_scale, 0.0f);
}

static void layer_gpt_oss(struct build *b)
{
    const struct synth_spec *s = b->spec;
    const float small = residual_scale * bias_std;
    norm(b, "attn_norm.weight", s->embedding);
    norm(b, "post_attention_norm.weight", s->embedding);
    attention(b, q_width(s), false);
    vector(b, "attn_output.bias", s->embedding, 0.0f, small);
    vector(b, "attn_sinks.weight", s->heads, 0.0f, 1.0f);
    experts(b);
    vector(b, "ffn_gate_inp.bias", s->experts, 0.0f, bias_std);
    in_layer(b, "ffn_gate_exps.bias", s->expert_feed_forward, s->experts, 0, bias_std);
    in_layer(b, "ffn_up_exps.bias", s->expert_feed_forward, s->experts, 0, bias_std);
    in_layer(b, "ffn_down_exps.bias", s->embedding, s->experts, 0, small);
}

/* `is_merged`: one matrix for the two gates of linear attention, as qwen3next has it. */
static void linear_attention(struct build *b, bool is_merged)
{
    const struct synth_spec *s = b->spec;
    const int64_t key_dim = (int64_t)s->linear_key_heads * s->linear_head_dim;
    const int64_t value_dim = (int64_t)s->linear_value_heads * s->linear_head_dim;
    const int64_t conv_dim = 2 * key_dim + value_dim;
    matrix(b, "attn_qkv.weight", s->embedding, conv_dim);
    matrix(b, "attn_gate.weight", s->embedding, value_dim);
    in_layer(b, "ssm_conv1d.weight", s->conv_kernel, conv_dim, 0, inverse_root(s->conv_kernel));
    vector(b, "ssm_dt.bias", s->linear_value_heads, time_step_mean, time_step_std);
    vector(b, "ssm_a", s->linear_value_heads, decay_mean, decay_std);
    if (is_merged) {
        matrix(b, "ssm_ba.weight", s->embedding, 2 * (int64_t)s->linear_value_heads);
    } else {
        matrix(b, "ssm_beta.weight", s->embedding, s->linear_value_heads);
        matrix(b, "ssm_alpha.weight", s->embedding, s->linear_value_heads);
    }
    norm(b, "ssm_norm.weight", s->linear_head_dim);
    to_residual(b, "ssm_out.weight", value_dim);
}

static void layer_hybrid(struct build *b, bool is_merged)
{
    const struct synth_spec *s = b->spec;
    norm(b, "attn_norm.weight", s->embedding);
    norm(b, "post_attention_norm.weight", s->embedding);
    if ((b->il + 1) % s->attention_interval == 0) {
        attention(b, 2 * q_width(s), true); /* each head's queries, then their gates */
    } else {
        linear_attention(b, is_merged);
    }
    experts(b);
    shared_expert(b);
}

static void layer_qwen3next(struct build *b)
{
    layer_hybrid(b, true);
}

static void layer_qwen35moe(struct build *b)
{
    layer_hybrid(b, false);
}

static const struct {
    const char *name;
    void (*layer)(struct build *b);
} archs[] = {
    {"llama", layer_llama},         {"qwen3", layer_qwen3},     {"qwen3moe", layer_qwen3moe},
    {"glm4", layer_glm4},           {"gpt-oss", layer_gpt_oss}, {"qwen3next", layer_qwen3next},
    {"qwen35moe", layer_qwen35moe},
};
enum { N_ARCHS = sizeof archs / sizeof archs[0] };

static const char *key(const struct build *b, const char *name)
{
    static char text[96]; /* gguf_set_* copies it at once */
    snprintf(text, sizeof text, "%s.%s", b->spec->arch, name);
    return text;
}

/* A number that is 0 stands for something that the architecture does not have. */
static void set_u32(struct build *b, const char *name, uint32_t value)
{
    if (value > 0) {
        gguf_set_val_u32(b->model->meta, key(b, name), value);
    }
}

static void set_f32(struct build *b, const char *name, double value)
{
    gguf_set_val_f32(b->model->meta, key(b, name), (float)value);
}

static void general_meta(struct build *b)
{
    struct gguf_context *meta = b->model->meta;
    char name[96];
    snprintf(name, sizeof name, "%s, random weights", b->spec->title);
    gguf_set_val_str(meta, "general.architecture", b->spec->arch);
    gguf_set_val_str(meta, "general.type", "model");
    gguf_set_val_str(meta, "general.name", name);
    gguf_set_val_str(meta, "general.description",
                     "shapes and types of the model named, random weights written by `ats synth`; "
                     "says nothing sensible");
    gguf_set_val_u32(meta, "general.quantization_version", 2);
    gguf_set_val_u32(meta, "general.file_type", synth_mix_file_type(b->spec->mix));
    gguf_set_val_str(meta, "tokenizer.ggml.model", "none");
}

static void rope_meta(struct build *b)
{
    const struct synth_spec *s = b->spec;
    set_u32(b, "rope.dimension_count", s->rope_dim);
    set_f32(b, "rope.freq_base", s->rope_base);
    if (s->rope_sections[0] > 0) {
        gguf_set_arr_data(b->model->meta, key(b, "rope.dimension_sections"), GGUF_TYPE_UINT32,
                          s->rope_sections, 4);
    }
    if (s->yarn_factor > 0) {
        gguf_set_val_str(b->model->meta, key(b, "rope.scaling.type"), "yarn");
        set_f32(b, "rope.scaling.factor", s->yarn_factor);
        set_u32(b, "rope.scaling.original_context_length", s->yarn_context);
    }
}

static void shape_meta(struct build *b, uint32_t n_vocab)
{
    const struct synth_spec *s = b->spec;
    set_u32(b, "block_count", b->layers);
    set_u32(b, "vocab_size", n_vocab);
    set_u32(b, "context_length", s->context);
    set_u32(b, "embedding_length", s->embedding);
    set_u32(b, "feed_forward_length", s->feed_forward);
    set_u32(b, "attention.head_count", s->heads);
    set_u32(b, "attention.head_count_kv", s->kv_heads);
    set_u32(b, "attention.key_length", s->head_dim);
    set_u32(b, "attention.value_length", s->head_dim);
    set_u32(b, "attention.sliding_window", s->sliding_window);
    set_f32(b, "attention.layer_norm_rms_epsilon", s->rms_epsilon);
    set_u32(b, "expert_count", s->experts);
    set_u32(b, "expert_used_count", s->experts_used);
    set_u32(b, "expert_feed_forward_length", s->expert_feed_forward);
    set_u32(b, "expert_shared_feed_forward_length", s->shared_feed_forward);
    set_u32(b, "full_attention_interval", s->attention_interval);
    set_u32(b, "ssm.conv_kernel", s->conv_kernel);
    set_u32(b, "ssm.state_size", s->linear_head_dim);
    set_u32(b, "ssm.group_count", s->linear_key_heads);
    set_u32(b, "ssm.time_step_rank", s->linear_value_heads);
    set_u32(b, "ssm.inner_size", s->linear_value_heads * s->linear_head_dim);
}

static void outer_tensors(struct build *b, uint32_t n_vocab)
{
    const int64_t width = b->spec->embedding;
    add(b, "token_embd.weight", width, n_vocab, 0, 1.0f)->is_topics = true;
    add(b, "output_norm.weight", width, 0, 0, 0.0f)->mean = 1.0f;
    add(b, "output.weight", width, n_vocab, 0, logit_std * inverse_root(width));
    if (b->spec->rope_factors) { /* 1: rotary frequencies as they are; the speed is the same */
        add(b, "rope_freqs.weight", b->spec->rope_dim / 2, 0, 0, 0.0f)->mean = 1.0f;
    }
}

bool synth_describe_spec(struct synth_model *model, const struct synth_spec *spec, uint32_t layers,
                         uint32_t n_vocab, struct ats_error *err)
{
    struct build b = {.model = model, .spec = spec, .layers = layers};
    size_t arch = 0;
    while (arch < N_ARCHS && strcmp(archs[arch].name, spec->arch) != 0) {
        arch++;
    }
    if (arch == N_ARCHS) {
        return ats_fail(err, "unknown architecture '%s'", spec->arch);
    }
    model->in_blocks = true;
    model->topics.topics = spec->topics > 0 ? spec->topics : 1;
    model->topics.topic_share = spec->topics > 0 ? (float)spec->topic_share : 0.0f;
    general_meta(&b);
    shape_meta(&b, n_vocab);
    rope_meta(&b);
    outer_tensors(&b, n_vocab);
    if (!synth_topics_known(model->tensors[0].type)) {
        return ats_fail(err,
                        "%s: \"embedding\" %u is no multiple of the block of %s's type of token "
                        "embeddings",
                        spec->name, spec->embedding, synth_mix_name(spec->mix));
    }
    for (; b.il < layers; b.il++) {
        archs[arch].layer(&b);
    }
    return true;
}
