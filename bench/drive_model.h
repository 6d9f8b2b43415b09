/* The model and the context of a run, on the device that its options name.
 *
 * What cannot be had ends the process with a message. */
#ifndef BENCH_DRIVE_MODEL_H
#define BENCH_DRIVE_MODEL_H

#include "drive_options.h"

#include "ggml-backend.h"
#include "llama.h"

/* Loads ggml's backends and starts llama.cpp, whose log goes to stderr: warnings and errors, or all
 * of it. */
void drive_start(const struct drive_options *options);

/* NULL: the CPU. */
ggml_backend_dev_t drive_device(const struct drive_options *options);

/* Both are the caller's, who frees them by llama.cpp's functions. `device` as above. */
struct llama_model *drive_load(const struct drive_options *options, ggml_backend_dev_t device);
struct llama_context *drive_context(const struct drive_options *options, struct llama_model *model);

#endif
