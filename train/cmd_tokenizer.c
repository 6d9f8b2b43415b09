#include "bpe.h"
#include "commands.h"
#include "text.h"

#include "base/parse.h"
#include "cli/cli.h"

#include <stdio.h>

enum { KEY_SIZE = CLI_KEY_FIRST, DEFAULT_TOKENS = 4096 };

struct options {
    const char *text;
    const char *out;
    uint64_t tokens;
};

static const struct argp_option option_table[] = {
    {"text", 't', "FILE", 0, "Text to learn from", 0},
    {"out", 'o', "FILE", 0, "Where the tokenizer goes", 0},
    {"tokens", KEY_SIZE, "N", 0, "Size of the vocabulary (4096)", 0},
    CLI_HELP_OPTION,
    {0},
};

static error_t parse_option(int key, char *arg, struct argp_state *state)
{
    struct options *o = state->input;
    struct ats_error err;
    switch (key) {
    case 't':
        o->text = arg;
        return 0;
    case 'o':
        o->out = arg;
        return 0;
    case KEY_SIZE:
        if (!ats_parse_u64(arg, BPE_MAX_TOKENS, &o->tokens, &err)) {
            cli_usage_error(state->name, "--tokens: %s", err.text);
        }
        return 0;
    default:
        return cli_parse_common(key, state);
    }
}

static const struct argp argp = {
    option_table,
    parse_option,
    "--text=FILE --out=FILE",
    "Learns a vocabulary: bytes, and pairs of tokens that are frequent "
    "in the text.\n\nOptions:",
    NULL,
    NULL,
    NULL};

int command_tokenizer(int argc, char **argv)
{
    struct options o = {.tokens = DEFAULT_TOKENS};
    cli_parse(&argp, argc, argv, &o);
    if (o.text == NULL || o.out == NULL) {
        cli_usage_error(argv[0], "--text and --out are needed");
    }
    struct ats_error err;
    struct text text;
    struct bpe bpe = {0};
    bool ok = text_read(&text, o.text, &err);
    ok = ok && bpe_learn(&bpe, &text, o.tokens, &err);
    ok = ok && bpe_save(&bpe, o.out, &err);
    if (ok) {
        fprintf(stderr, "%s: %zu tokens\n", o.out, bpe.n_tokens);
    }
    bpe_free(&bpe);
    text_free(&text);
    return ok ? CLI_OK : cli_error(argv[0], &err);
}
