/* Random blocks and embeddings of `ats synth --model`, read back with ggml's own conversion. */
#include "cli/synth_blocks.h"
#include "cli/synth_topics.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

void *cli_alloc(size_t size); /* that of the command ends the process with a message */

void *cli_alloc(size_t size)
{
    void *memory = malloc(size);
    assert_non_null(memory);
    return memory;
}

struct moments {
    double mean;
    double std;
    double largest;
};

static struct moments moments_of(const float *values, size_t n)
{
    struct moments m = {0};
    double squares = 0;
    for (size_t i = 0; i < n; i++) {
        assert_true(isfinite(values[i]));
        m.mean += values[i] / (double)n;
        squares += (double)values[i] * values[i] / (double)n;
        m.largest = fabs(values[i]) > m.largest ? fabs(values[i]) : m.largest;
    }
    m.std = sqrt(squares - m.mean * m.mean);
    return m;
}

static float *to_floats(enum ggml_type type, const void *data, size_t n)
{
    float *values = malloc(n * sizeof *values);
    assert_non_null(values);
    ggml_get_type_traits(type)->to_float(data, values, (int64_t)n);
    return values;
}

static const enum ggml_type types[] = {GGML_TYPE_F16,  GGML_TYPE_Q8_0, GGML_TYPE_Q5_0,
                                       GGML_TYPE_Q5_1, GGML_TYPE_Q4_K, GGML_TYPE_Q5_K,
                                       GGML_TYPE_Q6_K, GGML_TYPE_MXFP4};
enum { N_TYPES = sizeof types / sizeof types[0] };

/* From a large matrix's to those of a down projection that writes to the residual stream. */
static const float spreads[] = {1.0f, 0.0221f, 0.0036f, 0.00059f};

static void test_moments(void **state)
{
    (void)state;
    enum { N = 1 << 18 };
    for (size_t i = 0; i < N_TYPES; i++) {
        for (size_t k = 0; k < sizeof spreads / sizeof spreads[0]; k++) {
            const size_t n_blocks = N / (size_t)ggml_blck_size(types[i]);
            void *data = malloc(n_blocks * ggml_type_size(types[i]));
            struct ats_rng rng = {7};
            assert_true(synth_blocks_known(types[i]));
            synth_blocks_fill(data, types[i], n_blocks, spreads[k], &rng);
            float *values = to_floats(types[i], data, N);
            const struct moments m = moments_of(values, N);
            /* 2 % of the mean is ten times its standard error */
            if (fabs(m.mean) > 0.02 * spreads[k] || fabs(m.std / spreads[k] - 1) > 0.04 ||
                m.largest > 4 * spreads[k]) {
                fail_msg("%s, spread %g: mean %g, std %g, largest %g", ggml_type_name(types[i]),
                         (double)spreads[k], m.mean, m.std, m.largest);
            }
            assert_true(
                ggml_validate_row_data(types[i], data, n_blocks * ggml_type_size(types[i])));
            free(values);
            free(data);
        }
    }
}

static void test_other_types_are_unknown(void **state)
{
    (void)state;
    assert_false(synth_blocks_known(GGML_TYPE_F32));
    assert_false(synth_blocks_known(GGML_TYPE_Q2_K));
    assert_false(synth_topics_known(GGML_TYPE_F32));
}

static void *written(FILE *file, size_t *size)
{
    *size = (size_t)ftell(file);
    void *data = malloc(*size);
    rewind(file);
    assert_int_equal(fread(data, 1, *size, file), *size);
    fclose(file);
    return data;
}

/* 128 experts of 768 rows of 2048: far more than a pool, so it repeats, but no two experts are
 * alike, nor two rows of one. */
static void test_experts_differ(void **state)
{
    (void)state;
    enum { EXPERTS = 128, ROWS = 768, BLOCKS = 8, BYTES = 144 };
    FILE *file = tmpfile();
    struct ats_rng rng = {3};
    assert_true(
        synth_blocks_write(file, GGML_TYPE_Q4_K, (size_t)EXPERTS * ROWS * BLOCKS, 0.02f, &rng));
    size_t size;
    uint8_t *data = written(file, &size);
    const size_t expert = (size_t)ROWS * BLOCKS * BYTES;
    assert_int_equal(size, EXPERTS * expert);
    for (size_t a = 0; a < EXPERTS; a++) {
        for (size_t b = 0; b < a; b++) {
            assert_memory_not_equal(data + a * expert, data + b * expert, BYTES);
        }
    }
    for (size_t a = 0; a < ROWS; a++) {
        for (size_t b = 0; b < a; b++) {
            assert_memory_not_equal(data + a * BLOCKS * BYTES, data + b * BLOCKS * BYTES, BYTES);
        }
    }
    free(data);
}

static double cosine(const float *a, const float *b, size_t n)
{
    double ab = 0;
    double aa = 0;
    double bb = 0;
    for (size_t i = 0; i < n; i++) {
        ab += (double)a[i] * b[i];
        aa += (double)a[i] * a[i];
        bb += (double)b[i] * b[i];
    }
    return ab / sqrt(aa * bb);
}

/* Tokens of one topic have the cosine that was asked for, others none; over several pairs. */
static void test_topics(void **state)
{
    (void)state;
    enum { WIDTH = 2048, TOKENS = 600, TOPICS = 64 };
    static const enum ggml_type embeddings[] = {GGML_TYPE_F16, GGML_TYPE_Q8_0, GGML_TYPE_Q4_K};
    for (size_t k = 0; k < 3; k++) {
        FILE *file = tmpfile();
        struct ats_rng rng = {11};
        const struct synth_topics topics = {TOPICS, 0.75f};
        assert_true(synth_topics_write(file, embeddings[k], &topics, WIDTH, TOKENS, &rng));
        size_t size;
        void *data = written(file, &size);
        assert_int_equal(size, TOKENS * ggml_row_size(embeddings[k], WIDTH));
        float *values = to_floats(embeddings[k], data, (size_t)WIDTH * TOKENS);
        const struct moments m = moments_of(values, (size_t)WIDTH * TOKENS);
        assert_true(fabs(m.std - 1) < 0.03 && fabs(m.mean) < 0.02);
        double same = 0;
        double other = 0;
        for (size_t v = 0; v < TOPICS; v++) {
            same += cosine(values + v * WIDTH, values + (v + 5 * TOPICS) * WIDTH, WIDTH) / TOPICS;
            other += cosine(values + v * WIDTH, values + (v + TOPICS + 1) * WIDTH, WIDTH) / TOPICS;
        }
        if (fabs(same - 0.75) > 0.02 || fabs(other) > 0.02) {
            fail_msg("%s: cosine %g in a topic, %g outside", ggml_type_name(embeddings[k]), same,
                     other);
        }
        free(values);
        free(data);
    }
}

int main(void)
{
    struct ggml_init_params params = {.mem_size = 1024}; /* fills ggml's conversion tables */
    ggml_free(ggml_init(params));
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_moments),
        cmocka_unit_test(test_other_types_are_unknown),
        cmocka_unit_test(test_experts_differ),
        cmocka_unit_test(test_topics),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
