#include "split.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { ROUNDS = 20 }; /* of k-means; it changes little after ten */

struct candidate {
    float similarity;
    uint32_t unit;
    uint32_t group;
};

/* The most similar first; ties by number, so that the order is the same everywhere. */
static int compare(const void *a, const void *b)
{
    const struct candidate *x = a;
    const struct candidate *y = b;
    if (x->similarity != y->similarity) {
        return x->similarity > y->similarity ? -1 : 1;
    }
    if (x->unit != y->unit) {
        return x->unit < y->unit ? -1 : 1;
    }
    return x->group < y->group ? -1 : x->group > y->group;
}

static double length(const float *x, size_t n, size_t stride)
{
    double sum = 0.0;
    for (size_t i = 0; i < n; i++) {
        sum += (double)x[i * stride] * (double)x[i * stride];
    }
    return sqrt(sum);
}

/* A unit's gate as the block's input meets it: with the norm's gain, and of length 1. */
static void direction(const struct split_block *b, size_t unit, float *to)
{
    for (size_t i = 0; i < b->width; i++) {
        to[i] = b->gate[unit * b->width + i] * b->gain[i];
    }
    const double l = length(to, b->width, 1);
    for (size_t i = 0; i < b->width && l > 0.0; i++) {
        to[i] = (float)((double)to[i] / l);
    }
}

/* Units to groups, the best pairs first, until groups are full. */
static void assign(const struct split_block *b, size_t experts, const float *directions,
                   const float *centres, struct candidate *candidates, uint32_t *group_of)
{
    const size_t size = b->ff / experts;
    for (size_t u = 0; u < b->ff; u++) {
        for (size_t g = 0; g < experts; g++) {
            float product = 0.0f;
            for (size_t i = 0; i < b->width; i++) {
                product += directions[u * b->width + i] * centres[g * b->width + i];
            }
            candidates[u * experts + g] = (struct candidate){product, (uint32_t)u, (uint32_t)g};
        }
        group_of[u] = UINT32_MAX;
    }
    qsort(candidates, b->ff * experts, sizeof *candidates, compare);
    size_t filled[SPLIT_MAX_EXPERTS] = {0};
    for (size_t c = 0; c < b->ff * experts; c++) {
        const struct candidate *at = &candidates[c];
        if (group_of[at->unit] == UINT32_MAX && filled[at->group] < size) {
            group_of[at->unit] = at->group;
            filled[at->group]++;
        }
    }
}

/* A centre is the sum of its group's directions, at length 1. */
static void move_centres(const struct split_block *b, size_t experts, const float *directions,
                         const uint32_t *group_of, float *centres)
{
    memset(centres, 0, experts * b->width * sizeof *centres);
    for (size_t u = 0; u < b->ff; u++) {
        float *centre = centres + group_of[u] * b->width;
        for (size_t i = 0; i < b->width; i++) {
            centre[i] += directions[u * b->width + i];
        }
    }
    for (size_t g = 0; g < experts; g++) {
        float *centre = centres + g * b->width;
        const double l = length(centre, b->width, 1);
        for (size_t i = 0; i < b->width && l > 0.0; i++) {
            centre[i] = (float)((double)centre[i] / l);
        }
    }
}

bool split_group(const struct split_block *b, size_t experts, uint32_t *order)
{
    float *directions = calloc(b->ff * b->width, sizeof *directions);
    float *centres = calloc(experts * b->width, sizeof *centres);
    struct candidate *candidates = calloc(b->ff * experts, sizeof *candidates);
    uint32_t *group_of = calloc(b->ff, sizeof *group_of);
    const bool ok = directions != NULL && centres != NULL && candidates != NULL && group_of != NULL;
    if (ok) {
        for (size_t u = 0; u < b->ff; u++) {
            direction(b, u, directions + u * b->width);
            group_of[u] = (uint32_t)(u / (b->ff / experts)); /* to begin with */
        }
        for (int round = 0; round < ROUNDS; round++) {
            move_centres(b, experts, directions, group_of, centres);
            assign(b, experts, directions, centres, candidates, group_of);
        }
        size_t n = 0;
        for (uint32_t g = 0; g < experts; g++) {
            for (uint32_t u = 0; u < b->ff; u++) {
                if (group_of[u] == g) {
                    order[n++] = u;
                }
            }
        }
    }
    free(directions);
    free(centres);
    free(candidates);
    free(group_of);
    return ok;
}

void split_router(const struct split_block *b, size_t experts, const uint32_t *order, float *router)
{
    const size_t size = b->ff / experts;
    double squares = 0.0; /* of logits for inputs of size 1 in every direction */
    memset(router, 0, experts * b->width * sizeof *router);
    for (size_t n = 0; n < b->ff; n++) {
        const size_t u = order[n];
        const float weight = (float)(length(b->up + u * b->width, b->width, 1) *
                                     length(b->down + u, b->width, b->ff));
        for (size_t i = 0; i < b->width; i++) {
            router[n / size * b->width + i] += weight * b->gate[u * b->width + i];
        }
    }
    for (size_t i = 0; i < experts * b->width; i++) {
        const double logit = (double)router[i] * (double)b->gain[i % b->width];
        squares += logit * logit;
    }
    const double spread = sqrt(squares / (double)experts);
    for (size_t i = 0; i < experts * b->width && spread > 0.0; i++) {
        router[i] = (float)((double)router[i] * (double)SPLIT_LOGIT_SPREAD / spread);
    }
}
