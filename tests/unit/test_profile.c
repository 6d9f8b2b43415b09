/* Measured profiles: reading and writing, and what makes one stale. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "profile/identity.h"
#include "profile_help.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static char folder[64];
static char path[96];

static int make_folder(void **state)
{
    (void)state;
    strcpy(folder, "/tmp/ats-test-profile-XXXXXX");
    if (mkdtemp(folder) == NULL) {
        return -1;
    }
    snprintf(path, sizeof(path), "%s/profile.json", folder);
    return 0;
}

static int remove_folder(void **state)
{
    (void)state;
    unlink(path);
    return rmdir(folder);
}

/* ---- files ---- */

static void test_a_file_gives_back_what_was_written(void **state)
{
    (void)state;
    struct ats_profile p = make_profile();
    static const double points[][3] = {{1, 9, 2}, {16, 44, 8}};
    static const double queries[][3] = {{1, 9, 0}};
    add_curve(&p,
              (struct ats_profile_curve){.side = ATS_ACCEL,
                                         .kind = ATS_COST_EXPERTS,
                                         .m = 500,
                                         .k = 1000,
                                         .n_experts = 8,
                                         .n_used = 2,
                                         .weight_bytes = 0.25e6},
              "mxfp4", points, 2);
    add_curve(&p,
              (struct ats_profile_curve){.side = ATS_ACCEL,
                                         .kind = ATS_COST_ATTENTION,
                                         .m = 500,
                                         .k = 128,
                                         .heads = 16,
                                         .weight_bytes = 1e6},
              "f16", queries, 1);
    struct ats_error err = {""};
    assert_true(ats_profile_write(path, &p, &err));
    struct ats_profile read;
    assert_true(ats_profile_read(path, &read, &err));
    assert_memory_equal(&read.identity, &p.identity, sizeof(p.identity));
    assert_string_equal(read.created, p.created);
    assert_false(read.quick);
    assert_int_equal(read.n_curves, p.n_curves);
    for (size_t i = 0; i < p.n_curves; i++) {
        const struct ats_profile_curve *a = &p.curves[i];
        const struct ats_profile_curve *b = &read.curves[i];
        assert_int_equal(a->side, b->side);
        assert_int_equal(a->kind, b->kind);
        assert_string_equal(a->type, b->type);
        assert_near(a->m, b->m);
        assert_near(a->k, b->k);
        assert_near(a->heads, b->heads);
        assert_near(a->n_experts, b->n_experts);
        assert_near(a->n_used, b->n_used);
        assert_near(a->weight_bytes, b->weight_bytes);
        assert_int_equal(a->n_points, b->n_points);
        for (size_t j = 0; j < a->n_points; j++) {
            assert_near(a->points[j].n, b->points[j].n);
            assert_near(a->points[j].us, b->points[j].us);
            assert_near(a->points[j].distinct, b->points[j].distinct);
        }
    }
    for (int d = 0; d < 2; d++) {
        for (int m = 0; m < 2; m++) {
            assert_int_equal(read.copies[d][m].n_points, 3);
            assert_near(read.copies[d][m].points[2].us, p.copies[d][m].points[2].us);
        }
    }
    assert_near(read.launch_us[ATS_HOST], 2);
    assert_near(read.launch_us[ATS_ACCEL], 10);
    assert_near(read.round_trip_us, 60);
    assert_near(read.beside_link_gbps, 9);
    assert_near(read.beside_cpu_gbps, 30);
    assert_near(read.broken_fusion_us, 7);
    assert_int_equal(read.n_counts, 2);
    assert_near(read.counts[1].matvec_gbps, 15);
    assert_int_equal(read.free_bytes, p.free_bytes);
    assert_int_equal(read.cache_bytes, p.cache_bytes);
    assert_string_equal(read.cpus, "0-3");
    ats_profile_free(&p);
    ats_profile_free(&read);
}

/* Replaces the first `from` of the written profile by `to`. */
static void write_with(const char *from, const char *to)
{
    struct ats_profile p = make_profile();
    assert_true(ats_profile_write(path, &p, NULL));
    ats_profile_free(&p);
    static char text[1 << 16];
    FILE *file = fopen(path, "r");
    assert_non_null(file);
    const size_t n = fread(text, 1, sizeof(text) - 1, file);
    text[n] = '\0';
    fclose(file);
    char *at = strstr(text, from);
    if (at == NULL) {
        fail_msg("the profile has no %s", from);
        return;
    }
    file = fopen(path, "w");
    assert_non_null(file);
    fprintf(file, "%.*s%s%s", (int)(at - text), text, to, at + strlen(from));
    fclose(file);
}

static void test_mistakes_are_named(void **state)
{
    (void)state;
    static const struct {
        const char *from;
        const char *to;
        const char *says;
    } cases[] = {
        {"ats-profile-2", "ats-profile-1", "\"format\" must be \"ats-profile-2\""},
        {"\"quick\": false", "\"quick\": 0", "\"quick\" must be true or false"},
        {"\"quick\": false", "\"quack\": false", "unknown key \"quack\""},
        {"\"threads\": 4", "\"threads\": 0", "\"identity\": \"threads\" must be"},
        {"\"threads\": 4", "\"threads\": 4.5", "\"identity\": \"threads\" must be"},
        {"\"cpu\": \"Some CPU\"", "\"cpu\": 7", "\"cpu\" must be a text"},
        {"\"cpu\": \"Some CPU\"", "\"cpu\": \"a\\nb\"", "\"cpu\" must be a text"},
        {"\"cores\": 4", "\"cores\": -4", "\"cores\" must be"},
        {"\"read_gbps\": 10.0", "\"read_gbps\": -1", "by_threads[0]: \"read_gbps\" must be"},
        {"\"read_gbps\": 10.0", "\"read_gbps\": 1e99", "by_threads[0]: \"read_gbps\" must be"},
        {"\"read_gbps\": 10.0", "\"read_gbps\": NaN", "profile.json:"},
        {"\"read_gbps\": 10.0", "\"read_gbps\": 1e999", "profile.json:"},
        {"\"round_trip_us\": 60.0", "\"round_trip_us\": null", "\"round_trip_us\" must be"},
        {"\"link_gbps\": 9.0", "\"link_gbps\": 0", "\"link_gbps\" must be"},
        {"\"direction\": \"to_device\"", "\"direction\": \"up\"", "\"direction\" must be one of"},
        {"\"direction\": \"to_device\"", "\"direction\": \"to_host\"", "another direction"},
        {"\"side\": \"host\"", "\"side\": \"left\"", "operators\"[0]: \"side\" must be one of"},
        {"\"kind\": \"matmul\"", "\"kind\": \"magic\"", "\"kind\" must be one of"},
        {"\"type\": \"q4_K\"", "\"type\": \"a type of a very long name\"", "\"type\" must be"},
        {"\"m\": 1000.0", "\"m\": 0", "\"m\" must be"},
        {"\"m\": 1000.0", "\"m\": 1000, \"heads\": 3", "unknown key \"heads\""},
        {"\"kind\": \"matmul\"", "\"kind\": \"matmul\", \"kind\": \"matmul\"", "profile.json:"},
        {"    12.0", "    0", "\"points\" must be"},
        {"    4.0", "    1.0", "\"points\" must be"},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        write_with(cases[i].from, cases[i].to);
        struct ats_profile read = {.best_threads = 77};
        struct ats_error err = {""};
        if (ats_profile_read(path, &read, &err)) {
            fail_msg("%s was accepted", cases[i].to);
        }
        if (strstr(err.text, cases[i].says) == NULL || strstr(err.text, path) == NULL) {
            fail_msg("%s: %s", cases[i].to, err.text);
        }
        assert_int_equal(read.best_threads, 77);
    }
    struct ats_error err = {""};
    struct ats_profile read;
    assert_false(ats_profile_read("/no/such/file", &read, &err));
    assert_non_null(strstr(err.text, "/no/such/file"));
}

static void test_a_profile_needs_both_sides(void **state)
{
    (void)state;
    struct ats_profile p = make_profile();
    p.n_curves /= 2; /* the host's */
    struct ats_error err = {""};
    struct ats_profile read;
    assert_true(ats_profile_write(path, &p, &err));
    assert_false(ats_profile_read(path, &read, &err));
    assert_non_null(strstr(err.text, "no matmul of side \"accelerator\""));
    ats_profile_free(&p);
}

static void test_writing_leaves_nothing_half_done(void **state)
{
    (void)state;
    struct ats_profile p = make_profile();
    struct ats_error err = {""};
    assert_true(ats_profile_write(path, &p, &err));
    p.identity.cpu[0] = (char)0xFF; /* not UTF-8: it cannot be written */
    assert_false(ats_profile_write(path, &p, &err));
    assert_non_null(strstr(err.text, "UTF-8"));
    struct ats_profile read;
    assert_true(ats_profile_read(path, &read, &err)); /* the old one */
    assert_string_equal(read.identity.cpu, "Some CPU");
    ats_profile_free(&read);
    assert_false(ats_profile_write("/no/such/folder/p.json", &p, &err));
    assert_non_null(strstr(err.text, "/no/such/folder/p.json"));
    ats_profile_free(&p);
}

/* ---- identity ---- */

static void test_what_makes_a_profile_stale(void **state)
{
    (void)state;
    struct ats_profile p = make_profile();
    const struct ats_profile_identity same = p.identity;
    assert_null(ats_profile_mismatch(&p.identity, &same));
    struct ats_profile_identity i = same;
    i.host_bytes -= i.host_bytes / 50; /* reserved by another kernel */
    assert_null(ats_profile_mismatch(&p.identity, &i));
    i.host_bytes = same.host_bytes / 2;
    assert_string_equal(ats_profile_mismatch(&p.identity, &i), "size of host memory");
    i = same;
    strcpy(i.cpu, "Another CPU");
    assert_string_equal(ats_profile_mismatch(&p.identity, &i), "CPU");
    i = same;
    strcpy(i.device, "GPU1");
    assert_string_equal(ats_profile_mismatch(&p.identity, &i), "device");
    i = same;
    strcpy(i.description, "A newer GPU");
    assert_string_equal(ats_profile_mismatch(&p.identity, &i), "description of the device");
    i = same;
    i.device_bytes *= 2;
    assert_string_equal(ats_profile_mismatch(&p.identity, &i), "size of device memory");
    i = same;
    strcpy(i.driver, "GPU, some 2.0");
    assert_string_equal(ats_profile_mismatch(&p.identity, &i), "driver");
    i = same;
    strcpy(i.ggml, "0.26.0");
    assert_string_equal(ats_profile_mismatch(&p.identity, &i), "version of ggml");
    i = same;
    i.threads = 3;
    assert_string_equal(ats_profile_mismatch(&p.identity, &i), "number of threads");
    ats_profile_free(&p);
}

static void test_where_profiles_are_kept(void **state)
{
    (void)state;
    struct ats_profile p = make_profile();
    char one[PATH_MAX];
    char other[PATH_MAX];
    struct ats_error err = {""};
    setenv("XDG_CACHE_HOME", folder, 1);
    assert_true(ats_profile_path(&p.identity, false, one, sizeof(one), &err));
    assert_int_equal(strncmp(one, folder, strlen(folder)), 0);
    assert_non_null(strstr(one, "-t4.json"));
    strcpy(p.identity.driver, "GPU, some 2.0"); /* found, and seen to be stale */
    assert_true(ats_profile_path(&p.identity, false, other, sizeof(other), &err));
    assert_string_equal(one, other);
    strcpy(p.identity.device, "GPU1");
    assert_true(ats_profile_path(&p.identity, false, other, sizeof(other), &err));
    assert_string_not_equal(one, other);
    assert_true(ats_profile_path(&p.identity, true, other, sizeof(other), &err));
    assert_non_null(strstr(other, "-auto.json"));
    unsetenv("XDG_CACHE_HOME");
    setenv("HOME", folder, 1);
    assert_true(ats_profile_path(&p.identity, true, other, sizeof(other), &err));
    assert_non_null(strstr(other, "/.cache/ats/profile-"));
    unsetenv("HOME");
    assert_false(ats_profile_path(&p.identity, true, other, sizeof(other), &err));
    assert_non_null(strstr(err.text, "--out"));
    ats_profile_free(&p);
}

static void test_the_identity_of_this_machine(void **state)
{
    (void)state;
    struct ats_profile_device_facts facts = {.name = "EMU0",
                                             .description = "caf\xc3\xa9\n",
                                             .total_bytes = 77,
                                             .registry = "EMU",
                                             .emulation = "{\"rig\": \"laptop\", \"scale\": "
                                                          "{\"factor\": 0.6149}}",
                                             .ggml = "0.25.1"};
    struct ats_profile_identity i;
    ats_profile_identify(&facts, 3, &i);
    assert_string_equal(i.driver, "emulated laptop x 0.61");
    assert_string_equal(i.description, "caf???"); /* safe in JSON and on terminals */
    assert_int_equal(i.threads, 3);
    assert_int_equal(i.device_bytes, 77);
    assert_true(i.host_bytes > 1 << 20);
    assert_true(i.cpu[0] != '\0');
    facts.emulation = "{\"profile\": \"emu-small\"}";
    ats_profile_identify(&facts, 3, &i);
    assert_string_equal(i.driver, "emulated emu-small");
    facts.emulation = NULL;
    facts.registry = "GPU";
    ats_profile_identify(&facts, 3, &i);
    assert_int_equal(strncmp(i.driver, "GPU, ", 5), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_a_file_gives_back_what_was_written, make_folder,
                                        remove_folder),
        cmocka_unit_test_setup_teardown(test_mistakes_are_named, make_folder, remove_folder),
        cmocka_unit_test_setup_teardown(test_a_profile_needs_both_sides, make_folder,
                                        remove_folder),
        cmocka_unit_test_setup_teardown(test_writing_leaves_nothing_half_done, make_folder,
                                        remove_folder),
        cmocka_unit_test(test_what_makes_a_profile_stale),
        cmocka_unit_test_setup_teardown(test_where_profiles_are_kept, make_folder, remove_folder),
        cmocka_unit_test(test_the_identity_of_this_machine),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
