#include "plan/beside.h"

#include <stdlib.h>

/* A weight of which an operator reads a small part (experts) is not worth its way. */
static const float MOST_TIMES_THE_CPU = 4.0F;

struct walk {
    const struct ats_graph_desc *graph;
    const struct ats_beside *rule;
    const bool *candidates;
    bool *seen; /* roots that an operator before has read */
    bool *chosen;
    float credit; /* bytes */
    float saved_us;
};

/* Operators [first, end) and what they are the first to read. */
struct group {
    size_t end;
    float bytes;
    float us[ATS_SIDES];
    bool supported; /* by the accelerator */
};

static bool is_new_candidate(const struct walk *w, uint32_t root)
{
    return w->candidates[root] && !w->seen[root];
}

/* Whether the operator is the first reader of a candidate; adds those to the group. */
static bool joins(const struct walk *w, const struct ats_op *op, struct group *group)
{
    bool first = false;
    for (uint32_t r = 0; r < op->n_reads; r++) {
        const uint32_t root = w->graph->reads[op->first_read + r];
        if (is_new_candidate(w, root)) {
            first = true;
            group->bytes += (float)w->graph->roots[root].bytes;
        }
    }
    if (first) {
        group->us[ATS_HOST] += op->cost_us[ATS_HOST];
        group->us[ATS_ACCEL] += op->cost_us[ATS_ACCEL];
        group->supported = group->supported && (op->supported & ATS_ON(ATS_ACCEL)) != 0;
    }
    return first;
}

static struct group find_group(const struct walk *w, size_t first)
{
    struct group group = {.end = first, .supported = true};
    while (group.end < w->graph->n_ops && joins(w, &w->graph->ops[group.end], &group)) {
        group.end++;
    }
    return group;
}

/* The side of an operator that data with a home binds; false if none does. */
static bool bound_side(const struct walk *w, const struct ats_op *op, enum ats_side *side)
{
    for (uint32_t r = 0; r < op->n_reads; r++) {
        const uint32_t root = w->graph->reads[op->first_read + r];
        const ats_side_set home = w->graph->roots[root].home;
        if (home == ATS_ON(ATS_HOST) || home == ATS_ON(ATS_ACCEL)) {
            *side = home == ATS_ON(ATS_ACCEL) || w->chosen[root] ? ATS_ACCEL : ATS_HOST;
            return true;
        }
    }
    return false;
}

/* Switches more if the group [first, end) is on the accelerator rather than on the CPU. */
static int more_switches(const struct walk *w, size_t first, size_t end)
{
    enum ats_side side = ATS_HOST;
    int more = 0;
    for (size_t i = first; i-- > 0;) {
        if (bound_side(w, &w->graph->ops[i], &side)) {
            more += side == ATS_HOST ? 1 : -1;
            break;
        }
    }
    for (size_t i = end; i < w->graph->n_ops; i++) {
        if (bound_side(w, &w->graph->ops[i], &side)) {
            more += side == ATS_HOST ? 1 : -1;
            break;
        }
    }
    return more;
}

/* Bytes of the link that a group takes, the starts of its pieces included. */
static float cost_of_way(const struct ats_beside *rule, float bytes)
{
    return bytes + bytes / (float)ATS_BESIDE_CHUNK * rule->copy_latency_us *
                       rule->link_beside_cpu_bytes_per_us;
}

static void pass_time(struct walk *w, float us, enum ats_side side)
{
    const float most = (float)w->rule->staging_bytes;
    w->credit += us * (side == ATS_HOST ? w->rule->link_beside_cpu_bytes_per_us
                                        : w->rule->link_bytes_per_us);
    w->credit = w->credit < most ? w->credit : most;
}

static void settle(struct walk *w, size_t first, const struct group *group)
{
    /* one is read while the next is copied */
    const bool fits = group->bytes <= (float)(w->rule->staging_bytes / 2);
    const float way = cost_of_way(w->rule, group->bytes);
    const float gain = group->us[ATS_HOST] - group->us[ATS_ACCEL] -
                       w->rule->split_us * (float)more_switches(w, first, group->end);
    const bool take = group->supported && fits && gain > 0 && way <= w->credit &&
                      way / w->rule->link_bytes_per_us <= MOST_TIMES_THE_CPU * group->us[ATS_HOST];
    for (size_t i = first; i < group->end; i++) {
        const struct ats_op *op = &w->graph->ops[i];
        for (uint32_t r = 0; r < op->n_reads; r++) {
            const uint32_t root = w->graph->reads[op->first_read + r];
            w->chosen[root] = w->chosen[root] || (take && is_new_candidate(w, root));
        }
    }
    for (size_t i = first; i < group->end; i++) {
        const struct ats_op *op = &w->graph->ops[i];
        for (uint32_t r = 0; r < op->n_reads; r++) {
            w->seen[w->graph->reads[op->first_read + r]] = true;
        }
    }
    if (take) {
        w->credit -= way;
        w->saved_us += gain;
    }
    const enum ats_side side = take ? ATS_ACCEL : ATS_HOST;
    pass_time(w, group->us[side], side);
}

bool ats_choose_beside(const struct ats_graph_desc *graph, const struct ats_beside *rule,
                       const bool *candidates, bool *chosen, float *saved_us)
{
    struct walk w = {.graph = graph,
                     .rule = rule,
                     .candidates = candidates,
                     .seen = calloc(graph->n_roots + 1, sizeof(*w.seen)),
                     .chosen = chosen};
    if (w.seen == NULL) {
        return false;
    }
    for (size_t r = 0; r < graph->n_roots; r++) {
        chosen[r] = false;
    }
    for (size_t i = 0; i < graph->n_ops;) {
        const struct group group = find_group(&w, i);
        if (group.end > i) {
            settle(&w, i, &group);
            i = group.end;
            continue;
        }
        enum ats_side side = ATS_ACCEL;
        bound_side(&w, &graph->ops[i], &side);
        pass_time(&w, graph->ops[i].cost_us[side], side);
        i++;
    }
    *saved_us = w.saved_us;
    free(w.seen);
    return true;
}

float ats_resident_saves_us(const struct ats_graph_desc *graph, const bool *chosen)
{
    float saved = 0;
    for (size_t i = 0; i < graph->n_ops; i++) {
        const struct ats_op *op = &graph->ops[i];
        for (uint32_t r = 0; r < op->n_reads; r++) {
            if (chosen[graph->reads[op->first_read + r]]) {
                saved += op->cost_us[ATS_HOST] - op->cost_us[ATS_ACCEL];
                break;
            }
        }
    }
    return saved;
}

bool ats_prefer_beside(const struct ats_graph_desc *graph, const struct ats_partition_costs *costs,
                       size_t staging_bytes, const bool *candidates, bool *chosen,
                       struct ats_root *roots, bool *preferred)
{
    const struct ats_beside rule = {
        .split_us = costs->split_us,
        .copy_latency_us = costs->copy_latency_us,
        .link_bytes_per_us = costs->least_link_bytes_per_us,
        .link_beside_cpu_bytes_per_us = costs->link_beside_cpu_bytes_per_us,
        .staging_bytes = staging_bytes,
    };
    bool *beside = calloc(graph->n_roots + 1, sizeof(*beside));
    float saved_us = 0;
    const bool ok =
        beside != NULL && ats_choose_beside(graph, &rule, candidates, beside, &saved_us);
    *preferred = ok && saved_us > ats_resident_saves_us(graph, chosen);
    for (size_t r = 0; *preferred && r < graph->n_roots; r++) {
        chosen[r] = beside[r];
        roots[r].held = false;
        roots[r].promoted = beside[r];
    }
    free(beside);
    return ok;
}
