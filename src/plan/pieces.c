#include "plan/pieces.h"

const struct ats_piece_rule ats_piece_rule_default = {
    .most_bytes = (size_t)48 << 20,
    .row_tile = 128,
    .least_rows = 32,
};

struct ats_pieces ats_pieces_of(const struct ats_piece_rule *rule, size_t row_bytes,
                                uint64_t n_rows, uint64_t n_experts)
{
    const struct ats_pieces whole = {.n = 1, .rows = (uint32_t)n_rows};
    if (row_bytes == 0 || n_experts <= 1 || n_rows > UINT32_MAX) {
        return whole;
    }
    const uint64_t fit = rule->most_bytes / n_experts / row_bytes;
    const uint64_t step = fit >= rule->row_tile ? rule->row_tile : rule->least_rows;
    const uint64_t rows = fit > step ? fit / step * step : step;
    if (rows >= n_rows) {
        return whole;
    }
    return (struct ats_pieces){.n = (uint32_t)((n_rows + rows - 1) / rows), .rows = (uint32_t)rows};
}

uint32_t ats_piece_rows(const struct ats_pieces *pieces, uint64_t n_rows, uint32_t i)
{
    const uint64_t before = (uint64_t)i * pieces->rows;
    const uint64_t left = n_rows > before ? n_rows - before : 0;
    return left < pieces->rows ? (uint32_t)left : pieces->rows;
}

size_t ats_piece_scratch(const struct ats_pieces *pieces, uint64_t columns)
{
    return pieces->n > 1 ? sizeof(float) * pieces->rows * (size_t)columns : 0;
}
