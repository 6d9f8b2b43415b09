#include "plan/schedule.h"

#include <stdlib.h>

struct builder {
    const struct ats_graph_desc *graph;
    struct ats_schedule *out;
    struct ats_split *split; /* the one being filled */
};

/* Makes `root` valid on `side` before the current split. */
static void require(struct builder *b, uint32_t root, enum ats_side side)
{
    struct ats_schedule *out = b->out;
    if (out->final[root] == 0) {
        out->needs[root] |= ATS_ON(side);
    } else if ((out->final[root] & ATS_ON(side)) == 0) {
        out->copies[out->n_copies++] = root;
        b->split->n_copies++;
        out->final[root] |= ATS_ON(side);
        out->copied[root] |= ATS_ON(side);
    }
}

static void add_op(struct builder *b, uint32_t index, enum ats_side side)
{
    const struct ats_op *op = &b->graph->ops[index];
    struct ats_schedule *out = b->out;
    if (b->split == NULL || b->split->side != side) {
        b->split = &out->splits[out->n_splits++];
        *b->split = (struct ats_split){
            .side = side, .first_op = index, .first_copy = (uint32_t)out->n_copies};
    }
    b->split->n_ops++;
    for (uint32_t r = 0; r < op->n_reads; r++) {
        require(b, b->graph->reads[op->first_read + r], side);
    }
    if (op->write >= 0) {
        if (op->partial_write) {
            require(b, (uint32_t)op->write, side);
        }
        out->final[op->write] = ATS_ON(side);
    }
}

/* Each operator causes at most one copy per read and one for a partial write. */
static size_t most_copies(const struct ats_graph_desc *graph)
{
    size_t n = 0;
    for (size_t i = 0; i < graph->n_ops; i++) {
        n += graph->ops[i].n_reads + 1U;
    }
    return n;
}

bool ats_schedule_build(const struct ats_graph_desc *graph, const enum ats_side *sides,
                        struct ats_schedule *schedule)
{
    *schedule = (struct ats_schedule){
        .splits = calloc(graph->n_ops + 1, sizeof(*schedule->splits)),
        .copies = calloc(most_copies(graph) + 1, sizeof(*schedule->copies)),
        .needs = calloc(graph->n_roots + 1, sizeof(*schedule->needs)),
        .final = calloc(graph->n_roots + 1, sizeof(*schedule->final)),
        .copied = calloc(graph->n_roots + 1, sizeof(*schedule->copied)),
    };
    if (schedule->splits == NULL || schedule->copies == NULL || schedule->needs == NULL ||
        schedule->final == NULL || schedule->copied == NULL) {
        ats_schedule_free(schedule);
        return false;
    }
    struct builder b = {.graph = graph, .out = schedule};
    for (size_t i = 0; i < graph->n_ops; i++) {
        add_op(&b, (uint32_t)i, sides[i]);
    }
    return true;
}

void ats_schedule_free(struct ats_schedule *schedule)
{
    free(schedule->splits);
    free(schedule->copies);
    free(schedule->needs);
    free(schedule->final);
    free(schedule->copied);
    *schedule = (struct ats_schedule){0};
}
