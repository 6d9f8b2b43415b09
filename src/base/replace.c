#include "base/replace.h"

#include <errno.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

bool ats_replace_begin(struct ats_replace *replace, const char *path)
{
    static atomic_uint n_replaced;
    *replace = (struct ats_replace){0};
    struct stat info;
    const bool exists = stat(path, &info) == 0;
    if (exists && !S_ISREG(info.st_mode)) {
        replace->out = fopen(path, "w");
        return replace->out != NULL;
    }
    if (!exists || realpath(path, replace->target) == NULL) {
        snprintf(replace->target, sizeof(replace->target), "%s", path);
    }
    snprintf(replace->temporary, sizeof(replace->temporary), "%s.%ld-%u.tmp", replace->target,
             (long)getpid(), atomic_fetch_add(&n_replaced, 1));
    replace->out = fopen(replace->temporary, "w");
    return replace->out != NULL;
}

bool ats_replace_end(struct ats_replace *replace, bool good)
{
    const bool written = ferror(replace->out) == 0;
    const bool closed = fclose(replace->out) == 0;
    replace->out = NULL;
    const bool ok = good && written && closed;
    if (replace->temporary[0] == '\0') {
        return ok;
    }
    if (ok && rename(replace->temporary, replace->target) == 0) {
        return true;
    }
    const int reason = errno;
    unlink(replace->temporary);
    errno = reason;
    return false;
}
