/* The program ats-ggml, which `ats` starts; see helper.h. */
#include "cli/cli.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int main(int argc, char **argv)
{
    int (*run)(int argc, char **argv) = NULL;
    cli_watch_output();
    if (argc > 1 && strcmp(argv[1], "synth") == 0) {
        run = cli_synth;
    } else if (argc > 1 && strcmp(argv[1], "simulate") == 0) {
        run = cli_simulate;
    } else if (argc > 1 && strcmp(argv[1], "profile") == 0) {
        run = cli_profile;
    } else if (argc > 1 && strcmp(argv[1], "plan") == 0) {
        run = cli_plan;
    } else if (argc > 1 && strcmp(argv[1], "probe") == 0) {
        run = cli_probe;
    } else {
        fprintf(stderr, "ats-ggml is started by `ats`; see `ats --help`\n");
        return CLI_USAGE;
    }
    char *full_name = cli_format("ats %s", argv[1]);
    argv[1] = full_name;
    int result = run(argc - 1, argv + 1);
    free(full_name);
    return result;
}
