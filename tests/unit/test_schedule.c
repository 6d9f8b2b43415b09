/* The schedule, carried out on two simulated memories.
 *
 * Roots occupy slots that are recycled as ggml's allocator recycles addresses: one layout for
 * both memories, a slot free once its root has been read for the last time, and a result may
 * take over the slot of an operand that dies with it. Values are hashes of what was read, so a
 * stale or missing copy shows at the first read. The reference executes in one memory. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "plan/schedule.h"
#include "random_graph.h"

static const uint64_t poison = UINT64_C(0xDEADDEADDEADDEAD);

struct machine {
    const struct random_graph *g;
    size_t slot[GRAPH_MAX_ROOTS];
    size_t last_use[GRAPH_MAX_ROOTS];
    bool external[GRAPH_MAX_ROOTS]; /* exists before the graph runs */
    uint64_t one[GRAPH_MAX_ROOTS];  /* the reference's memory, by slot */
    uint64_t two[ATS_SIDES][GRAPH_MAX_ROOTS];
};

static uint64_t mix(uint64_t hash, uint64_t value)
{
    struct ats_rng rng = {.state = hash ^ (value * UINT64_C(0x9E3779B97F4A7C15))};
    return ats_rng_next(&rng);
}

/* ---- memory ---- */

static void find_uses(struct machine *m)
{
    const struct ats_graph_desc *graph = &m->g->desc;
    bool seen[GRAPH_MAX_ROOTS] = {false};
    for (size_t i = 0; i < graph->n_ops; i++) {
        const struct ats_op *op = &graph->ops[i];
        for (uint32_t r = 0; r < op->n_reads; r++) {
            const uint32_t root = graph->reads[op->first_read + r];
            m->external[root] = m->external[root] || !seen[root];
            seen[root] = true;
            m->last_use[root] = i;
        }
        if (op->write >= 0) {
            m->external[op->write] =
                m->external[op->write] || (op->partial_write && !seen[op->write]);
            seen[op->write] = true;
            m->last_use[op->write] = i;
        }
    }
}

/* Gives each root a slot. What has a home is persistent; inputs are recycled like the rest. */
static void give_slots(struct machine *m, struct ats_rng *rng)
{
    const struct ats_graph_desc *graph = &m->g->desc;
    size_t owner[GRAPH_MAX_ROOTS]; /* root of each slot, or SIZE_MAX */
    size_t n_slots = 0;
    for (size_t root = 0; root < graph->n_roots; root++) {
        if (m->external[root]) {
            m->slot[root] = n_slots;
            owner[n_slots++] = root;
        }
    }
    for (size_t i = 0; i < graph->n_ops; i++) {
        const struct ats_op *op = &graph->ops[i];
        if (op->write < 0 || op->partial_write) {
            continue;
        }
        /* a slot is free if its root has died; if it dies here, it is taken over in place */
        const size_t in_place = test_chance(rng, 50);
        size_t chosen = n_slots;
        for (size_t s = 0; s < n_slots && chosen == n_slots; s++) {
            const size_t root = owner[s];
            if (graph->roots[root].home == 0 &&
                (m->last_use[root] < i || (in_place != 0 && m->last_use[root] == i))) {
                chosen = s;
            }
        }
        n_slots += chosen == n_slots;
        owner[chosen] = (size_t)op->write;
        m->slot[op->write] = chosen;
    }
}

/* ---- execution ---- */

/* What the operator computes from the given memory; also checks it against the reference. */
static uint64_t compute(const struct machine *m, size_t i, const uint64_t *memory)
{
    const struct ats_graph_desc *graph = &m->g->desc;
    const struct ats_op *op = &graph->ops[i];
    uint64_t hash = i + 1;
    for (uint32_t r = 0; r < op->n_reads; r++) {
        const uint32_t root = graph->reads[op->first_read + r];
        const uint64_t value = memory[m->slot[root]];
        if (value != m->one[m->slot[root]]) {
            fail_msg("operator %zu reads root %u: %s", i, root,
                     value == poison ? "nothing there" : "stale");
        }
        hash = mix(hash, value);
    }
    if (op->partial_write && memory[m->slot[op->write]] != m->one[m->slot[op->write]]) {
        fail_msg("operator %zu writes a part of root %d, the rest is not there", i, op->write);
    }
    return op->partial_write ? mix(hash, memory[m->slot[op->write]]) : hash;
}

static void run_op(struct machine *m, size_t i, enum ats_side side)
{
    const struct ats_op *op = &m->g->desc.ops[i];
    const uint64_t value = compute(m, i, m->two[side]);
    if (op->write >= 0) {
        assert_true(value == compute(m, i, m->one));
        m->one[m->slot[op->write]] = value;
        m->two[side][m->slot[op->write]] = value;
    }
}

/* Externals start on random sides; the executor brings them where the schedule needs them. */
static void bring_externals(struct machine *m, const struct ats_schedule *schedule,
                            struct ats_rng *rng)
{
    for (size_t root = 0; root < m->g->desc.n_roots; root++) {
        if (!m->external[root]) {
            continue;
        }
        const uint64_t value = ats_rng_next(rng);
        const ats_side_set valid = (ats_side_set)test_between(rng, 1, ATS_ON_BOTH);
        m->one[m->slot[root]] = value;
        for (int side = 0; side < ATS_SIDES; side++) {
            const bool staged =
                (m->g->roots[root].promoted || m->g->roots[root].held) && side == ATS_ACCEL;
            if (staged || ((valid | schedule->needs[root]) & ATS_ON(side)) != 0) {
                m->two[side][m->slot[root]] = value;
            }
        }
    }
}

static bool split_uses(const struct machine *m, const struct ats_split *split, uint32_t root)
{
    for (uint32_t i = split->first_op; i < split->first_op + split->n_ops; i++) {
        const struct ats_op *op = &m->g->desc.ops[i];
        if (random_graph_is_read(&m->g->desc, op, root) ||
            (op->partial_write && op->write == (int32_t)root)) {
            return true;
        }
    }
    return false;
}

static void run_split(struct machine *m, const struct ats_schedule *schedule,
                      const struct ats_split *split)
{
    const enum ats_side to = split->side;
    for (uint32_t c = split->first_copy; c < split->first_copy + split->n_copies; c++) {
        const uint32_t root = schedule->copies[c];
        const size_t slot = m->slot[root];
        if (m->two[to][slot] == m->one[slot]) {
            fail_msg("root %u is copied to a side where it is valid", root);
        }
        assert_true(m->two[ats_other_side(to)][slot] == m->one[slot]);
        assert_true(split_uses(m, split, root));
        assert_true((schedule->copied[root] & ATS_ON(to)) != 0);
        m->two[to][slot] = m->two[ats_other_side(to)][slot];
    }
    for (uint32_t i = split->first_op; i < split->first_op + split->n_ops; i++) {
        run_op(m, i, to);
    }
}

/* ---- what the schedule says, checked from its definition ---- */

static void check_splits(const struct random_graph *g, const enum ats_side *sides,
                         const struct ats_schedule *schedule)
{
    uint32_t op = 0;
    uint32_t copy = 0;
    uint32_t promotion = 0;
    for (size_t s = 0; s < schedule->n_splits; s++) {
        const struct ats_split *split = &schedule->splits[s];
        assert_true(split->n_ops > 0);
        assert_int_equal(split->first_op, op);
        assert_int_equal(split->first_copy, copy);
        assert_int_equal(split->first_promotion, promotion);
        promotion += split->n_promotions;
        /* a side is left, or the split waits for promoted weights */
        assert_true(s == 0 || split->side != schedule->splits[s - 1].side ||
                    split->n_promotions > 0);
        for (uint32_t i = 0; i < split->n_ops; i++) {
            assert_int_equal(sides[op + i], split->side);
        }
        op += split->n_ops;
        copy += split->n_copies;
    }
    assert_int_equal(op, g->desc.n_ops);
    assert_int_equal(copy, schedule->n_copies);
    assert_int_equal(promotion, schedule->n_promotions);
}

/* Which split an operator is in. */
static uint32_t split_of(const struct ats_schedule *schedule, size_t op)
{
    uint32_t s = 0;
    while (schedule->splits[s].first_op + schedule->splits[s].n_ops <= op) {
        s++;
    }
    return s;
}

/* Operators of the split that are the first on the accelerator to read one of its promotions. */
static size_t first_readers(const struct random_graph *g, const struct ats_schedule *schedule,
                            const struct ats_split *split)
{
    bool seen[GRAPH_MAX_ROOTS] = {false};
    size_t n = 0;
    for (uint32_t i = split->first_op; i < split->first_op + split->n_ops; i++) {
        bool first = false;
        for (uint32_t p = 0; p < split->n_promotions; p++) {
            const uint32_t root = schedule->promotions[split->first_promotion + p].root;
            if (!seen[root] && random_graph_is_read(&g->desc, &g->ops[i], root)) {
                seen[root] = true;
                first = true;
            }
        }
        n += first;
    }
    return n;
}

/* A promoted weight is listed with the first and the last split that reads it on the
 * accelerator, in the order of the first; what a split begins to read is bounded unless one
 * operator alone needs more. */
static void check_promotions(const struct random_graph *g, const enum ats_side *sides,
                             const struct ats_schedule *schedule)
{
    size_t n = 0;
    for (uint32_t root = 0; root < g->desc.n_roots; root++) {
        uint32_t first = UINT32_MAX;
        uint32_t last = 0;
        for (size_t i = 0; i < g->desc.n_ops; i++) {
            if (g->roots[root].promoted && sides[i] == ATS_ACCEL &&
                random_graph_is_read(&g->desc, &g->ops[i], root)) {
                last = split_of(schedule, i);
                first = first == UINT32_MAX ? last : first;
            }
        }
        n += first != UINT32_MAX;
        bool found = first == UINT32_MAX;
        for (size_t p = 0; p < schedule->n_promotions; p++) {
            const struct ats_promoted *promoted = &schedule->promotions[p];
            found = found || (promoted->root == root && promoted->first_split == first &&
                              promoted->last_split == last);
        }
        assert_true(found);
    }
    assert_int_equal(schedule->n_promotions, n);
    for (size_t s = 0; s < schedule->n_splits; s++) {
        const struct ats_split *split = &schedule->splits[s];
        size_t bytes = 0;
        for (uint32_t p = 0; p < split->n_promotions; p++) {
            const struct ats_promoted *promoted = &schedule->promotions[split->first_promotion + p];
            assert_int_equal(promoted->first_split, s);
            bytes += g->roots[promoted->root].bytes;
        }
        /* more than that only if one operator needs it all */
        assert_true(bytes <= g->desc.promoted_at_once || first_readers(g, schedule, split) == 1);
        assert_true(split->n_promotions == 0 || split->side == ATS_ACCEL);
    }
}

/* A root is needed at the start exactly where an operator reads it (or writes a part of it)
 * before the graph has written it. */
static void check_needs(const struct random_graph *g, const enum ats_side *sides,
                        const struct ats_schedule *schedule)
{
    for (uint32_t root = 0; root < g->desc.n_roots; root++) {
        ats_side_set needs = 0;
        bool written = false;
        for (size_t i = 0; i < g->desc.n_ops && !written; i++) {
            const struct ats_op *op = &g->ops[i];
            const bool writes = op->write == (int32_t)root;
            if (random_graph_is_read(&g->desc, op, root) || (writes && op->partial_write)) {
                needs |= ATS_ON(sides[i]);
            }
            written = writes;
        }
        if (g->roots[root].promoted || g->roots[root].held) {
            needs &= ATS_ON(ATS_HOST); /* the accelerator reads the staged copy */
        }
        assert_int_equal(schedule->needs[root], needs);
        assert_int_equal(schedule->final[root] != 0, written);
    }
}

static void check_final(const struct machine *m, const struct ats_schedule *schedule)
{
    for (size_t root = 0; root < m->g->desc.n_roots; root++) {
        bool recycled = false;
        for (size_t other = 0; other < m->g->desc.n_roots; other++) {
            recycled = recycled || (other != root && m->slot[other] == m->slot[root] &&
                                    m->last_use[other] >= m->last_use[root] && !m->external[other]);
        }
        for (int side = 0; side < ATS_SIDES && !recycled; side++) {
            if ((schedule->final[root] & ATS_ON(side)) != 0) {
                assert_true(m->two[side][m->slot[root]] == m->one[m->slot[root]]);
            }
        }
    }
}

/* ---- tests ---- */

/* Weights of host memory that the graph only reads may be promoted. */
static void promote_some(struct random_graph *g, struct ats_rng *rng)
{
    g->desc.promoted_at_once = 1024 * test_between(rng, 1, 128);
    for (uint32_t root = 0; root < g->desc.n_roots; root++) {
        bool written = false;
        for (size_t i = 0; i < g->desc.n_ops; i++) {
            written = written || g->ops[i].write == (int32_t)root;
        }
        const bool can = !written && g->roots[root].home == ATS_ON(ATS_HOST);
        g->roots[root].promoted = can && test_chance(rng, 60);
        g->roots[root].held = can && !g->roots[root].promoted && test_chance(rng, 50);
    }
}

static void run_random(uint64_t round, bool alternate, size_t *copies, size_t *promotions)
{
    struct ats_rng rng = test_rng(round);
    struct random_graph g;
    random_graph_make(&g, test_between(&rng, 1, GRAPH_MAX_OPS), false, &rng);
    enum ats_side sides[GRAPH_MAX_OPS] = {ATS_HOST};
    const unsigned stay = alternate ? 0 : (unsigned)test_between(&rng, 10, 95);
    for (size_t i = 0; i < g.desc.n_ops; i++) {
        sides[i] = i > 0 && test_chance(&rng, stay) ? sides[i - 1]
                   : alternate                      ? (enum ats_side)(i % 2)
                                                    : (enum ats_side)ats_rng_below(&rng, 2);
    }
    promote_some(&g, &rng);
    struct ats_schedule schedule;
    assert_true(ats_schedule_build(&g.desc, sides, &schedule));
    check_splits(&g, sides, &schedule);
    check_needs(&g, sides, &schedule);
    check_promotions(&g, sides, &schedule);
    *promotions += schedule.n_promotions;

    struct machine m = {.g = &g};
    for (size_t s = 0; s < GRAPH_MAX_ROOTS; s++) {
        m.one[s] = m.two[0][s] = m.two[1][s] = poison;
    }
    find_uses(&m);
    give_slots(&m, &rng);
    bring_externals(&m, &schedule, &rng);
    for (size_t s = 0; s < schedule.n_splits; s++) {
        run_split(&m, &schedule, &schedule.splits[s]);
    }
    check_final(&m, &schedule);
    *copies += schedule.n_copies;
    ats_schedule_free(&schedule);
    assert_null(schedule.splits);
}

/* Weights that pass and that one operator alone reads may come in pieces, if it reads no other such
 * one. Returns how many do. */
static size_t cut_some(struct random_graph *g, struct ats_rng *rng)
{
    size_t n = 0;
    for (uint32_t root = 0; root < g->desc.n_roots; root++) {
        size_t readers = 0;
        size_t others = 0;
        for (size_t i = 0; i < g->desc.n_ops; i++) {
            const bool reads = random_graph_is_read(&g->desc, &g->ops[i], root);
            readers += reads;
            for (uint32_t other = 0; reads && other < root; other++) {
                others += g->roots[other].pieces.n > 1 &&
                          random_graph_is_read(&g->desc, &g->ops[i], other);
            }
            readers += reads && g->ops[i].write < 0 ? 2 : 0;
        }
        if (g->roots[root].promoted && readers == 1 && others == 0 && test_chance(rng, 70)) {
            g->roots[root].pieces.n = (uint32_t)test_between(rng, 2, 5);
            n++;
        }
    }
    return n;
}

/* Each split of one schedule in that of the same graph with matrices in pieces: an operator that
 * reads one is that many splits, in order, and nothing else is different. */
static void run_pieces(uint64_t round, size_t *n_cut)
{
    struct ats_rng rng = test_rng(300000 + round);
    struct random_graph g;
    random_graph_make(&g, test_between(&rng, 1, GRAPH_MAX_OPS), false, &rng);
    enum ats_side sides[GRAPH_MAX_OPS] = {ATS_HOST};
    for (size_t i = 0; i < g.desc.n_ops; i++) {
        sides[i] = test_chance(&rng, 70) ? ATS_ACCEL : ATS_HOST;
    }
    promote_some(&g, &rng);
    struct ats_schedule whole;
    struct ats_schedule cut;
    assert_true(ats_schedule_build(&g.desc, sides, &whole));
    *n_cut += cut_some(&g, &rng);
    assert_true(ats_schedule_build(&g.desc, sides, &cut));

    const size_t bytes = g.desc.n_roots * sizeof(ats_side_set);
    assert_memory_equal(whole.needs, cut.needs, bytes);
    assert_memory_equal(whole.final, cut.final, bytes);
    assert_memory_equal(whole.copied, cut.copied, bytes);
    assert_int_equal(whole.n_copies, cut.n_copies);
    assert_memory_equal(whole.copies, cut.copies, whole.n_copies * sizeof(whole.copies[0]));
    size_t s = 0;
    uint32_t op = 0;
    while (op < g.desc.n_ops) {
        const struct ats_split *split = &cut.splits[s];
        uint32_t matrix = UINT32_MAX;
        for (uint32_t root = 0; sides[op] == ATS_ACCEL && root < g.desc.n_roots; root++) {
            if (g.roots[root].pieces.n > 1 && random_graph_is_read(&g.desc, &g.ops[op], root)) {
                matrix = root;
            }
        }
        assert_int_equal(split->first_op, op);
        if (matrix == UINT32_MAX) {
            assert_int_equal(split->n_pieces, 0);
            op += split->n_ops;
            s++;
            continue;
        }
        for (uint32_t p = 0; p < g.roots[matrix].pieces.n; p++, s++) {
            const struct ats_promoted *promoted = &cut.promotions[cut.splits[s].first_promotion];
            assert_int_equal(cut.splits[s].first_op, op);
            assert_int_equal(cut.splits[s].n_ops, 1);
            assert_int_equal(cut.splits[s].side, ATS_ACCEL);
            assert_int_equal(cut.splits[s].piece, p);
            assert_int_equal(cut.splits[s].n_pieces, g.roots[matrix].pieces.n);
            assert_true(p == 0 || cut.splits[s].n_copies == 0);
            assert_int_equal(promoted->root, matrix);
            assert_int_equal(promoted->piece, p);
            assert_int_equal(promoted->first_split, s);
            assert_int_equal(promoted->last_split, s);
        }
        op++;
    }
    assert_int_equal(s, cut.n_splits);
    ats_schedule_free(&whole);
    ats_schedule_free(&cut);
}

static void test_pieces_are_splits(void **state)
{
    (void)state;
    size_t n_cut = 0;
    for (uint64_t round = 0; round < 9000; round++) {
        run_pieces(round, &n_cut);
    }
    assert_true(n_cut > 500);
}

/* Pieces by hand, and that they are all of the matrix. */
static void test_pieces(void **state)
{
    (void)state;
    /* 512 experts of 512 rows of 1152 bytes, as in Qwen3-Next: 85 rows fit in 48 MiB */
    const struct ats_piece_rule *rule = &ats_piece_rule_default;
    struct ats_pieces pieces = ats_pieces_of(rule, 1152, 512, 512);
    assert_int_equal(pieces.n, 8);
    assert_int_equal(pieces.rows, 64);
    assert_int_equal(ats_piece_scratch(&pieces, UINT64_C(10) * 2048), 64 * 4 * 20480);
    /* 128 experts of 2048 rows of 432 bytes: 910 rows fit in 48 MiB, and 896 of whole tiles; with
     * as few pieces, six tiles in two of them and four in the last */
    pieces = ats_pieces_of(rule, 432, 2048, 128);
    assert_int_equal(pieces.n, 3);
    assert_int_equal(pieces.rows, 768);
    /* a small one is whole, and needs no scratch */
    pieces = ats_pieces_of(rule, 432, 2048, 8);
    assert_int_equal(pieces.n, 1);
    assert_int_equal(ats_piece_scratch(&pieces, 4096), 0);
    /* not of experts: 28672 rows of 4608 bytes, as in Llama-3.1-70B: 3640 rows fit in 16 MiB */
    pieces = ats_pieces_of(rule, 4608, 28672, 1);
    assert_int_equal(pieces.n, 8);
    assert_int_equal(pieces.rows, 3584);
    assert_int_equal(ats_pieces_of(rule, 4096, 4096, 1).n, 1);
    assert_int_equal(ats_pieces_of(&ats_piece_rule_whole, 4608, 28672, 128).n, 1);
    assert_int_equal(ats_pieces_of(&ats_piece_rule_whole, 4608, 28672, 1).n, 1);

    for (uint64_t round = 0; round < 1000; round++) {
        struct ats_rng rng = test_rng(400000 + round);
        const uint32_t least = (uint32_t)test_between(&rng, 1, 60);
        const struct ats_piece_rule r = {.most_bytes = test_between(&rng, 1, 100000),
                                         .most_dense_bytes = test_between(&rng, 1, 100000),
                                         .row_tile = (uint32_t)test_between(&rng, 1, 10) * least,
                                         .least_rows = least};
        const uint64_t n_rows = test_between(&rng, 1, 5000);
        const uint64_t n_experts = test_between(&rng, 0, 1) != 0 ? test_between(&rng, 2, 64) : 1;
        const size_t most = n_experts > 1 ? r.most_bytes : r.most_dense_bytes;
        const size_t row_bytes = test_between(&rng, 1, 5000);
        const struct ats_pieces p = ats_pieces_of(&r, row_bytes, n_rows, n_experts);
        uint64_t sum = 0;
        assert_true(p.n == 1 || n_experts > 1 || n_rows % least == 0);
        for (uint32_t i = 0; i < p.n; i++) {
            const uint32_t rows = ats_piece_rows(&p, n_rows, i);
            assert_true(rows > 0 && rows <= p.rows);
            assert_true(p.n == 1 || i + 1 == p.n || rows % least == 0);
            assert_true(p.n == 1 || rows <= least || rows * row_bytes * n_experts <= most);
            assert_true(p.n == 1 || i + 1 == p.n || rows < r.row_tile || rows % r.row_tile == 0);
            sum += rows;
        }
        assert_int_equal(sum, n_rows);
        assert_int_equal(ats_piece_rows(&p, n_rows, p.n), 0);
    }
}

static void test_reads_see_what_one_memory_gives(void **state)
{
    (void)state;
    size_t copies = 0;
    size_t promotions = 0;
    for (uint64_t round = 0; round < 5000; round++) {
        run_random(round, false, &copies, &promotions);
    }
    assert_true(copies > 4000 && promotions > 500); /* else nothing was tested */
}

static void test_alternating_sides(void **state)
{
    (void)state;
    size_t copies = 0;
    size_t promotions = 0;
    for (uint64_t round = 0; round < 2000; round++) {
        run_random(100000 + round, true, &copies, &promotions);
    }
    assert_true(copies > 2000 && promotions > 100);
}

static void test_one_side_needs_no_copy(void **state)
{
    (void)state;
    for (uint64_t round = 0; round < 200; round++) {
        struct ats_rng rng = test_rng(200000 + round);
        struct random_graph g;
        random_graph_make(&g, GRAPH_MAX_OPS, false, &rng);
        enum ats_side sides[GRAPH_MAX_OPS] = {ATS_HOST};
        for (size_t i = 0; i < g.desc.n_ops; i++) {
            sides[i] = round % 2 == 0 ? ATS_HOST : ATS_ACCEL;
        }
        struct ats_schedule schedule;
        assert_true(ats_schedule_build(&g.desc, sides, &schedule));
        assert_int_equal(schedule.n_splits, 1);
        assert_int_equal(schedule.n_copies, 0);
        ats_schedule_free(&schedule);
    }
}

static void test_empty_graph(void **state)
{
    (void)state;
    const struct ats_graph_desc graph = {0};
    struct ats_schedule schedule;
    assert_true(ats_schedule_build(&graph, NULL, &schedule));
    assert_int_equal(schedule.n_splits, 0);
    assert_int_equal(schedule.n_copies, 0);
    ats_schedule_free(&schedule);
    ats_schedule_free(&schedule); /* twice is harmless */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_reads_see_what_one_memory_gives),
        cmocka_unit_test(test_alternating_sides),
        cmocka_unit_test(test_one_side_needs_no_copy),
        cmocka_unit_test(test_empty_graph),
        cmocka_unit_test(test_pieces_are_splits),
        cmocka_unit_test(test_pieces),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
