/* `ats plan`: where each tensor of a model should live on a machine, why, and how fast that is. */
#include "cli/plan.h"
#include "base/parse.h"
#include "cli/cli.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    KEY_RIG = CLI_KEY_FIRST,
    KEY_PROFILE,
    KEY_SCALE,
    KEY_VRAM,
    KEY_CTX,
    KEY_KV_TYPE,
    KEY_UBATCH,
    KEY_PROMPT,
    KEY_DECODE,
    KEY_NO_MMAP,
    KEY_COMPUTE,
    KEY_LAYERS,
    KEY_DEVICES,
    KEY_JSON,
    KEY_LLAMA_ARGS,
    KEY_ACCEL,
    KEY_SVG,
    KEY_OUT,
};

enum { MAX_TOKENS = 1 << 24, MAX_UBATCH = 1 << 16, MAX_LAYERS = 1024 };

static const struct argp_option option_table[] = {
    {"rig", KEY_RIG, "NAME", 0, "The machine, by name or file (default desktop-4090)", 1},
    {"profile", KEY_PROFILE, "FILE", 0, "This machine instead, as `ats profile` measured it", 1},
    {"scale", KEY_SCALE, "host|X", 0,
     "The rig as it is emulated on this host, or by a factor (default: the real machine)", 1},
    {"vram", KEY_VRAM, "SIZE", 0,
     "Budget per accelerator; 0 for none (default: its memory less a sixteenth)", 1},
    {"devices", KEY_DEVICES, "N", 0, "Accelerators of that kind, layers spread evenly (1)", 1},
    {"ctx", KEY_CTX, "N", 0, "Context in tokens (default 4096)", 2},
    {"kv-type", KEY_KV_TYPE, "TYPE", 0, "Of the KV cache: f16, q8_0, q4_0, ... (f16)", 2},
    {"ubatch", KEY_UBATCH, "N", 0, "Tokens of a prefill pass (default 512)", 2},
    {"prompt", KEY_PROMPT, "N", 0, "Prompt of the session that is planned for (2048, or what fits)",
     2},
    {"decode", KEY_DECODE, "N", 0, "Tokens that it generates (default 128)", 2},
    {"no-mmap", KEY_NO_MMAP, NULL, 0, "llama.cpp's weights in pinned memory, not mapped", 2},
    {"compute", KEY_COMPUTE, "SIZE", 0, "VRAM for compute buffers (default: estimated)", 2},
    {"layers", KEY_LAYERS, "N", 0, "Fewer layers, for a model given by name", 2},
    {"out", KEY_OUT, "FILE", 0, "Write the plan file, for ATS_PLACEMENT=FILE", 3},
    {"llama-args", KEY_LLAMA_ARGS, NULL, 0,
     "Print -ngl and -ot arguments that give llama.cpp the same placement", 3},
    {"accel", KEY_ACCEL, "NAME", 0, "Its accelerator's name in these (default CUDA0)", 3},
    {"svg", KEY_SVG, "FILE", 0, "Draw it: layers by tensors, coloured by side", 3},
    {"json", KEY_JSON, NULL, 0, "Print JSON (format \"ats-plan-report-1\")", 3},
    CLI_HELP_OPTION,
    {0},
};

static uint32_t number(const struct plan_options *o, const char *option, const char *text,
                       uint32_t least, uint32_t most)
{
    struct ats_error err;
    uint64_t value;
    if (!ats_parse_u64(text, most, &value, &err)) {
        cli_usage_error(o->who, "--%s: %s", option, err.text);
    }
    if (value < least) {
        cli_usage_error(o->who, "--%s must be at least %u", option, least);
    }
    return (uint32_t)value;
}

static size_t size(const struct plan_options *o, const char *option, const char *text)
{
    struct ats_error err;
    size_t bytes;
    if (!ats_parse_bytes(text, &bytes, &err)) {
        cli_usage_error(o->who, "--%s: %s", option, err.text);
    }
    return bytes;
}

static error_t parse_output(int key, char *arg, struct argp_state *state)
{
    struct plan_options *o = state->input;
    switch (key) {
    case KEY_JSON:
        o->json = true;
        return 0;
    case KEY_LLAMA_ARGS:
        o->llama_args = true;
        return 0;
    case KEY_ACCEL:
        o->accel = arg;
        return 0;
    case KEY_SVG:
        o->svg = arg;
        return 0;
    case KEY_OUT:
        o->out = arg;
        return 0;
    case ARGP_KEY_ARG:
        if (o->model != NULL) {
            cli_usage_error(o->who, "one model at a time, not '%s' and '%s'", o->model, arg);
        }
        o->model = arg;
        return 0;
    default:
        return cli_parse_common(key, state);
    }
}

static error_t parse_session(int key, char *arg, struct argp_state *state)
{
    struct plan_options *o = state->input;
    switch (key) {
    case KEY_CTX:
        o->n_ctx = number(o, "ctx", arg, 1, MAX_TOKENS);
        return 0;
    case KEY_KV_TYPE:
        o->kv_type = arg;
        return 0;
    case KEY_UBATCH:
        o->ubatch = number(o, "ubatch", arg, 1, MAX_UBATCH);
        return 0;
    case KEY_PROMPT:
        o->prompt = number(o, "prompt", arg, 0, MAX_TOKENS);
        o->has_prompt = true;
        return 0;
    case KEY_DECODE:
        o->decode = number(o, "decode", arg, 0, MAX_TOKENS);
        return 0;
    case KEY_NO_MMAP:
        o->no_mmap = true;
        return 0;
    default:
        return parse_output(key, arg, state);
    }
}

static error_t parse_option(int key, char *arg, struct argp_state *state)
{
    struct plan_options *o = state->input;
    switch (key) {
    case KEY_RIG:
        o->rig = arg;
        return 0;
    case KEY_PROFILE:
        o->profile = arg;
        return 0;
    case KEY_SCALE:
        o->scale = arg;
        return 0;
    case KEY_VRAM:
        o->vram_bytes = size(o, "vram", arg);
        o->has_vram = true;
        return 0;
    case KEY_COMPUTE:
        o->compute_bytes = size(o, "compute", arg);
        return 0;
    case KEY_LAYERS:
        o->layers = number(o, "layers", arg, 1, MAX_LAYERS);
        return 0;
    case KEY_DEVICES:
        o->devices = number(o, "devices", arg, 1, PLAN_MAX_DEVICES);
        return 0;
    default:
        return parse_session(key, arg, state);
    }
}

static const struct argp argp = {
    option_table,
    parse_option,
    "MODEL",
    "Plans where each tensor of a model lives on a machine: what goes to VRAM and what stays in "
    "host memory, what that saves, and how fast it is predicted to be beside llama.cpp's own ways. "
    "MODEL is a GGUF file, of which only the metadata is read (of a file in parts, name the "
    "first), or a name that `ats synth --list` shows."
    "\v"
    "The plan is the one with the shortest predicted session: a prompt (--prompt) and "
    "an answer (--decode). More prompt for the answer weighs prefill higher.\n"
    "\n"
    "Examples:\n"
    "  ats plan qwen3-30b-a3b --rig laptop-3060\n"
    "  ats plan model.gguf --profile here.json    (from `ats profile --out here.json`)\n"
    "  ats plan model.gguf --vram 10G --ctx 16384 --kv-type q8_0\n"
    "  ats plan model.gguf --out plan.txt; ATS_PLACEMENT=plan.txt ats run -m model.gguf\n"
    "  llama-server -m model.gguf $(ats plan model.gguf --llama-args)\n"
    "  ats plan llama-3.1-70b --svg plan.svg\n"
    "\n"
    "docs/planning.md says how it is decided and what is predicted.",
    NULL,
    NULL,
    NULL};

static void check(const struct plan_options *o)
{
    if (o->model == NULL) {
        cli_usage_error(o->who, "the model is missing, such as `%s qwen3-30b-a3b`", o->who);
    }
    if (o->profile != NULL && o->scale != NULL) {
        cli_usage_error(o->who, "--scale is for rigs; a profile was measured");
    }
    if (o->json && o->llama_args) {
        cli_usage_error(o->who, "either --json or --llama-args");
    }
    if (o->llama_args && o->devices > 1) {
        cli_usage_error(o->who, "--llama-args is for one device");
    }
    if (o->prompt == 0 && o->has_prompt && o->decode == 0) {
        cli_usage_error(o->who, "neither prompt nor decode: nothing to plan for");
    }
    if ((uint64_t)(o->has_prompt ? o->prompt : 1) + o->decode > o->n_ctx) {
        cli_usage_error(o->who,
                        "a prompt and an answer of that length do not fit a context of %u; raise "
                        "--ctx",
                        o->n_ctx);
    }
}

static bool show(const struct plan *p, struct ats_error *err)
{
    const struct plan_options *o = p->options;
    if ((o->out != NULL && !plan_write(p, o->out, err)) ||
        (o->svg != NULL && !plan_write_svg(p, o->svg, err))) {
        return false;
    }
    bool good = true;
    if (o->json) {
        good = plan_print_json(p);
    } else if (o->llama_args) {
        plan_print_args(p, stdout, stderr);
    } else {
        plan_print(p);
    }
    good = good && fflush(stdout) == 0 && ferror(stdout) == 0;
    return good || ats_fail(err, "cannot write to standard output");
}

int cli_plan(int argc, char **argv)
{
    struct plan_options o = {.who = argv[0],
                             .rig = "desktop-4090",
                             .kv_type = "f16",
                             .accel = "CUDA0",
                             .n_ctx = 4096,
                             .ubatch = 512,
                             .decode = ats_workload_default().decode_tokens,
                             .devices = 1};
    cli_parse(&argp, argc, argv, &o);
    check(&o);
    struct ats_error err = {""};
    struct plan *p = cli_alloc(sizeof(*p));
    const bool good = plan_make(p, &o, &err) && show(p, &err);
    plan_free(p);
    free(p);
    return good ? CLI_OK : cli_error(argv[0], &err);
}
