/* The buffer and backend contract, against a shadow.
 *
 * A world holds tensors of several shapes in every kind of memory that meets an ATS device: its
 * own buffers for anything, for weights, for compute and over a caller's memory, the CPU's, the
 * emulated accelerator's, and a second ATS device's. Each tensor has a twin in plain memory.
 * Random operations are done to both: reading and writing whole, in parts, in rows and through
 * views, at once or asynchronously, copies from anywhere to anywhere, graphs that leave bytes on
 * a random side, clearing and resetting. Every byte read must be the twin's. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "harness.h"

#include <string.h>

enum {
    N_SHAPES = 7,
    MAX_MEMORIES = 8,
    MAX_PENDING = 16,
    MEMORY_BYTES = 1 << 18,
    N_STREAMS = 2,
};

static const struct {
    enum ggml_type type;
    int64_t ne[2];
} shapes[N_SHAPES] = {
    {GGML_TYPE_F32, {64, 1}},   {GGML_TYPE_F32, {33, 7}},  {GGML_TYPE_F32, {512, 16}},
    {GGML_TYPE_F16, {512, 16}}, {GGML_TYPE_Q8_0, {64, 5}}, {GGML_TYPE_I32, {1, 1}},
    {GGML_TYPE_F32, {0, 3}},
};

enum memory_kind { ANY, WEIGHTS, COMPUTE, MAPPED, FOREIGN };

struct memory {
    const char *name;
    enum memory_kind kind;
    size_t device; /* index of the ATS device it belongs to; no meaning if FOREIGN */
    ggml_backend_buffer_t buffer;
    void *mapped;
    struct ggml_tensor *tensors[N_SHAPES];
    struct ggml_tensor *twins[N_SHAPES];
};

/* A read under way, or a write whose source must stay. */
struct pending {
    char *data;
    char *expected; /* NULL: a write */
    size_t bytes;
};

struct world {
    struct ats_rng rng;
    size_t n_devices;
    ggml_backend_t streams[2][N_STREAMS];
    ggml_backend_t cpu;
    struct memory memories[MAX_MEMORIES];
    size_t n_memories;
    struct ggml_context *ctx;
    struct ggml_context *twin_ctx;
    struct pending pending[MAX_PENDING];
    size_t n_pending;
    ggml_backend_t pending_on; /* stream of the asynchronous operations */
    size_t step;
    const char *doing;
};

/* ---- making and ending a world ---- */

static struct ggml_context *make_context(bool no_alloc)
{
    const struct ggml_init_params params = {.mem_size = 2 << 20, .no_alloc = no_alloc};
    struct ggml_context *ctx = ggml_init(params);
    CHECK(ctx != NULL, "no memory");
    return ctx;
}

static void random_bytes(struct ats_rng *rng, void *data, size_t bytes)
{
    for (size_t i = 0; i < bytes; i++) {
        ((unsigned char *)data)[i] = (unsigned char)ats_rng_next(rng);
    }
}

/* A byte that makes a moderate float if all four are the same. */
static uint8_t random_fill(struct ats_rng *rng)
{
    return (uint8_t)ats_rng_below(rng, 0x40);
}

/* New bytes for a part of a twin. Floats stay moderate: which NaN comes of two NaNs depends on
 * how a compiler orders operands. */
static void renew(struct ats_rng *rng, struct ggml_tensor *twin, size_t begin, size_t bytes)
{
    static const unsigned char tops[] = {0x3E, 0x3F, 0xBE, 0xBF};
    unsigned char *data = (unsigned char *)twin->data + begin;
    random_bytes(rng, data, bytes);
    for (size_t i = 0; twin->type == GGML_TYPE_F32 && i < bytes; i++) {
        if ((begin + i) % sizeof(float) == sizeof(float) - 1) {
            data[i] = tops[data[i] % 4];
        }
    }
}

static void write_whole(struct world *w, struct memory *memory, size_t shape)
{
    struct ggml_tensor *twin = memory->twins[shape];
    renew(&w->rng, twin, 0, ggml_nbytes(twin));
    ggml_backend_tensor_set(memory->tensors[shape], twin->data, 0, ggml_nbytes(twin));
}

/* Places the tensors in the memory in random order, and fills them. */
static void place_tensors(struct world *w, struct memory *memory)
{
    size_t order[N_SHAPES];
    for (size_t i = 0; i < N_SHAPES; i++) {
        const size_t j = (size_t)ats_rng_below(&w->rng, i + 1);
        order[i] = order[j];
        order[j] = i;
    }
    struct ggml_tallocr alloc = ggml_tallocr_new(memory->buffer);
    for (size_t i = 0; i < N_SHAPES; i++) {
        struct ggml_tensor *tensor = memory->tensors[order[i]];
        tensor->data = NULL;
        tensor->buffer = NULL;
        tensor->extra = NULL;
        CHECK(ggml_tallocr_alloc(&alloc, tensor) == GGML_STATUS_SUCCESS, "%s", memory->name);
    }
    for (size_t i = 0; i < N_SHAPES; i++) {
        write_whole(w, memory, order[i]);
    }
}

static ggml_backend_buffer_t make_buffer(struct memory *memory, ggml_backend_dev_t device)
{
    if (memory->kind == MAPPED) {
        const int failed = posix_memalign(&memory->mapped, 4096, MEMORY_BYTES);
        CHECK(failed == 0, "no memory");
        return ggml_backend_dev_buffer_from_host_ptr(device, memory->mapped, MEMORY_BYTES,
                                                     MEMORY_BYTES);
    }
    return ggml_backend_buft_alloc_buffer(ggml_backend_dev_buffer_type(device), MEMORY_BYTES);
}

static void add_memory(struct world *w, const char *device, enum memory_kind kind, size_t index)
{
    static const enum ggml_backend_buffer_usage usages[] = {
        [ANY] = GGML_BACKEND_BUFFER_USAGE_ANY,
        [WEIGHTS] = GGML_BACKEND_BUFFER_USAGE_WEIGHTS,
        [COMPUTE] = GGML_BACKEND_BUFFER_USAGE_COMPUTE,
        [MAPPED] = GGML_BACKEND_BUFFER_USAGE_WEIGHTS,
        [FOREIGN] = GGML_BACKEND_BUFFER_USAGE_ANY,
    };
    struct memory *memory = &w->memories[w->n_memories++];
    *memory = (struct memory){.name = device, .kind = kind, .device = index};
    memory->buffer = make_buffer(memory, device_named(device));
    if (memory->buffer == NULL && kind == FOREIGN) { /* ATS has taken all of a small VRAM */
        w->n_memories--;
        return;
    }
    CHECK(memory->buffer != NULL, "no buffer on %s", device);
    ggml_backend_buffer_set_usage(memory->buffer, usages[kind]);
    for (size_t s = 0; s < N_SHAPES; s++) {
        const int64_t *ne = shapes[s].ne;
        memory->tensors[s] = ggml_new_tensor_2d(w->ctx, shapes[s].type, ne[0], ne[1]);
        memory->twins[s] = ggml_new_tensor_2d(w->twin_ctx, shapes[s].type, ne[0], ne[1]);
    }
    place_tensors(w, memory);
}

static void world_make(struct world *w, uint64_t stream, size_t n_devices)
{
    *w = (struct world){.rng = test_rng(stream), .n_devices = n_devices};
    w->ctx = make_context(true);
    w->twin_ctx = make_context(false);
    w->cpu = backend_on(device_named("CPU"));
    for (size_t d = 0; d < n_devices; d++) {
        for (size_t s = 0; s < N_STREAMS; s++) {
            w->streams[d][s] = backend_on(device_named(d == 0 ? "ATS0" : "ATS1"));
        }
    }
    add_memory(w, "ATS0", ANY, 0);
    add_memory(w, "ATS0", WEIGHTS, 0);
    add_memory(w, "ATS0", COMPUTE, 0);
    add_memory(w, "ATS0", MAPPED, 0);
    add_memory(w, "CPU", FOREIGN, 0);
    add_memory(w, "EMU0", FOREIGN, 0);
    if (n_devices > 1) {
        add_memory(w, "ATS1", ANY, 1);
        add_memory(w, "ATS1", COMPUTE, 1);
    }
}

/* Frees buffers and backends in random order. */
static void world_end(struct world *w)
{
    size_t left = w->n_memories + w->n_devices * N_STREAMS;
    while (left > 0) {
        const size_t at = (size_t)ats_rng_below(&w->rng, w->n_memories + 2 * N_STREAMS);
        if (at < w->n_memories && w->memories[at].buffer != NULL) {
            ggml_backend_buffer_free(w->memories[at].buffer);
            free(w->memories[at].mapped);
            w->memories[at].buffer = NULL;
            left--;
        } else if (at >= w->n_memories) {
            ggml_backend_t *stream =
                &w->streams[(at - w->n_memories) / N_STREAMS][(at - w->n_memories) % N_STREAMS];
            left -= *stream != NULL;
            ggml_backend_free(*stream);
            *stream = NULL;
        }
    }
    ggml_backend_free(w->cpu);
    ggml_free(w->ctx);
    ggml_free(w->twin_ctx);
}

/* ---- checks ---- */

static void check_bytes(const struct world *w, const void *got, const void *expected, size_t bytes)
{
    const unsigned char *a = got;
    const unsigned char *b = expected;
    for (size_t i = 0; i < bytes; i++) {
        CHECK(a[i] == b[i], "step %zu, %s: byte %zu of %zu is %02x, expected %02x", w->step,
              w->doing, i, bytes, a[i], b[i]);
    }
}

static void finish_pending(struct world *w)
{
    if (w->n_pending > 0) {
        ggml_backend_synchronize(w->pending_on);
    }
    for (size_t i = 0; i < w->n_pending; i++) {
        struct pending *p = &w->pending[i];
        if (p->expected != NULL) {
            check_bytes(w, p->data, p->expected, p->bytes);
        }
        free(p->data);
        free(p->expected);
    }
    w->n_pending = 0;
}

static void check_all(struct world *w)
{
    finish_pending(w);
    for (size_t m = 0; m < w->n_memories; m++) {
        struct memory *memory = &w->memories[m];
        for (size_t s = 0; s < N_SHAPES; s++) {
            char doing[80];
            snprintf(doing, sizeof(doing), "all of shape %zu in memory %zu (%s)", s, m,
                     memory->name);
            w->doing = doing;
            const size_t bytes = ggml_nbytes(memory->twins[s]);
            char *data = malloc(bytes + 1);
            ggml_backend_tensor_get(memory->tensors[s], data, 0, bytes);
            check_bytes(w, data, memory->twins[s]->data, bytes);
            free(data);
        }
    }
}

/* ---- operations ---- */

struct pick {
    struct memory *memory;
    struct ggml_tensor *tensor;
    struct ggml_tensor *twin;
    size_t begin; /* a random part */
    size_t bytes;
};

static struct pick pick_part(struct world *w)
{
    struct pick p = {.memory = &w->memories[ats_rng_below(&w->rng, w->n_memories)]};
    const size_t shape = (size_t)ats_rng_below(&w->rng, N_SHAPES);
    p.tensor = p.memory->tensors[shape];
    p.twin = p.memory->twins[shape];
    const size_t all = ggml_nbytes(p.twin);
    p.begin = test_chance(&w->rng, 30) ? 0 : (size_t)ats_rng_below(&w->rng, all + 1);
    p.bytes = test_chance(&w->rng, 30) ? all - p.begin
                                       : (size_t)ats_rng_below(&w->rng, all - p.begin + 1);
    return p;
}

static char *twin_at(const struct pick *p)
{
    return (char *)p->twin->data + p->begin;
}

static void do_set(struct world *w)
{
    const struct pick p = pick_part(w);
    renew(&w->rng, p.twin, p.begin, p.bytes);
    ggml_backend_tensor_set(p.tensor, twin_at(&p), p.begin, p.bytes);
}

static void do_get(struct world *w)
{
    const struct pick p = pick_part(w);
    char *data = malloc(p.bytes + 1);
    ggml_backend_tensor_get(p.tensor, data, p.begin, p.bytes);
    check_bytes(w, data, twin_at(&p), p.bytes);
    free(data);
}

static void do_memset(struct world *w)
{
    const struct pick p = pick_part(w);
    const uint8_t value = random_fill(&w->rng);
    if (p.bytes > 0) {
        memset(twin_at(&p), value, p.bytes);
    }
    ggml_backend_tensor_memset(p.tensor, value, p.begin, p.bytes);
}

/* Writes in pieces that together are the whole tensor. */
static void do_set_in_pieces(struct world *w)
{
    const struct pick p = pick_part(w);
    const size_t all = ggml_nbytes(p.twin);
    renew(&w->rng, p.twin, 0, all);
    for (size_t at = 0; at < all;) {
        const size_t n = test_between(&w->rng, 1, all - at);
        ggml_backend_tensor_set(p.tensor, (char *)p.twin->data + at, at, n);
        at += n;
    }
}

static void do_rows(struct world *w)
{
    const struct pick p = pick_part(w);
    const size_t row = p.twin->nb[1];
    const size_t rows = (size_t)p.twin->ne[1];
    if (ggml_nbytes(p.twin) == 0) {
        return;
    }
    const size_t first = (size_t)ats_rng_below(&w->rng, rows);
    const size_t n = test_between(&w->rng, 1, rows - first);
    const size_t offset = (size_t)ats_rng_below(&w->rng, row);
    const size_t size = test_between(&w->rng, 1, row - offset);
    const size_t stride = size + (size_t)ats_rng_below(&w->rng, 40);
    const size_t at = first * row + offset;
    char *data = malloc(n * stride);
    if (test_chance(&w->rng, 50)) {
        for (size_t r = 0; r < n; r++) {
            renew(&w->rng, p.twin, at + r * row, size);
            memcpy(data + r * stride, (char *)p.twin->data + at + r * row, size);
        }
        ggml_backend_tensor_set_2d(p.tensor, data, at, size, n, row, stride);
    } else {
        ggml_backend_tensor_get_2d(p.tensor, data, at, size, n, row, stride);
        for (size_t r = 0; r < n; r++) {
            check_bytes(w, data + r * stride, (char *)p.twin->data + at + r * row, size);
        }
    }
    free(data);
}

static void do_view(struct world *w)
{
    const struct pick p = pick_part(w);
    if (p.twin->type != GGML_TYPE_F32 || ggml_nbytes(p.twin) == 0) {
        return;
    }
    const size_t n = (size_t)ggml_nelements(p.twin);
    const size_t first = (size_t)ats_rng_below(&w->rng, n);
    const size_t count = test_between(&w->rng, 1, n - first);
    struct ggml_context *ctx = make_context(true);
    struct ggml_tensor *view = ggml_view_1d(ctx, p.tensor, (int64_t)count, first * sizeof(float));
    view = test_chance(&w->rng, 50) ? ggml_view_1d(ctx, view, (int64_t)count, 0) : view;
    CHECK(ggml_backend_view_init(view) == GGML_STATUS_SUCCESS, "view");
    char *twin = (char *)p.twin->data + first * sizeof(float);
    char *data = malloc(count * sizeof(float));
    ggml_backend_tensor_get(view, data, 0, count * sizeof(float));
    check_bytes(w, data, twin, count * sizeof(float));
    renew(&w->rng, p.twin, first * sizeof(float), count * sizeof(float));
    ggml_backend_tensor_set(view, twin, 0, count * sizeof(float));
    free(data);
    ggml_free(ctx);
}

static void do_copy(struct world *w)
{
    const size_t shape = (size_t)ats_rng_below(&w->rng, N_SHAPES);
    struct memory *from = &w->memories[ats_rng_below(&w->rng, w->n_memories)];
    struct memory *to = &w->memories[ats_rng_below(&w->rng, w->n_memories)];
    if (ggml_nbytes(to->twins[shape]) > 0) {
        memmove(to->twins[shape]->data, from->twins[shape]->data, ggml_nbytes(to->twins[shape]));
    }
    if (test_chance(&w->rng, 50)) {
        ggml_backend_tensor_copy(from->tensors[shape], to->tensors[shape]);
    } else {
        ggml_backend_t source = from->kind == FOREIGN ? w->cpu : w->streams[from->device][0];
        ggml_backend_t target = to->kind == FOREIGN ? w->cpu : w->streams[to->device][1];
        ggml_backend_tensor_copy_async(source, target, from->tensors[shape], to->tensors[shape]);
        ggml_backend_synchronize(source);
        ggml_backend_synchronize(target);
    }
}

static void do_clear(struct world *w)
{
    struct memory *memory = &w->memories[ats_rng_below(&w->rng, w->n_memories)];
    const uint8_t value = test_chance(&w->rng, 50) ? 0 : random_fill(&w->rng);
    for (size_t s = 0; s < N_SHAPES; s++) {
        if (ggml_nbytes(memory->twins[s]) > 0) {
            memset(memory->twins[s]->data, value, ggml_nbytes(memory->twins[s]));
        }
    }
    ggml_backend_buffer_clear(memory->buffer, value);
}

static void do_reset(struct world *w)
{
    struct memory *memory = &w->memories[ats_rng_below(&w->rng, w->n_memories)];
    ggml_backend_buffer_reset(memory->buffer);
    place_tensors(w, memory);
}

static void do_check_all(struct world *w)
{
    check_all(w);
}

/* ---- asynchronous operations ---- */

/* The stream that asynchronous operations go to until the next synchronisation. */
static ggml_backend_t pending_stream(struct world *w, size_t device)
{
    ggml_backend_t stream = w->streams[device][ats_rng_below(&w->rng, N_STREAMS)];
    if (w->n_pending == MAX_PENDING || (w->n_pending > 0 && w->pending_on != stream)) {
        finish_pending(w);
    }
    w->pending_on = stream;
    return stream;
}

static void do_async(struct world *w)
{
    const struct pick p = pick_part(w);
    if (p.memory->kind == FOREIGN || ggml_nbytes(p.twin) == 0) {
        return;
    }
    ggml_backend_t stream = pending_stream(w, p.memory->device);
    struct pending *pending = &w->pending[w->n_pending];
    *pending = (struct pending){.data = malloc(p.bytes + 1), .bytes = p.bytes};
    if (test_chance(&w->rng, 50)) {
        renew(&w->rng, p.twin, p.begin, p.bytes);
        memcpy(pending->data, twin_at(&p), p.bytes);
        ggml_backend_tensor_set_async(stream, p.tensor, pending->data, p.begin, p.bytes);
    } else {
        pending->expected = malloc(p.bytes + 1);
        memcpy(pending->expected, twin_at(&p), p.bytes);
        ggml_backend_tensor_get_async(stream, p.tensor, pending->data, p.begin, p.bytes);
    }
    w->n_pending++;
}

/* ---- graphs ---- */

/* The same operators on tensors (twins = false) or twins; decisions come from `rng`. */
static struct ggml_cgraph *build(const struct world *w, struct ggml_context *ctx, size_t device,
                                 bool twins, struct ats_rng *rng)
{
    struct ggml_cgraph *graph = ggml_new_graph(ctx);
    const size_t n = test_between(rng, 1, 6);
    for (size_t i = 0; i < n; i++) {
        const struct memory *from = NULL;
        const struct memory *to = NULL;
        do {
            from = &w->memories[ats_rng_below(rng, w->n_memories)];
        } while (from->kind == FOREIGN || from->device != device);
        do {
            to = &w->memories[ats_rng_below(rng, w->n_memories)];
        } while ((to->kind != ANY && to->kind != COMPUTE) || to->device != device);
        struct ggml_tensor *const *a = twins ? from->twins : from->tensors;
        struct ggml_tensor *const *b = twins ? to->twins : to->tensors;
        const size_t shape = (size_t)ats_rng_below(rng, N_SHAPES);
        struct ggml_tensor *result = NULL;
        switch (ats_rng_below(rng, 6)) {
        case 0:
            result = ggml_cpy(ctx, a[shape], b[shape]);
            break;
        case 1:
            result = ggml_scale_inplace(ctx, b[2], 0.5F);
            break;
        case 2:
            result = ggml_add_inplace(ctx, b[1], a[1]);
            break;
        case 3:
            result = ggml_cpy(ctx, a[2], b[3]); /* to half precision */
            break;
        case 4: { /* a row of one into a row of another */
            const size_t row = b[2]->nb[1];
            const size_t source = (size_t)ats_rng_below(rng, 16) * row;
            const size_t target = (size_t)ats_rng_below(rng, 16) * row;
            result = ggml_cpy(ctx, ggml_view_1d(ctx, a[2], 512, source),
                              ggml_view_1d(ctx, b[2], 512, target));
            break;
        }
        default:
            result = ggml_sqr_inplace(ctx, b[0]);
            break;
        }
        ggml_build_forward_expand(graph, result);
    }
    for (int i = 0; i < ggml_graph_n_nodes(graph); i++) {
        struct ggml_tensor *node = ggml_graph_node(graph, i);
        if (!twins && node->view_src != NULL && node->buffer == NULL) {
            CHECK(ggml_backend_view_init(node) == GGML_STATUS_SUCCESS, "view");
        }
    }
    return graph;
}

static void do_compute(struct world *w)
{
    const size_t device = (size_t)ats_rng_below(&w->rng, w->n_devices);
    struct ats_rng decisions = {.state = ats_rng_next(&w->rng)};
    struct ats_rng same = decisions;
    struct ggml_context *ctx = make_context(true);
    struct ggml_context *twin_ctx = make_context(true);
    struct ggml_cgraph *graph = build(w, ctx, device, false, &decisions);
    struct ggml_cgraph *twin = build(w, twin_ctx, device, true, &same);
    /* behind what is pending on the same stream, without waiting */
    ggml_backend_t stream = pending_stream(w, device);
    ggml_backend_t other = w->streams[device][stream == w->streams[device][0]];
    CHECK(ggml_backend_graph_compute_async(stream, graph) == GGML_STATUS_SUCCESS, "compute");
    CHECK(ggml_backend_graph_compute(w->cpu, twin) == GGML_STATUS_SUCCESS, "CPU");
    if (test_chance(&w->rng, 30)) { /* the other stream goes on from here */
        ggml_backend_event_t event = ggml_backend_event_new(ggml_backend_get_device(stream));
        CHECK(event != NULL, "no event");
        ggml_backend_event_record(event, stream);
        if (test_chance(&w->rng, 50)) {
            ggml_backend_event_wait(other, event);
        } else {
            ggml_backend_event_synchronize(event);
        }
        finish_pending(w);
        ggml_backend_event_free(event);
        w->pending_on = other;
    } else if (w->n_pending == 0) {
        ggml_backend_synchronize(stream);
    }
    /* the graph's memory goes only once it has run */
    finish_pending(w);
    ggml_backend_synchronize(stream);
    ggml_free(ctx);
    ggml_free(twin_ctx);
}

/* ---- the walk ---- */

static const struct {
    const char *name;
    void (*run)(struct world *);
    bool async;
    unsigned weight;
} operations[] = {
    {"set", do_set, false, 10},
    {"get", do_get, false, 10},
    {"memset", do_memset, false, 5},
    {"set in pieces", do_set_in_pieces, false, 5},
    {"rows", do_rows, false, 8},
    {"view", do_view, false, 8},
    {"copy", do_copy, false, 15},
    {"clear", do_clear, false, 2},
    {"reset", do_reset, false, 1},
    {"everything", do_check_all, false, 3},
    {"asynchronous set or get", do_async, true, 20},
    {"compute", do_compute, true, 25},
};

static void walk(struct world *w, size_t steps)
{
    for (w->step = 0; w->step < steps; w->step++) {
        const size_t op = draw_weighted(&w->rng, &operations[0].weight, sizeof(operations[0]),
                                        sizeof(operations) / sizeof(operations[0]));
        if (!operations[op].async) {
            finish_pending(w);
        }
        w->doing = operations[op].name;
        operations[op].run(w);
    }
    check_all(w);
}

struct scenario {
    uint64_t stream;
    size_t n_devices;
    size_t n_threads;
    size_t n_worlds;
    size_t steps;
};

static void run_thread(size_t thread, const void *argument)
{
    const struct scenario *scenario = argument;
    struct world *w = malloc(sizeof(*w));
    for (size_t i = 0; i < scenario->n_worlds; i++) {
        world_make(w, scenario->stream * 1000 + thread + 100 * i, scenario->n_devices);
        walk(w, scenario->steps);
        world_end(w);
    }
    free(w);
}

static void run_scenario(const void *argument)
{
    const struct scenario *scenario = argument;
    scenario_load_backends();
    scenario_in_threads(scenario->n_threads, run_thread, scenario);
}

static void run(const char *title, const char *settings, struct scenario scenario)
{
    scenario.steps = is_sanitized() ? scenario.steps / 3 : scenario.steps;
    assert_true(scenario_run(title, settings, run_scenario, &scenario));
}

/* ---- tests ---- */

static void test_placements(void **state)
{
    (void)state;
    static const char *const settings[] = {
        "ATS_PLACEMENT=host",
        "ATS_PLACEMENT=vram",
        "ATS_PLACEMENT=fill",
        "ATS_PLACEMENT=random:1",
        "ATS_PLACEMENT=random:2 ATS_EMU_DELAY_US=200 ATS_EMU_SEED=7",
        "ATS_PLACEMENT=vram ATS_EMU_DELAY_US=200",
        "ATS_PLACEMENT=random:3 ATS_VRAM=0",
    };
    for (size_t i = 0; i < sizeof(settings) / sizeof(settings[0]); i++) {
        if (is_chosen(i, sizeof(settings) / sizeof(settings[0]))) {
            run("buffers", settings[i],
                (struct scenario){i, .n_devices = 1, .n_threads = 1, .n_worlds = 3, .steps = 400});
        }
    }
}

/* What the accelerator's operators touch may not fit into VRAM at once. */
static void test_tiny_budgets(void **state)
{
    (void)state;
    static const char *const settings[] = {
        "ATS_PLACEMENT=random:5 ATS_VRAM=300K",     "ATS_PLACEMENT=random:6 ATS_VRAM=64K",
        "ATS_PLACEMENT=vram ATS_VRAM=330K",         "ATS_PLACEMENT=fill ATS_EMU_MEMORY=1M",
        "ATS_PLACEMENT=random:7 ATS_EMU_MEMORY=1M",
    };
    for (size_t i = 0; i < sizeof(settings) / sizeof(settings[0]); i++) {
        if (is_chosen(i, sizeof(settings) / sizeof(settings[0]))) {
            run("tiny budget", settings[i],
                (struct scenario){10 + i, .n_devices = 1, .n_threads = 1, .n_worlds = 2,
                                  .steps = 300});
        }
    }
}

static void test_two_devices(void **state)
{
    (void)state;
    run("two devices", "ATS_EMULATE=emu-small,emu-small ATS_PLACEMENT=random:11",
        (struct scenario){20, .n_devices = 2, .n_threads = 1, .n_worlds = 3, .steps = 400});
    run("two devices", "ATS_EMULATE=emu-small,emu-small ATS_PLACEMENT=vram ATS_EMU_DELAY_US=100",
        (struct scenario){21, .n_devices = 2, .n_threads = 1, .n_worlds = 3, .steps = 400});
}

static void test_streams_in_threads(void **state)
{
    (void)state;
    run("threads", "ATS_PLACEMENT=random:21",
        (struct scenario){30, .n_devices = 1, .n_threads = 4, .n_worlds = 2, .steps = 200});
    run("threads", "ATS_EMULATE=emu-small,emu-small ATS_PLACEMENT=random:22 ATS_EMU_DELAY_US=50",
        (struct scenario){31, .n_devices = 2, .n_threads = 4, .n_worlds = 2, .steps = 200});
    run("threads and a tiny budget", "ATS_PLACEMENT=random:23 ATS_VRAM=700K",
        (struct scenario){32, .n_devices = 1, .n_threads = 4, .n_worlds = 2, .steps = 200});
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_placements),
        cmocka_unit_test(test_tiny_budgets),
        cmocka_unit_test(test_two_devices),
        cmocka_unit_test(test_streams_in_threads),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
