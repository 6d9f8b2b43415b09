#include "cli/synth_mix.h"

#include <string.h>

static const struct {
    const char *name;
    uint32_t file_type; /* enum llama_ftype */
} mixes[] = {
    [SYNTH_MIX_F16] = {"F16", 1},
    [SYNTH_MIX_Q4_K_M] = {"Q4_K_M", 15},
    [SYNTH_MIX_MXFP4] = {"MXFP4", 38},
};

uint32_t synth_mix_file_type(enum synth_mix mix)
{
    return mixes[mix].file_type;
}

const char *synth_mix_name(enum synth_mix mix)
{
    return mixes[mix].name;
}

static bool has(const char *name, const char *part)
{
    return strstr(name, part) != NULL;
}

/* Vectors, biases, routers and convolutions stay as they are. */
static bool stays_f32(const char *name, int n_dims)
{
    const size_t length = strlen(name);
    const char *end = length >= 7 ? name + length - 7 : name;
    return n_dims < 2 || strcmp(end, ".weight") != 0 || has(name, "ffn_gate_inp.weight") ||
           has(name, "ssm_conv1d");
}

/* The first and the last eighth of the layers, and every third between. */
static bool has_more_bits(uint32_t layer, uint32_t layers)
{
    const uint32_t eighth = layers / 8;
    return layer < eighth || layer >= 7 * layers / 8 || (layer - eighth) % 3 == 2;
}

/* Rows that are no multiple of the 256 elements of a K block get a type with blocks of 32. */
static enum ggml_type fitting(enum ggml_type type, int64_t row)
{
    if (row % ggml_blck_size(type) == 0) {
        return type;
    }
    if (row % ggml_blck_size(GGML_TYPE_Q8_0) != 0) {
        return GGML_TYPE_F16;
    }
    return type == GGML_TYPE_Q4_K   ? GGML_TYPE_Q5_0
           : type == GGML_TYPE_Q5_K ? GGML_TYPE_Q5_1
                                    : GGML_TYPE_Q8_0;
}

static enum ggml_type q4_k_m(const struct synth_spec *spec, const char *name, uint32_t layer,
                             uint32_t layers)
{
    const uint32_t layers_of_llama_70b = 80; /* values of 8 heads each: worth more bits */
    if (strcmp(name, "output.weight") == 0) {
        return GGML_TYPE_Q6_K;
    }
    if (has(name, "attn_v.weight") || has(name, "attn_qkv.weight")) {
        if (has_more_bits(layer, layers)) {
            return GGML_TYPE_Q6_K;
        }
        const bool is_70b = strcmp(spec->arch, "llama") == 0 &&
                            spec->layers == layers_of_llama_70b && spec->heads != spec->kv_heads;
        return is_70b ? GGML_TYPE_Q5_K : GGML_TYPE_Q4_K;
    }
    if (has(name, "ffn_down") && has_more_bits(layer, layers)) {
        return GGML_TYPE_Q6_K;
    }
    return GGML_TYPE_Q4_K;
}

enum ggml_type synth_mix_type(const struct synth_spec *spec, const char *name, int n_dims,
                              int64_t row, uint32_t layer, uint32_t layers)
{
    if (stays_f32(name, n_dims)) {
        return GGML_TYPE_F32;
    }
    switch (spec->mix) {
    case SYNTH_MIX_F16:
        return GGML_TYPE_F16;
    case SYNTH_MIX_MXFP4:
        return fitting(n_dims == 3 ? GGML_TYPE_MXFP4 : GGML_TYPE_Q8_0, row);
    case SYNTH_MIX_Q4_K_M:
        break;
    }
    return fitting(q4_k_m(spec, name, layer, layers), row);
}
