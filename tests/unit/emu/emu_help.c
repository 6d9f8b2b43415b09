#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "emu_help.h"

#include <dlfcn.h>
#include <time.h>

uint64_t first_seed(void)
{
    const char *text = getenv("EMU_TEST_SEED");
    if (text != NULL) {
        return strtoull(text, NULL, 0);
    }
    return (uint64_t)time(NULL) * 1000 + (uint64_t)getpid() % 1000;
}

struct ats_emu_device *make_device(size_t memory, uint32_t max_delay_us, int index)
{
    struct ats_emu_profile profile = ats_emu_profile_default();
    profile.memory = memory;
    profile.max_delay_us = max_delay_us;
    profile.seed = first_seed();
    struct ats_error err = {""};
    struct ats_emu_device *device = ats_emu_device_create(&profile, index, &err);
    if (device == NULL) {
        fail_msg("%s", err.text);
    }
    return device;
}

ggml_backend_t make_backend(struct ats_emu_device *device)
{
    ggml_backend_t backend = ggml_backend_dev_init(&device->dev, NULL);
    assert_non_null(backend);
    ats_emu_set_n_threads(backend, TEST_THREADS);
    return backend;
}

void inject(struct ats_emu_device *device, const char *spec)
{
    struct ats_error err = {""};
    if (!ats_emu_inject(&device->dev, spec, &err)) {
        fail_msg("%s", err.text);
    }
}

void assert_no_error(ggml_backend_t backend)
{
    char text[256];
    if (ats_emu_take_error(backend, text, sizeof(text))) {
        fail_msg("%s", text);
    }
}

void assert_error(ggml_backend_t backend, const char *part)
{
    char text[256] = "";
    assert_true(ats_emu_take_error(backend, text, sizeof(text)));
    if (strstr(text, part) == NULL) {
        fail_msg("'%s' does not say '%s'", text, part);
    }
}

struct ggml_context *make_context(void)
{
    const struct ggml_init_params params = {.mem_size = 4 * MIB, .no_alloc = true};
    struct ggml_context *ctx = ggml_init(params);
    assert_non_null(ctx);
    return ctx;
}

struct vector make_vector(ggml_backend_buffer_type_t buft, int64_t n)
{
    struct vector v = {.ctx = make_context()};
    v.tensor = ggml_new_tensor_1d(v.ctx, GGML_TYPE_F32, n);
    v.buffer = ggml_backend_alloc_ctx_tensors_from_buft(v.ctx, buft);
    assert_non_null(v.buffer);
    return v;
}

void free_vector(struct vector *v)
{
    ggml_backend_buffer_free(v->buffer);
    ggml_free(v->ctx);
}

void fill(float *values, size_t n, float value)
{
    for (size_t i = 0; i < n; i++) {
        values[i] = value;
    }
}

void assert_all(const float *values, size_t n, float expected)
{
    for (size_t i = 0; i < n; i++) {
        if (values[i] != expected) {
            fail_msg("element %zu is %g, not %g", i, (double)values[i], (double)expected);
        }
    }
}

void assert_poison(const void *data, size_t size)
{
    for (size_t i = 0; i < size; i++) {
        if (((const uint8_t *)data)[i] != ATS_EMU_POISON) {
            fail_msg("byte %zu is not poison", i);
        }
    }
}

int load_ggml(void **state)
{
    (void)state;
    Dl_info info;
    void *address = NULL;
    void (*load_all)(void) = ggml_backend_load_all;
    memcpy(&address, &load_all, sizeof(address));
    if (dladdr(address, &info) == 0) {
        return -1;
    }
    char directory[4096];
    const char *slash = strrchr(info.dli_fname, '/');
    snprintf(directory, sizeof(directory), "%.*s", (int)(slash - info.dli_fname), info.dli_fname);
    ggml_backend_load_all_from_path(directory);
    struct ats_error err = {""};
    int (*caller)(void **) = load_ggml;
    memcpy(&address, &caller, sizeof(address));
    if (!ats_ggml_bind(address, &err)) {
        print_error("%s\n", err.text);
        return -1;
    }
    return 0;
}
