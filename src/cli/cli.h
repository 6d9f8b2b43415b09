/* What the sub-commands of `ats` share: entry points, option parsing, errors.
 *
 * Exit codes everywhere: 0 success, 1 it could not be done, 2 wrong usage.
 * The command is one process with one thread. */
#ifndef ATS_CLI_CLI_H
#define ATS_CLI_CLI_H

#include "base/error.h"

#include <argp.h>
#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { CLI_OK = 0, CLI_FAILED = 1, CLI_USAGE = 2 };

/* Sub-commands. argv[0] is the full name, e.g. "ats devices"; the result is the
 * exit code. */
int cli_run(int argc, char **argv);
int cli_serve(int argc, char **argv);
int cli_bench(int argc, char **argv);
int cli_devices(int argc, char **argv);
int cli_trace(int argc, char **argv);
int cli_top(int argc, char **argv);
int cli_report(int argc, char **argv);
int cli_rig(int argc, char **argv);

/* The same, in the program ats-ggml (helper.h). */
int cli_plan(int argc, char **argv);
int cli_simulate(int argc, char **argv);
int cli_profile(int argc, char **argv);
int cli_probe(int argc, char **argv);
int cli_synth(int argc, char **argv);

/* Keys of options without a short form; above any character, so that argp does
 * not offer them as one. */
enum { CLI_KEY_FIRST = 0x100 };

/* The entry that every option table ends its list with. */
#define CLI_HELP_OPTION                                                                            \
    {                                                                                              \
        "help", 'h', NULL, 0, "Show this help and exit", -1                                        \
    }

/* Handles 'h' and rejects nothing; parsers call it for keys they do not know. */
error_t cli_parse_common(int key, const struct argp_state *state);

/* Where the value of an option goes, unchecked but for numbers: a member of the command's struct,
 * or a variable of the environment. */
enum cli_target {
    CLI_TEXT,     /* const char * */
    CLI_FLAG,     /* bool: true */
    CLI_NUMBER,   /* uint32_t, from `least` to `most` */
    CLI_VARIABLE, /* the value, or 1 of an option that takes none */
};

struct cli_field {
    int key;
    enum cli_target target;
    size_t offset; /* of the member */
    uint32_t least;
    uint32_t most;
    const char *variable;
};

#define CLI_TEXT_FIELD(key, type, member)                                                          \
    {                                                                                              \
        key, CLI_TEXT, offsetof(type, member), 0, 0, NULL                                          \
    }
#define CLI_FLAG_FIELD(key, type, member)                                                          \
    {                                                                                              \
        key, CLI_FLAG, offsetof(type, member), 0, 0, NULL                                          \
    }
#define CLI_NUMBER_FIELD(key, type, member, least, most)                                           \
    {                                                                                              \
        key, CLI_NUMBER, offsetof(type, member), least, most, NULL                                 \
    }
#define CLI_VARIABLE_FIELD(key, name)                                                              \
    {                                                                                              \
        key, CLI_VARIABLE, 0, 0, 0, name                                                           \
    }

/* Puts an option's value where its field says, in `into`; hands keys without one to
 * cli_parse_common. The list ends with a key of 0. */
error_t cli_parse_field(const struct cli_field *fields, int key, char *arg,
                        const struct argp_state *state, void *into);

/* Parses argv into `input` by `argp`. A wrong command line ends the process with
 * one line on stderr and exit code 2. */
void cli_parse(const struct argp *argp, int argc, char **argv, void *input);

/* Prints "ats: <text>" style errors; the first returns CLI_FAILED, the second
 * ends the process with CLI_USAGE. `who` is argv[0]. */
int cli_error(const char *who, const struct ats_error *err);
_Noreturn void cli_usage_error(const char *who, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/* Called first by main. When the process exits, on whatever way, what was printed must have reached
 * stdout: if not, one line on stderr says so and the exit code is CLI_FAILED. No other place checks
 * that. */
void cli_watch_output(void);

/* Prints JSON (flags: json_dumpf's) and a newline, and gives up the reference. Of what could not be
 * made JSON, such as NULL, it ends the process with a message. */
void cli_print_json(json_t *root, size_t flags);

/* The value of --`option`, a whole number from `least` to `most`, or a size in bytes; anything else
 * ends the process as wrong usage. */
uint32_t cli_number(const char *who, const char *option, const char *text, uint32_t least,
                    uint32_t most);
size_t cli_size(const char *who, const char *option, const char *text);

/* The candidate closest to `word`, or NULL when none is close enough to be a slip. */
const char *cli_suggest(const char *word, const char *const *candidates, size_t n);

/* malloc-family calls that end the process with a message when memory is out. */
void *cli_alloc(size_t size);
char *cli_format(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* True if `file` is a terminal that should get colours (NO_COLOR and TERM=dumb say no). */
bool cli_colours(int fd);

#endif
