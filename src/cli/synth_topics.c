/* Embeddings are blended as whole numbers of about 8 bits, from a table of topics and a window of
 * a noise table per token, and packed into the tensor's type. */
#include "cli/synth_topics.h"
#include "cli/cli.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum {
    UNIT = 36,              /* the number that stands for 1.0: 127 is 3.5 standard deviations */
    NOISE_PERIOD = 1048573, /* prime: windows of different tokens begin at different places */
    Q4_K_SCALE = 63,
};

struct tables {
    int16_t *topic; /* [topics][width] */
    int16_t *noise; /* [NOISE_PERIOD + width], the end repeats the beginning */
};

bool synth_topics_known(enum ggml_type type)
{
    return type == GGML_TYPE_F16 || type == GGML_TYPE_Q8_0 || type == GGML_TYPE_Q4_K;
}

static void fill_table(int16_t *table, size_t n, float variance, struct ats_rng *rng)
{
    const float unit = (float)UNIT * sqrtf(variance) / 37837.227f;
    for (size_t i = 0; i < n; i++) {
        const uint64_t bits = ats_rng_next(rng);
        const int32_t sum = (int32_t)(bits & 0xffff) + (int32_t)(bits >> 16 & 0xffff) +
                            (int32_t)(bits >> 32 & 0xffff) + (int32_t)(bits >> 48) - 2 * 0xffff;
        table[i] = (int16_t)floorf((float)sum * unit + 0.5f);
    }
}

static void blend(int8_t *row, const int16_t *topic, const int16_t *noise, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        int value = topic[i] + noise[i];
        value = value > 127 ? 127 : value;
        row[i] = (int8_t)(value < -127 ? -127 : value);
    }
}

static void put_f16(uint8_t *at, float value)
{
    const ggml_fp16_t half = ggml_fp32_to_fp16(value);
    memcpy(at, &half, sizeof half);
}

static void pack_f16(uint8_t *packed, const int8_t *row, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        put_f16(packed + 2 * i, (float)row[i] / (float)UNIT);
    }
}

static void pack_q8_0(uint8_t *packed, const int8_t *row, size_t n)
{
    enum { BLOCK = 32, BYTES = 34 };
    for (size_t i = 0; i < n / BLOCK; i++) {
        put_f16(packed + i * BYTES, 1.0f / (float)UNIT);
        memcpy(packed + i * BYTES + 2, row + i * BLOCK, BLOCK);
    }
}

/* A quant is 16 steps of the row's numbers; all groups have the same scale and minimum, so that
 * all of the 12 bytes of scales have all bits set: 63 in every group. */
static void pack_q4_k(uint8_t *packed, const int8_t *row, size_t n)
{
    enum { BLOCK = 256, BYTES = 144, STEP = 16 };
    const float d = (float)STEP / (float)(UNIT * Q4_K_SCALE);
    for (size_t i = 0; i < n / BLOCK; i++, row += BLOCK, packed += BYTES) {
        put_f16(packed, d);
        put_f16(packed + 2, d * 7.5f);
        memset(packed + 4, 0xff, 12);
        for (size_t group = 0; group < 4; group++) {
            const int8_t *low = row + group * 64;
            uint8_t *to = packed + 16 + group * 32;
            for (size_t k = 0; k < 32; k++) {
                const unsigned a = (unsigned)(low[k] + 128) / STEP;
                const unsigned b = (unsigned)(low[k + 32] + 128) / STEP;
                to[k] = (uint8_t)(a | b << 4);
            }
        }
    }
}

static bool write_tokens(FILE *file, enum ggml_type type, const struct synth_topics *topics,
                         const struct tables *tables, size_t width, size_t n_tokens)
{
    const size_t row_bytes = ggml_row_size(type, (int64_t)width);
    int8_t *row = cli_alloc(width);
    uint8_t *packed = cli_alloc(row_bytes);
    bool ok = true;
    for (size_t v = 0; v < n_tokens && ok; v++) {
        blend(row, tables->topic + v % topics->topics * width,
              tables->noise + v * width % NOISE_PERIOD, width);
        if (type == GGML_TYPE_Q4_K) {
            pack_q4_k(packed, row, width);
        } else if (type == GGML_TYPE_Q8_0) {
            pack_q8_0(packed, row, width);
        } else {
            pack_f16(packed, row, width);
        }
        ok = fwrite(packed, 1, row_bytes, file) == row_bytes;
    }
    free(packed);
    free(row);
    return ok;
}

bool synth_topics_write(FILE *file, enum ggml_type type, const struct synth_topics *topics,
                        size_t width, size_t n_tokens, struct ats_rng *rng)
{
    const size_t n_topic = topics->topics * width;
    const size_t n_noise = NOISE_PERIOD + width;
    struct tables tables = {cli_alloc(n_topic * sizeof(int16_t)),
                            cli_alloc(n_noise * sizeof(int16_t))};
    fill_table(tables.topic, n_topic, topics->topic_share, rng);
    fill_table(tables.noise, NOISE_PERIOD, 1.0f - topics->topic_share, rng);
    memcpy(tables.noise + NOISE_PERIOD, tables.noise, width * sizeof(int16_t));
    const bool ok = write_tokens(file, type, topics, &tables, width, n_tokens);
    free(tables.noise);
    free(tables.topic);
    return ok;
}
