/* Which devices ggml has once the backend library is loaded.
 *
 * The answer comes from a child process, the program ats-ggml (helper.h). A driver
 * that crashes then is an error message, and the child can be given the libraries
 * of the very llama.cpp build that is asked about. */
#ifndef ATS_CLI_PROBE_H
#define ATS_CLI_PROBE_H

#include "base/error.h"

#include <jansson.h>
#include <stdbool.h>

/* Where the child writes the answer. Not stdout: drivers and plug-ins print there as they like. */
enum { PROBE_ANSWER_FD = 3 };

/* The JSON object that `ats devices --json` prints; caller gives up its reference.
 * `backend` is the path of libggml-ats.so. `verbose` lets ggml's log through to
 * stderr. NULL with an error if the child failed. */
json_t *probe_devices(const char *llama_bin, const char *backend, bool verbose,
                      struct ats_error *err);

#endif
