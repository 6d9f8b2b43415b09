/* The model's forward and backward pass against one in doubles, and what does not change them. */
#include "adamw.h"
#include "layers.h"
#include "matmul.h"
#include "net.h"
#include "reference.h"
#include "vec.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "unit/seed.h"

static float random_float(struct ats_rng *rng)
{
    return (float)ats_rng_below(rng, 1u << 24) / (float)(1u << 23) - 1.0f;
}

/* Shapes of all kinds, each with edges that blocks of the fast code do not divide. */
static const struct net_shape shapes[] = {
    {.vocab = 48, .width = 32, .layers = 2, .heads = 2, .kv_heads = 1, .ff = 80, .context = 16},
    {.vocab = 32, .width = 48, .layers = 1, .heads = 3, .kv_heads = 3, .ff = 16, .context = 48},
    {.vocab = 16, .width = 16, .layers = 3, .heads = 4, .kv_heads = 2, .ff = 32, .context = 144},
};
enum { N_SHAPES = sizeof shapes / sizeof shapes[0], WINDOWS = 2 };

struct fixture {
    struct pool *pool;
    struct net *net;
    size_t n;
    float *params;
    double *exact;
    float *grads;
    int32_t *tokens;
};

static void set_up(struct fixture *f, const struct net_shape *shape, size_t threads,
                   struct ats_rng *rng)
{
    struct ats_error err;
    f->pool = pool_new(threads, &err);
    assert_non_null(f->pool);
    f->net = net_new(shape, WINDOWS, f->pool, &err);
    assert_non_null(f->net);
    f->n = net_param_count(shape);
    f->params = malloc(f->n * sizeof *f->params);
    f->exact = malloc(f->n * sizeof *f->exact);
    f->grads = malloc(f->n * sizeof *f->grads);
    f->tokens = calloc(WINDOWS * ((size_t)shape->context + 1), sizeof *f->tokens);
    net_init_params(shape, ats_rng_next(rng), f->params);
    for (size_t i = 0; i < f->n; i++) {
        f->params[i] += 0.2f * random_float(rng); /* gains and embeddings that matter */
        f->exact[i] = (double)f->params[i];
    }
    for (size_t i = 0; i < WINDOWS * ((size_t)shape->context + 1); i++) {
        f->tokens[i] = (int32_t)ats_rng_below(rng, shape->vocab);
    }
}

static void tear_down(struct fixture *f)
{
    net_free(f->net);
    pool_free(f->pool);
    free(f->params);
    free(f->exact);
    free(f->grads);
    free(f->tokens);
}

static void test_loss_and_logits(void **state)
{
    (void)state;
    for (size_t s = 0; s < N_SHAPES; s++) {
        struct ats_rng rng = test_rng(s);
        struct fixture f;
        set_up(&f, &shapes[s], 2, &rng);
        for (size_t windows = 1; windows <= WINDOWS; windows++) {
            const double loss = net_loss(f.net, f.params, f.tokens, windows, NULL);
            const double exact = reference_loss(&shapes[s], f.exact, f.tokens, windows);
            assert_true(fabs(loss - exact) < 1e-5);
        }
        const size_t vocab = shapes[s].vocab;
        float *logits = malloc(shapes[s].context * vocab * sizeof *logits);
        double *exact = malloc(vocab * sizeof *exact);
        net_logits(f.net, f.params, f.tokens, logits);
        for (size_t t = 0; t < shapes[s].context; t += 5) {
            reference_logits(&shapes[s], f.exact, f.tokens, t, exact);
            for (size_t i = 0; i < vocab; i++) {
                assert_true(fabs((double)logits[t * vocab + i] - exact[i]) < 1e-4);
            }
        }
        free(logits);
        free(exact);
        tear_down(&f);
    }
}

/* (L(p + h) - L(p - h)) / 2h of the model in doubles, for some parameters of each tensor; its error
 * is of the order of h^2 L'''. */
static void test_gradients(void **state)
{
    (void)state;
    enum { PER_TENSOR = 2 };
    const double h = 1e-4;
    for (size_t s = 0; s < N_SHAPES; s++) {
        struct ats_rng rng = test_rng(100 + s);
        struct fixture f;
        set_up(&f, &shapes[s], 2, &rng);
        net_loss(f.net, f.params, f.tokens, WINDOWS, f.grads);
        for (size_t i = 0; i < net_tensor_count(&shapes[s]); i++) {
            const struct net_tensor t = net_tensor_at(&shapes[s], i);
            for (int n = 0; n < PER_TENSOR; n++) {
                const size_t at = t.offset + ats_rng_below(&rng, t.rows * t.columns);
                const double kept = f.exact[at];
                f.exact[at] = kept + h;
                const double above = reference_loss(&shapes[s], f.exact, f.tokens, WINDOWS);
                f.exact[at] = kept - h;
                const double below = reference_loss(&shapes[s], f.exact, f.tokens, WINDOWS);
                f.exact[at] = kept;
                const double expected = (above - below) / (2.0 * h);
                if (fabs((double)f.grads[at] - expected) > 2e-6 + 1e-3 * fabs(expected)) {
                    fail_msg("shape %zu, %s[%zu]: gradient %g, expected %g", s, t.name,
                             at - t.offset, (double)f.grads[at], expected);
                }
            }
        }
        tear_down(&f);
    }
}

static void test_threads_change_nothing(void **state)
{
    (void)state;
    struct fixture one;
    struct fixture three;
    struct ats_rng rng = test_rng(200);
    struct ats_rng same = rng;
    set_up(&one, &shapes[2], 1, &rng);
    set_up(&three, &shapes[2], 3, &same);
    const double loss = net_loss(one.net, one.params, one.tokens, WINDOWS, one.grads);
    for (int i = 0; i < 5; i++) {
        assert_true(net_loss(three.net, three.params, three.tokens, WINDOWS, three.grads) == loss);
        assert_memory_equal(one.grads, three.grads, one.n * sizeof *one.grads);
    }
    tear_down(&one);
    tear_down(&three);
}

/* A token does not see what comes after it. */
static void test_is_causal(void **state)
{
    (void)state;
    struct ats_rng rng = test_rng(300);
    const struct net_shape *shape = &shapes[2];
    struct fixture f;
    set_up(&f, shape, 1, &rng);
    const size_t vocab = shape->vocab;
    const size_t at = 131; /* in the second block of queries */
    float *before = malloc(shape->context * vocab * sizeof *before);
    float *after = malloc(shape->context * vocab * sizeof *after);
    net_logits(f.net, f.params, f.tokens, before);
    f.tokens[at] = (f.tokens[at] + 1) % (int32_t)vocab;
    net_logits(f.net, f.params, f.tokens, after);
    assert_memory_equal(before, after, at * vocab * sizeof *before);
    assert_memory_not_equal(before + at * vocab, after + at * vocab, vocab * sizeof *before);
    free(before);
    free(after);
    tear_down(&f);
}

static void test_matmul(void **state)
{
    (void)state;
    struct ats_error err;
    struct pool *pool = pool_new(2, &err);
    struct matmul_space *spaces[2] = {matmul_space_new(), matmul_space_new()};
    for (uint64_t round = 0; round < 40; round++) {
        struct ats_rng rng = test_rng(400 + round);
        const size_t m = test_between(&rng, 1, round % 8 == 0 ? 1100 : 60);
        const size_t n = test_between(&rng, 1, round % 9 == 0 ? 600 : 60);
        const size_t k = test_between(&rng, 1, round % 3 == 0 ? 600 : 60);
        const bool add = test_chance(&rng, 50);
        float *a = malloc(m * k * sizeof *a);
        float *b = malloc(k * n * sizeof *b);
        float *c = malloc(m * (n + 3) * sizeof *c);
        for (size_t i = 0; i < m * k; i++) {
            a[i] = random_float(&rng);
        }
        for (size_t i = 0; i < k * n; i++) {
            b[i] = random_float(&rng);
        }
        for (size_t i = 0; i < m * (n + 3); i++) {
            c[i] = 0.5f;
        }
        const struct matrix ma =
            test_chance(&rng, 50) ? matrix_rows(a, k) : matrix_transposed(a, m);
        const struct matrix mb =
            test_chance(&rng, 50) ? matrix_rows(b, n) : matrix_transposed(b, k);
        matmul(pool, spaces, m, n, k, ma, mb, c, n + 3, add);
        for (size_t i = 0; i < m; i++) {
            for (size_t j = 0; j < n + 3; j++) {
                double sum = add || j >= n ? 0.5 : 0.0;
                for (size_t x = 0; x < k && j < n; x++) {
                    sum += (double)ma.data[i * ma.row + x * ma.column] *
                           (double)mb.data[x * mb.row + j * mb.column];
                }
                assert_true(fabs((double)c[i * (n + 3) + j] - sum) < 1e-6 * (double)(k + 20));
            }
        }
        free(a);
        free(b);
        free(c);
    }
    matmul_space_free(spaces[0]);
    matmul_space_free(spaces[1]);
    pool_free(pool);
}

static void test_exp(void **state)
{
    (void)state;
    for (int i = -8700; i <= 8800; i++) {
        vec x = {0};
        x += (float)i / 100.0f;
        const double expected = exp((double)x[0]);
        vec_exp(&x);
        assert_true(fabs((double)x[VEC - 1] / expected - 1.0) < 3e-7);
    }
    vec x = {-1e30f, 1e30f, -88.0f, 0.0f};
    vec_exp(&x);
    assert_true(x[0] >= 0.0f && x[0] < 1e-37f);
    assert_true(isfinite(x[1]) && x[1] > 1e38f);
    assert_true(x[2] >= 0.0f && x[2] < 1e-37f);
    assert_true(x[3] == 1.0f);
}

/* By hand: gradient 2, no clipping. First step: mean 0.2, corrected 2; square 0.2, corrected 4;
 * so the step is rate x 2 / 2. Second: mean 0.38 / 0.19 = 2, the same again. */
static void test_adamw_by_hand(void **state)
{
    (void)state;
    struct ats_error err;
    struct pool *pool = pool_new(1, &err);
    const struct adamw o = {.peak_rate = 0.1f,
                            .beta1 = 0.9f,
                            .beta2 = 0.95f,
                            .epsilon = 0.0f,
                            .clip = 10.0f,
                            .steps = 10};
    float p = 1.0f;
    float m = 0.0f;
    float v = 0.0f;
    const float g = 2.0f;
    adamw_step(pool, &o, 0, 2.0, 0.0f, 1, &g, &p, &m, &v);
    assert_true(fabsf(p - 0.9f) < 1e-6f);
    adamw_step(pool, &o, 1, 2.0, 0.0f, 1, &g, &p, &m, &v);
    assert_true(fabsf(p - 0.8f) < 1e-6f);
    /* decay 0.5: p loses 5 % of itself as well */
    adamw_step(pool, &o, 2, 2.0, 0.5f, 1, &g, &p, &m, &v);
    assert_true(fabsf(p - (0.8f * 0.95f - 0.1f)) < 1e-6f);
    /* a norm of 20 halves the gradient */
    float q = 0.0f;
    m = v = 0.0f;
    adamw_step(pool, &o, 0, 20.0, 0.0f, 1, &g, &q, &m, &v);
    assert_true(fabsf(m - 0.1f) < 1e-7f);
    const float three_four[2] = {3.0f, 4.0f};
    assert_true(fabs(adamw_norm(pool, three_four, 2) - 5.0) < 1e-12);
    pool_free(pool);
}

static void test_rate(void **state)
{
    (void)state;
    const struct adamw o = {.peak_rate = 1.0f, .warm_up_steps = 4, .steps = 100, .fall_steps = 19};
    assert_true(fabsf(adamw_rate(&o, 0) - 0.25f) < 1e-6f);
    assert_true(fabsf(adamw_rate(&o, 3) - 1.0f) < 1e-6f);
    assert_true(fabsf(adamw_rate(&o, 80) - 1.0f) < 1e-6f);
    assert_true(fabsf(adamw_rate(&o, 81) - 0.95f) < 1e-6f); /* 19 of 20 */
    assert_true(fabsf(adamw_rate(&o, 99) - 0.05f) < 1e-6f);
    assert_true(adamw_rate(&o, 100) == 0.0f);
}

static void test_bad_shapes(void **state)
{
    (void)state;
    struct ats_error err;
    assert_true(net_shape_check(&shapes[0], &err));
    struct net_shape bad = shapes[0];
    bad.width = 24;
    assert_false(net_shape_check(&bad, &err));
    bad = shapes[0];
    bad.heads = 3;
    assert_false(net_shape_check(&bad, &err));
    bad = shapes[0];
    bad.context = 0;
    assert_false(net_shape_check(&bad, &err));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_matmul),          cmocka_unit_test(test_exp),
        cmocka_unit_test(test_loss_and_logits), cmocka_unit_test(test_gradients),
        cmocka_unit_test(test_is_causal),       cmocka_unit_test(test_threads_change_nothing),
        cmocka_unit_test(test_adamw_by_hand),   cmocka_unit_test(test_rate),
        cmocka_unit_test(test_bad_shapes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
