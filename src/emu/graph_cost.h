/* The time of a graph on an emulated device: each node described for the cost
 * model (cost/cost.h), kernels put together as in fusion.h. */
#ifndef ATS_EMU_GRAPH_COST_H
#define ATS_EMU_GRAPH_COST_H

#include "bind/ggml_bind.h"
#include "cost/timeline.h"
#include "emu/device.h"

/* Appends a graph's kernels to a stream's order, one call per stretch of them. */
struct ats_emu_graph_sink {
    void *context;
    void (*compute)(void *context, double us, unsigned launches);
    /* a copy kernel, or one that reads its operands from pinned memory */
    void (*transfer)(void *context, enum ats_timeline_direction direction, double bytes);
};

/* Walks the graph in order: makes the contents that are stored (contents.h) and
 * calls the sink. Fails if a tensor is neither in the device's address range
 * nor in pinned memory, or an operator is not supported; then nothing else is
 * called. */
bool ats_emu_graph_cost(struct ats_emu_device *device, const struct ggml_cgraph *graph,
                        const struct ats_emu_graph_sink *sink, struct ats_error *err);

/* Describes one node; `first` and `n` are its kernel's nodes, of which `visible` (bits) are
 * seen by others: what passes between them is not read or written. */
struct ats_op_shape ats_emu_node_shape(struct ats_emu_device *device,
                                       const struct ggml_cgraph *graph, int node, int first, int n,
                                       uint32_t visible);

#endif
