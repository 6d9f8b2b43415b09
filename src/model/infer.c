#include "model/infer.h"

#include "model/roles.h"

#include <stdlib.h>
#include <string.h>

/* Usual sizes of a head, the likeliest first. */
static const uint32_t head_sizes[] = {128, 64, 256, 96, 80};

/* A guess for routers that have not been seen at work: models use from 1/4 to 1/51 of their
 * experts. */
enum { USED_DIVISOR = 16 };

/* Values of a model that a description holds in 32 bits. */
static const uint64_t MOST = UINT32_MAX;

struct clues {
    const struct ats_model_tensor *tensors;
    size_t n;
    struct ats_model_params *params;
};

/* The matrix "blk.LAYER.NAME.weight", or NULL. `layer` of -1: the first layer that has it. */
static const struct ats_model_tensor *find(const struct clues *c, int32_t layer, const char *name)
{
    const size_t length = strlen(name);
    for (size_t i = 0; i < c->n; i++) {
        const char *rest;
        const int32_t own = ats_model_layer_of(c->tensors[i].name, &rest);
        if (own >= 0 && (layer < 0 || own == layer) && strncmp(rest, name, length) == 0 &&
            strcmp(rest + length, ".weight") == 0) {
            return &c->tensors[i];
        }
    }
    return NULL;
}

static uint32_t dimension(const struct ats_model_tensor *t, int d)
{
    return t != NULL && t->ne[d] <= MOST ? (uint32_t)t->ne[d] : 0;
}

static uint32_t head_size(const struct clues *c, uint32_t row)
{
    const uint32_t named = dimension(find(c, -1, "attn_k_norm"), 0);
    if (named > 0 && row % named == 0) {
        return named;
    }
    for (size_t i = 0; i < sizeof head_sizes / sizeof head_sizes[0]; i++) {
        if (row % head_sizes[i] == 0) {
            return head_sizes[i];
        }
    }
    return row;
}

/* The row of queries and that of keys in a layer; 0 if it has no attention. */
static void find_rows(const struct clues *c, int32_t layer, uint32_t *queries, uint32_t *keys)
{
    *queries = dimension(find(c, layer, "attn_output"), 0);
    *keys = dimension(find(c, layer, "attn_k"), 1);
    const uint32_t joint = dimension(find(c, layer, "attn_qkv"), 1);
    const uint32_t latent = dimension(find(c, layer, "attn_kv_a_mqa"), 1);
    if (*keys == 0 && latent > 0) {
        *keys = latent;
    } else if (*keys == 0 && joint > *queries) {
        *keys = (joint - *queries) / 2;
    }
}

static void infer_attention(const struct clues *c)
{
    struct ats_model_params *p = c->params;
    for (int32_t layer = 0; layer < (int32_t)p->n_layers; layer++) {
        uint32_t queries;
        uint32_t keys;
        find_rows(c, layer, &queries, &keys);
        if (keys == 0) {
            continue;
        }
        p->head_dim_k = p->head_dim_k > 0 ? p->head_dim_k : head_size(c, keys);
        p->head_dim_v = p->head_dim_k;
        p->n_kv_heads[layer] = keys / p->head_dim_k;
        p->n_heads[layer] = queries / p->head_dim_k;
    }
}

static void infer_recurrence(const struct clues *c)
{
    struct ats_model_params *p = c->params;
    const struct ats_model_tensor *conv = find(c, -1, "ssm_conv1d");
    const uint32_t channels = dimension(conv, 1);
    p->conv_kernel = dimension(conv, 0);
    p->inner_size = dimension(find(c, -1, "ssm_out"), 0);
    p->state_size = dimension(find(c, -1, "ssm_norm"), 0);
    if (p->state_size > 0 && channels > p->inner_size) {
        p->n_groups = (channels - p->inner_size) / 2 / p->state_size;
    }
}

static void infer_params(const struct clues *c, uint32_t n_used)
{
    struct ats_model_params *p = c->params;
    for (size_t i = 0; i < c->n; i++) {
        const char *rest;
        const int32_t layer = ats_model_layer_of(c->tensors[i].name, &rest);
        if (layer >= (int32_t)p->n_layers) {
            p->n_layers = (uint32_t)layer + 1;
        }
    }
    p->n_embd = dimension(find(c, -1, "attn_norm"), 0);
    if (p->n_embd == 0) {
        p->n_embd = dimension(find(c, -1, "attn_q"), 0);
    }
    p->n_experts = dimension(find(c, -1, "ffn_down_exps"), 2);
    const uint32_t guess = (p->n_experts + USED_DIVISOR - 1) / USED_DIVISOR;
    p->n_used = n_used > 0 && n_used <= p->n_experts ? n_used : guess;
    infer_attention(c);
    infer_recurrence(c);
}

/* ---- state ---- */

/* The layer of "cache_KIND_lN", or -1. */
static int32_t layer_of_state(const char *name, char kind)
{
    if (strncmp(name, "cache_", 6) != 0 || name[6] != kind || strncmp(name + 7, "_l", 2) != 0) {
        return -1;
    }
    char *end;
    const long layer = strtol(name + 9, &end, 10);
    return end != name + 9 && layer >= 0 && layer < ATS_MODEL_MAX_LAYERS ? (int32_t)layer : -1;
}

static uint64_t tokens_of(const struct ats_model_tensor *cache)
{
    return cache->ne[1] * cache->ne[2];
}

static uint32_t context_of(const struct ats_model_clues *clues)
{
    uint64_t most = 0;
    for (size_t i = 0; i < clues->n_state; i++) {
        const struct ats_model_tensor *t = &clues->state[i];
        const bool is_cache =
            layer_of_state(t->name, 'k') >= 0 && t->ne[1] <= MOST && t->ne[2] <= MOST;
        if (is_cache && tokens_of(t) <= MOST && tokens_of(t) > most) {
            most = tokens_of(t);
        }
    }
    return (uint32_t)most;
}

/* The caches' own types and windows, and the recurrent states' own sizes. */
static void set_state(struct ats_model_unit *u, const struct ats_model_clues *clues, uint32_t n_ctx)
{
    uint64_t per_token = 0;
    uint64_t recurrent = 0;
    uint64_t kept = 0;
    for (size_t i = 0; i < clues->n_state; i++) {
        const struct ats_model_tensor *t = &clues->state[i];
        if (layer_of_state(t->name, 'k') == u->layer || layer_of_state(t->name, 'v') == u->layer) {
            const uint64_t tokens = tokens_of(t) > 0 ? tokens_of(t) : 1;
            per_token += t->bytes / tokens;
            kept = tokens;
        }
        if (layer_of_state(t->name, 'r') == u->layer || layer_of_state(t->name, 's') == u->layer) {
            recurrent += t->bytes;
        }
    }
    if (u->kv_bytes_per_token > 0 && per_token > 0) {
        u->kv_bytes_per_token = per_token;
        /* the rest of such a cache is room for a pass: ats_model_state_bytes adds it again */
        u->window = kept < n_ctx ? (uint32_t)kept : 0;
    }
    if (u->recurrent_bytes > 0 && recurrent > 0) {
        u->recurrent_bytes = recurrent;
    }
}

struct ats_model *ats_model_infer(struct ats_model_tensor *tensors, size_t n_tensors,
                                  const struct ats_model_clues *clues, uint32_t *n_ctx,
                                  struct ats_error *err)
{
    struct ats_model_params *params = calloc(1, sizeof(*params));
    if (params == NULL) {
        ats_model_free_tensors(tensors, n_tensors);
        ats_fail(err, "out of memory for the description of a model");
        return NULL;
    }
    const struct clues c = {tensors, n_tensors, params};
    infer_params(&c, clues->n_used);
    struct ats_model *m = ats_model_build(params, tensors, n_tensors, err);
    free(params);
    *n_ctx = context_of(clues);
    for (size_t i = 0; m != NULL && i < m->n_units; i++) {
        if (m->units[i].layer >= 0) {
            set_state(&m->units[i], clues, *n_ctx);
        }
    }
    return m;
}
