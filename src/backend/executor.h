/* Executor: runs a graph plan. Serial for now: one split after the other, and the
 * accelerator is waited for before the CPU starts; only the last split may still be
 * in flight on return. */
#ifndef ATS_BACKEND_EXECUTOR_H
#define ATS_BACKEND_EXECUTOR_H

#include "backend/graph_plan.h"

/* Needs the device's read lock. On failure the error says what happened, and what
 * the graph should have written is undefined. */
enum ggml_status ats_execute(struct ats_stream *stream, const struct ats_graph_plan *plan,
                             struct ats_error *err);

#endif
