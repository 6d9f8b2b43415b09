/* The emulated accelerator: everything it promises, on devices made for each
 * test. Random tests print their seed; EMU_TEST_SEED repeats one. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/rng.h"
#include "emu/backend.h"
#include "emu/device.h"
#include "emu/emu.h"
#include "emu/heap.h"
#include "emu/profile.h"

#include <dlfcn.h>
#include <ggml-alloc.h>
#include <semaphore.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define MIB ((size_t)1 << 20)

/* Threads per computation: ggml's threads wait by spinning, and the tests run
 * up to eight streams at once. Equal on both sides of a comparison. */
enum { TEST_THREADS = 2 };

/* ---- helpers ---- */

static uint64_t first_seed(void)
{
    const char *text = getenv("EMU_TEST_SEED");
    if (text != NULL) {
        return strtoull(text, NULL, 0);
    }
    return (uint64_t)time(NULL) * 1000 + (uint64_t)getpid() % 1000;
}

static struct ats_emu_device *make_device(size_t memory, uint32_t max_delay_us, int index)
{
    struct ats_emu_profile profile = ats_emu_profile_default();
    profile.memory = memory;
    profile.max_delay_us = max_delay_us;
    profile.seed = first_seed();
    struct ats_error err = {""};
    struct ats_emu_device *device = ats_emu_device_create(&profile, index, &err);
    if (device == NULL) {
        fail_msg("%s", err.text);
    }
    return device;
}

static ggml_backend_t make_backend(struct ats_emu_device *device)
{
    ggml_backend_t backend = ggml_backend_dev_init(&device->dev, NULL);
    assert_non_null(backend);
    ats_emu_set_n_threads(backend, TEST_THREADS);
    return backend;
}

static void inject(struct ats_emu_device *device, const char *spec)
{
    struct ats_error err = {""};
    if (!ats_emu_inject(&device->dev, spec, &err)) {
        fail_msg("%s", err.text);
    }
}

static void assert_no_error(ggml_backend_t backend)
{
    char text[256];
    if (ats_emu_take_error(backend, text, sizeof(text))) {
        fail_msg("%s", text);
    }
}

static void assert_error(ggml_backend_t backend, const char *part)
{
    char text[256] = "";
    assert_true(ats_emu_take_error(backend, text, sizeof(text)));
    if (strstr(text, part) == NULL) {
        fail_msg("'%s' does not say '%s'", text, part);
    }
}

static struct ggml_context *make_context(void)
{
    const struct ggml_init_params params = {.mem_size = 4 * MIB, .no_alloc = true};
    struct ggml_context *ctx = ggml_init(params);
    assert_non_null(ctx);
    return ctx;
}

/* One f32 vector in its own buffer. */
struct vector {
    struct ggml_context *ctx;
    ggml_backend_buffer_t buffer;
    struct ggml_tensor *tensor;
};

static struct vector make_vector(ggml_backend_buffer_type_t buft, int64_t n)
{
    struct vector v = {.ctx = make_context()};
    v.tensor = ggml_new_tensor_1d(v.ctx, GGML_TYPE_F32, n);
    v.buffer = ggml_backend_alloc_ctx_tensors_from_buft(v.ctx, buft);
    assert_non_null(v.buffer);
    return v;
}

static void free_vector(struct vector *v)
{
    ggml_backend_buffer_free(v->buffer);
    ggml_free(v->ctx);
}

static void fill(float *values, size_t n, float value)
{
    for (size_t i = 0; i < n; i++) {
        values[i] = value;
    }
}

static void assert_all(const float *values, size_t n, float expected)
{
    for (size_t i = 0; i < n; i++) {
        if (values[i] != expected) {
            fail_msg("element %zu is %g, not %g", i, (double)values[i], (double)expected);
        }
    }
}

static void assert_poison(const void *data, size_t size)
{
    for (size_t i = 0; i < size; i++) {
        if (((const uint8_t *)data)[i] != ATS_EMU_POISON) {
            fail_msg("byte %zu is not poison", i);
        }
    }
}

/* ---- random graphs ---- */

enum { ROW = 64, ROWS = 8, EXPERTS = 4, USED_EXPERTS = 2, MAX_STEPS = 24 };

/* The same seed gives the same graph and the same data on any buffer type. */
struct model {
    struct ggml_context *ctx;
    struct ggml_context *ctx_graph;
    ggml_backend_buffer_t buffer;
    struct ggml_cgraph *graph;
};

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

static struct model make_model(uint64_t seed, ggml_backend_buffer_type_t buft)
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

static void free_model(struct model *model)
{
    ggml_backend_buffer_free(model->buffer);
    ggml_free(model->ctx);
}

/* The nodes [from, to) of a graph, with its use counts, as ggml_graph_view gives them. */
static struct ggml_cgraph graph_part(const struct ggml_cgraph *graph, int from, int to)
{
    return (struct ggml_cgraph){.n_nodes = to - from,
                                .nodes = graph->nodes + from,
                                .use_counts = graph->use_counts,
                                .visited_hash_set = graph->visited_hash_set,
                                .order = graph->order};
}

static void assert_same_results(const struct model *a, const struct model *b, uint64_t seed)
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

static struct model cpu_reference(uint64_t seed)
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

/* Enqueues the whole graph in parts from a copy that is destroyed right away. */
static void compute_in_parts(ggml_backend_t backend, const struct model *model, struct ats_rng *rng)
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

static void test_results_equal_the_cpu_backends(void **state)
{
    (void)state;
    const uint64_t seed = first_seed();
    print_message("seed %llu\n", (unsigned long long)seed);
    struct ats_emu_device *device = make_device(64 * MIB, 100, 0);
    ggml_backend_t backend = make_backend(device);
    for (uint64_t i = 0; i < 40; i++) {
        struct ats_rng rng = {seed + i};
        struct model expected = cpu_reference(seed + i);
        struct model model = make_model(seed + i, &device->buft);
        compute_in_parts(backend, &model, &rng);
        ggml_backend_synchronize(backend);
        assert_no_error(backend);
        assert_same_results(&expected, &model, seed + i);
        free_model(&model);
        free_model(&expected);
    }
    ggml_backend_free(backend);
    ats_emu_device_destroy(device);
}

/* The caller overwrites its tensors right after the call; the copy must not notice. */
static void test_graph_is_independent_after_enqueue(void **state)
{
    (void)state;
    const uint64_t seed = first_seed();
    struct ats_emu_device *device = make_device(64 * MIB, 3000, 0);
    ggml_backend_t backend = make_backend(device);
    for (uint64_t i = 0; i < 5; i++) {
        struct model expected = cpu_reference(seed + i);
        struct model model = make_model(seed + i, &device->buft);
        struct ggml_tensor *saved = malloc((size_t)model.graph->n_nodes * sizeof(saved[0]));
        assert_non_null(saved);
        assert_int_equal(ggml_backend_graph_compute_async(backend, model.graph),
                         GGML_STATUS_SUCCESS);
        for (int n = 0; n < model.graph->n_nodes; n++) {
            saved[n] = *model.graph->nodes[n];
            memset(model.graph->nodes[n], 0x5A, sizeof(saved[n]));
        }
        ggml_backend_synchronize(backend);
        for (int n = 0; n < model.graph->n_nodes; n++) {
            *model.graph->nodes[n] = saved[n];
        }
        free(saved);
        assert_same_results(&expected, &model, seed + i);
        free_model(&model);
        free_model(&expected);
    }
    ggml_backend_free(backend);
    ats_emu_device_destroy(device);
}

/* What ggml decides fusion by is the same for the copy as for the original, also in parts. */
static void test_copies_keep_use_counts_and_views(void **state)
{
    (void)state;
    struct ats_emu_device *device = make_device(64 * MIB, 0, 0);
    struct ats_emu_cloner cloner;
    ats_emu_cloner_init(&cloner);
    const uint64_t seed = first_seed();
    int n_fused = 0;
    for (uint64_t i = 0; i < 30; i++) {
        struct ats_rng rng = {seed + i};
        struct model model = make_model(seed + i, &device->buft);
        const int n_nodes = model.graph->n_nodes;
        const int from = (int)ats_rng_below(&rng, (uint64_t)n_nodes);
        struct ggml_cgraph part = graph_part(model.graph, from, n_nodes);
        struct ats_error err = {""};
        struct ats_emu_graph *copy = ats_emu_clone(&cloner, device, &part, &err);
        assert_non_null(copy);
        static const enum ggml_op ops[] = {GGML_OP_RMS_NORM, GGML_OP_MUL};
        for (int n = 0; n < part.n_nodes; n++) {
            assert_int_equal(ggml_node_get_use_count(&part, n),
                             ggml_node_get_use_count(&copy->cgraph, n));
            const bool fused = ggml_can_fuse(&part, n, ops, 2);
            assert_int_equal(fused, ggml_can_fuse(&copy->cgraph, n, ops, 2));
            n_fused += fused;
            const struct ggml_tensor *x = part.nodes[n];
            const struct ggml_tensor *y = copy->cgraph.nodes[n];
            assert_int_equal(x->view_src == NULL, y->view_src == NULL);
            assert_true(y->view_src == NULL ||
                        (uint8_t *)y->data == (uint8_t *)y->view_src->data + y->view_offs);
        }
        ats_emu_clone_release(&cloner, copy);
        free_model(&model);
    }
    assert_true(n_fused > 0);
    ats_emu_cloner_destroy(&cloner);
    ats_emu_device_destroy(device);
}

/* Node after node on a random stream, each waiting for the one before by an event. */
static void test_events_order_streams(void **state)
{
    (void)state;
    enum { STREAMS = 3 };
    const uint64_t seed = first_seed();
    print_message("seed %llu\n", (unsigned long long)seed);
    struct ats_emu_device *device = make_device(64 * MIB, 300, 0);
    ggml_backend_t streams[STREAMS];
    for (int i = 0; i < STREAMS; i++) {
        streams[i] = make_backend(device);
    }
    ggml_backend_event_t event = ggml_backend_event_new(&device->dev);
    ggml_backend_event_wait(streams[0], event); /* never recorded: no wait */
    ggml_backend_event_synchronize(event);
    for (uint64_t i = 0; i < 8; i++) {
        struct ats_rng rng = {seed + i};
        struct model expected = cpu_reference(seed + i);
        struct model model = make_model(seed + i, &device->buft);
        for (int n = 0; n < model.graph->n_nodes;) {
            /* a fused pair stays together, as any real splitting has to see to */
            const bool pair = model.graph->nodes[n]->op == GGML_OP_RMS_NORM;
            struct ggml_cgraph part = graph_part(model.graph, n, n + (pair ? 2 : 1));
            ggml_backend_t stream = streams[ats_rng_below(&rng, STREAMS)];
            ggml_backend_event_wait(stream, event);
            assert_int_equal(ggml_backend_graph_compute_async(stream, &part), GGML_STATUS_SUCCESS);
            ggml_backend_event_record(event, stream);
            n += part.n_nodes;
        }
        ggml_backend_event_synchronize(event);
        assert_same_results(&expected, &model, seed + i);
        free_model(&model);
        free_model(&expected);
    }
    ggml_backend_event_free(event);
    for (int i = 0; i < STREAMS; i++) {
        ggml_backend_free(streams[i]);
    }
    ats_emu_device_destroy(device);
}

struct worker {
    struct ats_emu_device *device;
    uint64_t seed;
    pthread_t thread;
    bool same;
};

static void *worker_main(void *argument)
{
    struct worker *worker = argument;
    ggml_backend_t backend = make_backend(worker->device);
    for (uint64_t i = 0; i < 4; i++) {
        struct ats_rng rng = {worker->seed + i};
        struct model expected = cpu_reference(worker->seed + i);
        struct model model = make_model(worker->seed + i, &worker->device->buft);
        compute_in_parts(backend, &model, &rng);
        ggml_backend_synchronize(backend);
        assert_same_results(&expected, &model, worker->seed + i);
        free_model(&model);
        free_model(&expected);
    }
    ggml_backend_free(backend);
    worker->same = true;
    return NULL;
}

static void test_many_streams_at_once(void **state)
{
    (void)state;
    enum { WORKERS = 8 };
    const uint64_t seed = first_seed();
    struct ats_emu_device *devices[2] = {make_device(64 * MIB, 100, 0),
                                         make_device(64 * MIB, 0, 1)};
    struct worker workers[WORKERS];
    for (uint64_t i = 0; i < WORKERS; i++) {
        workers[i] = (struct worker){.device = devices[i % 2], .seed = seed + i * 1000};
        assert_int_equal(pthread_create(&workers[i].thread, NULL, worker_main, &workers[i]), 0);
    }
    for (int i = 0; i < WORKERS; i++) {
        pthread_join(workers[i].thread, NULL);
        assert_true(workers[i].same);
    }
    ats_emu_device_destroy(devices[0]);
    ats_emu_device_destroy(devices[1]);
}

/* ---- memory ---- */

static void exit_on_fault(int signal_number)
{
    (void)signal_number;
    _exit(42);
}

static void test_host_cannot_read_device_memory(void **state)
{
    (void)state;
    struct ats_emu_device *device = make_device(16 * MIB, 0, 0);
    struct vector v = make_vector(&device->buft, 16);
    fflush(stdout);
    const pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        struct sigaction action = {.sa_handler = exit_on_fault};
        sigaction(SIGSEGV, &action, NULL);
        _exit(*(volatile const char *)v.tensor->data == 0 ? 0 : 1);
    }
    int status = 0;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 42);
    free_vector(&v);
    ats_emu_device_destroy(device);
}

static void test_memory_is_limited_and_accounted(void **state)
{
    (void)state;
    struct ats_emu_device *device = make_device(16 * MIB, 0, 0);
    device->profile.max_buffer = 12 * MIB;
    size_t available = 0;
    size_t total = 0;
    ggml_backend_dev_memory(&device->dev, &available, &total);
    assert_int_equal(total, 16 * MIB);
    assert_int_equal(available, 16 * MIB);
    assert_null(ggml_backend_buft_alloc_buffer(&device->buft, 12 * MIB + 1));
    assert_null(ggml_backend_buft_alloc_buffer(&device->buft, SIZE_MAX));
    ggml_backend_buffer_t first = ggml_backend_buft_alloc_buffer(&device->buft, 12 * MIB);
    assert_non_null(first);
    assert_null(ggml_backend_buft_alloc_buffer(&device->buft, 4 * MIB + 1));
    ggml_backend_buffer_t second = ggml_backend_buft_alloc_buffer(&device->buft, 4 * MIB);
    assert_non_null(second);
    ggml_backend_dev_memory(&device->dev, &available, &total);
    assert_int_equal(available, 0);
    assert_null(ggml_backend_buft_alloc_buffer(&device->buft, 1));
    ggml_backend_buffer_free(first);
    ggml_backend_buffer_free(second);
    ggml_backend_dev_memory(&device->dev, &available, &total);
    assert_int_equal(available, 16 * MIB);
    ats_emu_device_destroy(device);
}

static void test_fresh_memory_is_poison(void **state)
{
    (void)state;
    enum { N = 3 * 4096 };
    struct ats_emu_device *device = make_device(MIB, 0, 0);
    static float values[N];
    for (int round = 0; round < 3; round++) {
        struct vector v = make_vector(&device->buft, N);
        memset(values, 0, sizeof(values));
        ggml_backend_tensor_get(v.tensor, values, 0, sizeof(values));
        assert_poison(values, sizeof(values));
        fill(values, N, 1.0F);
        ggml_backend_tensor_set(v.tensor, values, 0, sizeof(values));
        ggml_backend_tensor_memset(v.tensor, 0, 0, 4);
        ggml_backend_tensor_get(v.tensor, values, 0, 8);
        assert_true(values[0] == 0.0F && values[1] == 1.0F);
        ggml_backend_buffer_clear(v.buffer, 0);
        ggml_backend_tensor_get(v.tensor, values, 0, sizeof(values));
        assert_all(values, N, 0.0F);
        free_vector(&v);
    }
    ats_emu_device_destroy(device);
}

static void test_large_device_costs_nothing_until_used(void **state)
{
    (void)state;
    struct ats_emu_device *device = make_device((size_t)256 << 30, 0, 0);
    ggml_backend_buffer_t buffer = ggml_backend_buft_alloc_buffer(&device->buft, (size_t)200 << 30);
    assert_non_null(buffer);
    ggml_backend_buffer_free(buffer);
    ats_emu_device_destroy(device);
}

static void test_heap_never_overlaps_and_always_coalesces(void **state)
{
    (void)state;
    enum { LIVE = 64 };
    const uint64_t seed = first_seed();
    print_message("seed %llu\n", (unsigned long long)seed);
    struct ats_rng rng = {seed};
    struct ats_emu_heap heap;
    const size_t size = 1 << 16;
    assert_true(ats_emu_heap_init(&heap, size));
    size_t offsets[LIVE];
    size_t sizes[LIVE] = {0};
    for (int step = 0; step < 20000; step++) {
        const size_t i = ats_rng_below(&rng, LIVE);
        if (sizes[i] > 0) {
            assert_int_equal(ats_emu_heap_free(&heap, offsets[i]), sizes[i]);
            assert_int_equal(ats_emu_heap_free(&heap, offsets[i]), 0);
            sizes[i] = 0;
        } else {
            const size_t wanted = 1 + ats_rng_below(&rng, size / 16);
            const size_t alignment = (size_t)1 << ats_rng_below(&rng, 9);
            if (ats_emu_heap_alloc(&heap, wanted, alignment, &offsets[i])) {
                sizes[i] = wanted;
                assert_int_equal(offsets[i] % alignment, 0);
                assert_true(ats_emu_heap_contains(&heap, offsets[i], wanted));
                assert_false(ats_emu_heap_contains(&heap, offsets[i], wanted + 1));
            }
        }
        for (size_t j = 0; j < LIVE && sizes[i] > 0; j++) {
            assert_true(j == i || sizes[j] == 0 || offsets[j] + sizes[j] <= offsets[i] ||
                        offsets[i] + sizes[i] <= offsets[j]);
        }
        assert_true(ats_emu_heap_valid(&heap));
    }
    for (size_t i = 0; i < LIVE; i++) {
        if (sizes[i] > 0) {
            ats_emu_heap_free(&heap, offsets[i]);
        }
    }
    assert_int_equal(heap.n_blocks, 1);
    assert_false(ats_emu_heap_alloc(&heap, size + 1, 1, &offsets[0]));
    assert_true(ats_emu_heap_alloc(&heap, size, 1, &offsets[0]));
    ats_emu_heap_destroy(&heap);
}

static void test_pinned_ranges(void **state)
{
    (void)state;
    static char memory[4096];
    assert_true(ats_emu_pinned_register(memory + 1024, 1024));
    assert_false(ats_emu_pinned_register(memory + 1024, 1024));
    assert_false(ats_emu_pinned_register(memory, 1025));
    assert_false(ats_emu_pinned_register(memory + 2047, 10));
    assert_false(ats_emu_pinned_register(NULL, 10));
    assert_false(ats_emu_pinned_register(memory, 0));
    assert_true(ats_emu_pinned_register(memory, 1024));
    assert_true(ats_emu_pinned_contains(memory + 1024, 1024));
    assert_true(ats_emu_pinned_contains(memory + 2047, 1));
    assert_false(ats_emu_pinned_contains(memory + 2048, 1));
    assert_false(ats_emu_pinned_contains(memory + 1025, 1024));
    assert_true(ats_emu_pinned_unregister(memory));
    assert_false(ats_emu_pinned_unregister(memory));
    assert_false(ats_emu_pinned_contains(memory, 1));
    assert_true(ats_emu_pinned_unregister(memory + 1024));
    char *pinned = ats_emu_pinned_alloc(5000);
    assert_non_null(pinned);
    assert_poison(pinned, 5000);
    assert_false(ats_emu_pinned_unregister(pinned));
    ats_emu_pinned_free(pinned);
    assert_false(ats_emu_pinned_contains(pinned, 1));
}

/* ---- ordering ---- */

/* Holds a stream: an operator on another stream is kept from ending until the
 * gate opens, and the held stream waits for its event. */
struct gate {
    ggml_backend_t stream;
    ggml_backend_event_t event;
    struct vector v;
    struct ggml_cgraph *graph;
    sem_t entered;
    sem_t opened;
    bool has_entered;
    bool abort;
    enum ggml_status status;
    pthread_t thread;
};

static bool gate_callback(void *data)
{
    struct gate *gate = data;
    if (!gate->has_entered) {
        gate->has_entered = true;
        sem_post(&gate->entered);
        sem_wait(&gate->opened);
    }
    return gate->abort;
}

static void *gate_main(void *data)
{
    struct gate *gate = data;
    gate->status = ggml_backend_graph_compute_async(gate->stream, gate->graph);
    return NULL;
}

static void close_gate(struct gate *gate, struct ats_emu_device *device)
{
    *gate = (struct gate){.stream = make_backend(device),
                          .event = ggml_backend_event_new(&device->dev)};
    gate->v.ctx = make_context();
    gate->v.tensor = ggml_new_tensor_1d(gate->v.ctx, GGML_TYPE_F32, 16);
    gate->graph = ggml_new_graph(gate->v.ctx);
    struct ggml_tensor *first = ggml_silu(gate->v.ctx, gate->v.tensor);
    ggml_build_forward_expand(gate->graph, ggml_silu(gate->v.ctx, first));
    gate->v.buffer = ggml_backend_alloc_ctx_tensors_from_buft(gate->v.ctx, &device->buft);
    assert_non_null(gate->v.buffer);
    ggml_backend_buffer_clear(gate->v.buffer, 0);
    sem_init(&gate->entered, 0, 0);
    sem_init(&gate->opened, 0, 0);
    ats_emu_set_abort_callback(gate->stream, gate_callback, gate);
    assert_int_equal(pthread_create(&gate->thread, NULL, gate_main, gate), 0);
    sem_wait(&gate->entered);
    ggml_backend_event_record(gate->event, gate->stream);
}

static void open_gate(struct gate *gate)
{
    sem_post(&gate->opened);
    pthread_join(gate->thread, NULL);
}

static void free_gate(struct gate *gate)
{
    ggml_backend_free(gate->stream);
    ggml_backend_event_free(gate->event);
    free_vector(&gate->v);
    sem_destroy(&gate->entered);
    sem_destroy(&gate->opened);
}

static void test_pageable_is_staged_and_pinned_is_read_late(void **state)
{
    (void)state;
    enum { N = 1000 };
    struct ats_emu_device *device = make_device(16 * MIB, 0, 0);
    ggml_backend_t backend = make_backend(device);
    struct vector from_pageable = make_vector(&device->buft, N);
    struct vector from_pinned = make_vector(&device->buft, N);
    struct vector pinned = make_vector(&device->host_buft, N);
    struct vector target = make_vector(&device->host_buft, N);
    assert_true(ggml_backend_buft_is_host(&device->host_buft));
    float *source = pinned.tensor->data;
    float pageable[N];
    fill(pageable, N, 1.0F);
    fill(source, N, 1.0F);
    fill(target.tensor->data, N, 0.0F);

    struct gate gate;
    close_gate(&gate, device);
    ggml_backend_event_wait(backend, gate.event);
    ggml_backend_tensor_set_async(backend, from_pageable.tensor, pageable, 0, sizeof(pageable));
    ggml_backend_tensor_set_async(backend, from_pinned.tensor, source, 0, sizeof(pageable));
    ggml_backend_tensor_get_async(backend, from_pageable.tensor, target.tensor->data, 0,
                                  sizeof(pageable));
    fill(pageable, N, 2.0F);
    fill(source, N, 2.0F);
    assert_all(target.tensor->data, N, 0.0F); /* nothing has been executed */
    open_gate(&gate);
    ggml_backend_synchronize(backend);
    assert_no_error(backend);
    assert_all(target.tensor->data, N, 1.0F);
    ggml_backend_tensor_get(from_pinned.tensor, pageable, 0, sizeof(pageable));
    assert_all(pageable, N, 2.0F);
    fill(pageable, N, 0.0F);
    ggml_backend_tensor_get_async(backend, from_pageable.tensor, pageable, 0, sizeof(pageable));
    assert_all(pageable, N, 1.0F); /* pageable: done on return */

    free_gate(&gate);
    free_vector(&from_pageable);
    free_vector(&from_pinned);
    free_vector(&pinned);
    free_vector(&target);
    ggml_backend_free(backend);
    ats_emu_device_destroy(device);
}

static void test_2d_copies(void **state)
{
    (void)state;
    struct ats_emu_device *device = make_device(16 * MIB, 50, 0);
    ggml_backend_t backend = make_backend(device);
    struct vector v = make_vector(&device->buft, 12);
    const float in[9] = {1, 2, 99, 3, 4, 99, 5, 6, 99};
    float out[6] = {0};
    for (int async = 0; async < 2; async++) {
        ggml_backend_buffer_clear(v.buffer, 0);
        if (async) {
            ggml_backend_tensor_set_2d_async(backend, v.tensor, in, 4, 8, 3, 16, 12);
            ggml_backend_tensor_get_2d_async(backend, v.tensor, out, 4, 8, 3, 16, 8);
        } else {
            ggml_backend_tensor_set_2d(v.tensor, in, 4, 8, 3, 16, 12);
            ggml_backend_tensor_get_2d(v.tensor, out, 4, 8, 3, 16, 8);
        }
        for (int i = 0; i < 6; i++) {
            assert_true(out[i] == (float)(i + 1));
        }
        float all[12];
        ggml_backend_tensor_get(v.tensor, all, 0, sizeof(all));
        assert_true(all[0] == 0.0F && all[3] == 0.0F && all[4] == 0.0F && all[7] == 0.0F);
    }
    assert_no_error(backend);
    free_vector(&v);
    ggml_backend_free(backend);
    ats_emu_device_destroy(device);
}

static void test_large_pageable_source(void **state)
{
    (void)state;
    const size_t n = 5 * MIB; /* floats: beyond what is staged */
    struct ats_emu_device *device = make_device(64 * MIB, 50, 0);
    ggml_backend_t backend = make_backend(device);
    struct vector v = make_vector(&device->buft, (int64_t)n);
    float *values = malloc(n * sizeof(float));
    assert_non_null(values);
    fill(values, n, 3.0F);
    ggml_backend_tensor_set_async(backend, v.tensor, values, 0, n * sizeof(float));
    fill(values, n, 4.0F);
    ggml_backend_tensor_get_async(backend, v.tensor, values, 0, n * sizeof(float));
    assert_all(values, n, 3.0F);
    free(values);
    free_vector(&v);
    ggml_backend_free(backend);
    ats_emu_device_destroy(device);
}

static void test_freeing_a_buffer_waits_for_its_streams(void **state)
{
    (void)state;
    struct ats_emu_device *device = make_device(64 * MIB, 500, 0);
    ggml_backend_t backend = make_backend(device);
    const uint64_t seed = first_seed();
    for (uint64_t i = 0; i < 10; i++) {
        struct vector pinned = make_vector(&device->host_buft, 1000);
        struct vector v = make_vector(&device->buft, 1000);
        struct model model = make_model(seed + i, &device->buft);
        struct ats_rng rng = {seed};
        compute_in_parts(backend, &model, &rng);
        ggml_backend_tensor_set_async(backend, v.tensor, pinned.tensor->data, 0, 4000);
        free_vector(&pinned);
        free_vector(&v);
        free_model(&model);
    }
    assert_no_error(backend);
    ggml_backend_free(backend);
    ats_emu_device_destroy(device);
}

struct freeing {
    struct vector *v;
    atomic_bool done;
    pthread_t thread;
};

static void *freeing_main(void *data)
{
    struct freeing *freeing = data;
    ggml_backend_buffer_free(freeing->v->buffer);
    atomic_store(&freeing->done, true);
    return NULL;
}

static void test_freeing_blocks_while_a_stream_is_busy(void **state)
{
    (void)state;
    struct ats_emu_device *device = make_device(16 * MIB, 0, 0);
    struct vector vectors[2] = {make_vector(&device->buft, 16),
                                make_vector(&device->host_buft, 16)};
    for (int i = 0; i < 2; i++) {
        struct gate gate;
        close_gate(&gate, device);
        struct freeing freeing = {.v = &vectors[i]};
        assert_int_equal(pthread_create(&freeing.thread, NULL, freeing_main, &freeing), 0);
        usleep(30000);
        assert_false(atomic_load(&freeing.done));
        open_gate(&gate);
        pthread_join(freeing.thread, NULL);
        ggml_free(vectors[i].ctx);
        free_gate(&gate);
    }
    ats_emu_device_destroy(device);
}

static void test_copies_between_devices(void **state)
{
    (void)state;
    enum { N = 5000 };
    struct ats_emu_device *devices[2] = {make_device(16 * MIB, 200, 0),
                                         make_device(16 * MIB, 200, 1)};
    ggml_backend_t streams[3] = {make_backend(devices[0]), make_backend(devices[1]),
                                 make_backend(devices[0])};
    struct vector a = make_vector(&devices[0]->buft, N);
    struct vector b = make_vector(&devices[1]->buft, N);
    struct vector c = make_vector(&devices[0]->buft, N);
    float values[N];
    for (int round = 0; round < 20; round++) {
        fill(values, N, (float)round);
        ggml_backend_tensor_set_async(streams[0], a.tensor, values, 0, sizeof(values));
        ggml_backend_tensor_copy_async(streams[0], streams[1], a.tensor, b.tensor);
        ggml_backend_tensor_copy_async(streams[1], streams[2], b.tensor, c.tensor);
        ggml_backend_tensor_get_async(streams[2], c.tensor, values, 0, sizeof(values));
        assert_all(values, N, (float)round);
    }
    ggml_backend_buffer_clear(b.buffer, 0);
    ggml_backend_tensor_copy(c.tensor, b.tensor);
    ggml_backend_tensor_get(b.tensor, values, 0, sizeof(values));
    assert_all(values, N, 19.0F);
    ggml_backend_tensor_set_async(streams[0], b.tensor, values, 0, 4); /* another device's */
    assert_error(streams[0], "illegal address");
    assert_no_error(streams[1]);
    for (int i = 0; i < 3; i++) {
        ggml_backend_free(streams[i]);
    }
    free_vector(&a);
    free_vector(&b);
    free_vector(&c);
    ats_emu_device_destroy(devices[0]);
    ats_emu_device_destroy(devices[1]);
}

/* ---- refusals, aborts, failures ---- */

static void custom_op(struct ggml_tensor *dst, int ith, int nth, void *data)
{
    (void)dst, (void)ith, (void)nth, (void)data;
}

static void test_foreign_tensors_and_host_functions_are_refused(void **state)
{
    (void)state;
    struct ats_emu_device *device = make_device(16 * MIB, 0, 0);
    ggml_backend_t backend = make_backend(device);
    ggml_backend_buffer_type_t cpu = ggml_backend_dev_buffer_type(ats_emu_cpu_device());
    struct model on_cpu = make_model(1, cpu);
    assert_int_equal(ggml_backend_graph_compute_async(backend, on_cpu.graph), GGML_STATUS_FAILED);
    assert_no_error(backend);
    struct model pinned = make_model(1, &device->host_buft);
    struct model expected = cpu_reference(1);
    assert_int_equal(ggml_backend_graph_compute_async(backend, pinned.graph), GGML_STATUS_SUCCESS);
    ggml_backend_synchronize(backend);
    assert_same_results(&expected, &pinned, 1);

    struct model custom = {.ctx = make_context()};
    struct ggml_tensor *op =
        ggml_custom_4d(custom.ctx, GGML_TYPE_F32, 4, 1, 1, 1, NULL, 0, custom_op, 1, NULL);
    custom.graph = ggml_new_graph(custom.ctx);
    ggml_build_forward_expand(custom.graph, op);
    custom.buffer = ggml_backend_alloc_ctx_tensors_from_buft(custom.ctx, &device->buft);
    assert_false(ggml_backend_dev_supports_op(&device->dev, op));
    assert_int_equal(ggml_backend_graph_compute_async(backend, custom.graph), GGML_STATUS_FAILED);

    /* memory that was given back */
    struct model stale = make_model(1, &device->buft);
    ggml_backend_buffer_free(stale.buffer);
    assert_int_equal(ggml_backend_graph_compute_async(backend, stale.graph), GGML_STATUS_FAILED);
    ggml_free(stale.ctx);

    free_model(&custom);
    free_model(&on_cpu);
    free_model(&pinned);
    free_model(&expected);
    ggml_backend_free(backend);
    ats_emu_device_destroy(device);
}

static bool always(void *data)
{
    (void)data;
    return true;
}

static void test_abort_is_a_status_and_not_a_failure(void **state)
{
    (void)state;
    struct ats_emu_device *device = make_device(16 * MIB, 0, 0);
    ggml_backend_t backend = make_backend(device);
    struct model model = make_model(7, &device->buft);
    struct model expected = cpu_reference(7);
    ats_emu_set_abort_callback(backend, always, NULL);
    assert_int_equal(ggml_backend_graph_compute_async(backend, model.graph), GGML_STATUS_ABORTED);
    assert_no_error(backend);
    free_model(&model);
    model = make_model(7, &device->buft);
    ats_emu_set_abort_callback(backend, NULL, NULL);
    ats_emu_set_n_threads(backend, 2);
    assert_int_equal(ggml_backend_graph_compute_async(backend, model.graph), GGML_STATUS_SUCCESS);
    ggml_backend_synchronize(backend);
    assert_no_error(backend);
    assert_same_results(&expected, &model, 7);
    free_model(&model);
    free_model(&expected);
    ggml_backend_free(backend);
    ats_emu_device_destroy(device);
}

static void test_injected_allocation_failures(void **state)
{
    (void)state;
    struct ats_emu_device *device = make_device(16 * MIB, 0, 0);
    inject(device, "alloc:2,pinned:1");
    ggml_backend_buffer_t first = ggml_backend_buft_alloc_buffer(&device->buft, 100);
    assert_non_null(first);
    assert_null(ggml_backend_buft_alloc_buffer(&device->buft, 100));
    ggml_backend_buffer_t third = ggml_backend_buft_alloc_buffer(&device->buft, 100);
    assert_non_null(third);
    ggml_backend_buffer_t pageable = ggml_backend_buft_alloc_buffer(&device->host_buft, 100);
    assert_non_null(pageable); /* as CUDA: falls back */
    assert_false(ats_emu_pinned_contains(ggml_backend_buffer_get_base(pageable), 100));
    inject(device, "alloc:1+");
    for (int i = 0; i < 3; i++) {
        assert_null(ggml_backend_buft_alloc_buffer(&device->buft, 100));
    }
    inject(device, "off");
    ggml_backend_buffer_free(first);
    ggml_backend_buffer_free(third);
    ggml_backend_buffer_free(pageable);
    ats_emu_device_destroy(device);
}

static void test_injected_copy_failures(void **state)
{
    (void)state;
    enum { N = 16 };
    struct ats_emu_device *device = make_device(16 * MIB, 50, 0);
    ggml_backend_t backend = make_backend(device);
    ggml_backend_t other = make_backend(device);
    struct model model = make_model(3, &device->buft);
    struct vector v = make_vector(&device->buft, N);
    struct vector w = make_vector(&device->buft, N);
    float values[N];
    fill(values, N, 1.0F);

    inject(device, "copy:1");
    ggml_backend_tensor_set_async(backend, v.tensor, values, 0, sizeof(values));
    ggml_backend_synchronize(backend);
    assert_int_equal(ggml_backend_graph_compute_async(backend, model.graph), GGML_STATUS_FAILED);
    ggml_backend_tensor_get_async(backend, v.tensor, values, 0, sizeof(values));
    assert_poison(values, sizeof(values)); /* not executed while an error is latched */
    assert_error(backend, "injected failure of a copy");
    assert_no_error(backend);
    assert_int_equal(ggml_backend_graph_compute_async(backend, model.graph), GGML_STATUS_SUCCESS);
    ggml_backend_synchronize(backend);
    assert_no_error(backend);

    inject(device, "copy:1"); /* on a buffer: reported by any stream of the device */
    fill(values, N, 1.0F);
    ggml_backend_tensor_set(v.tensor, values, 0, sizeof(values));
    assert_int_equal(ggml_backend_graph_compute_async(other, model.graph), GGML_STATUS_FAILED);
    assert_error(other, "injected failure of a copy");

    inject(device, "copy:1"); /* between streams: both know */
    ggml_backend_tensor_copy_async(backend, other, v.tensor, w.tensor);
    ggml_backend_synchronize(other);
    assert_error(other, "did not arrive");
    assert_error(backend, "injected failure of a copy");

    free_vector(&v);
    free_vector(&w);
    free_model(&model);
    ggml_backend_free(backend);
    ggml_backend_free(other);
    ats_emu_device_destroy(device);
}

static void test_injected_compute_failures(void **state)
{
    (void)state;
    struct ats_emu_device *device = make_device(16 * MIB, 50, 0);
    ggml_backend_t backend = make_backend(device);
    ggml_backend_t other = make_backend(device);
    struct model model = make_model(3, &device->buft);
    inject(device, "compute:2");
    assert_int_equal(ggml_backend_graph_compute_async(backend, model.graph), GGML_STATUS_SUCCESS);
    assert_int_equal(ggml_backend_graph_compute_async(backend, model.graph), GGML_STATUS_SUCCESS);
    ggml_backend_synchronize(backend);
    assert_int_equal(ggml_backend_graph_compute_async(backend, model.graph), GGML_STATUS_FAILED);
    assert_int_equal(ggml_backend_graph_compute_async(other, model.graph), GGML_STATUS_SUCCESS);
    ggml_backend_synchronize(other);
    assert_error(backend, "injected failure of a compute");
    assert_int_equal(ggml_backend_graph_compute_async(backend, model.graph), GGML_STATUS_SUCCESS);
    ggml_backend_synchronize(backend);
    assert_no_error(backend);
    assert_no_error(other);
    ats_emu_set_abort_callback(backend, always, NULL); /* a waiting caller gets the status itself */
    inject(device, "compute:1");
    assert_int_equal(ggml_backend_graph_compute_async(backend, model.graph), GGML_STATUS_FAILED);
    assert_error(backend, "injected failure of a compute");
    free_model(&model);
    ggml_backend_free(backend);
    ggml_backend_free(other);
    ats_emu_device_destroy(device);
}

/* The device goes away at each command in turn; nothing may hang or crash. */
static void test_device_loss(void **state)
{
    (void)state;
    enum { N = 256 };
    for (int at = 1; at <= 8; at++) {
        struct ats_emu_device *device = make_device(16 * MIB, 200, 0);
        ggml_backend_t streams[2] = {make_backend(device), make_backend(device)};
        ggml_backend_event_t event = ggml_backend_event_new(&device->dev);
        struct model model = make_model(3, &device->buft);
        struct vector v = make_vector(&device->buft, N);
        struct vector pinned = make_vector(&device->host_buft, N);
        char spec[24];
        snprintf(spec, sizeof(spec), "loss:%d", at);
        inject(device, spec);
        float values[N] = {0};
        for (int i = 0; i < 4; i++) {
            ggml_backend_t stream = streams[i % 2];
            ggml_backend_event_wait(stream, event);
            ggml_backend_tensor_set_async(stream, v.tensor, values, 0, sizeof(values));
            ggml_backend_graph_compute_async(stream, model.graph);
            ggml_backend_tensor_copy_async(stream, streams[(i + 1) % 2], v.tensor, v.tensor);
            ggml_backend_tensor_get_async(stream, v.tensor, pinned.tensor->data, 0, 16);
            ggml_backend_event_record(event, stream);
        }
        ggml_backend_event_synchronize(event);
        ggml_backend_synchronize(streams[0]);
        ggml_backend_synchronize(streams[1]);
        assert_true(atomic_load(&device->lost));
        ggml_backend_tensor_get_async(streams[0], v.tensor, values, 0, sizeof(values));
        assert_poison(values, sizeof(values));
        memset(values, 0, sizeof(values));
        ggml_backend_tensor_get(v.tensor, values, 0, sizeof(values));
        assert_poison(values, sizeof(values));
        assert_int_equal(ggml_backend_graph_compute_async(streams[1], model.graph),
                         GGML_STATUS_FAILED);
        assert_error(streams[0], "lost");
        assert_error(streams[0], "lost"); /* for good */
        assert_error(streams[1], "lost");
        assert_null(ggml_backend_dev_init(&device->dev, NULL));
        assert_null(ggml_backend_buft_alloc_buffer(&device->buft, 100));
        free_vector(&v);
        free_vector(&pinned);
        free_model(&model);
        ggml_backend_event_free(event);
        ggml_backend_free(streams[0]);
        ggml_backend_free(streams[1]);
        ats_emu_device_destroy(device);
    }
}

static void test_loss_stops_a_running_graph(void **state)
{
    (void)state;
    struct ats_emu_device *device = make_device(16 * MIB, 0, 0);
    ggml_backend_t backend = make_backend(device);
    struct vector v = make_vector(&device->buft, 16);
    struct gate gate;
    close_gate(&gate, device);
    inject(device, "loss:1");
    ggml_backend_tensor_memset(v.tensor, 0, 0, 4);
    float value = 0.0F;
    ggml_backend_tensor_get_async(backend, v.tensor, &value, 0, sizeof(value));
    assert_poison(&value, sizeof(value));
    open_gate(&gate);
    assert_int_equal(gate.status, GGML_STATUS_FAILED);
    free_gate(&gate);
    free_vector(&v);
    ggml_backend_free(backend);
    ats_emu_device_destroy(device);
}

/* ---- profiles ---- */

static void write_profile(const char *path, const char *text)
{
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    fputs(text, file);
    fclose(file);
}

#define PROFILE(rest) "{\"format\": \"ats-device-1\", \"name\": \"x\", \"memory\": \"64M\"" rest "}"

static void test_profile_errors_name_file_and_key(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        const char *part;
    } cases[] = {
        {"", "x.json:1"},
        {"{", "x.json:1"},
        {"[]", "JSON object"},
        {"{}", "\"format\" is missing"},
        {"{\"format\": \"ats-device-2\"}", "\"format\" must be \"ats-device-1\""},
        {"{\"format\": 1}", "\"format\" must be"},
        {"{\"format\": \"ats-device-1\", \"name\": \"x\"}", "\"memory\" is missing"},
        {PROFILE(", \"memory\": \"1G\""), "duplicate"},
        {PROFILE(", \"vram\": 3"), "unknown key \"vram\"; allowed are format, name"},
        {PROFILE(", \"mode\": \"timed\""), "not available yet"},
        {PROFILE(", \"mode\": \"fast\""), "\"mode\" must be \"exact\""},
        {PROFILE(", \"max_delay_us\": -1"), "\"max_delay_us\" must be"},
        {PROFILE(", \"max_delay_us\": 1.5"), "\"max_delay_us\" must be"},
        {PROFILE(", \"max_delay_us\": 1000001"), "0 to 1000000"},
        {PROFILE(", \"seed\": \"a\""), "\"seed\" must be"},
        {PROFILE(", \"alignment\": 100"), "power of two"},
        {PROFILE(", \"alignment\": 16"), "power of two"},
        {PROFILE(", \"alignment\": 131072"), "power of two"},
        {PROFILE(", \"max_buffer\": 0"), "\"max_buffer\" must be"},
        {PROFILE(", \"max_buffer\": -5"), "\"max_buffer\" must be"},
        {PROFILE(", \"description\": \"\""), "\"description\" must be"},
        {PROFILE(", \"description\": \"a\\nb\""), "\"description\" must be"},
        {PROFILE(", \"inject\": 3"), "\"inject\" must be"},
        {PROFILE(", \"inject\": {\"copy\": 0}"), "\"inject\": \"copy\" must be"},
        {PROFILE(", \"inject\": {\"copy\": \"x\"}"), "\"inject\": \"copy\" must be"},
        {PROFILE(", \"inject\": {\"burn\": 1}"), "unknown key \"burn\""},
        {"{\"format\": \"ats-device-1\", \"name\": \"x\", \"memory\": \"2T\"}", "\"memory\" must"},
        {"{\"format\": \"ats-device-1\", \"name\": \"x\", \"memory\": 4096}", "\"memory\" must"},
        {"{\"format\": \"ats-device-1\", \"name\": \"x\", \"memory\": true}", "\"memory\" must"},
        {"{\"format\": \"ats-device-1\", \"name\": 5, \"memory\": \"1G\"}", "\"name\" must"},
    };
    char directory[] = "/tmp/emu-profile-XXXXXX";
    assert_non_null(mkdtemp(directory));
    char path[64];
    snprintf(path, sizeof(path), "%s/x.json", directory);
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct ats_emu_profile profile;
        struct ats_error err = {""};
        write_profile(path, cases[i].text);
        assert_false(ats_emu_profile_read(path, &profile, &err));
        if (strstr(err.text, cases[i].part) == NULL || strstr(err.text, "x.json") == NULL) {
            fail_msg("%s: '%s' does not say '%s'", cases[i].text, err.text, cases[i].part);
        }
    }
    unlink(path);
    struct ats_emu_profile profile;
    struct ats_error err = {""};
    assert_false(ats_emu_profile_read(path, &profile, &err));
    assert_non_null(strstr(err.text, path));
    rmdir(directory);
}

static void test_profiles_are_found_and_overridden(void **state)
{
    (void)state;
    char directory[] = "/tmp/emu-profile-XXXXXX";
    assert_non_null(mkdtemp(directory));
    char path[64];
    snprintf(path, sizeof(path), "%s/mine.json", directory);
    write_profile(path, PROFILE(", \"max_delay_us\": 7, \"seed\": 9, \"alignment\": 256, "
                                "\"max_buffer\": 1048576, \"inject\": {\"loss\": \"5+\"}"));
    struct ats_emu_profile profile;
    struct ats_error err = {""};
    assert_false(ats_emu_profile_find("mine", &profile, &err));
    assert_non_null(strstr(err.text, "no device profile 'mine'"));
    setenv("ATS_PROFILES", directory, 1);
    assert_true(ats_emu_profile_find("mine", &profile, &err));
    assert_true(ats_emu_profile_find(path, &profile, &err));
    assert_int_equal(profile.memory, 64 * MIB);
    assert_int_equal(profile.max_buffer, MIB);
    assert_int_equal(profile.max_delay_us, 7);
    assert_int_equal(profile.seed, 9);
    assert_int_equal(profile.alignment, 256);
    assert_true(profile.inject.rule[ATS_EMU_OP_LOSS].from == 5);
    assert_true(profile.inject.rule[ATS_EMU_OP_LOSS].onwards);

    static const char *const good[][2] = {{"ATS_EMU_MEMORY", "6G"},
                                          {"ATS_EMU_SEED", "77"},
                                          {"ATS_EMU_DELAY_US", "12"},
                                          {"ATS_EMU_FAIL", "copy:2,compute:3+"}};
    static const char *const bad[][2] = {
        {"ATS_EMU_MEMORY", "lots"},      {"ATS_EMU_MEMORY", "5"},  {"ATS_EMU_SEED", "-1"},
        {"ATS_EMU_DELAY_US", "9999999"}, {"ATS_EMU_FAIL", "copy"}, {"ATS_EMU_FAIL", "copy:1,"},
        {"ATS_EMU_FAIL", "copy:0"}};
    for (size_t i = 0; i < 4; i++) {
        setenv(good[i][0], good[i][1], 1);
    }
    assert_true(ats_emu_profile_override(&profile, &err));
    assert_int_equal(profile.memory, (size_t)6 << 30);
    assert_int_equal(profile.seed, 77);
    assert_int_equal(profile.max_delay_us, 12);
    assert_int_equal(profile.inject.rule[ATS_EMU_OP_COPY].from, 2);
    assert_int_equal(profile.inject.rule[ATS_EMU_OP_LOSS].from, 0);
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        for (size_t j = 0; j < 4; j++) {
            unsetenv(good[j][0]);
        }
        setenv(bad[i][0], bad[i][1], 1);
        assert_false(ats_emu_profile_override(&profile, &err));
        assert_non_null(strstr(err.text, bad[i][0]));
    }
    unsetenv("ATS_EMU_FAIL");
    unsetenv("ATS_PROFILES");
    unlink(path);
    rmdir(directory);
}

/* ---- the registry; last, since it is for the whole process ---- */

static void test_start_registers_devices(void **state)
{
    (void)state;
    struct ats_error err = {""};
    assert_true(ats_emu_start(NULL, &err));
    assert_true(ats_emu_start("", &err));
    assert_false(ats_emu_start("a,,b", &err));
    assert_false(ats_emu_start("no-such-profile", &err));
    assert_non_null(strstr(err.text, "no-such-profile"));
    char directory[] = "/tmp/emu-profile-XXXXXX";
    assert_non_null(mkdtemp(directory));
    char path[64];
    char spec[160];
    snprintf(path, sizeof(path), "%s/p.json", directory);
    write_profile(path, PROFILE(""));
    snprintf(spec, sizeof(spec), "%s,%s", path, path);
    const size_t before = ggml_backend_dev_count();
    assert_true(ats_emu_start(spec, &err));
    assert_true(ats_emu_start(spec, &err)); /* a program that loads backends twice */
    assert_false(ats_emu_start(path, &err));
    unlink(path);
    rmdir(directory);
    assert_int_equal(ggml_backend_dev_count(), before + 2);
    ggml_backend_dev_t dev = ggml_backend_dev_by_name("EMU1");
    assert_non_null(dev);
    assert_true(ats_emu_is_device(dev));
    assert_false(ats_emu_is_device(ats_emu_cpu_device()));
    struct ggml_backend_dev_props props;
    ggml_backend_dev_get_props(dev, &props);
    assert_int_equal(props.type, GGML_BACKEND_DEVICE_TYPE_GPU);
    assert_int_equal(props.memory_total, 64 * MIB);
    assert_true(props.caps.async && props.caps.host_buffer && props.caps.events);
    assert_false(props.caps.buffer_from_host_ptr);
    ggml_backend_reg_t reg = ggml_backend_dev_backend_reg(dev);
    assert_string_equal(ggml_backend_reg_name(reg), "EMU");
    static const char *const names[] = {"ggml_backend_set_n_threads",
                                        "ggml_backend_set_abort_callback",
                                        "ggml_backend_register_host_buffer",
                                        "ggml_backend_unregister_host_buffer",
                                        "ats_backend_take_error",
                                        "ats_emu_inject"};
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        assert_non_null(ggml_backend_reg_get_proc_address(reg, names[i]));
    }
    assert_null(ggml_backend_reg_get_proc_address(reg, "ggml_threadpool_new"));
    assert_true(ggml_backend_dev_supports_buft(dev, ggml_backend_dev_buffer_type(dev)));
    assert_false(ggml_backend_dev_supports_buft(dev, ggml_backend_dev_host_buffer_type(dev)));
    assert_false(ggml_backend_dev_supports_buft(
        dev, ggml_backend_dev_buffer_type(ggml_backend_dev_by_name("EMU0"))));
}

/* ---- main ---- */

/* Loads the backends that lie next to the ggml this test is linked with. */
static int load_ggml(void **state)
{
    (void)state;
    Dl_info info;
    void *address = NULL;
    void (*load_all)(void) = ggml_backend_load_all;
    memcpy(&address, &load_all, sizeof(address));
    if (dladdr(address, &info) == 0) {
        return -1;
    }
    char directory[4096];
    const char *slash = strrchr(info.dli_fname, '/');
    snprintf(directory, sizeof(directory), "%.*s", (int)(slash - info.dli_fname), info.dli_fname);
    ggml_backend_load_all_from_path(directory);
    struct ats_error err = {""};
    int (*caller)(void **) = load_ggml;
    memcpy(&address, &caller, sizeof(address));
    if (!ats_ggml_bind(address, &err)) {
        print_error("%s\n", err.text);
        return -1;
    }
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_results_equal_the_cpu_backends),
        cmocka_unit_test(test_graph_is_independent_after_enqueue),
        cmocka_unit_test(test_copies_keep_use_counts_and_views),
        cmocka_unit_test(test_events_order_streams),
        cmocka_unit_test(test_many_streams_at_once),
        cmocka_unit_test(test_host_cannot_read_device_memory),
        cmocka_unit_test(test_memory_is_limited_and_accounted),
        cmocka_unit_test(test_fresh_memory_is_poison),
        cmocka_unit_test(test_large_device_costs_nothing_until_used),
        cmocka_unit_test(test_heap_never_overlaps_and_always_coalesces),
        cmocka_unit_test(test_pinned_ranges),
        cmocka_unit_test(test_pageable_is_staged_and_pinned_is_read_late),
        cmocka_unit_test(test_2d_copies),
        cmocka_unit_test(test_large_pageable_source),
        cmocka_unit_test(test_freeing_a_buffer_waits_for_its_streams),
        cmocka_unit_test(test_freeing_blocks_while_a_stream_is_busy),
        cmocka_unit_test(test_copies_between_devices),
        cmocka_unit_test(test_foreign_tensors_and_host_functions_are_refused),
        cmocka_unit_test(test_abort_is_a_status_and_not_a_failure),
        cmocka_unit_test(test_injected_allocation_failures),
        cmocka_unit_test(test_injected_copy_failures),
        cmocka_unit_test(test_injected_compute_failures),
        cmocka_unit_test(test_device_loss),
        cmocka_unit_test(test_loss_stops_a_running_graph),
        cmocka_unit_test(test_profile_errors_name_file_and_key),
        cmocka_unit_test(test_profiles_are_found_and_overridden),
        cmocka_unit_test(test_start_registers_devices),
    };
    return cmocka_run_group_tests_name("emulated accelerator", tests, load_ggml, NULL);
}
