/* A training run: what it was started with, how far it is, and its file.
 *
 * The file is written whole and replaces the last one at once, so a run that is interrupted goes
 * on from its last checkpoint with the same numbers as if it had not been. It is in this
 * machine's byte order. */
#ifndef ATS_TRAIN_RUN_H
#define ATS_TRAIN_RUN_H

#include "adamw.h"
#include "net.h"

#include "base/error.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct run_point { /* of the loss curve, in nats per token */
    uint32_t step;
    float loss;     /* mean over the steps since the last point */
    float held_out; /* negative: not measured at this step */
};

enum { RUN_POINT_STEPS = 10, RUN_MAX_POINTS = 1 << 20 };

/* What decides the numbers of a run. */
struct run_options {
    struct net_shape shape;
    struct adamw adamw;
    uint32_t windows; /* per step */
    uint64_t seed;
    uint64_t text; /* fingerprint of the training text's tokens */
};

struct run {
    struct run_options options;
    size_t step; /* steps done */
    size_t n_params;
    float *params; /* these three have n_params floats each; owned */
    float *mean;
    float *square;
    size_t n_points;
    struct run_point *points; /* owned */
};

/* A new run with random weights. */
bool run_new(struct run *run, const struct run_options *options, struct ats_error *err);

/* Appends a point to the curve. */
bool run_add_point(struct run *run, struct run_point point, struct ats_error *err);

bool run_save(const struct run *run, const char *path, struct ats_error *err);
bool run_load(struct run *run, const char *path, struct ats_error *err);

/* Lets a run go on with the options given now. They must be those it was started with, but for the
 * number of steps, which may change as long as the rate has not begun to fall. Otherwise false,
 * with an error that says what differs. */
bool run_continue(struct run *run, const struct run_options *given, struct ats_error *err);

void run_free(struct run *run);

#endif
