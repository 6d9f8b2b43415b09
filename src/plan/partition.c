#include "plan/partition.h"

#include "base/rng.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* The sides left to `op`: data stays at home, so an operator goes to where its data is.
 * What it writes decides before what it reads, and an earlier source before a later one. */
static ats_side_set allowed_sides(const struct ats_graph_desc *graph, const struct ats_op *op)
{
    ats_side_set sides = op->supported;
    if (op->write >= 0 && (sides & graph->roots[op->write].home) != 0) {
        sides &= graph->roots[op->write].home;
    }
    for (uint32_t r = 0; r < op->n_reads; r++) {
        const ats_side_set home = graph->roots[graph->reads[op->first_read + r]].home;
        if ((sides & home) != 0) {
            sides &= home;
        }
    }
    return sides;
}

/* h_i: what it costs `op` on `side` to reach data whose home is the other side. */
static float home_cost_us(const struct ats_graph_desc *graph, const struct ats_op *op,
                          enum ats_side side, float link_bytes_per_us)
{
    float bytes = 0.0F;
    for (uint32_t r = 0; r < op->n_reads; r++) {
        const struct ats_root *root = &graph->roots[graph->reads[op->first_read + r]];
        if (root->home != 0 && (root->home & ATS_ON(side)) == 0) {
            bytes += (float)root->bytes;
        }
    }
    if (op->write >= 0) {
        const struct ats_root *root = &graph->roots[op->write];
        if (root->home != 0 && (root->home & ATS_ON(side)) == 0) {
            bytes += 2.0F * (float)root->bytes; /* there and back */
        }
    }
    return bytes / link_bytes_per_us;
}

/* live[i]: bytes of activations written before operator i and read at i or later.
 * Zero before; filled by differences: a root adds its bytes behind its first write and takes
 * them away behind its last read. */
static bool live_bytes(const struct ats_graph_desc *graph, float *live)
{
    int32_t *last_read = malloc(graph->n_roots * sizeof(*last_read) + 1);
    if (last_read == NULL) {
        return false;
    }
    memset(last_read, -1, graph->n_roots * sizeof(*last_read));
    for (size_t i = 0; i < graph->n_ops; i++) {
        const struct ats_op *op = &graph->ops[i];
        for (uint32_t r = 0; r < op->n_reads; r++) {
            last_read[graph->reads[op->first_read + r]] = (int32_t)i;
        }
    }
    for (size_t i = 0; i < graph->n_ops; i++) {
        const int32_t write = graph->ops[i].write;
        if (write < 0 || graph->roots[write].home != 0 || last_read[write] <= (int32_t)i) {
            continue;
        }
        const float bytes = (float)graph->roots[write].bytes;
        const size_t last = (size_t)last_read[write];
        live[i + 1] += bytes;
        if (last + 1 < graph->n_ops) {
            live[last + 1] -= bytes;
        }
        last_read[write] = -1; /* count a root once, from its first write */
    }
    for (size_t i = 1; i < graph->n_ops; i++) {
        live[i] += live[i - 1];
    }
    free(last_read);
    return true;
}

struct step {
    float time_us[ATS_SIDES];        /* best time of a pass that ends here on that side */
    enum ats_side before[ATS_SIDES]; /* side of the previous operator in that pass */
};

static void extend(const struct ats_graph_desc *graph, const struct ats_partition_costs *costs,
                   size_t i, float live, struct step *steps)
{
    const struct ats_op *op = &graph->ops[i];
    const ats_side_set allowed = allowed_sides(graph, op);
    const float change_us = costs->split_us + live / costs->link_bytes_per_us;
    for (int s = 0; s < ATS_SIDES; s++) {
        const enum ats_side side = (enum ats_side)s;
        float stay = 0.0F;
        float change = INFINITY;
        if (i > 0) {
            stay = steps[i - 1].time_us[side];
            change = steps[i - 1].time_us[ats_other_side(side)] + change_us;
        }
        const bool stays = stay <= change;
        steps[i].before[side] = stays ? side : ats_other_side(side);
        steps[i].time_us[side] = (allowed & ATS_ON(side)) != 0
                                     ? (stays ? stay : change) + op->cost_us[side] +
                                           home_cost_us(graph, op, side, costs->link_bytes_per_us)
                                     : INFINITY;
    }
}

bool ats_partition(const struct ats_graph_desc *graph, const struct ats_partition_costs *costs,
                   enum ats_side *sides)
{
    if (graph->n_ops == 0) {
        return true;
    }
    struct step *steps = malloc(graph->n_ops * sizeof(*steps));
    float *live = calloc(graph->n_ops + 1, sizeof(*live));
    const bool ok = steps != NULL && live != NULL && live_bytes(graph, live);
    if (ok) {
        for (size_t i = 0; i < graph->n_ops; i++) {
            extend(graph, costs, i, live[i], steps);
        }
        const struct step *last = &steps[graph->n_ops - 1];
        enum ats_side side =
            last->time_us[ATS_HOST] <= last->time_us[ATS_ACCEL] ? ATS_HOST : ATS_ACCEL;
        for (size_t i = graph->n_ops; i-- > 0;) {
            sides[i] = side;
            side = steps[i].before[side];
        }
    }
    free(steps);
    free(live);
    return ok;
}

void ats_partition_random(const struct ats_graph_desc *graph, uint64_t seed, enum ats_side *sides)
{
    enum { LONGEST_RUN = 12 };
    struct ats_rng rng = {.state = seed};
    enum ats_side side = ATS_HOST;
    uint64_t left = 0;
    for (size_t i = 0; i < graph->n_ops; i++) {
        if (left == 0) {
            side = (enum ats_side)ats_rng_below(&rng, ATS_SIDES);
            left = 1 + ats_rng_below(&rng, LONGEST_RUN);
        }
        left--;
        const ats_side_set allowed = allowed_sides(graph, &graph->ops[i]);
        sides[i] = (allowed & ATS_ON(side)) != 0 ? side : ats_other_side(side);
    }
}
