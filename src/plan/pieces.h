/* Pieces: a large matrix on its way through staging memory, a few rows at a time; of stacked
 * experts, a few rows of each.
 *
 * Pure. A matrix of experts has hundreds of MB, one of a large dense model a hundred, and staging
 * memory has room for several of what passes through: whole matrices would take up to a gigabyte
 * from weights that could live in VRAM. A piece is the same rows of all experts, so the product
 * with it is those rows of the result. The product is made in memory of its own (scratch) and
 * copied to where the result belongs, since not every accelerator writes products between other
 * rows. Its values are those of the whole product as far as the accelerator's kernel adds up a row
 * alike for any number of rows.
 *
 * Thread-safety: no shared state. */
#ifndef ATS_PLAN_PIECES_H
#define ATS_PLAN_PIECES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* How finely matrices are cut. */
struct ats_piece_rule {
    size_t most_bytes;       /* of a piece of stacked experts, */
    size_t most_dense_bytes; /* and of another matrix, if `least_rows` rows are not more already */
    uint32_t row_tile;       /* a piece has a multiple of so many rows, */
    uint32_t least_rows; /* or of so many, if a tile is too large; the last one has what is left */
};

/* A piece of 48 MiB takes a PCIe 4.0 link 2 ms, two hundred times the latency of a copy. Smaller
 * pieces leave more VRAM to weights; but of experts in slots the others come in runs, which with
 * small pieces are short, so a faster link wants larger ones (docs/benchmark.md has what pieces
 * change by prediction). Other matrices come in one run: 16 MiB are 0.7 ms. Tiled kernels compute
 * 128 rows at once. With hundreds of experts a piece has fewer: their products are far shorter than
 * the copies, so that a tile may be partly empty. */
extern const struct ats_piece_rule ats_piece_rule_default;

/* Nothing is cut. */
extern const struct ats_piece_rule ats_piece_rule_whole;

struct ats_pieces {
    uint32_t n;    /* 0 or 1: the matrix passes as a whole */
    uint32_t rows; /* of each expert, in each piece but the last */
};

/* A matrix of `n_experts` (1: not of experts) times `n_rows` rows of `row_bytes`, cut into as few
 * pieces as the rule allows, of equal size but for the tiles. Of one that fits in a piece n is 1,
 * and of one without experts if its rows are no multiple of `least_rows`: for odd numbers of rows
 * some kernels add up in another order (ggml's CPU backend does for f32). */
struct ats_pieces ats_pieces_of(const struct ats_piece_rule *rule, size_t row_bytes,
                                uint64_t n_rows, uint64_t n_experts);

/* Rows in piece `i` of a matrix of `n_rows`. */
uint32_t ats_piece_rows(const struct ats_pieces *pieces, uint64_t n_rows, uint32_t i);

/* Bytes of scratch for the products of such pieces: f32, `columns` of them (tokens, times experts
 * that each uses). */
size_t ats_piece_scratch(const struct ats_pieces *pieces, uint64_t columns);

#endif
