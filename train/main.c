/* `ats-train`: makes the small model that the project ships. */
#include "commands.h"

#include "cli/cli.h"

#include <stdlib.h>
#include <string.h>

static const struct {
    const char *name;
    int (*run)(int argc, char **argv);
} commands[] = {
    {"tokenizer", command_tokenizer}, {"train", command_train},     {"export", command_export},
    {"experts", command_experts},     {"quality", command_quality},
};

static const struct argp_option option_table[] = {CLI_HELP_OPTION, {0}};

static error_t parse_option(int key, char *arg, struct argp_state *state)
{
    (void)arg;
    return cli_parse_common(key, state);
}

static const struct argp argp = {
    option_table,
    parse_option,
    "COMMAND [...]",
    "Trains a small language model on the CPU and writes it as a GGUF file.\n"
    "\n"
    "Commands, in the order of their use (`ats-train COMMAND --help` says more):\n"
    "  tokenizer  learn a vocabulary from a text\n"
    "  train      train, or go on training\n"
    "  export     write what has been trained as a GGUF file\n"
    "  experts    make a model with experts from a GGUF file without\n"
    "  quality    bits per byte of GGUF files and of n-gram models\n"
    "\n"
    "train/train.sh does all of it; train/README.md says why and how.\n"
    "\n"
    "Options:",
    NULL,
    NULL,
    NULL};

int main(int argc, char **argv)
{
    static char own_name[] = "ats-train";
    if (argc < 2) {
        cli_usage_error(own_name, "a command is missing, such as `ats-train train`");
    }
    if (argv[1][0] == '-') {
        argv[0] = own_name;
        cli_parse(&argp, 2, argv, NULL);
        return CLI_OK;
    }
    for (size_t i = 0; i < sizeof commands / sizeof commands[0]; i++) {
        if (strcmp(commands[i].name, argv[1]) == 0) {
            char *full_name = cli_format("ats-train %s", argv[1]);
            argv[1] = full_name;
            const int result = commands[i].run(argc - 1, argv + 1);
            free(full_name);
            return result;
        }
    }
    cli_usage_error(own_name, "unknown command '%s'; `ats-train --help` lists them", argv[1]);
}
