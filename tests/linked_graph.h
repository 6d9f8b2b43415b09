/* A graph on a device of the library that is linked into the program, for the tests and benchmarks
 * that look inside: two ggml contexts, the weights in a buffer of their own, the rest allocated by
 * ggml's graph allocator, as llama.cpp does it.
 *
 *   ggml_backend_dev_t dev = linked_device("ATS0", NULL);
 *   struct linked_graph g;
 *   linked_graph_begin(&g, 100);
 *   ... build operators in g.ops, with weights in g.weights ...
 *   linked_graph_end(&g, dev, result);
 *   ggml_backend_graph_compute(backend, g.cgraph);
 *   linked_graph_free(&g);
 *
 * Used by one thread. */
#ifndef ATS_TESTS_LINKED_GRAPH_H
#define ATS_TESTS_LINKED_GRAPH_H

#include <ggml-alloc.h>
#include <ggml-backend.h>
#include <ggml.h>
#include <stdbool.h>
#include <stddef.h>

struct linked_graph {
    struct ggml_context *weights;
    struct ggml_context *ops; /* inputs and operators */
    struct ggml_cgraph *cgraph;
    ggml_backend_buffer_t weight_buffer;
    ggml_gallocr_t allocator;
};

/* Loads ggml's backends from `folder` (NULL: where ggml looks by itself) and registers the linked
 * library, once per process. Returns the device of that name, or NULL. */
ggml_backend_dev_t linked_device(const char *name, const char *folder);

/* Makes the contexts, with room for `most_tensors` in each. False: out of memory. */
bool linked_graph_begin(struct linked_graph *g, size_t most_tensors);

/* Makes `output` the graph's result and gives all tensors memory of `dev`; weights are zero.
 * False if the device has none; the graph must be freed all the same. */
bool linked_graph_end(struct linked_graph *g, ggml_backend_dev_t dev, struct ggml_tensor *output);

void linked_graph_free(struct linked_graph *g);

#endif
