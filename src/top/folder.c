#include "top/folder.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum {
    PLACES = 3,
    /* A process writes for well under a microsecond; one that was stopped in the middle shall not
     * hold up the reader. */
    TRIES = 50,
    /* A file gets its name within milliseconds of its making; older ones are of processes that died
     * in between. */
    UNBORN_S = 60,
};

/* ---- the folder ---- */

static bool is_absolute(const char *path)
{
    return path != NULL && path[0] == '/' && strlen(path) < PATH_MAX - NAME_MAX;
}

/* The places in order, each once; how many. */
static size_t list_places(char places[PLACES][PATH_MAX])
{
    size_t n = 0;
    struct stat info;
    const char *chosen = getenv("ATS_LIVE");
    if (is_absolute(chosen)) {
        snprintf(places[0], PATH_MAX, "%s", chosen);
        return 1;
    }
    const char *runtime = getenv("XDG_RUNTIME_DIR");
    const char *temporary = getenv("TMPDIR");
    /* after `su`, the variable may still be another user's */
    if (is_absolute(runtime) && stat(runtime, &info) == 0 && info.st_uid == geteuid()) {
        snprintf(places[n++], PATH_MAX, "%s/ats", runtime);
    }
    if (is_absolute(temporary) && strcmp(temporary, "/tmp") != 0) {
        snprintf(places[n++], PATH_MAX, "%s/ats-%u", temporary, (unsigned)geteuid());
    }
    snprintf(places[n++], PATH_MAX, "/tmp/ats-%u", (unsigned)geteuid());
    return n;
}

/* A descriptor, or -1 with errno and the reason. */
static int open_place(const char *path, struct ats_error *err)
{
    struct stat info;
    const int folder = open(path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (folder < 0 || fstat(folder, &info) != 0) {
        ats_fail(err, "%.300s: %s", path, strerror(errno));
    } else if (info.st_uid != geteuid()) {
        ats_fail(err, "%.300s belongs to someone else", path);
    } else if ((info.st_mode & (S_IWGRP | S_IWOTH)) != 0) {
        ats_fail(err, "others may write to %.300s", path);
    } else {
        return folder;
    }
    if (folder >= 0) {
        close(folder);
    }
    return -1;
}

bool ats_live_folder(char path[PATH_MAX], struct ats_error *err)
{
    char places[PLACES][PATH_MAX];
    const size_t n = list_places(places);
    for (size_t i = 0; i < n; i++) {
        /* what went wrong is seen when it is opened */
        (void)mkdir(places[i], S_IRWXU);
        const int folder = open_place(places[i], err);
        if (folder >= 0) {
            close(folder);
            memcpy(path, places[i], PATH_MAX);
            return true;
        }
    }
    return false;
}

/* ---- reading ---- */

static bool ends_with(const char *name, const char *ending)
{
    const size_t n = strlen(name);
    const size_t n_ending = strlen(ending);
    return n > n_ending && strcmp(name + n - n_ending, ending) == 0;
}

/* Who holds the lock: false if nobody does. *pid: 0 if that is not to be known here. */
static bool is_locked(int file, int64_t *pid)
{
    struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
    if (fcntl(file, F_GETLK, &lock) != 0) {
        *pid = 0;
        return true; /* when in doubt, it stays */
    }
    *pid = lock.l_type != F_UNLCK && lock.l_pid > 0 ? lock.l_pid : 0;
    return lock.l_type != F_UNLCK;
}

/* False: these are no figures of this version. */
static bool read_file(int file, struct ats_live_process *process)
{
    /* one byte more tells that a file is too long */
    _Alignas(8) char first[ATS_LIVE_MOST_BYTES + 1];
    _Alignas(8) char second[ATS_LIVE_MOST_BYTES + 1];
    static const struct timespec pause = {.tv_nsec = 100000};
    process->settled = false;
    for (int i = 0; i < TRIES && !process->settled; i++) {
        if (i > 0) {
            nanosleep(&pause, NULL); /* who writes may have been interrupted */
        }
        const ssize_t n = pread(file, first, sizeof(first), 0);
        if (n < 0 || pread(file, second, sizeof(second), 0) != n ||
            !ats_live_parse(first, (size_t)n, process, NULL)) {
            return false;
        }
        process->settled = ats_live_is_settled(first, second, (size_t)n);
    }
    return true;
}

static bool append(struct ats_live_list *list, const struct ats_live_process *process)
{
    struct ats_live_process *longer =
        realloc(list->processes, (list->n + 1) * sizeof(*list->processes));
    if (longer == NULL) {
        return false;
    }
    list->processes = longer;
    list->processes[list->n++] = *process;
    return true;
}

/* Adds the process of a locked file. False: out of memory. */
static bool take_figures(struct ats_live_list *list, int file, const char *name, int64_t pid)
{
    struct ats_live_process process = {0};
    if (!read_file(file, &process)) {
        list->n_other++;
        return true;
    }
    process.pid = pid > 0 ? pid : process.pid;
    memcpy(process.file, name, strlen(name) + 1);
    return append(list, &process);
}

/* Adds the process of a file, or removes the file of a dead one. False: out of memory. */
static bool take_file(struct ats_live_list *list, int folder, const char *name)
{
    const bool unborn = ends_with(name, ATS_LIVE_UNBORN);
    if ((!unborn && !ends_with(name, ATS_LIVE_ENDING)) || strlen(name) >= ATS_LIVE_FILE_NAME) {
        return true; /* not what a process calls its file */
    }
    const int file = openat(folder, name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    if (file < 0) {
        return true;
    }
    struct stat info;
    int64_t pid = 0;
    bool ok = true;
    const bool ours = fstat(file, &info) == 0 && S_ISREG(info.st_mode) && info.st_uid == geteuid();
    const bool alive = ours && is_locked(file, &pid);
    if (alive && !unborn) {
        ok = take_figures(list, file, name, pid);
    }
    if (ours && !alive && (!unborn || time(NULL) - info.st_mtime > UNBORN_S)) {
        (void)unlinkat(folder, name, 0);
    }
    close(file);
    return ok;
}

static bool scan_place(struct ats_live_list *list, const char *path)
{
    const int folder = open_place(path, NULL);
    DIR *entries = folder >= 0 ? fdopendir(folder) : NULL;
    if (entries == NULL) {
        if (folder >= 0) {
            close(folder);
        }
        return true; /* no process has published there */
    }
    bool ok = true;
    const struct dirent *entry;
    while (ok && (entry = readdir(entries)) != NULL) {
        ok = take_file(list, dirfd(entries), entry->d_name);
    }
    closedir(entries);
    return ok;
}

static int by_pid(const void *a, const void *b)
{
    const struct ats_live_process *first = a;
    const struct ats_live_process *second = b;
    if (first->pid != second->pid) {
        return first->pid < second->pid ? -1 : 1;
    }
    return strcmp(first->file, second->file);
}

/* Two of the places may be one folder by different names. */
static void drop_twins(struct ats_live_list *list)
{
    size_t n = 1;
    for (size_t i = 1; i < list->n; i++) {
        if (by_pid(&list->processes[n - 1], &list->processes[i]) != 0) {
            list->processes[n++] = list->processes[i];
        }
    }
    list->n = n;
}

bool ats_live_scan(struct ats_live_list *list)
{
    *list = (struct ats_live_list){0};
    char places[PLACES][PATH_MAX];
    const size_t n = list_places(places);
    for (size_t i = 0; i < n; i++) {
        if (!scan_place(list, places[i])) {
            ats_live_list_free(list);
            return false;
        }
    }
    if (list->n > 0) {
        qsort(list->processes, list->n, sizeof(*list->processes), by_pid);
        drop_twins(list);
    }
    return true;
}

void ats_live_list_free(struct ats_live_list *list)
{
    free(list->processes);
    *list = (struct ats_live_list){0};
}
