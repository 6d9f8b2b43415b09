/* Both ends of the probe: the child that loads ggml's backends and describes them
 * on file descriptor 3, and the parent that starts it. */
#include "cli/probe.h"
#include "cli/cli.h"

#include <errno.h>
#include <fcntl.h>
#include <ggml-backend.h>
#include <ggml.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

/* Not stdout: drivers and plug-ins print there as they like. */
enum { ANSWER_FD = 3 };

static const char ats_registry[] = "ATS";

/* ---- child ---------------------------------------------------------------- */

struct log_sink {
    json_t *messages; /* warnings and errors, one string per line */
    bool verbose;
};

static void collect_log(enum ggml_log_level level, const char *text, void *data)
{
    struct log_sink *sink = data;
    if (sink->verbose) {
        fputs(text, stderr);
    }
    if (level == GGML_LOG_LEVEL_WARN || level == GGML_LOG_LEVEL_ERROR) {
        size_t length = strlen(text);
        while (length > 0 && text[length - 1] == '\n') {
            length--;
        }
        json_array_append_new(sink->messages, json_stringn(text, length));
    }
}

static const char *type_name(enum ggml_backend_dev_type type)
{
    switch (type) {
    case GGML_BACKEND_DEVICE_TYPE_CPU:
        return "cpu";
    case GGML_BACKEND_DEVICE_TYPE_GPU:
        return "gpu";
    case GGML_BACKEND_DEVICE_TYPE_IGPU:
        return "igpu";
    case GGML_BACKEND_DEVICE_TYPE_ACCEL:
        return "accel";
    case GGML_BACKEND_DEVICE_TYPE_META:
        return "meta";
    }
    return "other";
}

static json_t *describe(ggml_backend_dev_t device, const char *registry)
{
    struct ggml_backend_dev_props props;
    ggml_backend_dev_get_props(device, &props);
    json_t *capabilities =
        json_pack("{s:b, s:b, s:b, s:b, s:b}", "async", props.caps.async, "events",
                  props.caps.events, "host_buffer", props.caps.host_buffer, "buffer_from_host_ptr",
                  props.caps.buffer_from_host_ptr, "mmap", props.caps.mmap_support);
    json_t *entry = json_pack("{s:s?, s:s?, s:s, s:s, s:o}", "name", props.name, "description",
                              props.description, "type", type_name(props.type), "registry",
                              registry, "capabilities", capabilities);
    json_object_set_new(entry, "memory_free_bytes", json_integer((json_int_t)props.memory_free));
    json_object_set_new(entry, "memory_total_bytes", json_integer((json_int_t)props.memory_total));
    return entry;
}

/* The name of the accelerator under an ATS device; the backend library says it. */
static json_t *wrapped_accelerator(ggml_backend_reg_t registry, ggml_backend_dev_t device)
{
    typedef const char *(*accelerator_name_fn)(ggml_backend_dev_t device);
    accelerator_name_fn name = (accelerator_name_fn)(uintptr_t)ggml_backend_reg_get_proc_address(
        registry, "ats_device_accelerator");
    const char *text = name != NULL ? name(device) : NULL;
    return text != NULL ? json_string(text) : json_null();
}

/* What an emulated accelerator stands in for. */
static json_t *emulation(ggml_backend_reg_t registry, ggml_backend_dev_t device)
{
    typedef char *(*describe_fn)(ggml_backend_dev_t device);
    describe_fn describe_emulated =
        (describe_fn)(uintptr_t)ggml_backend_reg_get_proc_address(registry, "ats_emu_describe");
    char *text = describe_emulated != NULL ? describe_emulated(device) : NULL;
    json_t *object = text != NULL ? json_loads(text, 0, NULL) : NULL;
    free(text);
    return object != NULL ? object : json_null();
}

static void sort_device(json_t *root, ggml_backend_dev_t device)
{
    ggml_backend_reg_t registry = ggml_backend_dev_backend_reg(device);
    const char *name = ggml_backend_reg_name(registry);
    json_t *entry = describe(device, name);
    if (strcmp(name, ats_registry) == 0) {
        json_object_set_new(entry, "accelerator", wrapped_accelerator(registry, device));
        json_array_append_new(json_object_get(root, "ats"), entry);
        return;
    }
    enum ggml_backend_dev_type type = ggml_backend_dev_type(device);
    if (type == GGML_BACKEND_DEVICE_TYPE_CPU) {
        json_object_set_new(entry, "cores", json_integer(sysconf(_SC_NPROCESSORS_ONLN)));
        json_object_set_new(root, "cpu", entry);
    } else if (type == GGML_BACKEND_DEVICE_TYPE_GPU || type == GGML_BACKEND_DEVICE_TYPE_IGPU) {
        json_object_set_new(entry, "emulated", json_boolean(strncmp(name, "EMU", 3) == 0));
        json_object_set_new(entry, "emulation", emulation(registry, device));
        json_array_append_new(json_object_get(root, "accelerators"), entry);
    } else {
        json_decref(entry); /* BLAS and the like help the CPU; they hold no weights */
    }
}

/* argv: "ats probe", folder, "verbose" or "quiet". GGML_BACKEND_PATH is set. */
int cli_probe(int argc, char **argv)
{
    if (argc != 3 || fcntl(ANSWER_FD, F_GETFD) < 0) {
        fprintf(stderr, "ats probe is for internal use; see `ats devices --help`\n");
        return CLI_USAGE;
    }
    struct log_sink sink = {json_array(), strcmp(argv[2], "verbose") == 0};
    ggml_log_set(collect_log, &sink);
    ggml_backend_load_all_from_path(argv[1]);
    bool loaded = ggml_backend_reg_by_name(ats_registry) != NULL;
    const char *backend = getenv("GGML_BACKEND_PATH");
    json_t *root =
        json_pack("{s:s, s:s, s:s, s:{s:s?, s:b}, s:n, s:[], s:[], s:o}", "format", "ats-devices-1",
                  "ggml_version", ggml_version(), "llama_bin", argv[1], "backend", "path", backend,
                  "loaded", loaded, "cpu", "accelerators", "ats", "messages", sink.messages);
    for (size_t i = 0; i < ggml_backend_dev_count(); i++) {
        sort_device(root, ggml_backend_dev_get(i));
    }
    bool ok = root != NULL && json_dumpfd(root, ANSWER_FD, JSON_COMPACT) == 0;
    json_decref(root);
    ggml_log_set(NULL, NULL); /* the sink goes out of scope before the libraries do */
    return ok ? CLI_OK : CLI_FAILED;
}

/* ---- parent --------------------------------------------------------------- */

/* The environment for the child. `ats` is linked with one llama.cpp build, but the
 * question is about the build in `llama_bin`, so its libraries come first. */
static void set_child_environment(const char *llama_bin, const char *backend)
{
    const char *old = getenv("LD_LIBRARY_PATH");
    char *path = old != NULL && old[0] != '\0' ? cli_format("%s:%s", llama_bin, old)
                                               : cli_format("%s", llama_bin);
    setenv("LD_LIBRARY_PATH", path, 1);
    setenv("GGML_BACKEND_PATH", backend, 1);
    free(path);
}

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

static int start_child(const char *llama_bin, const char *backend, bool verbose, int answer,
                       pid_t *pid)
{
    char *old_libraries = saved_variable("LD_LIBRARY_PATH");
    char *old_backend = saved_variable("GGML_BACKEND_PATH");
    set_child_environment(llama_bin, backend);
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, STDERR_FILENO, STDOUT_FILENO);
    posix_spawn_file_actions_adddup2(&actions, answer, ANSWER_FD);
    char *const argv[] = {(char[]){"ats"}, (char[]){"probe"}, (char *)(uintptr_t)llama_bin,
                          verbose ? (char[]){"verbose"} : (char[]){"quiet"}, NULL};
    int status = posix_spawn(pid, "/proc/self/exe", &actions, NULL, argv, environ);
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

json_t *probe_devices(const char *llama_bin, const char *backend, bool verbose,
                      struct ats_error *err)
{
    int ends[2];
    if (pipe2(ends, O_CLOEXEC) != 0) {
        ats_fail(err, "cannot make a pipe: %s", strerror(errno));
        return NULL;
    }
    /* dup2 onto itself would keep O_CLOEXEC; move the write end out of the way. */
    int answer = fcntl(ends[1], F_DUPFD_CLOEXEC, ANSWER_FD + 1);
    close(ends[1]);
    pid_t pid = 0;
    int status = start_child(llama_bin, backend, verbose, answer, &pid);
    close(answer);
    json_t *root = NULL;
    if (status != 0) {
        ats_fail(err, "cannot start a child process: %s", strerror(status));
    } else {
        root = take_answer(ends[0], pid, err);
    }
    close(ends[0]);
    return root;
}
