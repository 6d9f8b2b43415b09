/* Parsing of the short values that users write: sizes and whole numbers. */
#ifndef ATS_BASE_PARSE_H
#define ATS_BASE_PARSE_H

#include "base/error.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* "6G", "512M", "64k", "1.5GiB", "1048576": bytes in binary multiples (K, M, G, T; an optional
 * "iB" or "B" may follow). The number is decimal digits, with a fraction behind a point if wanted,
 * in every locale; a part of a byte is cut off. Rejects signs, exponents, hexadecimal, "inf" and
 * "nan", blanks, garbage, 2^63 bytes and more, and what comes to less than a byte without being
 * written as zero. */
bool ats_parse_bytes(const char *text, size_t *bytes, struct ats_error *err);

/* A decimal or 0x-prefixed number in [0, max]. */
bool ats_parse_u64(const char *text, uint64_t max, uint64_t *value, struct ats_error *err);

/* Reads a decimal number as it is written, "12.345", from the start of `text`, in every locale:
 * no sign, no exponent. Returns where it ends; NULL if there is none, or if it is 2^64 or more. */
const char *ats_parse_decimal(const char *text, double *value);

/* Writes e.g. "5.6 GiB" or "812 KiB" into `text` and returns it. */
const char *ats_format_bytes(size_t bytes, char *text, size_t text_size);

#endif
