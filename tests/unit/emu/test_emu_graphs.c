/* Graphs on the emulated accelerator: the CPU backend's results, independence of the caller once
 * enqueued, and what is refused. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "emu_model.h"

static void test_results_equal_the_cpu_backends(void **state)
{
    (void)state;
    const uint64_t seed = first_seed();
    print_message("seed %llu\n", (unsigned long long)seed);
    struct ats_emu_device *device = make_device(64 * MIB, 100, 0);
    ggml_backend_t backend = make_backend(device);
    for (uint64_t i = 0; i < 40; i++) {
        struct ats_rng rng = {seed + i};
        struct model expected = cpu_reference(seed + i);
        struct model model = make_model(seed + i, &device->buft);
        compute_in_parts(backend, &model, &rng);
        ggml_backend_synchronize(backend);
        assert_no_error(backend);
        assert_same_results(&expected, &model, seed + i);
        free_model(&model);
        free_model(&expected);
    }
    ggml_backend_free(backend);
    ats_emu_device_destroy(device);
}

/* The caller overwrites its tensors right after the call; the copy must not notice. */
static void test_graph_is_independent_after_enqueue(void **state)
{
    (void)state;
    const uint64_t seed = first_seed();
    struct ats_emu_device *device = make_device(64 * MIB, 3000, 0);
    ggml_backend_t backend = make_backend(device);
    for (uint64_t i = 0; i < 5; i++) {
        struct model expected = cpu_reference(seed + i);
        struct model model = make_model(seed + i, &device->buft);
        struct ggml_tensor *saved = malloc((size_t)model.graph->n_nodes * sizeof(saved[0]));
        assert_non_null(saved);
        assert_int_equal(ggml_backend_graph_compute_async(backend, model.graph),
                         GGML_STATUS_SUCCESS);
        for (int n = 0; n < model.graph->n_nodes; n++) {
            saved[n] = *model.graph->nodes[n];
            memset(model.graph->nodes[n], 0x5A, sizeof(saved[n]));
        }
        ggml_backend_synchronize(backend);
        for (int n = 0; n < model.graph->n_nodes; n++) {
            *model.graph->nodes[n] = saved[n];
        }
        free(saved);
        assert_same_results(&expected, &model, seed + i);
        free_model(&model);
        free_model(&expected);
    }
    ggml_backend_free(backend);
    ats_emu_device_destroy(device);
}

/* What ggml decides fusion by is the same for the copy as for the original, also in parts. */
static void test_copies_keep_use_counts_and_views(void **state)
{
    (void)state;
    struct ats_emu_device *device = make_device(64 * MIB, 0, 0);
    struct ats_emu_cloner cloner;
    ats_emu_cloner_init(&cloner);
    const uint64_t seed = first_seed();
    int n_fused = 0;
    for (uint64_t i = 0; i < 30; i++) {
        struct ats_rng rng = {seed + i};
        struct model model = make_model(seed + i, &device->buft);
        const int n_nodes = model.graph->n_nodes;
        const int from = (int)ats_rng_below(&rng, (uint64_t)n_nodes);
        struct ggml_cgraph part = graph_part(model.graph, from, n_nodes);
        struct ats_error err = {""};
        struct ats_emu_graph *copy = ats_emu_clone(&cloner, device, &part, &err);
        assert_non_null(copy);
        static const enum ggml_op ops[] = {GGML_OP_RMS_NORM, GGML_OP_MUL};
        for (int n = 0; n < part.n_nodes; n++) {
            assert_int_equal(ggml_node_get_use_count(&part, n),
                             ggml_node_get_use_count(&copy->cgraph, n));
            const bool fused = ggml_can_fuse(&part, n, ops, 2);
            assert_int_equal(fused, ggml_can_fuse(&copy->cgraph, n, ops, 2));
            n_fused += fused;
            const struct ggml_tensor *x = part.nodes[n];
            const struct ggml_tensor *y = copy->cgraph.nodes[n];
            assert_int_equal(x->view_src == NULL, y->view_src == NULL);
            assert_true(y->view_src == NULL ||
                        (uint8_t *)y->data == (uint8_t *)y->view_src->data + y->view_offs);
        }
        ats_emu_clone_release(&cloner, copy);
        free_model(&model);
    }
    assert_true(n_fused > 0);
    ats_emu_cloner_destroy(&cloner);
    ats_emu_device_destroy(device);
}

static void custom_op(struct ggml_tensor *dst, int ith, int nth, void *data)
{
    (void)dst, (void)ith, (void)nth, (void)data;
}

static void test_foreign_tensors_and_host_functions_are_refused(void **state)
{
    (void)state;
    struct ats_emu_device *device = make_device(16 * MIB, 0, 0);
    ggml_backend_t backend = make_backend(device);
    ggml_backend_buffer_type_t cpu = ggml_backend_dev_buffer_type(ats_emu_cpu_device());
    struct model on_cpu = make_model(1, cpu);
    assert_int_equal(ggml_backend_graph_compute_async(backend, on_cpu.graph), GGML_STATUS_FAILED);
    assert_no_error(backend);
    struct model pinned = make_model(1, &device->host_buft);
    struct model expected = cpu_reference(1);
    assert_int_equal(ggml_backend_graph_compute_async(backend, pinned.graph), GGML_STATUS_SUCCESS);
    ggml_backend_synchronize(backend);
    assert_same_results(&expected, &pinned, 1);

    struct model custom = {.ctx = make_context()};
    struct ggml_tensor *op =
        ggml_custom_4d(custom.ctx, GGML_TYPE_F32, 4, 1, 1, 1, NULL, 0, custom_op, 1, NULL);
    custom.graph = ggml_new_graph(custom.ctx);
    ggml_build_forward_expand(custom.graph, op);
    custom.buffer = ggml_backend_alloc_ctx_tensors_from_buft(custom.ctx, &device->buft);
    assert_false(ggml_backend_dev_supports_op(&device->dev, op));
    assert_int_equal(ggml_backend_graph_compute_async(backend, custom.graph), GGML_STATUS_FAILED);

    /* memory that was given back */
    struct model stale = make_model(1, &device->buft);
    ggml_backend_buffer_free(stale.buffer);
    assert_int_equal(ggml_backend_graph_compute_async(backend, stale.graph), GGML_STATUS_FAILED);
    ggml_free(stale.ctx);

    free_model(&custom);
    free_model(&on_cpu);
    free_model(&pinned);
    free_model(&expected);
    ggml_backend_free(backend);
    ats_emu_device_destroy(device);
}

static bool always(void *data)
{
    (void)data;
    return true;
}

static void test_abort_is_a_status_and_not_a_failure(void **state)
{
    (void)state;
    struct ats_emu_device *device = make_device(16 * MIB, 0, 0);
    ggml_backend_t backend = make_backend(device);
    struct model model = make_model(7, &device->buft);
    struct model expected = cpu_reference(7);
    ats_emu_set_abort_callback(backend, always, NULL);
    assert_int_equal(ggml_backend_graph_compute_async(backend, model.graph), GGML_STATUS_ABORTED);
    assert_no_error(backend);
    free_model(&model);
    model = make_model(7, &device->buft);
    ats_emu_set_abort_callback(backend, NULL, NULL);
    ats_emu_set_n_threads(backend, 2);
    assert_int_equal(ggml_backend_graph_compute_async(backend, model.graph), GGML_STATUS_SUCCESS);
    ggml_backend_synchronize(backend);
    assert_no_error(backend);
    assert_same_results(&expected, &model, 7);
    free_model(&model);
    free_model(&expected);
    ggml_backend_free(backend);
    ats_emu_device_destroy(device);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_results_equal_the_cpu_backends),
        cmocka_unit_test(test_graph_is_independent_after_enqueue),
        cmocka_unit_test(test_copies_keep_use_counts_and_views),
        cmocka_unit_test(test_foreign_tensors_and_host_functions_are_refused),
        cmocka_unit_test(test_abort_is_a_status_and_not_a_failure),
    };
    return cmocka_run_group_tests_name("emulated accelerator, graphs", tests, load_ggml, NULL);
}
