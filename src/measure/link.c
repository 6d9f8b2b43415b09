/* Copies and splits. */
#include "measure/link.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static const size_t sizes[] = {
    (size_t)4 << 10, (size_t)16 << 10, (size_t)64 << 10, (size_t)256 << 10,
    (size_t)1 << 20, (size_t)4 << 20,  (size_t)16 << 20, (size_t)64 << 20,
};
static const size_t quick_sizes[] = {(size_t)4 << 10, (size_t)64 << 10, (size_t)1 << 20,
                                     (size_t)16 << 20};
enum { N_SIZES = sizeof(sizes) / sizeof(sizes[0]), MAX_RUNS = 31, MIN_RUNS = 3 };
enum { N_QUICK_SIZES = sizeof(quick_sizes) / sizeof(quick_sizes[0]) };

/* A profile has no rates of nothing. */
static const double LEAST_GBPS = 1e-3;

struct ladder {
    const size_t *sizes; /* rising */
    size_t n;
};

/* ---- copies ---- */

struct area {
    uint8_t *bytes;
    size_t size;
    ggml_backend_buffer_t buffer; /* of pinned memory; NULL: the host's pool */
};

static bool copy_once(struct ats_bench *accel, struct ggml_tensor *tensor, bool to_host,
                      uint8_t *host, size_t bytes, double *us, struct ats_error *err)
{
    const double begin = ats_bench_now_us();
    if (to_host) {
        ggml_backend_tensor_get_async(accel->backend, tensor, host, 0, bytes);
    } else {
        ggml_backend_tensor_set_async(accel->backend, tensor, host, 0, bytes);
    }
    const bool good = ats_bench_finish(accel, err);
    *us = ats_bench_now_us() - begin;
    return good;
}

/* Successive copies take successive parts of the area, as those of weights do. */
static bool time_copy(struct ats_bench *accel, struct ggml_tensor *tensor, bool to_host,
                      const struct area *area, size_t bytes, double slot_us, double *us,
                      struct ats_error *err)
{
    double times[MAX_RUNS];
    double first = 0;
    size_t at = 0;
    size_t runs = MIN_RUNS;
    for (size_t i = 0; i < runs + 1; i++) {
        at = at + bytes <= area->size ? at : 0;
        if (!copy_once(accel, tensor, to_host, area->bytes + at, bytes,
                       i == 0 ? &first : &times[i - 1], err)) {
            return false;
        }
        at += bytes;
        if (i == 0) {
            const double fit = slot_us / fmax(first, 1);
            runs = fit < MIN_RUNS ? MIN_RUNS : fit > MAX_RUNS ? MAX_RUNS : (size_t)fit;
        }
    }
    *us = ats_bench_quartile(times, runs);
    return true;
}

static bool measure_curve(struct ats_bench *accel, struct ggml_tensor *tensor, bool to_host,
                          const struct ladder *l, const struct area *area, double slot_us,
                          struct ats_profile_copies *copies, struct ats_error *err)
{
    for (size_t i = 0; i < l->n; i++) {
        double us = 0;
        if (l->sizes[i] > area->size || l->sizes[i] > ggml_nbytes(tensor)) {
            break;
        }
        if (!time_copy(accel, tensor, to_host, area, l->sizes[i], slot_us, &us, err)) {
            return false;
        }
        ats_profile_add_point(copies->points, &copies->n_points,
                              (struct ats_profile_point){(double)l->sizes[i], us, 0});
    }
    return true;
}

/* Pinned memory as the device's backend has it; without, pageable memory stands in. */
static struct area pinned_area(const struct ats_bench *accel, size_t bytes,
                               const struct area *pageable)
{
    ggml_backend_buffer_type_t type = ggml_backend_dev_host_buffer_type(accel->device);
    struct area area = *pageable;
    ggml_backend_buffer_t buffer =
        type != NULL ? ggml_backend_buft_alloc_buffer(type, bytes) : NULL;
    if (buffer != NULL) {
        area = (struct area){ggml_backend_buffer_get_base(buffer), bytes, buffer};
        memset(area.bytes, 1, bytes);
    }
    return area;
}

bool ats_measure_copies(struct ats_bench *host, struct ats_bench *accel, bool quick, double slot_us,
                        struct ats_profile *profile, struct ats_error *err)
{
    const struct ladder l = {quick ? quick_sizes : sizes, quick ? N_QUICK_SIZES : N_SIZES};
    struct ats_bench_graph g;
    if (!ats_bench_graph_init(&g, 4)) {
        return ats_fail(err, "out of memory");
    }
    /* bytes: of no type whose padding the backend would look after */
    size_t most = l.sizes[l.n - 1];
    most = most < accel->pool_bytes ? most : accel->pool_bytes;
    struct ggml_tensor *tensor = ggml_new_tensor_1d(g.context, GGML_TYPE_I8, (int64_t)most);
    bool good = ats_bench_take_weight(accel, tensor) ||
                ats_fail(err, "device memory is not usable for copies");
    const struct area pageable = {host->mapping, host->mapping_bytes, NULL};
    const struct area pinned = pinned_area(accel, l.sizes[l.n - 1], &pageable);
    for (int to_host = 0; good && to_host < 2; to_host++) {
        struct ats_profile_copies *copies = profile->copies[to_host];
        good = measure_curve(accel, tensor, to_host, &l, &pageable, slot_us,
                             &copies[ATS_PROFILE_PAGEABLE], err) &&
               measure_curve(accel, tensor, to_host, &l, &pinned, slot_us,
                             &copies[ATS_PROFILE_PINNED], err);
    }
    ggml_backend_buffer_free(pinned.buffer);
    ats_bench_graph_free(&g);
    return good;
}

/* ---- both at once ---- */

/* Graphs of matrix-vector products, run in turn: of more weights than most caches hold. */
enum { READERS = 8, PRODUCTS = 8, READ_SIZE = 2048 };

struct readers {
    struct ats_bench_graph graphs[READERS];
    double graph_bytes;
};

static bool build_readers(struct ats_bench *host, struct readers *r)
{
    for (size_t i = 0; i < READERS; i++) {
        struct ats_bench_graph *g = &r->graphs[i];
        if (!ats_bench_graph_init(g, 3 * PRODUCTS + 4)) {
            return false;
        }
        struct ggml_tensor *input = ggml_new_tensor_1d(g->context, GGML_TYPE_F32, READ_SIZE);
        bool good = ats_bench_take_input(host, input, 0);
        for (size_t k = 0; good && k < PRODUCTS; k++) {
            struct ggml_tensor *weight =
                ggml_new_tensor_2d(g->context, GGML_TYPE_Q4_K, READ_SIZE, READ_SIZE);
            struct ggml_tensor *product = ggml_mul_mat(g->context, weight, input);
            good = ats_bench_take_weight(host, weight) && ats_bench_take_output(host, product, 0);
            ggml_build_forward_expand(g->graph, product);
        }
        if (!good) {
            return false;
        }
    }
    r->graph_bytes =
        PRODUCTS * (double)READ_SIZE * (double)ggml_row_size(GGML_TYPE_Q4_K, READ_SIZE);
    return true;
}

/* What both reach. */
struct beside {
    double link_gbps;
    double cpu_gbps;
};

/* Orders copies, and lets the CPU read for nearly as long as they would take alone. What is left of
 * them then takes its usual time, so the rest is what crossed beside the CPU. */
static bool time_beside(struct ats_bench *host, struct ats_bench *accel, struct readers *r,
                        struct ggml_tensor *tensor, const struct area *area, double alone_us,
                        struct beside *out, struct ats_error *err)
{
    static const double TARGET_US = 30e3;
    static const double READING_SHARE = 0.8;
    enum { MOST_COPIES = 64 };
    const size_t bytes = ggml_nbytes(tensor);
    const double fit = ceil(TARGET_US / alone_us);
    const size_t n = fit < 2 ? 2 : fit > MOST_COPIES ? MOST_COPIES : (size_t)fit;
    const double begin = ats_bench_now_us();
    size_t at = 0;
    for (size_t i = 0; i < n; i++) {
        at = at + bytes <= area->size ? at : 0;
        ggml_backend_tensor_set_async(accel->backend, tensor, area->bytes + at, 0, bytes);
        at += bytes;
    }
    const double ordered = ats_bench_now_us();
    const double reading_us = READING_SHARE * (double)n * alone_us;
    size_t graphs = 0;
    double now = ordered;
    while (now - begin < reading_us) {
        if (!ats_bench_run(host, r->graphs[graphs++ % READERS].graph, err)) {
            struct ats_error ignored;
            ats_bench_finish(accel, &ignored); /* copies still read what the caller frees */
            return false;
        }
        now = ats_bench_now_us();
    }
    if (!ats_bench_finish(accel, err)) {
        return false;
    }
    const double rate = (double)bytes / alone_us; /* bytes per microsecond */
    const double rest = fmin((ats_bench_now_us() - now) * rate, (double)n * (double)bytes);
    const double crossed = (double)n * (double)bytes - rest;
    out->link_gbps = graphs > 0 ? fmin(crossed / (now - begin), rate) * 1e-3 : rate * 1e-3;
    out->link_gbps = fmax(out->link_gbps, LEAST_GBPS);
    out->cpu_gbps = graphs > 0 ? (double)graphs * r->graph_bytes / (now - ordered) * 1e-3 : 0;
    return true;
}

static int by_sum(const void *a, const void *b)
{
    const struct beside *x = a;
    const struct beside *y = b;
    const double p = x->link_gbps + x->cpu_gbps;
    const double q = y->link_gbps + y->cpu_gbps;
    return (p > q) - (p < q);
}

/* The median of a few, by what both reach together, once the weights have been read. */
static bool measure_beside(struct ats_bench *host, struct ats_bench *accel, struct readers *r,
                           struct ggml_tensor *tensor, const struct area *area, double alone_us,
                           struct ats_profile *profile, struct ats_error *err)
{
    enum { TIMES = 5 };
    struct beside times[TIMES];
    for (size_t i = 0; i < READERS; i++) {
        if (!ats_bench_run(host, r->graphs[i].graph, err)) {
            return false;
        }
    }
    for (size_t i = 0; i < TIMES; i++) {
        if (!time_beside(host, accel, r, tensor, area, alone_us, &times[i], err)) {
            return false;
        }
    }
    qsort(times, TIMES, sizeof(*times), by_sum);
    profile->beside_link_gbps = times[TIMES / 2].link_gbps;
    profile->beside_cpu_gbps = times[TIMES / 2].cpu_gbps;
    return true;
}

bool ats_measure_beside(struct ats_bench *host, struct ats_bench *accel,
                        struct ats_profile *profile, struct ats_error *err)
{
    const struct ats_profile_copies *c =
        &profile->copies[ATS_PROFILE_TO_DEVICE][ATS_PROFILE_PINNED];
    const struct ats_profile_point *last = &c->points[c->n_points - 1];
    struct readers readers = {0};
    struct ats_bench_graph g = {0};
    bool good = (ats_bench_graph_init(&g, 4) && build_readers(host, &readers)) ||
                ats_fail(err, "out of memory for copies beside the CPU");
    if (good) {
        struct ggml_tensor *tensor = ggml_new_tensor_1d(g.context, GGML_TYPE_I8, (int64_t)last->n);
        const struct area pageable = {host->mapping, host->mapping_bytes, NULL};
        const struct area pinned = pinned_area(accel, sizes[N_SIZES - 1], &pageable);
        good = (ats_bench_take_weight(accel, tensor) ||
                ats_fail(err, "device memory is not usable for copies")) &&
               measure_beside(host, accel, &readers, tensor, &pinned, last->us, profile, err);
        ggml_backend_buffer_free(pinned.buffer);
    }
    for (size_t i = 0; i < READERS; i++) {
        ats_bench_graph_free(&readers.graphs[i]);
    }
    ats_bench_graph_free(&g);
    return good;
}

/* ---- launches ---- */

enum { TINY = 32, TINY_OPS = 128 };

static bool build_tiny(struct ats_bench *b, struct ats_bench_graph *g, size_t ops)
{
    if (!ats_bench_graph_init(g, ops + 4)) {
        return false;
    }
    struct ggml_tensor *x = ggml_new_tensor_1d(g->context, GGML_TYPE_F32, TINY);
    struct ggml_tensor *y = ggml_new_tensor_1d(g->context, GGML_TYPE_F32, TINY);
    bool good = ats_bench_take_input(b, x, 0) && ats_bench_take_input(b, y, 4096);
    for (size_t i = 0; good && i < ops; i++) {
        struct ggml_tensor *sum = ggml_add(g->context, x, y);
        good = ats_bench_take_output(b, sum, 0);
        ggml_build_forward_expand(g->graph, sum);
    }
    return good;
}

/* The time of a graph of many tiny operators, less that of one of half as many: without what a
 * graph itself takes. If noise leaves nothing of that, the larger one's mean. */
bool ats_measure_launch(struct ats_bench *bench, double slot_us, double *launch_us,
                        struct ats_error *err)
{
    double us[2] = {0, 0};
    for (size_t i = 0; i < 2; i++) {
        struct ats_bench_graph g = {0};
        const bool good = (build_tiny(bench, &g, (i + 1) * TINY_OPS) ||
                           ats_fail(err, "out of memory for a graph of tiny operators")) &&
                          ats_bench_time(bench, g.graph, slot_us, &us[i], err);
        ats_bench_graph_free(&g);
        if (!good) {
            return false;
        }
    }
    const double more_us = us[1] - us[0];
    *launch_us = more_us > 0 ? more_us / TINY_OPS : us[1] / (2 * TINY_OPS);
    return true;
}

/* ---- splits ---- */

/* One activation of 4096 numbers crosses each way. */
enum { CROSSING_BYTES = 16 << 10 };

static bool run_quietly(struct ats_bench *b, struct ggml_cgraph *graph, struct ats_error *err)
{
    return ggml_backend_graph_compute_async(b->backend, graph) == GGML_STATUS_SUCCESS ||
           ats_fail(err, "%s cannot compute a graph", ggml_backend_dev_name(b->device));
}

/* Without changes of side: the CPU computes, and computes. With: CPU, copy, device, copy, CPU. */
static bool round_trip(struct ats_bench *host, struct ats_bench *accel,
                       struct ggml_cgraph *graphs[2], struct ggml_tensor *tensor, uint8_t *bytes,
                       bool crosses, double *us, struct ats_error *err)
{
    const double begin = ats_bench_now_us();
    bool good = run_quietly(host, graphs[ATS_HOST], err);
    if (good && crosses) {
        ggml_backend_tensor_set_async(accel->backend, tensor, bytes, 0, CROSSING_BYTES);
        good = run_quietly(accel, graphs[ATS_ACCEL], err);
        ggml_backend_tensor_get_async(accel->backend, tensor, bytes, 0, CROSSING_BYTES);
        good = ats_bench_finish(accel, err) && good;
    }
    good = good && run_quietly(host, graphs[ATS_HOST], err);
    *us = ats_bench_now_us() - begin;
    return good;
}

static bool time_round_trips(struct ats_bench *host, struct ats_bench *accel,
                             struct ats_bench_graph graphs[2], struct ats_profile *profile,
                             struct ats_error *err)
{
    struct ggml_tensor *tensor =
        ggml_new_tensor_1d(graphs[ATS_ACCEL].context, GGML_TYPE_F32, CROSSING_BYTES / 4);
    if (!ats_bench_take_input(accel, tensor, 0)) {
        return ats_fail(err, "scratch memory is not usable");
    }
    struct ggml_cgraph *both[2] = {graphs[0].graph, graphs[1].graph};
    uint8_t *bytes = ggml_backend_buffer_get_base(host->scratch);
    double longer[MAX_RUNS];
    for (int i = -2; i < MAX_RUNS; i++) { /* the first two warm up */
        double with = 0;
        double without = 0;
        if (!round_trip(host, accel, both, tensor, bytes, false, &without, err) ||
            !round_trip(host, accel, both, tensor, bytes, true, &with, err)) {
            return false;
        }
        longer[i < 0 ? 0 : i] = with - without;
    }
    const double us = ats_bench_median(longer, MAX_RUNS);
    profile->round_trip_us = fmax(us - profile->launch_us[ATS_ACCEL], 0);
    return true;
}

static bool measure_round_trip(struct ats_bench *host, struct ats_bench *accel,
                               struct ats_profile *profile, struct ats_error *err)
{
    struct ats_bench_graph graphs[2] = {{0}, {0}};
    const bool built =
        build_tiny(host, &graphs[ATS_HOST], 1) && build_tiny(accel, &graphs[ATS_ACCEL], 1);
    const bool good = (built || ats_fail(err, "out of memory for a tiny graph")) &&
                      time_round_trips(host, accel, graphs, profile, err);
    ats_bench_graph_free(&graphs[0]);
    ats_bench_graph_free(&graphs[1]);
    return good;
}

enum { MAX_BLOCKS = 16 };

/* Blocks of gate, up and activation for one token. An output is seen by others, so that it cannot
 * be fused away. */
static bool build_blocks(struct ats_bench *b, struct ats_bench_graph *g, int blocks, bool broken)
{
    enum { WIDTH = 1024, ROWS = 512 };
    if (!ats_bench_graph_init(g, 6 * MAX_BLOCKS + 8)) {
        return false;
    }
    struct ggml_tensor *input = ggml_new_tensor_1d(g->context, GGML_TYPE_F32, WIDTH);
    bool good = ats_bench_take_input(b, input, 0);
    for (int i = 0; good && i < blocks; i++) {
        struct ggml_tensor *parts[2];
        for (size_t j = 0; good && j < 2; j++) {
            struct ggml_tensor *weight = ggml_new_tensor_2d(g->context, GGML_TYPE_F16, WIDTH, ROWS);
            parts[j] = ggml_mul_mat(g->context, weight, input);
            good = ats_bench_take_weight(b, weight) &&
                   ats_bench_take_output(b, parts[j], j * sizeof(float) * ROWS);
            if (broken) {
                ggml_set_output(parts[j]);
            }
        }
        if (good) {
            struct ggml_tensor *block = ggml_swiglu_split(g->context, parts[0], parts[1]);
            good = ats_bench_take_output(b, block, 2 * sizeof(float) * ROWS) &&
                   ggml_backend_dev_supports_op(b->device, block);
            ggml_build_forward_expand(g->graph, block);
        }
    }
    return good;
}

static bool time_blocks(struct ats_bench *accel, int blocks, bool broken, double slot_us,
                        double *us, struct ats_error *err)
{
    struct ats_bench_graph g = {0};
    bool good = true;
    if (build_blocks(accel, &g, blocks, broken)) { /* else not supported: nothing to break */
        good = ats_bench_time(accel, g.graph, slot_us, us, err);
    }
    ats_bench_graph_free(&g);
    return good;
}

/* As many blocks as there is time for, so that a single launch is not lost in noise. */
static bool measure_fusion(struct ats_bench *accel, double slot_us, struct ats_profile *profile,
                           struct ats_error *err)
{
    double one_us = 0;
    double whole_us = 0;
    double broken_us = 0;
    if (!time_blocks(accel, 1, false, 0, &one_us, err)) {
        return false;
    }
    const double fit = fmin(slot_us / fmax(one_us, 1), MAX_BLOCKS);
    const int blocks = fit < 1 ? 1 : (int)fit;
    const bool good = time_blocks(accel, blocks, false, slot_us, &whole_us, err) &&
                      time_blocks(accel, blocks, true, slot_us, &broken_us, err);
    profile->broken_fusion_us = fmax((broken_us - whole_us) / blocks, 0);
    return good;
}

bool ats_measure_splits(struct ats_bench *host, struct ats_bench *accel, double slot_us,
                        struct ats_profile *profile, struct ats_error *err)
{
    return measure_round_trip(host, accel, profile, err) &&
           measure_fusion(accel, slot_us, profile, err);
}
