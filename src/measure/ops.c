/* Graphs of one operator, many times over. */
#include "measure/bench.h"

#include "base/rng.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum {
    MAX_COPIES = 256, /* of the operator in a graph */
    ID_SETS = 8,      /* routings that the copies take turns with */
    BYTES_WIDTH = 4096,
};

/* The type of that name; GGML_TYPE_COUNT if there is none. */
static enum ggml_type type_of(const char *name)
{
    for (int t = 0; t < GGML_TYPE_COUNT; t++) {
        const char *known = ggml_type_name((enum ggml_type)t);
        if (known != NULL && strcmp(known, name) == 0 && ggml_blck_size((enum ggml_type)t) > 0) {
            return (enum ggml_type)t;
        }
    }
    return GGML_TYPE_COUNT;
}

struct builder {
    struct ats_bench *bench;
    const struct ats_profile_curve *curve;
    double n;
    size_t copies;
    struct ggml_context *context;
    struct ggml_cgraph *graph;
    double distinct; /* EXPERTS: on average */
};

static bool add_node(const struct builder *b, struct ggml_tensor *node)
{
    if (!ats_bench_take_output(b->bench, node, 0) ||
        !ggml_backend_dev_supports_op(b->bench->device, node)) {
        return false;
    }
    ggml_build_forward_expand(b->graph, node);
    return true;
}

static bool build_matmul(const struct builder *b, enum ggml_type type)
{
    const int64_t m = llround(b->curve->m);
    const int64_t k = llround(b->curve->k);
    struct ggml_tensor *input = ggml_new_tensor_2d(b->context, GGML_TYPE_F32, k, llround(b->n));
    bool good = ats_bench_take_input(b->bench, input, 0);
    for (size_t i = 0; good && i < b->copies; i++) {
        struct ggml_tensor *weight = ggml_new_tensor_2d(b->context, type, k, m);
        good = ats_bench_take_weight(b->bench, weight) &&
               add_node(b, ggml_mul_mat(b->context, weight, input));
    }
    return good;
}

/* `used` different experts for each token, drawn independently; how many they are together. */
static size_t route(int32_t *ids, size_t tokens, size_t experts, size_t used, uint64_t seed)
{
    int32_t *deck = malloc(experts * sizeof(*deck));
    uint8_t *seen = calloc(experts, 1);
    size_t distinct = 0;
    if (deck != NULL && seen != NULL) {
        struct ats_rng rng = {seed};
        for (size_t e = 0; e < experts; e++) {
            deck[e] = (int32_t)e;
        }
        for (size_t t = 0; t < tokens; t++) {
            for (size_t u = 0; u < used && u < experts; u++) {
                const size_t at = u + (size_t)ats_rng_below(&rng, experts - u);
                const int32_t drawn = deck[at];
                deck[at] = deck[u];
                deck[u] = drawn;
                ids[t * used + u] = drawn;
                distinct += seen[drawn] == 0;
                seen[drawn] = 1;
            }
        }
    }
    free(deck);
    free(seen);
    return distinct;
}

static struct ggml_tensor *make_ids(struct builder *b, size_t set)
{
    const size_t tokens = (size_t)llround(b->n);
    const size_t experts = (size_t)llround(b->curve->n_experts);
    const size_t used = (size_t)llround(b->curve->n_used);
    struct ggml_tensor *ids =
        ggml_new_tensor_2d(b->context, GGML_TYPE_I32, (int64_t)used, (int64_t)tokens);
    const size_t stride = b->bench->ids_bytes / ID_SETS;
    int32_t *values = malloc(ggml_nbytes(ids));
    size_t distinct = 0;
    if (values != NULL && ggml_nbytes(ids) <= stride &&
        ats_bench_take_ids(b->bench, ids, set * stride)) {
        distinct = route(values, tokens, experts, used, set + 1);
        ggml_backend_tensor_set(ids, values, 0, ggml_nbytes(ids));
    }
    free(values);
    b->distinct += (double)distinct;
    return distinct > 0 ? ids : NULL;
}

static bool build_experts(struct builder *b, enum ggml_type type)
{
    const int64_t m = llround(b->curve->m);
    const int64_t k = llround(b->curve->k);
    const size_t sets = b->copies < ID_SETS ? b->copies : ID_SETS;
    struct ggml_tensor *input = ggml_new_tensor_3d(b->context, GGML_TYPE_F32, k, 1, llround(b->n));
    struct ggml_tensor *ids[ID_SETS] = {NULL};
    bool good = ats_bench_take_input(b->bench, input, 0);
    for (size_t i = 0; good && i < sets; i++) {
        ids[i] = make_ids(b, i);
        good = ids[i] != NULL;
    }
    b->distinct /= (double)sets;
    for (size_t i = 0; good && i < b->copies; i++) {
        struct ggml_tensor *weight =
            ggml_new_tensor_3d(b->context, type, k, m, llround(b->curve->n_experts));
        good = ats_bench_take_weight(b->bench, weight) &&
               add_node(b, ggml_mul_mat_id(b->context, weight, input, ids[i % sets]));
    }
    return good;
}

/* A cache as llama.cpp's: the heads of a token beside each other. */
static struct ggml_tensor *make_cache(const struct builder *b, enum ggml_type type, int64_t heads)
{
    const int64_t m = llround(b->curve->m);
    const int64_t k = llround(b->curve->k);
    struct ggml_tensor *cache = ggml_new_tensor_2d(b->context, type, k * heads, m);
    if (!ats_bench_take_weight(b->bench, cache)) {
        return NULL;
    }
    struct ggml_tensor *view =
        ggml_view_3d(b->context, cache, k, m, heads, cache->nb[1], ggml_row_size(type, k), 0);
    return ggml_backend_view_init(view) == GGML_STATUS_SUCCESS ? view : NULL;
}

static bool build_attention(const struct builder *b, enum ggml_type type)
{
    const int64_t m = llround(b->curve->m);
    const int64_t k = llround(b->curve->k);
    const int64_t n = llround(b->n);
    const int64_t heads = llround(b->curve->heads);
    const double per_head = 2 * b->curve->m * (double)ggml_row_size(type, k);
    const int64_t kv_heads = llround(b->curve->weight_bytes / per_head);
    struct ggml_tensor *q = ggml_new_tensor_3d(b->context, GGML_TYPE_F32, k, n, heads);
    struct ggml_tensor *mask = ggml_new_tensor_2d(b->context, GGML_TYPE_F16, m, n);
    bool good = kv_heads > 0 && ats_bench_take_input(b->bench, q, 0) &&
                ats_bench_take_input(b->bench, mask, ggml_nbytes(q));
    for (size_t i = 0; good && i < b->copies; i++) {
        struct ggml_tensor *keys = make_cache(b, type, kv_heads);
        struct ggml_tensor *values = make_cache(b, type, kv_heads);
        good = keys != NULL && values != NULL &&
               add_node(b, ggml_flash_attn_ext(b->context, q, keys, values, mask,
                                               1 / sqrtf((float)k), 0, 0));
    }
    return good;
}

/* Rows of BYTES_WIDTH numbers that add up to about n bytes read and written. */
static bool build_bytes(struct builder *b)
{
    const bool is_add = strcmp(b->curve->type, "add") == 0;
    const double row = (is_add ? 3.0 : 2.0) * BYTES_WIDTH * sizeof(float);
    const int64_t rows = llround(b->n / row) > 0 ? llround(b->n / row) : 1;
    struct ggml_tensor *x = ggml_new_tensor_2d(b->context, GGML_TYPE_F32, BYTES_WIDTH, rows);
    struct ggml_tensor *y = ggml_new_tensor_2d(b->context, GGML_TYPE_F32, BYTES_WIDTH, rows);
    bool good = ats_bench_take_input(b->bench, x, 0) &&
                ats_bench_take_input(b->bench, y, is_add ? ggml_nbytes(x) : 0);
    for (size_t i = 0; good && i < b->copies; i++) {
        good =
            add_node(b, is_add ? ggml_add(b->context, x, y) : ggml_rms_norm(b->context, x, 1e-6F));
    }
    return good;
}

static bool build(struct builder *b)
{
    const enum ggml_type type = type_of(b->curve->type);
    if (b->curve->kind == ATS_COST_BYTES) {
        return build_bytes(b);
    }
    if (type == GGML_TYPE_COUNT || llround(b->curve->k) % ggml_blck_size(type) != 0) {
        return false;
    }
    switch (b->curve->kind) {
    case ATS_COST_MATMUL:
        return build_matmul(b, type);
    case ATS_COST_EXPERTS:
        return build_experts(b, type);
    case ATS_COST_ATTENTION:
        return build_attention(b, type);
    default:
        return false;
    }
}

/* Runs `copies` of the operator; `us` is of one. */
static enum ats_bench_result time_copies(struct ats_bench *bench,
                                         const struct ats_profile_curve *curve, double n,
                                         size_t copies, double slot_us,
                                         struct ats_profile_point *point, struct ats_error *err)
{
    struct ats_bench_graph g;
    if (!ats_bench_graph_init(&g, 5 * copies + ID_SETS + 8)) {
        ats_fail(err, "out of memory");
        return ATS_BENCH_FAILED;
    }
    struct builder b = {bench, curve, n, copies, g.context, g.graph, 0};
    enum ats_bench_result result = ATS_BENCH_SKIPPED;
    if (build(&b)) {
        double us = 0;
        result =
            ats_bench_time(bench, g.graph, slot_us, &us, err) ? ATS_BENCH_DONE : ATS_BENCH_FAILED;
        *point = (struct ats_profile_point){n, us / (double)copies, b.distinct};
    }
    ats_bench_graph_free(&g);
    return result;
}

/* Bytes of weights that one operator reads. */
static double bytes_read(const struct ats_profile_curve *curve, double n)
{
    switch (curve->kind) {
    case ATS_COST_EXPERTS:
        return curve->weight_bytes * ats_cost_expected_experts(curve->n_experts, curve->n_used, n);
    case ATS_COST_BYTES: /* activations, which caches do hold */
        return 1;
    default:
        return curve->weight_bytes;
    }
}

enum ats_bench_result ats_bench_point(struct ats_bench *bench,
                                      const struct ats_profile_curve *curve, double n,
                                      double slot_us, struct ats_profile_point *point,
                                      struct ats_error *err)
{
    /* once, to warm up and to know how many times fit */
    struct ats_profile_point one;
    const enum ats_bench_result result = time_copies(bench, curve, n, 1, 0, &one, err);
    if (result != ATS_BENCH_DONE) {
        return result;
    }
    /* in three runs or more, each of them over the whole pool if there is time */
    const double by_pool = ceil((double)bench->pool_bytes / bytes_read(curve, n));
    const double by_time = slot_us / 4 / one.us;
    double copies = by_pool < by_time ? by_pool : by_time;
    copies = copies > MAX_COPIES ? MAX_COPIES : copies;
    if (copies < 2) {
        *point = one;
        return ATS_BENCH_DONE;
    }
    return time_copies(bench, curve, n, (size_t)copies, slot_us, point, err);
}
