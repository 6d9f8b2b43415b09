/* The program ats-ggml: the parts of the command that call ggml, which are the probe's child,
 * `ats synth`, `ats simulate`, `ats profile` and `ats plan`.
 *
 * They are a program of their own so that `ats` starts without llama.cpp's libraries: it then finds
 * them, or says what is missing, where the dynamic linker would only name a file. And the helper
 * gets the libraries of the very llama.cpp that is asked about. */
#ifndef ATS_CLI_HELPER_H
#define ATS_CLI_HELPER_H

#include "base/error.h"

/* The helper's path, to be started with the ggml of `llama_bin`. Caller frees. NULL with an error
 * if it is missing, or if ggml is neither in that folder nor where the dynamic linker looks. */
char *helper_find(const char *llama_bin, struct ats_error *err);

/* Puts the folder in front of LD_LIBRARY_PATH, for programs that are started from now on. */
void helper_set_libraries(const char *llama_bin);

/* Runs a sub-command (argv[0] is its full name, "ats synth") in the helper, which replaces this
 * process. Returns only if that fails, with the exit code. */
int helper_run(int argc, char **argv);

#endif
