/* Linear programs in the form: maximise c x subject to A x <= b, x >= 0, with
 * b >= 0, so that x = 0 is feasible. A dense tableau; the steepest column enters,
 * or, while nothing is gained, the first by number (Bland), so that it ends. For
 * programs of some dozens of variables.
 *
 * Pure. A program is used by one thread at a time. */
#ifndef ATS_COST_SIMPLEX_H
#define ATS_COST_SIMPLEX_H

#include <stdbool.h>
#include <stddef.h>

struct ats_simplex {
    size_t n_rows;
    size_t n_columns;
    double *cells; /* (n_rows + 1) x (n_columns + 1): rows with b last, then the objective */
};

/* All zeros. False if memory is out. */
bool ats_simplex_init(struct ats_simplex *simplex, size_t n_rows, size_t n_columns);
void ats_simplex_free(struct ats_simplex *simplex);

/* A coefficient of a row; column n_columns is b. Row n_rows is the objective. */
double *ats_simplex_at(struct ats_simplex *simplex, size_t row, size_t column);

/* Writes the best x (n_columns numbers). False if there is no best one (unbounded), memory is
 * out, or rounding keeps it from ending. */
bool ats_simplex_solve(struct ats_simplex *simplex, double *x);

#endif
