/* Random weights straight in their quantised form.
 *
 * Quantising random floats is slow and gives nothing that random quantised blocks do not: speed
 * does not depend on the values. A tensor is written from a pool of some MiB of random blocks that
 * repeats. The pool holds a prime number of blocks, so that rows and experts, which have other
 * numbers of blocks, begin at different places of it and differ. Same seed, same bytes: integer
 * arithmetic and correctly rounded operations only. No state; one thread per call. */
#ifndef ATS_CLI_SYNTH_BLOCKS_H
#define ATS_CLI_SYNTH_BLOCKS_H

#include "base/rng.h"

#include <ggml.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>

/* Whether synth_blocks_fill knows the type: F16, Q8_0, Q5_0, Q5_1, Q4_K, Q5_K, Q6_K, MXFP4. */
bool synth_blocks_known(enum ggml_type type);

/* Fills n_blocks blocks of the type at `data`. As floats their values have mean 0 and a standard
 * deviation of `spread` within a few per cent. */
void synth_blocks_fill(void *data, enum ggml_type type, size_t n_blocks, float spread,
                       struct ats_rng *rng);

/* Writes n_blocks blocks from a pool. False with errno set if the file takes no more. */
bool synth_blocks_write(FILE *file, enum ggml_type type, size_t n_blocks, float spread,
                        struct ats_rng *rng);

#endif
