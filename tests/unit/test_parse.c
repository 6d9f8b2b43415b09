/* Sizes and numbers as users write them: every accepted form, and every way to get one wrong. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/error.h"
#include "base/parse.h"
#include "base/rng.h"

#include <locale.h>
#include <stdio.h>
#include <string.h>

static void test_bytes_accepted(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        size_t bytes;
    } cases[] = {
        {"0", 0},
        {"1", 1},
        {"7B", 7},
        {"1048576", 1048576},
        {"64k", 65536},
        {"64K", 65536},
        {"64KB", 65536},
        {"64KiB", 65536},
        {"512M", 536870912},
        {"6G", 6442450944},
        {"6g", 6442450944},
        {"1.5GiB", 1610612736},
        {"0.5K", 512},
        {"2T", 2199023255552},
        {"8388607T", 9223370937343148032},
        {"9007199254740993", 9007199254740993}, /* 2^53 + 1: no double has it */
        {"9223372036854775807", 9223372036854775807},
        {"8388607.5T", 9223371487098961920},
        {"00012K", 12288},
        {"0.3K", 307}, /* 307.2 */
        {"1.9", 1},    /* a part of a byte is cut off */
        {"0.001K", 1}, /* 1.024 */
        {"0.0", 0},    /* written as zero */
        {"0.000T", 0},
        {"1.0000000000000000000000000009M", 1048576},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        size_t bytes = 99;
        struct ats_error err = {{0}};
        if (!ats_parse_bytes(cases[i].text, &bytes, &err)) {
            fail_msg("'%s' was refused: %s", cases[i].text, err.text);
        }
        if (bytes != cases[i].bytes) {
            fail_msg("'%s' became %zu, not %zu", cases[i].text, bytes, cases[i].bytes);
        }
        assert_string_equal(err.text, "");
    }
}

static const char *const refused[] = {
    "",
    " ",
    "G",
    "-1",
    "+1",
    " 1",
    "1 ",
    "1 G",
    "1GG",
    "1X",
    "1Gi",
    "1GiX",
    "1GiBs",
    "0x10",
    "0X1G",
    "nan",
    "inf",
    "infin",
    "1e",
    "1E",
    ".5",
    "1..5",
    "1,5G",
    "1e400",
    "1b",
    "abc6G",
    "0x1p10",
    "6G;",
    "1/2G",
    "1E5T T",
    "8388608T", /* 2^63 */
    "1e3",
    "1e-300",
    "1.5e3M",
    "0x1.8p3",
    "-0",
    "-6G",
    "-nan",
    "-inf",
    "infinity",
    "NAN",
    "1.",
    "1.G",
    "1.5.2",
    "0.4",
    "0.4B",
    "0.0009K",
    "0.0000000001G",
    "0.00000000000000000000000000000000001T",
    "9223372036854775808",
    "18446744073709551616",
    "18446744073709551621",
    "99999999999999999999999G",
};

static void test_bytes_refused(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof(refused) / sizeof(refused[0]); i++) {
        size_t bytes = 99;
        struct ats_error err = {{0}};
        if (ats_parse_bytes(refused[i], &bytes, &err)) {
            fail_msg("'%s' was taken for %zu bytes", refused[i], bytes);
        }
        assert_int_equal(bytes, 99);
        if (strstr(err.text, refused[i]) == NULL || err.text[0] == '\0') {
            fail_msg("the message for '%s' does not quote it: %s", refused[i], err.text);
        }
    }
}

static void test_bytes_message_says_what_to_write(void **state)
{
    (void)state;
    size_t bytes = 0;
    struct ats_error err = {{0}};
    assert_false(ats_parse_bytes("lots", &bytes, &err));
    assert_non_null(strstr(err.text, "6G"));
}

/* A program may have set the user's language, in which 1,5 is a number and 1.5 is not. */
static void test_bytes_in_every_locale(void **state)
{
    (void)state;
    static const char *const names[] = {"de_DE.UTF-8", "fr_FR.UTF-8", "C.UTF-8", "C"};
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        if (setlocale(LC_NUMERIC, names[i]) == NULL) {
            continue; /* not installed */
        }
        size_t bytes = 0;
        assert_true(ats_parse_bytes("1.5G", &bytes, NULL));
        assert_int_equal(bytes, 1610612736);
        assert_false(ats_parse_bytes("1,5G", &bytes, NULL));
    }
    setlocale(LC_NUMERIC, "C");
}

static void test_less_than_a_byte_says_so(void **state)
{
    (void)state;
    size_t bytes = 0;
    struct ats_error err = {{0}};
    assert_false(ats_parse_bytes("0.4", &bytes, &err));
    assert_non_null(strstr(err.text, "less than a byte"));
    assert_false(ats_parse_bytes("18446744073709551621", &bytes, &err)); /* 2^64 + 5 */
    assert_non_null(strstr(err.text, "too large"));
}

static void test_u64(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        uint64_t max;
        bool ok;
        uint64_t value;
    } cases[] = {
        {"0", 0, true, 0},
        {"10", 10, true, 10},
        {"11", 10, false, 0},
        {"010", 100, true, 10},
        {"0x1f", 31, true, 31},
        {"0X1F", 31, true, 31},
        {"0x20", 31, false, 0},
        {"18446744073709551615", UINT64_MAX, true, UINT64_MAX},
        {"18446744073709551616", UINT64_MAX, false, 0},
        {"0x10000000000000000", UINT64_MAX, false, 0},
        {"", UINT64_MAX, false, 0},
        {"-1", UINT64_MAX, false, 0},
        {"+1", UINT64_MAX, false, 0},
        {" 1", UINT64_MAX, false, 0},
        {"1 ", UINT64_MAX, false, 0},
        {"1.0", UINT64_MAX, false, 0},
        {"1e3", UINT64_MAX, false, 0},
        {"0x", UINT64_MAX, false, 0},
        {"0xg", UINT64_MAX, false, 0},
        {"1f", UINT64_MAX, false, 0},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        uint64_t value = 77;
        struct ats_error err = {{0}};
        const bool ok = ats_parse_u64(cases[i].text, cases[i].max, &value, &err);
        if (ok != cases[i].ok || value != (ok ? cases[i].value : 77) || ok != (err.text[0] == 0)) {
            fail_msg("'%s': ok %d, value %llu, message '%s'", cases[i].text, ok,
                     (unsigned long long)value, err.text);
        }
    }
}

static void test_numbers_survive_printing(void **state)
{
    (void)state;
    struct ats_rng rng = {.state = 5};
    for (int i = 0; i < 20000; i++) {
        const uint64_t number = ats_rng_next(&rng) >> ats_rng_below(&rng, 64);
        char text[32];
        uint64_t back = 0;
        snprintf(text, sizeof(text), i % 2 == 0 ? "%llu" : "0x%llx", (unsigned long long)number);
        assert_true(ats_parse_u64(text, UINT64_MAX, &back, NULL));
        assert_true(back == number);
        const size_t bytes = (size_t)(number >> 1); /* below 2^63 */
        size_t bytes_back = 0;
        snprintf(text, sizeof(text), "%zu", bytes);
        assert_true(ats_parse_bytes(text, &bytes_back, NULL));
        assert_int_equal(bytes_back, bytes);
    }
}

static void test_format_bytes(void **state)
{
    (void)state;
    static const struct {
        size_t bytes;
        const char *text;
    } cases[] = {
        {0, "0 B"},
        {1, "1 B"},
        {1023, "1023 B"},
        {1024, "1.0 KiB"},
        {1536, "1.5 KiB"},
        {831488, "812 KiB"},
        {(size_t)5632 << 20, "5.5 GiB"},
        {(size_t)256 << 20, "256 MiB"},
        {(size_t)3 << 40, "3.0 TiB"},
        {(size_t)5000 << 40, "5000 TiB"},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        char text[32];
        assert_ptr_equal(ats_format_bytes(cases[i].bytes, text, sizeof(text)), text);
        assert_string_equal(text, cases[i].text);
    }
    char tiny[4] = "xxx";
    ats_format_bytes(831488, tiny, sizeof(tiny));
    assert_string_equal(tiny, "812");
}

static void test_error_text_is_cut(void **state)
{
    (void)state;
    char lengthy[2000];
    memset(lengthy, 'a', sizeof(lengthy) - 1);
    lengthy[sizeof(lengthy) - 1] = '\0';
    struct ats_error err;
    assert_false(ats_fail(&err, "what: %s", lengthy));
    assert_int_equal(strlen(err.text), sizeof(err.text) - 1);
    assert_false(ats_fail(NULL, "no one listens to %s", "this"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_bytes_accepted),
        cmocka_unit_test(test_bytes_refused),
        cmocka_unit_test(test_bytes_message_says_what_to_write),
        cmocka_unit_test(test_bytes_in_every_locale),
        cmocka_unit_test(test_less_than_a_byte_says_so),
        cmocka_unit_test(test_u64),
        cmocka_unit_test(test_numbers_survive_printing),
        cmocka_unit_test(test_format_bytes),
        cmocka_unit_test(test_error_text_is_cut),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
