#include "backend/machine_profile.h"

#include "measure/identify.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

/* A quick profile takes five seconds; on a busy machine, and with a slow driver, more. */
enum { MAX_WAIT_MS = 20000, MAX_MESSAGE = 400 };

/* ---- kept ones ---- */

/* Says in `why` what is wrong with a file that is there. */
static bool load(const char *path, const struct ats_profile_identity *want,
                 struct ats_profile *profile, struct ats_error *why)
{
    if (access(path, F_OK) != 0 || !ats_profile_read(path, profile, why)) {
        return false;
    }
    struct ats_profile_identity fitting = *want;
    if (fitting.threads == 0) {
        fitting.threads = profile->identity.threads;
    }
    const char *differs = ats_profile_mismatch(&profile->identity, &fitting);
    if (differs == NULL) {
        return true;
    }
    ats_fail(why, "the kept profile is of another %s", differs);
    ats_profile_free(profile);
    return false;
}

/* ---- the child ---- */

/* The file that holds an address. */
static bool file_of(const void *address, char path[PATH_MAX])
{
    Dl_info info;
    return dladdr(address, &info) != 0 && info.dli_fname != NULL &&
           realpath(info.dli_fname, path) != NULL;
}

static bool find_helper(const char *library, char helper[PATH_MAX + 32])
{
    /* installed, also below lib/TRIPLET; in a build tree; beside this library */
    static const char *const places[] = {"../libexec/ats/ats-ggml", "../../libexec/ats/ats-ggml",
                                         "../bin/ats-ggml", "ats-ggml"};
    const char *slash = strrchr(library, '/');
    for (size_t i = 0; slash != NULL && i < sizeof(places) / sizeof(places[0]); i++) {
        snprintf(helper, PATH_MAX + 32, "%.*s/%s", (int)(slash - library), library, places[i]);
        if (access(helper, X_OK) == 0) {
            return true;
        }
    }
    return false;
}

enum { N_VARIABLES = 6 };

/* This process's environment with some variables of ours in front; the rest is borrowed. */
struct environment {
    char *ours[N_VARIABLES];
    char **all;
};

static bool set_variable(char **slot, const char *name, const char *value)
{
    return asprintf(slot, "%s=%s", name, value) >= 0 || (*slot = NULL, false);
}

static bool is_ours(const struct environment *e, const char *entry)
{
    const size_t length = strcspn(entry, "=") + 1;
    for (size_t i = 0; i < N_VARIABLES; i++) {
        if (strncmp(e->ours[i], entry, length) == 0) {
            return true;
        }
    }
    return false;
}

static void free_environment(struct environment *e)
{
    for (size_t i = 0; i < N_VARIABLES; i++) {
        free(e->ours[i]);
    }
    free(e->all);
}

/* `library`: this one, unless the user names another; `folder`: that of ggml's libraries. */
static bool make_environment(struct environment *e, const char *library, const char *folder)
{
    *e = (struct environment){0};
    const char *paths = getenv("LD_LIBRARY_PATH");
    const char *named = getenv("ATS_BACKEND");
    char *search = NULL;
    size_t n = 0;
    while (environ[n] != NULL) {
        n++;
    }
    e->all = calloc(n + N_VARIABLES + 1, sizeof(e->all[0]));
    const bool has_paths = paths != NULL && paths[0] != '\0';
    bool good =
        asprintf(&search, "%s%s%s", folder, has_paths ? ":" : "", has_paths ? paths : "") >= 0;
    if (good) {
        good = set_variable(&e->ours[0], "LD_LIBRARY_PATH", search) &&
               set_variable(&e->ours[1], "ATS_LLAMA_BIN", folder) &&
               set_variable(&e->ours[2], "ATS_BACKEND",
                            named != NULL && named[0] != '\0' ? named : library) &&
               set_variable(&e->ours[3], "ATS_PROFILE", "off") &&
               set_variable(&e->ours[5], "ATS_TRACE", "") &&
               set_variable(&e->ours[4], "ATS_EMU_REPORT", "/dev/null");
        free(search);
    }
    if (!good || e->all == NULL) {
        free_environment(e);
        return false;
    }
    size_t at = 0;
    for (size_t i = 0; i < N_VARIABLES; i++) {
        e->all[at++] = e->ours[i];
    }
    for (size_t i = 0; i < n; i++) {
        if (!is_ours(e, environ[i])) {
            e->all[at++] = environ[i];
        }
    }
    return true;
}

/* Starts the child with its standard error in a pipe, whose other end is returned; -1 on failure.
 */
static int start(const char *helper, char *const argv[], char *const envp[], pid_t *pid,
                 struct ats_error *why)
{
    int ends[2];
    if (pipe2(ends, O_CLOEXEC) != 0) {
        ats_fail(why, "cannot make a pipe: %s", strerror(errno));
        return -1;
    }
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
    posix_spawn_file_actions_adddup2(&actions, ends[1], STDERR_FILENO);
    posix_spawn_file_actions_addopen(&actions, STDOUT_FILENO, "/dev/null", O_WRONLY, 0);
    posix_spawn_file_actions_addclosefrom_np(&actions, STDERR_FILENO + 1);
    const int status = posix_spawn(pid, helper, &actions, NULL, argv, envp);
    posix_spawn_file_actions_destroy(&actions);
    close(ends[1]);
    if (status != 0) {
        close(ends[0]);
        ats_fail(why, "cannot start %.200s: %s", helper, strerror(status));
        return -1;
    }
    return ends[0];
}

static long now_ms(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (long)time.tv_sec * 1000 + time.tv_nsec / 1000000;
}

/* Reads until the child closes its end, at most until the time is up. Keeps the command's own line
 * of what it says. False: time is up. */
static bool listen_to(int fd, char message[MAX_MESSAGE])
{
    static const char own[] = "ats profile: ";
    const long end_ms = now_ms() + MAX_WAIT_MS;
    char line[MAX_MESSAGE];
    size_t n = 0;
    for (;;) {
        const long left_ms = end_ms - now_ms();
        struct pollfd ready = {.fd = fd, .events = POLLIN};
        char byte;
        if (left_ms <= 0) {
            return false;
        }
        if (poll(&ready, 1, (int)left_ms) <= 0) {
            continue;
        }
        const ssize_t got = read(fd, &byte, 1);
        if (got == 0 || (got < 0 && errno != EINTR)) {
            return true;
        }
        if (got == 1 && byte == '\n') {
            line[n] = '\0';
            n = 0;
            if (strncmp(line, own, sizeof(own) - 1) == 0) {
                snprintf(message, MAX_MESSAGE, "%s", line + sizeof(own) - 1);
            }
        } else if (got == 1 && n < sizeof(line) - 1) {
            line[n++] = byte;
        }
    }
}

/* A host that ignores SIGCHLD leaves nothing to wait for. */
static bool reap(pid_t pid)
{
    int status = 0;
    while (waitpid(pid, &status, 0) < 0) {
        if (errno != EINTR) {
            return true;
        }
    }
    return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

static bool run(const char *helper, char *const argv[], char *const envp[], struct ats_error *why)
{
    pid_t pid = 0;
    char message[MAX_MESSAGE] = "";
    const int fd = start(helper, argv, envp, &pid, why);
    if (fd < 0) {
        return false;
    }
    const bool in_time = listen_to(fd, message);
    close(fd);
    if (!in_time) {
        kill(pid, SIGKILL);
    }
    const bool good = reap(pid);
    if (!in_time) {
        return ats_fail(why, "measuring took more than %d seconds", MAX_WAIT_MS / 1000);
    }
    return good || ats_fail(why, "measuring failed%s%s", message[0] != '\0' ? ": " : "", message);
}

static bool measure(const struct ats_profile_identity *identity, const char *path,
                    struct ats_error *why)
{
    static const char here = 0;
    char library[PATH_MAX];
    char ggml[PATH_MAX];
    char helper[PATH_MAX + 32];
    const void *in_ggml;
    memcpy(&in_ggml, &ats_ggml.fn_ggml_version, sizeof(in_ggml));
    if (!file_of(&here, library) || !file_of(in_ggml, ggml)) {
        return ats_fail(why, "this library's file cannot be found");
    }
    if (!find_helper(library, helper)) {
        return ats_fail(why, "the program ats-ggml is not beside %.200s", library);
    }
    *strrchr(ggml, '/') = '\0';
    struct environment environment;
    if (!make_environment(&environment, library, ggml)) {
        return ats_fail(why, "out of memory");
    }
    char threads[16];
    char device[ATS_PROFILE_TEXT];
    char out[PATH_MAX];
    snprintf(threads, sizeof(threads), "%d", identity->threads);
    snprintf(device, sizeof(device), "%s", identity->device);
    snprintf(out, sizeof(out), "%s", path);
    /* the last two are left out if the child is to choose */
    char *argv[] = {(char[]){"ats-ggml"},
                    (char[]){"profile"},
                    (char[]){"--quick"},
                    (char[]){"--device"},
                    device,
                    (char[]){"--out"},
                    out,
                    (char[]){"--threads"},
                    threads,
                    NULL};
    if (identity->threads == 0) {
        argv[7] = NULL;
    }
    const bool good = run(helper, argv, environment.all, why);
    free_environment(&environment);
    return good;
}

/* ---- all ---- */

static bool get_kept(const struct ats_profile_identity *identity, struct ats_profile *profile,
                     char path[PATH_MAX], struct ats_error *why)
{
    char chosen[PATH_MAX];
    struct ats_error ignored;
    if (!ats_profile_path(identity, true, chosen, sizeof(chosen), why)) {
        path[0] = '\0';
        return false;
    }
    if (identity->threads == 0) {
        snprintf(path, PATH_MAX, "%s", chosen);
        return load(path, identity, profile, why);
    }
    /* the profile with the best number of threads serves too if that is the number */
    return (ats_profile_path(identity, false, path, PATH_MAX, why) &&
            load(path, identity, profile, why)) ||
           load(chosen, identity, profile, &ignored);
}

static bool get(ggml_backend_dev_t accel, int threads, struct ats_profile *profile,
                struct ats_error *why)
{
    struct ats_profile_identity identity;
    ats_identify_device(accel, threads, &identity);
    char path[PATH_MAX];
    if (get_kept(&identity, profile, path, why)) {
        return true;
    }
    if (path[0] == '\0') {
        return false;
    }
    ats_log_info("%s: measuring this machine for a few seconds (%s); `ats profile` measures more "
                 "closely\n",
                 identity.device, why->text[0] != '\0' ? why->text : "it has no profile yet");
    why->text[0] = '\0';
    if (!measure(&identity, path, why)) {
        return false;
    }
    ats_fail(why, "measuring left no profile");
    return load(path, &identity, profile, why);
}

bool ats_machine_profile_get(ggml_backend_dev_t accel, int threads, const char *file,
                             struct ats_profile *profile)
{
    struct ats_error why = {""};
    if (file != NULL ? ats_profile_read(file, profile, &why) : get(accel, threads, profile, &why)) {
        return true;
    }
    ats_log_warn("%s: no profile of this machine, built-in rates are used: %s\n",
                 ggml_backend_dev_name(accel), why.text);
    return false;
}
