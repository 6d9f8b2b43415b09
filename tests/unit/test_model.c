/* Descriptions of models: units, sizes and state, against numbers worked out by hand from published
 * shapes; hostile shapes and files. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "model/gguf.h"
#include "seed.h"
#include "toy_models.h"

#include <ggml.h>
#include <gguf.h>
#include <math.h>
#include <time.h>

static const struct ats_model_unit *find(const struct ats_model *m, const char *name)
{
    for (size_t i = 0; i < m->n_units; i++) {
        if (strcmp(m->units[i].name, name) == 0) {
            return &m->units[i];
        }
    }
    fail_msg("no unit %s", name);
    return NULL;
}

/* The roles of a layer in order, as one text. */
static void roles_of(const struct ats_model *m, int32_t layer, char *text, size_t size)
{
    text[0] = '\0';
    for (size_t i = 0; i < m->n_units; i++) {
        if (m->units[i].layer == layer) {
            const size_t at = strlen(text);
            snprintf(text + at, size - at, "%s%s", at > 0 ? " " : "",
                     ats_model_role_name(m->units[i].role));
        }
    }
}

static void assert_layer(const struct ats_model *m, int32_t layer, const char *roles)
{
    char text[512];
    roles_of(m, layer, text, sizeof text);
    assert_string_equal(text, roles);
}

/* Ranges of operators and weights follow one another without gaps; every tensor that a unit reads
 * belongs to one unit; shapes are finite. */
static void assert_sound(const struct ats_model *m)
{
    size_t ops = 0;
    size_t weights = 0;
    for (size_t i = 0; i < m->n_units; i++) {
        const struct ats_model_unit *u = &m->units[i];
        assert_int_equal(u->first_op, ops);
        assert_int_equal(u->first_weight, weights);
        ops += u->n_ops;
        weights += u->n_weights;
        uint64_t bytes = 0;
        for (uint32_t w = 0; w < u->n_weights; w++) {
            bytes += m->tensors[m->weights[u->first_weight + w]].bytes;
        }
        assert_int_equal(u->weight_bytes, bytes);
        const struct ats_model_pass pass = {512, 1, 100000, 512};
        for (uint32_t o = 0; o < u->n_ops; o++) {
            const struct ats_op_shape s = ats_model_shape(m, u, &m->ops[u->first_op + o], &pass);
            assert_true(isfinite(s.m * s.n * s.k * s.batch + s.weight_bytes + s.io_bytes));
            assert_true(s.io_bytes >= 0 && s.weight_bytes >= 0);
        }
    }
    assert_int_equal(ops, m->n_ops);
    assert_int_equal(weights, m->n_weights);
}

static void test_qwen3moe(void **state)
{
    (void)state;
    struct ats_model *m = toy_qwen3moe(48);
    assert_non_null(m);
    assert_sound(m);
    assert_layer(m, 7, "norm qkv attention attn_out norm router experts_up experts_down combine");
    /* embedding, 48 layers of 9, output norm and head */
    assert_int_equal(m->n_units, 1 + 48 * 9 + 2);
    /* an expert's gate and up: 2 * 2048 * 768 weights in Q4_K */
    const struct ats_model_unit *up = find(m, "blk.7.experts_up");
    assert_int_equal(up->expert_bytes, 1769472);
    assert_int_equal(up->weight_bytes, UINT64_C(1769472) * 128);
    assert_int_equal(up->n_used, 8);
    /* 4 heads of 128, keys and values, two bytes each */
    const struct ats_model_unit *attention = find(m, "blk.7.attention");
    assert_int_equal(attention->kv_bytes_per_token, 2048);
    assert_int_equal(ats_model_state_bytes(attention, 4000, 512), 2048 * 4096);
    assert_int_equal(ats_model_total_state_bytes(m, 4096, 512), UINT64_C(48) * 2048 * 4096);
    /* F32: 48 * (2 * 2048 + 2 * 128 + 128 * 2048) + 2048 elements; Q4_K: the rest */
    const uint64_t matrices = UINT64_C(2) * 151936 * 2048 +
                              UINT64_C(48) * (2048 * (2 * 4096 + 2 * 512) + 3 * 128 * 2048 * 768);
    assert_int_equal(matrices, 30519328768); /* 30.5 billion, as published */
    assert_int_equal(m->file_bytes,
                     matrices / 256 * 144 + UINT64_C(4) * (48 * (4096 + 256 + 262144) + 2048));
    ats_model_free(m);
}

static void test_last_layer_computes_outputs_only(void **state)
{
    (void)state;
    struct ats_model *m = toy_qwen3moe(2);
    const struct ats_model_pass pass = {512, 1, 0, 512};
    assert_int_equal(ats_model_rows(find(m, "blk.0.experts_up"), &pass), 512);
    assert_int_equal(ats_model_rows(find(m, "blk.1.attn_out"), &pass), 512);
    assert_int_equal(ats_model_rows(find(m, "blk.1.experts_up"), &pass), 1);
    assert_int_equal(ats_model_rows(find(m, "output"), &pass), 1);
    ats_model_free(m);
}

static void test_shapes(void **state)
{
    (void)state;
    struct ats_model *m = toy_llama(2, 4096, 14336);
    assert_sound(m);
    assert_layer(m, 0, "norm qkv attention attn_out norm ffn_up ffn_down");
    /* 100 + 30 tokens are padded to 256; 32 heads of 128 over 8 KV heads */
    const struct ats_model_pass pass = {30, 1, 100, 512};
    const struct ats_model_unit *u = find(m, "blk.0.attention");
    struct ats_op_shape s = ats_model_shape(m, u, &m->ops[u->first_op], &pass);
    assert_int_equal(s.kind, ATS_COST_ATTENTION);
    assert_true(s.m == 256 && s.n == 30 && s.k == 128 && s.batch == 32);
    assert_true(s.weight_bytes == 256.0 * 2 * 8 * 128 * 2);
    /* gate: 4096 x 14336 in Q4_K; up is computed with it for one token, not for 30 */
    u = find(m, "blk.0.ffn_up");
    s = ats_model_shape(m, u, &m->ops[u->first_op], &pass);
    assert_true(s.m == 14336 && s.k == 4096 && s.n == 30 && s.weight_bytes == 33030144.0);
    s = ats_model_shape(m, u, &m->ops[u->first_op + 1], &pass);
    assert_false(s.fused);
    const struct ats_model_pass one = {1, 1, 100, 512};
    s = ats_model_shape(m, u, &m->ops[u->first_op + 1], &one);
    assert_true(s.fused);
    ats_model_free(m);
}

static void test_gpt_oss(void **state)
{
    (void)state;
    struct toy toy;
    struct ats_error err;
    toy_start(&toy, "gpt-oss", 24, 2880, 64, 8, 64);
    toy.params.n_experts = 32;
    toy.params.n_used = 4;
    toy.params.window = 128;
    toy_ends(&toy, ATS_FAMILY_Q8, 201088);
    for (uint32_t i = 0; i < 24; i++) {
        toy.params.windowed[i] = i % 2 == 0;
        toy_attention(&toy, ATS_FAMILY_Q8, i, 0);
        toy_add(&toy, ATS_FAMILY_F32, 4096, 1, 1, "blk.%u.attn_q.bias", i);
        toy_add(&toy, ATS_FAMILY_F32, 64, 1, 1, "blk.%u.attn_sinks.weight", i);
        toy_add(&toy, ATS_FAMILY_F32, 2880, 1, 1, "blk.%u.post_attention_norm.weight", i);
        toy_experts(&toy, ATS_FAMILY_MXFP4, i, 2880);
        toy_add(&toy, ATS_FAMILY_F32, 2880, 32, 1, "blk.%u.ffn_gate_exps.bias", i);
    }
    struct ats_model *m = toy_build(&toy, &err);
    assert_non_null(m);
    assert_sound(m);
    assert_layer(m, 3, "norm qkv attention attn_out norm router experts_up experts_down combine");
    /* a bias is part of its unit and no product of its own: q, k, v, and three small kernels */
    assert_int_equal(find(m, "blk.3.qkv")->n_ops, 6);
    assert_int_equal(find(m, "blk.3.experts_up")->n_ops, 3);
    /* a window of 128 and a ubatch of 512 make 640, padded to 768; the other layers keep all */
    assert_int_equal(ats_model_state_bytes(find(m, "blk.2.attention"), 4096, 512), 768 * 2048);
    assert_int_equal(ats_model_state_bytes(find(m, "blk.3.attention"), 4096, 512), 4096 * 2048);
    /* 3 * 2880 * 2880 weights of an expert at 17 / 32 bytes */
    assert_int_equal(find(m, "blk.3.experts_up")->expert_bytes +
                         find(m, "blk.3.experts_down")->expert_bytes,
                     13219200);
    const struct ats_model_pass pass = {512, 1, 0, 512};
    assert_int_equal(ats_model_rows(find(m, "blk.23.experts_up"), &pass), 512);
    ats_model_free(m);
}

static void test_linear_attention(void **state)
{
    (void)state;
    struct toy toy;
    struct ats_error err;
    toy_start(&toy, "qwen3next", 4, 2048, 16, 2, 256);
    toy.params.n_experts = 512;
    toy.params.n_used = 10;
    toy.params.conv_kernel = 4;
    toy.params.state_size = 128;
    toy.params.inner_size = 4096;
    toy.params.n_groups = 16;
    toy_ends(&toy, ATS_FAMILY_Q4, 151936);
    for (uint32_t i = 0; i < 4; i++) {
        if (i == 3) {
            toy_attention(&toy, ATS_FAMILY_Q4, i, 1);
        } else {
            toy_add(&toy, ATS_FAMILY_F32, 2048, 1, 1, "blk.%u.attn_norm.weight", i);
            toy_add(&toy, ATS_FAMILY_Q4, 2048, 8192, 1, "blk.%u.attn_qkv.weight", i);
            toy_add(&toy, ATS_FAMILY_Q4, 2048, 4096, 1, "blk.%u.attn_gate.weight", i);
            toy_add(&toy, ATS_FAMILY_F32, 4, 8192, 1, "blk.%u.ssm_conv1d.weight", i);
            toy_add(&toy, ATS_FAMILY_F32, 32, 1, 1, "blk.%u.ssm_a", i);
            toy_add(&toy, ATS_FAMILY_F32, 32, 1, 1, "blk.%u.ssm_dt.bias", i);
            toy_add(&toy, ATS_FAMILY_F32, 2048, 64, 1, "blk.%u.ssm_ba.weight", i);
            toy_add(&toy, ATS_FAMILY_F32, 128, 1, 1, "blk.%u.ssm_norm.weight", i);
            toy_add(&toy, ATS_FAMILY_Q4, 4096, 2048, 1, "blk.%u.ssm_out.weight", i);
        }
        toy_add(&toy, ATS_FAMILY_F32, 2048, 1, 1, "blk.%u.post_attention_norm.weight", i);
        toy_experts(&toy, ATS_FAMILY_Q4, i, 512);
        toy_add(&toy, ATS_FAMILY_F32, 2048, 1, 1, "blk.%u.ffn_gate_inp_shexp.weight", i);
        toy_add(&toy, ATS_FAMILY_Q4, 2048, 512, 1, "blk.%u.ffn_gate_shexp.weight", i);
        toy_add(&toy, ATS_FAMILY_Q4, 2048, 512, 1, "blk.%u.ffn_up_shexp.weight", i);
        toy_add(&toy, ATS_FAMILY_Q4, 512, 2048, 1, "blk.%u.ffn_down_shexp.weight", i);
    }
    struct ats_model *m = toy_build(&toy, &err);
    assert_non_null(m);
    assert_sound(m);
    assert_layer(m, 0,
                 "norm qkv attention attn_out norm router experts_up experts_down combine "
                 "shared_up shared_down");
    /* 3 tokens of 2 * 16 * 128 + 4096 channels, and 32 heads of 128 x 128, in F32 */
    const struct ats_model_unit *linear = find(m, "blk.0.attention");
    assert_int_equal(linear->recurrent_bytes, 98304 + 2097152);
    assert_int_equal(linear->kv_bytes_per_token, 0);
    assert_int_equal(ats_model_state_bytes(linear, 4096, 512), linear->recurrent_bytes);
    assert_int_equal(find(m, "blk.3.attention")->kv_bytes_per_token, 2 * 2 * 256 * 2);
    assert_int_equal(find(m, "blk.3.attention")->recurrent_bytes, 0);
    ats_model_free(m);
}

static void test_glm4_and_tied_output(void **state)
{
    (void)state;
    struct toy toy;
    struct ats_error err;
    toy_start(&toy, "glm4", 1, 4096, 32, 2, 128);
    toy_add(&toy, ATS_FAMILY_F16, 4096, 151552, 1, "token_embd.weight");
    toy_add(&toy, ATS_FAMILY_F32, 4096, 1, 1, "output_norm.weight");
    toy_attention(&toy, ATS_FAMILY_F16, 0, 0);
    toy_add(&toy, ATS_FAMILY_F16, 4096, 27392, 1, "blk.0.ffn_up.weight");
    toy_add(&toy, ATS_FAMILY_F16, 13696, 4096, 1, "blk.0.ffn_down.weight");
    /* of a layer that predicts further tokens: in the file, not in the graph */
    toy_add(&toy, ATS_FAMILY_F16, 4096, 4096, 1, "blk.1.nextn.eh_proj.weight");
    struct ats_model *m = toy_build(&toy, &err);
    assert_non_null(m);
    assert_sound(m);
    assert_layer(m, 0, "norm qkv attention attn_out ffn_up ffn_down");
    assert_int_equal(find(m, "blk.0.ffn_up")->out_bytes_per_token, 4 * 13696);
    /* the head is the embedding once more, outside of the file's size */
    assert_int_equal(find(m, "output")->weight_bytes, UINT64_C(2) * 4096 * 151552);
    assert_int_equal(m->file_bytes,
                     UINT64_C(2) * (UINT64_C(4096) * 151552 + UINT64_C(4096) * (4096 + 512 + 4096) +
                                    UINT64_C(3) * 4096 * 13696 + UINT64_C(4096) * 4096) +
                         UINT64_C(2) * 4 * 4096);
    ats_model_free(m);
}

static void test_unknown_architecture(void **state)
{
    (void)state;
    struct toy toy;
    struct ats_error err;
    toy_start(&toy, "new-idea", 2, 64, 0, 0, 0);
    toy.params.n_experts = 8;
    toy.params.n_used = 2;
    toy_add(&toy, ATS_FAMILY_F32, 64, 100, 1, "token_embd.weight");
    for (uint32_t i = 0; i < 2; i++) {
        toy_add(&toy, ATS_FAMILY_F32, 64, 64, 1, "blk.%u.mixer_b.weight", i);
        toy_add(&toy, ATS_FAMILY_F32, 64, 64, 1, "blk.%u.mixer_a.weight", i);
        toy_add(&toy, ATS_FAMILY_F32, 64, 32, 8, "blk.%u.strange_exps.weight", i);
    }
    struct ats_model *m = toy_build(&toy, &err);
    assert_non_null(m);
    assert_sound(m);
    /* file order, not alphabetical */
    const struct ats_model_unit *first = find(m, "blk.1.mixer_b.weight");
    assert_string_equal(first[1].name, "blk.1.mixer_a.weight");
    assert_int_equal(m->ops[first->first_op].kind, ATS_COST_MATMUL);
    const struct ats_model_unit *experts = find(m, "blk.1.strange_exps.weight");
    assert_int_equal(m->ops[experts->first_op].kind, ATS_COST_EXPERTS);
    assert_int_equal(experts->expert_bytes, 64 * 32 * 4);
    ats_model_free(m);
}

/* ---- hostile ---- */

static void assert_refused(struct toy *toy, const char *text)
{
    struct ats_error err = {""};
    assert_null(toy_build(toy, &err));
    if (strstr(err.text, text) == NULL) {
        fail_msg("'%s' does not say '%s'", err.text, text);
    }
}

static void test_absurd_shapes_are_refused(void **state)
{
    (void)state;
    struct toy toy;
    toy_start(&toy, "llama", 1, 64, 1, 1, 64);
    toy_add(&toy, ATS_FAMILY_F32, UINT64_C(1) << 40, UINT64_C(1) << 40, 1, "blk.0.attn_q.weight");
    assert_refused(&toy, "blk.0.attn_q.weight");
    toy_start(&toy, "llama", 1, 64, 1, 1, 64);
    toy_add(&toy, ATS_FAMILY_F32, 64, 64, 1, "blk.0.attn_k.weight");
    toy.tensors[0].bytes = UINT64_MAX;
    assert_refused(&toy, "blk.0.attn_k.weight");
    toy_start(&toy, "llama", 0, 64, 1, 1, 64);
    assert_refused(&toy, "no tensors");
    toy_start(&toy, "llama", 1, 64, 1, 1, 64);
    toy_add(&toy, ATS_FAMILY_F32, 64, 64, 1, "blk.0.attn_q.weight");
    toy.params.n_embd = UINT32_MAX;
    assert_refused(&toy, "embedding width");
    toy_start(&toy, "llama", 1, 64, 1, 1, 64);
    toy_add(&toy, ATS_FAMILY_F32, 64, 64, 1, "blk.0.attn_q.weight");
    toy.params.n_used = 9;
    toy.params.n_experts = 8;
    assert_refused(&toy, "9 experts used of 8");
}

static const char *const words[] = {
    "attn_norm.weight",
    "attn_q.weight",
    "attn_k.weight",
    "attn_v.weight",
    "attn_qkv.weight",
    "attn_output.weight",
    "attn_q.bias",
    "ffn_norm.weight",
    "ffn_gate_inp.weight",
    "ffn_gate_exps.weight",
    "ffn_up_exps.bias",
    "ffn_down_exps.weight",
    "ffn_up_shexp.weight",
    "ffn_down.weight",
    "ssm_conv1d.weight",
    "ssm_a",
    "ssm_out.weight",
    "ffn_down_shexp.weight",
    "odd",
    "odd_exps.weight",
    "post_ffw_norm.weight",
    "",
    ".",
    "attn_sinks.weight",
};

static uint64_t random_size(struct ats_rng *rng)
{
    static const uint64_t sizes[] = {0,    1,     2,          3,         64,
                                     4096, 65536, 1u << 20,   1u << 31,  UINT64_C(1) << 40,
                                     100,  7,     UINT64_MAX, INT64_MAX, 32};
    return test_chance(rng, 98) ? 1 + ats_rng_below(rng, 512)
                                : sizes[ats_rng_below(rng, sizeof sizes / sizeof sizes[0])];
}

static uint32_t random_count(struct ats_rng *rng, uint32_t usual)
{
    return test_chance(rng, 98) ? (uint32_t)ats_rng_below(rng, usual + 1)
                                : (uint32_t)ats_rng_next(rng);
}

static void make_random(struct toy *toy, struct ats_rng *rng)
{
    toy_start(toy, "llama", (uint32_t)ats_rng_below(rng, 6), random_count(rng, 4096), 0, 0,
              random_count(rng, 256));
    for (uint32_t i = 0; i < toy->params.n_layers; i++) {
        toy->params.n_heads[i] = random_count(rng, 64);
        toy->params.n_kv_heads[i] = random_count(rng, 64);
        toy->params.windowed[i] = test_chance(rng, 30);
    }
    toy->params.window = random_count(rng, 4096);
    toy->params.n_experts = random_count(rng, 256);
    toy->params.n_used = random_count(rng, toy->params.n_experts);
    toy->params.conv_kernel = random_count(rng, 4);
    toy->params.state_size = random_count(rng, 256);
    toy->params.inner_size = random_count(rng, 4096);
    const size_t n = test_between(rng, 0, 40);
    for (size_t i = 0; i < n; i++) {
        const char *word = words[ats_rng_below(rng, sizeof words / sizeof words[0])];
        toy_add(toy, ATS_FAMILY_F32, 1, 1, 1, "blk.%u.%s", (unsigned)ats_rng_below(rng, 7), word);
        struct ats_model_tensor *t = &toy->tensors[toy->n - 1];
        for (int d = 0; d < 3; d++) {
            t->ne[d] = random_size(rng);
        }
        t->bytes = random_size(rng);
    }
}

static void test_random_descriptions(void **state)
{
    (void)state;
    struct ats_rng rng = test_rng(1);
    unsigned accepted = 0;
    for (int round = 0; round < 3000; round++) {
        struct toy toy;
        struct ats_error err = {""};
        make_random(&toy, &rng);
        struct ats_model *m = toy_build(&toy, &err);
        if (m != NULL) {
            assert_sound(m);
            accepted++;
            ats_model_free(m);
        } else {
            assert_true(err.text[0] != '\0');
        }
    }
    assert_true(accepted > 50); /* else the rounds above have tested refusals alone */
}

/* ---- files ---- */

static char path[64];

static int make_path(void **state)
{
    (void)state;
    strcpy(path, "/tmp/ats-test-model-XXXXXX");
    const int fd = mkstemp(path);
    return fd < 0 ? -1 : close(fd);
}

static int remove_path(void **state)
{
    (void)state;
    return unlink(path);
}

static void add_tensor(struct gguf_context *g, struct ggml_context *ctx, const char *name,
                       enum ggml_type type, int64_t ne0, int64_t ne1, int64_t ne2)
{
    struct ggml_tensor *t = ggml_new_tensor_3d(ctx, type, ne0, ne1, ne2);
    ggml_set_name(t, name);
    gguf_add_tensor(g, t);
}

/* Metadata of a small MoE model, with a vocabulary of n tokens. */
static void write_gguf(size_t n_vocab)
{
    struct gguf_context *g = gguf_init_empty();
    struct ggml_context *ctx =
        ggml_init((struct ggml_init_params){.mem_size = 1 << 20, .no_alloc = true});
    gguf_set_val_str(g, "general.architecture", "qwen3moe");
    gguf_set_val_str(g, "general.name", "small");
    gguf_set_val_u32(g, "qwen3moe.block_count", 2);
    gguf_set_val_u32(g, "qwen3moe.embedding_length", 256);
    gguf_set_val_u32(g, "qwen3moe.attention.head_count", 4);
    const uint32_t kv_heads[2] = {2, 1};
    gguf_set_arr_data(g, "qwen3moe.attention.head_count_kv", GGUF_TYPE_UINT32, kv_heads, 2);
    gguf_set_val_u32(g, "qwen3moe.attention.key_length", 32);
    gguf_set_val_u32(g, "qwen3moe.attention.value_length", 32);
    gguf_set_val_u32(g, "qwen3moe.expert_count", 8);
    gguf_set_val_u32(g, "qwen3moe.expert_used_count", 2);
    const char **tokens = calloc(n_vocab, sizeof(tokens[0]));
    for (size_t i = 0; i < n_vocab; i++) {
        tokens[i] = "token";
    }
    gguf_set_arr_str(g, "tokenizer.ggml.tokens", tokens, n_vocab);
    free(tokens);
    add_tensor(g, ctx, "token_embd.weight", GGML_TYPE_F16, 256, 100, 1);
    add_tensor(g, ctx, "blk.0.attn_q.weight", GGML_TYPE_Q4_K, 256, 128, 1);
    add_tensor(g, ctx, "blk.1.attn_q.weight", GGML_TYPE_Q4_K, 256, 128, 1);
    add_tensor(g, ctx, "blk.1.ffn_gate_exps.weight", GGML_TYPE_MXFP4, 256, 64, 8);
    assert_true(gguf_write_to_file(g, path, true));
    ggml_free(ctx);
    gguf_free(g);
}

static void test_reads_metadata(void **state)
{
    (void)state;
    struct ats_error err = {""};
    write_gguf(250000);
    struct timespec begin;
    struct timespec end;
    clock_gettime(CLOCK_MONOTONIC, &begin);
    struct ats_model *m = ats_model_read(path, &err);
    clock_gettime(CLOCK_MONOTONIC, &end);
    assert_non_null(m);
    const double ms =
        (double)(end.tv_sec - begin.tv_sec) * 1e3 + (double)(end.tv_nsec - begin.tv_nsec) / 1e6;
    printf("metadata with 250000 tokens read in %.1f ms\n", ms);
    assert_true(ms < 5000); /* wide: the machine may be busy */
    assert_sound(m);
    assert_string_equal(m->params.arch, "qwen3moe");
    assert_int_equal(m->params.n_layers, 2);
    assert_int_equal(find(m, "blk.0.attention")->kv_bytes_per_token, 2 * 2 * 32 * 2);
    assert_int_equal(find(m, "blk.1.attention")->kv_bytes_per_token, 1 * 2 * 32 * 2);
    assert_int_equal(m->file_bytes,
                     256 * 100 * 2 + 2 * 256 * 128 / 256 * 144 + 256 * 64 * 8 / 32 * 17);
    assert_int_equal(find(m, "blk.1.experts_up")->n_used, 2);
    ats_model_free(m);
}

/* One part of two, as llama.cpp splits files: the first has the keys of the model. */
static void write_part(const char *name, unsigned part)
{
    struct gguf_context *g = gguf_init_empty();
    struct ggml_context *ctx =
        ggml_init((struct ggml_init_params){.mem_size = 1 << 20, .no_alloc = true});
    gguf_set_val_u16(g, "split.no", (uint16_t)part);
    gguf_set_val_u16(g, "split.count", 2);
    if (part == 0) {
        gguf_set_val_str(g, "general.architecture", "llama");
        gguf_set_val_u32(g, "llama.block_count", 1);
        gguf_set_val_u32(g, "llama.embedding_length", 64);
        gguf_set_val_u32(g, "llama.attention.head_count", 2);
        add_tensor(g, ctx, "token_embd.weight", GGML_TYPE_F32, 64, 10, 1);
    } else {
        add_tensor(g, ctx, "blk.0.ffn_up.weight", GGML_TYPE_F32, 64, 32, 1);
    }
    assert_true(gguf_write_to_file(g, name, true));
    ggml_free(ctx);
    gguf_free(g);
}

static void test_files_in_parts(void **state)
{
    (void)state;
    char names[2][96];
    struct ats_error err = {""};
    for (unsigned i = 0; i < 2; i++) {
        snprintf(names[i], sizeof names[i], "%s-0000%u-of-00002.gguf", path, i + 1);
        write_part(names[i], i);
    }
    struct ats_model *m = ats_model_read(names[0], &err);
    assert_non_null(m);
    assert_sound(m);
    assert_int_equal(m->file_bytes, 4 * (64 * 10 + 64 * 32));
    assert_int_equal(find(m, "blk.0.ffn_up")->weight_bytes, 4 * 64 * 32);
    ats_model_free(m);
    assert_null(ats_model_read(names[1], &err)); /* has no keys of the model */
    assert_non_null(strstr(err.text, names[1]));
    unlink(names[1]);
    assert_null(ats_model_read(names[0], &err));
    assert_non_null(strstr(err.text, names[1]));
    char renamed[96];
    snprintf(renamed, sizeof renamed, "%s-renamed.gguf", path);
    assert_int_equal(rename(names[0], renamed), 0);
    assert_null(ats_model_read(renamed, &err));
    assert_non_null(strstr(err.text, "00001"));
    unlink(renamed);
}

/* Without the key, with none, and with layers that all predict further tokens. */
static void test_no_layers(void **state)
{
    (void)state;
    static const int counts[][2] = {{-1, 0}, {0, 0}, {2, 2}};
    for (size_t i = 0; i < sizeof counts / sizeof counts[0]; i++) {
        struct gguf_context *g = gguf_init_empty();
        gguf_set_val_str(g, "general.architecture", "llama");
        gguf_set_val_u32(g, "llama.embedding_length", 64);
        gguf_set_val_u32(g, "llama.nextn_predict_layers", (uint32_t)counts[i][1]);
        if (counts[i][0] >= 0) {
            gguf_set_val_u32(g, "llama.block_count", (uint32_t)counts[i][0]);
        }
        assert_true(gguf_write_to_file(g, path, true));
        gguf_free(g);
        struct ats_error err = {""};
        assert_null(ats_model_read(path, &err));
        assert_non_null(strstr(err.text, path));
        assert_non_null(strstr(err.text, "llama.block_count"));
    }
}

static void test_missing_and_damaged_files(void **state)
{
    (void)state;
    struct ats_error err = {""};
    assert_null(ats_model_read("/nonexistent/model.gguf", &err));
    assert_non_null(strstr(err.text, "/nonexistent/model.gguf"));
    FILE *out = fopen(path, "w");
    assert_non_null(out);
    fputs("no model", out);
    fclose(out);
    assert_null(ats_model_read(path, &err));
    assert_non_null(strstr(err.text, path));
}

static void test_mutated_files(void **state)
{
    (void)state;
    static uint8_t bytes[1 << 16];
    struct ats_rng rng = test_rng(2);
    write_gguf(4);
    FILE *in = fopen(path, "rb");
    assert_non_null(in);
    const size_t n = fread(bytes, 1, sizeof bytes, in);
    fclose(in);
    assert_true(n > 500);
    for (int round = 0; round < 2000; round++) {
        static uint8_t copy[sizeof bytes];
        memcpy(copy, bytes, n);
        const size_t times = test_between(&rng, 1, 4);
        for (size_t i = 0; i < times; i++) {
            copy[ats_rng_below(&rng, n)] ^= (uint8_t)(1 + ats_rng_below(&rng, 255));
        }
        const size_t kept = test_chance(&rng, 20) ? (size_t)ats_rng_below(&rng, n) : n;
        FILE *out = fopen(path, "wb");
        assert_non_null(out);
        assert_int_equal(fwrite(copy, 1, kept, out), kept);
        fclose(out);
        struct ats_error err = {""};
        struct ats_model *m = ats_model_read(path, &err);
        if (m != NULL) {
            assert_sound(m);
            ats_model_free(m);
        } else {
            assert_non_null(strstr(err.text, path));
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_qwen3moe),
        cmocka_unit_test(test_last_layer_computes_outputs_only),
        cmocka_unit_test(test_shapes),
        cmocka_unit_test(test_gpt_oss),
        cmocka_unit_test(test_linear_attention),
        cmocka_unit_test(test_glm4_and_tied_output),
        cmocka_unit_test(test_unknown_architecture),
        cmocka_unit_test(test_absurd_shapes_are_refused),
        cmocka_unit_test(test_random_descriptions),
        cmocka_unit_test_setup_teardown(test_reads_metadata, make_path, remove_path),
        cmocka_unit_test_setup_teardown(test_files_in_parts, make_path, remove_path),
        cmocka_unit_test_setup_teardown(test_no_layers, make_path, remove_path),
        cmocka_unit_test_setup_teardown(test_missing_and_damaged_files, make_path, remove_path),
        cmocka_unit_test_setup_teardown(test_mutated_files, make_path, remove_path),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
