/* Where things are: the backend library, llama.cpp's programs, ourselves. */
#ifndef ATS_CLI_PATHS_H
#define ATS_CLI_PATHS_H

#include "base/error.h"

#include <stdbool.h>

/* The folder with llama.cpp's programs and libraries: `option` (may be NULL), else
 * $ATS_LLAMA_BIN, else what was built in. Caller frees; absolute. */
char *paths_llama_bin(const char *option, struct ats_error *err);

/* libggml-ats.so: $ATS_BACKEND, else ../lib or the same folder, seen from the `ats`
 * executable. Caller frees; absolute. NULL with an error if it is not there. */
char *paths_backend(struct ats_error *err);

/* ats-ggml (helper.h): beside the `ats` executable, or in ../libexec/ats. Caller frees; absolute.
 * NULL with an error if it is not there. */
char *paths_helper(struct ats_error *err);

/* The folder with descriptions of models (JSON): $ATS_MODELS, else ../share/ats/models seen from
 * the `ats` executable, else that of the source tree. Caller frees; it need not exist. */
char *paths_models(void);

/* `name` in `llama_bin`, or `name` itself if it has a slash; must be an executable
 * file. Caller frees. */
char *paths_program(const char *llama_bin, const char *name, struct ats_error *err);

/* True if a file of this name can be created or replaced (base/replace.h); creates and removes one
 * beside it to know. `what` names the option or variable. */
bool paths_can_write(const char *path, const char *what, struct ats_error *err);

#endif
