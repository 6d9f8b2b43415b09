#include "plan/schedule.h"

#include <stdlib.h>
#include <string.h>

struct builder {
    const struct ats_graph_desc *graph;
    struct ats_schedule *out;
    struct ats_split *split; /* the one being filled */
    int32_t *promotion;      /* per root: index of its promotion, or -1: not read yet */
    bool promoting;          /* the operator before reads promoted weights that none read before */
    size_t promoted_bytes;   /* that the split begins to read */
    uint32_t region;         /* of the operator before */
    uint32_t share;          /* likewise */
};

static bool is_promoted(const struct builder *b, uint32_t root, enum ats_side side)
{
    return side == ATS_ACCEL && b->graph->roots[root].promoted;
}

/* Whether its one reader is a split of its own, or several. */
static bool passes_alone(const struct ats_root *root)
{
    return root->by_use || root->pieces.n > 1;
}

static bool is_held(const struct builder *b, uint32_t root, enum ats_side side)
{
    return side == ATS_ACCEL && (b->graph->roots[root].held || b->graph->roots[root].sliced);
}

/* Bytes of promoted weights that no operator has read before this one. */
static size_t newly_promoted(const struct builder *b, const struct ats_op *op, enum ats_side side)
{
    size_t bytes = 0;
    for (uint32_t r = 0; r < op->n_reads; r++) {
        const uint32_t root = b->graph->reads[op->first_read + r];
        if (is_promoted(b, root, side) && b->promotion[root] < 0) {
            bytes += b->graph->roots[root].bytes;
        }
    }
    return bytes;
}

static void use_promoted(struct builder *b, uint32_t root)
{
    struct ats_schedule *out = b->out;
    const uint32_t split = (uint32_t)(out->n_splits - 1);
    if (b->promotion[root] < 0) {
        b->promotion[root] = (int32_t)out->n_promotions;
        out->promotions[out->n_promotions++] =
            (struct ats_promoted){.root = root, .first_split = split};
        b->split->n_promotions++;
    }
    out->promotions[b->promotion[root]].last_split = split;
}

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

/* Whether an operator of the region before `index` writes the root. */
static bool is_made_in_region(const struct builder *b, uint32_t first, uint32_t index,
                              uint32_t root)
{
    for (uint32_t i = first; i < index; i++) {
        if (b->graph->ops[i].write == (int32_t)root) {
            return true;
        }
    }
    return false;
}

static void begin_split(struct builder *b, uint32_t index, enum ats_side side)
{
    struct ats_schedule *out = b->out;
    b->split = &out->splits[out->n_splits++];
    *b->split = (struct ats_split){.side = side,
                                   .first_op = index,
                                   .first_copy = (uint32_t)out->n_copies,
                                   .first_promotion = (uint32_t)out->n_promotions};
    b->promoted_bytes = 0;
}

/* A split without operators that brings what the region or stretch at `first` reads to the CPU. */
static void begin_on_both(struct builder *b, uint32_t first)
{
    struct ats_schedule *out = b->out;
    const struct ats_op *ops = b->graph->ops;
    begin_split(b, first, ATS_HOST);
    for (uint32_t i = first; i < b->graph->n_ops && ops[i].region == ops[first].region &&
                             ops[i].share == ops[first].share;
         i++) {
        for (uint32_t r = 0; r < ops[i].n_reads; r++) {
            const uint32_t root = b->graph->reads[ops[i].first_read + r];
            const struct ats_root *read = &b->graph->roots[root];
            const bool is_there = read->sliced || (read->promoted && ops[first].share != 0);
            if (!is_there && !is_made_in_region(b, first, i, root)) {
                require(b, root, ATS_HOST);
            }
        }
    }
    if (b->split->n_copies == 0) {
        out->n_splits--;
    }
}

/* What the operator reads, but for a matrix in pieces, and what it leaves of its result. */
static void read_all(struct builder *b, const struct ats_op *op, enum ats_side side)
{
    for (uint32_t r = 0; r < op->n_reads; r++) {
        const uint32_t root = b->graph->reads[op->first_read + r];
        if (is_promoted(b, root, side)) {
            if (!passes_alone(&b->graph->roots[root])) {
                use_promoted(b, root);
            }
        } else if (!is_held(b, root, side)) {
            require(b, root, side);
        }
    }
    if (op->write >= 0 && op->partial_write) {
        require(b, (uint32_t)op->write, side);
    }
}

/* A split without operators that brings the ids of the operator's columns to the CPU. */
static void bring_ids(struct builder *b, uint32_t index)
{
    const struct ats_op *op = &b->graph->ops[index];
    begin_split(b, index, ATS_HOST);
    require(b, b->graph->reads[op->first_read + op->ids], ATS_HOST);
    if (b->split->n_copies == 0) {
        b->out->n_splits--;
    }
}

/* The operator as splits of its own. */
static void add_alone(struct builder *b, uint32_t index, uint32_t root)
{
    const struct ats_op *op = &b->graph->ops[index];
    struct ats_schedule *out = b->out;
    const bool by_use = b->graph->roots[root].by_use;
    const uint32_t n = by_use ? b->graph->roots[root].n_parcels : b->graph->roots[root].pieces.n;
    if (by_use) {
        bring_ids(b, index);
    }
    b->promotion[root] = (int32_t)out->n_promotions;
    for (uint32_t p = 0; p < n; p++) {
        begin_split(b, index, ATS_ACCEL);
        const uint32_t split = (uint32_t)(out->n_splits - 1);
        out->promotions[out->n_promotions++] = (struct ats_promoted){
            .root = root, .piece = p, .first_split = split, .last_split = split};
        b->split->n_ops = 1;
        b->split->n_promotions = 1;
        b->split->piece = p;
        b->split->n_pieces = n;
        b->split->by_use = by_use;
        read_all(b, op, ATS_ACCEL);
    }
    out->final[op->write] = ATS_ON(ATS_ACCEL);
    b->split = NULL;
    b->promoting = false;
}

/* Ends the split with the operator if it is the last of a stretch that the CPU shares. */
static void end_share(struct builder *b, uint32_t index)
{
    const struct ats_op *ops = b->graph->ops;
    const bool is_last = index + 1 == b->graph->n_ops || ops[index + 1].share != ops[index].share;
    if (ops[index].share != 0 && is_last) {
        b->out->splits[b->out->n_splits - 1].share = ops[index].share;
        b->split = NULL;
        b->promoting = false;
    }
}

static void add_op(struct builder *b, uint32_t index, enum ats_side side)
{
    const struct ats_op *op = &b->graph->ops[index];
    if (op->region != b->region || op->share != b->share) {
        if (op->region != 0 || op->share != 0) {
            begin_on_both(b, index);
        }
        b->split = NULL;
        b->region = op->region;
        b->share = op->share;
    }
    const int32_t alone = ats_alone_read(b->graph, op, side);
    if (alone != ATS_NO_ROOT) {
        add_alone(b, index, (uint32_t)alone);
        return;
    }
    const size_t promoted = newly_promoted(b, op, side);
    const bool joins = promoted == 0 ||
                       (b->promoting && b->promoted_bytes + promoted <= b->graph->promoted_at_once);
    if (b->split == NULL || b->split->side != side || !joins) {
        begin_split(b, index, side);
    }
    b->split->n_ops++;
    b->promoted_bytes += promoted;
    read_all(b, op, side);
    if (op->write >= 0) {
        b->promoting = promoted > 0;
        b->out->final[op->write] = ATS_ON(side);
    }
}

/* Each operator causes at most one copy per read and side, and one for a partial write. */
static size_t most_copies(const struct ats_graph_desc *graph)
{
    size_t n = 0;
    for (size_t i = 0; i < graph->n_ops; i++) {
        n += 2U * graph->ops[i].n_reads + 1U;
    }
    return n;
}

/* Splits and promotions beyond those of whole weights. */
static size_t more_pieces(const struct ats_graph_desc *graph)
{
    size_t n = 0;
    for (size_t r = 0; r < graph->n_roots; r++) {
        const struct ats_root *root = &graph->roots[r];
        n += root->promoted ? root->pieces.n + root->n_parcels + root->by_use : 0;
    }
    return n;
}

int32_t ats_alone_read(const struct ats_graph_desc *graph, const struct ats_op *op,
                       enum ats_side side)
{
    for (uint32_t r = 0; side == ATS_ACCEL && r < op->n_reads; r++) {
        const uint32_t root = graph->reads[op->first_read + r];
        if (graph->roots[root].promoted && passes_alone(&graph->roots[root])) {
            return (int32_t)root;
        }
    }
    return ATS_NO_ROOT;
}

bool ats_schedule_build(const struct ats_graph_desc *graph, const enum ats_side *sides,
                        struct ats_schedule *schedule)
{
    const size_t n_more = more_pieces(graph);
    *schedule = (struct ats_schedule){
        .splits = calloc(2 * graph->n_ops + n_more + 1, sizeof(*schedule->splits)),
        .copies = calloc(most_copies(graph) + 1, sizeof(*schedule->copies)),
        .promotions = calloc(graph->n_roots + n_more + 1, sizeof(*schedule->promotions)),
        .needs = calloc(graph->n_roots + 1, sizeof(*schedule->needs)),
        .final = calloc(graph->n_roots + 1, sizeof(*schedule->final)),
        .copied = calloc(graph->n_roots + 1, sizeof(*schedule->copied)),
    };
    struct builder b = {.graph = graph,
                        .out = schedule,
                        .promotion = malloc((graph->n_roots + 1) * sizeof(*b.promotion))};
    if (schedule->splits == NULL || schedule->copies == NULL || schedule->promotions == NULL ||
        schedule->needs == NULL || schedule->final == NULL || schedule->copied == NULL ||
        b.promotion == NULL) {
        free(b.promotion);
        ats_schedule_free(schedule);
        return false;
    }
    memset(b.promotion, -1, (graph->n_roots + 1) * sizeof(*b.promotion));
    for (size_t i = 0; i < graph->n_ops; i++) {
        add_op(&b, (uint32_t)i, sides[i]);
        end_share(&b, (uint32_t)i);
    }
    free(b.promotion);
    return true;
}

void ats_schedule_free(struct ats_schedule *schedule)
{
    free(schedule->splits);
    free(schedule->copies);
    free(schedule->promotions);
    free(schedule->needs);
    free(schedule->final);
    free(schedule->copied);
    *schedule = (struct ats_schedule){0};
}
