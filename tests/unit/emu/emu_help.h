/* What the tests of the emulated accelerator share: devices made for each test, vectors in their
 * memory, and checks. Include it after cmocka.h. Random tests print their seed; EMU_TEST_SEED
 * repeats one. A check that does not hold fails the test. */
#ifndef ATS_TESTS_EMU_HELP_H
#define ATS_TESTS_EMU_HELP_H

#include "base/rng.h"
#include "emu/backend.h"
#include "emu/device.h"
#include "emu/profile.h"

#include <ggml-alloc.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define MIB ((size_t)1 << 20)

/* Threads per computation: ggml's threads wait by spinning, and the tests run
 * up to eight streams at once. Equal on both sides of a comparison. */
enum { TEST_THREADS = 2 };

/* Loads the backends that lie next to the ggml this test is linked with: the set-up of a group
 * of tests. Returns 0, or -1. */
int load_ggml(void **state);

/* Of this process: EMU_TEST_SEED, or the time. */
uint64_t first_seed(void);

/* A device of that memory in bytes; destroy it with ats_emu_device_destroy. */
struct ats_emu_device *make_device(size_t memory, uint32_t max_delay_us, int index);

ggml_backend_t make_backend(struct ats_emu_device *device);

/* Sets the failures of the device, see emu/emu.h. */
void inject(struct ats_emu_device *device, const char *spec);

/* Whether an error is latched, and that its text has `part`; takes it. */
void assert_no_error(ggml_backend_t backend);
void assert_error(ggml_backend_t backend, const char *part);

/* Without memory for tensors. */
struct ggml_context *make_context(void);

/* One f32 vector in its own buffer. */
struct vector {
    struct ggml_context *ctx;
    ggml_backend_buffer_t buffer;
    struct ggml_tensor *tensor;
};

struct vector make_vector(ggml_backend_buffer_type_t buft, int64_t n);
void free_vector(struct vector *v);

/* Host memory: all of one value, and the bytes that fresh device memory holds. */
void fill(float *values, size_t n, float value);
void assert_all(const float *values, size_t n, float expected);
void assert_poison(const void *data, size_t size);

#endif
