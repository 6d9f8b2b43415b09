/* Which neighbouring operators a GPU backend of ggml computes with one kernel,
 * for the number of launches that a graph takes.
 *
 * Modelled on what ggml-cuda fuses (llama.cpp v0.5.0): norm with scale, bias
 * and rope; rope with the write to the cache; matrix-vector products with their
 * bias, and gate, up and activation together; the selection of experts; chains
 * of additions or products; the weighted sum of experts; activations with the
 * product behind them. Like there, an intermediate result is fused away only
 * if all its uses that the graph counts are within the kernel and it is no
 * output of the graph. What the rules ask of layouts and of kernel variants is
 * left out. */
#ifndef ATS_EMU_FUSION_H
#define ATS_EMU_FUSION_H

#include "bind/ggml_bind.h"

/* The number of nodes from `first` on, at least 1, that one kernel computes.
 * Bit i of `visible` is set if node first + i is a result that others see. */
int ats_emu_fused_nodes(const struct ggml_cgraph *graph, int first, uint32_t *visible);

#endif
