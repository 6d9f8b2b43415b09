/* What the tests of timed mode share: devices with round rates, and repeating a
 * run that the emulation's own clock calls late. Include it after cmocka.h. */
#ifndef ATS_TESTS_TIMED_H
#define ATS_TESTS_TIMED_H

#include "emu/backend.h"
#include "emu/contents.h"
#include "emu/device.h"
#include "emu/emu.h"
#include "emu/report.h"
#include "emu/timed.h"

#include <dlfcn.h>
#include <ggml-alloc.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* A busy machine makes runs late; one of so many should not be. */
enum { TIMED_TRIES = 100, TIMED_PAUSE_US = 20000 };

/* Group setup: loads ggml's backends from the folder of the ggml that the test is linked with, and
 * binds the library's calls to it. */
static inline int timed_load_ggml(void **state)
{
    (void)state;
    void (*load_all)(void) = ggml_backend_load_all;
    void *address;
    memcpy(&address, &load_all, sizeof(address));
    Dl_info info;
    if (dladdr(address, &info) == 0) {
        return -1;
    }
    char directory[4096];
    const char *slash = strrchr(info.dli_fname, '/');
    snprintf(directory, sizeof(directory), "%.*s", (int)(slash - info.dli_fname), info.dli_fname);
    ggml_backend_load_all_from_path(directory);
    struct ats_error err = {""};
    int (*caller)(void **) = timed_load_ggml;
    memcpy(&address, &caller, sizeof(address));
    if (!ats_ggml_bind(address, &err)) {
        print_error("%s\n", err.text);
        return -1;
    }
    return 0;
}

/* GB/s: weights 4, pinned copies 2 in and 1 out, pageable 0.5, memory 3 of which the CPU takes 2
 * with one thread. us: launch 50, copy latency 100. Slow enough for a virtual machine. */
static inline struct ats_device_rates timed_rates(void)
{
    return (struct ats_device_rates){
        .vram_gbps = {4, 4, 4, 4, 4},
        .matmul_tflops = {1, 1, 1, 1, 1},
        .matmul_half_batch = 0,
        .small_op_gbps = 2,
        .attention_efficiency = 0.5,
        .launch_us = 50,
        .h2d_gbps = 2,
        .d2h_gbps = 1,
        .pageable_gbps = 0.5,
        .copy_latency_us = 100,
        .copy_engines = 1,
        .dram_limit_gbps = 3,
        .cpu_gbps = 2,
        .cpu_threads = 1,
    };
}

static inline struct ats_emu_device *timed_device(const struct ats_device_rates *rates)
{
    struct ats_emu_profile profile = ats_emu_profile_default();
    profile.timed = true;
    profile.rates = *rates;
    profile.memory = (size_t)1 << 30;
    profile.seed = 3;
    struct ats_error err = {""};
    struct ats_emu_device *device = ats_emu_device_create(&profile, 0, &err);
    if (device == NULL) {
        fail_msg("%s", err.text);
    }
    return device;
}

static inline struct ats_emu_counters timed_counters(struct ats_emu_device *device)
{
    struct ats_emu_counters counters = {.version = ATS_EMU_COUNTERS_VERSION};
    assert_true(ats_emu_counters(&device->dev, &counters));
    return counters;
}

/* Between tries: a thread that has slept is let run sooner. */
static inline void timed_pause(int tries)
{
    if (tries > 0) {
        usleep(TIMED_PAUSE_US);
    }
}

/* What a run is to take. It enters commands and waits for them. */
struct timed_run {
    void (*run)(void *data);
    void *data;
    double expected_us;
};

/* Repeats a run until the emulation's clock was on time, whose measured time then must be within
 * 5 % of what is expected. Fails if no run was on time and within. */
static inline void assert_takes(struct ats_emu_device *device, const struct timed_run *run)
{
    double last_us = 0;
    double last_lag = 0;
    for (int i = 0; i < TIMED_TRIES; i++) {
        timed_pause(i);
        const struct ats_emu_counters before = timed_counters(device);
        const double begin_us = ats_emu_clock_us();
        run->run(run->data);
        last_us = ats_emu_clock_us() - begin_us;
        const struct ats_emu_counters after = timed_counters(device);
        last_lag = (after.lag_us - before.lag_us) / last_us;
        if (last_lag <= ATS_EMU_MAX_LAG / 2) {
            if (fabs(last_us / run->expected_us - 1) <= 0.05) {
                return;
            }
            /* on time by its own account, and yet not as expected: once may be a thread that did
             * not run between entering and waiting */
            printf("try %d: %.0f us instead of %.0f, lag %.3f\n", i, last_us, run->expected_us,
                   last_lag);
        }
    }
    fail_msg("%.0f us instead of %.0f (lag %.3f) in the last of %d tries", last_us,
             run->expected_us, last_lag, TIMED_TRIES);
}

/* A graph's tensors in a device buffer. */
struct timed_graph {
    struct ggml_context *context;
    struct ggml_cgraph *graph;
    ggml_backend_buffer_t buffer;
};

static inline struct timed_graph timed_graph_begin(void)
{
    const struct ggml_init_params params = {.mem_size = (size_t)4 << 20, .no_alloc = true};
    struct timed_graph g = {.context = ggml_init(params)};
    assert_non_null(g.context);
    g.graph = ggml_new_graph(g.context);
    return g;
}

static inline void timed_graph_end(struct timed_graph *g, struct ats_emu_device *device)
{
    g->buffer = ggml_backend_alloc_ctx_tensors_from_buft(g->context, &device->buft);
    assert_non_null(g->buffer);
}

static inline void timed_graph_free(struct timed_graph *g)
{
    ggml_backend_buffer_free(g->buffer);
    ggml_free(g->context);
}

#endif
