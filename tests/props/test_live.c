/* Live figures as the library publishes them: another process sees what the device counts, from the
 * first stream to the end of the process, across threads, devices, forks and execs.
 *
 * A reader must be another process, as a process does not see its own locks: it is forked off, so
 * that every look is also one by a child of the process that publishes. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "harness.h"
#include "top/folder.h"

#include <dirent.h>
#include <jansson.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>

enum {
    WIDTH = 64,
    THREADS = 3,
    GRAPHS = 40,
};

static char runtime[64]; /* $XDG_RUNTIME_DIR of the test */

/* ---- looking ---- */

static struct ats_live_list look(void)
{
    int ends[2];
    CHECK(pipe(ends) == 0, "pipe");
    const pid_t child = fork();
    CHECK(child >= 0, "fork");
    struct ats_live_list list = {0};
    if (child == 0) {
        bool ok = ats_live_scan(&list);
        ok = ok && write(ends[1], &list.n, sizeof(list.n)) == sizeof(list.n);
        for (size_t i = 0; ok && i < list.n; i++) {
            ok = write(ends[1], &list.processes[i], sizeof(*list.processes)) ==
                 sizeof(*list.processes);
        }
        _exit(!ok);
    }
    close(ends[1]);
    CHECK(read(ends[0], &list.n, sizeof(list.n)) == sizeof(list.n), "the reader has failed");
    list.processes = calloc(list.n + 1, sizeof(*list.processes));
    for (size_t i = 0; i < list.n; i++) {
        char *to = (char *)&list.processes[i];
        for (size_t n = 0; n < sizeof(*list.processes);) {
            const ssize_t more = read(ends[0], to + n, sizeof(*list.processes) - n);
            CHECK(more > 0, "the reader has failed");
            n += (size_t)more;
        }
    }
    close(ends[0]);
    int status = 0;
    CHECK(waitpid(child, &status, 0) == child && status == 0, "the reader: status %d", status);
    return list;
}

/* The only process, which is this one. */
static struct ats_live_process look_at_self(void)
{
    struct ats_live_list list = look();
    CHECK(list.n == 1, "%zu processes", list.n);
    const struct ats_live_process process = list.processes[0];
    CHECK(process.pid == getpid(), "process %lld", (long long)process.pid);
    ats_live_list_free(&list);
    return process;
}

static size_t files_in(const char *name)
{
    char path[128];
    snprintf(path, sizeof(path), "%s/%s", runtime, name);
    DIR *folder = opendir(path);
    size_t n = 0;
    while (folder != NULL && readdir(folder) != NULL) {
        n++;
    }
    if (folder != NULL) {
        closedir(folder);
        n -= 2; /* itself and its parent */
    }
    return n;
}

/* ---- computing ---- */

struct work {
    ggml_backend_t backend;
    struct ggml_context *weights;
    struct ggml_context *ops;
    struct ggml_cgraph *graph;
    ggml_backend_buffer_t weight_buffer;
    ggml_gallocr_t allocator;
};

/* A weight of 16 KiB and a product with it. */
static struct work work_make(const char *device)
{
    const struct ggml_init_params params = {.mem_size = 1 << 16, .no_alloc = true};
    ggml_backend_dev_t dev = device_named(device);
    ggml_backend_buffer_type_t type = ggml_backend_dev_buffer_type(dev);
    struct work w = {.backend = backend_on(dev),
                     .weights = ggml_init(params),
                     .ops = ggml_init(params),
                     .allocator = ggml_gallocr_new(type)};
    struct ggml_tensor *weight = ggml_new_tensor_2d(w.weights, GGML_TYPE_F32, WIDTH, WIDTH);
    ggml_set_name(weight, "blk.0.ffn.weight");
    w.weight_buffer = ggml_backend_alloc_ctx_tensors_from_buft(w.weights, type);
    CHECK(w.weight_buffer != NULL, "no buffer");
    ggml_backend_buffer_set_usage(w.weight_buffer, GGML_BACKEND_BUFFER_USAGE_WEIGHTS);
    ggml_backend_buffer_clear(w.weight_buffer, 0);
    struct ggml_tensor *input = ggml_new_tensor_2d(w.ops, GGML_TYPE_F32, WIDTH, 1);
    ggml_set_input(input);
    struct ggml_tensor *output = ggml_mul_mat(w.ops, weight, input);
    ggml_set_output(output);
    w.graph = ggml_new_graph_custom(w.ops, 16, false);
    ggml_build_forward_expand(w.graph, output);
    CHECK(ggml_gallocr_alloc_graph(w.allocator, w.graph), "no memory for the graph");
    const float zeros[WIDTH] = {0};
    ggml_backend_tensor_set(input, zeros, 0, sizeof(zeros));
    return w;
}

static void work_run(const struct work *w, int times)
{
    for (int i = 0; i < times; i++) {
        CHECK(ggml_backend_graph_compute(w->backend, w->graph) == GGML_STATUS_SUCCESS, "graph %d",
              i);
    }
}

static void work_free(struct work *w)
{
    ggml_gallocr_free(w->allocator);
    ggml_backend_free(w->backend);
    ggml_backend_buffer_free(w->weight_buffer);
    ggml_free(w->ops);
    ggml_free(w->weights);
}

/* The device's summary, as ATS_STATS has it. */
static json_t *summary_of(const char *device)
{
    ggml_backend_dev_t dev = device_named(device);
    char *(*summary)(ggml_backend_dev_t) = NULL;
    void *address =
        ggml_backend_reg_get_proc_address(ggml_backend_dev_backend_reg(dev), "ats_device_summary");
    memcpy(&summary, &address, sizeof(summary));
    char *text = summary(dev);
    json_t *root = json_loads(text, 0, NULL);
    CHECK(root != NULL, "no summary: %s", text);
    free(text);
    return root;
}

/* Figures, and where the summary has them. */
static const struct {
    enum ats_live_figure figure;
    const char *path[3];
} same[] = {
    {ATS_LIVE_BUDGET_BYTES, {"budget_bytes"}},
    {ATS_LIVE_USED_BYTES, {"used_bytes"}},
    {ATS_LIVE_WEIGHTS_VRAM_BYTES, {"weights", "vram", "bytes"}},
    {ATS_LIVE_WEIGHTS_HOST_BYTES, {"weights", "host", "bytes"}},
    {ATS_LIVE_STATE_VRAM_BYTES, {"kv", "vram_bytes"}},
    {ATS_LIVE_STATE_HOST_BYTES, {"kv", "host_bytes"}},
    {ATS_LIVE_GRAPHS, {"graphs"}},
    {ATS_LIVE_PLANS_BUILT, {"plans_built"}},
    {ATS_LIVE_SPLITS, {"splits"}},
    {ATS_LIVE_LAST_SPLITS, {"last_splits"}},
    {ATS_LIVE_TO_ACCEL_BYTES, {"copied_to_accel_bytes"}},
    {ATS_LIVE_TO_HOST_BYTES, {"copied_to_host_bytes"}},
    {ATS_LIVE_PROMOTED_BYTES, {"promoted_bytes"}},
    {ATS_LIVE_EXPERT_HITS, {"experts", "hits"}},
    {ATS_LIVE_EXPERT_MISSES, {"experts", "misses"}},
    {ATS_LIVE_EXPERT_BYTES, {"experts", "admitted_bytes"}},
    {ATS_LIVE_PROMPT_TOKENS, {"prompt", "tokens"}},
    {ATS_LIVE_PROMPT_NS, {"prompt", "ns"}},
    {ATS_LIVE_ANSWER_TOKENS, {"answer", "tokens"}},
    {ATS_LIVE_ANSWER_NS, {"answer", "ns"}},
    {ATS_LIVE_CPU_NS, {"cpu_ns"}},
    {ATS_LIVE_ACCEL_NS, {"accel_ns"}},
    {ATS_LIVE_STALLED_NS, {"stalled_ns"}},
    {ATS_LIVE_REPLANS, {"adapt", "replans"}},
    {ATS_LIVE_ROLLBACKS, {"adapt", "rollbacks"}},
    {ATS_LIVE_REPLAN_NS, {"adapt", "replan_ns"}},
};

static void check_figures(const struct ats_live_device *device)
{
    json_t *root = summary_of(device->name);
    for (size_t i = 0; i < sizeof(same) / sizeof(same[0]); i++) {
        const json_t *value = root;
        for (size_t k = 0; k < 3 && same[i].path[k] != NULL; k++) {
            value = json_object_get(value, same[i].path[k]);
        }
        CHECK(json_is_integer(value), "%s", same[i].path[0]);
        CHECK((uint64_t)json_integer_value(value) == device->figures[same[i].figure],
              "%s: %lld, published %llu", same[i].path[0], (long long)json_integer_value(value),
              (unsigned long long)device->figures[same[i].figure]);
    }
    json_decref(root);
}

/* ---- scenarios ---- */

static void figures(const void *argument)
{
    (void)argument;
    scenario_load_backends();
    CHECK(files_in("ats") == 0, "a file before there is a stream");
    struct work w = work_make("ATS0");
    struct ats_live_process p = look_at_self();
    CHECK(strcmp(p.program, "test_live") == 0, "program %s", p.program);
    CHECK(p.n_devices == 1 && strcmp(p.devices[0].name, "ATS0") == 0 &&
              strcmp(p.devices[0].accelerator, "EMU0") == 0,
          "device %s over %s", p.devices[0].name, p.devices[0].accelerator);
    CHECK(p.devices[0].figures[ATS_LIVE_CONTEXTS] == 1, "contexts");
    CHECK(p.devices[0].figures[ATS_LIVE_GRAPHS] == 0, "graphs");
    CHECK(p.devices[0].figures[ATS_LIVE_BUSY_NS] == 0, "busy");

    work_run(&w, GRAPHS);
    p = look_at_self();
    const uint64_t *f = p.devices[0].figures;
    CHECK(f[ATS_LIVE_GRAPHS] == GRAPHS, "graphs %llu", (unsigned long long)f[ATS_LIVE_GRAPHS]);
    CHECK(f[ATS_LIVE_WEIGHTS_VRAM_BYTES] + f[ATS_LIVE_WEIGHTS_HOST_BYTES] ==
              sizeof(float) * WIDTH * WIDTH,
          "weights");
    CHECK(f[ATS_LIVE_BUSY_NS] > 0 && f[ATS_LIVE_BUSY_SINCE_NS] == 0, "busy");
    check_figures(&p.devices[0]);

    /* a second context, and then none; the file stays */
    struct work other = work_make("ATS0");
    CHECK(look_at_self().devices[0].figures[ATS_LIVE_CONTEXTS] == 2, "contexts");
    work_run(&other, 1);
    work_free(&other);
    work_free(&w);
    p = look_at_self();
    CHECK(p.devices[0].figures[ATS_LIVE_CONTEXTS] == 0, "contexts");
    CHECK(p.devices[0].figures[ATS_LIVE_GRAPHS] == GRAPHS + 1, "graphs");
}

static void in_thread(size_t thread, const void *argument)
{
    (void)argument;
    struct work w = work_make(thread % 2 == 0 ? "ATS0" : "ATS1");
    work_run(&w, GRAPHS);
    work_free(&w);
}

/* Contexts in threads, on two devices: nothing is lost. */
static void threads(const void *argument)
{
    scenario_load_backends();
    struct timespec from;
    struct timespec to;
    clock_gettime(CLOCK_MONOTONIC, &from);
    scenario_in_threads(THREADS, in_thread, argument);
    clock_gettime(CLOCK_MONOTONIC, &to);
    const uint64_t took_ns =
        (uint64_t)((to.tv_sec - from.tv_sec) * 1000000000 + to.tv_nsec - from.tv_nsec);
    const struct ats_live_process p = look_at_self();
    CHECK(p.n_devices == 2, "%u devices", p.n_devices);
    CHECK(p.devices[0].figures[ATS_LIVE_GRAPHS] == UINT64_C(2) * GRAPHS, "graphs of the first");
    CHECK(p.devices[1].figures[ATS_LIVE_GRAPHS] == GRAPHS, "graphs of the second");
    for (size_t d = 0; d < 2; d++) {
        const uint64_t *f = p.devices[d].figures;
        CHECK(f[ATS_LIVE_BUSY_SINCE_NS] == 0, "no pass runs");
        /* two passes at once count once */
        CHECK(f[ATS_LIVE_BUSY_NS] > 0 && f[ATS_LIVE_BUSY_NS] <= took_ns, "busy");
    }
}

/* A child may not have what it needs to compute, such as threads, but on the CPU with one. */
static void use_one_thread(const struct work *w)
{
    ggml_backend_set_n_threads_t set = NULL;
    ggml_backend_dev_t dev = device_named("ATS0");
    void *address = ggml_backend_reg_get_proc_address(ggml_backend_dev_backend_reg(dev),
                                                      "ggml_backend_set_n_threads");
    memcpy(&set, &address, sizeof(set));
    set(w->backend, 1);
}

/* Children of a process that publishes: one that goes on with what the parent has, and one that has
 * a stream of its own. */
static void forks(const void *argument)
{
    (void)argument;
    scenario_load_backends();
    struct work w = work_make("ATS0");
    use_one_thread(&w);
    work_run(&w, 1);
    const struct ats_live_process parent = look_at_self();
    int status = 0;
    pid_t child = fork();
    if (child == 0) {
        work_run(&w, 5);
        exit(0); /* with all that is to be done at exit */
    }
    CHECK(waitpid(child, &status, 0) == child && status == 0, "status %d", status);
    const struct ats_live_process after = look_at_self();
    CHECK(strcmp(after.file, parent.file) == 0, "the child took the file along");
    CHECK(after.devices[0].figures[ATS_LIVE_GRAPHS] == 1, "the child writes to its parent's file");

    if (is_sanitized()) {
        work_free(&w);
        return; /* the thread sanitizer allows no threads in a child of a process with threads */
    }
    child = fork();
    if (child == 0) {
        struct work own = work_make("ATS0");
        struct ats_live_list list = look();
        CHECK(list.n == 2, "%zu processes", list.n);
        const size_t mine = list.processes[0].pid == getpid() ? 0 : 1;
        CHECK(list.processes[mine].pid == getpid(), "the child is not there");
        CHECK(list.processes[mine].devices[0].figures[ATS_LIVE_CONTEXTS] == 1, "contexts");
        CHECK(strcmp(list.processes[1 - mine].file, parent.file) == 0, "the parent is not there");
        CHECK(list.processes[1 - mine].devices[0].figures[ATS_LIVE_CONTEXTS] == 1, "contexts");
        ats_live_list_free(&list);
        (void)own;
        exit(0);
    }
    CHECK(waitpid(child, &status, 0) == child && status == 0, "status %d", status);
    CHECK(files_in("ats") == 1, "the child's file is left");
    work_run(&w, 1);
    CHECK(look_at_self().devices[0].figures[ATS_LIVE_GRAPHS] == 2, "graphs");
    work_free(&w);
}

/* The process becomes another program, and that does not compute with ATS. */
static void exec(const void *argument)
{
    (void)argument;
    scenario_load_backends();
    struct work w = work_make("ATS0");
    work_run(&w, 1);
    (void)look_at_self();
    static const char script[] = "\"$0\" top --once 2>/dev/null; test $? -eq 1";
    execl("/bin/sh", "sh", "-c", script, ATS_TEST_COMMAND, (char *)NULL);
    CHECK(false, "exec");
}

static void switched_off(const void *argument)
{
    (void)argument;
    scenario_load_backends();
    struct work w = work_make("ATS0");
    work_run(&w, 1);
    CHECK(access(runtime, F_OK) == 0, "the folder");
    CHECK(files_in("") == 0, "something was made");
    work_free(&w);
}

/* The file cannot be made: one line of the log, no signal, and the model runs. */
static void no_room(const void *argument)
{
    (void)argument;
    scenario_load_backends();
    const struct rlimit little = {100, 100};
    CHECK(setrlimit(RLIMIT_FSIZE, &little) == 0, "setrlimit");
    struct work w = work_make("ATS0");
    work_run(&w, 3);
    CHECK(scenario_logged("no figures for `ats top`"), "not said");
    CHECK(scenario_logged_errors() == 0, "said as an error");
    CHECK(files_in("ats") == 0, "something is left");
    scenario_forget_log();
    struct work other = work_make("ATS0");
    CHECK(!scenario_logged("no figures for `ats top`"), "said twice");
    work_free(&other);
    work_free(&w);
}

static void run(const char *title, const char *more, void (*body)(const void *argument))
{
    char settings[256];
    strcpy(runtime, "/tmp/ats-test-live-XXXXXX");
    assert_non_null(mkdtemp(runtime));
    /* a place of its own, as other processes may publish meanwhile */
    snprintf(settings, sizeof(settings), "ATS_LIVE=%s/ats %s", runtime, more);
    assert_true(scenario_run(title, settings, body, NULL));
    if (body != exec) {
        assert_int_equal(files_in("ats"), 0); /* a process that has ended leaves nothing */
    }
    char folder[80];
    snprintf(folder, sizeof(folder), "%s/ats", runtime);
    (void)rmdir(folder);
    assert_int_equal(rmdir(runtime), 0);
}

static void test_figures(void **state)
{
    (void)state;
    run("figures", "ATS_PLACEMENT=vram", figures);
    run("figures, on the CPU", "ATS_PLACEMENT=host", figures);
}

static void test_threads(void **state)
{
    (void)state;
    run("threads", "ATS_EMULATE=emu-small,emu-small ATS_EMU_DELAY_US=20", threads);
}

static void test_forks(void **state)
{
    (void)state;
    run("forks", "ATS_PLACEMENT=host", forks);
}

static void test_exec(void **state)
{
    (void)state;
    run("exec", "", exec);
}

static void test_without(void **state)
{
    (void)state;
    run("switched off", "ATS_LIVE=off", switched_off);
    run("no room", "", no_room);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_figures), cmocka_unit_test(test_threads),
        cmocka_unit_test(test_forks),   cmocka_unit_test(test_exec),
        cmocka_unit_test(test_without),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
