/* `ats`: finds the sub-command and hands over. */
#include "cli/cli.h"
#include "cli/helper.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#ifndef ATS_VERSION
#define ATS_VERSION "unknown"
#endif

struct command {
    const char *name;
    int (*run)(int argc, char **argv);
    bool hidden; /* left out of suggestions, as it is of the help */
};

static const struct command commands[] = {
    {"run", cli_run, false},     {"serve", cli_serve, false},    {"bench", cli_bench, false},
    {"trace", cli_trace, false}, {"top", cli_top, false},        {"devices", cli_devices, false},
    {"rig", cli_rig, false},     {"synth", helper_run, false},   {"simulate", helper_run, false},
    {"plan", helper_run, false}, {"profile", helper_run, false}, {"report", cli_report, true},
};
enum { N_COMMANDS = sizeof commands / sizeof commands[0] };

static const struct argp_option option_table[] = {
    {"version", 'V', NULL, 0, "Show the version and exit", 0},
    CLI_HELP_OPTION,
    {0},
};

static error_t parse_option(int key, char *arg, struct argp_state *state)
{
    (void)arg;
    if (key == 'V') {
        printf("ats %s (for ggml %s)\n", ATS_VERSION, ATS_GGML_VERSION);
        exit(CLI_OK);
    }
    return cli_parse_common(key, state);
}

static const struct argp argp = {
    option_table,
    parse_option,
    "COMMAND [...]",
    "ATS runs a language model on an accelerator and the CPU together.\n"
    "It is a backend for llama.cpp, whose own programs load it: no fork, any model.\n"
    "Where each tensor lives and what runs where is a plan that you can read.\n"
    "\n"
    "Commands (`ats COMMAND --help` says more):\n"
    "  run      generate text: llama-completion with the backend switched on\n"
    "  serve    the same for llama-server\n"
    "  bench    the same for llama-bench\n"
    "  trace    run one of these and show what ran when\n"
    "  top      show what runs just now, live or for Prometheus\n"
    "  devices  show CPU, accelerators and ATS devices\n"
    "  rig      show a machine to be emulated, and how fast it is here\n"
    "  synth    write a small model with random weights, for tests\n"
    "  plan     choose where each tensor lives, and say why\n"
    "  simulate predict how fast a model runs on a machine\n"
    "  profile  measure this machine, for decisions and predictions\n"
    "\n"
    "Options:"
    "\v"
    "Examples:\n"
    "  ats devices\n"
    "  ats run -m model.gguf -p 'Once upon a time' -n 64 -no-cnv\n"
    "  ats synth --arch qwen3moe --out model.gguf    (a small model, to try this)\n"
    "  ats run --emulate emu-small --vram 16M -ub 32 -m model.gguf -p 'Hello' -n 32\n"
    "  ats serve --vram 6G -m model.gguf --port 8080\n"
    "\n"
    "Environment, read by the backend library in any llama.cpp program:\n"
    "  ATS_EMULATE    add an emulated accelerator: a profile's name or file\n"
    "                 or a rig's, see `ats rig`\n"
    "  ATS_PROFILES   folder with the profiles that names refer to\n"
    "  ATS_ACCEL      accelerators to use, comma-separated: CUDA0, EMU0 (all)\n"
    "  ATS_VRAM       budget per accelerator: 6G (what is free, less a margin)\n"
    "  ATS_PLACEMENT  fill (default), host, vram, random:SEED, or a plan file\n"
    "  ATS_PROMOTE    host weights that pass through VRAM: auto (default), none,\n"
    "                 all, random:SEED\n"
    "  ATS_TRANSFER   async (default): copies run ahead; serial: in order\n"
    "  ATS_PLAN_OUT   write the placement plan to this file\n"
    "  ATS_TRACE      write a recording to this file at exit: `ats trace`\n"
    "  ATS_STATS      write a JSON summary to this file at exit\n"
    "  ATS_LIVE       auto (default), a folder for the figures of `ats top`, or off\n"
    "Environment, read by this command:\n"
    "  ATS_LLAMA_BIN  folder with llama.cpp's programs and libraries\n"
    "  ATS_BACKEND    path of libggml-ats.so\n"
    "  ATS_LLAMA_SRC  llama.cpp checkout, for the vocabularies of `ats synth`\n"
    "\n"
    "Without this command: GGML_BACKEND_PATH=.../libggml-ats.so llama-server\n"
    "--device ATS0 ...\n"
    "\n"
    "Exit code: the program's; else 0, 1 when it could not be done, 2 for wrong\n"
    "usage.",
    NULL,
    NULL,
    NULL};

static const struct command *find_command(const char *name)
{
    for (size_t i = 0; i < N_COMMANDS; i++) {
        if (strcmp(commands[i].name, name) == 0) {
            return &commands[i];
        }
    }
    return NULL;
}

static _Noreturn void unknown_command(const char *name)
{
    const char *names[N_COMMANDS];
    size_t n = 0;
    for (size_t i = 0; i < N_COMMANDS; i++) {
        if (!commands[i].hidden) {
            names[n++] = commands[i].name;
        }
    }
    const char *close = cli_suggest(name, names, n);
    if (close != NULL) {
        cli_usage_error("ats", "unknown command '%s'; did you mean '%s'?", name, close);
    }
    cli_usage_error("ats", "unknown command '%s'", name);
}

int main(int argc, char **argv)
{
    static char own_name[] = "ats";
    cli_watch_output();
    if (argc < 2) {
        cli_usage_error(own_name, "a command is missing, such as `ats devices`");
    }
    if (argv[1][0] == '-') {
        /* Only the options before a command: `ats -h run` is `ats -h`. */
        argv[0] = own_name;
        cli_parse(&argp, 2, argv, NULL);
        return CLI_OK;
    }
    const struct command *command = find_command(argv[1]);
    if (command == NULL) {
        unknown_command(argv[1]);
    }
    char *full_name = cli_format("ats %s", command->name);
    argv[1] = full_name;
    int result = command->run(argc - 1, argv + 1);
    free(full_name);
    return result;
}
