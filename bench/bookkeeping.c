/* How much time the backend itself takes per graph, apart from computing.
 *
 * Builds a graph of about 2000 nodes in the shape of a transformer, lets the backend plan
 * it, replaces the functions of both sides that compute, copy, wait and handle events by empty
 * ones, on all streams, and measures what is left of a graph computation: finding the plan,
 * checking what it expects, walking the splits, keeping the state. That is the bookkeeping of one
 * token. With ATS_TRACE it is measured with recording on, and the records are counted; the hollow
 * streams run nothing, so of them there are none of kind RAN.
 *
 *     bookkeeping [GRAPHS]     how many are measured; default: 2000
 *
 * Run by `make bench-bookkeeping` and `make bench-recorder`. */
#include "backend/stream.h"
#include "base/parse.h"
#include "linked_graph.h"
#include "trace/recorder.h"

#include <stdio.h>
#include <stdlib.h>
#include <time.h>

enum {
    N_LAYERS = 84,
    WIDTH = 32,
    DEFAULT_RUNS = 2000,
    MOST_RUNS = 100000,
};

static enum ggml_status compute_nothing(ggml_backend_t backend, struct ggml_cgraph *graph)
{
    (void)backend;
    (void)graph;
    return GGML_STATUS_SUCCESS;
}

static void set_nothing(ggml_backend_t backend, struct ggml_tensor *tensor, const void *data,
                        size_t offset, size_t size)
{
    (void)backend, (void)tensor, (void)data, (void)offset, (void)size;
}

static void get_nothing(ggml_backend_t backend, const struct ggml_tensor *tensor, void *data,
                        size_t offset, size_t size)
{
    (void)backend, (void)tensor, (void)data, (void)offset, (void)size;
}

static void wait_for_nothing(ggml_backend_t backend)
{
    (void)backend;
}

static void handle_no_event(ggml_backend_t backend, ggml_backend_event_t event)
{
    (void)backend, (void)event;
}

/* Null: there is no such stream. */
static void hollow_out(ggml_backend_t backend)
{
    if (backend == NULL) {
        return;
    }
    backend->iface.event_record = handle_no_event;
    backend->iface.event_wait = handle_no_event;
    backend->iface.graph_compute = compute_nothing;
    backend->iface.set_tensor_async = set_nothing;
    backend->iface.get_tensor_async = get_nothing;
    backend->iface.synchronize = wait_for_nothing;
}

/* One layer: attention-like and feed-forward-like, with the operators that fuse. */
static struct ggml_tensor *layer(struct ggml_context *weights, struct ggml_context *graph,
                                 struct ggml_tensor *x, int index)
{
    struct ggml_tensor *w[8];
    for (int i = 0; i < 8; i++) {
        w[i] = i < 2 ? ggml_new_tensor_1d(weights, GGML_TYPE_F32, WIDTH)
                     : ggml_new_tensor_2d(weights, GGML_TYPE_F32, WIDTH, WIDTH);
        ggml_format_name(w[i], "blk.%d.weight_%d.weight", index, i);
    }
    struct ggml_tensor *a = ggml_mul(graph, ggml_rms_norm(graph, x, 1e-6F), w[0]);
    struct ggml_tensor *q = ggml_mul_mat(graph, w[2], a);
    struct ggml_tensor *k = ggml_mul_mat(graph, w[3], a);
    struct ggml_tensor *v = ggml_mul_mat(graph, w[4], a);
    struct ggml_tensor *s = ggml_soft_max(graph, ggml_mul(graph, q, k));
    for (int i = 0; i < 4; i++) {
        s = ggml_reshape_2d(graph, ggml_scale(graph, s, 1.0F), WIDTH, 1);
    }
    struct ggml_tensor *o = ggml_mul_mat(graph, w[5], ggml_mul(graph, s, v));
    x = ggml_add(graph, x, o);
    struct ggml_tensor *f = ggml_mul(graph, ggml_rms_norm(graph, x, 1e-6F), w[1]);
    struct ggml_tensor *g = ggml_silu(graph, ggml_mul_mat(graph, w[6], f));
    return ggml_add(graph, x, ggml_mul_mat(graph, w[7], g));
}

static double now_us(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return 1e6 * (double)now.tv_sec + 1e-3 * (double)now.tv_nsec;
}

static int compare(const void *a, const void *b)
{
    const double x = *(const double *)a;
    const double y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Records so far; none without recording. */
static uint64_t count_records(void)
{
    struct ats_trace trace;
    if (!ats_trace_snapshot(&trace)) {
        fprintf(stderr, "no memory for the records\n");
        exit(1);
    }
    const uint64_t n = trace.n_records + trace.dropped;
    ats_trace_free(&trace);
    return n;
}

static void measure(ggml_backend_t backend, struct ggml_cgraph *cgraph, struct ggml_tensor *input,
                    size_t n_runs)
{
    static double us[MOST_RUNS];
    const float values[WIDTH] = {0};
    const uint64_t n_before = count_records();
    for (size_t i = 0; i < n_runs; i++) {
        const double start = now_us();
        ggml_backend_tensor_set(input, values, 0, sizeof(values));
        if (ggml_backend_graph_compute_async(backend, cgraph) != GGML_STATUS_SUCCESS) {
            fprintf(stderr, "the graph could not be computed\n");
            exit(1);
        }
        us[i] = now_us() - start;
    }
    qsort(us, n_runs, sizeof(us[0]), compare);
    const struct ats_stream *stream = backend->context;
    printf("%-14s %6d %7llu %8llu %9.1f %9.1f %9.1f\n", getenv("ATS_PLACEMENT"), cgraph->n_nodes,
           (unsigned long long)stream->device->counters.last_splits,
           (unsigned long long)((count_records() - n_before) / n_runs), us[n_runs / 2],
           us[n_runs / 10], us[n_runs * 99 / 100]);
}

static size_t parse_runs(int argc, char **argv)
{
    struct ats_error err;
    uint64_t n = DEFAULT_RUNS;
    if (argc > 2 || (argc == 2 && (!ats_parse_u64(argv[1], MOST_RUNS, &n, &err) || n == 0))) {
        fprintf(stderr, "usage: %s [GRAPHS], from 1 to %d\n", argv[0], MOST_RUNS);
        exit(2);
    }
    return (size_t)n;
}

int main(int argc, char **argv)
{
    const size_t n_runs = parse_runs(argc, argv);
    ggml_backend_dev_t dev = linked_device("ATS0", NULL);
    if (dev == NULL) {
        fprintf(stderr, "no device ATS0; set ATS_EMULATE\n");
        return 1;
    }
    ggml_backend_t backend = ggml_backend_dev_init(dev, NULL);
    struct linked_graph g;
    const size_t most_tensors = (size_t)64 * N_LAYERS;
    if (backend == NULL || !linked_graph_begin(&g, most_tensors)) {
        fprintf(stderr, "no memory\n");
        return 1;
    }
    struct ggml_tensor *input = ggml_new_tensor_2d(g.ops, GGML_TYPE_F32, WIDTH, 1);
    ggml_set_input(input);
    struct ggml_tensor *x = input;
    for (int i = 0; i < N_LAYERS; i++) {
        x = layer(g.weights, g.ops, x, i);
    }
    if (!linked_graph_end(&g, dev, x)) {
        fprintf(stderr, "no memory for the graph\n");
        return 1;
    }
    g.cgraph->uid = 1; /* as llama.cpp's scheduler marks a graph that it reuses */
    if (ggml_backend_graph_compute(backend, g.cgraph) != GGML_STATUS_SUCCESS) {
        fprintf(stderr, "the graph could not be computed\n");
        return 1;
    }
    struct ats_stream *stream = backend->context;
    hollow_out(stream->accel);
    hollow_out(stream->cpu.backend);
    hollow_out(stream->staging.transfer);
    hollow_out(stream->experts.transfer);
    stream->reports_errors = false;
    measure(backend, g.cgraph, input, n_runs);
    return 0;
}
