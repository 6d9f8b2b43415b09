#include "measure/bench.h"

#include "base/parse.h"

#include <errno.h>
#include <fcntl.h>
#include <ggml-cpu.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

enum {
    IN_BYTES = 48 << 20, /* 512 tokens of the widest activations, with room */
    OUT_BYTES = 48 << 20,
    IDS_BYTES = 4 << 20,
    MIN_POOL_BYTES = 8 << 20,
    MIN_RUNS = 3,
    MAX_RUNS = 15,
    /* as f16, as a block scale and as nibbles: small finite numbers */
    WEIGHT_BYTE = 0x2C,
};

/* For a run that takes longer than this, a cold start matters little. */
static const double LONG_US = 5e4;

double ats_bench_now_us(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec * 1e6 + (double)time.tv_nsec * 1e-3;
}

static int compare(const void *a, const void *b)
{
    const double x = *(const double *)a;
    const double y = *(const double *)b;
    return (x > y) - (x < y);
}

double ats_bench_median(double *values, size_t n)
{
    qsort(values, n, sizeof(values[0]), compare);
    return n % 2 == 1 ? values[n / 2] : (values[n / 2 - 1] + values[n / 2]) / 2;
}

double ats_bench_quartile(double *values, size_t n)
{
    qsort(values, n, sizeof(values[0]), compare);
    return values[(n - 1) / 4];
}

/* ---- memory ---- */

static bool find_proc(ggml_backend_dev_t device, const char *name, void *function)
{
    void *address = ggml_backend_reg_get_proc_address(ggml_backend_dev_backend_reg(device), name);
    if (address == NULL) {
        return false;
    }
    /* POSIX lets a function's address travel as a void pointer; ISO C has no cast for it */
    memcpy(function, &address, sizeof(address));
    return true;
}

static bool fail_memory(struct ats_bench *b, const char *what, size_t bytes, struct ats_error *err)
{
    char size[32];
    return ats_fail(err,
                    "out of memory: cannot allocate %s (%s) for %s; close other programs that use "
                    "it and try again",
                    ats_format_bytes(bytes, size, sizeof(size)), what,
                    ggml_backend_dev_name(b->device));
}

/* A shared mapping without a name: its pages are those of the page cache. */
static bool map_pool(struct ats_bench *b, size_t bytes, struct ats_error *err)
{
    const int fd = memfd_create("ats-profile", MFD_CLOEXEC);
    void *mapping = MAP_FAILED;
    if (fd >= 0 && posix_fallocate(fd, 0, (off_t)bytes) == 0) {
        mapping = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, fd, 0);
    }
    if (fd >= 0) {
        close(fd);
    }
    if (mapping == MAP_FAILED) {
        return fail_memory(b, "weights", bytes, err);
    }
    b->mapping = mapping;
    b->mapping_bytes = bytes;
    memset(mapping, WEIGHT_BYTE, bytes);
    b->pool = ggml_backend_dev_buffer_from_host_ptr(b->device, mapping, bytes, bytes);
    b->pool_bytes = bytes;
    return b->pool != NULL || fail_memory(b, "weights", bytes, err);
}

static bool allocate_pool(struct ats_bench *b, size_t bytes, struct ats_error *err)
{
    ggml_backend_buffer_type_t type = ggml_backend_dev_buffer_type(b->device);
    const size_t most = ggml_backend_buft_get_max_size(type);
    b->pool_bytes = bytes < most ? bytes : most;
    b->pool = ggml_backend_buft_alloc_buffer(type, b->pool_bytes);
    if (b->pool == NULL) {
        return fail_memory(b, "weights", b->pool_bytes, err);
    }
    ggml_backend_buffer_clear(b->pool, WEIGHT_BYTE);
    return true;
}

/* Numbers from -0.75 to 0.75, which are finite as f16 too. */
static bool fill_inputs(struct ats_bench *b, struct ats_error *err)
{
    enum { PIECE = 1 << 18 };
    float *numbers = malloc(PIECE * sizeof(*numbers));
    struct ats_bench_graph g;
    if (numbers == NULL || !ats_bench_graph_init(&g, 4)) {
        free(numbers);
        return ats_fail(err, "out of memory");
    }
    for (size_t i = 0; i < PIECE; i++) {
        numbers[i] = 0.25F * ((float)(i % 7) - 3);
    }
    struct ggml_tensor *all =
        ggml_new_tensor_1d(g.context, GGML_TYPE_F32, (int64_t)(b->in_bytes / sizeof(float)));
    bool good = ats_bench_take_input(b, all, 0);
    for (size_t at = 0; good && at < b->in_bytes; at += PIECE * sizeof(float)) {
        const size_t left = b->in_bytes - at;
        ggml_backend_tensor_set(all, numbers, at,
                                left < PIECE * sizeof(float) ? left : PIECE * sizeof(float));
    }
    ats_bench_graph_free(&g);
    free(numbers);
    return (good || ats_fail(err, "scratch memory is not usable")) && ats_bench_finish(b, err);
}

static bool allocate_scratch(struct ats_bench *b, size_t most, struct ats_error *err)
{
    b->in_bytes = IN_BYTES;
    b->out_bytes = OUT_BYTES;
    b->ids_bytes = IDS_BYTES;
    while (b->in_bytes + b->out_bytes + b->ids_bytes > most && b->in_bytes > IDS_BYTES / 4) {
        b->in_bytes /= 2;
        b->out_bytes /= 2;
        b->ids_bytes = b->ids_bytes > IDS_BYTES / 4 ? b->ids_bytes / 2 : b->ids_bytes;
    }
    const size_t bytes = b->in_bytes + b->ids_bytes + b->out_bytes;
    b->scratch = ggml_backend_buft_alloc_buffer(ggml_backend_dev_buffer_type(b->device), bytes);
    if (b->scratch == NULL) {
        return fail_memory(b, "activations", bytes, err);
    }
    return fill_inputs(b, err);
}

/* Scratch memory needs less than the pool, whose size says how much is wanted. */
static bool open_memory(struct ats_bench *b, size_t span_bytes, struct ats_error *err)
{
    const size_t scratch_bytes = span_bytes / 5 * 3;
    if (b->side == ATS_HOST) {
        return map_pool(b, span_bytes, err) && allocate_scratch(b, scratch_bytes, err);
    }
    size_t free_bytes = 0;
    size_t total_bytes = 0;
    ggml_backend_dev_memory(b->device, &free_bytes, &total_bytes);
    const size_t half = free_bytes / 2;
    if (half < MIN_POOL_BYTES) {
        return fail_memory(b, "weights", MIN_POOL_BYTES, err);
    }
    return allocate_pool(b, span_bytes < half ? span_bytes : half, err) &&
           allocate_scratch(b, scratch_bytes < free_bytes / 4 ? scratch_bytes : free_bytes / 4,
                            err);
}

static bool needs_threadpool(ggml_backend_dev_t device)
{
    ggml_backend_get_features_t get_features;
    if (!find_proc(device, "ggml_backend_get_features", &get_features)) {
        return false;
    }
    const struct ggml_backend_feature *feature = get_features(ggml_backend_dev_backend_reg(device));
    while (feature->name != NULL && strcmp(feature->name, "OPENMP") != 0) {
        feature++;
    }
    return feature->name == NULL;
}

bool ats_bench_open(struct ats_bench *bench, enum ats_side side, ggml_backend_dev_t device,
                    size_t span_bytes, struct ats_error *err)
{
    *bench = (struct ats_bench){.side = side, .device = device};
    bench->backend = ggml_backend_dev_init(device, NULL);
    if (bench->backend == NULL) {
        return ats_fail(err, "the backend of %s does not start", ggml_backend_dev_name(device));
    }
    find_proc(device, "ats_backend_take_error", &bench->take_error);
    if (!open_memory(bench, span_bytes, err)) {
        ats_bench_close(bench);
        return false;
    }
    return true;
}

static void drop_threadpool(struct ats_bench *b)
{
    void (*set_pool)(ggml_backend_t, ggml_threadpool_t);
    void (*free_pool)(ggml_threadpool_t);
    if (b->threadpool != NULL &&
        find_proc(b->device, "ggml_backend_cpu_set_threadpool", &set_pool) &&
        find_proc(b->device, "ggml_threadpool_free", &free_pool)) {
        set_pool(b->backend, NULL);
        free_pool(b->threadpool);
        b->threadpool = NULL;
    }
}

void ats_bench_close(struct ats_bench *bench)
{
    drop_threadpool(bench);
    ggml_backend_buffer_free(bench->scratch);
    ggml_backend_buffer_free(bench->pool);
    if (bench->mapping != NULL) {
        munmap(bench->mapping, bench->mapping_bytes);
    }
    if (bench->backend != NULL) {
        ggml_backend_free(bench->backend);
    }
    *bench = (struct ats_bench){0};
}

void ats_bench_set_threads(struct ats_bench *bench, int threads)
{
    ggml_backend_set_n_threads_t set_n_threads;
    if (find_proc(bench->device, "ggml_backend_set_n_threads", &set_n_threads)) {
        set_n_threads(bench->backend, threads);
    }
    drop_threadpool(bench);
    ggml_threadpool_t (*new_pool)(struct ggml_threadpool_params *);
    void (*set_pool)(ggml_backend_t, ggml_threadpool_t);
    if (needs_threadpool(bench->device) &&
        find_proc(bench->device, "ggml_threadpool_new", &new_pool) &&
        find_proc(bench->device, "ggml_backend_cpu_set_threadpool", &set_pool)) {
        struct ggml_threadpool_params params;
        ggml_threadpool_params_init(&params, threads);
        bench->threadpool = new_pool(&params);
        if (bench->threadpool != NULL) {
            set_pool(bench->backend, bench->threadpool);
        }
    }
}

/* ---- graphs ---- */

bool ats_bench_graph_init(struct ats_bench_graph *graph, size_t tensors)
{
    const struct ggml_init_params params = {
        .mem_size = (2 * tensors + 16) * ggml_tensor_overhead() +
                    ggml_graph_overhead_custom(tensors, false),
        .no_alloc = true,
    };
    graph->context = ggml_init(params);
    if (graph->context == NULL) {
        return false;
    }
    graph->graph = ggml_new_graph_custom(graph->context, tensors, false);
    return graph->graph != NULL;
}

void ats_bench_graph_free(struct ats_bench_graph *graph)
{
    ggml_free(graph->context);
    *graph = (struct ats_bench_graph){0};
}

static size_t aligned(ggml_backend_buffer_t buffer, size_t bytes)
{
    const size_t alignment = ggml_backend_buffer_get_alignment(buffer);
    return (bytes + alignment - 1) / alignment * alignment;
}

static bool take(ggml_backend_buffer_t buffer, struct ggml_tensor *tensor, size_t at, size_t end)
{
    const size_t begin = aligned(buffer, at);
    if (begin + ggml_backend_buffer_get_alloc_size(buffer, tensor) > end) {
        return false;
    }
    uint8_t *base = ggml_backend_buffer_get_base(buffer);
    return ggml_backend_tensor_alloc(buffer, tensor, base + begin) == GGML_STATUS_SUCCESS;
}

bool ats_bench_take_weight(struct ats_bench *bench, struct ggml_tensor *tensor)
{
    const size_t stride =
        aligned(bench->pool, ggml_backend_buffer_get_alloc_size(bench->pool, tensor));
    const size_t n = bench->pool_bytes / stride;
    return n > 0 && take(bench->pool, tensor, bench->cursor++ % n * stride, bench->pool_bytes);
}

bool ats_bench_take_input(struct ats_bench *bench, struct ggml_tensor *tensor, size_t offset)
{
    return take(bench->scratch, tensor, offset, bench->in_bytes);
}

bool ats_bench_take_ids(struct ats_bench *bench, struct ggml_tensor *tensor, size_t offset)
{
    return take(bench->scratch, tensor, bench->in_bytes + offset,
                bench->in_bytes + bench->ids_bytes);
}

bool ats_bench_take_output(struct ats_bench *bench, struct ggml_tensor *tensor, size_t offset)
{
    const size_t begin = bench->in_bytes + bench->ids_bytes;
    return take(bench->scratch, tensor, begin + offset, begin + bench->out_bytes);
}

/* ---- running ---- */

bool ats_bench_finish(struct ats_bench *bench, struct ats_error *err)
{
    ggml_backend_synchronize(bench->backend);
    char text[256];
    if (bench->take_error != NULL && bench->take_error(bench->backend, text, sizeof(text))) {
        return ats_fail(err, "measuring failed: %s", text);
    }
    return true;
}

bool ats_bench_run(struct ats_bench *bench, struct ggml_cgraph *graph, struct ats_error *err)
{
    const enum ggml_status status = ggml_backend_graph_compute_async(bench->backend, graph);
    if (!ats_bench_finish(bench, err)) {
        return false;
    }
    return status == GGML_STATUS_SUCCESS ||
           ats_fail(err, "%s cannot compute a graph: %s", ggml_backend_dev_name(bench->device),
                    ggml_status_to_string(status));
}

/* The first run counts. */
static bool time_long(struct ats_bench *bench, struct ggml_cgraph *graph, double first, double *us,
                      struct ats_error *err)
{
    double times[MIN_RUNS] = {first};
    for (size_t i = 1; i < MIN_RUNS; i++) {
        const double begin = ats_bench_now_us();
        if (!ats_bench_run(bench, graph, err)) {
            return false;
        }
        times[i] = ats_bench_now_us() - begin;
    }
    *us = ats_bench_quartile(times, MIN_RUNS);
    return true;
}

bool ats_bench_time(struct ats_bench *bench, struct ggml_cgraph *graph, double slot_us, double *us,
                    struct ats_error *err)
{
    double times[MAX_RUNS];
    double begin = ats_bench_now_us();
    if (!ats_bench_run(bench, graph, err)) {
        return false;
    }
    const double first = ats_bench_now_us() - begin;
    if (first > LONG_US) {
        return time_long(bench, graph, first, us, err);
    }
    double runs = slot_us / (first > 1 ? first : 1);
    runs = runs < MIN_RUNS ? MIN_RUNS : runs > MAX_RUNS ? MAX_RUNS : runs;
    const size_t n = (size_t)runs;
    for (size_t i = 0; i < n; i++) {
        begin = ats_bench_now_us();
        if (!ats_bench_run(bench, graph, err)) {
            return false;
        }
        times[i] = ats_bench_now_us() - begin;
    }
    *us = ats_bench_quartile(times, n);
    return true;
}
