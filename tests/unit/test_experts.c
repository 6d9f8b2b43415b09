/* Experts by slice: the slots' policy by hand, against a copy of VRAM that knows what is where, and
 * against an LRU cache; regions by hand and with one thing wrong at a time. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "cost/routing.h"
#include "plan/experts.h"
#include "plan/experts_region.h"
#include "plan/schedule.h"
#include "random_graph.h"

enum { MOST_EXPERTS = 64 };

/* ---- slots, by hand ---- */

static void test_by_hand(void **state)
{
    (void)state;
    static const size_t parts[] = {60, 40};
    struct ats_expert_slots slots;
    struct ats_expert_columns columns;
    struct ats_expert_copy copy;
    assert_true(ats_expert_slots_init(&slots, 4, 2, parts, 2, 0.5F));
    ats_expert_slots_fill(&slots);
    /* 3 and 1: one miss of 100 bytes gives credit for 50, less than the first part */
    ats_expert_slots_use(&slots, (const int32_t[]){3, 1}, 2, &columns);
    assert_int_equal(columns.n_hits, 1);
    assert_int_equal(columns.hit[0], 1);
    assert_int_equal(columns.slot[0], 1);
    assert_int_equal(columns.n_misses, 1);
    assert_int_equal(columns.miss[0], 0);
    assert_false(ats_expert_slots_next(&slots, &copy));
    /* again: credit for 100, and 3 replaces 0, which nobody used */
    ats_expert_slots_use(&slots, (const int32_t[]){3, 1}, 2, &columns);
    assert_int_equal(columns.n_misses, 1);
    assert_true(ats_expert_slots_next(&slots, &copy));
    assert_int_equal(copy.expert, 3);
    assert_int_equal(copy.slot, 0);
    assert_int_equal(copy.part, 0);
    assert_false(copy.last);
    assert_int_equal(slots.slot_of[0], ATS_EXPERT_NONE);
    assert_int_equal(slots.slot_of[3], ATS_EXPERT_NONE); /* not yet */
    assert_true(ats_expert_slots_next(&slots, &copy));
    assert_int_equal(copy.part, 1);
    assert_true(copy.last);
    assert_int_equal(slots.slot_of[3], 0);
    assert_false(ats_expert_slots_next(&slots, &copy));
    /* both there; no credit without misses */
    ats_expert_slots_use(&slots, (const int32_t[]){1, 3}, 2, &columns);
    assert_int_equal(columns.n_hits, 2);
    assert_int_equal(columns.slot[0], 1);
    assert_int_equal(columns.slot[1], 0);
    assert_false(ats_expert_slots_next(&slots, &copy));
    /* a newcomer with one use does not beat experts of three */
    ats_expert_slots_use(&slots, (const int32_t[]){2, 0}, 2, &columns);
    assert_int_equal(columns.n_misses, 2);
    assert_false(ats_expert_slots_next(&slots, &copy));
    assert_true(ats_expert_slots_full(&slots));
    ats_expert_slots_empty(&slots);
    assert_false(ats_expert_slots_full(&slots));
    ats_expert_slots_use(&slots, (const int32_t[]){1, 3}, 2, &columns);
    assert_int_equal(columns.n_misses, 2);
    /* credit of 100 for both: one expert; what is on its way can be finished without */
    assert_true(ats_expert_slots_next(&slots, &copy));
    assert_true(ats_expert_slots_finish(&slots, &copy));
    assert_true(copy.last);
    assert_false(ats_expert_slots_finish(&slots, &copy));
    ats_expert_slots_free(&slots);
}

static void test_twice_the_same_expert(void **state)
{
    (void)state;
    static const size_t parts[] = {10};
    struct ats_expert_slots slots;
    struct ats_expert_columns columns;
    struct ats_expert_copy copy;
    assert_true(ats_expert_slots_init(&slots, 8, 4, parts, 1, 1.0F));
    ats_expert_slots_use(&slots, (const int32_t[]){5, 5, 5}, 3, &columns);
    assert_int_equal(columns.n_misses, 3);
    assert_true(ats_expert_slots_next(&slots, &copy));
    assert_int_equal(copy.expert, 5);
    assert_false(ats_expert_slots_next(&slots, &copy));
    ats_expert_slots_use(&slots, (const int32_t[]){5, 5, 5}, 3, &columns);
    assert_int_equal(columns.n_hits, 3);
    ats_expert_slots_free(&slots);
}

/* ---- slots, at random ---- */

/* What VRAM holds: the expert of each part of each slot. */
struct vram {
    int32_t part[MOST_EXPERTS][ATS_EXPERT_MOST_PARTS];
};

static void check_columns(const struct ats_expert_slots *slots, const struct vram *vram,
                          const int32_t *experts, uint32_t n,
                          const struct ats_expert_columns *columns)
{
    bool seen[ATS_EXPERT_MOST_USED] = {false};
    assert_int_equal(columns->n_hits + columns->n_misses, n);
    for (uint32_t i = 0; i < columns->n_hits; i++) {
        const int32_t column = columns->hit[i];
        assert_false(seen[column]);
        seen[column] = true;
        for (uint32_t p = 0; p < slots->n_parts; p++) {
            assert_int_equal(vram->part[columns->slot[i]][p], experts[column]);
        }
    }
    for (uint32_t i = 0; i < columns->n_misses; i++) {
        assert_false(seen[columns->miss[i]]);
        seen[columns->miss[i]] = true;
    }
}

static void run_copies(struct ats_expert_slots *slots, struct vram *vram,
                       const struct ats_expert_columns *columns, double *copied)
{
    struct ats_expert_copy copy;
    while (ats_expert_slots_next(slots, &copy)) {
        for (uint32_t i = 0; i < columns->n_hits; i++) {
            assert_int_not_equal(columns->slot[i], copy.slot); /* it is being read */
        }
        vram->part[copy.slot][copy.part] = copy.expert;
        *copied += (double)slots->part_bytes[copy.part];
    }
}

/* A whole weight put together from host memory and, where all of them hold something, slots. */
static void check_whole(const struct ats_expert_slots *slots, const struct vram *vram,
                        uint32_t part, int32_t gap)
{
    int32_t place[MOST_EXPERTS];
    memset(place, -1, sizeof(place));
    int32_t n_absent = slots->n_experts;
    int32_t n = 0;
    int32_t copied = 0;
    int32_t last_end = -1;
    for (int32_t first = 0; ats_expert_slots_run(slots, gap, &first, &n); first += n) {
        assert_true(last_end < 0 || first - last_end > gap);
        assert_int_equal(slots->slot_of[first], ATS_EXPERT_NONE);
        assert_int_equal(slots->slot_of[first + n - 1], ATS_EXPERT_NONE);
        for (int32_t e = first; e < first + n; e++) {
            place[e] = e;
        }
        copied += n;
        last_end = first + n;
    }
    for (int32_t s = 0; s < slots->n_slots && ats_expert_slots_full(slots); s++) {
        assert_true(place[slots->expert_of[s]] < 0 || gap > 0);
        place[slots->expert_of[s]] = vram->part[s][part];
    }
    for (int32_t e = 0; e < slots->n_experts; e++) {
        n_absent -= slots->slot_of[e] != ATS_EXPERT_NONE;
        assert_true(place[e] == e ||
                    (slots->slot_of[e] != ATS_EXPERT_NONE && !ats_expert_slots_full(slots)));
    }
    assert_true(copied >= n_absent && (gap > 0 || copied == n_absent));
}

static void random_tokens(uint64_t round)
{
    struct ats_rng rng = test_rng(round);
    size_t parts[ATS_EXPERT_MOST_PARTS];
    const uint32_t n_parts = (uint32_t)test_between(&rng, 1, ATS_EXPERT_MOST_PARTS);
    for (uint32_t p = 0; p < n_parts; p++) {
        parts[p] = test_between(&rng, 1, 100);
    }
    const int32_t n_experts = (int32_t)test_between(&rng, 1, MOST_EXPERTS);
    const int32_t n_slots = (int32_t)test_between(&rng, 1, (size_t)n_experts);
    const float share = 0.25F * (float)test_between(&rng, 1, 12);
    struct ats_expert_slots slots;
    struct vram vram;
    assert_true(ats_expert_slots_init(&slots, n_experts, n_slots, parts, n_parts, share));
    memset(&vram, -1, sizeof(vram));
    if (test_chance(&rng, 50)) {
        ats_expert_slots_fill(&slots);
        for (int32_t s = 0; s < n_slots; s++) {
            for (uint32_t p = 0; p < n_parts; p++) {
                vram.part[s][p] = s;
            }
        }
    }
    double copied = 0;
    double missed = 0;
    double ahead = 0;
    const size_t most_used = n_experts < 10 ? (size_t)n_experts : 10;
    for (int t = 0; t < 200; t++) {
        int32_t experts[ATS_EXPERT_MOST_USED];
        const uint32_t n = (uint32_t)test_between(&rng, 1, most_used);
        const size_t some = test_chance(&rng, 70) ? (size_t)(n_experts + 1) / 2 : (size_t)n_experts;
        for (uint32_t i = 0; i < n; i++) {
            experts[i] = (int32_t)ats_rng_below(&rng, some);
        }
        struct ats_expert_columns columns;
        ats_expert_slots_use(&slots, experts, n, &columns);
        check_columns(&slots, &vram, experts, n, &columns);
        missed += (double)columns.n_misses * (double)slots.expert_bytes;
        run_copies(&slots, &vram, &columns, &copied);
        assert_true(copied <= (double)share * missed + 1e-6 * missed + ahead);
        check_whole(&slots, &vram, (uint32_t)ats_rng_below(&rng, n_parts),
                    (int32_t)ats_rng_below(&rng, 4));
        struct ats_expert_copy copy;
        while (test_chance(&rng, 20) && ats_expert_slots_finish(&slots, &copy)) {
            vram.part[copy.slot][copy.part] = copy.expert;
            copied += (double)slots.part_bytes[copy.part];
            ahead = (double)slots.expert_bytes; /* the most that can be finished at a time */
        }
        if (test_chance(&rng, 2)) {
            ats_expert_slots_empty(&slots);
        }
    }
    ats_expert_slots_free(&slots);
}

static void test_at_random(void **state)
{
    (void)state;
    for (uint64_t round = 0; round < 300; round++) {
        random_tokens(round);
    }
}

/* Scores do not run out of range, however long a text is. */
static void test_long_text(void **state)
{
    (void)state;
    static const size_t parts[] = {1};
    struct ats_expert_slots slots;
    struct ats_expert_columns columns;
    struct ats_expert_copy copy;
    assert_true(ats_expert_slots_init(&slots, 4, 1, parts, 1, 1.0F));
    for (int t = 0; t < 100000; t++) {
        const int32_t expert = t / 1000 % 4;
        ats_expert_slots_use(&slots, &expert, 1, &columns);
        while (ats_expert_slots_next(&slots, &copy)) {
        }
        /* the one of a thousand tokens before is worth half as much every four tokens */
        assert_true(t % 1000 < 4 * ATS_EXPERT_HALF_LIFE || columns.n_hits == 1);
    }
    ats_expert_slots_free(&slots);
}

/* ---- against LRU ---- */

/* Hits of an LRU cache to which every miss is admitted at once. */
static uint32_t use_lru(int32_t *stack, int32_t n_slots, const int32_t *experts, int32_t n)
{
    uint32_t hits = 0;
    for (int32_t i = 0; i < n; i++) {
        int32_t at = 0;
        while (at < n_slots && stack[at] != experts[i]) {
            at++;
        }
        hits += at < n_slots;
        at = at < n_slots ? at : n_slots - 1;
        memmove(stack + 1, stack, (size_t)at * sizeof(*stack));
        stack[0] = experts[i];
    }
    return hits;
}

/* If as many bytes are copied as are missed, slots hit nearly as often as an LRU cache that copies
 * whatever it wants; with what the CPU's work on misses leaves for copies, not much less. */
static void beside_lru(float copy_share, double least)
{
    static const struct {
        int32_t n_experts;
        int32_t n_used;
        int32_t n_slots;
    } sizes[] = {{128, 8, 26}, {128, 8, 51}, {32, 4, 10}, {512, 10, 100}, {256, 8, 40}};
    enum { TOKENS = 2000, WARM = 100, MOST = 512 };
    for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
        static const size_t parts[] = {100, 100, 100};
        const struct ats_routing_model model = ats_routing_model_default();
        struct ats_routing routing;
        struct ats_expert_slots slots;
        int32_t stack[MOST];
        int32_t experts[ATS_EXPERT_MOST_USED];
        memset(stack, -1, sizeof(stack));
        assert_true(ats_routing_init(&routing, &model, test_seed(), i, sizes[i].n_experts,
                                     sizes[i].n_used));
        assert_true(ats_expert_slots_init(&slots, sizes[i].n_experts, sizes[i].n_slots, parts, 3,
                                          copy_share));
        uint64_t hits = 0;
        uint64_t lru_hits = 0;
        for (int t = 0; t < TOKENS; t++) {
            struct ats_expert_columns columns;
            struct ats_expert_copy copy;
            ats_routing_next(&routing, experts);
            ats_expert_slots_use(&slots, experts, (uint32_t)sizes[i].n_used, &columns);
            while (ats_expert_slots_next(&slots, &copy)) {
            }
            const uint32_t lru = use_lru(stack, sizes[i].n_slots, experts, sizes[i].n_used);
            hits += t >= WARM ? columns.n_hits : 0;
            lru_hits += t >= WARM ? lru : 0;
        }
        assert_true((double)hits > least * (double)lru_hits);
        ats_expert_slots_free(&slots);
        ats_routing_free(&routing);
    }
}

static void test_beside_lru(void **state)
{
    (void)state;
    beside_lru(1.0F, 0.92);
    beside_lru(ats_expert_copy_share(&ats_plan_rates_assumed), 0.75);
}

/* ---- division ---- */

static void test_division(void **state)
{
    (void)state;
    struct ats_expert_layer by_hand[] = {{.n_experts = 10, .expert_bytes = 3},
                                         {.n_experts = 10, .expert_bytes = 3},
                                         {.n_experts = 10, .expert_bytes = 4}};
    ats_expert_divide(by_hand, 3, 52); /* 5 each are 50 */
    assert_int_equal(by_hand[0].n_slots, 5);
    assert_int_equal(by_hand[1].n_slots, 5);
    assert_int_equal(by_hand[2].n_slots, 5);
    ats_expert_divide(by_hand, 3, 53);
    assert_int_equal(by_hand[1].n_slots, 6);
    ats_expert_divide(by_hand, 3, 1000);
    assert_int_equal(by_hand[0].n_slots, 10);
    ats_expert_divide(by_hand, 3, 0);
    assert_int_equal(by_hand[2].n_slots, 0);
    for (uint64_t round = 0; round < 2000; round++) {
        struct ats_rng rng = test_rng(10000 + round);
        struct ats_expert_layer layers[8];
        const size_t n = test_between(&rng, 1, 8);
        size_t total = 0;
        for (size_t i = 0; i < n; i++) {
            layers[i] = (struct ats_expert_layer){.n_experts = (int32_t)test_between(&rng, 1, 512),
                                                  .expert_bytes = test_between(&rng, 1, 1 << 22)};
            total += (size_t)layers[i].n_experts * layers[i].expert_bytes;
        }
        const size_t bytes = (size_t)ats_rng_below(&rng, 2 * total);
        ats_expert_divide(layers, n, bytes);
        size_t used = 0;
        for (size_t i = 0; i < n; i++) {
            const double fair = (double)layers[i].n_experts * (double)bytes / (double)total;
            const double most = (double)layers[i].n_experts;
            assert_true(layers[i].n_slots >= 0 && layers[i].n_slots <= layers[i].n_experts);
            assert_true((double)layers[i].n_slots >= (fair < most ? fair : most) - 1.001);
            assert_true((double)layers[i].n_slots <= fair + 1.001);
            used += (size_t)layers[i].n_slots * layers[i].expert_bytes;
        }
        assert_true(used <= bytes);
    }
}

/* Layers that stay whole, by hand: 10 experts each, a byte each. */
static void test_whole_layers(void **state)
{
    (void)state;
    struct ats_expert_layer layers[4];
    for (int i = 0; i < 4; i++) {
        layers[i] = (struct ats_expert_layer){.n_experts = 10, .expert_bytes = 1};
    }
    static const struct {
        size_t bytes;
        size_t whole;
    } cases[] = {{0, 0},  {21, 0}, {22, 1}, {27, 1}, {28, 2},      {33, 2},
                 {34, 3}, {39, 3}, {40, 4}, {41, 4}, {SIZE_MAX, 4}};
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        size_t n = 0;
        assert_int_equal(ats_expert_choose_whole(layers, 4, cases[i].bytes), cases[i].whole);
        for (int k = 0; k < 4; k++) {
            n += layers[k].whole;
        }
        assert_int_equal(n, cases[i].whole);
    }
    assert_int_equal(ats_expert_choose_whole(layers, 0, 10), 0);
    ats_expert_choose_whole(layers, 4, 22);
    assert_true(layers[3].whole); /* the last one first */
    assert_true(ats_expert_slices_win(layers, 4, 20));
    assert_false(ats_expert_slices_win(layers, 4, 21));
    layers[3].expert_bytes = 5; /* 50 bytes: with it whole, 12 of 30 must be left */
    ats_expert_choose_whole(layers, 4, 61);
    assert_false(layers[3].whole);
    ats_expert_choose_whole(layers, 4, 62);
    assert_true(layers[3].whole);
}

/* Whole layers lie evenly: of any number of neighbours, as many as of all, but for one or two. */
static void test_whole_layers_are_spread(void **state)
{
    (void)state;
    enum { N = 48 };
    struct ats_expert_layer layers[N];
    for (int i = 0; i < N; i++) {
        layers[i] = (struct ats_expert_layer){.n_experts = 8, .expert_bytes = 1};
    }
    for (size_t bytes = N * 4; bytes <= N * 8; bytes += 8) {
        const double share = (double)ats_expert_choose_whole(layers, N, bytes) / N;
        for (int first = 0; first < N; first++) {
            double n = 0;
            for (int i = first; i < N; i++) {
                n += layers[i].whole;
                assert_true(n >= share * (i + 1 - first) - 2.5);
                assert_true(n <= share * (i + 1 - first) + 2.5);
            }
        }
    }
}

/* ---- regions ---- */

static const int the_ids;
static const int other_ids;

#define NOTHING ATS_EXPERT_NO_SOURCE
#define PRODUCT(source)                                                                            \
    {                                                                                              \
        .kind = ATS_EXPERT_PRODUCT, .ids = &the_ids, .whole = true, .n_uses = 1, .sources = {      \
            source,                                                                                \
            NOTHING                                                                                \
        }                                                                                          \
    }
#define BIAS(source)                                                                               \
    {                                                                                              \
        .kind = ATS_EXPERT_BIAS, .ids = &the_ids, .whole = true, .n_uses = 1, .sources = {         \
            source,                                                                                \
            NOTHING                                                                                \
        }                                                                                          \
    }
#define COLUMN(a, b)                                                                               \
    {                                                                                              \
        .kind = ATS_EXPERT_COLUMN, .whole = true, .n_uses = 1, .sources = { a, b }                 \
    }
#define VIEW(source)                                                                               \
    {                                                                                              \
        .kind = ATS_EXPERT_EMPTY, .whole = true, .n_uses = 1, .sources = { source, NOTHING }       \
    }
#define OTHER(source)                                                                              \
    {                                                                                              \
        .kind = ATS_EXPERT_OTHER, .one_column = true, .n_uses = 1, .sources = { source, NOTHING }  \
    }

/* A block with biases, as gpt-oss has it; 1 reshapes the input. */
static const struct ats_expert_node with_biases[] = {
    OTHER(ATS_EXPERT_ONE_COLUMN),
    {.kind = ATS_EXPERT_EMPTY, .one_column = true, .n_uses = 2, .sources = {0, NOTHING}},
    PRODUCT(1), /* 2: up */
    BIAS(2),
    PRODUCT(1), /* 4: gate */
    BIAS(4),
    COLUMN(5, 3),
    PRODUCT(6), /* 7: down */
    BIAS(7),
    OTHER(8),
};
enum { N_WITH_BIASES = sizeof(with_biases) / sizeof(with_biases[0]) };

/* Gate and up in one matrix, split by views. */
static const struct ats_expert_node merged[] = {
    {.kind = ATS_EXPERT_PRODUCT,
     .ids = &the_ids,
     .whole = true,
     .n_uses = 2,
     .sources = {ATS_EXPERT_ONE_COLUMN, NOTHING}},
    VIEW(0),
    VIEW(0),
    COLUMN(1, 2),
    PRODUCT(3),
    OTHER(4),
};
enum { N_MERGED = sizeof(merged) / sizeof(merged[0]) };

static size_t find(const struct ats_expert_node *nodes, size_t n, struct ats_expert_region *first)
{
    bool inside[32];
    return ats_expert_regions(nodes, n, inside, first, 1);
}

static void test_regions(void **state)
{
    (void)state;
    struct ats_expert_region region;
    assert_int_equal(find(with_biases, N_WITH_BIASES, &region), 1);
    assert_int_equal(region.first, 2);
    assert_int_equal(region.n, 7);
    assert_ptr_equal(region.ids, &the_ids);
    assert_int_equal(find(merged, N_MERGED, &region), 1);
    assert_int_equal(region.first, 0);
    assert_int_equal(region.n, 5);
    /* two layers, one behind the other */
    struct ats_expert_node both[N_WITH_BIASES + N_MERGED];
    memcpy(both, with_biases, sizeof(with_biases));
    memcpy(both + N_WITH_BIASES, merged, sizeof(merged));
    for (size_t i = N_WITH_BIASES; i < N_WITH_BIASES + N_MERGED; i++) {
        both[i].ids = both[i].ids != NULL ? &other_ids : NULL;
        for (int s = 0; s < ATS_EXPERT_MOST_SOURCES; s++) {
            both[i].sources[s] += both[i].sources[s] >= 0 ? N_WITH_BIASES : 0;
        }
    }
    struct ats_expert_region regions[2];
    bool inside[32];
    assert_int_equal(ats_expert_regions(both, N_WITH_BIASES + N_MERGED, inside, regions, 2), 2);
    assert_int_equal(regions[1].first, N_WITH_BIASES);
    assert_ptr_equal(regions[1].ids, &other_ids);
}

static void test_what_is_no_region(void **state)
{
    (void)state;
    struct ats_expert_region region;
    struct ats_expert_node nodes[N_WITH_BIASES];
    for (int wrong = 0; wrong < 10; wrong++) {
        memcpy(nodes, with_biases, sizeof(nodes));
        switch (wrong) {
        case 0: /* somebody else reads the gate's columns */
            nodes[5].n_uses = 2;
            break;
        case 1: /* an operator that is not known */
            nodes[6].kind = ATS_EXPERT_OTHER;
            break;
        case 2: /* in place */
            nodes[6].whole = false;
            break;
        case 3: /* columns from outside */
            nodes[6].sources[1] = ATS_EXPERT_MANY_COLUMNS;
            break;
        case 4: /* other experts in between */
            nodes[4].ids = &other_ids;
            break;
        case 5: /* the input has a column per expert */
            nodes[1].one_column = false;
            break;
        case 6: /* one that a program wants to see */
            nodes[6].keeps = true;
            break;
        case 7: /* an activation of something else */
            nodes[6].sources[0] = 0;
            nodes[6].sources[1] = NOTHING;
            break;
        case 8: /* a bias added to a single column */
            nodes[3].sources[0] = ATS_EXPERT_ONE_COLUMN;
            break;
        case 9: /* a view that does not keep columns */
            nodes[6].kind = ATS_EXPERT_EMPTY;
            nodes[6].whole = false;
            break;
        default:
            break;
        }
        assert_int_equal(find(nodes, N_WITH_BIASES, &region), 0);
    }
    assert_int_equal(find(nodes, 0, &region), 0);
}

/* ---- schedule ---- */

/* Operators 1 and 2 are a region: they read root 0 (an input), root 1 (sliced) and 2 (a bias). */
static void test_schedule(void **state)
{
    (void)state;
    const uint32_t reads[] = {0, 3, 1, 4, 2, 5};
    struct ats_root roots[7] = {{.bytes = 8},
                                {.bytes = 64, .home = ATS_ON(ATS_ACCEL), .sliced = true},
                                {.bytes = 8, .home = ATS_ON_BOTH},
                                {.bytes = 8},
                                {.bytes = 8},
                                {.bytes = 8},
                                {.bytes = 8}};
    const struct ats_op ops[] = {
        {.first_read = 0, .n_reads = 1, .write = 3, .supported = ATS_ON_BOTH},
        {.first_read = 1, .n_reads = 2, .write = 4, .supported = ATS_ON_BOTH, .region = 7},
        {.first_read = 3, .n_reads = 2, .write = 5, .supported = ATS_ON_BOTH, .region = 7},
        {.first_read = 5, .n_reads = 1, .write = 6, .supported = ATS_ON_BOTH},
    };
    const struct ats_graph_desc graph = {
        .ops = ops, .n_ops = 4, .reads = reads, .roots = roots, .n_roots = 7};
    const enum ats_side sides[] = {ATS_ACCEL, ATS_ACCEL, ATS_ACCEL, ATS_ACCEL};
    struct ats_schedule s;
    assert_true(ats_schedule_build(&graph, sides, &s));
    assert_int_equal(s.n_splits, 4);
    assert_int_equal(s.splits[1].side, ATS_HOST);
    assert_int_equal(s.splits[1].n_ops, 0);
    assert_int_equal(s.splits[1].n_copies, 1);
    assert_int_equal(s.copies[s.splits[1].first_copy], 3);
    assert_int_equal(s.splits[2].first_op, 1);
    assert_int_equal(s.splits[2].n_ops, 2);
    assert_int_equal(s.splits[2].n_copies, 0);
    assert_int_equal(s.splits[3].first_op, 3);
    assert_int_equal(s.n_copies, 1);
    assert_int_equal(s.needs[1], 0);
    assert_int_equal(s.needs[2], ATS_ON_BOTH);
    assert_int_equal(s.final[5], ATS_ON(ATS_ACCEL));
    ats_schedule_free(&s);
    /* made on the CPU, the input is there already: nothing to copy to it, so no split for that */
    const enum ats_side from_host[] = {ATS_HOST, ATS_ACCEL, ATS_ACCEL, ATS_ACCEL};
    assert_true(ats_schedule_build(&graph, from_host, &s));
    assert_int_equal(s.n_splits, 3);
    assert_int_equal(s.splits[1].side, ATS_ACCEL);
    assert_int_equal(s.splits[1].n_copies, 1);
    ats_schedule_free(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_by_hand),      cmocka_unit_test(test_twice_the_same_expert),
        cmocka_unit_test(test_at_random),    cmocka_unit_test(test_long_text),
        cmocka_unit_test(test_beside_lru),   cmocka_unit_test(test_division),
        cmocka_unit_test(test_whole_layers), cmocka_unit_test(test_whole_layers_are_spread),
        cmocka_unit_test(test_regions),      cmocka_unit_test(test_what_is_no_region),
        cmocka_unit_test(test_schedule),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
