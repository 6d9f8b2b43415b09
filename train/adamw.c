#include "adamw.h"

#include <math.h>

enum { CHUNK = 1 << 15, MAX_CHUNKS = 1 << 12 };

float adamw_rate(const struct adamw *o, size_t step)
{
    if (step < o->warm_up_steps) {
        return o->peak_rate * (float)(step + 1) / (float)o->warm_up_steps;
    }
    if (step + o->fall_steps < o->steps) {
        return o->peak_rate;
    }
    const size_t left = step < o->steps ? o->steps - step : 0;
    return o->peak_rate * (float)left / (float)(o->fall_steps + 1);
}

struct norm_work {
    const float *grads;
    size_t n;
    size_t chunk;
    double sums[MAX_CHUNKS];
};

static void sum_squares(void *context, size_t job, size_t worker)
{
    (void)worker;
    struct norm_work *w = context;
    const size_t first = job * w->chunk;
    const size_t end = first + w->chunk < w->n ? first + w->chunk : w->n;
    double sum = 0.0;
    for (size_t i = first; i < end; i++) {
        sum += (double)w->grads[i] * (double)w->grads[i];
    }
    w->sums[job] = sum;
}

double adamw_norm(struct pool *pool, const float *grads, size_t n)
{
    struct norm_work w = {.grads = grads, .n = n, .chunk = CHUNK};
    while ((n + w.chunk - 1) / w.chunk > MAX_CHUNKS) {
        w.chunk *= 2;
    }
    const size_t jobs = (n + w.chunk - 1) / w.chunk;
    pool_run(pool, jobs, sum_squares, &w);
    double sum = 0.0;
    for (size_t i = 0; i < jobs; i++) {
        sum += w.sums[i];
    }
    return sqrt(sum);
}

struct step_work {
    size_t n;
    const float *grads;
    float *params, *mean, *square;
    float clip; /* factor of gradients */
    float beta1, beta2;
    float rate;       /* with the correction of the mean's start */
    float correction; /* of the mean square's start, as a factor under the root */
    float epsilon;
    float keep; /* 1 - rate x decay */
};

static void step_chunk(void *context, size_t job, size_t worker)
{
    (void)worker;
    const struct step_work *w = context;
    const size_t first = job * CHUNK;
    const size_t end = first + CHUNK < w->n ? first + CHUNK : w->n;
    for (size_t i = first; i < end; i++) {
        const float g = w->grads[i] * w->clip;
        const float m = w->beta1 * w->mean[i] + (1.0f - w->beta1) * g;
        const float v = w->beta2 * w->square[i] + (1.0f - w->beta2) * g * g;
        w->mean[i] = m;
        w->square[i] = v;
        w->params[i] =
            w->params[i] * w->keep - w->rate * m / (sqrtf(v * w->correction) + w->epsilon);
    }
}

void adamw_step(struct pool *pool, const struct adamw *o, size_t step, double norm, float decay,
                size_t n, const float *grads, float *params, float *mean, float *square)
{
    const float rate = adamw_rate(o, step);
    const double t = (double)step + 1.0;
    struct step_work w = {
        .n = n,
        .grads = grads,
        .params = params,
        .mean = mean,
        .square = square,
        .clip = norm > (double)o->clip ? (float)((double)o->clip / norm) : 1.0f,
        .beta1 = o->beta1,
        .beta2 = o->beta2,
        .rate = (float)((double)rate / (1.0 - pow((double)o->beta1, t))),
        .correction = (float)(1.0 / (1.0 - pow((double)o->beta2, t))),
        .epsilon = o->epsilon,
        .keep = 1.0f - rate * decay,
    };
    pool_run(pool, (n + CHUNK - 1) / CHUNK, step_chunk, &w);
}
