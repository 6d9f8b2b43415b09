/* A model's shape as data: models/NAME.json, or a user's file of the same form.
 *
 * A description holds what the published configuration of a model says: widths, heads, experts,
 * the kind of quantisation. From it `ats synth --model` writes GGUF files with all layers or with
 * fewer. Strings and numbers only; no ggml. The command has one thread. */
#ifndef ATS_CLI_SYNTH_SPEC_H
#define ATS_CLI_SYNTH_SPEC_H

#include "base/error.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* How tensors are quantised; the rules are in synth_mix.h. */
enum synth_mix { SYNTH_MIX_F16, SYNTH_MIX_Q4_K_M, SYNTH_MIX_MXFP4 };

/* 0 (or false) where an architecture has no such thing. Widths and counts are in elements. */
struct synth_spec {
    char name[64]; /* of the file, without folder and ".json" */
    char title[64];
    char arch[32]; /* llama.cpp's name: "qwen3moe" */
    enum synth_mix mix;
    uint32_t layers;           /* of the full model */
    uint32_t benchmark_layers; /* depth when none is asked for */
    uint32_t embedding;
    uint32_t vocabulary;
    uint32_t context; /* tokens that the model was trained for */
    uint32_t heads;
    uint32_t kv_heads;
    uint32_t head_dim;
    uint32_t feed_forward;
    uint32_t experts;
    uint32_t experts_used;
    uint32_t expert_feed_forward; /* width of one expert */
    uint32_t shared_feed_forward; /* width of the shared expert */
    uint32_t sliding_window;      /* tokens */
    uint32_t attention_interval;  /* every n-th layer has full attention, the others linear */
    uint32_t linear_key_heads;
    uint32_t linear_value_heads;
    uint32_t linear_head_dim;
    uint32_t conv_kernel;
    uint32_t rope_dim;
    uint32_t rope_sections[4];
    uint32_t yarn_context; /* tokens before scaling */
    double yarn_factor;
    double rope_base;
    double rms_epsilon;
    bool rope_factors;  /* a tensor rope_freqs.weight */
    bool qkv_bias;      /* queries, keys and values have biases */
    uint32_t topics;    /* see synth_topics.h; 0: every token stands alone */
    double topic_share; /* share of an embedding's variance that its topic explains */
};

/* Reads the description that `model` names: a file if it has a slash or ends in ".json", else
 * a name in the folder of models. Unknown keys, missing ones and absurd values are errors. */
bool synth_spec_read(struct synth_spec *spec, const char *model, struct ats_error *err);

/* The names in the folder of models, sorted; *n of them. Caller frees each and the array. NULL
 * with an error if the folder cannot be read. */
char **synth_spec_names(size_t *n, struct ats_error *err);

/* Fewest layers that keep the model's pattern; depths are multiples of it. */
uint32_t synth_spec_period(const struct synth_spec *spec);

#endif
