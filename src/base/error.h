/* Errors as text: what failed, on what, and what to do.
 *
 * A function that can fail returns false (or NULL) and fills the error it was
 * given; success leaves the error untouched. No allocation, no global state:
 * safe from any thread as long as each thread has its own struct. */
#ifndef ATS_BASE_ERROR_H
#define ATS_BASE_ERROR_H

#include <stdbool.h>

struct ats_error {
    char text[512];
};

/* Formats the message (cut at the size of the buffer) and returns false, so
 * that callers can write `return ats_fail(err, ...)`. `err` may be NULL. */
bool ats_fail(struct ats_error *err, const char *format, ...) __attribute__((format(printf, 2, 3)));

#endif
