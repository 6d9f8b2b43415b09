/* Products of matrices of floats, which are where the training's time goes.
 *
 * Both factors are given with two strides each, so a transposed matrix, a head of an attention or
 * a row of weights used as a column needs no copy. The order in which an element's terms are
 * summed depends on the shapes alone: not on the number of threads, nor on how work is shared. */
#ifndef ATS_TRAIN_MATMUL_H
#define ATS_TRAIN_MATMUL_H

#include "pool.h"

#include <stdbool.h>
#include <stddef.h>

/* Element (i, j) is data[i * row + j * column]. */
struct matrix {
    const float *data;
    size_t row;
    size_t column;
};

/* A matrix whose rows have `width` elements one after the other, and its transpose. */
static inline struct matrix matrix_rows(const float *data, size_t width)
{
    return (struct matrix){data, width, 1};
}

static inline struct matrix matrix_transposed(const float *data, size_t width)
{
    return (struct matrix){data, 1, width};
}

/* Memory for one thread's products. */
struct matmul_space;

struct matmul_space *matmul_space_new(void); /* NULL: out of memory */
void matmul_space_free(struct matmul_space *space);

/* C = A B, or C += A B: A has m rows of k, B has k rows of n, C's rows are `c_row` floats apart.
 * On the calling thread. */
void matmul_here(struct matmul_space *space, size_t m, size_t n, size_t k, struct matrix a,
                 struct matrix b, float *c, size_t c_row, bool add);

/* The same on all threads of the pool; `spaces` has one per worker. */
void matmul(struct pool *pool, struct matmul_space **spaces, size_t m, size_t n, size_t k,
            struct matrix a, struct matrix b, float *c, size_t c_row, bool add);

#endif
