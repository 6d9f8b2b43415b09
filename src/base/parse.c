#include "base/parse.h"

#include <ctype.h>
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The power of two that a unit stands for, or -1 if it is none. */
static int unit_shift(const char *unit)
{
    static const char letters[] = "KMGT";
    if (unit[0] == '\0' || strcmp(unit, "B") == 0) {
        return 0;
    }
    const char *letter = strchr(letters, toupper((unsigned char)unit[0]));
    if (letter == NULL) {
        return -1;
    }
    const char *rest = unit + 1;
    if (*rest != '\0' && strcmp(rest, "B") != 0 && strcmp(rest, "iB") != 0) {
        return -1;
    }
    return 10 * (int)(letter - letters + 1);
}

/* A decimal number as it is written, "12.345": no sign, no exponent. Not strtod's, which takes
 * those and the decimal point of the program's language. */
struct decimal {
    uint64_t whole;
    double fraction; /* in [0, 1) */
    bool is_zero;
    bool is_huge; /* `whole` has overflowed */
};

/* Reads one from `text`; returns where it ends, or NULL if there is none. */
static const char *read_decimal(const char *text, struct decimal *number)
{
    *number = (struct decimal){.is_zero = true};
    const char *at = text;
    for (; isdigit((unsigned char)*at); at++) {
        const uint64_t digit = (uint64_t)(*at - '0');
        number->is_huge = number->is_huge || number->whole > (UINT64_MAX - digit) / 10;
        number->whole = 10 * number->whole + digit;
        number->is_zero = number->is_zero && digit == 0;
    }
    if (at == text || *at != '.') {
        return at == text ? NULL : at;
    }
    if (!isdigit((unsigned char)*++at)) {
        return NULL;
    }
    double digits = 0.0;
    double scale = 1.0;
    for (; isdigit((unsigned char)*at); at++) {
        number->is_zero = number->is_zero && *at == '0';
        if (scale < 1e15) { /* exact so far; further digits are far below a byte in any unit */
            digits = 10.0 * digits + (double)(*at - '0');
            scale *= 10.0;
        }
    }
    number->fraction = digits / scale;
    return at;
}

bool ats_parse_bytes(const char *text, size_t *bytes, struct ats_error *err)
{
    struct decimal number;
    const char *unit = read_decimal(text, &number);
    const int shift = unit != NULL ? unit_shift(unit) : -1;
    if (shift < 0) {
        return ats_fail(err, "'%s' is not a size; write e.g. 6G, 512M or a number of bytes", text);
    }
    /* 2^63: beyond it no buffer can be */
    if (number.is_huge || number.whole >= UINT64_C(1) << (63 - shift)) {
        return ats_fail(err, "size '%s' is too large", text);
    }
    const size_t value = (size_t)(number.whole << shift) + (size_t)ldexp(number.fraction, shift);
    if (value == 0 && !number.is_zero) {
        return ats_fail(err, "size '%s' is less than a byte; write 0 for none, or e.g. 6G", text);
    }
    *bytes = value;
    return true;
}

bool ats_parse_u64(const char *text, uint64_t max, uint64_t *value, struct ats_error *err)
{
    if (!isdigit((unsigned char)text[0])) {
        return ats_fail(err, "'%s' is not a whole number", text);
    }
    char *end = NULL;
    errno = 0;
    const bool hex = text[0] == '0' && (text[1] == 'x' || text[1] == 'X');
    const unsigned long long number = strtoull(text, &end, hex ? 16 : 10);
    if (errno != 0 || *end != '\0') {
        return ats_fail(err, "'%s' is not a whole number", text);
    }
    if (number > max) {
        return ats_fail(err, "%s is more than the largest allowed value %llu", text,
                        (unsigned long long)max);
    }
    *value = number;
    return true;
}

const char *ats_parse_decimal(const char *text, double *value)
{
    struct decimal number;
    const char *end = read_decimal(text, &number);
    if (end == NULL || number.is_huge) {
        return NULL;
    }
    *value = (double)number.whole + number.fraction;
    return end;
}

const char *ats_format_bytes(size_t bytes, char *text, size_t text_size)
{
    static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB"};
    double value = (double)bytes;
    size_t unit = 0;
    while (value >= 1024.0 && unit + 1 < sizeof(units) / sizeof(units[0])) {
        value /= 1024.0;
        unit++;
    }
    snprintf(text, text_size, unit == 0 || value >= 100.0 ? "%.0f %s" : "%.1f %s", value,
             units[unit]);
    return text;
}
