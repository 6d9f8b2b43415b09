/* Random graphs, allocated by ggml's graph allocator with its recycled memory: the ATS device
 * computes the same bits as the CPU backend, whatever the placement, the sides of the operators,
 * the budget and the timing.
 *
 * A graph is built twice from the same random decisions, once for each backend, with tensors of
 * its own. Weights and state live in buffers of their own, as in llama.cpp; state carries over
 * from graph to graph. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "harness.h"

#include <ggml-backend-impl.h>
#include <ggml-impl.h>
#include <string.h>

enum {
    WIDTH = 64, /* of every activation */
    HEADS = 4,
    MAX_TOKENS = 9,
    CELLS = 24, /* rows of state */
    EXPERTS = 4,
    VOCABULARY = 20,
    N_MATRICES = 4,
    N_STATES = 3,
    MAX_INPUTS = 24,
    MAX_OUTPUTS = 24,
    MAX_VALUES = 96,
    MAX_NODES = 2048,
};

/* ---- one side of a comparison ---- */

struct bench {
    ggml_backend_t backend;
    ggml_gallocr_t allocators[2]; /* of two graphs that are computed in turn */
    struct ggml_context *weight_ctx;
    struct ggml_context *state_ctx;
    ggml_backend_buffer_t weights;
    ggml_backend_buffer_t state;
    struct ggml_tensor *matrices[N_MATRICES];
    struct ggml_tensor *experts;
    struct ggml_tensor *table;
    struct ggml_tensor *norm;
    struct ggml_tensor *states[N_STATES];
};

static struct ggml_context *make_context(size_t bytes)
{
    const struct ggml_init_params params = {.mem_size = bytes, .no_alloc = true};
    struct ggml_context *ctx = ggml_init(params);
    CHECK(ctx != NULL, "no memory");
    return ctx;
}

/* Random numbers of about the given size, as `type`. */
static void fill(struct ggml_tensor *tensor, struct ats_rng *rng, float size)
{
    const size_t n = (size_t)ggml_nelements(tensor);
    float *values = malloc(n * sizeof(float));
    for (size_t i = 0; i < n; i++) {
        values[i] = size * ((float)ats_rng_below(rng, 2001) / 1000.0F - 1.0F);
    }
    void *bytes = malloc(ggml_nbytes(tensor));
    const int64_t rows = ggml_nrows(tensor);
    if (tensor->type == GGML_TYPE_F32) {
        memcpy(bytes, values, n * sizeof(float));
    } else {
        ggml_quantize_chunk(tensor->type, values, bytes, 0, rows, tensor->ne[0], NULL);
    }
    ggml_backend_tensor_set(tensor, bytes, 0, ggml_nbytes(tensor));
    free(bytes);
    free(values);
}

static void bench_make(struct bench *b, const char *device, struct ats_rng rng)
{
    static const enum ggml_type types[N_MATRICES] = {GGML_TYPE_F32, GGML_TYPE_F16, GGML_TYPE_Q8_0,
                                                     GGML_TYPE_Q4_0};
    ggml_backend_dev_t dev = device_named(device);
    ggml_backend_buffer_type_t type = ggml_backend_dev_buffer_type(dev);
    *b = (struct bench){.backend = backend_on(dev),
                        .allocators = {ggml_gallocr_new(type), ggml_gallocr_new(type)}};
    b->weight_ctx = make_context(1 << 16);
    b->state_ctx = make_context(1 << 16);
    for (int i = 0; i < N_MATRICES; i++) {
        b->matrices[i] = ggml_new_tensor_2d(b->weight_ctx, types[i], WIDTH, WIDTH);
        ggml_format_name(b->matrices[i], "blk.%d.ffn.weight", i);
    }
    b->experts = ggml_new_tensor_3d(b->weight_ctx, GGML_TYPE_Q8_0, WIDTH, WIDTH, EXPERTS);
    ggml_set_name(b->experts, "blk.0.ffn_up_exps.weight");
    b->table = ggml_new_tensor_2d(b->weight_ctx, GGML_TYPE_F16, WIDTH, VOCABULARY);
    b->norm = ggml_new_tensor_1d(b->weight_ctx, GGML_TYPE_F32, WIDTH);
    for (int i = 0; i < N_STATES; i++) {
        b->states[i] =
            ggml_new_tensor_2d(b->state_ctx, i == 1 ? GGML_TYPE_F16 : GGML_TYPE_F32, WIDTH, CELLS);
        ggml_format_name(b->states[i], "cache_k_l%d", i);
    }
    b->weights = ggml_backend_alloc_ctx_tensors_from_buft(b->weight_ctx, type);
    b->state = ggml_backend_alloc_ctx_tensors_from_buft(b->state_ctx, type);
    CHECK(b->weights != NULL && b->state != NULL, "no buffer on %s", device);
    ggml_backend_buffer_set_usage(b->weights, GGML_BACKEND_BUFFER_USAGE_WEIGHTS);
    ggml_backend_buffer_clear(b->state, 0);
    for (int i = 0; i < N_MATRICES; i++) {
        fill(b->matrices[i], &rng, 0.3F);
    }
    fill(b->experts, &rng, 0.3F);
    fill(b->table, &rng, 1.0F);
    fill(b->norm, &rng, 1.0F);
}

static void bench_free(struct bench *b)
{
    ggml_gallocr_free(b->allocators[0]);
    ggml_gallocr_free(b->allocators[1]);
    ggml_backend_free(b->backend);
    ggml_backend_buffer_free(b->state);
    ggml_backend_buffer_free(b->weights);
    ggml_free(b->state_ctx);
    ggml_free(b->weight_ctx);
}

/* ---- a random graph ---- */

enum input_kind { ACTIVATION, ROW_IDS, POSITIONS, EXPERT_IDS, CELL_IDS };

struct input {
    struct ggml_tensor *tensor;
    enum input_kind kind;
};

struct sketch {
    const struct bench *bench;
    struct ats_rng *rng;
    struct ggml_context *ctx;
    struct ggml_cgraph *graph;
    int64_t tokens;
    struct ggml_tensor *values[MAX_VALUES]; /* activations [WIDTH, tokens], contiguous */
    size_t n_values;
    struct input inputs[MAX_INPUTS];
    size_t n_inputs;
    struct ggml_tensor *outputs[MAX_OUTPUTS];
    size_t n_outputs;
};

static struct ggml_tensor *input(struct sketch *s, enum input_kind kind, enum ggml_type type,
                                 int64_t ne0, int64_t ne1)
{
    struct ggml_tensor *tensor = ggml_new_tensor_2d(s->ctx, type, ne0, ne1);
    if (test_chance(s->rng, 70)) {
        ggml_set_input(tensor);
    }
    s->inputs[s->n_inputs++] = (struct input){tensor, kind};
    return tensor;
}

/* An earlier activation, a recent one more likely. */
static struct ggml_tensor *value(struct sketch *s)
{
    const size_t n = s->n_values;
    const size_t low = n > 3 && test_chance(s->rng, 70) ? n - 3 : 0;
    return s->values[test_between(s->rng, low, n - 1)];
}

static struct ggml_tensor *matrix(struct sketch *s)
{
    return s->bench->matrices[ats_rng_below(s->rng, N_MATRICES)];
}

static void keep(struct sketch *s, struct ggml_tensor *tensor)
{
    ggml_build_forward_expand(s->graph, tensor);
    if (s->n_values < MAX_VALUES) {
        s->values[s->n_values++] = tensor;
    }
    if (s->n_outputs < MAX_OUTPUTS && test_chance(s->rng, 15)) {
        ggml_set_output(tensor);
        s->outputs[s->n_outputs++] = tensor;
    }
}

static struct ggml_tensor *heads_of(struct sketch *s, struct ggml_tensor *x)
{
    return ggml_reshape_3d(s->ctx, x, WIDTH / HEADS, HEADS, s->tokens);
}

/* An operator may write over its operand only if nothing reads the old value later: the copy is
 * private to it. */
static struct ggml_tensor *private_copy(struct sketch *s)
{
    return ggml_dup(s->ctx, value(s));
}

static void step_elementwise(struct sketch *s)
{
    struct ggml_context *ctx = s->ctx;
    struct ggml_tensor *x = value(s);
    switch (ats_rng_below(s->rng, 8)) {
    case 0:
        keep(s, ggml_add(ctx, x, value(s)));
        break;
    case 1:
        keep(s, ggml_mul(ctx, ggml_rms_norm(ctx, x, 1e-5F), s->bench->norm));
        break;
    case 2:
        keep(s, ggml_silu(ctx, x));
        break;
    case 3:
        keep(s, ggml_scale(ctx, x, 0.75F));
        break;
    case 4:
        keep(s, ggml_soft_max(ctx, x));
        break;
    case 5:
        keep(s, ggml_norm(ctx, x, 1e-5F));
        break;
    case 6:
        keep(s, ggml_clamp(ctx, ggml_sub(ctx, x, value(s)), -2.0F, 2.0F));
        break;
    default:
        keep(s, ggml_swiglu_split(ctx, x, value(s)));
        break;
    }
}

static void step_in_place(struct sketch *s)
{
    struct ggml_context *ctx = s->ctx;
    struct ggml_tensor *x = private_copy(s);
    switch (ats_rng_below(s->rng, 4)) {
    case 0:
        keep(s, ggml_add_inplace(ctx, x, value(s)));
        break;
    case 1:
        keep(s, ggml_scale_inplace(ctx, x, -0.5F));
        break;
    case 2:
        keep(s, ggml_rms_norm_inplace(ctx, x, 1e-5F));
        break;
    default:
        keep(s, ggml_soft_max_inplace(ctx, x));
        break;
    }
}

static void step_matrix(struct sketch *s)
{
    struct ggml_tensor *x = ggml_rms_norm(s->ctx, value(s), 1e-5F);
    keep(s, ggml_mul_mat(s->ctx, matrix(s), x));
}

static void step_experts(struct sketch *s)
{
    enum { USED = 2 };
    struct ggml_context *ctx = s->ctx;
    struct ggml_tensor *ids = input(s, EXPERT_IDS, GGML_TYPE_I32, USED, s->tokens);
    struct ggml_tensor *x = ggml_reshape_3d(ctx, value(s), WIDTH, 1, s->tokens);
    struct ggml_tensor *y = ggml_mul_mat_id(ctx, s->bench->experts, x, ids);
    struct ggml_tensor *sum = ggml_add(ctx, ggml_view_2d(ctx, y, WIDTH, s->tokens, y->nb[2], 0),
                                       ggml_view_2d(ctx, y, WIDTH, s->tokens, y->nb[2], y->nb[1]));
    keep(s, sum);
}

static void step_rows(struct sketch *s)
{
    struct ggml_tensor *ids = input(s, ROW_IDS, GGML_TYPE_I32, s->tokens, 1);
    keep(s, ggml_get_rows(s->ctx, s->bench->table, ids));
}

static void step_rope(struct sketch *s)
{
    struct ggml_tensor *positions = input(s, POSITIONS, GGML_TYPE_I32, s->tokens, 1);
    struct ggml_tensor *x = heads_of(s, value(s));
    const int mode = test_chance(s->rng, 50) ? 0 : GGML_ROPE_TYPE_NEOX;
    x = test_chance(s->rng, 50) ? ggml_rope(s->ctx, x, positions, WIDTH / HEADS, mode)
                                : ggml_rope_inplace(s->ctx, heads_of(s, private_copy(s)), positions,
                                                    WIDTH / HEADS, mode);
    keep(s, ggml_cont_2d(s->ctx, x, WIDTH, s->tokens));
}

static void step_halves(struct sketch *s)
{
    struct ggml_context *ctx = s->ctx;
    struct ggml_tensor *a = value(s);
    struct ggml_tensor *b = value(s);
    struct ggml_tensor *left = ggml_view_2d(ctx, a, WIDTH / 2, s->tokens, a->nb[1], 0);
    struct ggml_tensor *right = ggml_view_2d(ctx, b, WIDTH / 2, s->tokens, b->nb[1], b->nb[1] / 2);
    if (test_chance(s->rng, 50)) {
        keep(s, ggml_concat(ctx, right, left, 0));
    } else { /* one written into a part of a copy of the other */
        struct ggml_tensor *whole = ggml_dup(ctx, b);
        ggml_build_forward_expand(s->graph, whole);
        struct ggml_tensor *part =
            ggml_view_2d(ctx, whole, WIDTH / 2, s->tokens, whole->nb[1], whole->nb[1] / 2);
        ggml_build_forward_expand(s->graph, ggml_cpy(ctx, left, part));
        keep(s, ggml_scale(ctx, whole, 0.5F));
    }
}

static void step_attention(struct sketch *s)
{
    struct ggml_context *ctx = s->ctx;
    struct ggml_tensor *q = ggml_permute(ctx, heads_of(s, value(s)), 0, 2, 1, 3);
    struct ggml_tensor *k = ggml_permute(ctx, heads_of(s, value(s)), 0, 2, 1, 3);
    struct ggml_tensor *v = ggml_cont(ctx, ggml_permute(ctx, heads_of(s, value(s)), 1, 2, 0, 3));
    struct ggml_tensor *kq = ggml_soft_max_ext(ctx, ggml_mul_mat(ctx, k, q), NULL, 0.25F, 0.0F);
    struct ggml_tensor *kqv = ggml_permute(ctx, ggml_mul_mat(ctx, v, kq), 0, 2, 1, 3);
    keep(s, ggml_cont_2d(ctx, kqv, WIDTH, s->tokens));
}

static void step_write_state(struct sketch *s)
{
    struct ggml_context *ctx = s->ctx;
    struct ggml_tensor *state = s->bench->states[ats_rng_below(s->rng, N_STATES)];
    struct ggml_tensor *x = value(s);
    if (test_chance(s->rng, 50)) {
        const size_t first = test_between(s->rng, 0, CELLS - (size_t)s->tokens);
        struct ggml_tensor *cells =
            ggml_view_2d(ctx, state, WIDTH, s->tokens, state->nb[1], first * state->nb[1]);
        ggml_build_forward_expand(s->graph, ggml_cpy(ctx, x, cells));
    } else {
        struct ggml_tensor *ids = input(s, CELL_IDS, GGML_TYPE_I64, s->tokens, 1);
        ggml_build_forward_expand(s->graph, ggml_set_rows(ctx, state, x, ids));
    }
}

static void step_read_state(struct sketch *s)
{
    struct ggml_context *ctx = s->ctx;
    struct ggml_tensor *state = s->bench->states[ats_rng_below(s->rng, N_STATES)];
    if (test_chance(s->rng, 50)) {
        const size_t first = test_between(s->rng, 0, CELLS - (size_t)s->tokens);
        struct ggml_tensor *cells =
            ggml_view_2d(ctx, state, WIDTH, s->tokens, state->nb[1], first * state->nb[1]);
        keep(s, ggml_cpy(ctx, cells, ggml_new_tensor_2d(ctx, GGML_TYPE_F32, WIDTH, s->tokens)));
    } else {
        struct ggml_tensor *ids = input(s, ROW_IDS, GGML_TYPE_I32, s->tokens, 1);
        keep(s, ggml_get_rows(ctx, state, ids));
    }
}

/* Operators on tensors without elements, as llama.cpp makes for batches without outputs. */
static void step_empty(struct sketch *s)
{
    struct ggml_tensor *x = value(s);
    struct ggml_tensor *none = ggml_view_2d(s->ctx, x, WIDTH, 0, x->nb[1], 0);
    ggml_build_forward_expand(s->graph, ggml_mul_mat(s->ctx, matrix(s), none));
}

static void sketch_draw(struct sketch *s)
{
    static void (*const steps[])(struct sketch *) = {
        step_elementwise, step_elementwise, step_elementwise, step_in_place,
        step_matrix,      step_matrix,      step_experts,     step_rows,
        step_rope,        step_halves,      step_attention,   step_write_state,
        step_write_state, step_read_state,  step_read_state,  step_empty,
    };
    s->ctx = make_context(ggml_tensor_overhead() * MAX_NODES +
                          ggml_graph_overhead_custom(MAX_NODES, false));
    s->graph = ggml_new_graph_custom(s->ctx, MAX_NODES, false);
    s->tokens = (int64_t)test_between(s->rng, 1, MAX_TOKENS);
    s->values[s->n_values++] = input(s, ACTIVATION, GGML_TYPE_F32, WIDTH, s->tokens);
    const size_t n = test_between(s->rng, 1, 30);
    for (size_t i = 0; i < n && s->n_inputs + 1 < MAX_INPUTS; i++) {
        steps[ats_rng_below(s->rng, sizeof(steps) / sizeof(steps[0]))](s);
    }
    struct ggml_tensor *last = ggml_scale(s->ctx, value(s), 1.5F);
    ggml_set_output(last);
    ggml_build_forward_expand(s->graph, last);
    s->outputs[s->n_outputs < MAX_OUTPUTS ? s->n_outputs++ : MAX_OUTPUTS - 1] = last;
}

/* ---- running it ---- */

static void write_in_pieces(struct ggml_tensor *tensor, const void *data, struct ats_rng *rng)
{
    const size_t all = ggml_nbytes(tensor);
    for (size_t at = 0; at < all;) {
        const size_t n = test_between(rng, 1, all - at);
        ggml_backend_tensor_set(tensor, (const char *)data + at, at, n);
        at += n;
    }
}

static void set_input(const struct sketch *s, const struct input *in, struct ats_rng *rng)
{
    const size_t n = (size_t)ggml_nelements(in->tensor);
    uint64_t data[WIDTH * MAX_TOKENS];
    float *floats = (float *)data;
    int32_t *ids = (int32_t *)data;
    const size_t first_cell = test_between(rng, 0, CELLS - MAX_TOKENS);
    for (size_t i = 0; i < n; i++) {
        switch (in->kind) {
        case ACTIVATION:
            floats[i] = (float)ats_rng_below(rng, 2001) / 1000.0F - 1.0F;
            break;
        case ROW_IDS:
            ids[i] = (int32_t)ats_rng_below(rng, VOCABULARY < CELLS ? VOCABULARY : CELLS);
            break;
        case POSITIONS:
            ids[i] = (int32_t)ats_rng_below(rng, 4096);
            break;
        case EXPERT_IDS: /* different ones for one token */
            ids[i] = i % 2 == 0
                         ? (int32_t)ats_rng_below(rng, EXPERTS)
                         : (ids[i - 1] + 1 + (int32_t)ats_rng_below(rng, EXPERTS - 1)) % EXPERTS;
            break;
        case CELL_IDS: /* different ones: threads write rows in any order */
            data[i] = first_cell + i;
            break;
        }
    }
    if (in->tensor->data == NULL) {
        return; /* no operator of the graph reads it */
    }
    if (test_chance(rng, 25)) {
        write_in_pieces(in->tensor, data, rng);
    } else if (test_chance(rng, 50)) {
        ggml_backend_tensor_set_async(s->bench->backend, in->tensor, data, 0,
                                      ggml_nbytes(in->tensor));
        ggml_backend_synchronize(s->bench->backend);
    } else {
        ggml_backend_tensor_set(in->tensor, data, 0, ggml_nbytes(in->tensor));
    }
}

static void set_inputs(const struct sketch *s, struct ats_rng rng)
{
    for (size_t i = 0; i < s->n_inputs; i++) {
        set_input(s, &s->inputs[i], &rng);
    }
}

static void compare(const struct ggml_tensor *got, const struct ggml_tensor *expected,
                    const char *what, size_t index)
{
    const size_t bytes = ggml_nbytes(expected);
    CHECK(ggml_nbytes(got) == bytes, "sizes");
    char *a = malloc(bytes);
    char *b = malloc(bytes);
    ggml_backend_tensor_get(got, a, 0, bytes);
    ggml_backend_tensor_get(expected, b, 0, bytes);
    for (size_t i = 0; i < bytes; i++) {
        CHECK(a[i] == b[i], "%s %zu (%s of %s): byte %zu of %zu differs", what, index, got->name,
              ggml_op_desc(got), i, bytes);
    }
    free(a);
    free(b);
}

struct scenario {
    uint64_t stream;
    size_t n_threads;
    size_t n_graphs;
    bool plans_anew; /* by other rates for each pass */
};

static void sketch_make(struct sketch *s, const struct bench *bench, size_t which,
                        struct ats_rng *rng, uint64_t uid)
{
    *s = (struct sketch){.bench = bench, .rng = rng};
    sketch_draw(s);
    /* without the first call, ggml would give an empty tensor the place of a view that was at its
     * index in the graph before, which is none */
    CHECK(ggml_gallocr_reserve(bench->allocators[which], s->graph) &&
              ggml_gallocr_alloc_graph(bench->allocators[which], s->graph),
          "cannot allocate the graph");
    s->graph->uid = uid;
}

/* A graph on both devices. */
struct twins {
    struct sketch ats;
    struct sketch cpu;
};

static struct twins *twins_make(const struct bench *ats, const struct bench *cpu, size_t which,
                                struct ats_rng *rng, uint64_t uid)
{
    struct twins *t = malloc(sizeof(*t));
    struct ats_rng same = *rng;
    sketch_make(&t->ats, ats, which, rng, uid);
    sketch_make(&t->cpu, cpu, which, &same, 0);
    return t;
}

static void twins_free(struct twins *t)
{
    ggml_free(t->ats.ctx);
    ggml_free(t->cpu.ctx);
    free(t);
}

static void twins_run(struct twins *t, struct ats_rng *rng, size_t number)
{
    const struct bench *ats = t->ats.bench;
    const struct bench *cpu = t->cpu.bench;
    const struct ats_rng inputs = {.state = ats_rng_next(rng)};
    set_inputs(&t->ats, inputs);
    set_inputs(&t->cpu, inputs);
    if (test_chance(rng, 50)) {
        CHECK(ggml_backend_graph_compute(ats->backend, t->ats.graph) == GGML_STATUS_SUCCESS,
              "graph %zu", number);
    } else {
        CHECK(ggml_backend_graph_compute_async(ats->backend, t->ats.graph) == GGML_STATUS_SUCCESS,
              "graph %zu", number);
        ggml_backend_synchronize(ats->backend);
    }
    CHECK(ggml_backend_graph_compute(cpu->backend, t->cpu.graph) == GGML_STATUS_SUCCESS, "CPU");
    for (size_t i = 0; i < t->ats.n_outputs; i++) {
        compare(t->ats.outputs[i], t->cpu.outputs[i], "output", i);
    }
    for (size_t i = 0; i < N_STATES && test_chance(rng, 30); i++) {
        compare(ats->states[i], cpu->states[i], "state", i);
    }
}

/* Two graphs, computed in turn a few times: with an identity, later times reuse their plans. */
static void run_graphs(const struct bench *ats, const struct bench *cpu, uint64_t decisions,
                       size_t number, size_t most_times)
{
    static _Atomic uint64_t next_uid = UINT64_C(1) << 40;
    struct ats_rng rng = {.state = decisions};
    struct twins *pair[2];
    for (size_t i = 0; i < 2; i++) {
        pair[i] = twins_make(ats, cpu, i, &rng, number % 3 == 2 ? 0 : next_uid++);
    }
    const size_t times = test_between(&rng, 1, most_times);
    for (size_t t = 0; t < times; t++) {
        for (size_t i = 0; i < 2; i++) {
            twins_run(pair[i], &rng, number);
        }
    }
    twins_free(pair[0]);
    twins_free(pair[1]);
}

static void run_thread(size_t thread, const void *argument)
{
    const struct scenario *scenario = argument;
    struct ats_rng rng = test_rng(scenario->stream * 100 + thread);
    const struct ats_rng contents = {.state = ats_rng_next(&rng)};
    struct bench ats;
    struct bench cpu;
    bench_make(&ats, "ATS0", contents);
    bench_make(&cpu, "CPU", contents);
    for (size_t i = 0; i < scenario->n_graphs; i += 2) {
        run_graphs(&ats, &cpu, ats_rng_next(&rng), i / 2, scenario->plans_anew ? 6 : 3);
        if (test_chance(&rng, 5)) { /* as when a sequence is loaded */
            struct ats_rng state = {.state = ats_rng_next(&rng)};
            struct ats_rng again = state;
            fill(ats.states[i % N_STATES], &state, 1.0F);
            fill(cpu.states[i % N_STATES], &again, 1.0F);
        }
    }
    for (size_t i = 0; i < N_STATES; i++) {
        compare(ats.states[i], cpu.states[i], "state", i);
    }
    bench_free(&ats);
    bench_free(&cpu);
}

static void run_scenario(const void *argument)
{
    const struct scenario *scenario = argument;
    scenario_load_backends();
    scenario_in_threads(scenario->n_threads, run_thread, scenario);
    CHECK(scenario->plans_anew == (device_counter("beside") > 0), "plans made beside passes");
}

static void run(const char *title, const char *settings, struct scenario scenario)
{
    scenario.n_graphs = is_sanitized() ? scenario.n_graphs / 6 : scenario.n_graphs;
    assert_true(scenario_run(title, settings, run_scenario, &scenario));
}

/* ---- tests ---- */

static void test_rules(void **state)
{
    (void)state;
    static const char *const rules[] = {"host", "vram", "fill"};
    for (size_t i = 0; i < sizeof(rules) / sizeof(rules[0]); i++) {
        if (!is_chosen(i, sizeof(rules) / sizeof(rules[0]))) {
            continue;
        }
        char settings[64];
        snprintf(settings, sizeof(settings), "ATS_PLACEMENT=%s", rules[i]);
        run("rule", settings, (struct scenario){i, .n_threads = 1, .n_graphs = 150});
    }
}

static void test_random_placements(void **state)
{
    (void)state;
    for (uint64_t i = 0; i < 8; i++) {
        if (!is_chosen(i, 8)) {
            continue;
        }
        struct ats_rng rng = test_rng(500 + i);
        char settings[128];
        snprintf(settings, sizeof(settings), "ATS_PLACEMENT=random:%llu ATS_EMU_SEED=%llu%s",
                 (unsigned long long)ats_rng_next(&rng), (unsigned long long)i + 1,
                 i % 4 == 3 ? " ATS_EMU_DELAY_US=30" : "");
        run("random placement", settings,
            (struct scenario){10 + i, .n_threads = 1, .n_graphs = i % 4 == 3 ? 60 : 150});
    }
}

/* State gets its home in the first graph that writes it, and graphs that read it may have plans
 * from before. That is once for each context, so there are many. */
static void test_first_graphs(void **state)
{
    (void)state;
    for (uint64_t i = 0; i < 60; i++) {
        if (!is_chosen(i, 60)) {
            continue;
        }
        struct ats_rng rng = test_rng(700 + i);
        char settings[64];
        snprintf(settings, sizeof(settings), "ATS_PLACEMENT=random:%llu",
                 (unsigned long long)ats_rng_below(&rng, 100000));
        run("first graphs", settings, (struct scenario){100 + i, 1, 12, false});
    }
}

static void test_budgets(void **state)
{
    (void)state;
    static const char *const budgets[] = {"0", "8K", "64K", "120K", "200K", "300K", "999T"};
    for (uint64_t i = 0; i < sizeof(budgets) / sizeof(budgets[0]); i++) {
        if (!is_chosen(i, sizeof(budgets) / sizeof(budgets[0]))) {
            continue;
        }
        struct ats_rng rng = test_rng(600 + i);
        char settings[128];
        snprintf(settings, sizeof(settings), "ATS_PLACEMENT=random:%llu ATS_VRAM=%s",
                 (unsigned long long)ats_rng_next(&rng), budgets[i]);
        run("budget", settings, (struct scenario){30 + i, .n_threads = 1, .n_graphs = 100});
    }
    run("small VRAM", "ATS_EMU_MEMORY=1M", (struct scenario){40, 1, 100, false});
}

static void test_threads(void **state)
{
    (void)state;
    run("threads", "ATS_PLACEMENT=random:77 ATS_EMU_DELAY_US=10",
        (struct scenario){50, 3, 60, false});
    run("threads and a tight budget", "ATS_PLACEMENT=random:78 ATS_VRAM=400K",
        (struct scenario){51, 3, 60, false});
}

/* Products with a few of a weight's experts, computed on both sides if there is one token. */
static void test_experts_by_slice(void **state)
{
    (void)state;
    run("experts", "ATS_EXPERTS=slices ATS_PLACEMENT=random:5 ATS_EMU_DELAY_US=10",
        (struct scenario){60, 1, 100, false});
    run("experts in threads", "ATS_EXPERTS=slices ATS_PLACEMENT=random:6 ATS_EMU_DELAY_US=10",
        (struct scenario){61, 3, 60, false});
}

/* ---- ids that are no experts ---- */

enum { MANY_EXPERTS = 16 };

/* A product with experts, one for each of two tokens. Their matrix is larger than the budget. */
struct product {
    struct ggml_context *weight_ctx;
    ggml_backend_buffer_t weights;
    struct ggml_context *ctx;
    struct ggml_cgraph *graph;
    struct ggml_tensor *x;
    struct ggml_tensor *ids;
    struct ggml_tensor *y;
};

static void product_make(struct product *p, const struct bench *bench, struct ats_rng rng)
{
    enum { TOKENS = 2 };
    p->weight_ctx = make_context(1 << 16);
    struct ggml_tensor *experts =
        ggml_new_tensor_3d(p->weight_ctx, GGML_TYPE_Q8_0, WIDTH, WIDTH, MANY_EXPERTS);
    ggml_set_name(experts, "blk.1.ffn_up_exps.weight");
    p->weights = ggml_backend_alloc_ctx_tensors_from_buft(
        p->weight_ctx, ggml_backend_get_default_buffer_type(bench->backend));
    CHECK(p->weights != NULL, "no buffer");
    ggml_backend_buffer_set_usage(p->weights, GGML_BACKEND_BUFFER_USAGE_WEIGHTS);
    fill(experts, &rng, 0.3F);
    p->ctx = make_context(1 << 20);
    p->graph = ggml_new_graph(p->ctx);
    p->x = ggml_new_tensor_3d(p->ctx, GGML_TYPE_F32, WIDTH, 1, TOKENS);
    p->ids = ggml_new_tensor_2d(p->ctx, GGML_TYPE_I32, 1, TOKENS);
    ggml_set_input(p->x);
    ggml_set_input(p->ids);
    p->y = ggml_mul_mat_id(p->ctx, experts, p->x, p->ids);
    ggml_set_output(p->y);
    ggml_build_forward_expand(p->graph, p->y);
    CHECK(ggml_gallocr_alloc_graph(bench->allocators[0], p->graph), "cannot allocate the graph");
}

static void product_free(struct product *p)
{
    ggml_free(p->ctx);
    ggml_backend_buffer_free(p->weights);
    ggml_free(p->weight_ctx);
}

static enum ggml_status product_run(const struct product *p, const struct bench *bench,
                                    struct ats_rng rng, int32_t first, int32_t second)
{
    const int32_t ids[] = {first, second};
    fill(p->x, &rng, 1.0F);
    ggml_backend_tensor_set(p->ids, ids, 0, sizeof(ids));
    return ggml_backend_graph_compute(bench->backend, p->graph);
}

static void run_wrong_ids(const void *argument)
{
    static const int32_t wrong[][2] = {{-1, 0}, {1, MANY_EXPERTS}, {INT32_MIN, INT32_MAX}};
    struct ats_rng rng = test_rng(80);
    const struct ats_rng contents = {.state = ats_rng_next(&rng)};
    struct bench ats;
    struct bench cpu;
    struct product on_ats;
    struct product on_cpu;
    (void)argument;
    scenario_load_backends();
    bench_make(&ats, "ATS0", contents);
    bench_make(&cpu, "CPU", contents);
    product_make(&on_ats, &ats, contents);
    product_make(&on_cpu, &cpu, contents);
    on_ats.graph->uid = UINT64_C(1) << 41; /* one plan for all */
    for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
        CHECK(product_run(&on_ats, &ats, rng, wrong[i][0], wrong[i][1]) == GGML_STATUS_FAILED,
              "%d and %d", wrong[i][0], wrong[i][1]);
        CHECK(scenario_logged("names expert"), "%d and %d", wrong[i][0], wrong[i][1]);
        scenario_forget_log();
        CHECK(product_run(&on_ats, &ats, rng, 2, (int32_t)i) == GGML_STATUS_SUCCESS, "2 and %zu",
              i);
        CHECK(product_run(&on_cpu, &cpu, rng, 2, (int32_t)i) == GGML_STATUS_SUCCESS, "CPU");
        compare(on_ats.y, on_cpu.y, "product", i);
    }
    CHECK(device_counter("used_matrices") > 0, "experts by use");
    product_free(&on_ats);
    product_free(&on_cpu);
    bench_free(&ats);
    bench_free(&cpu);
}

/* Of experts by use, whose ids the CPU reads. */
static void test_wrong_ids(void **state)
{
    (void)state;
    static const char *const transfers[] = {"async", "serial"};
    for (size_t i = 0; i < sizeof(transfers) / sizeof(transfers[0]); i++) {
        char settings[128];
        snprintf(settings, sizeof(settings),
                 "ATS_PLACEMENT=fill ATS_PROMOTE=used ATS_VRAM=64K ATS_TRANSFER=%s", transfers[i]);
        assert_true(scenario_run("wrong ids", settings, run_wrong_ids, NULL));
    }
}

/* Other rates for each pass: it runs by the plan that was made beside the one before. */
static void test_planned_anew(void **state)
{
    (void)state;
    run("anew", "ATS_ADAPT=random:11 ATS_VRAM=200K ATS_EMU_DELAY_US=10",
        (struct scenario){70, 1, 180, true}); /* of 10 graphs, one seed in 40 repeats none */
    run("anew, in threads", "ATS_ADAPT=random:12 ATS_PLACEMENT=random:79 ATS_VRAM=400K",
        (struct scenario){71, 3, 180, true});
    run("anew, with experts",
        "ATS_ADAPT=random:13 ATS_EXPERTS=slices ATS_PLACEMENT=random:8 ATS_EMU_DELAY_US=10",
        (struct scenario){72, 3, 180, true});
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_experts_by_slice),  cmocka_unit_test(test_rules),
        cmocka_unit_test(test_random_placements), cmocka_unit_test(test_first_graphs),
        cmocka_unit_test(test_budgets),           cmocka_unit_test(test_threads),
        cmocka_unit_test(test_planned_anew),      cmocka_unit_test(test_wrong_ids),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
