#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "emu_model.h"

enum { ROW = 64, ROWS = 8, EXPERTS = 4, USED_EXPERTS = 2, MAX_STEPS = 24 };

struct builder {
    struct ggml_context *ctx;
    struct ats_rng rng;
    struct ggml_tensor *pool[MAX_STEPS + 4]; /* ROW x ROWS, f32 */
    size_t n_pool;
    struct ggml_tensor *cache;
    struct ggml_tensor *rows;
    struct ggml_tensor *positions;
    struct ggml_tensor *expert_ids;
};

static struct ggml_tensor *pick(struct builder *b)
{
    return b->pool[ats_rng_below(&b->rng, b->n_pool)];
}

static struct ggml_tensor *new_weight(struct builder *b)
{
    static const enum ggml_type types[] = {GGML_TYPE_F32, GGML_TYPE_F16, GGML_TYPE_Q8_0,
                                           GGML_TYPE_Q4_0};
    return ggml_new_tensor_2d(b->ctx, types[ats_rng_below(&b->rng, 4)], ROW, ROW);
}

static struct ggml_tensor *attend(struct builder *b, struct ggml_tensor *x)
{
    struct ggml_tensor *scores = ggml_mul_mat(b->ctx, x, pick(b)); /* ROWS x ROWS */
    scores = ggml_soft_max_ext(b->ctx, scores, NULL, 0.125F, 0.0F);
    struct ggml_tensor *values = ggml_cont(b->ctx, ggml_transpose(b->ctx, x));
    return ggml_mul_mat(b->ctx, values, scores);
}

static struct ggml_tensor *use_experts(struct builder *b, struct ggml_tensor *x)
{
    struct ggml_tensor *weights = ggml_new_tensor_3d(b->ctx, GGML_TYPE_Q8_0, ROW, ROW, EXPERTS);
    struct ggml_tensor *columns = ggml_reshape_3d(b->ctx, x, ROW, 1, ROWS);
    struct ggml_tensor *out = ggml_mul_mat_id(b->ctx, weights, columns, b->expert_ids);
    struct ggml_tensor *first = ggml_view_2d(b->ctx, out, ROW, ROWS, out->nb[2], 0);
    struct ggml_tensor *second = ggml_view_2d(b->ctx, out, ROW, ROWS, out->nb[2], out->nb[1]);
    return ggml_add(b->ctx, first, second);
}

/* Writes into a persistent cache and reads it back through a view. */
static struct ggml_tensor *use_cache(struct builder *b, struct ggml_tensor *x,
                                     struct ggml_cgraph *graph)
{
    struct ggml_tensor *written = ggml_set_rows(b->ctx, b->cache, x, b->rows);
    ggml_build_forward_expand(graph, written);
    struct ggml_tensor *view =
        ggml_view_2d(b->ctx, b->cache, ROW, ROWS, b->cache->nb[1], 2 * b->cache->nb[1]);
    return ggml_cont(b->ctx, ggml_cast(b->ctx, view, GGML_TYPE_F32));
}

static struct ggml_tensor *random_step(struct builder *b, struct ggml_cgraph *graph)
{
    struct ggml_tensor *x = pick(b);
    switch (ats_rng_below(&b->rng, 11)) {
    case 0:
        return ggml_mul_mat(b->ctx, new_weight(b), x);
    case 1:
        return ggml_mul(b->ctx, ggml_rms_norm(b->ctx, x, 1e-5F), /* which the CPU backend fuses */
                        ggml_new_tensor_1d(b->ctx, GGML_TYPE_F32, ROW));
    case 2:
        return ggml_add(b->ctx, x, pick(b));
    case 3:
        return ggml_silu(b->ctx, x);
    case 4:
        return ggml_norm(b->ctx, ggml_scale(b->ctx, x, 0.5F), 1e-5F);
    case 5:
        return attend(b, x);
    case 6:
        return use_experts(b, x);
    case 7:
        return use_cache(b, x, graph);
    case 8:
        return ggml_reshape_2d(b->ctx,
                               ggml_rope(b->ctx, ggml_reshape_3d(b->ctx, x, ROW / 2, 2, ROWS),
                                         b->positions, ROW / 2, 0),
                               ROW, ROWS);
    case 9:
        return ggml_add_inplace(b->ctx, ggml_dup(b->ctx, x), pick(b));
    default:
        return ggml_get_rows(b->ctx, x, b->positions);
    }
}

static void fill_tensor(struct ggml_tensor *tensor, struct ats_rng *rng, int64_t limit)
{
    const size_t n = (size_t)ggml_nelements(tensor);
    void *data = malloc(ggml_nbytes(tensor));
    float *values = malloc(n * sizeof(float));
    assert_non_null(data);
    assert_non_null(values);
    for (size_t i = 0; i < n; i++) {
        values[i] = (float)ats_rng_below(rng, 20001) / 10000.0F - 1.0F;
        if (tensor->type == GGML_TYPE_I32) {
            ((int32_t *)data)[i] = (int32_t)ats_rng_below(rng, (uint64_t)limit);
        } else if (tensor->type == GGML_TYPE_I64) {
            ((int64_t *)data)[i] = (int64_t)i * 2 % limit; /* distinct rows */
        }
    }
    if (tensor->type != GGML_TYPE_I32 && tensor->type != GGML_TYPE_I64) {
        ggml_quantize_chunk(tensor->type, values, data, 0, (int64_t)n / tensor->ne[0],
                            tensor->ne[0], NULL);
    }
    ggml_backend_tensor_set(tensor, data, 0, ggml_nbytes(tensor));
    free(values);
    free(data);
}

struct model make_model(uint64_t seed, ggml_backend_buffer_type_t buft)
{
    struct model model = {.ctx = make_context()};
    struct builder b = {.ctx = model.ctx, .rng = {seed}};
    b.cache = ggml_new_tensor_2d(b.ctx, GGML_TYPE_F16, ROW, (int64_t)2 * ROWS);
    b.rows = ggml_new_tensor_1d(b.ctx, GGML_TYPE_I64, ROWS);
    b.positions = ggml_new_tensor_1d(b.ctx, GGML_TYPE_I32, ROWS);
    b.expert_ids = ggml_new_tensor_2d(b.ctx, GGML_TYPE_I32, USED_EXPERTS, ROWS);
    for (int i = 0; i < 3; i++) {
        b.pool[b.n_pool++] = ggml_new_tensor_2d(b.ctx, GGML_TYPE_F32, ROW, ROWS);
    }
    model.graph = ggml_new_graph(model.ctx);
    const size_t n_steps = 4 + ats_rng_below(&b.rng, MAX_STEPS - 4);
    for (size_t i = 0; i < n_steps; i++) {
        struct ggml_tensor *out = random_step(&b, model.graph);
        ggml_build_forward_expand(model.graph, out);
        b.pool[b.n_pool++] = out;
    }
    model.buffer = ggml_backend_alloc_ctx_tensors_from_buft(model.ctx, buft);
    assert_non_null(model.buffer);
    struct ggml_tensor *tensor = ggml_get_first_tensor(model.ctx);
    for (; tensor != NULL; tensor = ggml_get_next_tensor(model.ctx, tensor)) {
        if (tensor->op == GGML_OP_NONE && tensor->view_src == NULL) {
            fill_tensor(tensor, &b.rng,
                        tensor == b.expert_ids ? EXPERTS
                        : tensor == b.rows     ? 2 * ROWS
                                               : ROWS);
        }
    }
    return model;
}

void free_model(struct model *model)
{
    ggml_backend_buffer_free(model->buffer);
    ggml_free(model->ctx);
}

struct ggml_cgraph graph_part(const struct ggml_cgraph *graph, int from, int to)
{
    return (struct ggml_cgraph){.n_nodes = to - from,
                                .nodes = graph->nodes + from,
                                .use_counts = graph->use_counts,
                                .visited_hash_set = graph->visited_hash_set,
                                .order = graph->order};
}

void assert_same_results(const struct model *a, const struct model *b, uint64_t seed)
{
    assert_int_equal(a->graph->n_nodes, b->graph->n_nodes);
    for (int i = 0; i < a->graph->n_nodes; i++) {
        struct ggml_tensor *x = a->graph->nodes[i];
        struct ggml_tensor *y = b->graph->nodes[i];
        if (x->op == GGML_OP_RMS_NORM) {
            continue; /* not written if it was fused */
        }
        const size_t size = ggml_nbytes(x);
        uint8_t *left = malloc(size);
        uint8_t *right = malloc(size);
        assert_non_null(left);
        assert_non_null(right);
        ggml_backend_tensor_get(x, left, 0, size);
        ggml_backend_tensor_get(y, right, 0, size);
        if (memcmp(left, right, size) != 0) {
            fail_msg("seed %llu: node %d (%s) differs", (unsigned long long)seed, i,
                     ggml_op_name(x->op));
        }
        free(left);
        free(right);
    }
}

struct model cpu_reference(uint64_t seed)
{
    ggml_backend_dev_t cpu = ats_emu_cpu_device();
    struct ats_emu_engine engine;
    struct ats_error err = {""};
    assert_true(ats_emu_engine_init(&engine, &err));
    engine.set_n_threads(engine.cpu, TEST_THREADS);
    struct model model = make_model(seed, ggml_backend_dev_buffer_type(cpu));
    assert_int_equal(ggml_backend_graph_compute_async(engine.cpu, model.graph),
                     GGML_STATUS_SUCCESS);
    ats_emu_engine_destroy(&engine);
    return model;
}

void compute_in_parts(ggml_backend_t backend, const struct model *model, struct ats_rng *rng)
{
    for (int at = 0; at < model->graph->n_nodes;) {
        const int left = model->graph->n_nodes - at;
        const int n = 1 + (int)ats_rng_below(rng, (uint64_t)left);
        struct ggml_cgraph part = graph_part(model->graph, at, at + n);
        struct ggml_tensor **nodes = malloc((size_t)n * sizeof(struct ggml_tensor *));
        assert_non_null(nodes);
        memcpy(nodes, part.nodes, (size_t)n * sizeof(struct ggml_tensor *));
        part.nodes = nodes;
        assert_int_equal(ggml_backend_graph_compute_async(backend, &part), GGML_STATUS_SUCCESS);
        memset(nodes, 0x5A, (size_t)n * sizeof(struct ggml_tensor *));
        memset(&part, 0x5A, sizeof(part));
        free(nodes);
        at += n;
    }
}
