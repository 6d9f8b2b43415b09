/* When a pass counts as running: until the accelerator's work has been waited for, which may be
 * long after it was given, and by the context that gave it. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "backend/stream.h"
#include "linked_graph.h"
#include "top/rates.h"

#include <dirent.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { WIDTH = 32, BEHIND_MS = 30 };

static char runtime[64];

static uint64_t now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000U + (uint64_t)t.tv_nsec;
}

static void sleep_ms(long ms)
{
    nanosleep(&(struct timespec){.tv_nsec = ms * 1000000}, NULL);
}

/* The only file there is, read as it is. */
static struct ats_live_device published(void)
{
    char bytes[ATS_LIVE_MOST_BYTES];
    struct ats_live_process process;
    DIR *folder = opendir(runtime);
    assert_non_null(folder);
    const struct dirent *entry = readdir(folder);
    while (entry != NULL && entry->d_name[0] == '.') {
        entry = readdir(folder);
    }
    const int file = entry != NULL ? openat(dirfd(folder), entry->d_name, O_RDONLY) : -1;
    const ssize_t n = read(file, bytes, sizeof(bytes));
    assert_true(n > 0 && ats_live_parse(bytes, (size_t)n, &process, NULL));
    close(file);
    closedir(folder);
    return process.devices[0];
}

static bool runs(void)
{
    return published().figures[ATS_LIVE_BUSY_SINCE_NS] > 0;
}

static uint64_t busy_ns(void)
{
    const struct ats_live_device device = published();
    return ats_top_busy_ns(&device, now_ns());
}

static ggml_backend_dev_t dev;

static ggml_backend_t start_context(struct linked_graph *g)
{
    ggml_backend_t backend = ggml_backend_dev_init(dev, NULL);
    assert_non_null(backend);
    assert_true(linked_graph_begin(g, 16));
    struct ggml_tensor *x = ggml_new_tensor_1d(g->ops, GGML_TYPE_F32, WIDTH);
    struct ggml_tensor *w = ggml_new_tensor_2d(g->weights, GGML_TYPE_F32, WIDTH, WIDTH);
    ggml_set_name(w, "blk.0.ffn.weight");
    ggml_set_input(x);
    assert_true(linked_graph_end(g, dev, ggml_mul_mat(g->ops, w, x)));
    const float zeros[WIDTH] = {0};
    ggml_backend_tensor_set(x, zeros, 0, sizeof(zeros));
    return backend;
}

static void compute(ggml_backend_t backend, const struct linked_graph *g)
{
    /* as with an accelerator that cannot tell of failures: nobody waits before there is need */
    ((struct ats_stream *)backend->context)->reports_errors = false;
    assert_int_equal(ggml_backend_graph_compute_async(backend, g->cgraph), GGML_STATUS_SUCCESS);
}

static void test_in_flight(void **state)
{
    (void)state;
    struct linked_graph g;
    ggml_backend_t backend = start_context(&g);
    assert_false(runs());
    compute(backend, &g);
    assert_true(runs());
    assert_int_equal(published().figures[ATS_LIVE_GRAPHS], 1); /* counted all the same */
    sleep_ms(BEHIND_MS);
    compute(backend, &g); /* the next one follows without a gap */
    assert_true(runs());
    ggml_backend_synchronize(backend);
    assert_false(runs());
    const uint64_t busy = busy_ns();
    assert_true(busy >= BEHIND_MS * UINT64_C(1000000));
    /* idle time does not count, nor does waiting for nothing */
    sleep_ms(BEHIND_MS);
    ggml_backend_synchronize(backend);
    assert_int_equal(busy_ns(), busy);
    ggml_backend_free(backend);
    linked_graph_free(&g);
}

/* Of two contexts, either may keep the device running; the time counts once. */
static void test_two_contexts(void **state)
{
    (void)state;
    struct linked_graph g[2];
    ggml_backend_t backends[2] = {start_context(&g[0]), start_context(&g[1])};
    const uint64_t before_ns = now_ns();
    const uint64_t busy_before_ns = busy_ns();
    compute(backends[0], &g[0]);
    compute(backends[1], &g[1]);
    sleep_ms(BEHIND_MS);
    ggml_backend_synchronize(backends[0]);
    assert_true(runs());
    sleep_ms(BEHIND_MS);
    ggml_backend_free(backends[1]); /* which waits */
    assert_false(runs());
    const uint64_t busy = busy_ns() - busy_before_ns;
    assert_true(busy >= UINT64_C(2000000) * BEHIND_MS);
    assert_true(busy <= now_ns() - before_ns);
    ggml_backend_free(backends[0]);
    assert_int_equal(published().figures[ATS_LIVE_CONTEXTS], 0);
    linked_graph_free(&g[0]);
    linked_graph_free(&g[1]);
}

static int start(void **state)
{
    (void)state;
    strcpy(runtime, "/tmp/ats-test-pass-XXXXXX");
    if (mkdtemp(runtime) == NULL) {
        return -1;
    }
    setenv("ATS_EMULATE", "emu-small", 1);
    setenv("ATS_PLACEMENT", "vram", 1);
    setenv("ATS_LIVE", runtime, 1);
    dev = linked_device("ATS0", getenv("ATS_LLAMA_BIN"));
    return dev != NULL ? 0 : -1;
}

static int end(void **state)
{
    (void)state;
    char command[128];
    snprintf(command, sizeof(command), "rm -rf %s", runtime);
    return system(command); /* NOLINT(bugprone-command-processor): a name of our own */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_in_flight),
        cmocka_unit_test(test_two_contexts),
    };
    return cmocka_run_group_tests(tests, start, end);
}
