/* Memory of the emulated accelerator: out of the host's reach, limited, poisoned while fresh, and
 * not given back under a stream that uses it. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "emu/heap.h"
#include "emu_gate.h"
#include "emu_model.h"

#include <signal.h>
#include <stdatomic.h>
#include <sys/wait.h>

static void exit_on_fault(int signal_number)
{
    (void)signal_number;
    _exit(42);
}

static void test_host_cannot_read_device_memory(void **state)
{
    (void)state;
    struct ats_emu_device *device = make_device(16 * MIB, 0, 0);
    struct vector v = make_vector(&device->buft, 16);
    fflush(stdout);
    const pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        struct sigaction action = {.sa_handler = exit_on_fault};
        sigaction(SIGSEGV, &action, NULL);
        _exit(*(volatile const char *)v.tensor->data == 0 ? 0 : 1);
    }
    int status = 0;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 42);
    free_vector(&v);
    ats_emu_device_destroy(device);
}

static void test_memory_is_limited_and_accounted(void **state)
{
    (void)state;
    struct ats_emu_device *device = make_device(16 * MIB, 0, 0);
    device->profile.max_buffer = 12 * MIB;
    size_t available = 0;
    size_t total = 0;
    ggml_backend_dev_memory(&device->dev, &available, &total);
    assert_int_equal(total, 16 * MIB);
    assert_int_equal(available, 16 * MIB);
    assert_null(ggml_backend_buft_alloc_buffer(&device->buft, 12 * MIB + 1));
    assert_null(ggml_backend_buft_alloc_buffer(&device->buft, SIZE_MAX));
    ggml_backend_buffer_t first = ggml_backend_buft_alloc_buffer(&device->buft, 12 * MIB);
    assert_non_null(first);
    assert_null(ggml_backend_buft_alloc_buffer(&device->buft, 4 * MIB + 1));
    ggml_backend_buffer_t second = ggml_backend_buft_alloc_buffer(&device->buft, 4 * MIB);
    assert_non_null(second);
    ggml_backend_dev_memory(&device->dev, &available, &total);
    assert_int_equal(available, 0);
    assert_null(ggml_backend_buft_alloc_buffer(&device->buft, 1));
    ggml_backend_buffer_free(first);
    ggml_backend_buffer_free(second);
    ggml_backend_dev_memory(&device->dev, &available, &total);
    assert_int_equal(available, 16 * MIB);
    ats_emu_device_destroy(device);
}

static void test_fresh_memory_is_poison(void **state)
{
    (void)state;
    enum { N = 3 * 4096 };
    struct ats_emu_device *device = make_device(MIB, 0, 0);
    static float values[N];
    for (int round = 0; round < 3; round++) {
        struct vector v = make_vector(&device->buft, N);
        memset(values, 0, sizeof(values));
        ggml_backend_tensor_get(v.tensor, values, 0, sizeof(values));
        assert_poison(values, sizeof(values));
        fill(values, N, 1.0F);
        ggml_backend_tensor_set(v.tensor, values, 0, sizeof(values));
        ggml_backend_tensor_memset(v.tensor, 0, 0, 4);
        ggml_backend_tensor_get(v.tensor, values, 0, 8);
        assert_true(values[0] == 0.0F && values[1] == 1.0F);
        ggml_backend_buffer_clear(v.buffer, 0);
        ggml_backend_tensor_get(v.tensor, values, 0, sizeof(values));
        assert_all(values, N, 0.0F);
        free_vector(&v);
    }
    ats_emu_device_destroy(device);
}

static void test_large_device_costs_nothing_until_used(void **state)
{
    (void)state;
    struct ats_emu_device *device = make_device((size_t)256 << 30, 0, 0);
    ggml_backend_buffer_t buffer = ggml_backend_buft_alloc_buffer(&device->buft, (size_t)200 << 30);
    assert_non_null(buffer);
    ggml_backend_buffer_free(buffer);
    ats_emu_device_destroy(device);
}

static void test_heap_never_overlaps_and_always_coalesces(void **state)
{
    (void)state;
    enum { LIVE = 64 };
    const uint64_t seed = first_seed();
    print_message("seed %llu\n", (unsigned long long)seed);
    struct ats_rng rng = {seed};
    struct ats_emu_heap heap;
    const size_t size = 1 << 16;
    assert_true(ats_emu_heap_init(&heap, size));
    size_t offsets[LIVE];
    size_t sizes[LIVE] = {0};
    for (int step = 0; step < 20000; step++) {
        const size_t i = ats_rng_below(&rng, LIVE);
        if (sizes[i] > 0) {
            assert_int_equal(ats_emu_heap_free(&heap, offsets[i]), sizes[i]);
            assert_int_equal(ats_emu_heap_free(&heap, offsets[i]), 0);
            sizes[i] = 0;
        } else {
            const size_t wanted = 1 + ats_rng_below(&rng, size / 16);
            const size_t alignment = (size_t)1 << ats_rng_below(&rng, 9);
            if (ats_emu_heap_alloc(&heap, wanted, alignment, &offsets[i])) {
                sizes[i] = wanted;
                assert_int_equal(offsets[i] % alignment, 0);
                assert_true(ats_emu_heap_contains(&heap, offsets[i], wanted));
                assert_false(ats_emu_heap_contains(&heap, offsets[i], wanted + 1));
            }
        }
        for (size_t j = 0; j < LIVE && sizes[i] > 0; j++) {
            assert_true(j == i || sizes[j] == 0 || offsets[j] + sizes[j] <= offsets[i] ||
                        offsets[i] + sizes[i] <= offsets[j]);
        }
        assert_true(ats_emu_heap_valid(&heap));
    }
    for (size_t i = 0; i < LIVE; i++) {
        if (sizes[i] > 0) {
            ats_emu_heap_free(&heap, offsets[i]);
        }
    }
    assert_int_equal(heap.n_blocks, 1);
    assert_false(ats_emu_heap_alloc(&heap, size + 1, 1, &offsets[0]));
    assert_true(ats_emu_heap_alloc(&heap, size, 1, &offsets[0]));
    ats_emu_heap_destroy(&heap);
}

static void test_pinned_ranges(void **state)
{
    (void)state;
    static char memory[4096];
    assert_true(ats_emu_pinned_register(memory + 1024, 1024));
    assert_false(ats_emu_pinned_register(memory + 1024, 1024));
    assert_false(ats_emu_pinned_register(memory, 1025));
    assert_false(ats_emu_pinned_register(memory + 2047, 10));
    assert_false(ats_emu_pinned_register(NULL, 10));
    assert_false(ats_emu_pinned_register(memory, 0));
    assert_true(ats_emu_pinned_register(memory, 1024));
    assert_true(ats_emu_pinned_contains(memory + 1024, 1024));
    assert_true(ats_emu_pinned_contains(memory + 2047, 1));
    assert_false(ats_emu_pinned_contains(memory + 2048, 1));
    assert_false(ats_emu_pinned_contains(memory + 1025, 1024));
    assert_true(ats_emu_pinned_unregister(memory));
    assert_false(ats_emu_pinned_unregister(memory));
    assert_false(ats_emu_pinned_contains(memory, 1));
    assert_true(ats_emu_pinned_unregister(memory + 1024));
    char *pinned = ats_emu_pinned_alloc(5000);
    assert_non_null(pinned);
    assert_poison(pinned, 5000);
    assert_false(ats_emu_pinned_unregister(pinned));
    ats_emu_pinned_free(pinned);
    assert_false(ats_emu_pinned_contains(pinned, 1));
}

static void test_freeing_a_buffer_waits_for_its_streams(void **state)
{
    (void)state;
    struct ats_emu_device *device = make_device(64 * MIB, 500, 0);
    ggml_backend_t backend = make_backend(device);
    const uint64_t seed = first_seed();
    for (uint64_t i = 0; i < 10; i++) {
        struct vector pinned = make_vector(&device->host_buft, 1000);
        struct vector v = make_vector(&device->buft, 1000);
        struct model model = make_model(seed + i, &device->buft);
        struct ats_rng rng = {seed};
        compute_in_parts(backend, &model, &rng);
        ggml_backend_tensor_set_async(backend, v.tensor, pinned.tensor->data, 0, 4000);
        free_vector(&pinned);
        free_vector(&v);
        free_model(&model);
    }
    assert_no_error(backend);
    ggml_backend_free(backend);
    ats_emu_device_destroy(device);
}

struct freeing {
    struct vector *v;
    atomic_bool done;
    pthread_t thread;
};

static void *freeing_main(void *data)
{
    struct freeing *freeing = data;
    ggml_backend_buffer_free(freeing->v->buffer);
    atomic_store(&freeing->done, true);
    return NULL;
}

static void test_freeing_blocks_while_a_stream_is_busy(void **state)
{
    (void)state;
    struct ats_emu_device *device = make_device(16 * MIB, 0, 0);
    struct vector vectors[2] = {make_vector(&device->buft, 16),
                                make_vector(&device->host_buft, 16)};
    for (int i = 0; i < 2; i++) {
        struct gate gate;
        close_gate(&gate, device);
        struct freeing freeing = {.v = &vectors[i]};
        assert_int_equal(pthread_create(&freeing.thread, NULL, freeing_main, &freeing), 0);
        usleep(30000);
        assert_false(atomic_load(&freeing.done));
        open_gate(&gate);
        pthread_join(freeing.thread, NULL);
        ggml_free(vectors[i].ctx);
        free_gate(&gate);
    }
    ats_emu_device_destroy(device);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_host_cannot_read_device_memory),
        cmocka_unit_test(test_memory_is_limited_and_accounted),
        cmocka_unit_test(test_fresh_memory_is_poison),
        cmocka_unit_test(test_large_device_costs_nothing_until_used),
        cmocka_unit_test(test_heap_never_overlaps_and_always_coalesces),
        cmocka_unit_test(test_pinned_ranges),
        cmocka_unit_test(test_freeing_a_buffer_waits_for_its_streams),
        cmocka_unit_test(test_freeing_blocks_while_a_stream_is_busy),
    };
    return cmocka_run_group_tests_name("emulated accelerator, memory", tests, load_ggml, NULL);
}
