#include "cli/simulate_options.h"

enum { MAX_UBATCH = 1 << 16, MAX_LAYERS = 1024 };

static error_t parse_session(int key, char *arg, struct argp_state *state,
                             struct simulate_options *o)
{
    switch (key) {
    case SIMULATE_KEY_LAYERS:
        o->layers = cli_number(o->who, "layers", arg, 1, MAX_LAYERS);
        return 0;
    case SIMULATE_KEY_CTX:
        o->n_ctx = cli_number(o->who, "ctx", arg, 1, o->max_tokens);
        return 0;
    case SIMULATE_KEY_UBATCH:
        o->ubatch = cli_number(o->who, "ubatch", arg, 1, MAX_UBATCH);
        return 0;
    case SIMULATE_KEY_DECODE:
        o->decode = cli_number(o->who, "decode", arg, 0, o->max_tokens);
        return 0;
    case SIMULATE_KEY_NO_MMAP:
        o->no_mmap = true;
        return 0;
    case SIMULATE_KEY_JSON:
        o->json = true;
        return 0;
    default:
        return cli_parse_common(key, state);
    }
}

error_t simulate_parse_option(int key, char *arg, struct argp_state *state,
                              struct simulate_options *o)
{
    switch (key) {
    case SIMULATE_KEY_RIG:
        o->rig = arg;
        return 0;
    case SIMULATE_KEY_PROFILE:
        o->profile = arg;
        return 0;
    case SIMULATE_KEY_SCALE:
        o->scale = arg;
        return 0;
    case SIMULATE_KEY_VRAM:
        o->vram_bytes = cli_size(o->who, "vram", arg);
        o->has_vram = true;
        return 0;
    case SIMULATE_KEY_COMPUTE:
        o->compute_bytes = cli_size(o->who, "compute", arg);
        if (o->compute_bytes == 0) {
            cli_usage_error(o->who, "--compute must be more than 0; without it, it is estimated");
        }
        return 0;
    case ARGP_KEY_ARG:
        if (o->model != NULL) {
            cli_usage_error(o->who, "one model at a time, not '%s' and '%s'", o->model, arg);
        }
        o->model = arg;
        return 0;
    default:
        return parse_session(key, arg, state, o);
    }
}

void simulate_check_options(const struct simulate_options *o)
{
    if (o->model == NULL) {
        cli_usage_error(o->who, "the model is missing, such as `%s qwen3-30b-a3b`", o->who);
    }
    if (o->profile != NULL && o->rig != NULL) {
        cli_usage_error(o->who, "--rig %s and --profile %s are two machines: give one of them",
                        o->rig, o->profile);
    }
    if (o->profile != NULL && o->scale != NULL) {
        cli_usage_error(o->who, "--scale is for rigs; a profile was measured");
    }
}
