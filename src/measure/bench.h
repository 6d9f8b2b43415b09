/* Timing of small ggml graphs on one side of the machine.
 *
 * A side has a pool of memory that stands for a model's weights, and scratch
 * memory for activations. Successive operators of a graph read successive parts
 * of the pool, more of it in total than caches hold, so that each finds its
 * weights where a model's are: in memory. On the CPU the pool is a shared
 * mapping with small pages, as a mapped model file is.
 *
 * Calls ggml directly: for the program ats-ggml and tests. A side is used by
 * one thread. */
#ifndef ATS_MEASURE_BENCH_H
#define ATS_MEASURE_BENCH_H

#include "base/error.h"
#include "profile/profile.h"

#include <ggml-backend.h>
#include <ggml.h>

struct ats_bench {
    enum ats_side side;
    ggml_backend_dev_t device;
    ggml_backend_t backend;
    struct ggml_threadpool *threadpool; /* of a CPU backend without OpenMP */

    void *mapping; /* of the host's pool */
    size_t mapping_bytes;
    ggml_backend_buffer_t pool;
    size_t pool_bytes;
    size_t cursor; /* counts the weights handed out */
    ggml_backend_buffer_t scratch;
    size_t in_bytes;  /* of scratch memory, from its begin: activations that are read */
    size_t ids_bytes; /* then: ids of experts */
    size_t out_bytes; /* then: results */

    /* An emulated device tells of failures by this. */
    bool (*take_error)(ggml_backend_t backend, char *text, size_t size);
};

/* What became of a measurement. */
enum ats_bench_result {
    ATS_BENCH_DONE,
    ATS_BENCH_SKIPPED, /* does not fit into the pool or scratch memory, or is not supported */
    ATS_BENCH_FAILED,  /* with an error: the device is broken or out of memory */
};

/* Starts a backend of `device` and takes the memory, of which it fills in numbers. `span_bytes`:
 * more than the caches hold; the pool is that or, on a device, half of what is free. */
bool ats_bench_open(struct ats_bench *bench, enum ats_side side, ggml_backend_dev_t device,
                    size_t span_bytes, struct ats_error *err);
void ats_bench_close(struct ats_bench *bench);

/* Threads of later graphs; of a CPU backend. */
void ats_bench_set_threads(struct ats_bench *bench, int threads);

/* Microseconds of one operator of the curve's shape with this n, in a graph of several that is run
 * for about slot_us and at least three times; the lower quartile. */
enum ats_bench_result ats_bench_point(struct ats_bench *bench,
                                      const struct ats_profile_curve *curve, double n,
                                      double slot_us, struct ats_profile_point *point,
                                      struct ats_error *err);

/* A graph that the caller builds; freed with ats_bench_graph_free. */
struct ats_bench_graph {
    struct ggml_context *context;
    struct ggml_cgraph *graph;
};

/* Room for `tensors` tensors and nodes. False: out of memory. */
bool ats_bench_graph_init(struct ats_bench_graph *graph, size_t tensors);
void ats_bench_graph_free(struct ats_bench_graph *graph);

/* Memory for tensors: the next weight of the pool, an input at the begin of the scratch memory plus
 * `offset`, ids behind the inputs, a result behind those. False if it does not fit. */
bool ats_bench_take_weight(struct ats_bench *bench, struct ggml_tensor *tensor);
bool ats_bench_take_input(struct ats_bench *bench, struct ggml_tensor *tensor, size_t offset);
bool ats_bench_take_ids(struct ats_bench *bench, struct ggml_tensor *tensor, size_t offset);
bool ats_bench_take_output(struct ats_bench *bench, struct ggml_tensor *tensor, size_t offset);

/* Runs a graph once and waits for it. */
bool ats_bench_run(struct ats_bench *bench, struct ggml_cgraph *graph, struct ats_error *err);

/* The time of a run: warmed up, then repeated as above. */
bool ats_bench_time(struct ats_bench *bench, struct ggml_cgraph *graph, double slot_us, double *us,
                    struct ats_error *err);

/* Waits for what was queued and says what failed of it. */
bool ats_bench_finish(struct ats_bench *bench, struct ats_error *err);

double ats_bench_now_us(void);

/* Of at least one value; they sort them. The lower quartile is what runs take undisturbed: other
 * programs only add time. */
double ats_bench_median(double *values, size_t n);
double ats_bench_quartile(double *values, size_t n);

#endif
