#include "plan/pieces.h"

const struct ats_piece_rule ats_piece_rule_default = {
    .most_bytes = (size_t)48 << 20,
    .most_dense_bytes = (size_t)16 << 20,
    .row_tile = 128,
    .least_rows = 32,
};

const struct ats_piece_rule ats_piece_rule_whole = {
    .most_bytes = SIZE_MAX, .most_dense_bytes = SIZE_MAX, .row_tile = 1, .least_rows = 1};

static uint64_t parts(uint64_t n, uint64_t of)
{
    return (n + of - 1) / of;
}

struct ats_pieces ats_pieces_of(const struct ats_piece_rule *rule, size_t row_bytes,
                                uint64_t n_rows, uint64_t n_experts)
{
    const struct ats_pieces whole = {.n = 1, .rows = (uint32_t)n_rows};
    const bool is_odd = n_experts == 1 && n_rows % rule->least_rows != 0;
    if (row_bytes == 0 || n_experts == 0 || is_odd || n_rows > UINT32_MAX) {
        return whole;
    }
    const size_t most = n_experts > 1 ? rule->most_bytes : rule->most_dense_bytes;
    const uint64_t fit = most / n_experts / row_bytes;
    const uint64_t step = fit >= rule->row_tile ? rule->row_tile : rule->least_rows;
    const uint64_t most_rows = fit > step ? fit / step * step : step;
    if (most_rows >= n_rows) {
        return whole;
    }
    const uint64_t rows = parts(parts(n_rows, parts(n_rows, most_rows)), step) * step;
    return (struct ats_pieces){.n = (uint32_t)parts(n_rows, rows), .rows = (uint32_t)rows};
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
