/* Schedules of llama.cpp's scheduler, which runs splits one after another. Each function is a
 * `schedule` hook of sim/policy.h.
 *
 * llama.cpp (v0.5.0, ggml/src/ggml-backend.cpp), for one GPU without pipeline
 * parallelism, which is when it has no events:
 * - An operator runs where its weight is. With 32 rows or more, the GPU takes it
 *   even if the weight is in host memory: the weight is copied for this pass. Rows
 *   of a norm of heads are heads times tokens, so that such norms (Qwen3's of the
 *   queries) go to the GPU for a single token too, and cost two splits per layer.
 *   Operators without weights follow their neighbours: the GPU spreads down, then
 *   up, until operators of the CPU; what is left is the CPU's.
 * - A split ends where the side changes, and at each weight that is copied.
 * - Before a split runs, its inputs are copied one by one, and before each the
 *   host waits for the split's backend; a copy is over when the call returns.
 * - Of stacked experts only those used are copied, in stretches of neighbours,
 *   after the ids have been read back. From pinned memory these copies return at
 *   once, but the wait before the next input catches up with them.
 * - The cache of a layer is where its layer is. Written there, but with 32 rows
 *   or more read by attention on the GPU, it is copied whole for each pass.
 * - Weights in the page cache (mmap) are pageable memory; without mmap they are
 *   in pinned memory, as activations of the CPU always are.
 */
#ifndef ATS_SIM_SPLITS_H
#define ATS_SIM_SPLITS_H

#include "sim/policy.h"

/* Rows from which the GPU takes over operators whose weight is in host memory (default of
 * GGML_OP_OFFLOAD_MIN_BATCH in ggml-cuda). */
enum { ATS_SIM_OFFLOAD_ROWS = 32 };

void ats_sim_schedule_stock(const struct ats_sim_setting *setting,
                            struct ats_sim_placement *placement, const struct ats_model_pass *pass,
                            const struct ats_sim_routing *routing,
                            struct ats_sim_schedule *schedule);

/* A program that sees no GPU. */
void ats_sim_schedule_cpu(const struct ats_sim_setting *setting,
                          struct ats_sim_placement *placement, const struct ats_model_pass *pass,
                          const struct ats_sim_routing *routing, struct ats_sim_schedule *schedule);

#endif
