/* Models as lists of tensors, written out by hand: names as in llama.cpp's files, shapes as in
 * published configurations. */
#ifndef ATS_TESTS_TOY_MODELS_H
#define ATS_TESTS_TOY_MODELS_H

#include "model/model.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct toy {
    struct ats_model_params params;
    struct ats_model_tensor *tensors;
    size_t n;
};

/* Bytes of a quantised matrix: Q4_K has 144 bytes for 256 weights, MXFP4 17 for 32. */
static inline uint64_t toy_bytes(enum ats_type_family family, uint64_t elements)
{
    switch (family) {
    case ATS_FAMILY_F32:
        return elements * 4;
    case ATS_FAMILY_F16:
        return elements * 2;
    case ATS_FAMILY_Q8:
        return elements / 32 * 34;
    case ATS_FAMILY_MXFP4:
        return elements / 32 * 17;
    default:
        return elements / 256 * 144;
    }
}

static inline void toy_add(struct toy *toy, enum ats_type_family family, uint64_t ne0, uint64_t ne1,
                           uint64_t ne2, const char *format, ...)
    __attribute__((format(printf, 6, 7)));

static inline void toy_add(struct toy *toy, enum ats_type_family family, uint64_t ne0, uint64_t ne1,
                           uint64_t ne2, const char *format, ...)
{
    char name[96];
    va_list args;
    va_start(args, format);
    vsnprintf(name, sizeof name, format, args);
    va_end(args);
    toy->tensors = realloc(toy->tensors, (toy->n + 1) * sizeof(toy->tensors[0]));
    toy->tensors[toy->n++] = (struct ats_model_tensor){.name = strdup(name),
                                                       .type_name = ats_family_name(family),
                                                       .family = family,
                                                       .ne = {ne0, ne1, ne2, 1},
                                                       .bytes = toy_bytes(family, ne0 * ne1 * ne2)};
}

static inline void toy_start(struct toy *toy, const char *arch, uint32_t n_layers, uint32_t n_embd,
                             uint32_t heads, uint32_t kv_heads, uint32_t head_dim)
{
    *toy = (struct toy){.params = {.n_layers = n_layers,
                                   .n_embd = n_embd,
                                   .head_dim_k = head_dim,
                                   .head_dim_v = head_dim}};
    snprintf(toy->params.arch, sizeof toy->params.arch, "%s", arch);
    for (uint32_t i = 0; i < n_layers; i++) {
        toy->params.n_heads[i] = heads;
        toy->params.n_kv_heads[i] = kv_heads;
    }
}

static inline void toy_ends(struct toy *toy, enum ats_type_family family, uint64_t vocabulary)
{
    toy_add(toy, family, toy->params.n_embd, vocabulary, 1, "token_embd.weight");
    toy_add(toy, ATS_FAMILY_F32, toy->params.n_embd, 1, 1, "output_norm.weight");
    toy_add(toy, family, toy->params.n_embd, vocabulary, 1, "output.weight");
}

static inline void toy_attention(struct toy *toy, enum ats_type_family family, uint32_t layer,
                                 uint32_t gated)
{
    const uint64_t e = toy->params.n_embd;
    const uint64_t q = (uint64_t)toy->params.n_heads[layer] * toy->params.head_dim_k;
    const uint64_t kv = (uint64_t)toy->params.n_kv_heads[layer] * toy->params.head_dim_k;
    toy_add(toy, ATS_FAMILY_F32, e, 1, 1, "blk.%u.attn_norm.weight", layer);
    toy_add(toy, family, e, q * (1 + gated), 1, "blk.%u.attn_q.weight", layer);
    toy_add(toy, family, e, kv, 1, "blk.%u.attn_k.weight", layer);
    toy_add(toy, family, e, kv, 1, "blk.%u.attn_v.weight", layer);
    toy_add(toy, family, q, e, 1, "blk.%u.attn_output.weight", layer);
}

static inline void toy_experts(struct toy *toy, enum ats_type_family family, uint32_t layer,
                               uint64_t width)
{
    const uint64_t e = toy->params.n_embd;
    const uint64_t n = toy->params.n_experts;
    toy_add(toy, ATS_FAMILY_F32, e, n, 1, "blk.%u.ffn_gate_inp.weight", layer);
    toy_add(toy, family, e, width, n, "blk.%u.ffn_gate_exps.weight", layer);
    toy_add(toy, family, e, width, n, "blk.%u.ffn_up_exps.weight", layer);
    toy_add(toy, family, width, e, n, "blk.%u.ffn_down_exps.weight", layer);
}

static inline struct ats_model *toy_build(struct toy *toy, struct ats_error *err)
{
    return ats_model_build(&toy->params, toy->tensors, toy->n, err);
}

/* Qwen3-30B-A3B in Q4_K throughout. */
static inline struct ats_model *toy_qwen3moe(uint32_t n_layers)
{
    struct toy toy;
    toy_start(&toy, "qwen3moe", n_layers, 2048, 32, 4, 128);
    toy.params.n_experts = 128;
    toy.params.n_used = 8;
    toy_ends(&toy, ATS_FAMILY_Q4, 151936);
    for (uint32_t i = 0; i < n_layers; i++) {
        toy_attention(&toy, ATS_FAMILY_Q4, i, 0);
        toy_add(&toy, ATS_FAMILY_F32, 128, 1, 1, "blk.%u.attn_q_norm.weight", i);
        toy_add(&toy, ATS_FAMILY_F32, 128, 1, 1, "blk.%u.attn_k_norm.weight", i);
        toy_add(&toy, ATS_FAMILY_F32, 2048, 1, 1, "blk.%u.ffn_norm.weight", i);
        toy_experts(&toy, ATS_FAMILY_Q4, i, 768);
    }
    struct ats_error err;
    return toy_build(&toy, &err);
}

/* A dense model of the llama architecture in Q4_K. */
static inline struct ats_model *toy_llama(uint32_t n_layers, uint64_t embd, uint64_t width)
{
    struct toy toy;
    toy_start(&toy, "llama", n_layers, (uint32_t)embd, (uint32_t)(embd / 128), 8, 128);
    toy_ends(&toy, ATS_FAMILY_Q4, 128256);
    for (uint32_t i = 0; i < n_layers; i++) {
        toy_attention(&toy, ATS_FAMILY_Q4, i, 0);
        toy_add(&toy, ATS_FAMILY_F32, embd, 1, 1, "blk.%u.ffn_norm.weight", i);
        toy_add(&toy, ATS_FAMILY_Q4, embd, width, 1, "blk.%u.ffn_gate.weight", i);
        toy_add(&toy, ATS_FAMILY_Q4, embd, width, 1, "blk.%u.ffn_up.weight", i);
        toy_add(&toy, ATS_FAMILY_Q4, width, embd, 1, "blk.%u.ffn_down.weight", i);
    }
    struct ats_error err;
    return toy_build(&toy, &err);
}

#endif
