/* Random graphs for the tests of the emulated accelerator, and the same on the CPU backend.
 * Include it after cmocka.h. */
#ifndef ATS_TESTS_EMU_MODEL_H
#define ATS_TESTS_EMU_MODEL_H

#include "emu_help.h"

/* The same seed gives the same graph and the same data on any buffer type. */
struct model {
    struct ggml_context *ctx;
    struct ggml_context *ctx_graph;
    ggml_backend_buffer_t buffer;
    struct ggml_cgraph *graph;
};

struct model make_model(uint64_t seed, ggml_backend_buffer_type_t buft);
void free_model(struct model *model);

/* The nodes [from, to) of a graph, with its use counts, as ggml_graph_view gives them. */
struct ggml_cgraph graph_part(const struct ggml_cgraph *graph, int from, int to);

/* Byte by byte, all nodes that are written. */
void assert_same_results(const struct model *a, const struct model *b, uint64_t seed);

/* The model of that seed, computed by the CPU backend. */
struct model cpu_reference(uint64_t seed);

/* Enqueues the whole graph in parts from a copy that is destroyed right away. */
void compute_in_parts(ggml_backend_t backend, const struct model *model, struct ats_rng *rng);

#endif
