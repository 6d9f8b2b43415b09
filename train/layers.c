#include "layers.h"

#include "net.h"
#include "vec.h"

#include <float.h>
#include <math.h>

static float dot(size_t n, const float *a, const float *b)
{
    vec sum = {0};
    for (size_t i = 0; i < n; i += VEC) {
        vec x;
        vec y;
        vec_load(&x, a + i);
        vec_load(&y, b + i);
        sum += x * y;
    }
    return vec_sum(&sum);
}

void rms_norm(size_t rows, size_t width, const float *x, const float *gain, float *y, float *scale)
{
    for (size_t r = 0; r < rows; r++, x += width, y += width) {
        const float mean = dot(width, x, x) / (float)width;
        const float s = 1.0f / sqrtf(mean + NET_NORM_EPSILON);
        scale[r] = s;
        for (size_t i = 0; i < width; i++) {
            y[i] = x[i] * s * gain[i];
        }
    }
}

/* With s = (mean(x^2) + e)^(-1/2), ds/dx_i = -s^3 x_i / width, so
 * dx_i = s g_i dy_i - x_i s^3 / width * sum_j g_j dy_j x_j. */
void rms_norm_back(size_t rows, size_t width, const float *x, const float *gain, const float *scale,
                   const float *dy, float *dx, float *dgain)
{
    for (size_t r = 0; r < rows; r++, x += width, dy += width, dx += width) {
        const float s = scale[r];
        vec sum = {0};
        for (size_t i = 0; i < width; i += VEC) {
            vec a;
            vec b;
            vec c;
            vec_load(&a, x + i);
            vec_load(&b, dy + i);
            vec_load(&c, gain + i);
            sum += a * b * c;
        }
        const float common = vec_sum(&sum) * s * s * s / (float)width;
        for (size_t i = 0; i < width; i++) {
            dx[i] += s * gain[i] * dy[i] - x[i] * common;
            dgain[i] += dy[i] * x[i] * s;
        }
    }
}

void rope_turns(size_t context, size_t head_width, float *turns)
{
    for (size_t p = 0; p < context; p++) {
        for (size_t i = 0; i < head_width; i += 2) {
            const double frequency = pow((double)NET_ROPE_BASE, -(double)i / (double)head_width);
            turns[p * head_width + i] = (float)cos((double)p * frequency);
            turns[p * head_width + i + 1] = (float)sin((double)p * frequency);
        }
    }
}

void rope(size_t first, size_t rows, size_t stride, size_t heads, size_t head_width, size_t context,
          const float *turns, float direction, float *x)
{
    for (size_t r = 0; r < rows; r++, x += stride) {
        const float *turn = turns + (first + r) % context * head_width;
        for (size_t h = 0; h < heads; h++) {
            float *head = x + h * head_width;
            for (size_t i = 0; i < head_width; i += 2) {
                const float c = turn[i];
                const float s = turn[i + 1] * direction;
                const float even = head[i];
                const float odd = head[i + 1];
                head[i] = even * c - odd * s;
                head[i + 1] = even * s + odd * c;
            }
        }
    }
}

/* 1 / (1 + exp(-x)) */
static inline void sigmoid(vec *x)
{
    *x = -*x;
    vec_exp(x);
    *x = 1.0f / (1.0f + *x);
}

void swiglu(size_t rows, size_t ff, const float *gate_up, float *h)
{
    for (size_t r = 0; r < rows; r++, gate_up += 2 * ff, h += ff) {
        for (size_t i = 0; i < ff; i += VEC) {
            vec gate;
            vec up;
            vec_load(&gate, gate_up + i);
            vec_load(&up, gate_up + ff + i);
            vec s = gate;
            sigmoid(&s);
            const vec result = gate * s * up;
            vec_store(&result, h + i);
        }
    }
}

/* silu(x) = x s(x), so silu'(x) = s + x s (1 - s). */
void swiglu_back(size_t rows, size_t ff, const float *gate_up, const float *dh, float *dgate_up)
{
    for (size_t r = 0; r < rows; r++, gate_up += 2 * ff, dh += ff, dgate_up += 2 * ff) {
        for (size_t i = 0; i < ff; i += VEC) {
            vec gate;
            vec up;
            vec d;
            vec_load(&gate, gate_up + i);
            vec_load(&up, gate_up + ff + i);
            vec_load(&d, dh + i);
            vec s = gate;
            sigmoid(&s);
            const vec dgate = d * up * s * (1.0f + gate * (1.0f - s));
            const vec dup = d * gate * s;
            vec_store(&dgate, dgate_up + i);
            vec_store(&dup, dgate_up + ff + i);
        }
    }
}

static float largest(size_t n, const float *x)
{
    float max = -FLT_MAX;
    for (size_t i = 0; i < n; i++) {
        max = x[i] > max ? x[i] : max;
    }
    return max;
}

/* x = exp(scale (x - max)) over whole vectors; returns the sum. */
static float exp_row(size_t n, float scale, float max, float *x)
{
    vec sum = {0};
    for (size_t i = 0; i < n; i += VEC) {
        vec e;
        vec_load(&e, x + i);
        e = (e - max) * scale;
        vec_exp(&e);
        sum += e;
        vec_store(&e, x + i);
    }
    return vec_sum(&sum);
}

double cross_entropy(size_t rows, size_t vocab, float *logits, const int32_t *targets, float weight)
{
    double loss = 0.0;
    for (size_t r = 0; r < rows; r++, logits += vocab) {
        const float max = largest(vocab, logits);
        const float at_target = logits[targets[r]];
        const float sum = exp_row(vocab, 1.0f, max, logits);
        loss += log((double)sum) + (double)max - (double)at_target;
        const float factor = weight / sum;
        for (size_t i = 0; i < vocab; i++) {
            logits[i] *= factor;
        }
        logits[targets[r]] -= weight;
    }
    return loss;
}

void softmax(size_t n, size_t width, float scale, float *x)
{
    const float max = largest(n, x);
    const size_t whole = (n + VEC - 1) / VEC * VEC;
    for (size_t i = n; i < whole; i++) {
        x[i] = -FLT_MAX / 4.0f; /* its exponential is 0 next to the others' */
    }
    const float sum = exp_row(whole, scale, max, x);
    const float factor = 1.0f / sum;
    for (size_t i = 0; i < n; i++) {
        x[i] *= factor;
    }
    memset(x + n, 0, (width - n) * sizeof *x);
}

void add_to(size_t n, float *x, const float *y)
{
    for (size_t i = 0; i < n; i++) {
        x[i] += y[i];
    }
}
