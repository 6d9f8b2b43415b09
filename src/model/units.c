#include "model/units.h"

#include <ctype.h>
#include <stdio.h>
#include <string.h>

/* Activations are F32, the cache is F16. */
enum { ACTIVATION_BYTES = 4, CACHE_BYTES = 2 };

static struct ats_model_unit *last_unit(struct ats_model *m)
{
    return &m->units[m->n_units - 1];
}

static uint64_t activations(uint64_t n)
{
    return n * ACTIVATION_BYTES;
}

/* Names of tensors come from files; those of units are shown and written to JSON. */
static void set_printable(char *name, size_t size, const char *text)
{
    snprintf(name, size, "%.*s", (int)size - 1, text);
    for (char *c = name; *c != '\0'; c++) {
        *c = isalnum((unsigned char)*c) || strchr("._-", *c) != NULL ? *c : '_';
    }
}

void ats_model_open_unit(struct ats_model *m, enum ats_model_role role,
                         const struct ats_model_layer *layer, int32_t tensor)
{
    struct ats_model_unit *u = &m->units[m->n_units++];
    *u = (struct ats_model_unit){.role = role,
                                 .layer = layer->layer,
                                 .first_op = (uint32_t)m->n_ops,
                                 .first_weight = (uint32_t)m->n_weights};
    if (role == ATS_ROLE_OTHER && tensor != ATS_NO_TENSOR) {
        set_printable(u->name, sizeof u->name, m->tensors[tensor].name);
    } else if (layer->layer >= 0) {
        snprintf(u->name, sizeof u->name, "blk.%d.%s", layer->layer, ats_model_role_name(role));
    } else {
        snprintf(u->name, sizeof u->name, "%s", ats_model_role_name(role));
    }
}

static struct ats_model_op *add_op(struct ats_model *m, enum ats_cost_kind kind, int32_t tensor)
{
    struct ats_model_op *op = &m->ops[m->n_ops++];
    *op = (struct ats_model_op){.kind = kind, .tensor = tensor, .rows_per_token = 1};
    last_unit(m)->n_ops++;
    return op;
}

static void add_bytes_op(struct ats_model *m, uint64_t io_bytes_per_token, bool fused_vector)
{
    struct ats_model_op *op = add_op(m, ATS_COST_BYTES, ATS_NO_TENSOR);
    op->io_bytes_per_token = io_bytes_per_token;
    op->fused_vector = fused_vector;
}

static void add_product(struct ats_model *m, int32_t tensor, enum ats_model_use use)
{
    struct ats_model_unit *u = last_unit(m);
    const struct ats_model_tensor *t = &m->tensors[tensor];
    struct ats_model_op *op =
        add_op(m, use == ATS_USE_EXPERTS ? ATS_COST_EXPERTS : ATS_COST_MATMUL, tensor);
    op->k = t->ne[0];
    op->m = t->ne[1];
    uint64_t rows = 1; /* of activations, per token */
    if (use == ATS_USE_EXPERTS) {
        u->n_experts = (uint32_t)t->ne[2];
        u->n_used = m->params.n_used > 0 ? m->params.n_used : 1;
        u->n_used = u->n_used < u->n_experts ? u->n_used : u->n_experts;
        u->expert_bytes += t->bytes / t->ne[2];
        rows = u->n_used;
    }
    op->io_bytes_per_token = rows * activations(op->m + op->k);
    /* the kernels of vectors compute gate and up at once */
    const bool is_pair = u->role == ATS_ROLE_EXPERTS_UP || u->role == ATS_ROLE_FFN_UP ||
                         u->role == ATS_ROLE_SHARED_UP;
    op->fused_vector = is_pair && u->n_ops > 1;
}

void ats_model_add_weight(struct ats_model *m, int32_t tensor, enum ats_model_use use)
{
    struct ats_model_unit *u = last_unit(m);
    m->weights[m->n_weights++] = tensor;
    u->n_weights++;
    u->weight_bytes += m->tensors[tensor].bytes;
    if (use == ATS_USE_MATMUL || use == ATS_USE_EXPERTS) {
        add_product(m, tensor, use);
    }
}

/* ---- the rest of a unit ---- */

/* Sums over the products of the last unit. */
struct products {
    uint64_t results; /* per token */
    uint64_t first_k;
    uint64_t first_m;
    uint32_t n;
};

static struct products sum_products(struct ats_model *m)
{
    const struct ats_model_unit *u = last_unit(m);
    struct products s = {0};
    for (uint32_t i = 0; i < u->n_ops; i++) {
        const struct ats_model_op *op = &m->ops[u->first_op + i];
        s.results += op->m;
        s.first_k = s.n == 0 ? op->k : s.first_k;
        s.first_m = s.n == 0 ? op->m : s.first_m;
        s.n++;
    }
    return s;
}

/* The last operator applies the scale whose name ends so, to each of `heads` rows. */
static void set_scale(struct ats_model *m, const char *name, uint32_t heads)
{
    const struct ats_model_unit *u = last_unit(m);
    for (uint32_t w = 0; w < u->n_weights; w++) {
        const int32_t t = m->weights[u->first_weight + w];
        if (strstr(m->tensors[t].name, name) != NULL) {
            m->ops[m->n_ops - 1].tensor = t;
            m->ops[m->n_ops - 1].rows_per_token = heads;
        }
    }
}

/* Norms of queries and keys, rotation, and the writes to the cache: three kernels. */
static void close_qkv(struct ats_model *m, const struct ats_model_layer *layer)
{
    struct ats_model_unit *u = last_unit(m);
    const struct products s = sum_products(m);
    u->in_bytes_per_token = activations(m->params.n_embd);
    u->out_bytes_per_token = activations(s.results);
    if (layer->recurrent || layer->layer < 0) {
        return;
    }
    const uint64_t q = (uint64_t)m->params.n_heads[layer->layer] * m->params.head_dim_k;
    const uint64_t k = (uint64_t)m->params.n_kv_heads[layer->layer] * m->params.head_dim_k;
    const uint64_t v = (uint64_t)m->params.n_kv_heads[layer->layer] * m->params.head_dim_v;
    add_bytes_op(m, 2 * activations(q), false);
    set_scale(m, ".attn_q_norm.", m->params.n_heads[layer->layer]);
    add_bytes_op(m, activations(k) + CACHE_BYTES * k, false);
    set_scale(m, ".attn_k_norm.", m->params.n_kv_heads[layer->layer]);
    add_bytes_op(m, activations(v) + CACHE_BYTES * v, false);
}

static void close_attention(struct ats_model *m, int32_t layer)
{
    struct ats_model_unit *u = last_unit(m);
    const struct ats_model_params *p = &m->params;
    const uint64_t q = (uint64_t)p->n_heads[layer] * p->head_dim_k;
    const uint64_t out = (uint64_t)p->n_heads[layer] * p->head_dim_v;
    const uint64_t kv = (uint64_t)p->n_kv_heads[layer] * (p->head_dim_k + (uint64_t)p->head_dim_v);
    u->kv_bytes_per_token = kv * CACHE_BYTES;
    u->window = p->windowed[layer] ? p->window : 0;
    u->in_bytes_per_token = activations(q + kv);
    u->out_bytes_per_token = activations(out);
    struct ats_model_op *op = add_op(m, ATS_COST_ATTENTION, ATS_NO_TENSOR);
    op->k = (p->head_dim_k + (uint64_t)p->head_dim_v) / 2;
    op->n_heads = p->n_heads[layer];
    op->io_bytes_per_token = activations(q + out);
}

/* A convolution over the last tokens, the decay of the state, the state's update and use, and a
 * gated norm. The state is read and written once per pass; that the rest is bound by bytes is an
 * estimate. */
static void close_recurrent(struct ats_model *m)
{
    struct ats_model_unit *u = last_unit(m);
    const struct ats_model_params *p = &m->params;
    const uint64_t keys = (uint64_t)p->n_groups * p->state_size;
    const uint64_t channels = p->inner_size + 2 * keys;
    const uint64_t conv = p->conv_kernel > 0 ? activations((p->conv_kernel - 1) * channels) : 0;
    const uint64_t state = activations((uint64_t)p->inner_size * p->state_size);
    u->recurrent_bytes = conv + state;
    u->in_bytes_per_token = activations(channels + p->inner_size);
    u->out_bytes_per_token = activations(p->inner_size);
    add_bytes_op(m, 2 * activations(channels), false);
    m->ops[m->n_ops - 1].io_bytes = 2 * conv;
    add_bytes_op(m, activations(p->inner_size), false);
    add_bytes_op(m, activations(channels + p->inner_size), false);
    m->ops[m->n_ops - 1].io_bytes = 2 * state;
    add_bytes_op(m, 3 * activations(p->inner_size), false);
    set_scale(m, ".ssm_norm.", p->state_size > 0 ? p->inner_size / p->state_size : 1);
}

static void add_residual(struct ats_model *m)
{
    add_bytes_op(m, 3 * activations(m->params.n_embd), false);
}

/* Gate and up are followed by the activation, which kernels of vectors include. */
static void close_up(struct ats_model *m)
{
    struct ats_model_unit *u = last_unit(m);
    const struct products s = sum_products(m);
    const uint64_t rows = u->n_used > 0 ? u->n_used : 1;
    const uint64_t width = s.n > 1 ? s.first_m : s.results / 2;
    u->in_bytes_per_token = activations(s.first_k);
    u->out_bytes_per_token = rows * activations(width);
    if (s.n > 0) {
        add_bytes_op(m, 3 * rows * activations(width), true);
    }
}

static void close_product(struct ats_model *m)
{
    struct ats_model_unit *u = last_unit(m);
    const struct products s = sum_products(m);
    const uint64_t rows = u->n_used > 0 ? u->n_used : 1;
    u->in_bytes_per_token = (u->role == ATS_ROLE_EXPERTS_DOWN ? rows : 1) * activations(s.first_k);
    u->out_bytes_per_token = rows * activations(s.first_m);
    if (u->role == ATS_ROLE_ATTN_OUT || u->role == ATS_ROLE_FFN_DOWN) {
        add_residual(m);
    }
}

static void close_router(struct ats_model *m)
{
    struct ats_model_unit *u = last_unit(m);
    const struct products s = sum_products(m);
    u->in_bytes_per_token = activations(m->params.n_embd);
    u->out_bytes_per_token = activations(2 * (uint64_t)m->params.n_used);
    add_bytes_op(m, activations(s.results), false);
}

static void close_combine(struct ats_model *m, bool shared)
{
    struct ats_model_unit *u = last_unit(m);
    const uint64_t rows = m->params.n_used > 0 ? m->params.n_used : 1;
    u->in_bytes_per_token = rows * activations(m->params.n_embd);
    u->out_bytes_per_token = activations(m->params.n_embd);
    add_bytes_op(m, (rows + 1) * activations(m->params.n_embd), false);
    if (!shared) {
        add_residual(m);
    }
}

/* The projection, the gate of the whole expert, and both added to what the others made. */
static void close_shared_down(struct ats_model *m)
{
    struct ats_model_unit *u = last_unit(m);
    const struct products s = sum_products(m);
    u->in_bytes_per_token = activations(s.first_k);
    u->out_bytes_per_token = activations(m->params.n_embd);
    add_bytes_op(m, 3 * activations(m->params.n_embd), false);
    add_residual(m);
}

static void close_elementwise(struct ats_model *m)
{
    struct ats_model_unit *u = last_unit(m);
    u->in_bytes_per_token = activations(m->params.n_embd);
    u->out_bytes_per_token = activations(m->params.n_embd);
    if (u->role != ATS_ROLE_EMBEDDING) {
        add_bytes_op(m, 2 * activations(m->params.n_embd), false);
    }
}

void ats_model_close_unit(struct ats_model *m, const struct ats_model_layer *layer)
{
    switch (last_unit(m)->role) {
    case ATS_ROLE_QKV:
        close_qkv(m, layer);
        return;
    case ATS_ROLE_ATTENTION:
        if (layer->recurrent || layer->layer < 0) {
            close_recurrent(m);
        } else {
            close_attention(m, layer->layer);
        }
        return;
    case ATS_ROLE_EXPERTS_UP:
    case ATS_ROLE_FFN_UP:
    case ATS_ROLE_SHARED_UP:
        close_up(m);
        return;
    case ATS_ROLE_ROUTER:
        close_router(m);
        return;
    case ATS_ROLE_COMBINE:
        close_combine(m, layer->shared);
        return;
    case ATS_ROLE_SHARED_DOWN:
        close_shared_down(m);
        return;
    case ATS_ROLE_NORM:
    case ATS_ROLE_OUTPUT_NORM:
    case ATS_ROLE_EMBEDDING:
        close_elementwise(m);
        return;
    default:
        if (last_unit(m)->n_ops > 0) {
            close_product(m);
        } else {
            close_elementwise(m);
        }
        return;
    }
}
