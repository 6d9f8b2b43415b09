/* `ats report` (hidden): the short table at the end of `make run`, from the JSON
 * that the backend library writes (ATS_STATS) and llama.cpp's own timing lines. */
#include "base/parse.h"
#include "cli/cli.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { KEY_TIMINGS = CLI_KEY_FIRST };

struct options {
    const char *stats;
    const char *timings;
};

static const struct argp_option option_table[] = {
    {"timings", KEY_TIMINGS, "LOG", 0, "The program's log with llama.cpp's timing lines", 0},
    CLI_HELP_OPTION,
    {0},
};

static error_t parse_option(int key, char *arg, struct argp_state *state)
{
    struct options *o = state->input;
    if (key == KEY_TIMINGS) {
        o->timings = arg;
        return 0;
    }
    if (key == ARGP_KEY_ARG) {
        if (o->stats != NULL) {
            cli_usage_error(state->argv[0], "unexpected argument '%s'", arg);
        }
        o->stats = arg;
        return 0;
    }
    return cli_parse_common(key, state);
}

static const struct argp argp = {
    option_table, parse_option,
    "STATS.json", "Prints a summary written through ATS_STATS as a table.",
    NULL,         NULL,
    NULL};

static json_int_t number(const json_t *object, const char *key)
{
    return json_integer_value(json_object_get(object, key));
}

static const char *size_text(json_int_t bytes, char *text, size_t text_size)
{
    return ats_format_bytes(bytes > 0 ? (size_t)bytes : 0, text, text_size);
}

static void print_row(const char *what, json_int_t tensors, json_int_t bytes)
{
    char size[32];
    if (tensors >= 0) {
        printf("  %-28s %8lld tensors  %12s\n", what, (long long)tensors,
               size_text(bytes, size, sizeof size));
    } else {
        printf("  %-28s %16s  %12s\n", what, "", size_text(bytes, size, sizeof size));
    }
}

static void print_device(const json_t *device)
{
    const char *name = json_string_value(json_object_get(device, "name"));
    const char *accelerator = json_string_value(json_object_get(device, "accelerator"));
    char budget[32];
    printf("%s = CPU + %s, budget %s\n", name != NULL ? name : "?",
           accelerator != NULL ? accelerator : "?",
           size_text(number(device, "budget_bytes"), budget, sizeof budget));
    const json_t *weights = json_object_get(device, "weights");
    const json_t *vram = json_object_get(weights, "vram");
    const json_t *host = json_object_get(weights, "host");
    const json_t *kv = json_object_get(device, "kv");
    print_row("weights in VRAM", number(vram, "tensors"), number(vram, "bytes"));
    print_row("weights in host memory", number(host, "tensors"), number(host, "bytes"));
    print_row("KV cache in VRAM", -1, number(kv, "vram_bytes"));
    print_row("KV cache in host memory", -1, number(kv, "host_bytes"));
    printf("  %-28s %8lld\n", "splits per token", (long long)number(device, "last_splits"));
    printf("  %-28s %8lld, plans built %lld\n", "graphs computed",
           (long long)number(device, "graphs"), (long long)number(device, "plans_built"));
}

/* The number before "tokens per second" in a line such as
 * "eval time = 2118.10 ms / 23 runs ( 92.09 ms per token, 10.86 tokens per second)". */
static bool rate_in(const char *line, double *rate)
{
    const char *unit = strstr(line, " tokens per second");
    const char *comma = unit;
    while (comma != NULL && comma > line && *comma != ',') {
        comma--;
    }
    return comma != NULL && *comma == ',' && sscanf(comma + 1, "%lf", rate) == 1;
}

static bool print_timings(const char *path, struct ats_error *err)
{
    FILE *file = fopen(path, "r");
    if (file == NULL) {
        return ats_fail(err, "cannot read %s", path);
    }
    char *line = NULL;
    size_t capacity = 0;
    double rate;
    while (getline(&line, &capacity, file) >= 0) {
        bool is_prompt = strstr(line, "prompt eval time") != NULL;
        if ((is_prompt || strstr(line, " eval time") != NULL) && rate_in(line, &rate)) {
            printf("  %-28s %10.1f\n", is_prompt ? "prompt tokens per second" : "tokens per second",
                   rate);
        }
    }
    free(line);
    fclose(file);
    return true;
}

static bool print_stats(const char *path, struct ats_error *err)
{
    json_error_t parse_error;
    json_t *root = json_load_file(path, 0, &parse_error);
    if (root == NULL) {
        return ats_fail(err, "cannot read the summary %s: %s", path, parse_error.text);
    }
    const char *format = json_string_value(json_object_get(root, "format"));
    bool known = format != NULL && strcmp(format, "ats-stats-1") == 0;
    size_t i;
    json_t *device;
    json_array_foreach(json_object_get(root, "devices"), i, device)
    {
        if (known) {
            print_device(device);
        }
    }
    json_decref(root);
    return known || ats_fail(err, "%s is no summary of this version (ats-stats-1)", path);
}

int cli_report(int argc, char **argv)
{
    struct options o = {0};
    cli_parse(&argp, argc, argv, &o);
    if (o.stats == NULL) {
        cli_usage_error(argv[0], "the summary file is missing");
    }
    struct ats_error err;
    bool ok = print_stats(o.stats, &err) && (o.timings == NULL || print_timings(o.timings, &err));
    return ok ? CLI_OK : cli_error(argv[0], &err);
}
