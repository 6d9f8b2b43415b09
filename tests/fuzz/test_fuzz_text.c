/* Text that users and files give us, mutated at random: every reader either accepts it, and then
 * what it read is sound, or refuses it with a message. Sanitizers see what else goes wrong.
 * Seeds are printed; ATS_TEST_SEED repeats a run. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/parse.h"
#include "emu/inject.h"
#include "emu/load.h"
#include "emu/profile.h"
#include "plan/placement.h"
#include "profile/predict.h"
#include "unit/seed.h"

#include <math.h>
#include <string.h>

enum {
    ROUNDS = 4000,
    MAX_TEXT = 4096,
};

struct text {
    char bytes[MAX_TEXT + 1];
    size_t n;
};

static char path[64];

static int make_file(void **state)
{
    (void)state;
    strcpy(path, "/tmp/ats-test-fuzz-XXXXXX");
    const int fd = mkstemp(path);
    return fd < 0 ? -1 : close(fd);
}

static int remove_file(void **state)
{
    (void)state;
    return unlink(path);
}

static void write_file(const struct text *t)
{
    FILE *out = fopen(path, "w");
    assert_non_null(out);
    assert_int_equal(fwrite(t->bytes, 1, t->n, out), t->n);
    assert_int_equal(fclose(out), 0);
}

/* ---- mutation ---- */

static void insert(struct text *t, size_t at, const char *piece, size_t n)
{
    if (t->n + n <= MAX_TEXT) {
        memmove(t->bytes + at + n, t->bytes + at, t->n - at);
        memcpy(t->bytes + at, piece, n);
        t->n += n;
    }
}

static void delete (struct text *t, size_t at, size_t n)
{
    memmove(t->bytes + at, t->bytes + at + n, t->n - at - n);
    t->n -= n;
}

/* Values at the edges of what readers expect. */
static const char *const nasty[] = {
    "0",
    "-1",
    "18446744073709551615",
    "18446744073709551616",
    "1e999",
    "nan",
    " ",
    "\n",
    "\r",
    "\t",
    "\"",
    "{",
    "}",
    "[",
    "]",
    ",",
    ":",
    "%s%n",
    "#",
    "..",
    "/",
    "both",
    "1+",
    "\xff\xfe",
    "null",
    "true",
    "0x",
    "9G",
    "vram",
    "host",
    "off",
    "\\u0000",
};

static void mutate(struct text *t, struct ats_rng *rng)
{
    const size_t times = test_between(rng, 0, 5);
    for (size_t i = 0; i < times; i++) {
        const size_t at = (size_t)ats_rng_below(rng, t->n + 1);
        const size_t rest = t->n - at;
        switch (ats_rng_below(rng, 7)) {
        case 0: /* another byte */
            if (rest > 0) {
                t->bytes[at] = (char)ats_rng_next(rng);
            }
            break;
        case 1: /* one bit */
            if (rest > 0) {
                t->bytes[at] = (char)(t->bytes[at] ^ (1 << ats_rng_below(rng, 8)));
            }
            break;
        case 2: /* a part less */
            delete (t, at,
                    rest < 20 ? (size_t)ats_rng_below(rng, rest + 1)
                              : (size_t)ats_rng_below(rng, 20));
            break;
        case 3: { /* a part twice */
            char copy[64];
            const size_t n = rest < sizeof(copy) ? rest : sizeof(copy);
            memcpy(copy, t->bytes + at, n);
            insert(t, (size_t)ats_rng_below(rng, t->n + 1), copy, n);
            break;
        }
        case 4: { /* something nasty */
            const char *piece = nasty[ats_rng_below(rng, sizeof(nasty) / sizeof(nasty[0]))];
            insert(t, at, piece, strlen(piece));
            break;
        }
        case 5: /* cut off */
            t->n = test_chance(rng, 20) ? at : t->n;
            break;
        default: { /* very long */
            char piece[900];
            memset(piece, (int)test_between(rng, 32, 126), sizeof(piece));
            if (test_chance(rng, 10)) {
                insert(t, at, piece, sizeof(piece));
            }
            break;
        }
        }
    }
    t->bytes[t->n] = '\0';
}

static struct text text_of(const char *string)
{
    struct text t = {.n = strlen(string)};
    memcpy(t.bytes, string, t.n);
    return t;
}

/* ---- plan files ---- */

static void check_table(const struct ats_placement_table *table)
{
    for (size_t i = 0; i < table->n_entries; i++) {
        const struct ats_placement_entry *entry = &table->entries[i];
        assert_non_null(entry->name);
        assert_true(entry->name[0] != '\0');
        assert_true(entry->where == ATS_WHERE_HOST || entry->where == ATS_WHERE_VRAM ||
                    entry->where == ATS_WHERE_BOTH);
        assert_true(i == 0 || strcmp(table->entries[i - 1].name, entry->name) <= 0);
    }
}

static void use_table(const struct ats_placement_table *table)
{
    const struct ats_unit units[] = {
        {"blk.0.attn_q.weight", 4096, ATS_UNIT_WEIGHT, false, true, true},
        {"blk.1.ffn_up_exps.weight", 65536, ATS_UNIT_WEIGHT, false, true, true},
        {"cache_k_l0", 1024, ATS_UNIT_STATE, false, true, true},
    };
    const struct ats_rule rule = {.kind = ATS_RULE_TABLE, .table = table};
    enum ats_where where[3];
    struct ats_error err = {{0}};
    const bool ok = ats_place(units, 3, 66000, &rule, where, &err);
    assert_int_equal(ok, err.text[0] == '\0');
    size_t used = 0;
    for (size_t i = 0; ok && i < 3; i++) {
        used += where[i] != ATS_WHERE_HOST ? units[i].bytes : 0;
    }
    assert_true(used <= 66000);
}

static void test_plan_files(void **state)
{
    (void)state;
    size_t accepted = 0;
    for (uint64_t round = 0; round < ROUNDS; round++) {
        struct ats_rng rng = test_rng(round);
        struct text t =
            text_of("ats-plan 1\n# a comment\nstaging 3 whole\nvram 4096 blk.0.attn_q.weight\n"
                    "host 65536 blk.1.ffn_up_exps.weight\nboth 1024 cache_k_l0\n");
        mutate(&t, &rng);
        write_file(&t);
        struct ats_placement_table table;
        struct ats_error err = {{0}};
        if (ats_placement_read(path, &table, &err)) {
            check_table(&table);
            use_table(&table);
            ats_placement_table_free(&table);
            accepted++;
        } else {
            assert_non_null(strstr(err.text, path));
            assert_null(table.entries);
        }
    }
    assert_in_range(accepted, ROUNDS / 20, ROUNDS - ROUNDS / 20);
}

/* ---- device profiles ---- */

static void test_device_profiles(void **state)
{
    (void)state;
    size_t accepted = 0;
    for (uint64_t round = 0; round < ROUNDS; round++) {
        struct ats_rng rng = test_rng(100000 + round);
        struct text t = text_of("{ \"format\": \"ats-device-1\", \"name\": \"mine\",\n"
                                "  \"description\": \"an accelerator\", \"mode\": \"exact\",\n"
                                "  \"memory\": \"6G\", \"max_delay_us\": 10, \"seed\": 1 }\n");
        mutate(&t, &rng);
        write_file(&t);
        struct ats_emu_profile profile;
        struct ats_error err = {{0}};
        if (ats_emu_profile_read(path, &profile, &err)) {
            assert_true(profile.memory > 0);
            assert_true(profile.max_buffer > 0);
            assert_true(profile.alignment > 0);
            assert_true((profile.alignment & (profile.alignment - 1)) == 0);
            assert_true(memchr(profile.name, '\0', sizeof(profile.name)) != NULL);
            assert_true(memchr(profile.description, '\0', sizeof(profile.description)) != NULL);
            accepted++;
        } else {
            assert_non_null(strstr(err.text, path));
        }
    }
    assert_in_range(accepted, ROUNDS / 20, ROUNDS - ROUNDS / 20);
}

/* ---- machine profiles ---- */

/* As small as a profile can be. */
static const char machine_profile[] =
    "{\"format\": \"ats-profile-2\", \"created\": \"now\", \"quick\": true,\n"
    "\"identity\": {\"cpu\": \"a\", \"host_memory_bytes\": 8, \"device\": \"b\",\n"
    " \"description\": \"c\", \"device_memory_bytes\": 9, \"driver\": \"d\", \"ggml\": \"e\",\n"
    " \"threads\": 2},\n"
    "\"host\": {\"cores\": 2, \"hardware_threads\": 2, \"cache_bytes\": 0, \"cpus\": \"0-1\",\n"
    " \"best_threads\": 2, \"by_threads\": [{\"threads\": 2, \"read_gbps\": 9, \"matvec_gbps\": "
    "7}]},\n"
    "\"device\": {\"free_bytes\": 9, \"host_launch_us\": 1, \"launch_us\": 2},\n"
    "\"split\": {\"round_trip_us\": 30, \"broken_fusion_us\": 4},\n"
    "\"beside\": {\"link_gbps\": 9, \"cpu_gbps\": 30}, \"copies\": [\n"
    " {\"direction\": \"to_device\", \"memory\": \"pinned\", \"points\": [[4096, 9]]},\n"
    " {\"direction\": \"to_device\", \"memory\": \"pageable\", \"points\": [[4096, 9]]},\n"
    " {\"direction\": \"to_host\", \"memory\": \"pinned\", \"points\": [[4096, 9], [5000, 10]]},\n"
    " {\"direction\": \"to_host\", \"memory\": \"pageable\", \"points\": [[4096, 9]]}],\n"
    "\"operators\": [\n"
    " {\"side\": \"host\", \"kind\": \"matmul\", \"type\": \"q4_K\", \"m\": 9, \"k\": 256,\n"
    "  \"bytes\": 1296, \"points\": [[1, 5], [9, 20]]},\n"
    " {\"side\": \"host\", \"kind\": \"bytes\", \"type\": \"add\", \"points\": [[1000, 5]]},\n"
    " {\"side\": \"accelerator\", \"kind\": \"matmul\", \"type\": \"f16\", \"m\": 9, \"k\": 256,\n"
    "  \"bytes\": 4608, \"points\": [[1, 5]]},\n"
    " {\"side\": \"accelerator\", \"kind\": \"bytes\", \"type\": \"add\", \"points\": [[1000, "
    "5]]},\n"
    " {\"side\": \"accelerator\", \"kind\": \"experts\", \"type\": \"q4_K\", \"m\": 9, \"k\": "
    "256,\n"
    "  \"experts\": 8, \"used\": 2, \"bytes\": 1296, \"points\": [[1, 5, 2]]},\n"
    " {\"side\": \"host\", \"kind\": \"attention\", \"type\": \"f16\", \"m\": 9, \"k\": 64,\n"
    "  \"heads\": 4, \"bytes\": 9216, \"points\": [[1, 5]]}]}\n";

/* Whatever was accepted predicts finite times. */
static void use_profile(const struct ats_profile *profile)
{
    static const enum ats_cost_kind kinds[] = {ATS_COST_MATMUL, ATS_COST_EXPERTS,
                                               ATS_COST_ATTENTION, ATS_COST_BYTES};
    for (size_t i = 0; i < 8; i++) {
        const struct ats_op_shape shape = {.kind = kinds[i % 4],
                                           .family = ATS_FAMILY_Q4,
                                           .m = 5000,
                                           .k = 512,
                                           .n = 300,
                                           .batch = 3,
                                           .n_experts = 16,
                                           .n_used = 4,
                                           .weight_bytes = 1e6,
                                           .io_bytes = 1e6};
        const double us = ats_profile_op_us(profile, (enum ats_side)(i / 4), "q6_K", &shape);
        assert_true(isfinite(us) && us >= 0);
        assert_true(isfinite(ats_profile_copy_us(profile, 1e8, i % 2 == 0, i / 4 == 0)));
    }
    struct ats_device_rates device;
    struct ats_device_rates cpu;
    ats_profile_rates(profile, &device, &cpu);
    assert_true(isfinite(device.h2d_gbps) && device.h2d_gbps > 0);
    assert_true(isfinite(cpu.vram_gbps[ATS_FAMILY_Q4]) && cpu.vram_gbps[ATS_FAMILY_Q4] > 0);
}

static void test_machine_profiles(void **state)
{
    (void)state;
    size_t accepted = 0;
    for (uint64_t round = 0; round < ROUNDS; round++) {
        struct ats_rng rng = test_rng(300000 + round);
        struct text t = text_of(machine_profile);
        mutate(&t, &rng);
        write_file(&t);
        struct ats_profile profile;
        struct ats_error err = {{0}};
        if (ats_profile_read(path, &profile, &err)) {
            use_profile(&profile);
            ats_profile_free(&profile);
            accepted++;
        } else {
            assert_non_null(strstr(err.text, path));
        }
    }
    assert_in_range(accepted, ROUNDS / 20, ROUNDS - ROUNDS / 20);
}

/* ---- short values ---- */

/* What was accepted is in order and within bounds. */
static void check_load(const struct ats_emu_load_schedule *load)
{
    assert_true(load->n <= ATS_EMU_LOAD_STEPS);
    for (size_t i = 0; i < load->n; i++) {
        const struct ats_timeline_load *step = &load->steps[i];
        assert_true(isfinite(step->at_us) && step->at_us >= 0);
        assert_true(i == 0 || step->at_us > step[-1].at_us);
        assert_true(step->compute >= 1 && step->compute <= 1000);
        assert_true(step->link >= 1 && step->link <= 1000);
    }
}

static void test_short_values(void **state)
{
    (void)state;
    static const char *const seeds[] = {"6G",
                                        "1.5GiB",
                                        "1048576",
                                        "random:42",
                                        "fill",
                                        "alloc:3,copy:2+",
                                        "loss:1",
                                        "0xff",
                                        "compute:7",
                                        "5s:link=2;9s:off",
                                        "1ms:compute=2.5,link=3"};
    size_t accepted[5] = {0};
    for (uint64_t round = 0; round < UINT64_C(20) * ROUNDS; round++) {
        struct ats_rng rng = test_rng(200000 + round);
        struct text t = text_of(seeds[ats_rng_below(&rng, sizeof(seeds) / sizeof(seeds[0]))]);
        mutate(&t, &rng);
        struct ats_error err = {{0}};
        size_t bytes = 0;
        if (ats_parse_bytes(t.bytes, &bytes, &err)) {
            accepted[0]++;
            assert_true(bytes <= SIZE_MAX / 2);
        } else {
            assert_true(err.text[0] != '\0');
        }
        uint64_t number = 0;
        if (ats_parse_u64(t.bytes, 1000, &number, NULL)) {
            accepted[1]++;
            assert_true(number <= 1000);
        }
        struct ats_rule rule;
        if (ats_rule_parse(t.bytes, &rule, NULL)) {
            accepted[2]++;
            assert_true(rule.kind <= ATS_RULE_RANDOM);
        }
        struct ats_emu_inject_rules rules;
        err.text[0] = '\0';
        if (ats_emu_inject_parse(t.bytes, &rules, &err)) {
            accepted[3]++;
        } else {
            assert_true(err.text[0] != '\0');
        }
        struct ats_emu_load_schedule load;
        err.text[0] = '\0';
        if (ats_emu_load_parse(t.bytes, &load, &err)) {
            accepted[4]++;
            check_load(&load);
        } else {
            assert_true(err.text[0] != '\0');
        }
        (void)ats_layer_of(t.bytes);
        (void)ats_is_expert_weight(t.bytes);
    }
    for (size_t i = 0; i < 5; i++) {
        assert_true(accepted[i] > ROUNDS / 10);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_plan_files, make_file, remove_file),
        cmocka_unit_test_setup_teardown(test_device_profiles, make_file, remove_file),
        cmocka_unit_test_setup_teardown(test_machine_profiles, make_file, remove_file),
        cmocka_unit_test(test_short_values),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
