/* Planning anew beside a pass: when the rates that a graph is planned by are others, it runs once
 * more by its old plan, while a thread makes the new one; the next pass of that graph takes it.
 *
 * The graph is llama.cpp's and may be gone once the pass has returned, so a pass ends after that
 * thread does. Nothing of the device changes meanwhile: the pass and the thread hold its read lock.
 *
 * Thread-safety: as the stream's: one thread at a time. */
#ifndef ATS_BACKEND_REPLAN_H
#define ATS_BACKEND_REPLAN_H

#include <ggml.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

struct ats_graph_plan;
struct ats_stream;

struct ats_replan {
    pthread_t thread;
    bool runs;
    const struct ggml_cgraph *cgraph;
    uint64_t epoch;
    struct ats_graph_plan *plan; /* that is to be replaced */
};

/* Before a pass by `plan`: has its next one made, if the stream's rates are no longer the plan's.
 * The caller holds the device's read lock. */
void ats_replan_begin(struct ats_stream *stream, const struct ggml_cgraph *cgraph,
                      struct ats_graph_plan *plan);

/* Behind the pass: waits until that is done. The caller holds no lock. */
void ats_replan_end(struct ats_stream *stream);

#endif
