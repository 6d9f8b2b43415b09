/* How the backend comes by the profile of its machine: kept, or measured by a child process, or
 * not at all. On the emulated accelerator in exact mode. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "backend/machine_profile.h"
#include "emu/emu_help.h"
#include "profile/identity.h"

#include <glob.h>
#include <sys/stat.h>

static ggml_backend_dev_t device;
static char folder[64];
static char log_text[4096];

static void keep_log(enum ggml_log_level level, const char *text, void *data)
{
    (void)level;
    (void)data;
    const size_t n = strlen(log_text);
    snprintf(log_text + n, sizeof(log_text) - n, "%s", text);
}

static int start(void **state)
{
    struct ats_error err = {""};
    const char *library = getenv("ATS_LIBRARY");
    if (library == NULL || load_ggml(state) != 0 || !ats_emu_start("emu-small", &err)) {
        return -1;
    }
    setenv("ATS_BACKEND", library, 1); /* this program is not the library */
    setenv("ATS_EMULATE", "emu-small", 1);
    device = ggml_backend_dev_by_name("EMU0");
    ggml_log_set(keep_log, NULL);
    return device != NULL ? 0 : -1;
}

static int make_cache(void **state)
{
    (void)state;
    strcpy(folder, "/tmp/ats-test-cache-XXXXXX");
    log_text[0] = '\0';
    return mkdtemp(folder) != NULL && setenv("XDG_CACHE_HOME", folder, 1) == 0 ? 0 : -1;
}

/* The only file below the cache; its path is in `path` if there is one. */
static size_t count_files(char *path, size_t size)
{
    char pattern[128];
    glob_t found;
    snprintf(pattern, sizeof(pattern), "%s/ats/*", folder);
    const int status = glob(pattern, 0, NULL, &found);
    const size_t n = status == 0 ? found.gl_pathc : 0;
    if (n > 0) {
        snprintf(path, size, "%s", found.gl_pathv[0]);
    }
    if (status == 0) {
        globfree(&found);
    }
    return n;
}

static int remove_cache(void **state)
{
    (void)state;
    char path[256];
    while (count_files(path, sizeof(path)) > 0) {
        unlink(path);
    }
    snprintf(path, sizeof(path), "%s/ats", folder);
    rmdir(path);
    unsetenv("ATS_EMU_FAIL");
    return rmdir(folder);
}

static ino_t file_number(const char *path)
{
    struct stat info;
    assert_int_equal(stat(path, &info), 0);
    return info.st_ino;
}

static void test_measured_once_and_kept(void **state)
{
    (void)state;
    struct ats_profile p;
    char path[256];
    if (!ats_machine_profile_get(device, 1, NULL, &p)) {
        fail_msg("%s", log_text);
    }
    assert_string_equal(p.identity.device, "EMU0");
    assert_int_equal(p.identity.threads, 1);
    assert_true(p.quick);
    ats_profile_free(&p);
    assert_non_null(strstr(log_text, "no profile yet"));
    assert_int_equal(count_files(path, sizeof(path)), 1);
    const ino_t first = file_number(path);
    log_text[0] = '\0';
    assert_true(ats_machine_profile_get(device, 1, NULL, &p));
    assert_string_equal(log_text, "");
    assert_true(file_number(path) == first);
    /* of another driver: measured again, with a line */
    strcpy(p.identity.driver, "an older one");
    assert_true(ats_profile_write(path, &p, NULL));
    ats_profile_free(&p);
    assert_true(ats_machine_profile_get(device, 1, NULL, &p));
    assert_non_null(strstr(log_text, "of another driver"));
    assert_string_equal(p.identity.driver, "emulated emu-small");
    ats_profile_free(&p);
    /* damaged: the same */
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    fputs("{\"format\": \"ats-prof", file);
    fclose(file);
    log_text[0] = '\0';
    assert_true(ats_machine_profile_get(device, 1, NULL, &p));
    assert_non_null(strstr(log_text, path));
    ats_profile_free(&p);
    assert_int_equal(count_files(path, sizeof(path)), 1);
}

static void test_a_profile_with_the_best_number_of_threads_serves(void **state)
{
    (void)state;
    struct ats_profile p;
    char path[256];
    if (!ats_machine_profile_get(device, 0, NULL, &p)) {
        fail_msg("%s", log_text);
    }
    const int best = p.identity.threads;
    assert_int_equal(best, p.best_threads);
    ats_profile_free(&p);
    log_text[0] = '\0';
    assert_true(ats_machine_profile_get(device, best, NULL, &p)); /* the same file */
    assert_string_equal(log_text, "");
    ats_profile_free(&p);
    assert_int_equal(count_files(path, sizeof(path)), 1);
    assert_non_null(strstr(path, "-auto.json"));
    /* a file by name, whoever it is of */
    assert_true(ats_machine_profile_get(device, 77, path, &p));
    ats_profile_free(&p);
}

static void test_failures_leave_the_built_in_rates(void **state)
{
    (void)state;
    struct ats_profile p;
    char path[256];
    setenv("ATS_EMU_FAIL", "compute:20", 1); /* read by the child */
    assert_false(ats_machine_profile_get(device, 1, NULL, &p));
    assert_non_null(strstr(log_text, "built-in rates are used"));
    assert_non_null(strstr(log_text, "injected failure"));
    assert_int_equal(count_files(path, sizeof(path)), 0);
    unsetenv("ATS_EMU_FAIL");
    log_text[0] = '\0';
    assert_false(ats_machine_profile_get(device, 1, "/no/such/file.json", &p));
    assert_non_null(strstr(log_text, "/no/such/file.json"));
    log_text[0] = '\0';
    setenv("XDG_CACHE_HOME", "/proc/none", 1); /* nothing can be kept there */
    assert_false(ats_machine_profile_get(device, 1, NULL, &p));
    assert_non_null(strstr(log_text, "built-in rates are used"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_measured_once_and_kept, make_cache, remove_cache),
        cmocka_unit_test_setup_teardown(test_a_profile_with_the_best_number_of_threads_serves,
                                        make_cache, remove_cache),
        cmocka_unit_test_setup_teardown(test_failures_leave_the_built_in_rates, make_cache,
                                        remove_cache),
    };
    return cmocka_run_group_tests(tests, start, NULL);
}
