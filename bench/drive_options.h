/* The driver's options. */
#ifndef BENCH_DRIVE_OPTIONS_H
#define BENCH_DRIVE_OPTIONS_H

#include "load/phases.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { MAX_PROMPTS = 16, MAX_OVERRIDES = 512 };

/* Texts are the command line's. */
struct drive_options {
    const char *model;
    const char *libraries;
    const char *device;
    const char *load;
    int n_layers; /* on the device; -1: all */
    int n_cpu_moe;
    const char *overrides[MAX_OVERRIDES];
    size_t n_overrides;
    bool no_host;
    bool verbose;
    bool check;
    double cpu_speed;
    double patience_s;
    const char *cap_device;
    uint64_t cap_bytes;
    uint64_t n_ctx;
    uint64_t n_ubatch;
    uint64_t n_threads;
    uint64_t prompts[MAX_PROMPTS];
    size_t n_prompts;
    uint64_t depth;
    uint64_t n_decode;
    uint64_t n_repeat;
    uint64_t seed;
    struct load_phase phases[LOAD_PHASES];
    size_t n_phases;
    uint64_t window;
    const char *cpu_load;
    uint64_t period_ms;
};

/* The options of a command line. On a wrong one, or one that asks for what cannot be, it ends the
 * process with a message. */
struct drive_options drive_options_parse(int argc, char **argv);

#endif
