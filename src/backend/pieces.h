/* Products with matrices that pass through staging memory in pieces (plan/pieces.h). */
#ifndef ATS_BACKEND_PIECES_H
#define ATS_BACKEND_PIECES_H

#include "backend/describe.h"

/* Computes some rows of a product: they are made in scratch, and copied to where they belong. */
struct ats_piece_op {
    struct ggml_tensor weight;  /* the piece, in staging memory */
    struct ggml_tensor product; /* in scratch */
    struct ggml_tensor columns; /* the same with all columns in one dimension */
    struct ggml_tensor rows;    /* of the result likewise: a view of its stand-in */
    struct ggml_tensor copy;
    struct ggml_tensor *nodes[2];
    struct ggml_cgraph graph; /* with use counts of its own */
};

/* The product that reads the root, a matrix or one of stacked experts, and is the only operator to
 * do so; or NULL. */
const struct ggml_tensor *ats_pieces_reader(const struct ats_description *description, size_t root);

/* How the root passes through staging memory that is used in that way: in how many pieces, or as a
 * whole if it fits in one,
 * or if it is no matrix that one product alone reads. */
struct ats_pieces ats_pieces_of_root(const struct ats_device *device,
                                     const struct ats_staging_way *way,
                                     const struct ats_description *description, size_t root);

/* A piece of so many rows, as a tensor without a place. */
struct ggml_tensor ats_piece_tensor(const struct ggml_tensor *matrix, uint32_t rows);

/* Columns of the product that reads the root if it computed at least so many tokens: tokens, times
 * experts that each uses. 0: none reads it. */
uint64_t ats_piece_columns(const struct ats_description *description, size_t root,
                           uint64_t least_tokens);

/* Makes the operator of one piece, which is in `weight`; its other operands have stand-ins.
 * Free it with ats_piece_op_free, on failure too. */
bool ats_piece_op_make(struct ats_description *description, size_t root, uint32_t piece,
                       const struct ggml_tensor *weight, void *scratch, struct ats_piece_op *op,
                       struct ats_error *err);
void ats_piece_op_free(struct ats_piece_op *op);

#endif
