/* Experts by use: parcels against a slow count, the choice by hand, the schedule's splits. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "cost/routing.h"
#include "plan/experts.h"
#include "plan/schedule.h"
#include "plan/share.h"
#include "plan/used.h"
#include "seed.h"

#include <string.h>

enum { MOST_EXPERTS = 96, MOST_TOKENS = 24, MOST_IDS = MOST_TOKENS * 8 };

/* ---- what is expected ---- */

/* The mean over many layers, counted one by one. */
static double count_used(int32_t n_experts, int32_t n_used, int n_tokens)
{
    enum { SEEDS = 200 };
    const struct ats_routing_model model = ats_routing_model_default();
    double sum = 0;
    for (uint64_t seed = 0; seed < SEEDS; seed++) {
        bool seen[512] = {false};
        int32_t ids[16];
        struct ats_routing routing;
        assert_true(ats_routing_init(&routing, &model, test_seed(), seed, n_experts, n_used));
        for (int t = 0; t < n_tokens; t++) {
            ats_routing_next(&routing, ids);
            for (int i = 0; i < n_used; i++) {
                sum += !seen[ids[i]];
                seen[ids[i]] = true;
            }
        }
        ats_routing_free(&routing);
    }
    return sum / SEEDS;
}

static void test_expected(void **state)
{
    (void)state;
    static const struct {
        uint32_t n_experts, n_used, n_tokens;
    } cases[] = {{32, 4, 32}, {128, 8, 32}, {128, 8, 128}, {512, 10, 32}, {512, 10, 256}};
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        const double mean = count_used((int32_t)cases[i].n_experts, (int32_t)cases[i].n_used,
                                       (int)cases[i].n_tokens);
        const double n = ats_used_expected(cases[i].n_experts, cases[i].n_used, cases[i].n_tokens);
        printf("%u tokens that use %u of %u experts each use %.0f of them, %.0f expected\n",
               cases[i].n_tokens, cases[i].n_used, cases[i].n_experts, mean, n);
        /* layers scatter by a sixth; the mean of four by half of that, three of which are enough */
        assert_true(n > 0.75 * mean && n < 1.25 * mean);
    }
    assert_int_equal(ats_used_expected(128, 8, 1), 8);
    assert_int_equal(ats_used_expected(128, 8, 128 * ATS_USED_SURELY_ALL / 8), 128);
    assert_int_equal(ats_used_expected(128, ATS_EXPERT_MOST_USED + 1, 1), 128);
}

/* ---- parcels ---- */

struct question {
    struct ats_used_query query;
    int32_t ids[2 * MOST_IDS];
    int32_t slot_of[MOST_EXPERTS];
    bool left[MOST_EXPERTS];
};

static void draw(struct ats_rng *rng, struct question *q)
{
    const int32_t n_experts = (int32_t)test_between(rng, 2, MOST_EXPERTS);
    const uint32_t most_used = n_experts < 8 ? (uint32_t)n_experts : 8;
    const uint32_t n_used = (uint32_t)test_between(rng, 1, most_used);
    const uint32_t n_tokens = (uint32_t)test_between(rng, 1, MOST_TOKENS);
    q->query = (struct ats_used_query){
        .ids = q->ids,
        .stride = test_chance(rng, 50) ? n_used : (size_t)test_between(rng, n_used, 2 * n_used),
        .n_tokens = n_tokens,
        .n_used = n_used,
        .n_experts = n_experts,
        .slot_of = test_chance(rng, 30) ? NULL : q->slot_of,
        .left = test_chance(rng, 50) ? NULL : q->left,
        .own_inputs = test_chance(rng, 50),
        .gap = test_chance(rng, 50) ? 0 : (int32_t)test_between(rng, 1, 4),
        .room = (uint32_t)test_between(rng, 1, MOST_EXPERTS),
        .n_parcels = (uint32_t)test_between(rng, 1, 5),
    };
    memset(q->ids, -1, sizeof(q->ids)); /* between the rows is no expert */
    for (uint32_t t = 0; t < n_tokens; t++) {
        for (uint32_t i = 0; i < n_used; i++) {
            q->ids[t * q->query.stride + i] = (int32_t)ats_rng_below(rng, (uint64_t)n_experts);
        }
    }
    for (int32_t e = 0; e < n_experts; e++) {
        q->slot_of[e] = test_chance(rng, 30) ? (int32_t)ats_rng_below(rng, 1000) : ATS_EXPERT_NONE;
        q->left[e] = test_chance(rng, 40);
    }
}

static int32_t expert_of(const struct ats_used_query *q, uint32_t column)
{
    return q->ids[column / q->n_used * q->stride + column % q->n_used];
}

static bool is_wanted(const struct ats_used_query *q, int32_t expert)
{
    for (uint32_t c = 0; c < q->n_tokens * q->n_used; c++) {
        if (expert_of(q, c) == expert && (q->left == NULL || !q->left[expert])) {
            return true;
        }
    }
    return false;
}

static bool is_in_slot(const struct ats_used_query *q, int32_t expert)
{
    return q->slot_of != NULL && q->slot_of[expert] != ATS_EXPERT_NONE;
}

/* Marks the columns of a list, each of which must have its expert there. `holds` is by place; NULL:
 * places are slots. */
static void check_columns(const struct ats_used_query *q, const struct ats_used *used,
                          const struct ats_used_columns *columns, const int32_t *holds, bool *seen)
{
    const size_t step = ((size_t)columns->n + 63) / 64 * 64;
    const int32_t *inputs = used->numbers + columns->first;
    const int32_t *places = inputs + step;
    const int32_t *results = places + step;
    for (uint32_t c = 0; c < columns->n; c++) {
        const uint32_t column = (uint32_t)results[c];
        assert_true(column < q->n_tokens * q->n_used && !seen[column]);
        seen[column] = true;
        const int32_t expert = expert_of(q, column);
        assert_int_equal(inputs[c], q->own_inputs ? column : column / q->n_used);
        if (holds != NULL) {
            assert_int_equal(holds[places[c]], expert);
        } else {
            assert_int_equal(places[c], q->slot_of[expert]);
        }
    }
}

/* Returns how many experts of the parcel are wanted; `last` is the one before. */
static uint32_t check_parcel(const struct ats_used_query *q, const struct ats_used *used,
                             const struct ats_used_parcel *parcel, int32_t *last, bool *seen)
{
    int32_t holds[MOST_EXPERTS];
    uint32_t place = 0;
    uint32_t n = 0;
    assert_true(parcel->n_places <= q->room);
    for (uint32_t r = parcel->first_run; r < parcel->first_run + parcel->n_runs; r++) {
        const struct ats_used_run *run = &used->runs[r];
        int32_t before = run->first - 1; /* wanted, or not in the run */
        assert_true(run->n > 0 && run->first > *last && run->first + run->n <= q->n_experts);
        for (int32_t e = run->first; e < run->first + run->n; e++) {
            holds[place++] = e;
            *last = e;
            if (is_wanted(q, e) && !is_in_slot(q, e)) {
                assert_true(e - before - 1 <= q->gap);
                before = e;
                n++;
            }
        }
        assert_int_equal(before, *last); /* a run ends with one that is wanted */
        assert_true(is_wanted(q, run->first) && !is_in_slot(q, run->first));
    }
    assert_int_equal(place, parcel->n_places);
    check_columns(q, used, &parcel->columns, holds, seen);
    return n;
}

static void check_all(const struct ats_used_query *q, const struct ats_used *used)
{
    bool seen[MOST_IDS] = {false};
    uint32_t n_hits = 0;
    uint32_t n_come = 0;
    uint32_t n_found = 0;
    for (int32_t e = 0; e < q->n_experts; e++) {
        const bool is_hit = is_wanted(q, e) && is_in_slot(q, e);
        if (is_hit) {
            assert_int_equal(used->hit_experts[n_hits], e);
            assert_int_equal(used->hit_slots[n_hits], q->slot_of[e]);
        }
        n_hits += is_hit;
        n_come += is_wanted(q, e) && !is_hit;
    }
    assert_int_equal(used->n_hits, n_hits);
    assert_int_equal(used->hits.first, 0);
    check_columns(q, used, &used->hits, NULL, seen);
    const uint32_t equal = (n_come + q->n_parcels - 1) / q->n_parcels;
    const uint32_t each = equal < q->room ? equal : q->room;
    const uint32_t needed = each > 0 ? (n_come + each - 1) / each : 0;
    uint32_t first = (used->hits.n + 63) / 64 * 64 * 3;
    int32_t last = -1;
    for (uint32_t p = 0; p < used->n_parcels; p++) {
        const struct ats_used_parcel *parcel = &used->parcels[p];
        assert_int_equal(parcel->columns.first, first);
        first += (parcel->columns.n + 63) / 64 * 64 * 3;
        const uint32_t n = check_parcel(q, used, parcel, &last, seen);
        assert_int_equal(n, n_come - n_found < each ? n_come - n_found : each);
        n_found += n;
    }
    assert_int_equal(n_found, n_come);
    assert_int_equal(used->n_parcels, needed > q->n_parcels ? needed : q->n_parcels);
    for (uint32_t c = 0; c < q->n_tokens * q->n_used; c++) {
        assert_int_equal(seen[c], q->left == NULL || !q->left[expert_of(q, c)]);
    }
}

static void test_parcels(void **state)
{
    (void)state;
    enum { ROUNDS = 20000 };
    size_t n_more = 0;
    for (uint64_t round = 0; round < ROUNDS; round++) {
        struct ats_rng rng = test_rng(round);
        struct question q;
        struct ats_used used;
        draw(&rng, &q);
        const uint32_t n_columns = q.query.n_tokens * q.query.n_used;
        assert_true(
            ats_used_init((uint32_t)q.query.n_experts, n_columns, q.query.n_parcels, &used));
        ats_used_find(&q.query, &used);
        check_all(&q.query, &used);
        n_more += used.n_parcels > q.query.n_parcels;
        ats_used_find(&q.query, &used); /* nothing of the time before is left */
        check_all(&q.query, &used);
        ats_used_free(&used);
    }
    assert_true(n_more > ROUNDS / 100);
}

static void test_parcels_by_hand(void **state)
{
    (void)state;
    /* experts 2 and 9 are in slots; 3, 5 and 6 cross, as 3 alone and 5 to 6 */
    static const int32_t ids[] = {9, 5, 3, 2, 6, 5};
    int32_t slot_of[10];
    memset(slot_of, -1, sizeof(slot_of));
    slot_of[2] = 7;
    slot_of[9] = 0;
    struct ats_used used;
    assert_true(ats_used_init(10, 6, 2, &used));
    struct ats_used_query q = {.ids = ids,
                               .stride = 2,
                               .n_tokens = 3,
                               .n_used = 2,
                               .n_experts = 10,
                               .slot_of = slot_of,
                               .room = 10,
                               .n_parcels = 1};
    ats_used_find(&q, &used);
    /* inputs, places, results; each list takes 64 numbers */
    static const int32_t hits[3][2] = {{1, 0}, {7, 0}, {3, 0}};
    static const int32_t others[3][4] = {{1, 0, 2, 2}, {0, 1, 1, 2}, {2, 1, 5, 4}};
    assert_int_equal(used.n_parcels, 1);
    assert_int_equal(used.hits.n, 2);
    assert_int_equal(used.parcels[0].columns.n, 4);
    for (size_t i = 0; i < 3; i++) {
        assert_memory_equal(used.numbers + 64 * i, hits[i], sizeof(hits[i]));
        assert_memory_equal(used.numbers + 64 * (3 + i), others[i], sizeof(others[i]));
    }
    assert_int_equal(used.parcels[0].n_places, 3);
    assert_int_equal(used.parcels[0].n_runs, 2);
    q.gap = 1; /* 4 comes along */
    ats_used_find(&q, &used);
    assert_int_equal(used.parcels[0].n_runs, 1);
    assert_int_equal(used.parcels[0].n_places, 4);
    q.room = 3; /* there is no place for it */
    ats_used_find(&q, &used);
    assert_int_equal(used.n_parcels, 1);
    assert_int_equal(used.parcels[0].n_places, 3);
    q.n_parcels = 2;
    ats_used_find(&q, &used);
    assert_int_equal(used.n_parcels, 2);
    assert_int_equal(used.parcels[0].n_places, 3); /* 3, 4 and 5 */
    assert_int_equal(used.parcels[1].n_places, 1);
    q.room = 1;
    ats_used_find(&q, &used);
    assert_int_equal(used.n_parcels, 3);
    ats_used_free(&used);
}

/* ---- the choice ---- */

/* A router, whose ids come from root 1, and a product of the input with 32 experts of 1 MiB in root
 * 0, behind which all is computed. */
struct small {
    struct ats_op ops[2];
    uint32_t reads[4];
    struct ats_root roots[4];
    struct ats_graph_desc graph;
};

static void make_small(struct small *s, float product_us)
{
    *s = (struct small){
        .ops = {{.n_reads = 1, .write = 1, .supported = ATS_ON_BOTH, .cost_us = {50, 10}},
                {.first_read = 1,
                 .n_reads = 3,
                 .write = 3,
                 .supported = ATS_ON_BOTH,
                 .cost_us = {1e6F, product_us},
                 .ids = 2}},
        .reads = {2, 0, 2, 1},
        .roots = {{.bytes = (size_t)32 << 20, .home = ATS_ON(ATS_HOST)},
                  {.bytes = 4096},
                  {.bytes = 4096},
                  {.bytes = 4096}},
    };
    s->graph = (struct ats_graph_desc){
        .ops = s->ops, .n_ops = 2, .reads = s->reads, .roots = s->roots, .n_roots = 4};
}

static const struct ats_partition_costs costs = {
    .split_us = 20, .copy_latency_us = 10, .link_bytes_per_us = 1 << 20};

static const struct ats_promotion rule = {.kind = ATS_PROMOTE_FASTER,
                                          .copy_latency_us = 10,
                                          .link_bytes_per_us = 1 << 20,
                                          .most_bytes = (size_t)64 << 20,
                                          .most_used_bytes = (size_t)64 << 20};

/* Whether the matrix of the small graph is preferred by use. */
static bool prefers(struct small *s, const struct ats_promotion *how, uint32_t n_tokens,
                    struct ats_used_shape *shape)
{
    const bool candidates[4] = {true};
    bool promoted[4] = {false};
    struct ats_used_shape shapes[4] = {{0}};
    const struct ats_used_matrix matrices[4] = {{.n_experts = 32,
                                                 .n_used = 4,
                                                 .n_tokens = n_tokens,
                                                 .expert_bytes = (size_t)1 << 20,
                                                 .padding = 100}};
    ats_promote(&s->graph, how, candidates, promoted);
    ats_prefer_used(&s->graph, how, &costs, candidates, matrices, s->roots, shapes, promoted);
    assert_true(promoted[0]);
    *shape = shapes[0];
    return s->roots[0].by_use;
}

static void test_choice_by_hand(void **state)
{
    (void)state;
    struct small s;
    struct ats_used_shape shape;
    enum { TOKENS = ATS_USED_LEAST_IF_FASTER };
    make_small(&s, 5);
    const uint32_t n = ats_used_expected(32, 4, TOKENS);
    assert_true(n >= 8 && n < 24);
    /* as a whole: 10 us and 32 MiB at one per us, beside 15 us of computing; by use, in one copy:
     * n MiB, 10 and 20 us, and 15 us beside nothing */
    const bool candidates[4] = {true};
    assert_float_equal(ats_used_pass_us(&s.graph, &rule, &costs, candidates, candidates), 42, 1e-3);
    s.roots[0].by_use = true;
    s.roots[0].n_parcels = 1;
    s.roots[0].used_us = 10 + (float)n;
    assert_float_equal(ats_used_pass_us(&s.graph, &rule, &costs, candidates, candidates),
                       45 + (float)n, 1e-3);
    s.roots[0].n_parcels = 3; /* each is a change of sides */
    assert_float_equal(ats_used_pass_us(&s.graph, &rule, &costs, candidates, candidates),
                       85 + (float)n, 1e-3);
    s.roots[0].n_parcels = 1;
    struct ats_promotion serial = rule;
    serial.serial = true;
    assert_float_equal(ats_used_pass_us(&s.graph, &serial, &costs, candidates, candidates),
                       45 + (float)n, 1e-3);
    make_small(&s, 5);
    assert_false(prefers(&s, &rule, TOKENS, &shape)); /* more than 42 */
    /* eight times as many bytes would take 266; by use it is at most 16 copies of 24 MiB in all */
    s.roots[0].bytes *= 8;
    struct ats_promotion larger = rule;
    larger.most_bytes *= 8;
    assert_true(prefers(&s, &larger, TOKENS, &shape));
    /* of n of 32 that are drawn at random, each begins a copy but behind another of them */
    const float n_copies = (float)(n * (33 - n) / 32 + 1);
    assert_float_equal(s.roots[0].used_us, 10 * n_copies + (float)n, 1e-3);
    /* a parcel has a quarter of 64 MiB, for 15 experts and lists; 1.6 times as many as expected */
    const uint32_t most = (uint32_t)(1.6 * n) + 1 < 32 ? (uint32_t)(1.6 * n) + 1 : 32;
    assert_int_equal(shape.n_parcels, (most + 14) / 15);
    assert_int_equal(shape.room, (most + shape.n_parcels - 1) / shape.n_parcels);
    assert_int_equal(s.roots[0].n_parcels, shape.n_parcels);
    assert_int_equal(shape.gap, 10); /* a copy begins in the time of 10 MiB */
    assert_int_equal(shape.lists % 256, 0);
    assert_true(shape.lists >= shape.room * ((size_t)1 << 20) + 100);
    assert_true(shape.place_bytes >= shape.lists + (size_t)TOKENS * 4 * 3 * sizeof(int32_t));
    assert_true(4 * shape.place_bytes <= rule.most_used_bytes);
    make_small(&s, 5);
    s.roots[0].bytes *= 8;
    assert_false(prefers(&s, &larger, TOKENS - 1, &shape));
    struct ats_promotion all = rule;
    all.kind = ATS_PROMOTE_ALL;
    make_small(&s, 5);
    assert_true(prefers(&s, &all, ATS_USED_LEAST_TOKENS, &shape));
    make_small(&s, 5);
    assert_false(prefers(&s, &all, ATS_USED_LEAST_TOKENS - 1, &shape));
    all.used = ATS_USED_NEVER;
    make_small(&s, 5);
    assert_false(prefers(&s, &all, TOKENS, &shape));
    all.used = ATS_USED_IF_FASTER;
    all.most_used_bytes = ((size_t)6 << 20); /* two of them would be larger than a half */
    make_small(&s, 5);
    assert_true(prefers(&s, &all, TOKENS, &shape));
    assert_int_equal(shape.room, 1);
    assert_int_equal(shape.n_parcels, most);
    all.most_used_bytes = ((size_t)3 << 20); /* more than a quarter, less than a half */
    make_small(&s, 5);
    assert_true(prefers(&s, &all, TOKENS, &shape));
    assert_int_equal(shape.room, 1);
    all.most_used_bytes = ((size_t)2 << 20); /* no room for one and its lists */
    make_small(&s, 5);
    assert_false(prefers(&s, &all, TOKENS, &shape));
    all.most_used_bytes = rule.most_used_bytes;
    all.tight_used = true;
    make_small(&s, 5);
    assert_true(prefers(&s, &all, TOKENS, &shape));
    assert_int_equal(shape.room, 4);
    assert_int_equal(shape.n_parcels, 2);
}

/* Half of the experts are left to the CPU, which reads them as fast as the link brings others,
 * beside it too: these take half of the time, and half of the room. Without flops nothing is left.
 */
static void test_choice_with_share(void **state)
{
    (void)state;
    enum { TOKENS = ATS_USED_LEAST_IF_FASTER };
    struct small s;
    struct ats_plan_rates rates = ats_plan_rates_assumed;
    rates.side[ATS_HOST].vram_gbps[ATS_FAMILY_Q4] = 1.048576;
    rates.side[ATS_HOST].matmul_tflops[ATS_FAMILY_Q4] = 1;
    rates.side[ATS_HOST].matmul_half_batch = 0;
    rates.costs = costs;
    rates.costs.split_us = 0;
    rates.costs.copy_latency_us = 0;
    rates.costs.link_bytes_per_us = 1048.576F;
    rates.costs.link_beside_cpu_bytes_per_us = 1048.576F;
    struct ats_promotion how = rule;
    how.kind = ATS_PROMOTE_ALL;
    how.share_rates = &rates;
    how.copy_latency_us = 0;
    how.link_bytes_per_us = 1048.576F;
    const uint32_t n = ats_used_expected(32, 4, TOKENS);
    const bool candidates[4] = {true};
    uint32_t places[2];
    for (int round = 0; round < 2; round++) {
        bool promoted[4] = {true};
        struct ats_used_shape shapes[4] = {{0}};
        const struct ats_used_matrix matrices[4] = {{.n_experts = 32,
                                                     .n_used = 4,
                                                     .n_tokens = TOKENS,
                                                     .expert_bytes = (size_t)1 << 20,
                                                     .flops = round == 0 ? 1000 : 0,
                                                     .most_columns = 1000,
                                                     .family = ATS_FAMILY_Q4}};
        make_small(&s, 5);
        ats_prefer_used(&s.graph, &how, &rates.costs, candidates, matrices, s.roots, shapes,
                        promoted);
        assert_true(s.roots[0].by_use);
        assert_float_equal(s.roots[0].used_us, 1000.0F * (float)n / (round == 0 ? 2 : 1), 1);
        places[round] = shapes[0].n_parcels * shapes[0].room;
    }
    assert_true(places[0] < 0.6 * places[1]);
    const struct ats_share_costs each = ats_share_costs_of(&rates, ATS_FAMILY_Q4, 1 << 20, 1, 1000);
    assert_float_equal(each.link_us, 1000, 0.1);
    assert_float_equal(each.read_us, 1000, 0.1);
    double us = 0;
    const double half = ats_share_expected(&each, n, (uint64_t)TOKENS * 4, UINT64_MAX, &us);
    assert_float_equal((float)half, n / 2.0F, 1e-2);
}

static void test_splits(void **state)
{
    (void)state;
    struct small s;
    make_small(&s, 5);
    s.roots[0].promoted = true;
    s.roots[0].by_use = true;
    s.roots[0].n_parcels = 2;
    s.roots[0].home = ATS_ON(ATS_ACCEL);
    const enum ats_side sides[2] = {ATS_ACCEL, ATS_ACCEL};
    struct ats_schedule schedule;
    assert_true(ats_schedule_build(&s.graph, sides, &schedule));
    /* the router; its ids to the CPU; the product's two parcels */
    assert_int_equal(schedule.n_splits, 4);
    assert_int_equal(schedule.splits[1].side, ATS_HOST);
    assert_int_equal(schedule.splits[1].n_ops, 0);
    assert_int_equal(schedule.splits[1].n_copies, 1);
    assert_int_equal(schedule.copies[schedule.splits[1].first_copy], 1);
    assert_false(schedule.splits[0].by_use);
    assert_int_equal(schedule.n_promotions, 2);
    for (uint32_t p = 0; p < 2; p++) {
        const struct ats_split *split = &schedule.splits[2 + p];
        assert_true(split->by_use && split->n_ops == 1 && split->first_op == 1);
        assert_int_equal(split->piece, p);
        assert_int_equal(split->n_pieces, 2);
        assert_int_equal(split->first_promotion, p);
        assert_int_equal(split->n_promotions, 1);
        assert_int_equal(schedule.promotions[p].piece, p);
        assert_int_equal(schedule.promotions[p].last_split, 2 + p);
    }
    ats_schedule_free(&schedule);
    /* a router of the CPU leaves the ids there */
    const enum ats_side other[2] = {ATS_HOST, ATS_ACCEL};
    assert_true(ats_schedule_build(&s.graph, other, &schedule));
    assert_int_equal(schedule.n_splits, 3);
    assert_true(schedule.splits[1].by_use && schedule.splits[2].by_use);
    ats_schedule_free(&schedule);
}

/* A norm makes the input, a router the ids; gate and down pass by use, with a bias behind gate that
 * is on both sides, and one behind down; then all is combined. The CPU shares from gate to the last
 * bias. */
static void test_splits_of_share(void **state)
{
    (void)state;
    enum { INPUT, IDS, GATE, DOWN, BIAS, GATED, BIASED, PRODUCT, RESULT, COMBINED, N_ROOTS };
    enum { NORM, ROUTE, MUL_GATE, ADD, MUL_DOWN, ADD_LAST, COMBINE, N_OPS };
    static const uint32_t reads[] = {/* route */ INPUT,
                                     /* gate */ GATE,     INPUT,  IDS,
                                     /* add */ GATED,     BIAS,
                                     /* down */ DOWN,     BIASED, IDS,
                                     /* last */ PRODUCT,  BIAS,
                                     /* combine */ RESULT};
    struct ats_op ops[N_OPS] = {
        [NORM] = {.first_read = 0, .n_reads = 0, .write = INPUT},
        [ROUTE] = {.first_read = 0, .n_reads = 1, .write = IDS},
        [MUL_GATE] = {.first_read = 1, .n_reads = 3, .write = GATED, .ids = 2, .share = 1},
        [ADD] = {.first_read = 4, .n_reads = 2, .write = BIASED, .share = 1},
        [MUL_DOWN] = {.first_read = 6, .n_reads = 3, .write = PRODUCT, .ids = 2, .share = 1},
        [ADD_LAST] = {.first_read = 9, .n_reads = 2, .write = RESULT, .share = 1},
        [COMBINE] = {.first_read = 11, .n_reads = 1, .write = COMBINED},
    };
    struct ats_root roots[N_ROOTS] = {
        [GATE] = {.bytes = 8,
                  .home = ATS_ON(ATS_ACCEL),
                  .promoted = true,
                  .by_use = true,
                  .n_parcels = 1},
        [DOWN] = {.bytes = 8,
                  .home = ATS_ON(ATS_ACCEL),
                  .promoted = true,
                  .by_use = true,
                  .n_parcels = 1},
        [BIAS] = {.bytes = 8, .home = ATS_ON_BOTH},
    };
    enum ats_side sides[N_OPS];
    for (int i = 0; i < N_OPS; i++) {
        ops[i].supported = ATS_ON_BOTH;
        sides[i] = ATS_ACCEL;
    }
    const struct ats_graph_desc graph = {
        .ops = ops, .n_ops = N_OPS, .reads = reads, .roots = roots, .n_roots = N_ROOTS};
    struct ats_schedule schedule;
    assert_true(ats_schedule_build(&graph, sides, &schedule));
    /* norm and router; input and ids to the CPU; gate; bias; down; the last bias; the rest */
    assert_int_equal(schedule.n_splits, 7);
    const struct ats_split *brings = &schedule.splits[1];
    assert_true(brings->side == ATS_HOST && brings->n_ops == 0);
    assert_int_equal(brings->n_copies, 2);
    assert_int_equal(schedule.copies[brings->first_copy], INPUT);
    assert_int_equal(schedule.copies[brings->first_copy + 1], IDS);
    assert_int_equal(schedule.needs[BIAS], ATS_ON_BOTH);
    for (size_t i = 0; i < schedule.n_splits; i++) {
        assert_int_equal(schedule.splits[i].share, i == 5 ? 1 : 0);
        assert_int_equal(schedule.splits[i].by_use, i == 2 || i == 4);
    }
    assert_int_equal(schedule.n_copies, 2);
    ats_schedule_free(&schedule);
    /* it may end with a product */
    ops[ADD_LAST].share = 0;
    assert_true(ats_schedule_build(&graph, sides, &schedule));
    assert_int_equal(schedule.n_splits, 6);
    assert_int_equal(schedule.splits[4].share, 1);
    assert_int_equal(schedule.splits[5].n_ops, 2);
    ats_schedule_free(&schedule);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_expected),          cmocka_unit_test(test_parcels),
        cmocka_unit_test(test_parcels_by_hand),   cmocka_unit_test(test_choice_by_hand),
        cmocka_unit_test(test_choice_with_share), cmocka_unit_test(test_splits),
        cmocka_unit_test(test_splits_of_share),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
