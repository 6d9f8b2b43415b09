#include "plan/beside.h"

#include "plan/round.h"

#include <stdlib.h>

/* A weight of which an operator reads a small part (experts) is not worth its way. */
static const float MOST_TIMES_THE_CPU = 4.0F;

/* What a unit is made of. */
struct span {
    size_t first; /* operators [first, end) */
    size_t end;
    bool is_group; /* they are the first to read some candidates */
};

/* A graph as units. */
struct walk {
    const struct ats_graph_desc *graph;
    const struct ats_partition_costs *costs;
    const bool *candidates;
    const bool *resident; /* candidates that are on the accelerator; NULL: they may cross */
    bool *seen;           /* roots that an operator before has read */
    struct ats_round_unit *units;
    struct span *spans;
    enum ats_side *sides;
    size_t n;
};

static bool is_new_candidate(const struct walk *w, uint32_t root)
{
    return w->candidates[root] && !w->seen[root];
}

/* What the link brings of weights at this rate, the starts of their chunks included. */
static float in_chunks(const struct ats_partition_costs *costs, float bytes_per_us)
{
    const float chunk = costs->chunk_bytes;
    return bytes_per_us <= 0 || chunk <= 0
               ? bytes_per_us
               : chunk / (chunk / bytes_per_us + costs->copy_latency_us);
}

static void mark_seen(struct walk *w, size_t first, size_t end)
{
    for (size_t i = first; i < end; i++) {
        const struct ats_op *op = &w->graph->ops[i];
        for (uint32_t r = 0; r < op->n_reads; r++) {
            w->seen[w->graph->reads[op->first_read + r]] = true;
        }
    }
}

/* ---- units ---- */

/* Adds candidates that the operator is the first to read to what crosses for the unit; resident
 * ones do not. False: there are none. */
static bool add_candidates(const struct walk *w, const struct ats_op *op,
                           struct ats_round_unit *unit, bool *stays)
{
    bool any = false;
    for (uint32_t r = 0; r < op->n_reads; r++) {
        const uint32_t root = w->graph->reads[op->first_read + r];
        if (is_new_candidate(w, root)) {
            any = true;
            *stays = *stays || (w->resident != NULL && !w->resident[root]);
            if (w->resident == NULL) {
                unit->bytes += (float)w->graph->roots[root].bytes;
                unit->at_once += (float)ats_root_staged(&w->graph->roots[root]);
            }
        }
    }
    return any;
}

/* Gate and up: operators next to each other that are the first to read candidates. */
static size_t add_group(struct walk *w, size_t first)
{
    struct ats_round_unit unit = {.allowed = ATS_ON_BOTH};
    bool stays = false;
    size_t end = first;
    for (; end < w->graph->n_ops; end++) {
        const struct ats_op *op = &w->graph->ops[end];
        struct ats_round_unit with = unit;
        bool own_stays = false;
        if (!add_candidates(w, op, &with, &own_stays) || (end > first && own_stays != stays)) {
            break;
        }
        unit = with;
        stays = own_stays;
        unit.us[ATS_HOST] += op->cost_us[ATS_HOST];
        unit.us[ATS_ACCEL] += op->cost_us[ATS_ACCEL];
        unit.allowed &= op->supported;
    }
    if (end == first) {
        return first;
    }
    mark_seen(w, first, end);
    const float way_us = unit.bytes / in_chunks(w->costs, w->costs->least_link_bytes_per_us);
    stays = stays || way_us > MOST_TIMES_THE_CPU * unit.us[ATS_HOST];
    const ats_side_set wanted = stays                 ? ATS_ON(ATS_HOST)
                                : w->resident != NULL ? ATS_ON(ATS_ACCEL)
                                                      : ATS_ON_BOTH;
    unit.allowed = (unit.allowed & wanted) != 0 ? unit.allowed & wanted : unit.allowed;
    unit.allowed = unit.allowed != 0 ? unit.allowed : ATS_ON(ATS_HOST);
    w->spans[w->n] = (struct span){first, end, true};
    w->units[w->n++] = unit;
    return end;
}

/* The sides that data with a home leaves to an operator. */
static ats_side_set bound_sides(const struct walk *w, const struct ats_op *op)
{
    for (uint32_t r = 0; r < op->n_reads; r++) {
        const ats_side_set home = w->graph->roots[w->graph->reads[op->first_read + r]].home;
        if (home == ATS_ON(ATS_HOST) || home == ATS_ON(ATS_ACCEL)) {
            return home;
        }
    }
    return op->supported;
}

static void add_other(struct walk *w, size_t index)
{
    const struct ats_op *op = &w->graph->ops[index];
    if (op->write == ATS_NO_ROOT && op->n_reads == 0) {
        return; /* a view: nothing is computed */
    }
    const ats_side_set allowed = bound_sides(w, op);
    struct ats_round_unit *last = w->n > 0 ? &w->units[w->n - 1] : NULL;
    if (last == NULL || w->spans[w->n - 1].is_group || last->allowed != allowed) {
        w->spans[w->n] = (struct span){index, index + 1, false};
        last = &w->units[w->n++];
        *last = (struct ats_round_unit){.allowed = allowed};
    }
    last->us[ATS_HOST] += op->cost_us[ATS_HOST];
    last->us[ATS_ACCEL] += op->cost_us[ATS_ACCEL];
    w->spans[w->n - 1].end = index + 1;
}

/* ---- a round ---- */

static bool allocate(struct walk *w)
{
    const size_t n = w->graph->n_ops + 1;
    w->seen = calloc(w->graph->n_roots + 1, sizeof(*w->seen));
    w->units = calloc(n, sizeof(*w->units));
    w->spans = calloc(n, sizeof(*w->spans));
    w->sides = calloc(n, sizeof(*w->sides));
    return w->seen != NULL && w->units != NULL && w->spans != NULL && w->sides != NULL;
}

static void release(struct walk *w)
{
    free(w->seen);
    free(w->units);
    free(w->spans);
    free(w->sides);
}

/* A change of side, which takes an activation over the link: while weights cross, behind the chunk
 * of them that is on its way. */
static float change_us(const struct walk *w)
{
    const float rate = w->costs->link_beside_cpu_bytes_per_us;
    const bool waits = w->resident == NULL && rate > 0;
    return w->costs->split_us + (waits ? w->costs->chunk_bytes / rate : 0);
}

static bool plan(struct walk *w, size_t staging_bytes, float *us)
{
    const struct ats_round round = {
        .split_us = change_us(w),
        .bytes_per_us = {[ATS_HOST] = in_chunks(w->costs, w->costs->link_beside_cpu_bytes_per_us),
                         [ATS_ACCEL] = in_chunks(w->costs, w->costs->least_link_bytes_per_us)},
        .capacity = (float)staging_bytes,
    };
    if (!allocate(w)) {
        return false;
    }
    for (size_t i = 0; i < w->graph->n_ops;) {
        const size_t end = add_group(w, i);
        if (end == i) {
            add_other(w, i);
        }
        i = end > i ? end : i + 1;
    }
    return ats_plan_round(&round, w->units, w->n, w->sides, us);
}

/* The candidates of groups that the accelerator computes. */
static void note_chosen(struct walk *w, size_t staging_bytes, bool *chosen)
{
    for (size_t r = 0; r < w->graph->n_roots; r++) {
        w->seen[r] = false;
        chosen[r] = false;
    }
    for (size_t u = 0; u < w->n; u++) {
        const struct span *span = &w->spans[u];
        /* what only the accelerator can compute may be too large to cross like this */
        const bool crosses =
            w->sides[u] == ATS_ACCEL && w->units[u].at_once <= (float)staging_bytes / 2;
        for (size_t i = span->first; span->is_group && i < span->end; i++) {
            const struct ats_op *op = &w->graph->ops[i];
            for (uint32_t r = 0; r < op->n_reads; r++) {
                const uint32_t root = w->graph->reads[op->first_read + r];
                chosen[root] = chosen[root] || (crosses && is_new_candidate(w, root));
            }
        }
        if (span->is_group) {
            mark_seen(w, span->first, span->end);
        }
    }
}

bool ats_choose_beside(const struct ats_graph_desc *graph, const struct ats_partition_costs *costs,
                       size_t staging_bytes, const bool *candidates, bool *chosen, float *us)
{
    struct walk w = {.graph = graph, .costs = costs, .candidates = candidates};
    const bool ok = plan(&w, staging_bytes, us);
    if (ok) {
        note_chosen(&w, staging_bytes, chosen);
    }
    release(&w);
    return ok;
}

bool ats_resident_us(const struct ats_graph_desc *graph, const struct ats_partition_costs *costs,
                     const bool *candidates, const bool *resident, float *us)
{
    struct walk w = {
        .graph = graph, .costs = costs, .candidates = candidates, .resident = resident};
    const bool ok = plan(&w, 0, us);
    release(&w);
    return ok;
}

bool ats_prefer_beside(const struct ats_graph_desc *graph, const struct ats_partition_costs *costs,
                       size_t staging_bytes, const bool *candidates, bool *chosen,
                       struct ats_root *roots, bool *preferred)
{
    bool *beside = calloc(graph->n_roots + 1, sizeof(*beside));
    float held_us = 0;
    float beside_us = 0;
    const bool ok = beside != NULL && ats_resident_us(graph, costs, candidates, chosen, &held_us) &&
                    ats_choose_beside(graph, costs, staging_bytes, candidates, beside, &beside_us);
    *preferred = ok && beside_us < costs->most_of_held * held_us;
    for (size_t r = 0; *preferred && r < graph->n_roots; r++) {
        chosen[r] = beside[r];
        roots[r].held = false;
        roots[r].promoted = beside[r];
    }
    free(beside);
    return ok;
}
