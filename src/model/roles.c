#include "model/roles.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

struct known {
    const char *name; /* without ".weight" or ".bias" */
    struct ats_model_part part;
};

#define NORM(order)                                                                                \
    {                                                                                              \
        ATS_ROLE_NORM, ATS_USE_SCALE, order                                                        \
    }

/* In the order in which llama.cpp's graphs use them. post_attention_norm is a norm before the
 * feed-forward block in some architectures and one behind attention in others: here a unit
 * between the two either way. */
static const struct known in_layers[] = {
    {"attn_norm", NORM(0)},
    {"attn_norm_2", NORM(1)},
    {"attn_q", {ATS_ROLE_QKV, ATS_USE_MATMUL, 10}},
    {"attn_k", {ATS_ROLE_QKV, ATS_USE_MATMUL, 10}},
    {"attn_v", {ATS_ROLE_QKV, ATS_USE_MATMUL, 10}},
    {"attn_qkv", {ATS_ROLE_QKV, ATS_USE_MATMUL, 10}},
    {"attn_gate", {ATS_ROLE_QKV, ATS_USE_MATMUL, 10}},
    {"attn_q_a", {ATS_ROLE_QKV, ATS_USE_MATMUL, 10}},
    {"attn_q_b", {ATS_ROLE_QKV, ATS_USE_MATMUL, 10}},
    {"attn_kv_a_mqa", {ATS_ROLE_QKV, ATS_USE_MATMUL, 10}},
    {"attn_kv_b", {ATS_ROLE_QKV, ATS_USE_MATMUL, 10}},
    {"attn_q_norm", {ATS_ROLE_QKV, ATS_USE_SCALE, 10}},
    {"attn_k_norm", {ATS_ROLE_QKV, ATS_USE_SCALE, 10}},
    {"ssm_in", {ATS_ROLE_QKV, ATS_USE_MATMUL, 10}},
    {"ssm_ba", {ATS_ROLE_QKV, ATS_USE_MATMUL, 10}},
    {"ssm_beta", {ATS_ROLE_QKV, ATS_USE_MATMUL, 10}},
    {"ssm_alpha", {ATS_ROLE_QKV, ATS_USE_MATMUL, 10}},
    {"ssm_conv1d", {ATS_ROLE_ATTENTION, ATS_USE_PART, ATS_ORDER_ATTENTION}},
    {"ssm_a", {ATS_ROLE_ATTENTION, ATS_USE_PART, ATS_ORDER_ATTENTION}},
    {"ssm_d", {ATS_ROLE_ATTENTION, ATS_USE_PART, ATS_ORDER_ATTENTION}},
    {"ssm_dt", {ATS_ROLE_ATTENTION, ATS_USE_PART, ATS_ORDER_ATTENTION}},
    {"ssm_norm", {ATS_ROLE_ATTENTION, ATS_USE_PART, ATS_ORDER_ATTENTION}},
    {"attn_sinks", {ATS_ROLE_ATTENTION, ATS_USE_PART, ATS_ORDER_ATTENTION}},
    {"attn_output", {ATS_ROLE_ATTN_OUT, ATS_USE_MATMUL, 30}},
    {"ssm_out", {ATS_ROLE_ATTN_OUT, ATS_USE_MATMUL, 30}},
    {"post_attention_norm", NORM(40)},
    {"ffn_norm", NORM(41)},
    {"ffn_gate_inp", {ATS_ROLE_ROUTER, ATS_USE_MATMUL, 50}},
    {"exp_probs_b", {ATS_ROLE_ROUTER, ATS_USE_BIAS, 50}},
    {"ffn_gate_exps", {ATS_ROLE_EXPERTS_UP, ATS_USE_EXPERTS, 60}},
    {"ffn_up_exps", {ATS_ROLE_EXPERTS_UP, ATS_USE_EXPERTS, 60}},
    {"ffn_gate_up_exps", {ATS_ROLE_EXPERTS_UP, ATS_USE_EXPERTS, 60}},
    {"ffn_down_exps", {ATS_ROLE_EXPERTS_DOWN, ATS_USE_EXPERTS, 70}},
    {"ffn_gate_shexp", {ATS_ROLE_SHARED_UP, ATS_USE_MATMUL, 90}},
    {"ffn_up_shexp", {ATS_ROLE_SHARED_UP, ATS_USE_MATMUL, 90}},
    {"ffn_down_shexp", {ATS_ROLE_SHARED_DOWN, ATS_USE_MATMUL, 91}},
    {"ffn_gate_inp_shexp", {ATS_ROLE_SHARED_DOWN, ATS_USE_MATMUL, 91}},
    {"ffn_gate", {ATS_ROLE_FFN_UP, ATS_USE_MATMUL, 100}},
    {"ffn_up", {ATS_ROLE_FFN_UP, ATS_USE_MATMUL, 100}},
    {"ffn_down", {ATS_ROLE_FFN_DOWN, ATS_USE_MATMUL, 101}},
    {"post_ffw_norm", NORM(110)},
    {"layer_output_norm", NORM(111)},
};

static const struct known outside[] = {
    {"token_embd", {ATS_ROLE_EMBEDDING, ATS_USE_LOOKUP, 0}},
    {"output_norm", {ATS_ROLE_OUTPUT_NORM, ATS_USE_SCALE, 1}},
    {"output", {ATS_ROLE_OUTPUT, ATS_USE_MATMUL, 2}},
    {"rope_freqs", {ATS_ROLE_OTHER, ATS_USE_NONE, 0}},
    {"rope_factors_long", {ATS_ROLE_OTHER, ATS_USE_NONE, 0}},
    {"rope_factors_short", {ATS_ROLE_OTHER, ATS_USE_NONE, 0}},
};

int32_t ats_model_layer_of(const char *name, const char **rest)
{
    *rest = name;
    if (strncmp(name, "blk.", 4) != 0 || !isdigit((unsigned char)name[4])) {
        return -1;
    }
    char *end;
    const long layer = strtol(name + 4, &end, 10);
    if (*end != '.' || layer < 0 || layer >= ATS_MODEL_MAX_LAYERS) {
        return -1;
    }
    *rest = end + 1;
    return (int32_t)layer;
}

static bool ends_with(const char *text, const char *end)
{
    const size_t n = strlen(text);
    const size_t m = strlen(end);
    return n >= m && strcmp(text + n - m, end) == 0;
}

/* Length of the name without its last suffix. */
static size_t stem(const char *name)
{
    static const char *const suffixes[] = {".weight", ".bias"};
    for (size_t i = 0; i < 2; i++) {
        if (ends_with(name, suffixes[i])) {
            return strlen(name) - strlen(suffixes[i]);
        }
    }
    return strlen(name);
}

static struct ats_model_part unknown(const char *rest, const uint64_t ne[4])
{
    struct ats_model_part part = {ATS_ROLE_OTHER, ATS_USE_MATMUL, ATS_ORDER_OTHER};
    if (ends_with(rest, "_exps.weight") && ne[2] > 1) {
        part.use = ATS_USE_EXPERTS;
    } else if (ne[1] <= 1) {
        part.use = ATS_USE_SCALE;
    }
    return part;
}

struct ats_model_part ats_model_part_of(const char *rest, bool in_layer, const uint64_t ne[4])
{
    const struct known *table = in_layer ? in_layers : outside;
    const size_t n =
        in_layer ? sizeof in_layers / sizeof in_layers[0] : sizeof outside / sizeof outside[0];
    const size_t length = stem(rest);
    for (size_t i = 0; i < n; i++) {
        if (strlen(table[i].name) != length || memcmp(table[i].name, rest, length) != 0) {
            continue;
        }
        struct ats_model_part part = table[i].part;
        const bool is_product = part.use == ATS_USE_MATMUL || part.use == ATS_USE_EXPERTS;
        if (is_product && ends_with(rest, ".bias")) {
            part.use = ATS_USE_BIAS;
        } else if (part.use == ATS_USE_EXPERTS && ne[2] <= 1) {
            part.use = ATS_USE_MATMUL; /* a single expert is an ordinary matrix */
        }
        return part;
    }
    return unknown(rest, ne);
}
