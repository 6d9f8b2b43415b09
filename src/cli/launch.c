/* `ats run`, `ats serve`, `ats bench`: llama.cpp's own programs with the backend
 * switched on.
 *
 * The program replaces this process, so signals, the terminal and the exit code
 * are the program's. Options that are not ours go to it unchanged; ours have names
 * that no llama.cpp program uses, and may stand anywhere before a "--". */
#include "backend/config.h"
#include "cli/cli.h"
#include "cli/paths.h"
#include "cli/probe.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum {
    KEY_EMULATE = CLI_KEY_FIRST,
    KEY_VRAM,
    KEY_ACCEL,
    KEY_PLACEMENT,
    KEY_PROMOTE,
    KEY_TRANSFER,
    KEY_PLAN_OUT,
    KEY_STATS,
    KEY_LLAMA_BIN,
    KEY_PROGRAM,
    KEY_DRY_RUN,
};

/* Options that set a variable of the library. */
static const struct {
    int key;
    const char *option;
    const char *variable;
} settings[] = {
    {KEY_EMULATE, "--emulate", "ATS_EMULATE"},
    {KEY_ACCEL, "--accel", "ATS_ACCEL"},
    {KEY_VRAM, "--vram", "ATS_VRAM"},
    {KEY_PLACEMENT, "--placement", "ATS_PLACEMENT"},
    {KEY_PROMOTE, "--promote", "ATS_PROMOTE"},
    {KEY_TRANSFER, "--transfer", "ATS_TRANSFER"},
    {KEY_PLAN_OUT, "--plan-out", "ATS_PLAN_OUT"},
    {KEY_STATS, "--stats", "ATS_STATS"},
};
enum { N_SETTINGS = sizeof settings / sizeof settings[0] };

struct options {
    const char *llama_bin;
    const char *program;
    bool dry_run;
    bool is_given[N_SETTINGS];
};

/* What differs between the three commands. */
struct launch {
    const char *program; /* default */
    char separator;      /* between devices in --device */
    const struct argp *argp;
};

static const struct argp_option option_table[] = {
    {"emulate", KEY_EMULATE, "PROFILE", 0,
     "Add an emulated accelerator: a profile's name or file (sets ATS_EMULATE)", 1},
    {"accel", KEY_ACCEL, "NAMES", 0,
     "Use only these accelerators, comma-separated, e.g. CUDA0 (sets ATS_ACCEL)", 1},
    {"vram", KEY_VRAM, "SIZE", 0,
     "Budget per accelerator, e.g. 6G; default: what is free, less a margin (sets ATS_VRAM)", 1},
    {"placement", KEY_PLACEMENT, "PLAN", 0,
     "auto, fill, host, vram, random:SEED, or a plan file (sets ATS_PLACEMENT)", 1},
    {"promote", KEY_PROMOTE, "RULE", 0,
     "Which weights of host memory pass through VRAM: auto, none, all, pieces, used, random:SEED "
     "(sets ATS_PROMOTE)",
     1},
    {"transfer", KEY_TRANSFER, "MODE", 0,
     "async: copies run ahead of the computing; serial: in order with it (sets ATS_TRANSFER)", 1},
    {"plan-out", KEY_PLAN_OUT, "FILE", 0, "Write the placement plan here (sets ATS_PLAN_OUT)", 1},
    {"stats", KEY_STATS, "FILE", 0, "Write a JSON summary at exit (sets ATS_STATS)", 1},
    {"llama-bin", KEY_LLAMA_BIN, "DIR", 0, "Folder with llama.cpp's programs and libraries", 2},
    {"program", KEY_PROGRAM, "NAME", 0, "Start this program of that folder instead", 2},
    {"dry-run", KEY_DRY_RUN, NULL, 0, "Print the command instead of starting it", 2},
    CLI_HELP_OPTION,
    {0},
};

static error_t parse_option(int key, char *arg, struct argp_state *state)
{
    struct options *o = state->input;
    for (size_t i = 0; i < N_SETTINGS; i++) {
        if (key == settings[i].key) {
            setenv(settings[i].variable, arg, 1);
            o->is_given[i] = true;
            return 0;
        }
    }
    switch (key) {
    case KEY_LLAMA_BIN:
        o->llama_bin = arg;
        return 0;
    case KEY_PROGRAM:
        o->program = arg;
        return 0;
    case KEY_DRY_RUN:
        o->dry_run = true;
        return 0;
    default:
        return cli_parse_common(key, state);
    }
}

/* The option that a variable was set by, else the variable. */
static const char *name_of(const struct options *o, const char *variable)
{
    for (size_t i = 0; i < N_SETTINGS; i++) {
        if (o->is_given[i] && strcmp(settings[i].variable, variable) == 0) {
            return settings[i].option;
        }
    }
    return variable;
}

/* Ends the process with the library's own words, which begin with a variable: "NAME=value is ..."
 * or "NAME: ...". */
static _Noreturn void refuse_setting(const char *who, const struct options *o, const char *text)
{
    char *variable = cli_format("%.*s", (int)strcspn(text, "=:"), text);
    const char *name = name_of(o, variable);
    const char *rest = text + strlen(variable);
    if (name == variable) {
        cli_usage_error(who, "%s", text);
    }
    cli_usage_error(who, "%s%s%s", name, rest[0] == '=' ? " " : "", rest + (rest[0] == '='));
}

/* Reads what the library will read, by its own function. It would find a slip when the program runs
 * already, and on a machine without an accelerator nobody would look; what it cannot write, it
 * would find at the end. */
static bool check_settings(const char *who, const struct options *o, struct ats_error *err)
{
    struct ats_config config;
    struct ats_error why = {""};
    if (!ats_config_read(&config, &why)) {
        refuse_setting(who, o, why.text);
    }
    const struct {
        const char *path;
        const char *variable;
    } files[] = {{config.plan_out, "ATS_PLAN_OUT"},
                 {config.stats, "ATS_STATS"},
                 {config.trace, "ATS_TRACE"}};
    bool good = true;
    for (size_t i = 0; good && i < sizeof files / sizeof files[0]; i++) {
        good = files[i].path == NULL ||
               paths_can_write(files[i].path, name_of(o, files[i].variable), err);
    }
    ats_placement_table_free(&config.table);
    return good;
}

static const struct argp run_argp = {
    option_table,
    parse_option,
    "[--] [OPTIONS OF llama-completion...]",
    "Generates text with llama.cpp's llama-completion on the ATS devices. Everything that is "
    "not an option below goes to that program, and so does everything after a --."
    "\v"
    "Examples:\n"
    "  ats run -m model.gguf -p 'Once upon a time' -n 64 -no-cnv\n"
    "  ats run --vram 6G -m model.gguf -p 'Hello'\n"
    "  ats run --emulate emu-small --vram 16M -ub 32 -m model.gguf -p 'Hello' -n 32\n"
    "  ats run --program llama-cli -m model.gguf        (chat in the terminal)\n"
    "  ats run -- --help                                (the program's own options)\n"
    "\n"
    "The working memory of a batch comes first in the budget: with a small one, a smaller batch "
    "(-ub 32) leaves room for weights.\n"
    "\n"
    "The program is llama-completion because it does both: one prompt to text (-no-cnv) and "
    "chat, with a model that has a chat template. llama-cli only chats.\n"
    "\n"
    "--device with all ATS devices is added, unless you give --device yourself.",
    NULL,
    NULL,
    NULL};

static const struct argp serve_argp = {
    option_table,
    parse_option,
    "[--] [OPTIONS OF llama-server...]",
    "Starts llama.cpp's llama-server on the ATS devices. Everything that is not an option "
    "below goes to that program, and so does everything after a --."
    "\v"
    "Examples:\n"
    "  ats serve -m model.gguf --port 8080\n"
    "  ats serve --vram 6G -m model.gguf -np 4 -c 16384\n"
    "\n"
    "--device with all ATS devices is added, unless you give --device yourself.",
    NULL,
    NULL,
    NULL};

static const struct argp bench_argp = {
    option_table,
    parse_option,
    "[--] [OPTIONS OF llama-bench...]",
    "Runs llama.cpp's llama-bench on the ATS devices. Everything that is not an option below "
    "goes to that program, and so does everything after a --."
    "\v"
    "Examples:\n"
    "  ats bench -m model.gguf -p 512 -n 128\n"
    "  ats bench --device none -m model.gguf            (the CPU alone, to compare)\n"
    "\n"
    "--device with all ATS devices is added, unless you give --device yourself.",
    NULL,
    NULL,
    NULL};

static const struct argp_option *own_option(const char *word)
{
    if (strcmp(word, "-h") == 0) {
        word = "--help";
    }
    if (strncmp(word, "--", 2) != 0) {
        return NULL;
    }
    size_t length = strcspn(word + 2, "=");
    for (const struct argp_option *o = option_table; o->name != NULL; o++) {
        if (strlen(o->name) == length && strncmp(o->name, word + 2, length) == 0) {
            return o;
        }
    }
    return NULL;
}

/* A command line split in two; both are NULL-terminated, own[0] is the command. */
struct words {
    char **own;
    char **program;
    int n_own;
    int n_program;
};

static struct words split_words(int argc, char **argv)
{
    size_t size = ((size_t)argc + 1) * sizeof(char *);
    struct words w = {.own = cli_alloc(size), .program = cli_alloc(size)};
    w.own[w.n_own++] = argv[0];
    int at = 1;
    for (; at < argc && strcmp(argv[at], "--") != 0; at++) {
        const struct argp_option *option = own_option(argv[at]);
        if (option == NULL) {
            w.program[w.n_program++] = argv[at];
            continue;
        }
        w.own[w.n_own++] = argv[at];
        if (option->arg != NULL && strchr(argv[at], '=') == NULL && at + 1 < argc) {
            w.own[w.n_own++] = argv[++at];
        }
    }
    for (at++; at < argc; at++) {
        w.program[w.n_program++] = argv[at];
    }
    return w;
}

/* llama.cpp's programs, except llama-bench, also read LLAMA_ARG_DEVICE. */
static bool chooses_device(const struct words *w, const struct launch *launch)
{
    for (int i = 0; i < w->n_program; i++) {
        if (strcmp(w->program[i], "--device") == 0 || strcmp(w->program[i], "-dev") == 0) {
            return true;
        }
    }
    return launch->separator == ',' && getenv("LLAMA_ARG_DEVICE") != NULL;
}

static const char *last_message(const json_t *root)
{
    const json_t *messages = json_object_get(root, "messages");
    size_t n = json_array_size(messages);
    const char *text = n > 0 ? json_string_value(json_array_get(messages, n - 1)) : NULL;
    return text != NULL ? text : "ggml gave no reason";
}

static bool is_emulated(void)
{
    const char *emulate = getenv("ATS_EMULATE");
    return emulate != NULL && emulate[0] != '\0';
}

/* No ATS device: an error if the user asked for one, otherwise a line about what
 * happens instead. */
static bool accept_no_device(const char *who, const json_t *root, struct ats_error *err)
{
    const char *accel = getenv("ATS_ACCEL");
    if (is_emulated() || (accel != NULL && accel[0] != '\0')) {
        return ats_fail(err, "no ATS device although ATS_EMULATE or ATS_ACCEL asks for one: %s",
                        last_message(root));
    }
    if (json_array_size(json_object_get(root, "accelerators")) > 0) {
        fprintf(stderr, "%s: no ATS device (%s): llama.cpp runs without ATS\n", who,
                last_message(root));
        return true;
    }
    fprintf(stderr,
            "%s: no accelerator found: the model runs on the CPU only "
            "(--emulate emu-small adds an emulated one)\n",
            who);
    return true;
}

/* Sets *value for --device, or to NULL where there is no ATS device. */
static bool device_list(const char *who, const char *llama_bin, const char *backend, char separator,
                        char **value, struct ats_error *err)
{
    json_t *root = probe_devices(llama_bin, backend, false, err);
    if (root == NULL) {
        return false;
    }
    *value = NULL;
    size_t i;
    json_t *device;
    json_array_foreach(json_object_get(root, "ats"), i, device)
    {
        const char *name = json_string_value(json_object_get(device, "name"));
        char *longer =
            *value == NULL ? cli_format("%s", name) : cli_format("%s%c%s", *value, separator, name);
        free(*value);
        *value = longer;
    }
    bool ok;
    if (!json_is_true(json_object_get(json_object_get(root, "backend"), "loaded"))) {
        ok = ats_fail(err, "the backend library %s could not be loaded: %s", backend,
                      last_message(root));
    } else {
        ok = *value != NULL || accept_no_device(who, root, err);
    }
    json_decref(root);
    return ok;
}

/* The word as a POSIX shell reads it back. */
static void print_quoted(const char *word)
{
    static const char plain[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"
                                "_-./:,=+@%";
    if (word[0] != '\0' && strspn(word, plain) == strlen(word)) {
        printf("%s", word);
        return;
    }
    printf("'");
    for (; *word != '\0'; word++) {
        if (*word == '\'') {
            printf("'\\''");
        } else {
            printf("%c", *word);
        }
    }
    printf("'");
}

static void print_command(char *const *command)
{
    static const char *const variables[] = {"GGML_BACKEND_PATH", "GGML_CUDA_REGISTER_HOST",
                                            "ATS_EMULATE",       "ATS_PROFILES",
                                            "ATS_PROFILE",       "ATS_ACCEL",
                                            "ATS_VRAM",          "ATS_PLACEMENT",
                                            "ATS_PROMOTE",       "ATS_TRANSFER",
                                            "ATS_EXPERTS",       "ATS_PLAN_OUT",
                                            "ATS_STATS",         "ATS_TRACE",
                                            "ATS_LIVE",          "ATS_SESSION",
                                            "OMP_WAIT_POLICY"};
    for (size_t i = 0; i < sizeof variables / sizeof variables[0]; i++) {
        const char *value = getenv(variables[i]);
        if (value != NULL) {
            printf("%s=", variables[i]);
            print_quoted(value);
            printf(" \\\n");
        }
    }
    for (size_t i = 0; command[i] != NULL; i++) {
        printf("%s", i > 0 ? " " : "");
        print_quoted(command[i]);
    }
    printf("\n");
}

/* Program, added device option, the user's words. Caller frees the array only. */
static char **command_line(char *program, char *devices, const struct words *w)
{
    char **command = cli_alloc(((size_t)w->n_program + 4) * sizeof *command);
    size_t n = 0;
    static char device_option[] = "--device";
    command[n++] = program;
    if (devices != NULL) {
        command[n++] = device_option;
        command[n++] = devices;
    }
    for (int i = 0; i < w->n_program; i++) {
        command[n++] = w->program[i];
    }
    return command;
}

/* The emulated accelerator computes on the same cores as the CPU side. OpenMP's idle threads
 * spin by default, and would take the cores from those that work. */
static void wait_passively_if_emulated(void)
{
    if (is_emulated()) {
        setenv("OMP_WAIT_POLICY", "passive", 0);
    }
}

static bool start(const char *who, const struct launch *launch, const struct options *o,
                  const struct words *w, const char *llama_bin, struct ats_error *err)
{
    char *program = paths_program(llama_bin, o->program, err);
    char *backend = program != NULL ? paths_backend(err) : NULL;
    char *devices = NULL;
    /* who chooses may still have misspelt what is to be emulated */
    const bool is_chosen = chooses_device(w, launch);
    const bool is_asked = !is_chosen || is_emulated();
    bool ok = backend != NULL &&
              (!is_asked || device_list(who, llama_bin, backend, launch->separator, &devices, err));
    if (ok) {
        setenv("GGML_BACKEND_PATH", backend, 1);
        /* ggml-cuda page-locks weights of host memory on request only; copies of pageable ones
         * keep the calling thread and do not run ahead. */
        setenv("GGML_CUDA_REGISTER_HOST", "1", 0);
        wait_passively_if_emulated();
        char **command = command_line(program, is_chosen ? NULL : devices, w);
        if (o->dry_run) {
            print_command(command);
        } else {
            execv(program, command);
            ok = ats_fail(err, "cannot start %s: %s", program, strerror(errno));
        }
        free(command);
    }
    free(devices);
    free(backend);
    free(program);
    return ok;
}

static int launch_program(const struct launch *launch, int argc, char **argv)
{
    struct words w = split_words(argc, argv);
    struct options o = {.program = launch->program};
    cli_parse(launch->argp, w.n_own, w.own, &o);
    struct ats_error err;
    char *llama_bin = paths_llama_bin(o.llama_bin, &err);
    bool ok = llama_bin != NULL && check_settings(argv[0], &o, &err) &&
              start(argv[0], launch, &o, &w, llama_bin, &err);
    free(llama_bin);
    free(w.own);
    free(w.program);
    return ok ? CLI_OK : cli_error(argv[0], &err);
}

int cli_run(int argc, char **argv)
{
    static const struct launch run = {"llama-completion", ',', &run_argp};
    return launch_program(&run, argc, argv);
}

int cli_serve(int argc, char **argv)
{
    static const struct launch serve = {"llama-server", ',', &serve_argp};
    return launch_program(&serve, argc, argv);
}

int cli_bench(int argc, char **argv)
{
    /* A comma separates alternatives to measure there. */
    static const struct launch bench = {"llama-bench", '/', &bench_argp};
    return launch_program(&bench, argc, argv);
}
