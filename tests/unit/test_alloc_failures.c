/* Memory that runs out: every allocation of the library fails in turn, while a plan file is read,
 * while devices are made, and while a graph is loaded, planned, computed and taken down.
 *
 * Each failure must be told (by a result or by an error in the log) or make no difference to what
 * is computed; it must leave nothing behind, neither blocks of the heap nor VRAM; and the same
 * work must succeed afterwards. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "alloc_hook.h"
#include "backend/buffer.h"
#include "backend/config.h"
#include "backend/stream.h"
#include "linked_graph.h"
#include "props/harness.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum {
    WIDTH = 32,
    TOKENS = 2,
    N_LAYERS = 3,
    MOST_TENSORS = 256,
};

/* ---- plan files ---- */

static void write_plan(const char *path, int first, int n)
{
    char lengthy[600]; /* longer than the first block of getline */
    memset(lengthy, 'x', sizeof(lengthy) - 1);
    lengthy[sizeof(lengthy) - 1] = '\0';
    FILE *out = fopen(path, "w");
    assert_non_null(out);
    fprintf(out, "ats-plan 1\n");
    for (int i = 0; i < n; i++) {
        fprintf(out, "%s %d blk.%d.%s\n", i % 2 == 0 ? "vram" : "host", 32 * i, first + i,
                i == n / 2 ? lengthy : "attn_q.weight");
    }
    assert_int_equal(fclose(out), 0);
}

static void test_reading_a_plan(void **state)
{
    (void)state;
    enum { N_FIRST = 300, N_SECOND = 20 };
    char folder[] = "/tmp/ats-alloc-XXXXXX";
    assert_non_null(mkdtemp(folder));
    char path[64];
    char more[80];
    snprintf(path, sizeof(path), "%s/plan", folder);
    snprintf(more, sizeof(more), "%s.ATS1", path);
    write_plan(path, 0, N_FIRST);
    write_plan(more, N_FIRST, N_SECOND);
    setenv("ATS_PLACEMENT", path, 1);
    const long live = alloc_hook_live();
    bool failed = true;
    for (unsigned long n = 1; failed; n++) {
        struct ats_config config;
        struct ats_error err = {{0}};
        alloc_hook_arm(n, false);
        const bool ok = ats_config_read(&config, &err);
        failed = alloc_hook_disarm();
        assert_true(ok != failed);
        assert_true(!failed || strstr(err.text, "memory") != NULL);
        assert_true(failed || config.table.n_entries == N_FIRST + N_SECOND);
        assert_true(failed || n > N_FIRST + N_SECOND);
        ats_placement_table_free(&config.table);
        assert_int_equal(alloc_hook_live(), live);
    }
    unsetenv("ATS_PLACEMENT");
    unlink(path);
    unlink(more);
    rmdir(folder);
}

/* ---- a job: everything from a stream to the results of a graph ---- */

struct job {
    ggml_backend_dev_t dev;
    ggml_backend_t backend;
    struct linked_graph graph;
    struct ggml_context *state_ctx;
    ggml_backend_buffer_t state_buffer;
    struct ggml_tensor *state;
    struct ggml_tensor *input;
    struct ggml_tensor *rows;
    struct ggml_tensor *output;
    float results[2][WIDTH * TOKENS]; /* of the output and of the state's first rows */
};

static struct ggml_tensor *weight(struct job *job, const char *name, int layer, int64_t rows)
{
    struct ggml_tensor *w = ggml_new_tensor_2d(job->graph.weights, GGML_TYPE_F32, WIDTH, rows);
    ggml_format_name(w, "blk.%d.%s.weight", layer, name);
    return w;
}

static void build_graph(struct job *job)
{
    struct ggml_context *ctx = job->graph.ops;
    job->input = ggml_new_tensor_2d(ctx, GGML_TYPE_F32, WIDTH, TOKENS);
    job->rows = ggml_new_tensor_1d(ctx, GGML_TYPE_I64, TOKENS);
    ggml_set_input(job->input);
    ggml_set_input(job->rows);
    struct ggml_tensor *x = job->input;
    for (int i = 0; i < N_LAYERS; i++) {
        struct ggml_tensor *norm =
            ggml_mul(ctx, ggml_rms_norm(ctx, x, 1e-6F), weight(job, "attn_norm", i, 1));
        struct ggml_tensor *q = ggml_mul_mat(ctx, weight(job, "attn_q", i, WIDTH), norm);
        if (i == 1) {
            struct ggml_tensor *kept = ggml_set_rows(ctx, job->state, q, job->rows);
            ggml_build_forward_expand(job->graph.cgraph, kept);
            q = ggml_add(ctx, q,
                         ggml_view_2d(ctx, job->state, WIDTH, TOKENS, job->state->nb[1], 0));
        }
        x = ggml_add(ctx, x, ggml_mul_mat(ctx, weight(job, "ffn_up", i, WIDTH), ggml_silu(ctx, q)));
    }
    job->output = x;
}

static void fill(struct ggml_tensor *tensor, uint64_t seed)
{
    float values[WIDTH * WIDTH];
    struct ats_rng rng = {.state = seed};
    const size_t n = ggml_nbytes(tensor) / sizeof(float);
    CHECK(n <= sizeof(values) / sizeof(values[0]), "tensor %s is too large", tensor->name);
    for (size_t i = 0; i < n; i++) {
        values[i] = (float)ats_rng_below(&rng, 2001) / 1000.0F - 1.0F;
    }
    ggml_backend_tensor_set(tensor, values, 0, n * sizeof(float));
}

/* One thread: so small a graph makes several only wait for each other. */
static void use_one_thread(ggml_backend_t backend)
{
    ggml_backend_set_n_threads_t set_n_threads;
    CHECK(ats_backend_proc(backend, "ggml_backend_set_n_threads", &set_n_threads), "no threads");
    set_n_threads(backend, 1);
}

static bool job_load(struct job *job)
{
    job->backend = ggml_backend_dev_init(job->dev, NULL);
    if (job->backend == NULL || !linked_graph_begin(&job->graph, MOST_TENSORS)) {
        return false;
    }
    use_one_thread(job->backend);
    const struct ggml_init_params params = {.mem_size = 4096, .no_alloc = true};
    job->state_ctx = ggml_init(params);
    job->state = ggml_new_tensor_2d(job->state_ctx, GGML_TYPE_F32, WIDTH, WIDTH);
    ggml_set_name(job->state, "cache_k_l1");
    job->state_buffer = ggml_backend_alloc_ctx_tensors_from_buft(
        job->state_ctx, ggml_backend_dev_buffer_type(job->dev));
    if (job->state_buffer == NULL) {
        return false;
    }
    ggml_backend_buffer_clear(job->state_buffer, 0);
    build_graph(job);
    if (!linked_graph_end(&job->graph, job->dev, job->output)) {
        return false;
    }
    job->graph.cgraph->uid = 1;
    uint64_t seed = 100;
    struct ggml_tensor *w = ggml_get_first_tensor(job->graph.weights);
    for (; w != NULL; w = ggml_get_next_tensor(job->graph.weights, w)) {
        fill(w, seed++);
    }
    return true;
}

static bool job_compute(struct job *job)
{
    const int64_t rows[TOKENS] = {0, 1};
    fill(job->input, 1);
    ggml_backend_tensor_set(job->rows, rows, 0, sizeof(rows));
    if (ggml_backend_graph_compute_async(job->backend, job->graph.cgraph) != GGML_STATUS_SUCCESS) {
        return false;
    }
    ggml_backend_event_t event = ggml_backend_event_new(job->dev);
    if (event != NULL) {
        ggml_backend_event_record(event, job->backend);
        ggml_backend_event_synchronize(event);
        ggml_backend_event_free(event);
    }
    ggml_backend_tensor_get_async(job->backend, job->output, job->results[0], 0,
                                  sizeof(job->results[0]));
    ggml_backend_synchronize(job->backend);
    ggml_backend_tensor_get(job->state, job->results[1], 0, sizeof(job->results[1]));
    return true;
}

static void job_end(struct job *job)
{
    if (job->backend != NULL) {
        ggml_backend_free(job->backend);
    }
    linked_graph_free(&job->graph);
    ggml_backend_buffer_free(job->state_buffer);
    ggml_free(job->state_ctx);
}

/* ---- what the CPU alone computes ---- */

static float expected[2][WIDTH * TOKENS];

static void compute_expected(void)
{
    struct job job = {.dev = device_named("CPU")};
    CHECK(job_load(&job) && job_compute(&job), "not even the CPU alone can do it");
    memcpy(expected, job.results, sizeof(expected));
    job_end(&job);
}

static bool is_right(const struct job *job)
{
    const void *bits = job->results; /* the same ones, not only equal numbers */
    const void *expected_bits = expected;
    return memcmp(bits, expected_bits, sizeof(expected)) == 0;
}

static void check_nothing_is_left(unsigned long n)
{
    for (size_t i = 0; i < ats_device_count(); i++) {
        const struct ats_device *device = ats_device_at(i);
        CHECK(device->vram_used == 0, "allocation %lu: %zu bytes of VRAM are left over", n,
              device->vram_used);
        CHECK(device->buffers == NULL && device->streams == NULL, "allocation %lu", n);
    }
}

static void do_work_well(ggml_backend_dev_t dev, unsigned long n)
{
    struct job job = {.dev = dev};
    CHECK(job_load(&job) && job_compute(&job), "after allocation %lu failed", n);
    CHECK(is_right(&job), "wrong results after allocation %lu failed", n);
    job_end(&job);
    check_nothing_is_left(n);
}

/* ---- one failure, or all from the nth on ---- */

/* While the job is loaded and computed. Returns whether there were that many allocations. */
static bool fail_in_work(ggml_backend_dev_t dev, unsigned long n, bool all_behind)
{
    struct job job = {.dev = dev};
    scenario_forget_log();
    alloc_hook_arm(n, all_behind);
    const bool loaded = job_load(&job);
    const bool computed = loaded && job_compute(&job);
    const bool failed = alloc_hook_disarm();
    CHECK(computed || failed, "allocation %lu: an error without a cause", n);
    CHECK(!computed || is_right(&job) || scenario_logged_errors() > 0,
          "allocation %lu: wrong results without a word", n);
    if (loaded && !ats_device_at(0)->accel_lost) {
        CHECK(job_compute(&job), "allocation %lu: the same graph again", n);
        CHECK(is_right(&job), "allocation %lu: wrong results of the same graph again", n);
    }
    job_end(&job);
    check_nothing_is_left(n);
    return failed;
}

static bool fail_in_end(ggml_backend_dev_t dev, unsigned long n)
{
    struct job job = {.dev = dev};
    CHECK(job_load(&job) && job_compute(&job) && is_right(&job), "allocation %lu", n);
    alloc_hook_arm(n, false);
    job_end(&job);
    const bool failed = alloc_hook_disarm();
    check_nothing_is_left(n);
    return failed;
}

static ggml_backend_dev_t start(void)
{
    unsetenv("GGML_BACKEND_PATH"); /* the library is linked */
    json_set_alloc_funcs(malloc, free);
    ggml_backend_dev_t dev = linked_device("ATS0", ATS_TEST_LLAMA_BIN);
    CHECK(dev != NULL, "no device ATS0");
    compute_expected();
    do_work_well(dev, 0);
    return dev;
}

static void check_live(long live, unsigned long n)
{
    CHECK(alloc_hook_live() == live, "allocation %lu: %ld blocks are left over", n,
          alloc_hook_live() - live);
}

static void run_each(const void *argument)
{
    (void)argument;
    ggml_backend_dev_t dev = start();
    const long live = alloc_hook_live();
    unsigned long n = 1;
    for (; fail_in_work(dev, n, false); n++) {
        do_work_well(dev, n);
        check_live(live, n);
    }
    CHECK(n > 50, "only %lu allocations: the test tests nothing", n);
    for (n = 1; fail_in_end(dev, n); n++) {
        do_work_well(dev, n);
        check_live(live, n);
    }
    CHECK(n > 1 || getenv("ATS_STATS") == NULL, "the summary took no memory");
}

static void test_each_allocation(void **state)
{
    (void)state;
    static const char *const settings[] = {
        "ATS_PLACEMENT=vram ATS_STATS=/dev/null ATS_PLAN_OUT=/dev/null",
        "ATS_PLACEMENT=host",
        "ATS_PLACEMENT=random:1",
        /* too little for all that the accelerator's operators touch: weights move out */
        "ATS_PLACEMENT=random:2 ATS_VRAM=24K",
    };
    for (size_t i = 0; i < sizeof(settings) / sizeof(settings[0]); i++) {
        if (is_chosen(i, sizeof(settings) / sizeof(settings[0]))) {
            assert_true(scenario_run("one failure", settings[i], run_each, NULL));
        }
    }
}

/* A device without any memory may be taken for lost, so each has a process of its own. */
static void run_without_memory(const void *argument)
{
    const unsigned long n = *(const unsigned long *)argument;
    ggml_backend_dev_t dev = start();
    const long live = alloc_hook_live();
    CHECK(fail_in_work(dev, n, true), "fewer than %lu allocations: the test tests nothing", n);
    do_work_well(dev, n);
    check_live(live, n);
}

static void test_no_memory_from_then_on(void **state)
{
    (void)state;
    static const unsigned long from[] = {1, 2, 3, 5, 8, 13, 21, 34, 55, 89};
    for (size_t i = 0; i < sizeof(from) / sizeof(from[0]); i++) {
        if (is_chosen(i, sizeof(from) / sizeof(from[0]))) {
            assert_true(
                scenario_run("no memory", "ATS_PLACEMENT=vram", run_without_memory, &from[i]));
        }
    }
}

/* ---- starting: once per process ---- */

struct start {
    unsigned long n;
    bool failed; /* told by the child */
};

static void run_start(const void *argument)
{
    struct start *told = *(struct start *const *)argument;
    unsetenv("GGML_BACKEND_PATH");
    json_set_alloc_funcs(malloc, free);
    ggml_backend_load_all_from_path(ATS_TEST_LLAMA_BIN);
    ggml_backend_reg_t ggml_backend_init(void);
    alloc_hook_arm(told->n, false);
    ggml_backend_reg_t reg = ggml_backend_init();
    told->failed = alloc_hook_disarm();
    CHECK(reg != NULL, "no registry");
    const size_t n_devices = ats_device_count();
    CHECK(n_devices == 2 || (n_devices == 0 && told->failed), "%zu devices", n_devices);
    CHECK(n_devices == 2 || scenario_logged_errors() > 0, "no device, and not a word");
    ggml_backend_register(reg);
    compute_expected();
    for (size_t i = 0; i < n_devices; i++) {
        do_work_well(&ats_device_at(i)->ggml, told->n);
    }
}

static void test_start(void **state)
{
    (void)state;
    struct start *told =
        mmap(NULL, sizeof(*told), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    assert_ptr_not_equal(told, MAP_FAILED);
    told->failed = true;
    for (told->n = 1; told->failed; told->n++) {
        assert_true(scenario_run("start", "ATS_EMULATE=emu-small,emu-small", run_start, &told));
    }
    assert_true(told->n > 10);
    munmap(told, sizeof(*told));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_reading_a_plan),
        cmocka_unit_test(test_start),
        cmocka_unit_test(test_each_allocation),
        cmocka_unit_test(test_no_memory_from_then_on),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
