#include "model/model.h"

#include "model/roles.h"
#include "model/units.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Sizes beyond any model: products of two of them, and sums of all, stay far from overflow. */
static const uint64_t MAX_TENSOR_ELEMENTS = UINT64_C(1) << 48;
static const uint64_t MAX_TENSOR_BYTES = UINT64_C(1) << 42;
static const uint32_t MAX_WIDTH = 1u << 24;
static const uint32_t MAX_COUNT = 1u << 16;

const char *ats_model_role_name(enum ats_model_role role)
{
    static const char *const names[ATS_ROLES] = {
        "embedding",  "norm",         "qkv",         "attention", "attn_out",    "router",
        "experts_up", "experts_down", "combine",     "shared_up", "shared_down", "ffn_up",
        "ffn_down",   "other",        "output_norm", "output"};
    return names[role];
}

/* ---- what files can get wrong ---- */

static bool check_number(const char *what, uint64_t value, uint64_t most, struct ats_error *err)
{
    return value <= most ||
           ats_fail(err, "%s is %" PRIu64 ", more than any model has (%" PRIu64 ")", what, value,
                    most);
}

static bool check_params(const struct ats_model_params *p, struct ats_error *err)
{
    if (p->n_layers > ATS_MODEL_MAX_LAYERS) {
        return ats_fail(err, "%u layers are more than the %d that ATS handles", p->n_layers,
                        ATS_MODEL_MAX_LAYERS);
    }
    for (uint32_t i = 0; i < p->n_layers; i++) {
        if (!check_number("the number of heads", p->n_heads[i], MAX_COUNT, err) ||
            !check_number("the number of KV heads", p->n_kv_heads[i], MAX_COUNT, err)) {
            return false;
        }
    }
    if (p->n_used > p->n_experts) {
        return ats_fail(err, "%u experts used of %u", p->n_used, p->n_experts);
    }
    return check_number("the embedding width", p->n_embd, MAX_WIDTH, err) &&
           check_number("the size of a key", p->head_dim_k, MAX_COUNT, err) &&
           check_number("the size of a value", p->head_dim_v, MAX_COUNT, err) &&
           check_number("the number of experts", p->n_experts, MAX_COUNT, err) &&
           check_number("the convolution's width", p->conv_kernel, MAX_COUNT, err) &&
           check_number("the state size", p->state_size, MAX_COUNT, err) &&
           check_number("the inner size", p->inner_size, MAX_WIDTH, err) &&
           check_number("the number of groups", p->n_groups, MAX_COUNT, err);
}

static bool check_tensor(const struct ats_model_tensor *t, struct ats_error *err)
{
    uint64_t elements = 1;
    for (int i = 0; i < 4; i++) {
        if (t->ne[i] == 0 || __builtin_mul_overflow(elements, t->ne[i], &elements) ||
            elements > MAX_TENSOR_ELEMENTS) {
            return ats_fail(err, "tensor %s has an absurd shape", t->name);
        }
    }
    if (t->bytes == 0 || t->bytes > MAX_TENSOR_BYTES) {
        return ats_fail(err, "tensor %s has an absurd size of %" PRIu64 " bytes", t->name,
                        t->bytes);
    }
    if (t->ne[2] > MAX_COUNT) {
        return ats_fail(err, "tensor %s stacks %" PRIu64 " matrices", t->name, t->ne[2]);
    }
    return true;
}

static bool check_all(struct ats_model *m, struct ats_error *err)
{
    if (m->n_tensors == 0) {
        return ats_fail(err, "the model has no tensors");
    }
    if (m->n_tensors > ATS_MODEL_MAX_TENSORS) {
        return ats_fail(err, "the model has %zu tensors, more than ATS handles", m->n_tensors);
    }
    for (size_t i = 0; i < m->n_tensors; i++) {
        if (!check_tensor(&m->tensors[i], err)) {
            return false;
        }
        if (__builtin_add_overflow(m->file_bytes, m->tensors[i].bytes, &m->file_bytes)) {
            return ats_fail(err, "the tensors' sizes add up to an absurd number");
        }
    }
    return check_params(&m->params, err);
}

/* ---- order ---- */

/* Where a tensor stands in the order of execution. */
struct place {
    int32_t tensor;
    int32_t layer; /* n_layers for what comes behind all layers */
    struct ats_model_part part;
};

static int compare_places(const void *a, const void *b)
{
    const struct place *x = a;
    const struct place *y = b;
    if (x->layer != y->layer) {
        return x->layer < y->layer ? -1 : 1;
    }
    if (x->part.order != y->part.order) {
        return x->part.order < y->part.order ? -1 : 1;
    }
    return x->tensor < y->tensor ? -1 : x->tensor > y->tensor;
}

/* Sorted places of the tensors that ordinary decoding reads; *n of them. */
static struct place *sort_places(struct ats_model *m, size_t *n)
{
    struct place *places = calloc(m->n_tensors + 1, sizeof(*places));
    *n = 0;
    for (size_t i = 0; places != NULL && i < m->n_tensors; i++) {
        struct ats_model_tensor *t = &m->tensors[i];
        const char *rest;
        t->layer = ats_model_layer_of(t->name, &rest);
        struct place p = {.tensor = (int32_t)i, .layer = t->layer};
        p.part = ats_model_part_of(rest, t->layer >= 0, t->ne);
        if (t->tied) {
            p.part = ats_model_part_of("output.weight", false, t->ne);
        }
        if (p.part.use == ATS_USE_NONE || t->layer >= (int32_t)m->params.n_layers) {
            continue;
        }
        if (p.part.role == ATS_ROLE_OUTPUT || p.part.role == ATS_ROLE_OUTPUT_NORM) {
            p.layer = (int32_t)m->params.n_layers;
        }
        places[(*n)++] = p;
    }
    if (places != NULL) {
        qsort(places, *n, sizeof(*places), compare_places);
    }
    return places;
}

/* A file without an output head uses the embedding for it; llama.cpp then holds it twice. */
static bool add_tied_output(struct ats_model *m)
{
    size_t embedding = m->n_tensors;
    for (size_t i = 0; i < m->n_tensors; i++) {
        if (strcmp(m->tensors[i].name, "output.weight") == 0) {
            return true;
        }
        if (strcmp(m->tensors[i].name, "token_embd.weight") == 0) {
            embedding = i;
        }
    }
    if (embedding == m->n_tensors) {
        return true;
    }
    struct ats_model_tensor *grown = realloc(m->tensors, (m->n_tensors + 1) * sizeof(grown[0]));
    if (grown == NULL) {
        return false;
    }
    m->tensors = grown;
    struct ats_model_tensor *tied = &grown[m->n_tensors];
    *tied = grown[embedding];
    tied->name = strdup("token_embd.weight");
    tied->tied = true;
    m->n_tensors += tied->name != NULL;
    return tied->name != NULL;
}

/* ---- units ---- */

static struct ats_model_layer survey(const struct ats_model *m, int32_t layer,
                                     const struct place *places, size_t n)
{
    struct ats_model_layer l = {.layer = layer};
    for (size_t i = 0; i < n; i++) {
        const struct ats_model_part *part = &places[i].part;
        l.attention |= part->role == ATS_ROLE_QKV;
        l.experts |= part->use == ATS_USE_EXPERTS;
        l.shared |= part->role == ATS_ROLE_SHARED_DOWN;
        l.recurrent |= strstr(m->tensors[places[i].tensor].name, ".ssm_") != NULL;
    }
    return l;
}

/* The units of one layer from places[0 .. n), which are all of that layer. */
static void add_layer(struct ats_model *m, int32_t layer, const struct place *places, size_t n)
{
    const struct ats_model_layer l = survey(m, layer, places, n);
    size_t at = 0;
    for (int order = 0; order < ATS_ORDERS; order++) {
        bool open = false;
        for (; at < n && places[at].part.order == order; at++) {
            const struct ats_model_part *part = &places[at].part;
            if (open && part->role == ATS_ROLE_OTHER) {
                ats_model_close_unit(m, &l);
            }
            if (!open || part->role == ATS_ROLE_OTHER) {
                ats_model_open_unit(m, part->role, &l, places[at].tensor);
                open = true;
            }
            ats_model_add_weight(m, places[at].tensor, part->use);
        }
        if (!open && order == ATS_ORDER_ATTENTION && l.attention) {
            ats_model_open_unit(m, ATS_ROLE_ATTENTION, &l, ATS_NO_TENSOR);
            open = true;
        } else if (!open && order == ATS_ORDER_COMBINE && l.experts) {
            ats_model_open_unit(m, ATS_ROLE_COMBINE, &l, ATS_NO_TENSOR);
            open = true;
        }
        if (open) {
            ats_model_close_unit(m, &l);
        }
    }
}

static void add_units(struct ats_model *m, const struct place *places, size_t n)
{
    size_t at = 0;
    while (at < n) {
        const int32_t layer = places[at].layer;
        size_t end = at;
        while (end < n && places[end].layer == layer) {
            end++;
        }
        add_layer(m, layer == (int32_t)m->params.n_layers ? -1 : layer, places + at, end - at);
        at = end;
    }
}

/* Most architectures drop the tokens whose logits nobody wants behind the attention of the last
 * layer; these do it before the output head (v0.5.0, src/models). */
static bool drops_rows_late(const char *arch)
{
    static const char *const late[] = {"gpt-oss", "qwen3next", "qwen35moe", "qwen35"};
    for (size_t i = 0; i < sizeof late / sizeof late[0]; i++) {
        if (strcmp(arch, late[i]) == 0) {
            return true;
        }
    }
    return false;
}

static void mark_outputs(struct ats_model *m)
{
    const int32_t last = (int32_t)m->params.n_layers - 1;
    const bool late = drops_rows_late(m->params.arch);
    bool behind = false;
    for (size_t i = 0; i < m->n_units; i++) {
        struct ats_model_unit *u = &m->units[i];
        u->outputs_only = u->role == ATS_ROLE_OUTPUT || (u->layer == last && behind && !late) ||
                          (u->role == ATS_ROLE_OUTPUT_NORM && !late);
        behind |= u->layer == last && u->role == ATS_ROLE_ATTN_OUT;
    }
}

static bool allocate(struct ats_model *m)
{
    /* a unit per weight at most, and two of each layer without one */
    const size_t units = m->n_tensors + 2 * (size_t)m->params.n_layers;
    m->units = calloc(units + 1, sizeof(*m->units));
    m->ops = calloc(m->n_tensors + units * ATS_MODEL_EXTRA_OPS + 1, sizeof(*m->ops));
    m->weights = calloc(m->n_tensors + 1, sizeof(*m->weights));
    return m->units != NULL && m->ops != NULL && m->weights != NULL;
}

static bool describe(struct ats_model *m, struct ats_error *err)
{
    if (!check_all(m, err)) {
        return false;
    }
    size_t n = 0;
    struct place *places = NULL;
    const bool enough = add_tied_output(m) && allocate(m) && (places = sort_places(m, &n)) != NULL;
    if (!enough) {
        free(places);
        return ats_fail(err, "out of memory for the description of a model");
    }
    add_units(m, places, n);
    free(places);
    mark_outputs(m);
    return m->n_units > 0 || ats_fail(err, "the model has no weights that decoding would read");
}

void ats_model_free_tensors(struct ats_model_tensor *tensors, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        free(tensors[i].name);
    }
    free(tensors);
}

struct ats_model *ats_model_build(const struct ats_model_params *params,
                                  struct ats_model_tensor *tensors, size_t n_tensors,
                                  struct ats_error *err)
{
    struct ats_model *m = calloc(1, sizeof(*m));
    if (m == NULL) {
        ats_model_free_tensors(tensors, n_tensors);
        ats_fail(err, "out of memory for the description of a model");
        return NULL;
    }
    m->params = *params;
    m->tensors = tensors;
    m->n_tensors = n_tensors;
    if (!describe(m, err)) {
        ats_model_free(m);
        return NULL;
    }
    return m;
}

void ats_model_free(struct ats_model *m)
{
    if (m == NULL) {
        return;
    }
    ats_model_free_tensors(m->tensors, m->n_tensors);
    free(m->units);
    free(m->ops);
    free(m->weights);
    free(m);
}

/* ---- questions ---- */

static uint64_t pad(uint64_t tokens)
{
    return (tokens + ATS_MODEL_CACHE_PAD - 1) / ATS_MODEL_CACHE_PAD * ATS_MODEL_CACHE_PAD;
}

uint32_t ats_model_rows(const struct ats_model_unit *unit, const struct ats_model_pass *pass)
{
    return unit->outputs_only ? pass->n_outputs : pass->n_tokens;
}

static uint64_t kept_tokens(const struct ats_model_unit *unit, uint64_t tokens, uint32_t ubatch)
{
    const uint64_t all = pad(tokens);
    const uint64_t most = pad((uint64_t)unit->window + ubatch);
    return unit->window > 0 && most < all ? most : all;
}

uint64_t ats_model_cache_rows(const struct ats_model_unit *unit, const struct ats_model_pass *pass)
{
    if (unit->kv_bytes_per_token == 0) {
        return 0;
    }
    return kept_tokens(unit, (uint64_t)pass->depth + pass->n_tokens, pass->ubatch);
}

static void shape_attention(const struct ats_model_unit *unit, const struct ats_model_op *op,
                            const struct ats_model_pass *pass, struct ats_op_shape *shape)
{
    shape->m = (double)ats_model_cache_rows(unit, pass);
    shape->k = (double)op->k;
    shape->batch = op->n_heads;
    shape->weight_bytes = shape->m * (double)unit->kv_bytes_per_token;
}

struct ats_op_shape ats_model_shape(const struct ats_model *model,
                                    const struct ats_model_unit *unit,
                                    const struct ats_model_op *op,
                                    const struct ats_model_pass *pass)
{
    const uint32_t rows = ats_model_rows(unit, pass);
    struct ats_op_shape shape = {.kind = rows > 0 ? op->kind : ATS_COST_NONE,
                                 .fused = op->fused_always || (op->fused_vector && rows == 1),
                                 .n = rows,
                                 .m = (double)op->m,
                                 .k = (double)op->k,
                                 .batch = 1,
                                 .io_bytes =
                                     (double)op->io_bytes_per_token * rows + (double)op->io_bytes};
    const struct ats_model_tensor *t =
        op->tensor != ATS_NO_TENSOR ? &model->tensors[op->tensor] : NULL;
    if (t != NULL && op->kind != ATS_COST_BYTES) {
        shape.family = t->family;
        shape.weight_bytes = (double)t->bytes;
    }
    if (op->kind == ATS_COST_EXPERTS && t != NULL) {
        shape.n_experts = unit->n_experts;
        shape.n_used = unit->n_used;
        shape.weight_bytes = (double)t->bytes / unit->n_experts;
    } else if (op->kind == ATS_COST_ATTENTION) {
        shape_attention(unit, op, pass, &shape);
    }
    return shape;
}

uint64_t ats_model_state_bytes(const struct ats_model_unit *unit, uint32_t n_ctx, uint32_t ubatch)
{
    return unit->kv_bytes_per_token * kept_tokens(unit, n_ctx, ubatch) + unit->recurrent_bytes;
}

uint64_t ats_model_total_state_bytes(const struct ats_model *model, uint32_t n_ctx, uint32_t ubatch)
{
    uint64_t bytes = 0;
    for (size_t i = 0; i < model->n_units; i++) {
        bytes += ats_model_state_bytes(&model->units[i], n_ctx, ubatch);
    }
    return bytes;
}
