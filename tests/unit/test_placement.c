/* Placement rules, their budget, and the printed form of a plan. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "plan/placement.h"
#include "seed.h"

#include <stdio.h>
#include <string.h>

enum { MAX_UNITS = 64, NAME = 64 };

#define W(name_, bytes_)                                                                           \
    {                                                                                              \
        .name = (name_), .bytes = (bytes_), .kind = ATS_UNIT_WEIGHT, .accel_can = true,            \
        .host_can = true                                                                           \
    }
#define S(name_, bytes_)                                                                           \
    {                                                                                              \
        .name = (name_), .bytes = (bytes_), .kind = ATS_UNIT_STATE, .accel_can = true,             \
        .host_can = true                                                                           \
    }

static const struct ats_rule fill = {.kind = ATS_RULE_FILL};

/* One letter per unit: h, v or b. */
static void assert_places(const struct ats_unit *units, size_t budget, const struct ats_rule *rule,
                          const char *expected)
{
    enum ats_where where[MAX_UNITS];
    char text[MAX_UNITS + 1] = "";
    const size_t n = strlen(expected);
    struct ats_error err = {{0}};
    if (!ats_place(units, n, budget, rule, where, &err)) {
        fail_msg("refused: %s", err.text);
    }
    for (size_t i = 0; i < n; i++) {
        text[i] = "hvb"[where[i]];
    }
    if (strcmp(text, expected) != 0) {
        fail_msg("budget %zu gives %s, expected %s", budget, text, expected);
    }
}

/* ---- rules, by hand ---- */

static void test_fill_dense(void **state)
{
    (void)state;
    static const struct ats_unit units[] = {
        W("blk.0.attn_q.weight", 10), S("cache_k_l0", 5), W("blk.0.ffn_up.weight", 20),
        W("blk.1.attn_q.weight", 10), S("cache_k_l1", 5), W("blk.1.ffn_up.weight", 20),
        W("output.weight", 7),
    };
    assert_places(units, 0, &fill, "hhhhhhh");
    assert_places(units, 6, &fill, "hhhhhhh");
    assert_places(units, 7, &fill, "hhhhhhv");  /* output layer before all */
    assert_places(units, 21, &fill, "hhhhhhv"); /* a part of a group is no group */
    assert_places(units, 22, &fill, "hhhvvhv"); /* attention part of the last layer */
    assert_places(units, 36, &fill, "hhhvvhv");
    assert_places(units, 37, &fill, "vvhvvhv"); /* that of all layers before any other part */
    assert_places(units, 56, &fill, "vvhvvhv");
    assert_places(units, 57, &fill, "vvhvvvv");
    assert_places(units, 77, &fill, "vvvvvvv");
    assert_places(units, SIZE_MAX, &fill, "vvvvvvv");
}

/* Vectors go to both sides, after the output layer and before all else; a plan that runs out of
 * room leaves the rest of them. */
/* With all attention in VRAM, host layers are nowhere much denser than on average. */
static void test_fill_spreads_layers(void **state)
{
    (void)state;
    enum { LAYERS = 30 };
    static char names[2 * LAYERS][NAME];
    struct ats_unit units[2 * LAYERS];
    for (int l = 0; l < LAYERS; l++) {
        snprintf(names[l], NAME, "blk.%d.attn_q.weight", l);
        snprintf(names[LAYERS + l], NAME, "blk.%d.ffn_up.weight", l);
        units[l] = (struct ats_unit)W(names[l], 10);
        units[LAYERS + l] = (struct ats_unit)W(names[LAYERS + l], 100);
    }
    struct ats_error err;
    for (size_t fit = 1; fit <= LAYERS; fit++) {
        enum ats_where where[2 * LAYERS];
        assert_true(ats_place(units, 2 * LAYERS, LAYERS * 10 + fit * 100, &fill, where, &err));
        assert_int_equal(where[2 * LAYERS - 1], ATS_WHERE_VRAM);
        size_t in_vram = 0;
        for (size_t l = 0; l < LAYERS; l++) {
            in_vram += where[LAYERS + l] == ATS_WHERE_VRAM;
            /* of the first l + 1 layers, and so of any stretch, the share is off by at most two */
            const double expected = (double)fit * (double)(l + 1) / LAYERS;
            assert_true((double)in_vram > expected - 2 && (double)in_vram < expected + 2);
        }
        assert_int_equal(in_vram, fit);
    }
    /* with attention on both sides, layers stay together */
    enum ats_where where[2 * LAYERS];
    assert_true(ats_place(units, 2 * LAYERS, 10 * 10 + 9, &fill, where, &err));
    for (size_t l = 0; l < LAYERS; l++) {
        assert_int_equal(where[l], l >= 20 ? ATS_WHERE_VRAM : ATS_WHERE_HOST);
    }
}

static void test_fill_vectors_are_on_both_sides(void **state)
{
    (void)state;
    static const struct ats_unit units[] = {
        W("blk.0.attn_q.weight", 10),
        {.name = "blk.0.attn_norm.weight",
         .bytes = 2,
         .is_vector = true,
         .accel_can = true,
         .host_can = true},
        {.name = "blk.1.attn_norm.weight",
         .bytes = 2,
         .is_vector = true,
         .accel_can = true,
         .host_can = true},
        {.name = "blk.2.attn_norm.weight",
         .bytes = 2,
         .is_vector = true,
         .accel_can = false,
         .host_can = true},
        W("output.weight", 7),
    };
    assert_places(units, 8, &fill, "hhhhv");
    assert_places(units, 9, &fill, "hbhhv");
    assert_places(units, 20, &fill, "hbbhv");
    assert_places(units, 21, &fill, "vbbhv");
}

/* Of a block that does not fit whole, gate and up or else down; of every layer. */
static void test_fill_halves(void **state)
{
    (void)state;
    static const struct ats_unit units[] = {
        W("blk.0.ffn_gate.weight", 10),    W("blk.0.ffn_up.weight", 10),
        W("blk.0.ffn_down.weight", 15),    W("blk.1.ffn_gate_exps.weight", 20),
        W("blk.1.ffn_up_exps.weight", 20), W("blk.1.ffn_down_exps.weight", 30),
    };
    assert_places(units, 14, &fill, "hhhhhh");
    assert_places(units, 15, &fill, "hhvhhh");
    assert_places(units, 20, &fill, "vvhhhh");
    assert_places(units, 34, &fill, "vvhhhh");
    assert_places(units, 35, &fill, "vvvhhh");
    assert_places(units, 65, &fill, "vvvhhv");
    assert_places(units, 75, &fill, "vvvvvh");
    assert_places(units, 105, &fill, "vvvvvv");
}

static void test_fill_experts_come_last(void **state)
{
    (void)state;
    static const struct ats_unit units[] = {
        W("blk.0.attn_q.weight", 10),
        W("blk.0.ffn_up_exps.weight", 100),
        W("blk.1.ffn_down_exps.weight", 100),
        W("blk.1.attn_q.weight", 10),
        W("output.weight", 5),
    };
    assert_places(units, 124, &fill, "vhhvv"); /* all that is not an expert, of all layers */
    assert_places(units, 125, &fill, "vhvvv"); /* then the experts of the last layer */
    assert_places(units, 224, &fill, "vhvvv");
    assert_places(units, 225, &fill, "vvvvv");
}

static void test_host_and_vram(void **state)
{
    (void)state;
    static const struct ats_unit units[] = {W("a", 10), W("b", 20), W("c", 5), S("d", 5)};
    const struct ats_rule host = {.kind = ATS_RULE_HOST};
    const struct ats_rule vram = {.kind = ATS_RULE_VRAM};
    assert_places(units, 1000, &host, "hhhh");
    assert_places(units, 1000, &vram, "vvvv");
    assert_places(units, 40, &vram, "vvvv");
    assert_places(units, 39, &vram, "vvvh");
    assert_places(units, 16, &vram, "vhvh"); /* everything that fits, in order of use */
    assert_places(units, 0, &vram, "hhhh");
}

static void test_sides_that_cannot(void **state)
{
    (void)state;
    struct ats_unit units[] = {W("a", 10), W("b", 10), W("blk.0.c", 10)};
    units[0].accel_can = false;
    units[1].host_can = false;
    static const enum ats_rule_kind kinds[] = {ATS_RULE_FILL, ATS_RULE_HOST, ATS_RULE_VRAM,
                                               ATS_RULE_RANDOM};
    for (size_t k = 0; k < sizeof(kinds) / sizeof(kinds[0]); k++) {
        const struct ats_rule rule = {.kind = kinds[k], .seed = 3};
        enum ats_where where[3];
        assert_true(ats_place(units, 3, 10, &rule, where, NULL));
        assert_int_equal(where[0], ATS_WHERE_HOST);
        assert_int_equal(where[1], ATS_WHERE_VRAM); /* even with the rule `host` */
        assert_int_equal(where[2], ATS_WHERE_HOST); /* the budget is used up */
        assert_true(ats_place(units, 3, 9, &rule, where, NULL));
        assert_int_equal(where[1], ATS_WHERE_HOST); /* it does not fit */
    }
}

/* ---- properties ---- */

struct random_units {
    struct ats_unit units[MAX_UNITS];
    char names[MAX_UNITS][NAME];
    size_t n;
    size_t bytes;
};

static void make_units(struct random_units *u, struct ats_rng *rng)
{
    static const char *const forms[] = {
        "blk.%zu.attn_q.weight", "blk.%zu.ffn_up.weight", "blk.%zu.ffn_up_exps.weight",
        "blk.%zu.ssm_in.weight", "cache_k_l%zu",          "output%zu.weight"};
    u->n = test_between(rng, 0, MAX_UNITS);
    u->bytes = 0;
    for (size_t i = 0; i < u->n; i++) {
        const size_t form = ats_rng_below(rng, 6);
        char name[NAME / 2];
        snprintf(name, sizeof(name), forms[form], test_between(rng, 0, 9));
        snprintf(u->names[i], NAME, "%s.%zu", name, i);
        u->units[i] = (struct ats_unit){
            .name = u->names[i],
            .bytes = test_between(rng, 1, 1000),
            .kind = form == 4 ? ATS_UNIT_STATE : ATS_UNIT_WEIGHT,
            .accel_can = test_chance(rng, 85),
            .host_can = test_chance(rng, 85),
        };
        u->bytes += u->units[i].bytes;
    }
}

static size_t check_place(const struct random_units *u, size_t budget, const enum ats_where *where)
{
    size_t used = 0;
    for (size_t i = 0; i < u->n; i++) {
        const struct ats_unit *unit = &u->units[i];
        assert_true(where[i] == ATS_WHERE_HOST || unit->accel_can);
        used += where[i] != ATS_WHERE_HOST ? unit->bytes : 0;
    }
    if (used > budget) {
        fail_msg("%zu bytes placed, the budget is %zu", used, budget);
    }
    return used;
}

static void test_budget_and_repeatability(void **state)
{
    (void)state;
    static const enum ats_rule_kind kinds[] = {ATS_RULE_FILL, ATS_RULE_HOST, ATS_RULE_VRAM,
                                               ATS_RULE_RANDOM};
    size_t used = 0;
    for (uint64_t round = 0; round < 20000; round++) {
        struct ats_rng rng = test_rng(round);
        struct random_units u;
        make_units(&u, &rng);
        const struct ats_rule rule = {.kind = kinds[round % 4], .seed = ats_rng_next(&rng)};
        const size_t budget = (size_t)ats_rng_below(&rng, u.bytes + 10);
        enum ats_where where[MAX_UNITS];
        enum ats_where again[MAX_UNITS];
        assert_true(ats_place(u.units, u.n, budget, &rule, where, NULL));
        assert_true(ats_place(u.units, u.n, budget, &rule, again, NULL));
        assert_memory_equal(where, again, u.n * sizeof(where[0]));
        used += check_place(&u, budget, where);
        /* with room for all, the rules fill and vram leave nothing behind */
        if (rule.kind == ATS_RULE_FILL || rule.kind == ATS_RULE_VRAM) {
            assert_true(ats_place(u.units, u.n, u.bytes, &rule, where, NULL));
            for (size_t i = 0; i < u.n; i++) {
                assert_int_equal(where[i] != ATS_WHERE_HOST, u.units[i].accel_can);
            }
        }
    }
    assert_true(used > 0);
}

static void test_random_depends_on_its_seed(void **state)
{
    (void)state;
    struct ats_unit units[MAX_UNITS];
    size_t in_vram[MAX_UNITS] = {0};
    for (size_t i = 0; i < MAX_UNITS; i++) {
        units[i] = (struct ats_unit)W("x", 1);
    }
    for (uint64_t seed = 0; seed < 1000; seed++) {
        const struct ats_rule rule = {.kind = ATS_RULE_RANDOM, .seed = seed};
        enum ats_where where[MAX_UNITS];
        assert_true(ats_place(units, MAX_UNITS, MAX_UNITS, &rule, where, NULL));
        for (size_t i = 0; i < MAX_UNITS; i++) {
            in_vram[i] += where[i] == ATS_WHERE_VRAM;
        }
    }
    for (size_t i = 0; i < MAX_UNITS; i++) { /* a fair coin is within 8 sigma */
        assert_in_range(in_vram[i], 374, 626);
    }
}

static void test_huge_units_do_not_overflow(void **state)
{
    (void)state;
    const struct ats_unit units[] = {W("blk.0.attn_a", SIZE_MAX), W("blk.0.attn_b", SIZE_MAX),
                                     W("c", SIZE_MAX / 2), W("d", SIZE_MAX / 2 + 2)};
    const struct ats_rule vram = {.kind = ATS_RULE_VRAM};
    assert_places(units, SIZE_MAX, &vram, "vhhh");
    assert_places(units, SIZE_MAX - 1, &vram, "hhvh");
    assert_places(units, SIZE_MAX, &fill, "hhhh");
}

/* ---- names ---- */

static void test_layer_names(void **state)
{
    (void)state;
    static const struct {
        const char *name;
        int layer;
    } cases[] = {
        {"blk.0.attn_q.weight", 0},
        {"blk.7.ffn_up.weight", 7},
        {"blk.123.ffn_up_exps.weight", 123},
        {"cache_k_l7", 7},
        {"cache_v_l0", 0},
        {"cache_r_l31", 31},
        {"cache_s_l12 (view)", 12},
        {"output.weight", -1},
        {"output_norm.weight", -1},
        {"token_embd.weight", -1},
        {"", -1},
        {"blk", -1},
        {"blk.", -1},
        {"blk..x", -1},
        {"blk.-1.x", -1},
        {"blk. 1.x", -1},
        {"blk.x.1", -1},
        {"blk.99999999999999999999.x", -1},
        {"blk.2147483648.x", -1},
        {"blk.4294967296.x", -1},
        {"cache_k", -1},
        {"cache_k_l", -1},
        {"cache_k_lx", -1},
        {"xblk.1.x", -1},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        if (ats_layer_of(cases[i].name) != cases[i].layer) {
            fail_msg("'%s' is layer %d, expected %d", cases[i].name, ats_layer_of(cases[i].name),
                     cases[i].layer);
        }
    }
    assert_true(ats_is_expert_weight("blk.7.ffn_up_exps.weight"));
    assert_true(ats_is_expert_weight("blk.7.ffn_gate_up_exps.weight"));
    assert_false(ats_is_expert_weight("blk.7.ffn_up_shexp.weight"));
    assert_false(ats_is_expert_weight("blk.7.ffn_up.weight"));
    assert_false(ats_is_expert_weight("blk.7.ffn_gate_inp.weight"));
}

static void test_rule_names(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        bool ok;
        bool says_why;
        enum ats_rule_kind kind;
        uint64_t seed;
    } cases[] = {
        {"fill", true, false, ATS_RULE_FILL, 0},
        {"host", true, false, ATS_RULE_HOST, 0},
        {"vram", true, false, ATS_RULE_VRAM, 0},
        {"random:0", true, false, ATS_RULE_RANDOM, 0},
        {"random:42", true, false, ATS_RULE_RANDOM, 42},
        {"random:0xff", true, false, ATS_RULE_RANDOM, 255},
        {"random:18446744073709551615", true, false, ATS_RULE_RANDOM, UINT64_MAX},
        {"random:", false, true, 0, 0},
        {"random:x", false, true, 0, 0},
        {"random:-1", false, true, 0, 0},
        {"random:18446744073709551616", false, true, 0, 0},
        {"random", false, false, 0, 0},
        {"", false, false, 0, 0},
        {"Fill", false, false, 0, 0},
        {"fill ", false, false, 0, 0},
        {"plan.txt", false, false, 0, 0},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct ats_rule rule;
        struct ats_error err = {{0}};
        const bool ok = ats_rule_parse(cases[i].text, &rule, &err);
        if (ok != cases[i].ok || (err.text[0] != '\0') != cases[i].says_why) {
            fail_msg("'%s': ok %d, message '%s'", cases[i].text, ok, err.text);
        }
        if (ok) {
            assert_int_equal(rule.kind, cases[i].kind);
            assert_true(rule.seed == cases[i].seed);
        }
    }
}

/* ---- the printed form ---- */

static char path[64];

static int make_file(void **state)
{
    (void)state;
    strcpy(path, "/tmp/ats-test-placement-XXXXXX");
    const int fd = mkstemp(path);
    return fd < 0 ? -1 : close(fd);
}

static int remove_file(void **state)
{
    (void)state;
    return unlink(path);
}

static void write_text(const char *text)
{
    FILE *out = fopen(path, "w");
    assert_non_null(out);
    assert_true(fputs(text, out) >= 0);
    assert_int_equal(fclose(out), 0);
}

static void test_print_and_read_back(void **state)
{
    (void)state;
    for (uint64_t round = 0; round < 500; round++) {
        struct ats_rng rng = test_rng(40000 + round);
        struct random_units u;
        make_units(&u, &rng);
        enum ats_where where[MAX_UNITS];
        for (size_t i = 0; i < u.n; i++) {
            u.units[i].accel_can = true;
            u.units[i].host_can = true;
            where[i] = (enum ats_where)ats_rng_below(&rng, 3);
        }
        FILE *out = fopen(path, "w");
        assert_non_null(out);
        const struct ats_staging_way way = {.places = (unsigned)ats_rng_below(&rng, 4),
                                            .whole = test_chance(&rng, 50)};
        assert_true(ats_placement_print(out, way, u.units, u.n, where));
        assert_int_equal(fclose(out), 0);
        struct ats_placement_table table;
        struct ats_error err = {{0}};
        if (!ats_placement_read(path, &table, &err)) {
            fail_msg("%s", err.text);
        }
        assert_int_equal(table.n_entries, u.n);
        assert_int_equal(table.staging.places, way.places);
        assert_int_equal(table.staging.whole, way.places > 0 && way.whole);
        const struct ats_rule rule = {.kind = ATS_RULE_TABLE, .table = &table};
        enum ats_where back[MAX_UNITS];
        assert_true(ats_place(u.units, u.n, SIZE_MAX, &rule, back, &err));
        assert_memory_equal(back, where, u.n * sizeof(where[0]));
        const size_t budget = (size_t)ats_rng_below(&rng, u.bytes + 1);
        assert_true(ats_place(u.units, u.n, budget, &rule, back, &err));
        check_place(&u, budget, back);
        ats_placement_table_free(&table);
        assert_null(table.entries);
    }
}

static void test_print_says_when_it_cannot_write(void **state)
{
    (void)state;
    const struct ats_unit unit = W("a", 1);
    const enum ats_where where = ATS_WHERE_VRAM;
    FILE *full = fopen("/dev/full", "w");
    assert_non_null(full);
    setvbuf(full, NULL, _IONBF, 0);
    assert_false(ats_placement_print(full, (struct ats_staging_way){0}, &unit, 1, &where));
    fclose(full);
}

static void test_another_model(void **state)
{
    (void)state;
    write_text("ats-plan 1\n# comment\n\nvram 10 a\nhost 20 b c\nboth 30 cache_k_l0\n");
    struct ats_placement_table table;
    assert_true(ats_placement_read(path, &table, NULL));
    assert_int_equal(table.n_entries, 3);
    const struct ats_rule rule = {.kind = ATS_RULE_TABLE, .table = &table};
    const struct ats_unit same[] = {W("a", 10), W("b c", 20), S("cache_k_l0", 30)};
    assert_places(same, 100, &rule, "vhb");
    assert_places(same, 9, &rule, "hhh");
    assert_places(same, 39, &rule, "vhh");
    const enum ats_where cut[] = {ATS_WHERE_HOST, ATS_WHERE_HOST, ATS_WHERE_HOST};
    size_t bytes = 0;
    assert_int_equal(ats_place_shortfall(same, 3, &rule, cut, &bytes), 2);
    assert_int_equal(bytes, 40);
    const enum ats_where full[] = {ATS_WHERE_VRAM, ATS_WHERE_HOST, ATS_WHERE_BOTH};
    assert_int_equal(ats_place_shortfall(same, 3, &rule, full, &bytes), 0);
    assert_int_equal(ats_place_shortfall(same, 3, &fill, cut, &bytes), 0);
    /* state depends on the context's size, so neither its size nor its absence matters */
    const struct ats_unit other_context[] = {W("a", 10), S("cache_k_l0", 99), S("cache_v_l0", 5)};
    assert_places(other_context, 200, &rule, "vbh");

    struct ats_error err = {{0}};
    enum ats_where where[1];
    const struct ats_unit missing = W("blk.0.other", 10);
    assert_false(ats_place(&missing, 1, 100, &rule, where, &err));
    assert_non_null(strstr(err.text, path));
    assert_non_null(strstr(err.text, "blk.0.other"));
    assert_non_null(strstr(err.text, "another model"));
    const struct ats_unit smaller = W("a", 9);
    assert_false(ats_place(&smaller, 1, 100, &rule, where, &err));
    assert_non_null(strstr(err.text, "10 bytes"));
    assert_non_null(strstr(err.text, "9 here"));
    /* an accelerator may pad it */
    const struct ats_unit padded = W("a", 10 + 255);
    assert_true(ats_place(&padded, 1, 1000, &rule, where, &err));
    assert_int_equal(where[0], ATS_WHERE_VRAM);
    const struct ats_unit larger = W("a", 10 + 256);
    assert_false(ats_place(&larger, 1, 1000, &rule, where, &err));
    ats_placement_table_free(&table);
}

static void test_bad_files(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        const char *says;
    } cases[] = {
        {"", "empty"},
        {"\n", "first line"},
        {"ats-plan 2\n", "first line"},
        {"ats-plan 1 \n", "first line"},
        {"vram 10 a\n", "first line"},
        {"ats-plan 1\nvram\n", "line 2"},
        {"ats-plan 1\nvram 10\n", "line 2"},
        {"ats-plan 1\nvram 10 \n", "line 2"},
        {"ats-plan 1\nvram  10 a\n", "line 2"},
        {"ats-plan 1\nhost 1 x\ndisk 10 a\n", "line 3"},
        {"ats-plan 1\nhost 1 x\nVRAM 10 a\n", "'VRAM'"},
        {"ats-plan 1\nvram ten a\n", "'ten'"},
        {"ats-plan 1\nvram -1 a\n", "'-1'"},
        {"ats-plan 1\nvram 10.5 a\n", "'10.5'"},
        {"ats-plan 1\nvram 99999999999999999999 a\n", "line 2"},
        {"ats-plan 1\nstaging 3\n", "line 2"},
        {"ats-plan 1\nstaging 3 parts\n", "pieces|whole"},
        {"ats-plan 1\nstaging x whole\n", "'x'"},
        {"ats-plan 1\nstaging 0 whole\n", "one place"},
        {"ats-plan 1\nstaging 65 whole\n", "line 2"},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        write_text(cases[i].text);
        struct ats_placement_table table;
        struct ats_error err = {{0}};
        if (ats_placement_read(path, &table, &err)) {
            fail_msg("accepted: %s", cases[i].text);
        }
        if (strstr(err.text, path) == NULL || strstr(err.text, cases[i].says) == NULL) {
            fail_msg("the message for '%s' should name the file and say '%s': %s", cases[i].text,
                     cases[i].says, err.text);
        }
        assert_null(table.entries);
        assert_null(table.source);
    }
}

static void test_unreadable_files(void **state)
{
    (void)state;
    static const char *const paths[] = {"/nowhere/plan", "/tmp", ""};
    for (size_t i = 0; i < sizeof(paths) / sizeof(paths[0]); i++) {
        struct ats_placement_table table;
        struct ats_error err = {{0}};
        assert_false(ats_placement_read(paths[i], &table, &err));
        assert_non_null(strstr(err.text, paths[i]));
        assert_true(err.text[0] != '\0');
    }
}

static void test_windows_line_ends_and_no_last_newline(void **state)
{
    (void)state;
    write_text("ats-plan 1\r\nvram 10 a\r\nhost 20 b");
    struct ats_placement_table table;
    assert_true(ats_placement_read(path, &table, NULL));
    assert_int_equal(table.n_entries, 2);
    assert_string_equal(table.entries[0].name, "a");
    assert_string_equal(table.entries[1].name, "b");
    ats_placement_table_free(&table);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_fill_dense),
        cmocka_unit_test(test_fill_spreads_layers),
        cmocka_unit_test(test_fill_vectors_are_on_both_sides),
        cmocka_unit_test(test_fill_halves),
        cmocka_unit_test(test_fill_experts_come_last),
        cmocka_unit_test(test_host_and_vram),
        cmocka_unit_test(test_sides_that_cannot),
        cmocka_unit_test(test_budget_and_repeatability),
        cmocka_unit_test(test_random_depends_on_its_seed),
        cmocka_unit_test(test_huge_units_do_not_overflow),
        cmocka_unit_test(test_layer_names),
        cmocka_unit_test(test_rule_names),
        cmocka_unit_test_setup_teardown(test_print_and_read_back, make_file, remove_file),
        cmocka_unit_test(test_print_says_when_it_cannot_write),
        cmocka_unit_test_setup_teardown(test_another_model, make_file, remove_file),
        cmocka_unit_test_setup_teardown(test_bad_files, make_file, remove_file),
        cmocka_unit_test(test_unreadable_files),
        cmocka_unit_test_setup_teardown(test_windows_line_ends_and_no_last_newline, make_file,
                                        remove_file),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
