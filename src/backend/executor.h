/* Executor: runs a graph plan, one split after the other. The accelerator is waited for before
 * the CPU starts; copies of promoted weights run beside both (transfer.h). The last split may
 * still be in flight on return. */
#ifndef ATS_BACKEND_EXECUTOR_H
#define ATS_BACKEND_EXECUTOR_H

#include "backend/graph_plan.h"

/* Needs the device's read lock. On failure the error says what happened, and what
 * the graph should have written is undefined. */
enum ggml_status ats_execute(struct ats_stream *stream, const struct ats_graph_plan *plan,
                             struct ats_error *err);

#endif
