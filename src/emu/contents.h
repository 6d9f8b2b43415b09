/* What device memory holds in timed mode, where most operators are not
 * computed: results are meaningless but safe.
 *
 * - Small copies to the device and integer results are stored in the device's
 *   shadow memory, in the order in which they are enqueued.
 * - Large copies and weights store nothing, so they commit no memory.
 * - What was never stored reads as pseudo-random numbers: finite in every
 *   type, of scale about 1 in f32, the same for the same seed and number of
 *   reads before.
 * - Expert ids (ARGSORT and TOP_K nodes named ffn_moe_argsort-N or
 *   ffn_moe_topk-N, the names that llama.cpp gives them) follow cost/routing.h,
 *   one process per seed and layer for all devices of the program: the same
 *   tokens in the same order get the same experts wherever layers are placed.
 *   Rows of a batch are consecutive tokens. Other sorts give permutations. Where the scores of up
 *   to 32 tokens are computed here (nodes named ffn_moe_logits-N, ffn_moe_probs-N and the like)
 *   and sorted on the CPU, they have an order that gives the same experts.
 *
 * Thread-safe; the routing processes have a lock of their own. */
#ifndef ATS_EMU_CONTENTS_H
#define ATS_EMU_CONTENTS_H

#include "bind/ggml_bind.h"
#include "emu/device.h"

/* Copies up to this size may be stored. */
static const size_t ATS_EMU_MAX_STORED_BYTES = (size_t)1 << 20;

/* Whether copying `size` bytes into this tensor stores them. */
bool ats_emu_is_stored(const struct ggml_tensor *tensor, size_t size);

/* Fills `out` with what `size` bytes of `tensor` read as; `stored` are the same
 * bytes in shadow or pinned memory. */
void ats_emu_read_contents(struct ats_emu_device *device, const struct ggml_tensor *tensor,
                           const uint8_t *stored, uint8_t *out, size_t size);

/* Stores the results of node `index` of a graph, if it is one whose results
 * are stored. */
void ats_emu_make_contents(struct ats_emu_device *device, const struct ggml_cgraph *graph,
                           int index);

/* The number of distinct experts in an id tensor of [n_used, n_tokens], 0 if not known. */
int64_t ats_emu_count_experts(struct ats_emu_device *device, const struct ggml_tensor *ids,
                              int64_t n_experts);

/* Forgets all routing processes, so that they begin anew. */
void ats_emu_reset_routing(void);

#endif
