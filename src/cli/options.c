/* Option parsing, messages and small helpers for every sub-command.
 *
 * glibc's argp does the parsing because it is part of libc (nothing to install
 * or link) and prints --help from the same table that it parses by, so the help
 * cannot fall behind the options. A pass of our own comes first: argp answers a
 * wrong command line in two lines, accepts abbreviations that a later option may
 * make ambiguous, and cannot suggest what was meant. */
#include "base/parse.h"
#include "cli/cli.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

void *cli_alloc(size_t size)
{
    void *memory = calloc(1, size > 0 ? size : 1);
    if (memory == NULL) {
        fprintf(stderr, "ats: out of memory\n");
        exit(CLI_FAILED);
    }
    return memory;
}

char *cli_format(const char *format, ...)
{
    char *text = NULL;
    va_list args;
    va_start(args, format);
    int length = vasprintf(&text, format, args);
    va_end(args);
    if (length < 0) {
        fprintf(stderr, "ats: out of memory\n");
        exit(CLI_FAILED);
    }
    return text;
}

int cli_error(const char *who, const struct ats_error *err)
{
    fprintf(stderr, "%s: %s\n", who, err->text);
    return CLI_FAILED;
}

void cli_usage_error(const char *who, const char *format, ...)
{
    fprintf(stderr, "%s: ", who);
    va_list args;
    va_start(args, format);
    vfprintf(stderr, format, args);
    va_end(args);
    fprintf(stderr, " (see `%s --help`)\n", who);
    exit(CLI_USAGE);
}

/* ---- output ---- */

static void check_output(void)
{
    errno = 0;
    /* some file systems tell only when a file is closed; stdout itself stays open, for what
     * libraries may still say */
    const int copy = fflush(stdout) == 0 && ferror(stdout) == 0 ? dup(STDOUT_FILENO) : -1;
    if (copy >= 0 && close(copy) == 0) {
        return;
    }
    if (copy < 0 && errno == EBADF && ferror(stdout) == 0) {
        return; /* closed by whoever started us, and nothing was printed */
    }
    fprintf(stderr, "ats: cannot write to standard output%s%s\n", errno != 0 ? ": " : "",
            errno != 0 ? strerror(errno) : "");
    _exit(CLI_FAILED);
}

void cli_watch_output(void)
{
    if (atexit(check_output) != 0) {
        fprintf(stderr, "ats: out of memory\n");
        exit(CLI_FAILED);
    }
}

void cli_print_json(json_t *root, size_t flags)
{
    const bool good = root != NULL && json_dumpf(root, stdout, flags) == 0;
    json_decref(root);
    if (!good && ferror(stdout) == 0) {
        fprintf(stderr, "ats: cannot print JSON: memory is out, or a name is not UTF-8\n");
        exit(CLI_FAILED);
    }
    printf("\n");
}

bool cli_colours(int fd)
{
    const char *term = getenv("TERM");
    const char *no_color = getenv("NO_COLOR");
    return isatty(fd) && (no_color == NULL || no_color[0] == '\0') && term != NULL &&
           strcmp(term, "dumb") != 0;
}

/* ---- values ---- */

uint32_t cli_number(const char *who, const char *option, const char *text, uint32_t least,
                    uint32_t most)
{
    struct ats_error err;
    uint64_t value;
    if (!ats_parse_u64(text, most, &value, &err)) {
        cli_usage_error(who, "--%s: %s", option, err.text);
    }
    if (value < least) {
        cli_usage_error(who, "--%s must be at least %u", option, least);
    }
    return (uint32_t)value;
}

size_t cli_size(const char *who, const char *option, const char *text)
{
    struct ats_error err;
    size_t bytes;
    if (!ats_parse_bytes(text, &bytes, &err)) {
        cli_usage_error(who, "--%s: %s", option, err.text);
    }
    return bytes;
}

/* ---- what was meant ---- */

/* Levenshtein distance; words longer than the table count as far apart. */
static size_t edit_distance(const char *a, const char *b)
{
    enum { MAX_WORD = 40 };
    size_t a_len = strlen(a);
    size_t b_len = strlen(b);
    if (a_len >= MAX_WORD || b_len >= MAX_WORD) {
        return MAX_WORD;
    }
    size_t row[MAX_WORD];
    for (size_t j = 0; j <= b_len; j++) {
        row[j] = j;
    }
    for (size_t i = 1; i <= a_len; i++) {
        size_t diagonal = row[0];
        row[0] = i;
        for (size_t j = 1; j <= b_len; j++) {
            size_t best = diagonal + (a[i - 1] != b[j - 1]);
            best = row[j] + 1 < best ? row[j] + 1 : best;
            best = row[j - 1] + 1 < best ? row[j - 1] + 1 : best;
            diagonal = row[j];
            row[j] = best;
        }
    }
    return row[b_len];
}

const char *cli_suggest(const char *word, const char *const *candidates, size_t n)
{
    const char *best = NULL;
    /* Two slips, and at most a third of the word: `run` is not a slip of `foo`. */
    size_t limit = strlen(word) / 3 + 1 < 2 ? strlen(word) / 3 + 1 : 2;
    for (size_t i = 0; i < n; i++) {
        size_t distance = edit_distance(word, candidates[i]);
        if (distance <= limit) {
            best = candidates[i];
            limit = distance > 0 ? distance - 1 : 0;
        }
    }
    return best;
}

/* ---- parsing ---- */

static bool is_end(const struct argp_option *option)
{
    return option->name == NULL && option->key == 0 && option->doc == NULL && option->group == 0;
}

static const struct argp_option *find_long(const struct argp_option *options, const char *name,
                                           size_t length)
{
    for (const struct argp_option *o = options; !is_end(o); o++) {
        if (o->name != NULL && strlen(o->name) == length && memcmp(o->name, name, length) == 0) {
            return o;
        }
    }
    return NULL;
}

static const struct argp_option *find_short(const struct argp_option *options, int key)
{
    for (const struct argp_option *o = options; !is_end(o); o++) {
        if (o->key == key) {
            return o;
        }
    }
    return NULL;
}

static _Noreturn void unknown_option(const struct argp_option *options, const char *who,
                                     const char *word)
{
    const char *names[64];
    size_t n = 0;
    for (const struct argp_option *o = options; !is_end(o); o++) {
        if (o->name != NULL && n < sizeof names / sizeof names[0]) {
            names[n++] = o->name;
        }
    }
    char *name = cli_format("%.*s", (int)strcspn(word + 2, "="), word + 2);
    const char *close = cli_suggest(name, names, n);
    if (close != NULL) {
        cli_usage_error(who, "unknown option --%s; did you mean --%s?", name, close);
    }
    cli_usage_error(who, "unknown option --%s", name);
}

/* Checks argv[at], which starts with "--"; returns how many words it takes. */
static int check_long(const struct argp_option *options, int argc, char **argv, int at)
{
    const char *word = argv[at];
    size_t length = strcspn(word + 2, "=");
    const struct argp_option *option = find_long(options, word + 2, length);
    bool has_value = word[2 + length] == '=';
    if (option == NULL) {
        unknown_option(options, argv[0], word);
    }
    if (option->arg == NULL && has_value) {
        cli_usage_error(argv[0], "option --%s takes no value", option->name);
    }
    if (option->arg == NULL || has_value) {
        return 1;
    }
    if (at + 1 >= argc) {
        cli_usage_error(argv[0], "option --%s needs a value: --%s %s", option->name, option->name,
                        option->arg);
    }
    return 2;
}

/* The same for a group of short options such as "-v". */
static int check_short(const struct argp_option *options, int argc, char **argv, int at)
{
    for (const char *c = argv[at] + 1; *c != '\0'; c++) {
        const struct argp_option *option = find_short(options, *c);
        if (option == NULL) {
            cli_usage_error(argv[0], "unknown option -%c", *c);
        }
        if (option->arg != NULL && c[1] != '\0') {
            return 1;
        }
        if (option->arg != NULL && at + 1 >= argc) {
            cli_usage_error(argv[0], "option -%c needs a value", *c);
        }
        if (option->arg != NULL) {
            return 2;
        }
    }
    return 1;
}

static void check_words(const struct argp *argp, int argc, char **argv)
{
    for (int at = 1; at < argc;) {
        if (strcmp(argv[at], "--") == 0) {
            return;
        }
        if (strncmp(argv[at], "--", 2) == 0) {
            at += check_long(argp->options, argc, argv, at);
        } else if (argv[at][0] == '-' && argv[at][1] != '\0') {
            at += check_short(argp->options, argc, argv, at);
        } else if (argp->args_doc == NULL) {
            cli_usage_error(argv[0], "unexpected argument '%s'", argv[at]);
        } else {
            at++;
        }
    }
}

error_t cli_parse_common(int key, const struct argp_state *state)
{
    if (key == 'h') {
        argp_state_help(state, stdout, ARGP_HELP_STD_HELP);
        return 0;
    }
    return ARGP_ERR_UNKNOWN;
}

static const struct cli_field *find_field(const struct cli_field *fields, int key)
{
    while (fields->key != 0 && fields->key != key) {
        fields++;
    }
    return fields->key != 0 ? fields : NULL;
}

error_t cli_parse_field(const struct cli_field *fields, int key, char *arg,
                        const struct argp_state *state, void *into)
{
    const struct cli_field *field = find_field(fields, key);
    if (field == NULL) {
        return cli_parse_common(key, state);
    }
    void *member = (char *)into + field->offset;
    switch (field->target) {
    case CLI_TEXT:
        *(const char **)member = arg;
        break;
    case CLI_FLAG:
        *(bool *)member = true;
        break;
    case CLI_NUMBER:
        *(uint32_t *)member =
            cli_number(state->argv[0], find_short(state->root_argp->options, key)->name, arg,
                       field->least, field->most);
        break;
    case CLI_VARIABLE:
        setenv(field->variable, arg != NULL ? arg : "1", 1);
        break;
    }
    return 0;
}

void cli_parse(const struct argp *argp, int argc, char **argv, void *input)
{
    argp_err_exit_status = CLI_USAGE;
    check_words(argp, argc, argv);
    if (argp_parse(argp, argc, argv, ARGP_NO_HELP, NULL, input) != 0) {
        cli_usage_error(argv[0], "the command line could not be understood");
    }
}
