#define ATS_GGML_BIND_IMPLEMENTATION
#include "bind/ggml_bind.h"

#include <dlfcn.h>
#include <string.h>

/* ATS_GGML_VERSION is the version whose struct layouts this library was compiled with; the
 * build takes it from the checkout's own version file. */

struct ats_ggml_functions ats_ggml;

static bool look_up(void *module, const char *name, void *slot, struct ats_error *err)
{
    void *address = dlsym(module, name);
    if (address == NULL) {
        return ats_fail(err,
                        "the program's ggml has no function %s; this library needs ggml %s "
                        "(built with shared libraries)",
                        name, ATS_GGML_VERSION);
    }
    /* POSIX lets dlsym's result be used as a function; ISO C has no cast for it */
    memcpy(slot, &address, sizeof(address));
    return true;
}

/* The loaded module that holds `caller`, or the global scope if it has no
 * handle of its own (a program that contains ggml). */
static void *module_of(const void *caller)
{
    Dl_info info;
    if (dladdr(caller, &info) != 0 && info.dli_fname != NULL) {
        void *module = dlopen(info.dli_fname, RTLD_NOLOAD | RTLD_LAZY);
        if (module != NULL) {
            return module;
        }
    }
    return dlopen(NULL, RTLD_LAZY);
}

bool ats_ggml_bind(const void *caller, struct ats_error *err)
{
    if (ats_ggml.fn_ggml_version != NULL) {
        return true;
    }
    void *module = module_of(caller);
    if (module == NULL) {
        return ats_fail(err, "cannot find the ggml that loaded this library: %s", dlerror());
    }
    struct ats_ggml_functions found;
#define LOOK_UP(f)                                                                                 \
    if (!look_up(module, #f, &found.fn_##f, err)) {                                                \
        return false;                                                                              \
    }
    ATS_GGML_FUNCTIONS(LOOK_UP)
#undef LOOK_UP
    const char *version = found.fn_ggml_version();
    if (strcmp(version, ATS_GGML_VERSION) != 0) {
        return ats_fail(err,
                        "the program's ggml is version %s, this library was built for %s; "
                        "rebuild it with LLAMA_DIR= pointing at the program's llama.cpp",
                        version, ATS_GGML_VERSION);
    }
    ats_ggml = found;
    return true;
}
