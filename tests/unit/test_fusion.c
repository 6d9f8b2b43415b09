/* Fusion survives the splitting.
 *
 * ggml's backends fuse RMS_NORM with the MUL behind it if the norm has exactly one use in the
 * graph's counts. The test looks at the graphs that the accelerator is given, asks ggml's own
 * ggml_can_fuse about each such pair, and compares with what is known of how the graph was
 * built: pairs with one use fuse whenever both are in the same split, a norm that is read
 * twice never does. */
#include "backend/stream.h"
#include "emu/emu.h"
#include "linked_graph.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { N_LAYERS = 24, WIDTH = 32 };

static int pairs_in_one_split;
static int pairs_fused;
static int twice_read_fused;
static int twice_read_seen;

static enum ggml_status look(ggml_backend_t backend, struct ggml_cgraph *graph)
{
    static const enum ggml_op ops[] = {GGML_OP_RMS_NORM, GGML_OP_MUL};
    (void)backend;
    for (int i = 0; i + 1 < graph->n_nodes; i++) {
        if (graph->nodes[i]->op != GGML_OP_RMS_NORM || graph->nodes[i + 1]->op != GGML_OP_MUL) {
            continue;
        }
        const bool fuses = ggml_can_fuse(graph, i, ops, 2);
        if (strstr(graph->nodes[i]->name, "twice") != NULL) {
            twice_read_seen++;
            twice_read_fused += fuses;
        } else {
            pairs_in_one_split++;
            pairs_fused += fuses;
        }
    }
    return GGML_STATUS_SUCCESS;
}

static struct ggml_tensor *weight(struct ggml_context *weights, int layer, int index, int64_t rows)
{
    struct ggml_tensor *w = ggml_new_tensor_2d(weights, GGML_TYPE_F32, WIDTH, rows);
    ggml_format_name(w, "blk.%d.w%d.weight", layer, index);
    return w;
}

static struct ggml_tensor *layer(struct ggml_context *weights, struct ggml_context *graph,
                                 struct ggml_tensor *x, int index)
{
    struct ggml_tensor *norm = ggml_rms_norm(graph, x, 1e-6F);
    struct ggml_tensor *scaled = ggml_mul(graph, norm, weight(weights, index, 0, 1));
    struct ggml_tensor *y = ggml_mul_mat(graph, weight(weights, index, 1, WIDTH), scaled);
    ggml_format_name(norm, "%s-%d", index % 3 == 0 ? "twice" : "once", index);
    return index % 3 == 0 ? ggml_add(graph, y, norm) : ggml_add(graph, y, x);
}

static void run_graph(ggml_backend_dev_t dev)
{
    struct linked_graph g;
    assert_true(linked_graph_begin(&g, 512));
    struct ggml_tensor *x = ggml_new_tensor_2d(g.ops, GGML_TYPE_F32, WIDTH, 2);
    ggml_set_input(x);
    for (int i = 0; i < N_LAYERS; i++) {
        x = layer(g.weights, g.ops, x, i);
    }
    assert_true(linked_graph_end(&g, dev, x));

    ggml_backend_t backend = ggml_backend_dev_init(dev, NULL);
    struct ats_stream *stream = backend->context;
    stream->accel->iface.graph_compute = look;
    assert_true(ats_emu_is_backend(stream->accel)); /* still, and so it can be recorded */
    assert_int_equal(GGML_STATUS_SUCCESS, ggml_backend_graph_compute(backend, g.cgraph));

    ggml_backend_free(backend);
    linked_graph_free(&g);
}

/* The placement is read once per process, so it comes by argument. */
static const char *placement;

static void test_fusion(void **state)
{
    (void)state;
    setenv("ATS_EMULATE", "emu-small", 1);
    setenv("ATS_PLACEMENT", placement, 1);
    ggml_backend_dev_t dev = linked_device("ATS0", getenv("ATS_LLAMA_BIN"));
    assert_non_null(dev);
    run_graph(dev);
    printf("%s: %d pairs with one use in one split, %d fuse; %d norms read twice, %d fuse\n",
           placement, pairs_in_one_split, pairs_fused, twice_read_seen, twice_read_fused);
    assert_true(pairs_in_one_split > 0);
    assert_true(twice_read_seen > 0);
    assert_int_equal(pairs_in_one_split, pairs_fused);
    assert_int_equal(0, twice_read_fused);
    if (strcmp(placement, "vram") == 0) {
        assert_int_equal(N_LAYERS - N_LAYERS / 3, pairs_fused);
    }
}

int main(int argc, char **argv)
{
    placement = argc > 1 ? argv[1] : "vram";
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_fusion)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
