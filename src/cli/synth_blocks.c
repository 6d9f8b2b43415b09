/* Block layouts are those of ggml (ggml-common.h); offsets are in bytes. In the K types a block
 * has 256 weights in 8 groups (16 for Q6_K), a weight is d * scale * q - dmin * min. */
#include "cli/synth_blocks.h"
#include "cli/cli.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { POOL_BYTES = 4 << 20 };

/* Scales of groups are uniform in [32, 63]; the root of their mean square. */
static const float scale_rms = 48.3916f;

/* Standard deviations of uniform whole numbers: sqrt((n^2 - 1) / 12). */
static const float std_16 = 4.6098f;
static const float std_32 = 9.2331f;
static const float std_64 = 18.4730f;
/* of odd numbers from -127 to 127 */
static const float std_odd_bytes = 73.9f;
/* of the 16 values of MXFP4, in halves: 0 1 2 3 4 6 8 12 with both signs; sqrt(274 / 8) */
static const float std_mxfp4 = 5.8523f;

bool synth_blocks_known(enum ggml_type type)
{
    switch (type) {
    case GGML_TYPE_F16:
    case GGML_TYPE_Q8_0:
    case GGML_TYPE_Q5_0:
    case GGML_TYPE_Q5_1:
    case GGML_TYPE_Q4_K:
    case GGML_TYPE_Q5_K:
    case GGML_TYPE_Q6_K:
    case GGML_TYPE_MXFP4:
        return true;
    default:
        return false;
    }
}

static void fill_bytes(uint8_t *data, size_t n, struct ats_rng *rng)
{
    size_t i = 0;
    for (; i + sizeof(uint64_t) <= n; i += sizeof(uint64_t)) {
        const uint64_t bits = ats_rng_next(rng);
        memcpy(data + i, &bits, sizeof bits);
    }
    if (i < n) {
        const uint64_t bits = ats_rng_next(rng);
        memcpy(data + i, &bits, n - i);
    }
}

/* `value` with 6 significant bits: then small whole multiples of it are exact in F16 too, and the
 * minimum of a block cancels the mean of its quants. */
static float rounded(float value)
{
    int exponent;
    const float mantissa = frexpf(value, &exponent);
    return ldexpf(floorf(mantissa * 64.0f + 0.5f) / 64.0f, exponent);
}

static void put_f16(uint8_t *at, float value)
{
    const ggml_fp16_t half = ggml_fp32_to_fp16(value);
    memcpy(at, &half, sizeof half);
}

/* Packs 8 scales, each also the minimum of its group, into the 12 bytes of Q4_K and Q5_K: the
 * low 6 bits of the first 8 bytes are scales, then minima, of groups 0 to 3; groups 4 to 7 have
 * their low 4 bits in the last 4 bytes and their high 2 bits atop the first 8. */
static void pack_scales(uint8_t packed[12], const uint8_t scale[8])
{
    for (int i = 0; i < 4; i++) {
        const uint8_t high = (uint8_t)(scale[i + 4] >> 4 << 6);
        packed[i] = (uint8_t)(scale[i] | high);
        packed[i + 4] = (uint8_t)(scale[i] | high);
        packed[i + 8] = (uint8_t)((scale[i + 4] & 15) | (scale[i + 4] & 15) << 4);
    }
}

/* d, dmin, 12 bytes of scales, then quants, which are random already. */
static void finish_k(uint8_t *block, float d, float mean_quant)
{
    uint8_t scale[8];
    for (int i = 0; i < 8; i++) {
        scale[i] = (uint8_t)(32 | (block[4 + i] & 31));
    }
    put_f16(block, d);
    put_f16(block + 2, d * mean_quant);
    pack_scales(block + 4, scale);
}

/* 192 bytes of quants, 16 signed scales, d. Quants have a mean of -0.5, scales of either sign one
 * of 0. */
static void finish_q6_k(uint8_t *block, float d)
{
    for (int i = 192; i < 208; i++) {
        const int scale = 32 | (block[i] & 31);
        block[i] = (uint8_t)(int8_t)((block[i] & 128) != 0 ? -scale : scale);
    }
    put_f16(block + 208, d);
}

/* The two powers of two around the wanted scale, in the proportion that gives the variance. */
struct exponents {
    uint8_t low;         /* E8M0 */
    uint64_t high_below; /* the higher one if a random 32-bit number is below */
};

static struct exponents exponents_for(float spread)
{
    int exponent;
    const float scale = spread / std_mxfp4; /* of the values in halves */
    const float mantissa = frexpf(scale, &exponent);
    const float low = scale / (2.0f * mantissa); /* 2^(exponent - 1) */
    const float share = (scale * scale / (low * low) - 1.0f) / 3.0f;
    /* E8M0 e stands for 2^(e - 127), and ggml's table of values is doubled */
    return (struct exponents){(uint8_t)(exponent - 1 + 128), (uint64_t)(share * 4294967296.0f)};
}

static void finish_mxfp4(uint8_t *block, const struct exponents *e, struct ats_rng *rng)
{
    block[0] = (uint8_t)(e->low + (ats_rng_next(rng) >> 32 < e->high_below));
}

static void fill_f16(uint8_t *data, size_t n, float spread, struct ats_rng *rng)
{
    /* as good as normal: the sum of four uniform numbers of 16 bits */
    const float unit = spread / 37837.227f;
    for (size_t i = 0; i < n; i++) {
        const uint64_t bits = ats_rng_next(rng);
        const int32_t sum = (int32_t)(bits & 0xffff) + (int32_t)(bits >> 16 & 0xffff) +
                            (int32_t)(bits >> 32 & 0xffff) + (int32_t)(bits >> 48) - 2 * 0xffff;
        put_f16(data + 2 * i, (float)sum * unit);
    }
}

static void finish_block(uint8_t *block, enum ggml_type type, float spread,
                         const struct exponents *exponents, struct ats_rng *rng)
{
    switch (type) {
    case GGML_TYPE_Q8_0: /* d, 32 signed bytes; no -128, which quantisers do not write */
        put_f16(block, spread / std_odd_bytes);
        for (int i = 2; i < 34; i++) {
            block[i] |= 1;
        }
        break;
    case GGML_TYPE_Q5_0: /* d, quants less 16: a mean of -0.5, which either sign of d cancels */
        put_f16(block, (block[0] & 1) != 0 ? -spread / std_32 : spread / std_32);
        break;
    case GGML_TYPE_Q5_1: /* d, minimum */
        put_f16(block, rounded(spread / std_32));
        put_f16(block + 2, rounded(spread / std_32) * -15.5f);
        break;
    case GGML_TYPE_Q4_K:
        finish_k(block, rounded(spread / (std_16 * scale_rms)), 7.5f);
        break;
    case GGML_TYPE_Q5_K:
        finish_k(block, rounded(spread / (std_32 * scale_rms)), 15.5f);
        break;
    case GGML_TYPE_Q6_K:
        finish_q6_k(block, spread / (std_64 * scale_rms));
        break;
    default:
        finish_mxfp4(block, exponents, rng);
        break;
    }
}

void synth_blocks_fill(void *data, enum ggml_type type, size_t n_blocks, float spread,
                       struct ats_rng *rng)
{
    if (type == GGML_TYPE_F16) {
        fill_f16(data, n_blocks, spread, rng);
        return;
    }
    const size_t size = ggml_type_size(type);
    const struct exponents exponents = exponents_for(spread);
    fill_bytes(data, n_blocks * size, rng);
    for (size_t i = 0; i < n_blocks; i++) {
        finish_block((uint8_t *)data + i * size, type, spread, &exponents, rng);
    }
}

static size_t prime_below(size_t n)
{
    for (; n > 2; n--) {
        size_t d = 2;
        while (d * d <= n && n % d != 0) {
            d++;
        }
        if (d * d > n) {
            break;
        }
    }
    return n;
}

bool synth_blocks_write(FILE *file, enum ggml_type type, size_t n_blocks, float spread,
                        struct ats_rng *rng)
{
    const size_t size = ggml_type_size(type);
    size_t in_pool = prime_below(POOL_BYTES / size);
    in_pool = n_blocks < in_pool ? n_blocks : in_pool;
    void *pool = cli_alloc(in_pool * size);
    synth_blocks_fill(pool, type, in_pool, spread, rng);
    bool ok = true;
    while (n_blocks > 0 && ok) {
        const size_t n = n_blocks < in_pool ? n_blocks : in_pool;
        ok = fwrite(pool, size, n, file) == n;
        n_blocks -= n;
    }
    free(pool);
    return ok;
}
