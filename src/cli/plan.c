/* `ats plan`: where each tensor of a model should live on a machine, why, and how fast that is. */
#include "cli/plan.h"
#include "cli/cli.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    KEY_KV_TYPE = SIMULATE_KEY_OWN,
    KEY_PROMPT,
    KEY_DEVICES,
    KEY_LLAMA_ARGS,
    KEY_ACCEL,
    KEY_SVG,
    KEY_OUT,
};

enum { MAX_TOKENS = 1 << 24 };

static const struct argp_option option_table[] = {
    {"rig", SIMULATE_KEY_RIG, "NAME", 0,
     "A machine by name or file (default: this one as kept by `ats profile`, else desktop-4090)",
     1},
    {"profile", SIMULATE_KEY_PROFILE, "FILE", 0,
     "The machine that `ats profile --out FILE` measured", 1},
    {"scale", SIMULATE_KEY_SCALE, "host|X", 0,
     "The rig as it is emulated on this host, or by a factor (default: the real machine)", 1},
    {"vram", SIMULATE_KEY_VRAM, "SIZE", 0,
     "Budget per accelerator; 0 for none (default: its memory less a sixteenth)", 1},
    {"devices", KEY_DEVICES, "N", 0, "Accelerators of that kind, layers spread evenly (1)", 1},
    {"ctx", SIMULATE_KEY_CTX, "N", 0, "Context in tokens (default 4096)", 2},
    {"kv-type", KEY_KV_TYPE, "TYPE", 0, "Of the KV cache: f16, q8_0, q4_0, ... (f16)", 2},
    {"ubatch", SIMULATE_KEY_UBATCH, "N", 0, "Tokens of a prefill pass (default 512)", 2},
    {"prompt", KEY_PROMPT, "N", 0, "Prompt of the session that is planned for (2048, or what fits)",
     2},
    {"decode", SIMULATE_KEY_DECODE, "N", 0, "Tokens that it generates (default 128)", 2},
    {"no-mmap", SIMULATE_KEY_NO_MMAP, NULL, 0, "llama.cpp's weights in pinned memory, not mapped",
     2},
    {"compute", SIMULATE_KEY_COMPUTE, "SIZE", 0, "VRAM for compute buffers (default: estimated)",
     2},
    {"layers", SIMULATE_KEY_LAYERS, "N", 0, "Fewer layers, for a model given by name", 2},
    {"out", KEY_OUT, "FILE", 0, "Write the plan file, for ATS_PLACEMENT=FILE", 3},
    {"llama-args", KEY_LLAMA_ARGS, NULL, 0,
     "Print -ngl and -ot arguments that give llama.cpp the same placement", 3},
    {"accel", KEY_ACCEL, "NAME", 0,
     "Its accelerator's name in these (default: the profile's, or CUDA0)", 3},
    {"svg", KEY_SVG, "FILE", 0, "Draw it: layers by tensors, coloured by side", 3},
    {"json", SIMULATE_KEY_JSON, NULL, 0, "Print JSON (format \"ats-plan-report-1\")", 3},
    CLI_HELP_OPTION,
    {0},
};

static error_t parse_option(int key, char *arg, struct argp_state *state)
{
    struct plan_options *o = state->input;
    const char *who = o->common.who;
    switch (key) {
    case KEY_DEVICES:
        o->devices = cli_number(who, "devices", arg, 1, PLAN_MAX_DEVICES);
        return 0;
    case KEY_KV_TYPE:
        o->kv_type = arg;
        return 0;
    case KEY_PROMPT:
        o->prompt = cli_number(who, "prompt", arg, 0, MAX_TOKENS);
        o->has_prompt = true;
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
    default:
        return simulate_parse_option(key, arg, state, &o->common);
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
    "  ats plan model.gguf                        (this machine, after `ats profile`)\n"
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
    const char *who = o->common.who;
    const uint32_t decode = o->common.decode;
    simulate_check_options(&o->common);
    if (o->common.json && o->llama_args) {
        cli_usage_error(who, "either --json or --llama-args");
    }
    if (o->llama_args && o->devices > 1) {
        cli_usage_error(who, "--llama-args is for one device");
    }
    if (o->prompt == 0 && o->has_prompt && decode == 0) {
        cli_usage_error(who, "neither prompt nor decode: nothing to plan for");
    }
    if ((uint64_t)(o->has_prompt ? o->prompt : 1) + decode > o->common.n_ctx) {
        cli_usage_error(who,
                        "a prompt and an answer of that length do not fit a context of %u; raise "
                        "--ctx",
                        o->common.n_ctx);
    }
}

static void show(const struct plan *p)
{
    const struct plan_options *o = p->options;
    if (o->common.json) {
        plan_print_json(p);
    } else if (o->llama_args) {
        plan_print_args(p, stdout, stderr);
    } else {
        plan_print(p);
    }
}

int cli_plan(int argc, char **argv)
{
    struct plan_options o = {.common = {.who = argv[0],
                                        .max_tokens = MAX_TOKENS,
                                        .n_ctx = 4096,
                                        .ubatch = 512,
                                        .decode = ats_workload_default().decode_tokens},
                             .kv_type = "f16",
                             .devices = 1};
    cli_parse(&argp, argc, argv, &o);
    check(&o);
    struct ats_error err = {""};
    struct plan *p = cli_alloc(sizeof(*p));
    const bool good = plan_make(p, &o, &err) && (o.out == NULL || plan_write(p, o.out, &err)) &&
                      (o.svg == NULL || plan_write_svg(p, o.svg, &err));
    if (good) {
        show(p);
    }
    plan_free(p);
    free(p);
    return good ? CLI_OK : cli_error(argv[0], &err);
}
