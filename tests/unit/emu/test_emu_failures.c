/* Injected failures of the emulated accelerator, and its loss. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "emu_gate.h"
#include "emu_model.h"

static bool always(void *data)
{
    (void)data;
    return true;
}

static void test_injected_allocation_failures(void **state)
{
    (void)state;
    struct ats_emu_device *device = make_device(16 * MIB, 0, 0);
    inject(device, "alloc:2,pinned:1");
    ggml_backend_buffer_t first = ggml_backend_buft_alloc_buffer(&device->buft, 100);
    assert_non_null(first);
    assert_null(ggml_backend_buft_alloc_buffer(&device->buft, 100));
    ggml_backend_buffer_t third = ggml_backend_buft_alloc_buffer(&device->buft, 100);
    assert_non_null(third);
    ggml_backend_buffer_t pageable = ggml_backend_buft_alloc_buffer(&device->host_buft, 100);
    assert_non_null(pageable); /* as CUDA: falls back */
    assert_false(ats_emu_pinned_contains(ggml_backend_buffer_get_base(pageable), 100));
    inject(device, "alloc:1+");
    for (int i = 0; i < 3; i++) {
        assert_null(ggml_backend_buft_alloc_buffer(&device->buft, 100));
    }
    inject(device, "off");
    ggml_backend_buffer_free(first);
    ggml_backend_buffer_free(third);
    ggml_backend_buffer_free(pageable);
    ats_emu_device_destroy(device);
}

static void test_injected_copy_failures(void **state)
{
    (void)state;
    enum { N = 16 };
    struct ats_emu_device *device = make_device(16 * MIB, 50, 0);
    ggml_backend_t backend = make_backend(device);
    ggml_backend_t other = make_backend(device);
    struct model model = make_model(3, &device->buft);
    struct vector v = make_vector(&device->buft, N);
    struct vector w = make_vector(&device->buft, N);
    float values[N];
    fill(values, N, 1.0F);

    inject(device, "copy:1");
    ggml_backend_tensor_set_async(backend, v.tensor, values, 0, sizeof(values));
    ggml_backend_synchronize(backend);
    assert_int_equal(ggml_backend_graph_compute_async(backend, model.graph), GGML_STATUS_FAILED);
    ggml_backend_tensor_get_async(backend, v.tensor, values, 0, sizeof(values));
    assert_poison(values, sizeof(values)); /* not executed while an error is latched */
    assert_error(backend, "injected failure of a copy");
    assert_no_error(backend);
    assert_int_equal(ggml_backend_graph_compute_async(backend, model.graph), GGML_STATUS_SUCCESS);
    ggml_backend_synchronize(backend);
    assert_no_error(backend);

    inject(device, "copy:1"); /* on a buffer: reported by any stream of the device */
    fill(values, N, 1.0F);
    ggml_backend_tensor_set(v.tensor, values, 0, sizeof(values));
    assert_int_equal(ggml_backend_graph_compute_async(other, model.graph), GGML_STATUS_FAILED);
    assert_error(other, "injected failure of a copy");

    inject(device, "copy:1"); /* between streams: both know */
    ggml_backend_tensor_copy_async(backend, other, v.tensor, w.tensor);
    ggml_backend_synchronize(other);
    assert_error(other, "did not arrive");
    assert_error(backend, "injected failure of a copy");

    free_vector(&v);
    free_vector(&w);
    free_model(&model);
    ggml_backend_free(backend);
    ggml_backend_free(other);
    ats_emu_device_destroy(device);
}

static void test_injected_compute_failures(void **state)
{
    (void)state;
    struct ats_emu_device *device = make_device(16 * MIB, 50, 0);
    ggml_backend_t backend = make_backend(device);
    ggml_backend_t other = make_backend(device);
    struct model model = make_model(3, &device->buft);
    inject(device, "compute:2");
    assert_int_equal(ggml_backend_graph_compute_async(backend, model.graph), GGML_STATUS_SUCCESS);
    assert_int_equal(ggml_backend_graph_compute_async(backend, model.graph), GGML_STATUS_SUCCESS);
    ggml_backend_synchronize(backend);
    assert_int_equal(ggml_backend_graph_compute_async(backend, model.graph), GGML_STATUS_FAILED);
    assert_int_equal(ggml_backend_graph_compute_async(other, model.graph), GGML_STATUS_SUCCESS);
    ggml_backend_synchronize(other);
    assert_error(backend, "injected failure of a compute");
    assert_int_equal(ggml_backend_graph_compute_async(backend, model.graph), GGML_STATUS_SUCCESS);
    ggml_backend_synchronize(backend);
    assert_no_error(backend);
    assert_no_error(other);
    ats_emu_set_abort_callback(backend, always, NULL); /* a waiting caller gets the status itself */
    inject(device, "compute:1");
    assert_int_equal(ggml_backend_graph_compute_async(backend, model.graph), GGML_STATUS_FAILED);
    assert_error(backend, "injected failure of a compute");
    free_model(&model);
    ggml_backend_free(backend);
    ggml_backend_free(other);
    ats_emu_device_destroy(device);
}

/* The device goes away at each command in turn; nothing may hang or crash. */
static void test_device_loss(void **state)
{
    (void)state;
    enum { N = 256 };
    for (int at = 1; at <= 8; at++) {
        struct ats_emu_device *device = make_device(16 * MIB, 200, 0);
        ggml_backend_t streams[2] = {make_backend(device), make_backend(device)};
        ggml_backend_event_t event = ggml_backend_event_new(&device->dev);
        struct model model = make_model(3, &device->buft);
        struct vector v = make_vector(&device->buft, N);
        struct vector pinned = make_vector(&device->host_buft, N);
        char spec[24];
        snprintf(spec, sizeof(spec), "loss:%d", at);
        inject(device, spec);
        float values[N] = {0};
        for (int i = 0; i < 4; i++) {
            ggml_backend_t stream = streams[i % 2];
            ggml_backend_event_wait(stream, event);
            ggml_backend_tensor_set_async(stream, v.tensor, values, 0, sizeof(values));
            ggml_backend_graph_compute_async(stream, model.graph);
            ggml_backend_tensor_copy_async(stream, streams[(i + 1) % 2], v.tensor, v.tensor);
            ggml_backend_tensor_get_async(stream, v.tensor, pinned.tensor->data, 0, 16);
            ggml_backend_event_record(event, stream);
        }
        ggml_backend_event_synchronize(event);
        ggml_backend_synchronize(streams[0]);
        ggml_backend_synchronize(streams[1]);
        assert_true(atomic_load(&device->lost));
        ggml_backend_tensor_get_async(streams[0], v.tensor, values, 0, sizeof(values));
        assert_poison(values, sizeof(values));
        memset(values, 0, sizeof(values));
        ggml_backend_tensor_get(v.tensor, values, 0, sizeof(values));
        assert_poison(values, sizeof(values));
        assert_int_equal(ggml_backend_graph_compute_async(streams[1], model.graph),
                         GGML_STATUS_FAILED);
        assert_error(streams[0], "lost");
        assert_error(streams[0], "lost"); /* for good */
        assert_error(streams[1], "lost");
        assert_null(ggml_backend_dev_init(&device->dev, NULL));
        assert_null(ggml_backend_buft_alloc_buffer(&device->buft, 100));
        free_vector(&v);
        free_vector(&pinned);
        free_model(&model);
        ggml_backend_event_free(event);
        ggml_backend_free(streams[0]);
        ggml_backend_free(streams[1]);
        ats_emu_device_destroy(device);
    }
}

static void test_loss_stops_a_running_graph(void **state)
{
    (void)state;
    struct ats_emu_device *device = make_device(16 * MIB, 0, 0);
    ggml_backend_t backend = make_backend(device);
    struct vector v = make_vector(&device->buft, 16);
    struct gate gate;
    close_gate(&gate, device);
    inject(device, "loss:1");
    ggml_backend_tensor_memset(v.tensor, 0, 0, 4);
    float value = 0.0F;
    ggml_backend_tensor_get_async(backend, v.tensor, &value, 0, sizeof(value));
    assert_poison(&value, sizeof(value));
    open_gate(&gate);
    assert_int_equal(gate.status, GGML_STATUS_FAILED);
    free_gate(&gate);
    free_vector(&v);
    ggml_backend_free(backend);
    ats_emu_device_destroy(device);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_injected_allocation_failures),
        cmocka_unit_test(test_injected_copy_failures),
        cmocka_unit_test(test_injected_compute_failures),
        cmocka_unit_test(test_device_loss),
        cmocka_unit_test(test_loss_stops_a_running_graph),
    };
    return cmocka_run_group_tests_name("emulated accelerator, failures", tests, load_ggml, NULL);
}
