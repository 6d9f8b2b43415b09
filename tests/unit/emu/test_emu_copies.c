/* Copies to, from and between emulated accelerators: when the source is read, and what arrives. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "emu_gate.h"

static void test_pageable_is_staged_and_pinned_is_read_late(void **state)
{
    (void)state;
    enum { N = 1000 };
    struct ats_emu_device *device = make_device(16 * MIB, 0, 0);
    ggml_backend_t backend = make_backend(device);
    struct vector from_pageable = make_vector(&device->buft, N);
    struct vector from_pinned = make_vector(&device->buft, N);
    struct vector pinned = make_vector(&device->host_buft, N);
    struct vector target = make_vector(&device->host_buft, N);
    assert_true(ggml_backend_buft_is_host(&device->host_buft));
    float *source = pinned.tensor->data;
    float pageable[N];
    fill(pageable, N, 1.0F);
    fill(source, N, 1.0F);
    fill(target.tensor->data, N, 0.0F);

    struct gate gate;
    close_gate(&gate, device);
    ggml_backend_event_wait(backend, gate.event);
    ggml_backend_tensor_set_async(backend, from_pageable.tensor, pageable, 0, sizeof(pageable));
    ggml_backend_tensor_set_async(backend, from_pinned.tensor, source, 0, sizeof(pageable));
    ggml_backend_tensor_get_async(backend, from_pageable.tensor, target.tensor->data, 0,
                                  sizeof(pageable));
    fill(pageable, N, 2.0F);
    fill(source, N, 2.0F);
    assert_all(target.tensor->data, N, 0.0F); /* nothing has been executed */
    open_gate(&gate);
    ggml_backend_synchronize(backend);
    assert_no_error(backend);
    assert_all(target.tensor->data, N, 1.0F);
    ggml_backend_tensor_get(from_pinned.tensor, pageable, 0, sizeof(pageable));
    assert_all(pageable, N, 2.0F);
    fill(pageable, N, 0.0F);
    ggml_backend_tensor_get_async(backend, from_pageable.tensor, pageable, 0, sizeof(pageable));
    assert_all(pageable, N, 1.0F); /* pageable: done on return */

    free_gate(&gate);
    free_vector(&from_pageable);
    free_vector(&from_pinned);
    free_vector(&pinned);
    free_vector(&target);
    ggml_backend_free(backend);
    ats_emu_device_destroy(device);
}

static void test_2d_copies(void **state)
{
    (void)state;
    struct ats_emu_device *device = make_device(16 * MIB, 50, 0);
    ggml_backend_t backend = make_backend(device);
    struct vector v = make_vector(&device->buft, 12);
    const float in[9] = {1, 2, 99, 3, 4, 99, 5, 6, 99};
    float out[6] = {0};
    for (int async = 0; async < 2; async++) {
        ggml_backend_buffer_clear(v.buffer, 0);
        if (async) {
            ggml_backend_tensor_set_2d_async(backend, v.tensor, in, 4, 8, 3, 16, 12);
            ggml_backend_tensor_get_2d_async(backend, v.tensor, out, 4, 8, 3, 16, 8);
        } else {
            ggml_backend_tensor_set_2d(v.tensor, in, 4, 8, 3, 16, 12);
            ggml_backend_tensor_get_2d(v.tensor, out, 4, 8, 3, 16, 8);
        }
        for (int i = 0; i < 6; i++) {
            assert_true(out[i] == (float)(i + 1));
        }
        float all[12];
        ggml_backend_tensor_get(v.tensor, all, 0, sizeof(all));
        assert_true(all[0] == 0.0F && all[3] == 0.0F && all[4] == 0.0F && all[7] == 0.0F);
    }
    assert_no_error(backend);
    free_vector(&v);
    ggml_backend_free(backend);
    ats_emu_device_destroy(device);
}

static void test_large_pageable_source(void **state)
{
    (void)state;
    const size_t n = 5 * MIB; /* floats: beyond what is staged */
    struct ats_emu_device *device = make_device(64 * MIB, 50, 0);
    ggml_backend_t backend = make_backend(device);
    struct vector v = make_vector(&device->buft, (int64_t)n);
    float *values = malloc(n * sizeof(float));
    assert_non_null(values);
    fill(values, n, 3.0F);
    ggml_backend_tensor_set_async(backend, v.tensor, values, 0, n * sizeof(float));
    fill(values, n, 4.0F);
    ggml_backend_tensor_get_async(backend, v.tensor, values, 0, n * sizeof(float));
    assert_all(values, n, 3.0F);
    free(values);
    free_vector(&v);
    ggml_backend_free(backend);
    ats_emu_device_destroy(device);
}

static void test_copies_between_devices(void **state)
{
    (void)state;
    enum { N = 5000 };
    struct ats_emu_device *devices[2] = {make_device(16 * MIB, 200, 0),
                                         make_device(16 * MIB, 200, 1)};
    ggml_backend_t streams[3] = {make_backend(devices[0]), make_backend(devices[1]),
                                 make_backend(devices[0])};
    struct vector a = make_vector(&devices[0]->buft, N);
    struct vector b = make_vector(&devices[1]->buft, N);
    struct vector c = make_vector(&devices[0]->buft, N);
    float values[N];
    for (int round = 0; round < 20; round++) {
        fill(values, N, (float)round);
        ggml_backend_tensor_set_async(streams[0], a.tensor, values, 0, sizeof(values));
        ggml_backend_tensor_copy_async(streams[0], streams[1], a.tensor, b.tensor);
        ggml_backend_tensor_copy_async(streams[1], streams[2], b.tensor, c.tensor);
        ggml_backend_tensor_get_async(streams[2], c.tensor, values, 0, sizeof(values));
        assert_all(values, N, (float)round);
    }
    ggml_backend_buffer_clear(b.buffer, 0);
    ggml_backend_tensor_copy(c.tensor, b.tensor);
    ggml_backend_tensor_get(b.tensor, values, 0, sizeof(values));
    assert_all(values, N, 19.0F);
    ggml_backend_tensor_set_async(streams[0], b.tensor, values, 0, 4); /* another device's */
    assert_error(streams[0], "illegal address");
    assert_no_error(streams[1]);
    for (int i = 0; i < 3; i++) {
        ggml_backend_free(streams[i]);
    }
    free_vector(&a);
    free_vector(&b);
    free_vector(&c);
    ats_emu_device_destroy(devices[0]);
    ats_emu_device_destroy(devices[1]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_pageable_is_staged_and_pinned_is_read_late),
        cmocka_unit_test(test_2d_copies),
        cmocka_unit_test(test_large_pageable_source),
        cmocka_unit_test(test_copies_between_devices),
    };
    return cmocka_run_group_tests_name("emulated accelerator, copies", tests, load_ggml, NULL);
}
