#include "base/error.h"

#include <stdarg.h>
#include <stdio.h>

bool ats_fail(struct ats_error *err, const char *format, ...)
{
    if (err != NULL) {
        va_list args;
        va_start(args, format);
        vsnprintf(err->text, sizeof(err->text), format, args);
        va_end(args);
    }
    return false;
}
