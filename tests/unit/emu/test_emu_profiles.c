/* Profiles of emulated devices, and how they become devices. The registry comes last, since it is
 * for the whole process. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "emu/emu.h"
#include "emu_help.h"

#define PROFILE(rest) "{\"format\": \"ats-device-1\", \"name\": \"x\", \"memory\": \"64M\"" rest "}"

static void write_profile(const char *path, const char *text)
{
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    fputs(text, file);
    fclose(file);
}

static void test_profile_errors_name_file_and_key(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        const char *part;
    } cases[] = {
        {"", "x.json:1"},
        {"{", "x.json:1"},
        {"[]", "JSON object"},
        {"{}", "\"format\" is missing"},
        {"{\"format\": \"ats-device-2\"}", "\"format\" must be \"ats-device-1\""},
        {"{\"format\": 1}", "\"format\" must be"},
        {"{\"format\": \"ats-device-1\", \"name\": \"x\"}", "\"memory\" is missing"},
        {PROFILE(", \"memory\": \"1G\""), "duplicate"},
        {PROFILE(", \"vram\": 3"), "unknown key \"vram\"; allowed are format, name"},
        {PROFILE(", \"mode\": \"timed\""), "\"rates\" is missing"},
        {PROFILE(", \"mode\": \"fast\""), "\"mode\" must be \"exact\""},
        {PROFILE(", \"max_delay_us\": -1"), "\"max_delay_us\" must be"},
        {PROFILE(", \"max_delay_us\": 1.5"), "\"max_delay_us\" must be"},
        {PROFILE(", \"max_delay_us\": 1000001"), "0 to 1000000"},
        {PROFILE(", \"seed\": \"a\""), "\"seed\" must be"},
        {PROFILE(", \"alignment\": 100"), "power of two"},
        {PROFILE(", \"alignment\": 16"), "power of two"},
        {PROFILE(", \"alignment\": 131072"), "power of two"},
        {PROFILE(", \"max_buffer\": 0"), "\"max_buffer\" must be"},
        {PROFILE(", \"max_buffer\": -5"), "\"max_buffer\" must be"},
        {PROFILE(", \"description\": \"\""), "\"description\" must be"},
        {PROFILE(", \"description\": \"a\\nb\""), "\"description\" must be"},
        {PROFILE(", \"inject\": 3"), "\"inject\" must be"},
        {PROFILE(", \"inject\": {\"copy\": 0}"), "\"inject\": \"copy\" must be"},
        {PROFILE(", \"inject\": {\"copy\": \"x\"}"), "\"inject\": \"copy\" must be"},
        {PROFILE(", \"inject\": {\"burn\": 1}"), "unknown key \"burn\""},
        {"{\"format\": \"ats-device-1\", \"name\": \"x\", \"memory\": \"2T\"}", "\"memory\" must"},
        {"{\"format\": \"ats-device-1\", \"name\": \"x\", \"memory\": 4096}", "\"memory\" must"},
        {"{\"format\": \"ats-device-1\", \"name\": \"x\", \"memory\": true}", "\"memory\" must"},
        {"{\"format\": \"ats-device-1\", \"name\": 5, \"memory\": \"1G\"}", "\"name\" must"},
    };
    char directory[] = "/tmp/emu-profile-XXXXXX";
    assert_non_null(mkdtemp(directory));
    char path[64];
    snprintf(path, sizeof(path), "%s/x.json", directory);
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct ats_emu_profile profile;
        struct ats_error err = {""};
        write_profile(path, cases[i].text);
        assert_false(ats_emu_profile_read(path, &profile, &err));
        if (strstr(err.text, cases[i].part) == NULL || strstr(err.text, "x.json") == NULL) {
            fail_msg("%s: '%s' does not say '%s'", cases[i].text, err.text, cases[i].part);
        }
    }
    unlink(path);
    struct ats_emu_profile profile;
    struct ats_error err = {""};
    assert_false(ats_emu_profile_read(path, &profile, &err));
    assert_non_null(strstr(err.text, path));
    rmdir(directory);
}

static void test_profiles_are_found_and_overridden(void **state)
{
    (void)state;
    char directory[] = "/tmp/emu-profile-XXXXXX";
    assert_non_null(mkdtemp(directory));
    char path[64];
    snprintf(path, sizeof(path), "%s/mine.json", directory);
    write_profile(path, PROFILE(", \"max_delay_us\": 7, \"seed\": 9, \"alignment\": 256, "
                                "\"max_buffer\": 1048576, \"inject\": {\"loss\": \"5+\"}"));
    struct ats_emu_profile profile;
    struct ats_error err = {""};
    assert_false(ats_emu_profile_find("mine", &profile, &err));
    assert_non_null(strstr(err.text, "no device profile 'mine'"));
    setenv("ATS_PROFILES", directory, 1);
    assert_true(ats_emu_profile_find("mine", &profile, &err));
    assert_true(ats_emu_profile_find(path, &profile, &err));
    assert_int_equal(profile.memory, 64 * MIB);
    assert_int_equal(profile.max_buffer, MIB);
    assert_int_equal(profile.max_delay_us, 7);
    assert_int_equal(profile.seed, 9);
    assert_int_equal(profile.alignment, 256);
    assert_true(profile.inject.rule[ATS_EMU_OP_LOSS].from == 5);
    assert_true(profile.inject.rule[ATS_EMU_OP_LOSS].onwards);

    static const char *const good[][2] = {{"ATS_EMU_MEMORY", "6G"},
                                          {"ATS_EMU_SEED", "77"},
                                          {"ATS_EMU_DELAY_US", "12"},
                                          {"ATS_EMU_FAIL", "copy:2,compute:3+"},
                                          {"ATS_EMU_LOAD", "1s:link=2;9s:off"}};
    enum { N_GOOD = sizeof(good) / sizeof(good[0]) };
    static const char *const bad[][2] = {
        {"ATS_EMU_MEMORY", "lots"},      {"ATS_EMU_MEMORY", "5"},  {"ATS_EMU_SEED", "-1"},
        {"ATS_EMU_DELAY_US", "9999999"}, {"ATS_EMU_FAIL", "copy"}, {"ATS_EMU_FAIL", "copy:1,"},
        {"ATS_EMU_FAIL", "copy:0"},      {"ATS_EMU_LOAD", "1s"}};
    for (size_t i = 0; i < N_GOOD; i++) {
        setenv(good[i][0], good[i][1], 1);
    }
    assert_true(ats_emu_profile_override(&profile, &err));
    assert_int_equal(profile.memory, (size_t)6 << 30);
    assert_int_equal(profile.seed, 77);
    assert_int_equal(profile.max_delay_us, 12);
    assert_int_equal(profile.inject.rule[ATS_EMU_OP_COPY].from, 2);
    assert_int_equal(profile.inject.rule[ATS_EMU_OP_LOSS].from, 0);
    assert_int_equal(profile.load.n, 2); /* and the device, in exact mode, ignores it */
    assert_true(profile.load.steps[0].link == 2);
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        for (size_t j = 0; j < N_GOOD; j++) {
            unsetenv(good[j][0]);
        }
        setenv(bad[i][0], bad[i][1], 1);
        assert_false(ats_emu_profile_override(&profile, &err));
        assert_non_null(strstr(err.text, bad[i][0]));
    }
    unsetenv("ATS_EMU_LOAD");
    unsetenv("ATS_PROFILES");
    unlink(path);
    rmdir(directory);
}

static void test_start_registers_devices(void **state)
{
    (void)state;
    struct ats_error err = {""};
    assert_true(ats_emu_start(NULL, &err));
    assert_true(ats_emu_start("", &err));
    assert_false(ats_emu_start("a,,b", &err));
    assert_false(ats_emu_start("no-such-profile", &err));
    assert_non_null(strstr(err.text, "no-such-profile"));
    char directory[] = "/tmp/emu-profile-XXXXXX";
    assert_non_null(mkdtemp(directory));
    char path[64];
    char spec[160];
    snprintf(path, sizeof(path), "%s/p.json", directory);
    write_profile(path, PROFILE(""));
    snprintf(spec, sizeof(spec), "%s,%s", path, path);
    const size_t before = ggml_backend_dev_count();
    assert_true(ats_emu_start(spec, &err));
    assert_true(ats_emu_start(spec, &err)); /* a program that loads backends twice */
    assert_false(ats_emu_start(path, &err));
    unlink(path);
    rmdir(directory);
    assert_int_equal(ggml_backend_dev_count(), before + 2);
    ggml_backend_dev_t dev = ggml_backend_dev_by_name("EMU1");
    assert_non_null(dev);
    assert_true(ats_emu_is_device(dev));
    assert_false(ats_emu_is_device(ats_emu_cpu_device()));
    struct ggml_backend_dev_props props;
    ggml_backend_dev_get_props(dev, &props);
    assert_int_equal(props.type, GGML_BACKEND_DEVICE_TYPE_GPU);
    assert_int_equal(props.memory_total, 64 * MIB);
    assert_true(props.caps.async && props.caps.host_buffer && props.caps.events);
    assert_false(props.caps.buffer_from_host_ptr);
    ggml_backend_reg_t reg = ggml_backend_dev_backend_reg(dev);
    assert_string_equal(ggml_backend_reg_name(reg), "EMU");
    static const char *const names[] = {"ggml_backend_set_n_threads",
                                        "ggml_backend_set_abort_callback",
                                        "ggml_backend_register_host_buffer",
                                        "ggml_backend_unregister_host_buffer",
                                        "ats_backend_take_error",
                                        "ats_emu_inject",
                                        "ats_emu_set_load"};
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        assert_non_null(ggml_backend_reg_get_proc_address(reg, names[i]));
    }
    assert_null(ggml_backend_reg_get_proc_address(reg, "ggml_threadpool_new"));
    assert_true(ggml_backend_dev_supports_buft(dev, ggml_backend_dev_buffer_type(dev)));
    assert_false(ggml_backend_dev_supports_buft(dev, ggml_backend_dev_host_buffer_type(dev)));
    assert_false(ggml_backend_dev_supports_buft(
        dev, ggml_backend_dev_buffer_type(ggml_backend_dev_by_name("EMU0"))));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_profile_errors_name_file_and_key),
        cmocka_unit_test(test_profiles_are_found_and_overridden),
        cmocka_unit_test(test_start_registers_devices),
    };
    return cmocka_run_group_tests_name("emulated accelerator, profiles", tests, load_ggml, NULL);
}
