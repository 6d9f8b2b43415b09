/* Timed mode: what memory holds, what graphs cost, what is one kernel, and rig files. Nothing here
 * depends on how fast the machine is. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "cost/rig.h"
#include "emu/fusion.h"
#include "emu/graph_cost.h"
#include "timed.h"

#include <pthread.h>
#include <unistd.h>

static struct ats_device_rates fast_rates(void)
{
    struct ats_device_rates rates = timed_rates();
    ats_rates_scale(&rates, 1000);
    return rates;
}

/* ---- contents ---- */

static void test_small_integers_are_real(void **state)
{
    (void)state;
    const struct ats_device_rates rates = fast_rates();
    struct ats_emu_device *device = timed_device(&rates);
    ggml_backend_t backend = ggml_backend_dev_init(&device->dev, NULL);
    struct timed_graph g = timed_graph_begin();
    struct ggml_tensor *ids = ggml_new_tensor_1d(g.context, GGML_TYPE_I32, 1000);
    timed_graph_end(&g, device);
    int32_t in[1000];
    int32_t out[1000];
    for (int i = 0; i < 1000; i++) {
        in[i] = i * 7;
    }
    ggml_backend_tensor_set(ids, in, 0, sizeof in);
    ggml_backend_tensor_get(ids, out, 0, sizeof out);
    assert_memory_equal(in, out, sizeof in);
    in[10] = 4711;
    ggml_backend_tensor_set_async(backend, ids, in + 10, 40, 4);
    ggml_backend_tensor_get_async(backend, ids, out, 0, sizeof out);
    ggml_backend_synchronize(backend);
    assert_memory_equal(in, out, sizeof in);
    timed_graph_free(&g);
    ggml_backend_free(backend);
    ats_emu_device_destroy(device);
}

static void test_numbers_are_finite_and_repeatable(void **state)
{
    (void)state;
    enum { N = 100001 };
    static uint32_t out[2][2][N];
    static const enum ggml_type types[] = {GGML_TYPE_F32, GGML_TYPE_F16, GGML_TYPE_BF16};
    for (size_t type = 0; type < 3; type++) {
        for (int round = 0; round < 2; round++) {
            const struct ats_device_rates rates = fast_rates();
            struct ats_emu_device *device = timed_device(&rates);
            struct timed_graph g = timed_graph_begin();
            struct ggml_tensor *t = ggml_new_tensor_1d(g.context, types[type], N);
            timed_graph_end(&g, device);
            ggml_backend_tensor_get(t, out[round][0], 0, ggml_nbytes(t));
            ggml_backend_tensor_get(t, out[round][1], 0, ggml_nbytes(t));
            timed_graph_free(&g);
            ats_emu_device_destroy(device);
        }
        const size_t bytes = (size_t)N * (type == 0 ? 4 : 2);
        assert_memory_equal(out[0][0], out[1][0], bytes); /* the same for the same reads */
        assert_memory_equal(out[0][1], out[1][1], bytes);
        assert_memory_not_equal(out[0][0], out[0][1], bytes); /* each read another */
        double sum = 0;
        double squares = 0;
        for (size_t i = 0; i < N; i++) {
            const uint16_t half = ((const uint16_t *)out[0][0])[i];
            float value;
            memcpy(&value, &out[0][0][i], sizeof value);
            value = type == 1 ? ggml_fp16_to_fp32(half) : value;
            value = type == 2 ? ggml_bf16_to_fp32((ggml_bf16_t){half}) : value;
            assert_true(isfinite(value));
            sum += value;
            squares += value * value;
        }
        if (type == 0) {
            assert_true(fabs(sum / N) < 0.05);
            assert_true(squares / N > 0.8 && squares / N < 1.2);
        }
    }
}

static size_t resident_kib(void)
{
    FILE *file = fopen("/proc/self/statm", "r");
    unsigned long size = 0;
    unsigned long resident = 0;
    assert_non_null(file);
    assert_int_equal(fscanf(file, "%lu %lu", &size, &resident), 2);
    fclose(file);
    return resident * (size_t)sysconf(_SC_PAGESIZE) / 1024;
}

static void test_weights_commit_no_memory(void **state)
{
    (void)state;
    const struct ats_device_rates rates = fast_rates();
    struct ats_emu_device *device = timed_device(&rates);
    struct timed_graph g = timed_graph_begin();
    struct ggml_tensor *t = ggml_new_tensor_1d(g.context, GGML_TYPE_F32, 50 << 20 >> 2);
    timed_graph_end(&g, device);
    uint8_t *data = calloc(1, 50 << 20);
    assert_non_null(data);
    memset(data, 1, 50 << 20);
    const size_t before = resident_kib();
    ggml_backend_tensor_set(t, data, 0, 50 << 20);
    assert_true(resident_kib() < before + (size_t)5 * 1024);
    free(data);
    timed_graph_free(&g);
    ats_emu_device_destroy(device);
}

/* ---- routing ---- */

struct moe {
    struct timed_graph g;
    struct ggml_tensor *sorted;
    struct ggml_tensor *ids;
};

enum { EXPERTS = 64, USED = 8, TOKENS = 5 };

/* The selection of experts as llama.cpp builds it. */
static struct moe make_moe(struct ats_emu_device *device, int layer)
{
    struct moe m = {.g = timed_graph_begin()};
    struct ggml_tensor *logits = ggml_new_tensor_2d(m.g.context, GGML_TYPE_F32, EXPERTS, TOKENS);
    m.sorted = ggml_argsort(m.g.context, logits, GGML_SORT_ORDER_DESC);
    ggml_format_name(m.sorted, "ffn_moe_argsort-%d", layer);
    m.ids = ggml_view_2d(m.g.context, m.sorted, USED, TOKENS, m.sorted->nb[1], 0);
    ggml_format_name(m.ids, "ffn_moe_topk-%d", layer);
    ggml_build_forward_expand(m.g.graph, m.ids);
    timed_graph_end(&m.g, device);
    return m;
}

static void read_ids(ggml_backend_t backend, const struct moe *m, int32_t rows[TOKENS][EXPERTS])
{
    assert_int_equal(ggml_backend_graph_compute(backend, m->g.graph), GGML_STATUS_SUCCESS);
    ggml_backend_tensor_get(m->sorted, rows, 0, sizeof(int32_t) * EXPERTS * (size_t)TOKENS);
}

static void test_routing_is_valid_and_independent_of_devices(void **state)
{
    (void)state;
    int32_t rows[2][3][TOKENS][EXPERTS];
    for (int round = 0; round < 2; round++) {
        ats_emu_reset_routing();
        const struct ats_device_rates rates = fast_rates();
        struct ats_emu_device *device = timed_device(&rates);
        ggml_backend_t backend = ggml_backend_dev_init(&device->dev, NULL);
        struct moe m[2] = {make_moe(device, 3), make_moe(device, 4)};
        read_ids(backend, &m[round], rows[round][round]); /* the layers in another order */
        read_ids(backend, &m[1 - round], rows[round][1 - round]);
        read_ids(backend, &m[0], rows[round][2]);
        timed_graph_free(&m[0].g);
        timed_graph_free(&m[1].g);
        ggml_backend_free(backend);
        ats_emu_device_destroy(device);
    }
    assert_memory_equal(rows[0], rows[1], sizeof rows[0]);
    assert_memory_not_equal(rows[0][0], rows[0][1], sizeof rows[0][0]);
    assert_memory_not_equal(rows[0][0], rows[0][2], sizeof rows[0][0]);
    for (int i = 0; i < 3 * TOKENS; i++) {
        uint64_t seen = 0;
        for (int j = 0; j < EXPERTS; j++) {
            const int32_t id = rows[0][i / TOKENS][i % TOKENS][j];
            assert_in_range(id, 0, EXPERTS - 1);
            seen |= UINT64_C(1) << id;
        }
        assert_true(seen == UINT64_MAX); /* all of them, each once */
    }
    /* the selected ones are those of the model, row by row a token */
    const struct ats_routing_model model = ats_routing_model_default();
    struct ats_routing routing;
    assert_true(ats_routing_init(&routing, &model, 3, 3, EXPERTS, USED));
    for (int i = 0; i < TOKENS; i++) {
        int32_t experts[USED];
        ats_routing_next(&routing, experts);
        assert_memory_equal(experts, rows[0][0][i], sizeof experts);
    }
    ats_routing_free(&routing);
}

/* ---- what graphs cost ---- */

struct sum {
    double us;
    unsigned launches;
};

static void add(void *context, double us, unsigned launches)
{
    struct sum *sum = context;
    sum->us += us;
    sum->launches += launches;
}

static void no_transfer(void *context, enum ats_timeline_direction direction, double bytes)
{
    (void)context;
    (void)direction;
    (void)bytes;
    fail_msg("nothing is in pinned memory");
}

static struct sum cost_of(struct ats_emu_device *device, const struct ggml_cgraph *graph)
{
    struct sum sum = {0};
    const struct ats_emu_graph_sink sink = {&sum, add, no_transfer};
    struct ats_error err = {""};
    if (!ats_emu_graph_cost(device, graph, &sink, &err)) {
        fail_msg("%s", err.text);
    }
    return sum;
}

static void test_experts_cost_what_the_ids_say(void **state)
{
    (void)state;
    const struct ats_device_rates rates = timed_rates();
    struct ats_emu_device *device = timed_device(&rates);
    struct timed_graph g = timed_graph_begin();
    struct ggml_tensor *weights =
        ggml_new_tensor_3d(g.context, GGML_TYPE_F32, 100, 200, 16); /* 80 KB each */
    struct ggml_tensor *input = ggml_new_tensor_3d(g.context, GGML_TYPE_F32, 100, 1, 3);
    struct ggml_tensor *ids = ggml_new_tensor_2d(g.context, GGML_TYPE_I32, 2, 3);
    ggml_build_forward_expand(g.graph, ggml_mul_mat_id(g.context, weights, input, ids));
    timed_graph_end(&g, device);
    const int32_t three_experts[] = {5, 7, 7, 5, 5, 9};
    ggml_backend_tensor_set(ids, three_experts, 0, sizeof three_experts);
    /* three experts, 1200 bytes in, 24 of ids, 6 * 800 out at 4 GB/s */
    assert_true(fabs(cost_of(device, g.graph).us - (50 + (240000 + 1200 + 24 + 4800) / 4e3)) <
                1e-6);
    timed_graph_free(&g);
    ats_emu_device_destroy(device);
}

static struct ggml_tensor *norm_and_scale(struct timed_graph *g, struct ggml_tensor *x)
{
    struct ggml_tensor *weight = ggml_new_tensor_1d(g->context, GGML_TYPE_F32, 1000);
    return ggml_mul(g->context, ggml_rms_norm(g->context, x, 1e-5F), weight);
}

static void test_fused_operators_launch_once(void **state)
{
    (void)state;
    const struct ats_device_rates rates = timed_rates();
    struct ats_emu_device *device = timed_device(&rates);
    /* norm and scale are one kernel; 8000 bytes in and 4000 out at 2 GB/s */
    struct timed_graph g = timed_graph_begin();
    struct ggml_tensor *x = ggml_new_tensor_1d(g.context, GGML_TYPE_F32, 1000);
    ggml_build_forward_expand(g.graph, norm_and_scale(&g, x));
    timed_graph_end(&g, device);
    struct sum sum = cost_of(device, g.graph);
    assert_int_equal(sum.launches, 1);
    assert_true(fabs(sum.us - (50 + 6)) < 1e-9);
    /* unless somebody else reads the result between them */
    g.graph->nodes[0]->flags |= GGML_TENSOR_FLAG_OUTPUT;
    sum = cost_of(device, g.graph);
    assert_int_equal(sum.launches, 2);
    assert_true(fabs(sum.us - (100 + 4 + 6)) < 1e-9);
    timed_graph_free(&g);

    g = timed_graph_begin();
    x = ggml_new_tensor_1d(g.context, GGML_TYPE_F32, 1000);
    struct ggml_tensor *scaled = norm_and_scale(&g, x);
    ggml_build_forward_expand(g.graph, scaled);
    ggml_build_forward_expand(g.graph, ggml_sqr(g.context, scaled->src[0]));
    timed_graph_end(&g, device);
    assert_int_equal(cost_of(device, g.graph).launches, 3);
    timed_graph_free(&g);
    ats_emu_device_destroy(device);
}

/* gate, up and activation: one kernel for one token, three for a batch. */
static void test_gate_and_up_are_one_kernel_for_one_token(void **state)
{
    (void)state;
    const struct ats_device_rates rates = timed_rates();
    struct ats_emu_device *device = timed_device(&rates);
    for (int columns = 1; columns <= 2; columns++) {
        struct timed_graph g = timed_graph_begin();
        struct ggml_tensor *gate = ggml_new_tensor_2d(g.context, GGML_TYPE_F16, 64, 128);
        struct ggml_tensor *up = ggml_new_tensor_2d(g.context, GGML_TYPE_F16, 64, 128);
        struct ggml_tensor *x = ggml_new_tensor_2d(g.context, GGML_TYPE_F32, 64, columns);
        ggml_build_forward_expand(g.graph,
                                  ggml_swiglu_split(g.context, ggml_mul_mat(g.context, gate, x),
                                                    ggml_mul_mat(g.context, up, x)));
        timed_graph_end(&g, device);
        assert_int_equal(cost_of(device, g.graph).launches, columns == 1 ? 1 : 3);
        timed_graph_free(&g);
    }
    ats_emu_device_destroy(device);
}

static void test_host_memory_is_out_of_reach(void **state)
{
    (void)state;
    const struct ats_device_rates rates = fast_rates();
    struct ats_emu_device *device = timed_device(&rates);
    ggml_backend_t backend = ggml_backend_dev_init(&device->dev, NULL);
    struct timed_graph g = timed_graph_begin();
    struct ggml_tensor *x = ggml_new_tensor_1d(g.context, GGML_TYPE_F32, 100);
    struct ggml_tensor *y = ggml_sqr(g.context, x);
    ggml_build_forward_expand(g.graph, y);
    timed_graph_end(&g, device);
    float host[100] = {0};
    void *data = x->data;
    x->data = host;
    assert_int_equal(ggml_backend_graph_compute(backend, g.graph), GGML_STATUS_FAILED);
    ggml_backend_tensor_set_async(backend, x, host, 0, sizeof host);
    char text[256];
    assert_true(ats_emu_take_error(backend, text, sizeof text));
    assert_non_null(strstr(text, "illegal address"));
    x->data = data;
    assert_int_equal(ggml_backend_graph_compute(backend, g.graph), GGML_STATUS_SUCCESS);
    struct ats_error err = {""};
    assert_true(ats_emu_inject(&device->dev, "compute:1", &err));
    assert_int_equal(ggml_backend_graph_compute(backend, g.graph), GGML_STATUS_FAILED);
    assert_true(ats_emu_take_error(backend, text, sizeof text));
    timed_graph_free(&g);
    ggml_backend_free(backend);
    ats_emu_device_destroy(device);
}

/* ---- many threads ---- */

enum { STRESS_THREADS = 4, STRESS_ROUNDS = 25, STRESS_BYTES = 3 << 20 };

/* Streams that copy from pinned memory and free it as soon as they may, events between them, and
 * buffers that come and go. Sanitizers see whether the reader keeps off what is freed. */
struct stress {
    struct ats_emu_device *device;
    ggml_backend_event_t event; /* shared */
    struct ats_rng rng;
    pthread_t thread;
    bool ok;
};

static void *stress_main(void *argument)
{
    struct stress *s = argument;
    ggml_backend_t backend = ggml_backend_dev_init(&s->device->dev, NULL);
    const struct ggml_init_params params = {.mem_size = 1 << 20, .no_alloc = true};
    s->ok = backend != NULL;
    for (int round = 0; s->ok && round < STRESS_ROUNDS; round++) {
        struct ggml_context *context = ggml_init(params);
        struct ggml_tensor *t = ggml_new_tensor_1d(context, GGML_TYPE_F32, STRESS_BYTES / 4);
        ggml_backend_buffer_t buffer =
            ggml_backend_alloc_ctx_tensors_from_buft(context, &s->device->buft);
        uint8_t *pinned = ats_emu_pinned_alloc(STRESS_BYTES);
        if (buffer == NULL || pinned == NULL) {
            s->ok = false;
            break;
        }
        const size_t bytes = 4 * ats_rng_below(&s->rng, STRESS_BYTES / 4);
        ggml_backend_tensor_set_async(backend, t, pinned, 0, bytes);
        switch (ats_rng_below(&s->rng, 3)) {
        case 0:
            ggml_backend_event_record(s->event, backend);
            ggml_backend_event_synchronize(s->event);
            break;
        case 1:
            ggml_backend_event_wait(backend, s->event);
            ggml_backend_tensor_get_async(backend, t, pinned, 0, bytes);
            break;
        default:
            ggml_backend_tensor_get(t, pinned, 0, bytes);
            break;
        }
        ggml_backend_synchronize(backend);
        ats_emu_pinned_free(pinned);
        ggml_backend_buffer_free(buffer);
        ggml_free(context);
    }
    char text[256];
    s->ok = s->ok && !ats_emu_take_error(backend, text, sizeof text);
    ggml_backend_free(backend);
    return NULL;
}

static void test_many_threads(void **state)
{
    (void)state;
    const struct ats_device_rates rates = fast_rates();
    struct ats_emu_device *device = timed_device(&rates);
    ggml_backend_event_t event = ggml_backend_event_new(&device->dev);
    struct stress stress[STRESS_THREADS];
    for (uint64_t i = 0; i < STRESS_THREADS; i++) {
        stress[i] = (struct stress){.device = device, .event = event, .rng = {.state = i}};
        assert_int_equal(pthread_create(&stress[i].thread, NULL, stress_main, &stress[i]), 0);
    }
    for (int i = 0; i < STRESS_THREADS; i++) {
        pthread_join(stress[i].thread, NULL);
        assert_true(stress[i].ok);
    }
    const struct ats_emu_counters counters = timed_counters(device);
    assert_true(counters.copies_h2d >= STRESS_THREADS * STRESS_ROUNDS / 2);
    ggml_backend_event_free(event);
    ats_emu_device_destroy(device);
}

/* ---- rigs ---- */

static const char *rig_folder(void)
{
    return TEST_RIGS;
}

static void test_shipped_rigs(void **state)
{
    (void)state;
    static const struct {
        const char *name;
        double h2d_gbps;
        size_t memory;
    } rigs[] = {
        {"laptop-3060", 24, (size_t)6 << 30},         {"laptop-3060-pcie3", 12, (size_t)6 << 30},
        {"laptop-3060-pcie4", 24, (size_t)6 << 30},   {"laptop-3060-pcie5", 50, (size_t)6 << 30},
        {"desktop-4090", 24, (size_t)24 << 30},       {"desktop-4090-pcie3", 12, (size_t)24 << 30},
        {"desktop-4090-pcie4", 24, (size_t)24 << 30}, {"desktop-4090-pcie5", 50, (size_t)24 << 30},
    };
    for (size_t i = 0; i < sizeof rigs / sizeof rigs[0]; i++) {
        char path[512];
        snprintf(path, sizeof path, "%s/%s.json", rig_folder(), rigs[i].name);
        struct ats_rig rig;
        struct ats_error err = {""};
        if (!ats_rig_read(path, &rig, &err)) {
            fail_msg("%s", err.text);
        }
        assert_string_equal(rig.name, rigs[i].name);
        assert_true(rig.rates.h2d_gbps == rigs[i].h2d_gbps);
        assert_int_equal(rig.memory, rigs[i].memory);
        for (int f = 0; f < ATS_RIG_FIGURES; f++) {
            if (strcmp(ats_rig_figures[f].section, "routing") != 0) {
                assert_true(rig.sources[f][0] != '\0');
                assert_true(ats_rig_value(&rig, f) >= ats_rig_figures[f].min);
            }
        }
    }
}

static void write_text(const char *path, const char *text)
{
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    fputs(text, file);
    fclose(file);
}

#define RIG(rest) "{\"format\": \"ats-rig-1\", \"name\": \"mine\"" rest "}"

static void test_bad_rigs_are_explained(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        const char *part;
    } cases[] = {
        {"[]", "a rig is a JSON object"},
        {"{", "mine.json:1"},
        {"{\"format\": \"ats-rig-2\", \"name\": \"x\"}", "\"format\" must be \"ats-rig-1\""},
        {"{\"format\": \"ats-rig-1\"}", "\"name\" is missing"},
        {RIG(""), "\"cpu\": \"threads\" is missing"},
        {RIG(", \"speed\": 3"), "unknown key \"speed\"; allowed are format"},
        {RIG(", \"base\": \"nothing\""), "nothing.json"},
        {RIG(", \"base\": \"../mine\""), "\"base\" must be the name of a rig"},
        {RIG(", \"base\": \"mine\""), "bases on top of each other"},
        {RIG(", \"base\": \"good\", \"link\": 5"), "\"link\" must be an object of figures"},
        {RIG(", \"base\": \"good\", \"link\": {\"h2d_gbps\": 5}"),
         "\"link\": \"h2d_gbps\" must be an object {\"value\": number from 0.01 to 10000 GB/s"},
        {RIG(", \"base\": \"good\", \"link\": {\"h2d_gbps\": {\"value\": 5}}"), "\"source\": TEXT"},
        {RIG(", \"base\": \"good\", \"link\": {\"h2d_gbps\": {\"value\": -5, \"source\": \"x\"}}"),
         "from 0.01"},
        {RIG(", \"base\": \"good\", \"link\": {\"speed\": {\"value\": 5, \"source\": \"x\"}}"),
         "\"link\": unknown key \"speed\"; allowed are h2d_gbps, d2h_gbps"},
        {RIG(", \"base\": \"good\", \"cpu\": {\"threads\": {\"value\": 2.5, \"source\": \"x\"}}"),
         "whole number"},
        {RIG(", \"base\": \"good\", \"device\": {\"memory\": \"lots\"}"), "a size from 1M to 1T"},
        {RIG(", \"base\": \"good\", \"cpu\": {\"dram_limit_gbps\": {\"value\": 5, "
             "\"source\": \"x\"}}"),
         "\"dram_limit_gbps\" (5) must be at least \"matvec_gbps\""},
    };
    char directory[] = "/tmp/timed-rig-XXXXXX";
    assert_non_null(mkdtemp(directory));
    char path[64];
    char good[64];
    snprintf(path, sizeof path, "%s/mine.json", directory);
    snprintf(good, sizeof good, "%s/good.json", directory);
    char source[512];
    snprintf(source, sizeof source, "%s/laptop-3060.json", rig_folder());
    assert_int_equal(symlink(source, good), 0);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct ats_rig rig;
        struct ats_error err = {""};
        write_text(path, cases[i].text);
        assert_false(ats_rig_read(path, &rig, &err));
        if (strstr(err.text, cases[i].part) == NULL || strchr(err.text, '\n') != NULL ||
            strstr(err.text, directory) == NULL) {
            fail_msg("%s: '%s' does not say '%s'", cases[i].text, err.text, cases[i].part);
        }
    }
    unlink(path);
    unlink(good);
    rmdir(directory);
}

/* Random changes of a good file: read or refused in one line, never more. */
static void test_rigs_survive_mutation(void **state)
{
    (void)state;
    char source[512];
    snprintf(source, sizeof source, "%s/laptop-3060.json", rig_folder());
    static char good[16384];
    static char text[sizeof good + 1];
    FILE *file = fopen(source, "r");
    assert_non_null(file);
    const size_t size = fread(good, 1, sizeof good, file);
    fclose(file);
    assert_true(size > 1000 && size < sizeof good);
    char path[] = "/tmp/timed-rig-XXXXXX";
    const int fd = mkstemp(path);
    assert_true(fd >= 0);
    close(fd);
    int accepted = 0;
    for (uint64_t round = 0; round < 2000; round++) {
        struct ats_rng rng = {.state = round};
        memcpy(text, good, size);
        text[size] = '\0';
        for (uint64_t n = 1 + ats_rng_below(&rng, 3); n > 0; n--) {
            static const char replacements[] = "\"{}:,0-9eE.\n\x01x[";
            text[ats_rng_below(&rng, size)] =
                replacements[ats_rng_below(&rng, sizeof replacements - 1)];
        }
        if (ats_rng_below(&rng, 8) == 0) {
            text[ats_rng_below(&rng, size)] = '\0'; /* cut */
        }
        write_text(path, text);
        struct ats_rig rig;
        struct ats_error err = {""};
        if (ats_rig_read(path, &rig, &err)) {
            accepted++;
            assert_true(rig.rates.cpu_gbps > 0 && rig.rates.h2d_gbps > 0 && rig.memory > 0);
        } else {
            assert_non_null(strstr(err.text, path));
        }
    }
    unlink(path);
    assert_in_range(accepted, 50, 1950); /* texts and sources can change */
}

static void test_timed_profiles(void **state)
{
    (void)state;
    char path[512];
    snprintf(path, sizeof path, "%s/../profiles/emu-timed.json", rig_folder());
    struct ats_emu_profile profile;
    struct ats_error err = {""};
    if (!ats_emu_profile_read(path, &profile, &err)) {
        fail_msg("%s", err.text);
    }
    assert_true(profile.timed);
    assert_true(profile.rates.pageable_gbps == 2 && profile.rates.launch_us == 20);
    assert_true(profile.scale.factor == 1);
    char mine[] = "/tmp/timed-rig-XXXXXX";
    const int fd = mkstemp(mine);
    assert_true(fd >= 0);
    close(fd);
    static const char *const cases[][2] = {
        {"", "\"rates\" is missing, which mode \"timed\" needs"},
        {", \"rates\": 5", "\"rates\" must be an object"},
        {", \"rates\": {\"wings\": 2}", "\"rates\": unknown key \"wings\""},
        {", \"rates\": {\"link\": {\"h2d_gbps\": 0}}", "\"link\": \"h2d_gbps\" must be"},
        {", \"rates\": {}", "\"cpu\": \"threads\" is missing"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char text[256];
        snprintf(text, sizeof text,
                 "{\"format\": \"ats-device-1\", \"name\": \"x\", \"memory\": \"1G\", "
                 "\"mode\": \"timed\"%s}",
                 cases[i][0]);
        write_text(mine, text);
        assert_false(ats_emu_profile_read(mine, &profile, &err));
        if (strstr(err.text, cases[i][1]) == NULL || strstr(err.text, mine) == NULL) {
            fail_msg("'%s' does not say '%s'", err.text, cases[i][1]);
        }
    }
    unlink(mine);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_small_integers_are_real),
        cmocka_unit_test(test_numbers_are_finite_and_repeatable),
        cmocka_unit_test(test_weights_commit_no_memory),
        cmocka_unit_test(test_routing_is_valid_and_independent_of_devices),
        cmocka_unit_test(test_experts_cost_what_the_ids_say),
        cmocka_unit_test(test_fused_operators_launch_once),
        cmocka_unit_test(test_gate_and_up_are_one_kernel_for_one_token),
        cmocka_unit_test(test_host_memory_is_out_of_reach),
        cmocka_unit_test(test_many_threads),
        cmocka_unit_test(test_shipped_rigs),
        cmocka_unit_test(test_rigs_survive_mutation),
        cmocka_unit_test(test_timed_profiles),
        cmocka_unit_test(test_bad_rigs_are_explained),
    };
    return cmocka_run_group_tests(tests, timed_load_ggml, NULL);
}
