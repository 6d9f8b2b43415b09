/* The folder with the files of live processes (top/live_file.h): finding it, reading it, and
 * clearing away what dead processes left.
 *
 * It is $XDG_RUNTIME_DIR/ats, or else ats-UID in $TMPDIR or /tmp; or what $ATS_LIVE says, if that
 * is an absolute path. A folder that belongs to someone else or that others may write to is not
 * used, nor is a file of someone else's. Readers look into all three places, as a service may have
 * other variables than the user's shell; with a path in $ATS_LIVE, there alone.
 *
 * Thread-safety: no shared state. */
#ifndef ATS_TOP_FOLDER_H
#define ATS_TOP_FOLDER_H

#include "top/live_file.h"

#include <limits.h>

/* The first of those places that can be used; it is made, with access for the user alone, if it is
 * not there. False with the reason for the last one. */
bool ats_live_folder(char path[PATH_MAX], struct ats_error *err);

/* Processes in order of their numbers. All zero: none. */
struct ats_live_list {
    struct ats_live_process *processes;
    size_t n;
    size_t n_other; /* live ones whose figures are not of this version */
};

/* Reads what the live processes of this user publish, and removes the files of dead ones. A process
 * number is as the caller sees it. False: out of memory. The caller frees the list. */
bool ats_live_scan(struct ats_live_list *list);
void ats_live_list_free(struct ats_live_list *list);

#endif
