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

bool ats_parse_bytes(const char *text, size_t *bytes, struct ats_error *err)
{
    if (!isdigit((unsigned char)text[0])) {
        return ats_fail(err, "'%s' is not a size; write e.g. 6G, 512M or a number of bytes", text);
    }
    char *end = NULL;
    errno = 0;
    const double number = strtod(text, &end);
    const int shift = unit_shift(end);
    if (errno != 0 || shift < 0 || text[1] == 'x' || text[1] == 'X') {
        return ats_fail(err, "'%s' is not a size; write e.g. 6G, 512M or a number of bytes", text);
    }
    const double value = ldexp(number, shift);
    /* 2^63: beyond it no buffer can be, and the conversion below stays defined */
    if (!(value < 0x1p63)) {
        return ats_fail(err, "size '%s' is too large", text);
    }
    *bytes = (size_t)value;
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
