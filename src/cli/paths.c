#include "cli/paths.h"
#include "base/replace.h"
#include "cli/cli.h"

#include <errno.h>
#include <libgen.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#ifndef ATS_DEFAULT_LLAMA_BIN
#define ATS_DEFAULT_LLAMA_BIN ""
#endif
#ifndef ATS_DEFAULT_MODELS
#define ATS_DEFAULT_MODELS "models"
#endif

static const char *environment(const char *name)
{
    const char *value = getenv(name);
    return value != NULL && value[0] != '\0' ? value : NULL;
}

char *paths_llama_bin(const char *option, struct ats_error *err)
{
    const char *from = "--llama-bin";
    const char *path = option;
    if (path == NULL) {
        from = "$ATS_LLAMA_BIN";
        path = environment("ATS_LLAMA_BIN");
    }
    if (path == NULL) {
        from = "built in";
        path = ATS_DEFAULT_LLAMA_BIN;
    }
    struct stat info;
    if (path[0] == '\0' || stat(path, &info) != 0 || !S_ISDIR(info.st_mode)) {
        ats_fail(err,
                 "no folder with llama.cpp's programs at '%s' (%s): run `make` to build them, or "
                 "name the folder with --llama-bin or ATS_LLAMA_BIN",
                 path, from);
        return NULL;
    }
    char *absolute = realpath(path, NULL);
    if (absolute == NULL) {
        ats_fail(err, "cannot resolve %s: %s", path, strerror(errno));
    }
    return absolute;
}

/* The folder that holds the running executable. */
static char *own_folder(void)
{
    char path[PATH_MAX];
    ssize_t length = readlink("/proc/self/exe", path, sizeof path - 1);
    if (length < 0) {
        return cli_format(".");
    }
    path[length] = '\0';
    return cli_format("%s", dirname(path));
}

static char *readable(const char *path)
{
    return access(path, R_OK) == 0 ? realpath(path, NULL) : NULL;
}

char *paths_backend(struct ats_error *err)
{
    static const char name[] = "libggml-ats.so";
    const char *given = environment("ATS_BACKEND");
    if (given != NULL) {
        char *found = readable(given);
        if (found == NULL) {
            ats_fail(err, "cannot read the backend library %s (from $ATS_BACKEND): %s", given,
                     strerror(errno));
        }
        return found;
    }
    char *folder = own_folder();
    char *in_lib = cli_format("%s/../lib/%s", folder, name);
    char *beside = cli_format("%s/%s", folder, name);
    char *found = readable(in_lib);
    if (found == NULL) {
        found = readable(beside);
    }
    if (found == NULL) {
        ats_fail(err,
                 "the backend library %s is missing: looked for %s and %s; run `make` to build it, "
                 "or name it with ATS_BACKEND",
                 name, in_lib, beside);
    }
    free(beside);
    free(in_lib);
    free(folder);
    return found;
}

char *paths_helper(struct ats_error *err)
{
    static const char name[] = "ats-ggml";
    char *folder = own_folder();
    char *beside = cli_format("%s/%s", folder, name);
    char *installed = cli_format("%s/../libexec/ats/%s", folder, name);
    char *found = readable(beside);
    if (found == NULL) {
        found = readable(installed);
    }
    if (found == NULL) {
        ats_fail(err,
                 "the program %s, a part of this command, is missing: looked for %s and %s; "
                 "build or install ats again",
                 name, beside, installed);
    }
    free(installed);
    free(beside);
    free(folder);
    return found;
}

char *paths_models(void)
{
    const char *given = environment("ATS_MODELS");
    if (given != NULL) {
        return cli_format("%s", given);
    }
    /* seen from bin/ats and from libexec/ats/ats-ggml */
    static const char *const installed[] = {"../share/ats/models", "../../share/ats/models"};
    char *folder = own_folder();
    char *found = NULL;
    for (size_t i = 0; i < 2 && found == NULL; i++) {
        char *path = cli_format("%s/%s", folder, installed[i]);
        found = readable(path);
        free(path);
    }
    free(folder);
    if (found != NULL) {
        return found;
    }
    return cli_format("%s", ATS_DEFAULT_MODELS);
}

char *paths_program(const char *llama_bin, const char *name, struct ats_error *err)
{
    bool is_path = strchr(name, '/') != NULL;
    char *path = is_path ? cli_format("%s", name) : cli_format("%s/%s", llama_bin, name);
    struct stat info;
    if (stat(path, &info) != 0) {
        ats_fail(err,
                 "llama.cpp's program %s is missing: looked for %s; build it there, or name "
                 "another folder with --llama-bin or ATS_LLAMA_BIN",
                 name, path);
    } else if (!S_ISREG(info.st_mode) || access(path, X_OK) != 0) {
        ats_fail(err, "%s is not an executable file: check its permissions (chmod +x)", path);
    } else {
        return path;
    }
    free(path);
    return NULL;
}

bool paths_can_write(const char *path, const char *what, struct ats_error *err)
{
    struct stat info;
    if (stat(path, &info) == 0 && !S_ISREG(info.st_mode)) {
        if (S_ISDIR(info.st_mode)) {
            return ats_fail(err, "%s: %s is a folder, not a file", what, path);
        }
        return access(path, W_OK) == 0 ||
               ats_fail(err, "%s: cannot write %s: %s", what, path, strerror(errno));
    }
    /* by trying, as it will be written: permissions of root say nothing of /proc */
    struct ats_replace file;
    if (ats_replace_begin(&file, path)) {
        ats_replace_end(&file, false);
        return true;
    }
    int reason = errno;
    char *copy = cli_format("%s", path);
    ats_fail(err, "%s: cannot write %s: folder %s: %s", what, path, dirname(copy),
             strerror(reason));
    free(copy);
    return false;
}
