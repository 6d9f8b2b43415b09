/* Vectors of floats as the compiler knows them (GNU C), as wide as the processor's registers, and
 * the one function that they need and C has not: the exponential.
 *
 * Vectors are passed by pointer, since passing them by value differs between instruction sets. */
#ifndef ATS_TRAIN_VEC_H
#define ATS_TRAIN_VEC_H

#include <stdint.h>
#include <string.h>

#ifdef __AVX512F__
#define VEC 16 /* floats per vector */
#else
#define VEC 8
#endif

typedef float vec __attribute__((vector_size(VEC * sizeof(float))));
typedef int32_t vec_int __attribute__((vector_size(VEC * sizeof(int32_t))));

/* Every length of a row that this code works on is a multiple of this. */
#define VEC_ROW 16

static inline void vec_load(vec *x, const float *from)
{
    memcpy(x, from, sizeof *x);
}

static inline void vec_store(const vec *x, float *to)
{
    memcpy(to, x, sizeof *x);
}

static inline float vec_sum(const vec *x)
{
    float sum = 0.0f;
    for (int i = 0; i < VEC; i++) {
        sum += (*x)[i];
    }
    return sum;
}

/* exp of each element, relative error below 3e-7; arguments below -87 give 0 or next to it,
 * arguments above 88 give a large finite number.
 *
 * x = n ln 2 + r with n whole and |r| <= ln 2 / 2, so exp x = 2^n exp r, exp r by its series to the
 * seventh power (remainder 2^-35). ln 2 comes in two parts, the first with few enough bits that
 * n times it is exact. Adding and subtracting 1.5 * 2^23 rounds to a whole number. */
static inline void vec_exp(vec *px)
{
    const float round = 12582912.0f;
    vec x = *px;
    const vec_int low = x < -87.0f;
    const vec_int high = x > 88.0f;
    const vec zero = {0};
    x = (vec)(((vec_int)x & ~(low | high)) | ((vec_int)(zero + 88.0f) & high) |
              ((vec_int)(zero - 87.0f) & low));
    vec shifted = x * 1.44269504f + round;
    const vec n = shifted - round;
    const vec r = (x - n * 0.693359375f) + n * 2.12194440e-4f;
    vec p = r * (1.0f / 5040.0f) + 1.0f / 720.0f;
    p = p * r + 1.0f / 120.0f;
    p = p * r + 1.0f / 24.0f;
    p = p * r + 1.0f / 6.0f;
    p = p * r + 0.5f;
    p = p * r + 1.0f;
    p = p * r + 1.0f;
    const vec_int power = __builtin_convertvector(n, vec_int) << 23;
    *px = (vec)((vec_int)p + power);
}

#endif
