/* Measuring: prompts, decoding along the token stream, and decoding under load.
 *
 * A core of a virtual machine may be shared; what it computes is probed before and after all that
 * is measured (docs/benchmark.md). A failure of llama.cpp ends the process with a message. */
#ifndef BENCH_DRIVE_MEASURE_H
#define BENCH_DRIVE_MEASURE_H

#include "drive_options.h"
#include "quiet_core.h"

#include "counters.h"
#include "llama.h"

#include <jansson.h>

/* Borrows all but the results. */
struct drive_run {
    const struct drive_options *options;
    struct llama_context *context;
    struct bench_counters *counters;
    struct quiet_core core;
    int32_t *tokens; /* the stream */
    json_t *tests;   /* results so far */
    json_t *phases;  /* NULL: not asked for */
};

/* Seconds of a clock that does not go back. */
double drive_now_s(void);

/* Measures what the options ask for, after a warm-up, and fills in the results. */
void drive_measure(struct drive_run *run);

#endif
