/* Computing a region of experts on both sides at once.
 *
 * When the region's input and its token's ids have arrived in host memory, the columns are divided:
 * hits go to the accelerator, misses are computed by the CPU meanwhile, copies into slots run
 * beside both; then the columns of both sides are put together on the accelerator. */
#ifndef ATS_BACKEND_EXPERTS_RUN_H
#define ATS_BACKEND_EXPERTS_RUN_H

#include "backend/experts_graph.h"

/* Needs the device's read lock. The accelerator may still work on return. If it fails, the error
 * may say why. */
enum ggml_status ats_experts_run(struct ats_stream *stream, struct ats_expert_run *run,
                                 struct ats_error *err);

#endif
