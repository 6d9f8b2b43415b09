/* n-gram models, the cut into experts, and checkpoints, on cases worked out by hand. */
#include "ngram.h"
#include "run.h"
#include "split.h"
#include "text.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "unit/seed.h"

static void assert_near(double a, double b)
{
    if (fabs(a - b) > 1e-12 * (1.0 + fabs(b))) {
        fail_msg("%.17g is not %.17g", a, b);
    }
}

/* "aab": a twice, b once, two kinds; after a: a once, b once. */
static void test_ngram_by_hand(void **state)
{
    (void)state;
    char bytes[] = "aab";
    const struct text text = {bytes, 3};
    struct ats_error err;
    struct ngram *model = ngram_count(&text, 1, &err);
    assert_non_null(model);
    const double u = 1.0 / 256.0;
    const double a0 = (2.0 + 2.0 * u) / 5.0;
    const double b0 = (1.0 + 2.0 * u) / 5.0;
    const double c0 = 2.0 * u / 5.0;
    assert_near(ngram_probability(model, "a", 0), a0);
    assert_near(ngram_probability(model, "b", 0), b0);
    assert_near(ngram_probability(model, "c", 0), c0);
    assert_near(ngram_probability(model, "aa", 1), (1.0 + 2.0 * a0) / 4.0);
    assert_near(ngram_probability(model, "ab", 1), (1.0 + 2.0 * b0) / 4.0);
    assert_near(ngram_probability(model, "ac", 1), 2.0 * c0 / 4.0);
    assert_near(ngram_probability(model, "ba", 1), a0); /* b was followed by nothing */
    const double bits = -log2(a0) - log2((1.0 + 2.0 * a0) / 4.0) - log2((1.0 + 2.0 * b0) / 4.0);
    assert_near(ngram_bits_per_byte(model, &text), bits / 3.0);
    ngram_free(model);
    assert_null(ngram_count(&text, NGRAM_MAX_ORDER + 1, &err));
}

/* Pieces do not see each other: "ab", then "cd" has no b before c. */
static void test_ngram_pieces(void **state)
{
    (void)state;
    char bytes[] = "ab\n\f\ncd\n";
    const struct text text = {bytes, sizeof bytes - 1};
    struct ats_error err;
    struct ngram *model = ngram_count(&text, 2, &err);
    assert_non_null(model);
    assert_near(ngram_probability(model, "bc", 1), ngram_probability(model, "c", 0));
    assert_true(ngram_probability(model, "ab", 1) > ngram_probability(model, "b", 0));
    ngram_free(model);
}

static void test_ngram_sums_to_one(void **state)
{
    (void)state;
    struct ats_rng rng = test_rng(1);
    char bytes[5000];
    for (size_t i = 0; i < sizeof bytes; i++) {
        bytes[i] = (char)('a' + (int)ats_rng_below(&rng, 3 + i % 5));
    }
    const struct text text = {bytes, sizeof bytes};
    for (unsigned order = 0; order <= NGRAM_MAX_ORDER; order++) {
        struct ats_error err;
        struct ngram *model = ngram_count(&text, order, &err);
        assert_non_null(model);
        for (int round = 0; round < 20; round++) {
            char context[NGRAM_MAX_ORDER + 1];
            const size_t at = test_between(&rng, 0, NGRAM_MAX_ORDER);
            memcpy(context, bytes + ats_rng_below(&rng, 4000), sizeof context);
            double sum = 0.0;
            for (int c = 0; c < 256; c++) {
                context[at] = (char)c;
                const double p = ngram_probability(model, context, at);
                assert_true(p > 0.0 && p < 1.0);
                sum += p;
            }
            assert_true(fabs(sum - 1.0) < 1e-9);
        }
        ngram_free(model);
    }
}

/* Gates of four kinds, dealt out in turn: each kind becomes an expert, and an input of a kind
 * gives its expert the largest logit. */
static void test_split_finds_kinds(void **state)
{
    (void)state;
    enum { WIDTH = 16, FF = 40, EXPERTS = 4, ROUTER = EXPERTS * WIDTH, WEIGHTS = FF * WIDTH };
    struct ats_rng rng = test_rng(2);
    float gate[FF * WIDTH];
    float up[FF * WIDTH];
    float down[WIDTH * FF];
    float gain[WIDTH];
    for (size_t i = 0; i < WEIGHTS; i++) {
        gate[i] = 0.1f * ((float)ats_rng_below(&rng, 1000) / 500.0f - 1.0f);
        up[i] = down[i] = 1.0f;
    }
    for (size_t u = 0; u < FF; u++) {
        gate[u * WIDTH + u % EXPERTS] += 3.0f;
    }
    for (size_t i = 0; i < WIDTH; i++) {
        gain[i] = 1.0f;
    }
    const struct split_block block = {WIDTH, FF, gain, gate, up, down};
    uint32_t order[FF];
    assert_true(split_group(&block, EXPERTS, order));
    bool seen[FF] = {false};
    for (size_t n = 0; n < FF; n++) {
        assert_in_range(order[n], 0, FF - 1);
        assert_false(seen[order[n]]);
        seen[order[n]] = true;
        const size_t first = n / (FF / EXPERTS) * (FF / EXPERTS);
        assert_int_equal(order[n] % EXPERTS, order[first] % EXPERTS);
    }
    float router[EXPERTS * WIDTH];
    split_router(&block, EXPERTS, order, router);
    double squares = 0.0;
    for (size_t kind = 0; kind < EXPERTS; kind++) {
        for (size_t e = 0; e < EXPERTS; e++) {
            const bool own = order[e * (FF / EXPERTS)] % EXPERTS == kind;
            const float logit = router[e * WIDTH + kind];
            assert_true(own ? logit > 0.001f : logit < 0.0005f);
        }
    }
    for (size_t i = 0; i < ROUTER; i++) {
        squares += (double)router[i] * (double)router[i];
    }
    assert_true(fabs(sqrt(squares / EXPERTS) - (double)SPLIT_LOGIT_SPREAD) < 1e-7);
}

static struct run_options small_options(void)
{
    struct run_options o;
    memset(&o, 0, sizeof o);
    o.shape = (struct net_shape){
        .vocab = 16, .width = 16, .layers = 1, .heads = 1, .kv_heads = 1, .ff = 16, .context = 16};
    o.adamw = (struct adamw){.peak_rate = 0.1f, .steps = 100, .fall_steps = 25};
    o.windows = 2;
    o.seed = 3;
    o.text = 4;
    return o;
}

static char *temporary(char *path)
{
    const int fd = mkstemp(path);
    assert_true(fd >= 0);
    close(fd);
    return path;
}

static void test_checkpoint(void **state)
{
    (void)state;
    const struct run_options options = small_options();
    struct ats_error err;
    struct run run;
    struct run again;
    char name[] = "/tmp/ats-run-XXXXXX";
    const char *path = temporary(name);
    assert_true(run_new(&run, &options, &err));
    run.step = 70;
    run.mean[5] = 1.5f;
    run.square[6] = 2.5f;
    assert_true(run_add_point(&run, (struct run_point){10, 4.0f, -1.0f}, &err));
    assert_true(run_save(&run, path, &err));
    assert_true(run_load(&again, path, &err));
    assert_int_equal(again.step, 70);
    assert_int_equal(again.n_params, run.n_params);
    assert_memory_equal(again.params, run.params, run.n_params * sizeof(float));
    assert_memory_equal(again.mean, run.mean, run.n_params * sizeof(float));
    assert_memory_equal(again.square, run.square, run.n_params * sizeof(float));
    assert_int_equal(again.n_points, 1);
    assert_true(again.points[0].loss == 4.0f);

    /* the same options; a longer run; not one that would have begun to fall; nothing else */
    struct run_options given = options;
    assert_true(run_continue(&again, &given, &err));
    given.adamw.steps = 200;
    given.adamw.fall_steps = 50;
    assert_true(run_continue(&again, &given, &err));
    assert_int_equal(again.options.adamw.steps, 200);
    given.adamw.steps = 80;
    given.adamw.fall_steps = 20;
    assert_false(run_continue(&again, &given, &err));
    given = options;
    given.seed = 5;
    assert_false(run_continue(&again, &given, &err));
    given = options;
    given.text = 5;
    assert_false(run_continue(&again, &given, &err));
    given = options;
    given.shape.ff = 32;
    assert_false(run_continue(&again, &given, &err));
    given = options;
    given.windows = 3;
    assert_false(run_continue(&again, &given, &err));
    run.step = 76; /* has begun to fall */
    given = options;
    given.adamw.steps = 200;
    given.adamw.fall_steps = 50;
    assert_false(run_continue(&run, &given, &err));
    run_free(&run);
    run_free(&again);
    unlink(path);
}

/* Cut short, longer, or with changed bytes in the head: refused, or read as the right length. */
static void test_damaged_checkpoints(void **state)
{
    (void)state;
    const struct run_options options = small_options();
    struct ats_error err;
    struct run run;
    char name[] = "/tmp/ats-run-XXXXXX";
    const char *path = temporary(name);
    assert_true(run_new(&run, &options, &err));
    assert_true(run_save(&run, path, &err));
    struct text file;
    assert_true(text_read(&file, path, &err));
    for (uint64_t round = 0; round < 300; round++) {
        struct ats_rng rng = test_rng(3000 + round);
        FILE *out = fopen(path, "wb");
        assert_non_null(out);
        const bool cut = round % 3 == 0;
        const size_t n = cut ? ats_rng_below(&rng, file.n) : file.n;
        char *bytes = malloc(file.n);
        memcpy(bytes, file.bytes, file.n);
        for (size_t i = 0; !cut && i < 3; i++) {
            bytes[ats_rng_below(&rng, 128)] = (char)ats_rng_below(&rng, 256);
        }
        fwrite(bytes, 1, n, out);
        if (round % 3 == 1) {
            fputc('x', out);
        }
        fclose(out);
        free(bytes);
        struct run read;
        const bool ok = run_load(&read, path, &err);
        if (ok) {
            assert_true(round % 3 == 2); /* the others have a wrong length */
            run_free(&read);
        }
    }
    text_free(&file);
    run_free(&run);
    unlink(path);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_ngram_by_hand),     cmocka_unit_test(test_ngram_pieces),
        cmocka_unit_test(test_ngram_sums_to_one), cmocka_unit_test(test_split_finds_kinds),
        cmocka_unit_test(test_checkpoint),        cmocka_unit_test(test_damaged_checkpoints),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
