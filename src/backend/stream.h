/* An ATS backend instance, which ggml calls a stream: one per llama.cpp context.
 * It holds its own instances of the accelerator and of the CPU, and the graph
 * plans that it has built.
 *
 * Thread-safety: as every ggml backend, used by one thread at a time; different
 * streams run in parallel. */
#ifndef ATS_BACKEND_STREAM_H
#define ATS_BACKEND_STREAM_H

#include "backend/cpu_side.h"
#include "backend/device.h"
#include "backend/experts.h"
#include "backend/landing.h"
#include "backend/meter.h"
#include "backend/replan.h"
#include "backend/transfer.h"

struct ats_graph_plan;
struct ats_observed_stream;

enum {
    /* graphs that a stream remembers: llama.cpp keeps one per kind of batch, and may
     * compute several per token when its own scheduler splits the model */
    ATS_PLAN_CACHE = 8,
};

/* A pass, for those who look from outside. */
enum ats_live_pass {
    ATS_LIVE_NO_PASS,
    ATS_LIVE_IN_PASS,
    ATS_LIVE_BEHIND_PASS, /* all has been given, and not waited for */
};

struct ats_stream {
    struct ggml_backend ggml;
    struct ats_device *device;
    ggml_backend_t accel;
    struct ats_cpu_side cpu;
    struct ats_staging_area staging;
    struct ats_experts experts;
    struct ats_landing landing;
    bool in_flight;      /* the accelerator may still compute; the CPU side never does */
    bool reports_errors; /* the accelerator can tell of failures (an emulated one can) */
    ggml_abort_callback abort_callback;
    void *abort_data;

    struct ats_meter meter;
    struct ats_plan_rates rates; /* that the latest pass was planned by */
    uint64_t n_rates;            /* counts those that graphs are to be planned by */
    struct ats_replan replan;
    struct ats_graph_plan *plans[ATS_PLAN_CACHE]; /* latest use first */
    uint64_t n_built;                             /* seeds random partitions */

    struct ats_observed_stream *observed; /* observe.h; NULL: nothing is recorded */
    enum ats_live_pass live_pass;         /* as published (live.h) */

    struct ats_stream *next;
    struct ats_stream *previous;
};

/* Creates a stream, or NULL with a log line. Freed through ggml_backend_free. */
ggml_backend_t ats_stream_create(struct ats_device *device);

/* Waits for the accelerator, if it may still compute. What it was to copy to host memory is there.
 * By the stream's own thread, in a pass. */
void ats_stream_wait(struct ats_stream *stream);

/* Registry functions that llama.cpp looks up by name. */
void ats_stream_set_n_threads(ggml_backend_t backend, int n_threads);
void ats_stream_set_abort_callback(ggml_backend_t backend, ggml_abort_callback callback,
                                   void *data);

#endif
