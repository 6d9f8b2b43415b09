/* The probe's parent: starts the child and takes its answer. */
#include "cli/probe.h"
#include "cli/cli.h"
#include "cli/helper.h"
#include "cli/paths.h"

#include <errno.h>
#include <fcntl.h>
#include <spawn.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static char *saved_variable(const char *name)
{
    const char *value = getenv(name);
    return value != NULL ? cli_format("%s", value) : NULL;
}

static void restore_variable(const char *name, char *value)
{
    if (value != NULL) {
        setenv(name, value, 1);
        free(value);
    } else {
        unsetenv(name);
    }
}

static int start_child(const char *helper, const char *llama_bin, const char *backend, bool verbose,
                       int answer, pid_t *pid)
{
    char *old_libraries = saved_variable("LD_LIBRARY_PATH");
    char *old_backend = saved_variable("GGML_BACKEND_PATH");
    helper_set_libraries(llama_bin);
    setenv("GGML_BACKEND_PATH", backend, 1);
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, STDERR_FILENO, STDOUT_FILENO);
    posix_spawn_file_actions_adddup2(&actions, answer, PROBE_ANSWER_FD);
    char *const argv[] = {(char[]){"ats-ggml"}, (char[]){"probe"}, (char *)(uintptr_t)llama_bin,
                          verbose ? (char[]){"verbose"} : (char[]){"quiet"}, NULL};
    int status = posix_spawn(pid, helper, &actions, NULL, argv, environ);
    posix_spawn_file_actions_destroy(&actions);
    restore_variable("LD_LIBRARY_PATH", old_libraries);
    restore_variable("GGML_BACKEND_PATH", old_backend);
    return status;
}

static json_t *take_answer(int fd, pid_t pid, struct ats_error *err)
{
    json_error_t parse_error;
    json_t *root = json_loadfd(fd, JSON_DISABLE_EOF_CHECK, &parse_error);
    int status = 0;
    while (waitpid(pid, &status, 0) < 0 && errno == EINTR) {
    }
    if (WIFSIGNALED(status)) {
        ats_fail(err, "loading ggml's backends crashed (%s); `ats devices -v` shows how far it got",
                 strsignal(WTERMSIG(status)));
    } else if (WEXITSTATUS(status) != 0 || root == NULL) {
        ats_fail(err, "loading ggml's backends failed (exit code %d); `ats devices -v` shows why",
                 WEXITSTATUS(status));
    } else {
        return root;
    }
    json_decref(root);
    return NULL;
}

static json_t *ask(const char *helper, const char *llama_bin, const char *backend, bool verbose,
                   struct ats_error *err)
{
    int ends[2];
    if (pipe2(ends, O_CLOEXEC) != 0) {
        ats_fail(err, "cannot make a pipe: %s", strerror(errno));
        return NULL;
    }
    /* dup2 onto itself would keep O_CLOEXEC; move the write end out of the way. */
    int answer = fcntl(ends[1], F_DUPFD_CLOEXEC, PROBE_ANSWER_FD + 1);
    close(ends[1]);
    pid_t pid = 0;
    int status = start_child(helper, llama_bin, backend, verbose, answer, &pid);
    close(answer);
    json_t *root = NULL;
    if (status != 0) {
        ats_fail(err, "cannot start %s: %s", helper, strerror(status));
    } else {
        root = take_answer(ends[0], pid, err);
    }
    close(ends[0]);
    return root;
}

json_t *probe_devices(const char *llama_bin, const char *backend, bool verbose,
                      struct ats_error *err)
{
    char *helper = helper_find(llama_bin, err);
    json_t *root = helper != NULL ? ask(helper, llama_bin, backend, verbose, err) : NULL;
    free(helper);
    return root;
}
