#include "cli/helper.h"
#include "cli/cli.h"
#include "cli/paths.h"

#include <dlfcn.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static bool has_ggml(const char *llama_bin)
{
    static const char name[] = "libggml-base.so.0";
    char *path = cli_format("%s/%s", llama_bin, name);
    bool found = access(path, R_OK) == 0;
    free(path);
    if (!found) {
        void *library = dlopen(name, RTLD_LAZY); /* as distributions install it */
        found = library != NULL;
        if (found) {
            dlclose(library);
        }
    }
    return found;
}

char *helper_find(const char *llama_bin, struct ats_error *err)
{
    if (!has_ggml(llama_bin)) {
        ats_fail(err,
                 "llama.cpp's libraries (libggml-base.so.0) are not in %s: build llama.cpp with "
                 "shared libraries, or name another folder with --llama-bin or ATS_LLAMA_BIN",
                 llama_bin);
        return NULL;
    }
    return paths_helper(err);
}

void helper_set_libraries(const char *llama_bin)
{
    const char *old = getenv("LD_LIBRARY_PATH");
    char *path = old != NULL && old[0] != '\0' ? cli_format("%s:%s", llama_bin, old)
                                               : cli_format("%s", llama_bin);
    setenv("LD_LIBRARY_PATH", path, 1);
    free(path);
}

int helper_run(int argc, char **argv)
{
    struct ats_error err;
    char *llama_bin = paths_llama_bin(NULL, &err);
    char *helper = llama_bin != NULL ? helper_find(llama_bin, &err) : NULL;
    if (helper != NULL) {
        static char name[] = "ats-ggml";
        char **words = cli_alloc(((size_t)argc + 2) * sizeof *words);
        words[0] = name;
        words[1] = argv[0] + strlen("ats ");
        memcpy(&words[2], &argv[1], (size_t)(argc - 1) * sizeof *words);
        helper_set_libraries(llama_bin);
        /* the helper lies elsewhere once installed, and would not find the library by itself */
        struct ats_error none;
        char *backend = paths_backend(&none);
        if (backend != NULL) {
            setenv("ATS_BACKEND", backend, 1);
        }
        execv(helper, words);
        free(backend);
        ats_fail(&err, "cannot start %s: %s", helper, strerror(errno));
        free(words);
    }
    free(helper);
    free(llama_bin);
    return cli_error(argv[0], &err);
}
