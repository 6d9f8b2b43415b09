/* The list of a net's tensors, and what they are at the start. */
#include "net.h"

#include "base/rng.h"
#include "vec.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum { TENSORS_PER_LAYER = 9 };

bool net_shape_check(const struct net_shape *s, struct ats_error *err)
{
    if (s->vocab == 0 || s->width == 0 || s->layers == 0 || s->heads == 0 || s->kv_heads == 0 ||
        s->ff == 0 || s->context == 0) {
        return ats_fail(err, "a size of the model is 0");
    }
    if (s->width % s->heads != 0 || s->heads % s->kv_heads != 0) {
        return ats_fail(err, "%u heads must divide the width %u, and %u key-value heads the heads",
                        s->heads, s->width, s->kv_heads);
    }
    const uint32_t head = s->width / s->heads;
    if (s->vocab % VEC_ROW != 0 || s->ff % VEC_ROW != 0 || s->context % VEC_ROW != 0 ||
        s->width % VEC_ROW != 0 || head % 2 != 0) {
        return ats_fail(err,
                        "vocabulary %u, width %u, hidden units %u and context %u must be multiples "
                        "of %d, and the width %u of a head must be even",
                        s->vocab, s->width, s->ff, s->context, VEC_ROW, head);
    }
    return true;
}

size_t net_tensor_count(const struct net_shape *shape)
{
    return 2 + (size_t)TENSORS_PER_LAYER * shape->layers;
}

/* Rows and columns of the tensors of a layer, in their order. */
static void layer_tensor(const struct net_shape *s, size_t index, const char **name, size_t *rows,
                         size_t *columns)
{
    const size_t kv_width = (size_t)s->width / s->heads * s->kv_heads;
    const struct {
        const char *name;
        size_t rows, columns;
    } tensors[TENSORS_PER_LAYER] = {
        {"attn_norm", 1, s->width},          {"attn_q", s->width, s->width},
        {"attn_k", kv_width, s->width},      {"attn_v", kv_width, s->width},
        {"attn_output", s->width, s->width}, {"ffn_norm", 1, s->width},
        {"ffn_gate", s->ff, s->width},       {"ffn_up", s->ff, s->width},
        {"ffn_down", s->width, s->ff},
    };
    *name = tensors[index].name;
    *rows = tensors[index].rows;
    *columns = tensors[index].columns;
}

static size_t layer_size(const struct net_shape *shape)
{
    size_t size = 0;
    for (size_t i = 0; i < TENSORS_PER_LAYER; i++) {
        const char *name;
        size_t rows;
        size_t columns;
        layer_tensor(shape, i, &name, &rows, &columns);
        size += rows * columns;
    }
    return size;
}

struct net_tensor net_tensor_at(const struct net_shape *shape, size_t index)
{
    const size_t embedding = (size_t)shape->vocab * shape->width;
    struct net_tensor t = {0};
    if (index == 0) {
        t = (struct net_tensor){.offset = 0, .rows = shape->vocab, .columns = shape->width};
        snprintf(t.name, sizeof t.name, "token_embd.weight");
        return t;
    }
    if (index == net_tensor_count(shape) - 1) {
        t = (struct net_tensor){.offset = embedding + shape->layers * layer_size(shape),
                                .rows = 1,
                                .columns = shape->width};
        snprintf(t.name, sizeof t.name, "output_norm.weight");
        return t;
    }
    const size_t layer = (index - 1) / TENSORS_PER_LAYER;
    const size_t which = (index - 1) % TENSORS_PER_LAYER;
    const char *name = NULL;
    t.offset = embedding + layer * layer_size(shape);
    for (size_t i = 0; i <= which; i++) {
        t.offset += t.rows * t.columns;
        layer_tensor(shape, i, &name, &t.rows, &t.columns);
    }
    snprintf(t.name, sizeof t.name, "blk.%zu.%s.weight", layer, name);
    return t;
}

size_t net_param_count(const struct net_shape *shape)
{
    const struct net_tensor last = net_tensor_at(shape, net_tensor_count(shape) - 1);
    return last.offset + last.columns;
}

/* Uniform in (0, 1]. */
static double uniform(struct ats_rng *rng)
{
    return ((double)(ats_rng_next(rng) >> 11) + 1.0) * 0x1p-53;
}

/* Box and Muller, "A Note on the Generation of Random Normal Deviates", 1958. */
static float normal(struct ats_rng *rng)
{
    const double radius = sqrt(-2.0 * log(uniform(rng)));
    return (float)(radius * cos(6.283185307179586 * uniform(rng)));
}

static bool ends_in_stream(const char *name)
{
    return strstr(name, "attn_output") != NULL || strstr(name, "ffn_down") != NULL;
}

void net_init_params(const struct net_shape *shape, uint64_t seed, float *params)
{
    struct ats_rng rng = {seed};
    for (size_t i = 0; i < net_tensor_count(shape); i++) {
        const struct net_tensor t = net_tensor_at(shape, i);
        float spread = i == 0 ? 0.02f : 0.6f / sqrtf((float)t.columns);
        if (ends_in_stream(t.name)) {
            spread /= sqrtf(2.0f * (float)shape->layers);
        }
        for (size_t j = 0; j < t.rows * t.columns; j++) {
            params[t.offset + j] = t.rows == 1 ? 1.0f : spread * normal(&rng);
        }
    }
}
