/* Runs one model on one device over a fixed token stream and prints what it measured as JSON:
 * the same for llama.cpp alone (--device EMU0) and for ATS (--device ATS0). Called by
 * bench/compare/compare.py; it can be called by hand as well.
 *
 * llama-bench would feed random tokens; an expert model's speed depends on which tokens come,
 * so every system gets the same ones here. Decoding is forced: the next token is the
 * stream's, whatever the model says.
 *
 * With --phases it decodes while the machine has more or less load (bench/load/phases.h). */
#include "counters.h"
#include "cpu_speed.h"
#include "load/measure.h"
#include "token_stream.h"

#include "base/error.h"
#include "base/parse.h"
#include "ggml-backend.h"
#include "llama.h"

#include <argp.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { MAX_PROMPTS = 16, MAX_OVERRIDES = 512, MAX_TOKENS = 1 << 20 };

/* Decoded before phases are: an expert cache is warm after about so many (imp PR 1359). */
enum { WARM_TOKENS = 64 };

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
    KEY_PHASES,
    KEY_WINDOW,
    KEY_CPU_LOAD,
    KEY_PERIOD,
};

struct options {
    const char *model;
    const char *libraries;
    const char *device;
    const char *load;
    int n_layers; /* on the device; -1: all */
    int n_cpu_moe;
    const char *overrides[MAX_OVERRIDES];
    size_t n_overrides;
    bool no_host;
    bool verbose;
    bool check;
    double cpu_speed;
    const char *cap_device;
    uint64_t cap_bytes;
    uint64_t n_ctx;
    uint64_t n_ubatch;
    uint64_t n_threads;
    uint64_t prompts[MAX_PROMPTS];
    size_t n_prompts;
    uint64_t depth;
    uint64_t n_decode;
    uint64_t n_repeat;
    uint64_t seed;
    struct load_phase phases[LOAD_PHASES];
    size_t n_phases;
    uint64_t window;
    const char *cpu_load;
    uint64_t period_ms;
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

static void parse_prompts(struct argp_state *state, struct options *o, char *list)
{
    char *rest = NULL;
    for (char *word = strtok_r(list, ",", &rest); word != NULL; word = strtok_r(NULL, ",", &rest)) {
        if (o->n_prompts == MAX_PROMPTS) {
            argp_error(state, "more than %d prompt lengths", MAX_PROMPTS);
        }
        o->prompts[o->n_prompts++] = number(state, word, MAX_TOKENS);
    }
}

static void parse_cap(struct argp_state *state, struct options *o, char *text)
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

static void parse_cpu_speed(struct argp_state *state, struct options *o, const char *text)
{
    char *end = NULL;
    o->cpu_speed = strtod(text, &end);
    if (end == text || *end != '\0' || !(o->cpu_speed > 0 && o->cpu_speed < 1e6)) {
        argp_error(state, "--cpu-speed %s: not a positive number", text);
    }
}

static void parse_phases(struct argp_state *state, struct options *o, const char *text)
{
    struct ats_error err;
    if (!load_phases_parse(text, o->phases, &o->n_phases, &err)) {
        argp_error(state, "--phases: %s", err.text);
    }
}

/* Options with a number; false if `key` is none of them. */
static bool parse_number(int key, const char *arg, struct argp_state *state)
{
    struct options *o = state->input;
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

static void parse_override(struct argp_state *state, struct options *o, const char *arg)
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
    struct options *o = state->input;
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
        parse_cpu_speed(state, o, arg);
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

/* ---- loading ---- */

static void log_errors(enum ggml_log_level level, const char *text, void *verbose)
{
    static enum ggml_log_level last;
    if (level != GGML_LOG_LEVEL_CONT) {
        last = level;
    }
    if (*(const bool *)verbose || last >= GGML_LOG_LEVEL_WARN) {
        fputs(text, stderr);
    }
}

static ggml_backend_buffer_type_t find_buffer_type(const char *name)
{
    for (size_t i = 0; i < ggml_backend_dev_count(); i++) {
        ggml_backend_buffer_type_t type = ggml_backend_dev_buffer_type(ggml_backend_dev_get(i));
        if (type != NULL && strcmp(ggml_backend_buft_name(type), name) == 0) {
            return type;
        }
    }
    return NULL;
}

/* The tensors that the command line puts elsewhere; ends the process on a wrong one. The
 * patterns are never freed: llama.cpp keeps pointers to them. */
static void fill_overrides(const struct options *o, struct llama_model_tensor_buft_override *list)
{
    size_t n = 0;
    ggml_backend_buffer_type_t cpu = find_buffer_type("CPU");
    for (int layer = 0; layer < o->n_cpu_moe; layer++) {
        char pattern[80];
        snprintf(pattern, sizeof(pattern), "blk\\.%d\\.ffn_(up|down|gate|gate_up)_(ch|)exps",
                 layer);
        list[n++] = (struct llama_model_tensor_buft_override){strdup(pattern), cpu};
    }
    for (size_t i = 0; i < o->n_overrides; i++) {
        char *pattern = strdup(o->overrides[i]);
        char *buffer = pattern == NULL ? NULL : strrchr(pattern, '=');
        ggml_backend_buffer_type_t type = NULL;
        if (buffer != NULL) {
            *buffer++ = '\0';
            type = find_buffer_type(buffer);
        }
        if (type == NULL) {
            fprintf(stderr, "drive: --override %s: no such buffer type\n", o->overrides[i]);
            exit(1);
        }
        list[n++] = (struct llama_model_tensor_buft_override){pattern, type};
    }
    list[n] = (struct llama_model_tensor_buft_override){NULL, NULL};
}

static ggml_backend_dev_t find_device(const struct options *o)
{
    if (strcmp(o->device, "none") == 0) {
        return NULL;
    }
    ggml_backend_dev_t device = ggml_backend_dev_by_name(o->device);
    if (device == NULL) {
        fprintf(stderr, "drive: there is no device %s; there are", o->device);
        for (size_t i = 0; i < ggml_backend_dev_count(); i++) {
            fprintf(stderr, " %s", ggml_backend_dev_name(ggml_backend_dev_get(i)));
        }
        fprintf(stderr, "\n");
        exit(1);
    }
    return device;
}

/* Makes a large card small, for every system alike: holds memory until only so much is free.
 * In pieces, as drivers limit the size of one. Held until the process ends. Returns what is free
 * then, which the device's own needs may have made less than the cap. */
static size_t cap_memory(const struct options *o)
{
    const size_t piece = (size_t)1 << 30;
    ggml_backend_dev_t device = ggml_backend_dev_by_name(o->cap_device);
    if (device == NULL) {
        fprintf(stderr, "drive: --cap: there is no device %s\n", o->cap_device);
        exit(1);
    }
    size_t free_bytes = 0;
    size_t total = 0;
    ggml_backend_dev_memory(device, &free_bytes, &total);
    if (free_bytes < o->cap_bytes) {
        fprintf(stderr, "drive: --cap: %s has only %zu bytes free, less than the cap of %llu\n",
                o->cap_device, free_bytes, (unsigned long long)o->cap_bytes);
        exit(1);
    }
    while (free_bytes > o->cap_bytes) {
        const size_t left = free_bytes - o->cap_bytes;
        const size_t bytes = left < piece ? left : piece;
        ggml_backend_buffer_t held =
            ggml_backend_buft_alloc_buffer(ggml_backend_dev_buffer_type(device), bytes);
        if (held == NULL) {
            fprintf(stderr, "drive: --cap: cannot hold %zu bytes of %s\n", bytes, o->cap_device);
            exit(1);
        }
        ggml_backend_buffer_clear(held, 0); /* some drivers commit memory on first use */
        free_bytes -= bytes;
    }
    ggml_backend_dev_memory(device, &free_bytes, &total);
    return free_bytes < o->cap_bytes ? free_bytes : (size_t)o->cap_bytes;
}

/* ATS reads its budget when it is loaded, and leaves a part of the whole device alone. On a
 * capped device it is loaded after the cap, with a budget that leaves the same part of the cap
 * alone, unless ATS_VRAM is set. */
static void load_backends(const struct options *o)
{
    enum { MARGIN_DIVISOR = 16 }; /* docs/configuration.md, ATS_VRAM */
    const char *library = getenv("GGML_BACKEND_PATH");
    char *last = o->cap_device == NULL || library == NULL ? NULL : strdup(library);
    if (last != NULL) {
        unsetenv("GGML_BACKEND_PATH");
    }
    ggml_backend_load_all_from_path(o->libraries);
    if (o->cap_device == NULL) {
        return;
    }
    const size_t free_bytes = cap_memory(o);
    const size_t margin = (size_t)(o->cap_bytes / MARGIN_DIVISOR);
    char budget[32];
    snprintf(budget, sizeof(budget), "%zu", free_bytes > margin ? free_bytes - margin : 0);
    setenv("ATS_VRAM", budget, 0);
    if (last != NULL && ggml_backend_load(last) == NULL) {
        fprintf(stderr, "drive: cannot load %s\n", last);
        exit(1);
    }
    free(last);
}

static struct llama_model *load(const struct options *o, ggml_backend_dev_t *devices)
{
    static struct llama_model_tensor_buft_override overrides[MAX_OVERRIDES + 1];
    fill_overrides(o, overrides);
    struct llama_model_params params = llama_model_default_params();
    params.devices = devices;
    params.n_gpu_layers = devices[0] == NULL ? 0 : o->n_layers;
    params.load_mode = llama_load_mode_from_str(o->load);
    params.no_host = o->no_host;
    params.tensor_buft_overrides = overrides;
    struct llama_model *model = llama_model_load_from_file(o->model, params);
    if (model == NULL) {
        fprintf(stderr, "drive: cannot load %s\n", o->model);
        exit(1);
    }
    return model;
}

static struct llama_context *start(const struct options *o, struct llama_model *model)
{
    struct llama_context_params params = llama_context_default_params();
    params.n_ctx = (uint32_t)o->n_ctx;
    params.n_batch = (uint32_t)o->n_ubatch;
    params.n_ubatch = (uint32_t)o->n_ubatch;
    params.n_threads = (int32_t)o->n_threads;
    params.n_threads_batch = (int32_t)o->n_threads;
    params.no_perf = true;
    params.swa_full = false; /* as llama.cpp's own programs have it */
    struct llama_context *context = llama_init_from_model(model, params);
    if (context == NULL) {
        fprintf(stderr, "drive: cannot create a context of %llu tokens\n",
                (unsigned long long)o->n_ctx);
        exit(1);
    }
    return context;
}

/* ---- measuring ---- */

struct run {
    const struct options *options;
    struct llama_context *context;
    struct bench_counters *counters;
    int32_t *tokens; /* the stream */
    json_t *tests;   /* results so far */
    json_t *phases;  /* NULL: not asked for */
};

static double now_s(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* Feeds tokens [from, to) of the stream in passes of at most a ubatch; ends the process on failure.
 */
static void feed(struct run *run, uint64_t from, uint64_t to)
{
    while (from < to) {
        const uint64_t left = to - from;
        const uint64_t n = left < run->options->n_ubatch ? left : run->options->n_ubatch;
        struct llama_batch batch = llama_batch_get_one(run->tokens + from, (int32_t)n);
        const int32_t status = llama_decode(run->context, batch);
        if (status != 0) {
            fprintf(stderr, "drive: llama_decode of %llu tokens at %llu returned %d\n",
                    (unsigned long long)n, (unsigned long long)from, status);
            exit(1);
        }
        from += n;
    }
}

static void forget(struct run *run)
{
    llama_synchronize(run->context);
    llama_memory_clear(llama_get_memory(run->context), false);
}

/* What probes of the core's speed found, as shares of the undisturbed one. */
struct core_speed {
    double sum;
    uint64_t n_probes;
};

/* Whether the core is as fast as it can be; the share of that which it does is added to *core. */
static bool undisturbed(const struct run *run, struct core_speed *core)
{
    /* clocks move by up to a tenth (other cores busy or not, heat); a shared core loses 30 % */
    static const double least = 0.86;
    const double share = bench_cpu_speed() / run->options->cpu_speed;
    core->sum += share;
    core->n_probes++;
    return share >= least;
}

struct result {
    const char *phase;
    uint64_t n_tokens;
    uint64_t depth;
    uint64_t repetition;
    double tokens_per_s;
    uint64_t all_tokens; /* that the counters are about */
    double all_seconds;
    double disturbed; /* share of the tokens during which the core was not the run's own */
    struct core_speed core;
    json_t *counters;
};

static void add_result(struct run *run, const struct result *r)
{
    json_array_append_new(
        run->tests,
        json_pack("{s:s, s:I, s:I, s:I, s:f, s:I, s:f, s:f, s:f, s:o}", "phase", r->phase, "tokens",
                  (json_int_t)r->n_tokens, "depth", (json_int_t)r->depth, "repetition",
                  (json_int_t)r->repetition, "tokens_per_s", r->tokens_per_s, "all_tokens",
                  (json_int_t)r->all_tokens, "all_seconds", r->all_seconds, "disturbed",
                  r->disturbed, "core_speed", r->core.sum / (double)r->core.n_probes, "counters",
                  r->counters));
}

/* Once more if the core was disturbed before or after; of the attempts, the first undisturbed one
 * or else the fastest counts. */
static void measure_prefill(struct run *run, uint64_t n, uint64_t repetition)
{
    enum { ATTEMPTS = 3 };
    struct result best = {.phase = "prefill", .n_tokens = n, .repetition = repetition};
    for (int attempt = 0; attempt < ATTEMPTS && (attempt == 0 || best.disturbed > 0); attempt++) {
        forget(run);
        struct core_speed core = {0};
        const bool good_before = undisturbed(run, &core);
        bench_counters_begin(run->counters);
        const double begin = now_s();
        feed(run, 0, n);
        llama_synchronize(run->context);
        const double seconds = now_s() - begin;
        json_t *counters = bench_counters_end(run->counters);
        const bool good = undisturbed(run, &core) && good_before;
        if (attempt > 0 && !good && (double)n / seconds <= best.tokens_per_s) {
            json_decref(counters);
            continue;
        }
        json_decref(best.counters);
        best.tokens_per_s = (double)n / seconds;
        best.all_tokens = n;
        best.all_seconds = seconds;
        best.disturbed = good ? 0 : 1;
        best.core = core;
        best.counters = counters;
    }
    add_result(run, &best);
}

/* The context holds `depth` tokens. Tokens before and after which the core was undisturbed count,
 * until there are enough of them; at most twice as many are decoded, and if too few count, all
 * do. */
static void measure_decode(struct run *run, uint64_t depth, uint64_t repetition)
{
    const uint64_t n = run->options->n_decode;
    const uint64_t room = run->options->n_ctx - depth;
    const uint64_t most = 2 * n < room ? 2 * n : room;
    struct result result = {
        .phase = "decode", .n_tokens = n, .depth = depth, .repetition = repetition};
    uint64_t counted = 0;
    double counted_s = 0;
    bool good_before = undisturbed(run, &result.core);
    bench_counters_begin(run->counters);
    while (result.all_tokens < most && counted < n) {
        const double begin = now_s();
        feed(run, depth + result.all_tokens, depth + result.all_tokens + 1);
        llama_synchronize(run->context);
        const double seconds = now_s() - begin;
        result.all_tokens++;
        result.all_seconds += seconds;
        const bool good = undisturbed(run, &result.core);
        if (good && good_before) {
            counted++;
            counted_s += seconds;
        }
        good_before = good;
    }
    result.counters = bench_counters_end(run->counters);
    result.disturbed = 1 - (double)counted / (double)result.all_tokens;
    result.tokens_per_s = 2 * counted >= n ? (double)counted / counted_s
                                           : (double)result.all_tokens / result.all_seconds;
    add_result(run, &result);
}

/* ---- load ---- */

/* A run whose context holds `at` tokens. */
struct walk {
    struct run *run;
    uint64_t at;
};

/* Stays within the window, so that a token takes the same however long the run is. A model with
 * recurrent state cannot go back and gets its prompt anew. */
static void make_room(void *data)
{
    struct walk *walk = data;
    const struct options *o = walk->run->options;
    if (o->window > 0 && walk->at == o->depth + o->window) {
        llama_memory_t memory = llama_get_memory(walk->run->context);
        if (!llama_memory_seq_rm(memory, 0, (llama_pos)o->depth, -1)) {
            forget(walk->run);
            feed(walk->run, 0, o->depth);
            llama_synchronize(walk->run->context);
        }
        walk->at = o->depth;
    }
    if (walk->at == o->n_ctx) {
        fprintf(stderr, "drive: --ctx %llu is full: give a --window or shorter phases\n",
                (unsigned long long)o->n_ctx);
        exit(1);
    }
}

static void decode_next(void *data)
{
    struct walk *walk = data;
    feed(walk->run, walk->at, walk->at + 1);
    llama_synchronize(walk->run->context);
    walk->at++;
}

static bool is_undisturbed(void *data, double *share)
{
    struct core_speed core = {0};
    const bool good = undisturbed(((const struct walk *)data)->run, &core);
    *share = core.sum;
    return good;
}

static json_t *measure_phases(struct run *run)
{
    const struct options *o = run->options;
    struct walk walk = {.run = run, .at = o->depth};
    forget(run);
    feed(run, 0, o->depth);
    for (int i = 0; i < WARM_TOKENS; i++) {
        make_room(&walk);
        decode_next(&walk);
    }
    const struct load_run load = {.phases = o->phases,
                                  .n_phases = o->n_phases,
                                  .cpu_load = o->cpu_load,
                                  .period_ms = (double)o->period_ms,
                                  .counters = run->counters,
                                  .data = &walk,
                                  .make_room = make_room,
                                  .decode = decode_next,
                                  .undisturbed = is_undisturbed};
    struct ats_error err;
    json_t *phases = load_measure(&load, &err);
    if (phases == NULL) {
        fprintf(stderr, "drive: %s\n", err.text);
        exit(1);
    }
    return phases;
}

/* Decoding starts from a prompt of its depth; where that is a measured length, both are
 * measured in one go. */
static void measure(struct run *run)
{
    const struct options *o = run->options;
    feed(run, 0, o->n_ubatch < o->n_ctx ? o->n_ubatch : o->n_ctx - 1); /* warm-up */
    feed(run, o->n_ubatch, o->n_ubatch + 1);
    for (uint64_t r = 0; r < o->n_repeat; r++) {
        for (size_t i = 0; i < o->n_prompts; i++) {
            if (o->prompts[i] != o->depth || o->n_decode == 0) {
                measure_prefill(run, o->prompts[i], r);
            }
        }
        if (o->n_decode > 0) {
            if (o->depth > 0) {
                measure_prefill(run, o->depth, r);
            } else {
                forget(run);
            }
            measure_decode(run, o->depth, r);
        }
    }
}

static int32_t *make_stream(const struct options *o, int32_t n_vocab)
{
    const struct token_stream stream = {.seed = o->seed,
                                        .n_vocab = (uint32_t)n_vocab,
                                        .n_topics = TOKEN_STREAM_TOPICS,
                                        .mean_stay_tokens = TOKEN_STREAM_STAY_TOKENS};
    int32_t *tokens = malloc(o->n_ctx * sizeof(*tokens));
    if (tokens != NULL && !token_stream_fill(&stream, tokens, o->n_ctx)) {
        free(tokens);
        return NULL;
    }
    return tokens;
}

static void check_phases(const struct options *o)
{
    for (size_t i = 0; i < o->n_phases; i++) {
        if (load_phase_has_cpu(&o->phases[i]) && (o->cpu_load == NULL || o->period_ms == 0)) {
            fprintf(stderr, "drive: phases with cpu= need --cpu-load PROGRAM, and a --period\n");
            exit(2);
        }
    }
}

static void check_lengths(const struct options *o)
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

static void print_result(const struct run *run, ggml_backend_dev_t device, double loaded_s)
{
    json_t *result =
        json_pack("{s:s, s:s, s:s, s:f, s:f, s:O}", "model", run->options->model, "device",
                  run->options->device, "description",
                  device == NULL ? "CPU" : ggml_backend_dev_description(device), "load_s", loaded_s,
                  "cpu_speed", run->options->cpu_speed, "tests", run->tests);
    if (run->phases != NULL) {
        json_object_set(result, "phases", run->phases);
    }
    json_dumpf(result, stdout, JSON_INDENT(1) | JSON_REAL_PRECISION(9));
    printf("\n");
    json_decref(result);
}

int main(int argc, char **argv)
{
    struct options o = {.n_layers = -1,
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
    llama_log_set(log_errors, &o.verbose);
    load_backends(&o);
    llama_backend_init();
    ggml_backend_dev_t devices[2] = {find_device(&o), NULL};
    if (!o.check && o.cpu_speed <= 0) {
        o.cpu_speed = bench_cpu_speed_best(2);
    }
    const double begin = now_s();
    struct llama_model *model = load(&o, devices);
    struct run run = {.options = &o, .context = start(&o, model), .tests = json_array()};
    const double loaded = now_s() - begin;
    run.counters = bench_counters_new();
    run.tokens = make_stream(&o, llama_vocab_n_tokens(llama_model_get_vocab(model)));
    if (run.counters == NULL || run.tokens == NULL) {
        fprintf(stderr, "drive: out of memory, or a vocabulary too small for the token stream\n");
        return 1;
    }
    if (!o.check) {
        measure(&run);
    }
    if (!o.check && o.n_phases > 0) {
        run.phases = measure_phases(&run);
    }
    print_result(&run, devices[0], loaded);
    json_decref(run.tests);
    json_decref(run.phases);
    free(run.tokens);
    bench_counters_free(run.counters);
    llama_free(run.context);
    llama_model_free(model);
    llama_backend_free();
    return 0;
}
