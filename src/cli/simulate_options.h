/* Options that `ats simulate` and `ats plan` have in common: a model, a machine, a session.
 *
 * Each command has its own table of options, whose keys for these are below, and its own defaults.
 */
#ifndef ATS_CLI_SIMULATE_OPTIONS_H
#define ATS_CLI_SIMULATE_OPTIONS_H

#include "cli/cli.h"

struct simulate_options {
    const char *who;
    uint32_t max_tokens; /* of a context; set before parsing */
    const char *model;
    const char *rig;     /* one, or several for who takes them; NULL: not given */
    const char *profile; /* NULL: not given */
    const char *scale;   /* of the rig; NULL: the real machine */
    size_t vram_bytes;
    bool has_vram;
    size_t compute_bytes; /* 0: estimated */
    uint32_t layers;      /* 0: all */
    uint32_t n_ctx;
    uint32_t ubatch;
    uint32_t decode;
    bool no_mmap;
    bool json;
};

enum {
    SIMULATE_KEY_RIG = CLI_KEY_FIRST,
    SIMULATE_KEY_PROFILE,
    SIMULATE_KEY_SCALE,
    SIMULATE_KEY_VRAM,
    SIMULATE_KEY_COMPUTE,
    SIMULATE_KEY_LAYERS,
    SIMULATE_KEY_CTX,
    SIMULATE_KEY_UBATCH,
    SIMULATE_KEY_DECODE,
    SIMULATE_KEY_NO_MMAP,
    SIMULATE_KEY_JSON,
    SIMULATE_KEY_OWN, /* the first that a command has for itself */
};

/* Takes these options and the model's name; hands what is neither to cli_parse_common. */
error_t simulate_parse_option(int key, char *arg, struct argp_state *state,
                              struct simulate_options *o);

/* Ends the process as wrong usage if the model is missing, or if what was given contradicts
 * itself. */
void simulate_check_options(const struct simulate_options *o);

#endif
