/* The validity of memory by ranges, against a plain array with one entry per byte. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "backend/range_map.h"
#include "seed.h"

#include <string.h>

enum {
    AREA = 96, /* bytes of the modelled memory */
    ROUNDS = 3000,
    STEPS = 40,
};

/* The model. A byte that no entry covers is valid in host memory only, and "touches" asks for
 * entries, so the model remembers both. */
struct model {
    ats_side_set valid[AREA];
    bool listed[AREA];
};

static void model_set(struct model *model, size_t begin, size_t end, ats_side_set valid)
{
    for (size_t i = begin; i < end; i++) {
        model->valid[i] = valid;
        model->listed[i] = true;
    }
}

static void check_form(const struct ats_range_map *map)
{
    for (size_t i = 0; i < map->n_ranges; i++) {
        assert_true(map->ranges[i].begin < map->ranges[i].end);
        assert_true(i == 0 || map->ranges[i - 1].end <= map->ranges[i].begin);
    }
    assert_true(map->n_ranges <= map->capacity);
}

static void check_same(const struct ats_range_map *map, const struct model *model,
                       struct ats_rng *rng)
{
    check_form(map);
    for (size_t i = 0; i < AREA; i++) {
        if (ats_range_map_at(map, i) != model->valid[i]) {
            fail_msg("byte %zu is %u in the map, %u in the model", i, ats_range_map_at(map, i),
                     model->valid[i]);
        }
    }
    for (int k = 0; k < 4; k++) {
        const size_t begin = test_between(rng, 0, AREA - 1);
        const size_t end = test_between(rng, begin, AREA);
        const enum ats_side side = (enum ats_side)ats_rng_below(rng, ATS_SIDES);
        bool expected = false;
        for (size_t i = begin; i < end; i++) {
            expected = expected || (model->listed[i] && (model->valid[i] & ATS_ON(side)) != 0);
        }
        if (begin < end && ats_range_map_touches(map, begin, end, side) != expected) {
            fail_msg("[%zu, %zu) on side %d should give %d", begin, end, side, expected);
        }
    }
}

static void random_set(struct ats_range_map *map, struct model *model, struct ats_rng *rng)
{
    const size_t begin = test_between(rng, 0, AREA - 1);
    const size_t end = test_between(rng, begin, AREA);
    const ats_side_set valid = (ats_side_set)test_between(rng, 1, ATS_ON_BOTH);
    assert_true(ats_range_map_set(map, begin, end, valid));
    model_set(model, begin, end, valid);
}

static void random_overlay(struct ats_range_map *map, struct ats_range_map *scratch,
                           struct model *model, struct ats_rng *rng)
{
    struct ats_range over[8];
    size_t n = 0;
    size_t at = test_between(rng, 0, 20);
    const size_t most = test_between(rng, 0, sizeof(over) / sizeof(over[0]));
    while (n < most && at + 1 < AREA) {
        const size_t room = AREA - at;
        const size_t bytes = test_between(rng, 1, room < 16 ? room : 16);
        over[n] = (struct ats_range){at, at + bytes, (ats_side_set)test_between(rng, 1, 3)};
        model_set(model, over[n].begin, over[n].end, over[n].valid);
        at += bytes + (test_chance(rng, 40) ? 0 : test_between(rng, 1, 12));
        n++;
    }
    assert_true(ats_range_map_overlay(map, over, n, scratch));
}

static void test_equals_byte_array(void **state)
{
    (void)state;
    for (uint64_t round = 0; round < ROUNDS; round++) {
        struct ats_rng rng = test_rng(round);
        struct ats_range_map map = {0};
        struct ats_range_map scratch = {0};
        struct model model = {.listed = {false}};
        memset(model.valid, ATS_ON(ATS_HOST), sizeof(model.valid));
        for (int step = 0; step < STEPS; step++) {
            if (test_chance(&rng, 60)) {
                random_set(&map, &model, &rng);
            } else {
                random_overlay(&map, &scratch, &model, &rng);
            }
            check_same(&map, &model, &rng);
        }
        ats_range_map_free(&map);
        ats_range_map_free(&scratch);
    }
}

static void test_empty(void **state)
{
    (void)state;
    struct ats_range_map map = {0};
    struct ats_range_map scratch = {0};
    assert_int_equal(ats_range_map_at(&map, 0), ATS_ON(ATS_HOST));
    assert_int_equal(ats_range_map_at(&map, SIZE_MAX), ATS_ON(ATS_HOST));
    assert_false(ats_range_map_touches(&map, 0, SIZE_MAX, ATS_HOST));
    assert_true(ats_range_map_set(&map, 5, 5, ATS_ON_BOTH));
    assert_int_equal(map.n_ranges, 0);
    assert_true(ats_range_map_overlay(&map, NULL, 0, &scratch));
    assert_int_equal(map.n_ranges, 0);
    ats_range_map_free(&map);
    ats_range_map_free(&scratch);
    assert_null(map.ranges);
}

static void test_same_range_again_does_not_grow(void **state)
{
    (void)state;
    struct ats_range_map map = {0};
    for (int i = 0; i < 1000; i++) {
        assert_true(ats_range_map_set(&map, 10, 20, (ats_side_set)(1 + i % 3)));
        assert_true(ats_range_map_set(&map, 30, 40, ATS_ON_BOTH));
    }
    assert_int_equal(map.n_ranges, 2);
    ats_range_map_free(&map);
}

static void test_ends_of_the_address_space(void **state)
{
    (void)state;
    struct ats_range_map map = {0};
    struct ats_range_map scratch = {0};
    const struct ats_range over = {SIZE_MAX - 8, SIZE_MAX - 4, ATS_ON_BOTH};
    assert_true(ats_range_map_set(&map, 0, SIZE_MAX, ATS_ON(ATS_ACCEL)));
    assert_true(ats_range_map_overlay(&map, &over, 1, &scratch));
    assert_int_equal(ats_range_map_at(&map, SIZE_MAX - 9), ATS_ON(ATS_ACCEL));
    assert_int_equal(ats_range_map_at(&map, SIZE_MAX - 8), ATS_ON_BOTH);
    assert_int_equal(ats_range_map_at(&map, SIZE_MAX - 4), ATS_ON(ATS_ACCEL));
    ats_range_map_free(&map);
    ats_range_map_free(&scratch);
}

static void test_reserve(void **state)
{
    (void)state;
    struct ats_range_map map = {0};
    assert_true(ats_range_map_reserve(&map, 64));
    const struct ats_range *before = map.ranges;
    for (size_t i = 0; i < 60; i++) {
        assert_true(ats_range_map_set(&map, 10 * i, 10 * i + 5, ATS_ON(ATS_ACCEL)));
    }
    assert_ptr_equal(map.ranges, before);
    ats_range_map_free(&map);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_equals_byte_array),
        cmocka_unit_test(test_empty),
        cmocka_unit_test(test_same_range_again_does_not_grow),
        cmocka_unit_test(test_ends_of_the_address_space),
        cmocka_unit_test(test_reserve),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
