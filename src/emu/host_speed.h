/* How fast this machine's CPU computes with ggml: what rigs are scaled by.
 *
 * Measured with ggml's CPU backend on plain (not repacked) weights: a
 * matrix-vector product per type family that models are stored in, over more
 * weights than caches hold, and a Q4_K matmul of 512 columns. About half a
 * second; the figures are kept in $XDG_CACHE_HOME/ats (~/.cache/ats) by CPU
 * model, threads and ggml version, so that repeated runs use the same ones.
 *
 * ATS_RIG_MEASURE=1 measures anew. Not thread-safe. */
#ifndef ATS_EMU_HOST_SPEED_H
#define ATS_EMU_HOST_SPEED_H

#include "base/error.h"
#include "bind/ggml_bind.h"
#include "cost/cost.h"

#include <stdbool.h>

struct ats_host_speed {
    char cpu[80]; /* model name as the kernel has it */
    char ggml[32];
    int threads;
    double matvec_gbps[ATS_FAMILIES]; /* of q4, f16 and mxfp4; the others are 0 */
    double matmul_gflops;
    bool cached; /* not measured now */
};

/* One less than the machine has, at least 1: one is the emulation's. */
int ats_host_threads(void);

/* Takes kept figures, or measures and keeps them. `cpu` is ggml's CPU device. */
bool ats_host_speed_get(ggml_backend_dev_t cpu, int threads, struct ats_host_speed *speed,
                        struct ats_error *err);

/* Measures, and keeps nothing. */
bool ats_host_speed_measure(ggml_backend_dev_t cpu, int threads, struct ats_host_speed *speed,
                            struct ats_error *err);

/* Where figures are kept; false if there is no home to keep them in. */
bool ats_host_speed_path(const struct ats_host_speed *speed, char *path, size_t size);

#endif
