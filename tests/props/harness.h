/* What the property tests share: a process per scenario, and checks that explain themselves.
 *
 * The library reads its environment once, when it is loaded, so every scenario runs in a child
 * process of its own with its own environment. A scenario fails if its process ends with
 * anything but 0: by a check, a signal, a sanitizer's report, or by taking too long. ggml's log
 * is kept in memory; a failing check prints the end of it. */
#ifndef ATS_TESTS_HARNESS_H
#define ATS_TESTS_HARNESS_H

#include "unit/seed.h"

#include <ggml-alloc.h>
#include <ggml-backend.h>
#include <ggml-cpu.h>
#include <ggml.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

/* Fails the scenario with a message if `condition` does not hold. */
#define CHECK(condition, ...)                                                                      \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            scenario_fail(__FILE__, __LINE__, #condition, __VA_ARGS__);                            \
        }                                                                                          \
    } while (0)

_Noreturn void scenario_fail(const char *file, int line, const char *what, const char *format, ...)
    __attribute__((format(printf, 4, 5)));

/* Runs `body` in a child process whose environment is that of the tests plus `settings`
 * ("NAME=value NAME=value", or "" for none). Prints why it failed; returns whether it passed. */
bool scenario_run(const char *title, const char *settings, void (*body)(const void *argument),
                  const void *argument);

/* In the child: runs `body` in `n` threads at once, each with its number, and waits for all. */
void scenario_in_threads(size_t n, void (*body)(size_t thread, const void *argument),
                         const void *argument);

/* Whether an injected failure happened in the latest scenario. */
bool scenario_met_failure(void);

/* In the child: loads the CPU backend and the library under test. */
void scenario_load_backends(void);

/* Keeps a line of the log; ggml's is kept from the start. */
void scenario_keep_log(enum ggml_log_level level, const char *text, void *data);

/* What has been logged so far, and how to forget it. */
bool scenario_logged(const char *text);
size_t scenario_logged_errors(void);
void scenario_forget_log(void);

ggml_backend_dev_t device_named(const char *name);

/* Threads of every computation: equal on both sides of a comparison. One under a sanitizer, where
 * ggml's threads would wait for each other by spinning. */
int compute_threads(void);

/* Draws one of `n` things by their weights: weight i is at `first` plus i times `stride` bytes. */
size_t draw_weighted(struct ats_rng *rng, const unsigned *first, size_t stride, size_t n);

/* A backend of the device that computes with compute_threads() threads. */
ggml_backend_t backend_on(ggml_backend_dev_t device);

/* A counter of ATS0: the number behind "name" in its summary (ats_device_summary). */
unsigned long long device_counter(const char *name);

/* Sets the failures of an emulated device, see the library's emu/emu.h. */
void inject(const char *device, const char *spec);

/* True under a sanitizer, which makes everything several times slower. */
bool is_sanitized(void);

/* Whether to run scenario `index` of `n` similar ones: under a sanitizer only two of them, others
 * for each seed. */
bool is_chosen(size_t index, size_t n);

#endif
