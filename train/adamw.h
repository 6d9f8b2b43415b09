/* AdamW (Loshchilov and Hutter, "Decoupled Weight Decay Regularization", 2019) with the gradient's
 * norm clipped (Pascanu et al., 2013).
 *
 * The rate rises linearly, stays, and falls linearly to 0 over the last steps: as good as a cosine
 * (Haegele et al., "Scaling Laws and Compute-Optimal Training Beyond Fixed Training Durations",
 * 2024), and until the fall begins the length of a run is open. */
#ifndef ATS_TRAIN_ADAMW_H
#define ATS_TRAIN_ADAMW_H

#include "pool.h"

#include <stddef.h>
#include <stdint.h>

struct adamw {
    float peak_rate;
    float beta1, beta2; /* memory of the mean and of the mean square */
    float epsilon;
    float decay; /* of matrices; gains are not decayed */
    float clip;  /* largest norm of the gradient */
    uint32_t warm_up_steps;
    uint32_t steps;      /* in all */
    uint32_t fall_steps; /* the last of them, over which the rate falls */
};

/* The rate of step `step`, from 0. */
float adamw_rate(const struct adamw *options, size_t step);

/* Norm of all gradients. The same for any number of threads. */
double adamw_norm(struct pool *pool, const float *grads, size_t n);

/* One step on parameters [first, first + n), which decay or do not. */
void adamw_step(struct pool *pool, const struct adamw *options, size_t step, double norm,
                float decay, size_t n, const float *grads, float *params, float *mean,
                float *square);

#endif
