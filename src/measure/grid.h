/* Which shapes are measured, and at which batches, in which order: the tables
 * behind `ats profile` and `ats profile --check`.
 *
 * Pure. */
#ifndef ATS_MEASURE_GRID_H
#define ATS_MEASURE_GRID_H

#include "model/model.h"
#include "profile/profile.h"

/* A shape without a side. weight_bytes is set, but for types that ggml does not know. */
struct ats_grid_shape {
    struct ats_profile_curve curve;
    bool is_quick; /* part of the quick profile */
};

/* All shapes, those that matter most first: *n of them. Points of BYTES shapes are rows of 4096
 * numbers; ats_grid_n converts. `row_bytes` says what a row of k elements of a type takes: 0 if
 * there is no such type. Freed by the caller; NULL if memory is out. */
struct ats_grid_shape *ats_grid_shapes(double (*row_bytes)(const char *type, double k), size_t *n);

/* The shapes of a model's weights, each once. */
struct ats_grid_shape *ats_grid_model(const struct ats_model *model, size_t *n);

/* Shapes between those of the grid, to check predictions by; the batches of each are in
 * ats_grid_held_batches. */
struct ats_grid_shape *ats_grid_held(double (*row_bytes)(const char *type, double k), size_t *n);

/* Batches are measured in passes over all shapes, so that a profile whose time is up has the
 * coarse picture of everything. A pass; *n of it, 0 after the last one. */
const double *ats_grid_pass(size_t pass, bool quick, size_t *n);
const double *ats_grid_held_batches(size_t *n);

/* A batch of `tokens` as the n of a shape's points. */
double ats_grid_n(const struct ats_profile_curve *curve, double tokens);

#endif
