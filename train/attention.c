#include "attention.h"

#include "layers.h"

#include <math.h>
#include <string.h>

/* Columns of a head in a row of qkv, and the length of such a row. */
struct places {
    size_t head;    /* width of a head */
    size_t row;     /* of qkv */
    size_t out_row; /* of the result */
    size_t key;     /* this group's, as an offset in a row */
    size_t value;
    size_t first_query; /* number of the group's first query head */
    size_t queries;     /* query heads of the group */
};

static struct places find_places(const struct net_shape *shape, size_t group)
{
    const size_t head = shape->width / shape->heads;
    const size_t queries = shape->heads / shape->kv_heads;
    return (struct places){
        .head = head,
        .row = head * (shape->heads + 2 * (size_t)shape->kv_heads),
        .out_row = head * shape->heads,
        .key = head * (shape->heads + group),
        .value = head * (shape->heads + shape->kv_heads + group),
        .first_query = group * queries,
        .queries = queries,
    };
}

static size_t block_rows(size_t context, size_t first)
{
    return context - first < ATTEND_BLOCK ? context - first : ATTEND_BLOCK;
}

void attend(const struct net_shape *shape, size_t group, struct matmul_space *space,
            const float *qkv, float *probs, float *out)
{
    const struct places at = find_places(shape, group);
    const size_t context = shape->context;
    const float scale = 1.0f / sqrtf((float)at.head);
    for (size_t h = at.first_query; h < at.first_query + at.queries; h++) {
        float *p = probs + h * context * context;
        for (size_t first = 0; first < context; first += ATTEND_BLOCK) {
            const size_t rows = block_rows(context, first);
            const size_t keys = first + rows;
            float *block = p + first * context;
            matmul_here(space, rows, keys, at.head,
                        matrix_rows(qkv + first * at.row + h * at.head, at.row),
                        matrix_transposed(qkv + at.key, at.row), block, context, false);
            for (size_t r = 0; r < rows; r++) {
                softmax(first + r + 1, keys, scale, block + r * context);
            }
            matmul_here(space, rows, at.head, keys, matrix_rows(block, context),
                        matrix_rows(qkv + at.value, at.row), out + first * at.out_row + h * at.head,
                        at.out_row, false);
        }
    }
}

/* A row of dP becomes one of dS: p (dp - sum p dp) scale, and the sum is that over the head of
 * out dout. */
static void softmax_back(size_t keys, size_t head, float scale, const float *p, const float *out,
                         const float *dout, float *dp)
{
    float common = 0.0f;
    for (size_t i = 0; i < head; i++) {
        common += out[i] * dout[i];
    }
    for (size_t i = 0; i < keys; i++) {
        dp[i] = p[i] * (dp[i] - common) * scale;
    }
}

void attend_back(const struct net_shape *shape, size_t group, struct matmul_space *space,
                 const float *qkv, const float *probs, const float *out, const float *dout,
                 float *scratch, float *dqkv)
{
    const struct places at = find_places(shape, group);
    const size_t context = shape->context;
    const float scale = 1.0f / sqrtf((float)at.head);
    for (size_t r = 0; r < context; r++) {
        memset(dqkv + r * at.row + at.key, 0, at.head * sizeof *dqkv);
        memset(dqkv + r * at.row + at.value, 0, at.head * sizeof *dqkv);
    }
    for (size_t h = at.first_query; h < at.first_query + at.queries; h++) {
        for (size_t first = 0; first < context; first += ATTEND_BLOCK) {
            const size_t rows = block_rows(context, first);
            const size_t keys = first + rows;
            const float *p = probs + (h * context + first) * context;
            const float *o = out + first * at.out_row + h * at.head;
            const float *d = dout + first * at.out_row + h * at.head;
            const float *q = qkv + first * at.row + h * at.head;
            matmul_here(space, keys, at.head, rows, matrix_transposed(p, context),
                        matrix_rows(d, at.out_row), dqkv + at.value, at.row, true);
            matmul_here(space, rows, keys, at.head, matrix_rows(d, at.out_row),
                        matrix_transposed(qkv + at.value, at.row), scratch, context, false);
            for (size_t r = 0; r < rows; r++) {
                softmax_back(keys, at.head, scale, p + r * context, o + r * at.out_row,
                             d + r * at.out_row, scratch + r * context);
            }
            matmul_here(space, rows, at.head, keys, matrix_rows(scratch, context),
                        matrix_rows(qkv + at.key, at.row), dqkv + first * at.row + h * at.head,
                        at.row, false);
            matmul_here(space, keys, at.head, rows, matrix_transposed(scratch, context),
                        matrix_rows(q, at.row), dqkv + at.key, at.row, true);
        }
    }
}
