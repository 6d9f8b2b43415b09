#include "drive_options.h"

#include "base/error.h"
#include "base/parse.h"

#include <argp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_TOKENS = 1 << 20 };

enum {
    KEY_LIBRARIES = 0x100,
    KEY_DEVICE,
    KEY_CPU_MOE,
    KEY_OVERRIDE,
    KEY_LOAD,
    KEY_NO_HOST,
    KEY_UBATCH,
    KEY_PREFILL,
    KEY_DEPTH,
    KEY_DECODE,
    KEY_REPEAT,
    KEY_SEED,
    KEY_CHECK,
    KEY_CAP,
    KEY_CPU_SPEED,
    KEY_PATIENCE,
    KEY_PHASES,
    KEY_WINDOW,
    KEY_CPU_LOAD,
    KEY_PERIOD,
};

static const struct argp_option option_table[] = {
    {"model", 'm', "FILE", 0, "GGUF", 0},
    {"libraries", KEY_LIBRARIES, "DIR", 0, "Folder with ggml's backends", 0},
    {"device", KEY_DEVICE, "NAME", 0, "EMU0, ATS0, CUDA0, ... or none for the CPU", 0},
    {"gpu-layers", 'g', "N", 0, "Layers on the device (default: all)", 0},
    {"n-cpu-moe", KEY_CPU_MOE, "N", 0, "Expert weights of the first N layers stay on the CPU", 0},
    {"override", KEY_OVERRIDE, "PATTERN=BUFFER", 0, "As llama.cpp's -ot; may be repeated", 0},
    {"load", KEY_LOAD, "MODE", 0, "mmap (default), none", 0},
    {"no-host", KEY_NO_HOST, NULL, 0, "As llama.cpp's --no-host: CPU weights may be repacked", 0},
    {"ctx", 'c', "N", 0, "Context size (default 4352)", 0},
    {"ubatch", KEY_UBATCH, "N", 0, "Tokens per pass in prefill (default 512)", 0},
    {"threads", 't', "N", 0, "CPU threads (default 1)", 0},
    {"prefill", KEY_PREFILL, "N,N,...", 0, "Prompt lengths to measure", 0},
    {"depth", KEY_DEPTH, "N", 0, "Tokens in the context when decoding starts (default 2048)", 0},
    {"decode", KEY_DECODE, "N", 0, "Tokens to decode (default 0)", 0},
    {"repeat", KEY_REPEAT, "N", 0, "How often to measure each (default 1)", 0},
    {"seed", KEY_SEED, "N", 0, "Of the token stream (default 1)", 0},
    {"cap", KEY_CAP, "DEVICE=BYTES", 0,
     "Take so much of a real device's memory that only this much is free", 0},
    {"cpu-speed", KEY_CPU_SPEED, "X", 0,
     "What a core computes if it is not disturbed (10^9 operations/s, as \"cpu_speed\" in the "
     "result);"
     " default: the best of two seconds at the start",
     0},
    {"patience", KEY_PATIENCE, "SECONDS", 0,
     "Wait so long in all for a core that is not disturbed (default 0)", 0},
    {"phases", KEY_PHASES, "PHASE;PHASE;...", 0,
     "Decode while the machine has load: e.g. \"20s;30s:cpu=60;9s;30s:compute=2.5,link=2.5\"", 0},
    {"window", KEY_WINDOW, "N", 0,
     "Tokens of phases after which the context goes back to its depth (default 256; 0: never)", 0},
    {"cpu-load", KEY_CPU_LOAD, "PROGRAM", 0, "What takes CPU time in phases: build/.../cpu-load",
     0},
    {"period", KEY_PERIOD, "MS", 0, "Of which it takes a part (default 2)", 0},
    {"check", KEY_CHECK, NULL, 0, "Only load: does the model fit so?", 0},
    {"verbose", 'v', NULL, 0, "Show llama.cpp's log", 0},
    {0},
};

static uint64_t number(struct argp_state *state, const char *text, uint64_t most)
{
    struct ats_error err;
    uint64_t value = 0;
    if (!ats_parse_u64(text, most, &value, &err)) {
        argp_error(state, "%s: %s", text, err.text);
    }
    return value;
}

static void parse_prompts(struct argp_state *state, struct drive_options *o, char *list)
{
    char *rest = NULL;
    for (char *word = strtok_r(list, ",", &rest); word != NULL; word = strtok_r(NULL, ",", &rest)) {
        if (o->n_prompts == MAX_PROMPTS) {
            argp_error(state, "more than %d prompt lengths", MAX_PROMPTS);
        }
        o->prompts[o->n_prompts++] = number(state, word, MAX_TOKENS);
    }
}

static void parse_cap(struct argp_state *state, struct drive_options *o, char *text)
{
    char *bytes = strchr(text, '=');
    if (bytes == NULL) {
        argp_error(state, "--cap %s: expected DEVICE=BYTES", text);
        return;
    }
    *bytes++ = '\0';
    o->cap_device = text;
    o->cap_bytes = number(state, bytes, UINT64_MAX);
}

static double positive(struct argp_state *state, const char *option, const char *text)
{
    char *end = NULL;
    const double value = strtod(text, &end);
    if (end == text || *end != '\0' || !(value > 0 && value < 1e6)) {
        argp_error(state, "%s %s: not a positive number", option, text);
    }
    return value;
}

static void parse_phases(struct argp_state *state, struct drive_options *o, const char *text)
{
    struct ats_error err;
    if (!load_phases_parse(text, o->phases, &o->n_phases, &err)) {
        argp_error(state, "--phases: %s", err.text);
    }
}

/* Options with a number; false if `key` is none of them. */
static bool parse_number(int key, const char *arg, struct argp_state *state)
{
    struct drive_options *o = state->input;
    switch (key) {
    case 'g':
        o->n_layers = (int)number(state, arg, 10000);
        return true;
    case KEY_CPU_MOE:
        o->n_cpu_moe = (int)number(state, arg, MAX_OVERRIDES / 2);
        return true;
    case 'c':
        o->n_ctx = number(state, arg, MAX_TOKENS);
        return true;
    case KEY_UBATCH:
        o->n_ubatch = number(state, arg, 65536);
        return true;
    case 't':
        o->n_threads = number(state, arg, 1024);
        return true;
    case KEY_DEPTH:
        o->depth = number(state, arg, MAX_TOKENS);
        return true;
    case KEY_DECODE:
        o->n_decode = number(state, arg, MAX_TOKENS);
        return true;
    case KEY_REPEAT:
        o->n_repeat = number(state, arg, 1000);
        return true;
    case KEY_SEED:
        o->seed = number(state, arg, UINT64_MAX);
        return true;
    case KEY_WINDOW:
        o->window = number(state, arg, MAX_TOKENS);
        return true;
    case KEY_PERIOD:
        o->period_ms = number(state, arg, 1000);
        return true;
    default:
        return false;
    }
}

static void parse_override(struct argp_state *state, struct drive_options *o, const char *arg)
{
    if (strrchr(arg, '=') == NULL || o->n_overrides == MAX_OVERRIDES / 2) {
        argp_error(state, "--override %s: expected PATTERN=BUFFER, at most %d times", arg,
                   MAX_OVERRIDES / 2);
        return;
    }
    o->overrides[o->n_overrides++] = arg;
}

static error_t parse_option(int key, char *arg, struct argp_state *state)
{
    struct drive_options *o = state->input;
    switch (key) {
    case 'm':
        o->model = arg;
        return 0;
    case KEY_LIBRARIES:
        o->libraries = arg;
        return 0;
    case KEY_DEVICE:
        o->device = arg;
        return 0;
    case KEY_OVERRIDE:
        parse_override(state, o, arg);
        return 0;
    case KEY_LOAD:
        o->load = arg;
        return 0;
    case KEY_NO_HOST:
        o->no_host = true;
        return 0;
    case KEY_PREFILL:
        parse_prompts(state, o, arg);
        return 0;
    case KEY_CAP:
        parse_cap(state, o, arg);
        return 0;
    case KEY_CPU_SPEED:
        o->cpu_speed = positive(state, "--cpu-speed", arg);
        return 0;
    case KEY_PATIENCE:
        o->patience_s = positive(state, "--patience", arg);
        return 0;
    case KEY_PHASES:
        parse_phases(state, o, arg);
        return 0;
    case KEY_CPU_LOAD:
        o->cpu_load = arg;
        return 0;
    case KEY_CHECK:
        o->check = true;
        return 0;
    case 'v':
        o->verbose = true;
        return 0;
    case ARGP_KEY_END:
        if (o->model == NULL || o->libraries == NULL || o->device == NULL) {
            argp_error(state, "--model, --libraries and --device are needed");
        }
        return 0;
    default:
        return parse_number(key, arg, state) ? 0 : ARGP_ERR_UNKNOWN;
    }
}

static const struct argp argp = {
    option_table,
    parse_option,
    NULL,
    "Measures prefill and decode of one model on one device over a fixed token stream.",
    NULL,
    NULL,
    NULL};

static void check_phases(const struct drive_options *o)
{
    for (size_t i = 0; i < o->n_phases; i++) {
        if (load_phase_has_cpu(&o->phases[i]) && (o->cpu_load == NULL || o->period_ms == 0)) {
            fprintf(stderr, "drive: phases with cpu= need --cpu-load PROGRAM, and a --period\n");
            exit(2);
        }
    }
}

static void check_lengths(const struct drive_options *o)
{
    uint64_t most = o->n_decode > 0 ? o->depth + o->n_decode : 0;
    for (size_t i = 0; i < o->n_prompts; i++) {
        most = o->prompts[i] > most ? o->prompts[i] : most;
    }
    if (o->n_phases > 0) {
        most = o->depth + (o->window > 0 ? o->window : 1);
    }
    if (o->check) {
        return;
    }
    if (most == 0 || o->n_ubatch == 0 || o->n_threads == 0) {
        fprintf(stderr,
                "drive: nothing to measure: give --prefill, --decode or --phases, no zeros\n");
        exit(2);
    }
    if (most > o->n_ctx || o->n_ubatch + 1 > o->n_ctx) {
        fprintf(stderr, "drive: %llu tokens do not fit into --ctx %llu\n", (unsigned long long)most,
                (unsigned long long)o->n_ctx);
        exit(2);
    }
}

struct drive_options drive_options_parse(int argc, char **argv)
{
    struct drive_options o = {.n_layers = -1,
                              .load = "mmap",
                              .n_ctx = 4352,
                              .n_ubatch = 512,
                              .n_threads = 1,
                              .depth = 2048,
                              .n_repeat = 1,
                              .seed = 1,
                              .window = 256,
                              .period_ms = 2};
    argp_parse(&argp, argc, argv, 0, NULL, &o);
    check_lengths(&o);
    check_phases(&o);
    return o;
}
