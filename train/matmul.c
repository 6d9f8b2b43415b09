/* After Goto and van de Geijn, "Anatomy of High-Performance Matrix Multiplication", ACM TOMS 34(3),
 * 2008: factors are cut into blocks that fit the caches and packed in the order in which a small
 * kernel reads them, which keeps a tile of the result in registers. */
#include "matmul.h"

#include "vec.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

/* A tile is TILE_ROWS rows of two vectors. With 32 registers 24 hold the tile; with 16, twelve. */
#ifdef __AVX512F__
#define TILE_ROWS 12
#define EACH_ROW(DO) DO(0) DO(1) DO(2) DO(3) DO(4) DO(5) DO(6) DO(7) DO(8) DO(9) DO(10) DO(11)
#else
#define TILE_ROWS 6
#define EACH_ROW(DO) DO(0) DO(1) DO(2) DO(3) DO(4) DO(5)
#endif

enum {
    TILE_COLUMNS = 2 * VEC,
    BLOCK_DEPTH = 256,           /* of a block in k: a panel of B (32 KiB) stays in L1 */
    BLOCK_ROWS = 10 * TILE_ROWS, /* of A: 120 KiB of L2 */
    BLOCK_COLUMNS = 512,         /* of B: 512 KiB */
};

struct matmul_space {
    float *a; /* BLOCK_ROWS x BLOCK_DEPTH */
    float *b; /* BLOCK_DEPTH x BLOCK_COLUMNS */
};

struct matmul_space *matmul_space_new(void)
{
    struct matmul_space *space = calloc(1, sizeof *space);
    if (space == NULL) {
        return NULL;
    }
    space->a = aligned_alloc(64, (size_t)BLOCK_ROWS * BLOCK_DEPTH * sizeof(float));
    space->b = aligned_alloc(64, (size_t)BLOCK_COLUMNS * BLOCK_DEPTH * sizeof(float));
    if (space->a == NULL || space->b == NULL) {
        matmul_space_free(space);
        return NULL;
    }
    return space;
}

void matmul_space_free(struct matmul_space *space)
{
    if (space != NULL) {
        free(space->a);
        free(space->b);
        free(space);
    }
}

static size_t least(size_t a, size_t b)
{
    return a < b ? a : b;
}

/* Packs `rows` rows of `depth` elements in panels of `width` rows: in a panel, the elements of one
 * k lie together. Missing rows of the last panel are zeros. */
static inline void pack(float *to, struct matrix m, size_t rows, size_t depth, size_t width)
{
    for (size_t r0 = 0; r0 < rows; r0 += width) {
        const size_t n = least(width, rows - r0);
        const float *from = m.data + r0 * m.row;
        if (n < width) {
            memset(to, 0, width * depth * sizeof *to);
        }
        if (m.row == 1) {
            for (size_t k = 0; k < depth; k++) {
                memcpy(to + k * width, from + k * m.column, n * sizeof *to);
            }
        } else {
            for (size_t r = 0; r < n; r++) {
                for (size_t k = 0; k < depth; k++) {
                    to[k * width + r] = from[r * m.row + k * m.column];
                }
            }
        }
        to += width * depth;
    }
}

/* tile = A's panel times B's panel, over `depth`. */
static inline void multiply_tile(size_t depth, const float *a, const float *b, float *tile)
{
#define DECLARE(r) vec s##r##_0 = {0}, s##r##_1 = {0};
#define ACCUMULATE(r)                                                                              \
    s##r##_0 += a[r] * b0;                                                                         \
    s##r##_1 += a[r] * b1;
#define STORE(r)                                                                                   \
    vec_store(&s##r##_0, tile + (size_t)(r)*TILE_COLUMNS);                                         \
    vec_store(&s##r##_1, tile + (size_t)(r)*TILE_COLUMNS + VEC);
    EACH_ROW(DECLARE)
    for (size_t k = 0; k < depth; k++) {
        vec b0;
        vec b1;
        vec_load(&b0, b);
        vec_load(&b1, b + VEC);
        EACH_ROW(ACCUMULATE)
        a += TILE_ROWS;
        b += TILE_COLUMNS;
    }
    EACH_ROW(STORE)
}

static void put_tile(const float *tile, size_t rows, size_t columns, float *c, size_t c_row,
                     bool add)
{
    for (size_t r = 0; r < rows; r++) {
        const float *from = tile + r * TILE_COLUMNS;
        float *to = c + r * c_row;
        if (add) {
            for (size_t j = 0; j < columns; j++) {
                to[j] += from[j];
            }
        } else {
            memcpy(to, from, columns * sizeof *to);
        }
    }
}

/* C's block of m rows and n columns, from a packed B of `depth`. */
static void multiply_block(struct matmul_space *space, size_t m, size_t n, size_t depth,
                           struct matrix a, float *c, size_t c_row, bool add)
{
    float tile[TILE_ROWS * TILE_COLUMNS] __attribute__((aligned(64)));
    for (size_t i0 = 0; i0 < m; i0 += BLOCK_ROWS) {
        const size_t rows = least(BLOCK_ROWS, m - i0);
        struct matrix part = a;
        part.data += i0 * a.row;
        pack(space->a, part, rows, depth, TILE_ROWS);
        for (size_t j = 0; j < n; j += TILE_COLUMNS) {
            const float *b = space->b + j * depth;
            for (size_t i = 0; i < rows; i += TILE_ROWS) {
                multiply_tile(depth, space->a + i * depth, b, tile);
                put_tile(tile, least(TILE_ROWS, rows - i), least(TILE_COLUMNS, n - j),
                         c + (i0 + i) * c_row + j, c_row, add);
            }
        }
    }
}

void matmul_here(struct matmul_space *space, size_t m, size_t n, size_t k, struct matrix a,
                 struct matrix b, float *c, size_t c_row, bool add)
{
    for (size_t j = 0; j < n; j += BLOCK_COLUMNS) {
        const size_t columns = least(BLOCK_COLUMNS, n - j);
        for (size_t k0 = 0; k0 < k; k0 += BLOCK_DEPTH) {
            const size_t depth = least(BLOCK_DEPTH, k - k0);
            const struct matrix b_part = {b.data + k0 * b.row + j * b.column, b.column, b.row};
            pack(space->b, b_part, columns, depth, TILE_COLUMNS);
            struct matrix a_part = a;
            a_part.data += k0 * a.column;
            multiply_block(space, m, columns, depth, a_part, c + j, c_row, add || k0 > 0);
        }
    }
}

struct shared_product {
    struct matmul_space **spaces;
    size_t m, n, k, rows_per_job;
    struct matrix a, b;
    float *c;
    size_t c_row;
    bool add;
};

static void multiply_rows(void *context, size_t job, size_t worker)
{
    const struct shared_product *p = context;
    const size_t first = job * p->rows_per_job;
    struct matrix a = p->a;
    a.data += first * a.row;
    matmul_here(p->spaces[worker], least(p->rows_per_job, p->m - first), p->n, p->k, a, p->b,
                p->c + first * p->c_row, p->c_row, p->add);
}

void matmul(struct pool *pool, struct matmul_space **spaces, size_t m, size_t n, size_t k,
            struct matrix a, struct matrix b, float *c, size_t c_row, bool add)
{
    /* Each job packs all of B for itself: few rows make that dear, many leave threads without. */
    const size_t jobs = m >= 1024 ? 2 * pool_workers(pool) : pool_workers(pool);
    size_t rows = (m + jobs - 1) / jobs;
    rows = (rows + TILE_ROWS - 1) / TILE_ROWS * TILE_ROWS;
    struct shared_product product = {spaces, m, n, k, rows, a, b, c, c_row, add};
    pool_run(pool, (m + rows - 1) / rows, multiply_rows, &product);
}
