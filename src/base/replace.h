/* Replacing a file at once: readers see the old content or the new one, never a part.
 *
 * The new content goes to a temporary file beside the target, which a commit renames over it.
 * A target that is no regular file (a pipe, /dev/null) is written in place; a symbolic link
 * stays, and what it points to is replaced. Each struct is used by one thread. */
#ifndef ATS_BASE_REPLACE_H
#define ATS_BASE_REPLACE_H

#include <limits.h>
#include <stdbool.h>
#include <stdio.h>

struct ats_replace {
    FILE *out; /* write here */
    char target[PATH_MAX];
    char temporary[PATH_MAX + 48]; /* empty: written in place */
};

/* False with errno set if the file cannot be written. */
bool ats_replace_begin(struct ats_replace *replace, const char *path);

/* Closes the file and puts it in place if `good` and all could be written; otherwise removes
 * it. False with errno set if the target has not been replaced. */
bool ats_replace_end(struct ats_replace *replace, bool good);

#endif
