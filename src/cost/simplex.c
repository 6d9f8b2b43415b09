#include "cost/simplex.h"

#include <math.h>
#include <stdlib.h>

/* Coefficients are scaled to about 1 by the caller; what is smaller is rounding. */
static const double EPSILON = 1e-11;

/* So many pivots in a row that gain nothing may be a cycle. */
enum { MAX_PIVOTS = 20000, MAX_IDLE_PIVOTS = 50 };

bool ats_simplex_init(struct ats_simplex *s, size_t n_rows, size_t n_columns)
{
    *s = (struct ats_simplex){.n_rows = n_rows, .n_columns = n_columns};
    s->cells = calloc((n_rows + 1) * (n_columns + 1), sizeof(*s->cells));
    return s->cells != NULL;
}

void ats_simplex_free(struct ats_simplex *s)
{
    free(s->cells);
    *s = (struct ats_simplex){0};
}

double *ats_simplex_at(struct ats_simplex *s, size_t row, size_t column)
{
    return &s->cells[row * (s->n_columns + 1) + column];
}

/* Which variable each column and row stands for: below n_columns an x, else a slack. */
struct basis {
    size_t *column;
    size_t *row;
};

/* The column to enter, else n_columns: the one that raises the objective most per unit, which takes
 * few pivots; or, with `by_number`, the first that raises it (Bland), which cannot cycle. */
static size_t entering(struct ats_simplex *s, const struct basis *basis, bool by_number)
{
    size_t best = s->n_columns;
    double most = EPSILON;
    for (size_t c = 0; c < s->n_columns; c++) {
        const double gain = *ats_simplex_at(s, s->n_rows, c);
        if (gain <= EPSILON) {
            continue;
        }
        const bool first = best == s->n_columns || basis->column[c] < basis->column[best];
        if (by_number ? first : gain > most) {
            best = c;
            most = gain;
        }
    }
    return best;
}

/* The row that limits it most; ties by number. n_rows: none does. */
static size_t leaving(struct ats_simplex *s, const struct basis *basis, size_t column)
{
    size_t best = s->n_rows;
    double least = INFINITY;
    for (size_t r = 0; r < s->n_rows; r++) {
        const double a = *ats_simplex_at(s, r, column);
        if (a <= EPSILON) {
            continue;
        }
        const double ratio = fmax(*ats_simplex_at(s, r, s->n_columns), 0) / a;
        if (ratio < least || (ratio <= least && basis->row[r] < basis->row[best])) {
            least = ratio;
            best = r;
        }
    }
    return best;
}

static void pivot(struct ats_simplex *s, size_t row, size_t column)
{
    const double p = *ats_simplex_at(s, row, column);
    for (size_t c = 0; c <= s->n_columns; c++) {
        *ats_simplex_at(s, row, c) /= p;
    }
    *ats_simplex_at(s, row, column) = 1 / p;
    for (size_t r = 0; r <= s->n_rows; r++) {
        const double factor = *ats_simplex_at(s, r, column);
        if (r == row || factor == 0) {
            continue;
        }
        for (size_t c = 0; c <= s->n_columns; c++) {
            const double change = factor * *ats_simplex_at(s, row, c);
            *ats_simplex_at(s, r, c) -= c == column ? 0 : change;
        }
        *ats_simplex_at(s, r, column) = -factor / p;
    }
}

static bool iterate(struct ats_simplex *s, struct basis *basis)
{
    int idle = 0;
    for (int i = 0; i < MAX_PIVOTS; i++) {
        const size_t column = entering(s, basis, idle > MAX_IDLE_PIVOTS);
        if (column == s->n_columns) {
            return true;
        }
        const size_t row = leaving(s, basis, column);
        if (row == s->n_rows) {
            return false;
        }
        const double before = *ats_simplex_at(s, s->n_rows, s->n_columns);
        pivot(s, row, column);
        const double gained = fabs(*ats_simplex_at(s, s->n_rows, s->n_columns) - before);
        idle = gained > EPSILON ? 0 : idle + 1;
        const size_t moved = basis->column[column];
        basis->column[column] = basis->row[row];
        basis->row[row] = moved;
    }
    return false;
}

bool ats_simplex_solve(struct ats_simplex *s, double *x)
{
    struct basis basis = {calloc(s->n_columns, sizeof(size_t)), calloc(s->n_rows, sizeof(size_t))};
    bool good = basis.column != NULL && basis.row != NULL;
    for (size_t c = 0; good && c < s->n_columns; c++) {
        basis.column[c] = c;
    }
    for (size_t r = 0; good && r < s->n_rows; r++) {
        basis.row[r] = s->n_columns + r;
    }
    good = good && iterate(s, &basis);
    for (size_t c = 0; good && c < s->n_columns; c++) {
        x[c] = 0;
    }
    for (size_t r = 0; good && r < s->n_rows; r++) {
        if (basis.row[r] < s->n_columns) {
            x[basis.row[r]] = *ats_simplex_at(s, r, s->n_columns);
        }
    }
    free(basis.column);
    free(basis.row);
    return good;
}
