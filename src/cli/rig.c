/* `ats rig`: a machine that the emulated accelerator stands in for, as its file
 * has it and as it is emulated on this one. */
#include "cost/rig.h"
#include "base/parse.h"
#include "cli/cli.h"
#include "cli/paths.h"
#include "cli/probe.h"

#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { KEY_JSON = CLI_KEY_FIRST, KEY_MEASURE, KEY_LLAMA_BIN };

struct options {
    bool json;
    const char *name;
    const char *llama_bin;
};

static const struct argp_option option_table[] = {
    {"json", KEY_JSON, NULL, 0, "Print JSON", 0},
    {"measure", KEY_MEASURE, NULL, 0, "Measure this CPU anew (sets ATS_RIG_MEASURE)", 0},
    {"llama-bin", KEY_LLAMA_BIN, "DIR", 0, "Folder with llama.cpp's programs and libraries", 0},
    CLI_HELP_OPTION,
    {0},
};

static const struct cli_field fields[] = {
    CLI_FLAG_FIELD(KEY_JSON, struct options, json),
    CLI_VARIABLE_FIELD(KEY_MEASURE, "ATS_RIG_MEASURE"),
    CLI_TEXT_FIELD(KEY_LLAMA_BIN, struct options, llama_bin),
    {0},
};

static error_t parse_option(int key, char *arg, struct argp_state *state)
{
    struct options *o = state->input;
    if (key != ARGP_KEY_ARG) {
        return cli_parse_field(fields, key, arg, state, o);
    }
    if (o->name != NULL) {
        cli_usage_error("ats rig", "one rig at a time, not '%s' and '%s'", o->name, arg);
    }
    o->name = arg;
    return 0;
}

static const struct argp argp = {
    option_table,
    parse_option,
    "NAME|FILE",
    "Shows a rig: a machine of a CPU, an accelerator and a link that the emulated accelerator "
    "stands in for, in timed mode. All rates are scaled by one factor, this CPU's speed relative "
    "to the rig's, so that their ratios are those of the real machine."
    "\v"
    "Examples:\n"
    "  ats rig laptop-3060\n"
    "  ats rig --json ./mine.json\n"
    "  ATS_RIG_SCALE=0.25 ats rig desktop-4090-pcie5\n"
    "  ats bench --emulate laptop-3060 -m model.gguf\n"
    "\n"
    "Rigs that come with ATS: laptop-3060 and desktop-4090, each also with -pcie3, "
    "-pcie4 and -pcie5. docs/rigs.md says what a file of your own has to hold.\n"
    "\n"
    "Environment: ATS_RIGS (folder that names refer to), ATS_RIG_SCALE (the factor, "
    "measures nothing), ATS_RIG_TYPE (q4, f16 or mxfp4: the weights whose speed on "
    "the CPU sets the factor; q4).\n"
    "\n"
    "With --json, an object: format (\"ats-rig-table-1\"), name, description, cpu, "
    "device, memory_bytes, scale (factor, given, type, threads; unless given also "
    "compute_ratio and host), figures ({section, key, unit, real, emulated, source}).",
    NULL,
    NULL,
    NULL};

/* ---- what the library says ---- */

static json_t *find_scale(const json_t *root, const char *rig)
{
    size_t i;
    json_t *device;
    json_array_foreach(json_object_get(root, "accelerators"), i, device)
    {
        const json_t *emulation = json_object_get(device, "emulation");
        const char *name = json_string_value(json_object_get(emulation, "rig"));
        if (name != NULL && strcmp(name, rig) == 0) {
            return json_object_get(emulation, "scale");
        }
    }
    return NULL;
}

/* The library's own words, without the tag of its log. */
static const char *first_message(const json_t *root)
{
    const char *text = json_string_value(json_array_get(json_object_get(root, "messages"), 0));
    if (text == NULL) {
        return "the backend library did not make an emulated accelerator of it";
    }
    return strncmp(text, "ats: ", 5) == 0 ? text + 5 : text;
}

/* The rig's scale here: the library reads the same file, and measures with the CPU backend of the
 * llama.cpp at hand. Caller gives up its reference. */
static json_t *ask_scale(const struct options *o, const char *path, const char *rig,
                         struct ats_error *err)
{
    char *llama_bin = paths_llama_bin(o->llama_bin, err);
    char *backend = llama_bin != NULL ? paths_backend(err) : NULL;
    setenv("ATS_EMULATE", path, 1);
    json_t *root = backend != NULL ? probe_devices(llama_bin, backend, false, err) : NULL;
    json_t *scale = json_incref(find_scale(root, rig));
    if (root != NULL && scale == NULL) {
        ats_fail(err, "%.400s", first_message(root));
    }
    json_decref(root);
    free(backend);
    free(llama_bin);
    return scale;
}

/* ---- showing ---- */

static double emulated(const struct ats_rig *rig, const json_t *scale, int figure)
{
    const struct ats_rig_figure *f = &ats_rig_figures[figure];
    if (f->offset == offsetof(struct ats_rig, rates.cpu_threads)) {
        return json_number_value(json_object_get(scale, "threads"));
    }
    const double factor = json_number_value(json_object_get(scale, "factor"));
    return ats_rig_value(rig, figure) * pow(factor, f->scale_power);
}

/* The CPU's speed in batches is what it is here. */
static json_t *emulated_or_measured(const struct ats_rig *rig, const json_t *scale, int figure)
{
    if (ats_rig_figures[figure].offset == offsetof(struct ats_rig, cpu_gflops)) {
        const json_t *host = json_object_get(scale, "host");
        return host == NULL ? json_null() : json_copy(json_object_get(host, "matmul_gflops"));
    }
    return json_real(emulated(rig, scale, figure));
}

static json_t *describe(const struct ats_rig *rig, json_t *scale)
{
    json_t *figures = json_array();
    for (int i = 0; i < ATS_RIG_FIGURES; i++) {
        const struct ats_rig_figure *f = &ats_rig_figures[i];
        json_array_append_new(
            figures, json_pack("{s:s, s:s, s:s, s:f, s:o, s:s}", "section", f->section, "key",
                               f->key, "unit", f->unit, "real", ats_rig_value(rig, i), "emulated",
                               emulated_or_measured(rig, scale, i), "source",
                               rig->sources[i][0] != '\0' ? rig->sources[i] : "default"));
    }
    return json_pack("{s:s, s:s, s:s, s:s, s:s, s:I, s:O, s:o}", "format", "ats-rig-table-1",
                     "name", rig->name, "description", rig->description, "cpu", rig->cpu, "device",
                     rig->device, "memory_bytes", (json_int_t)rig->memory, "scale", scale,
                     "figures", figures);
}

static void print_scale(const json_t *scale)
{
    const double factor = json_number_value(json_object_get(scale, "factor"));
    const json_t *host = json_object_get(scale, "host");
    if (host == NULL) {
        printf("Scale %.4g, as given by ATS_RIG_SCALE.\n", factor);
        return;
    }
    const char *type = json_string_value(json_object_get(scale, "type"));
    char key[32];
    snprintf(key, sizeof(key), "matvec_%s_gbps", type);
    printf("Scale %.4g: this CPU reads %s weights at %.1f GB/s%s.\n", factor, type,
           json_number_value(json_object_get(host, key)),
           json_is_true(json_object_get(host, "measured_before")) ? ", as measured before" : "");
    printf("It is %.48s, %d of its threads, ggml %s.\n",
           json_string_value(json_object_get(host, "cpu")),
           (int)json_integer_value(json_object_get(scale, "threads")),
           json_string_value(json_object_get(host, "ggml")));
    printf("CPU batch compute is %.2f of what it would be on the rig: docs/rigs.md.\n",
           json_number_value(json_object_get(scale, "compute_ratio")));
}

static const char *source_of(const struct ats_rig *rig, int figure)
{
    return rig->sources[figure][0] != '\0' ? rig->sources[figure] : "default";
}

/* The number of a figure's source: figures with the same one share it. */
static int source_number(const struct ats_rig *rig, int figure)
{
    int number = 0;
    for (int i = 0; i <= figure; i++) {
        int first = 0;
        while (strcmp(source_of(rig, first), source_of(rig, i)) != 0) {
            first++;
        }
        number += first == i;
        if (strcmp(source_of(rig, i), source_of(rig, figure)) == 0) {
            return number;
        }
    }
    return number;
}

/* "n. text", broken at spaces. */
static void print_source(int number, const char *text)
{
    enum { WIDTH = 80, INDENT = 4 };
    int column = printf("%3d.", number);
    while (*text != '\0') {
        const int length = (int)strcspn(text, " ");
        if (column + 1 + length > WIDTH && column > INDENT) {
            printf("\n%*s", INDENT, "");
            column = INDENT;
        }
        column += printf(" %.*s", length, text);
        text += length;
        text += strspn(text, " ");
    }
    printf("\n");
}

static void print_sources(const struct ats_rig *rig)
{
    printf("\nSources of the real figures:\n");
    int last = 0;
    for (int i = 0; i < ATS_RIG_FIGURES; i++) {
        const int number = source_number(rig, i);
        if (number > last) {
            last = number;
            print_source(number, source_of(rig, i));
        }
    }
}

static void print_table(const struct ats_rig *rig, const json_t *scale)
{
    char memory[32];
    printf("Rig %s\n%s\n", rig->name, rig->description);
    printf("CPU: %s; device: %s, %s\n", rig->cpu, rig->device,
           ats_format_bytes(rig->memory, memory, sizeof(memory)));
    print_scale(scale);
    const char *section = "";
    for (int i = 0; i < ATS_RIG_FIGURES; i++) {
        const struct ats_rig_figure *f = &ats_rig_figures[i];
        if (strcmp(section, f->section) != 0) {
            section = f->section;
            printf("\n%-22s %10s %10s %-13s %6s\n", section, "real", "here", "", "source");
        }
        json_t *here = emulated_or_measured(rig, scale, i);
        char text[32] = "-";
        if (json_is_number(here)) {
            snprintf(text, sizeof(text), "%.4g", json_number_value(here));
        }
        json_decref(here);
        printf("  %-20s %10.4g %10s %-13s %6d\n", f->key, ats_rig_value(rig, i), text, f->unit,
               source_number(rig, i));
    }
    print_sources(rig);
}

int cli_rig(int argc, char **argv)
{
    struct options o = {0};
    cli_parse(&argp, argc, argv, &o);
    if (o.name == NULL) {
        cli_usage_error(argv[0], "the name of a rig is missing, such as laptop-3060");
    }
    struct ats_error err;
    struct ats_rig rig;
    char path[PATH_MAX];
    if (!ats_rig_find(o.name, path, sizeof(path), &err) || !ats_rig_read(path, &rig, &err)) {
        return cli_error(argv[0], &err);
    }
    json_t *scale = ask_scale(&o, path, rig.name, &err);
    if (scale == NULL) {
        return cli_error(argv[0], &err);
    }
    if (o.json) {
        cli_print_json(describe(&rig, scale), JSON_INDENT(2));
    } else {
        print_table(&rig, scale);
    }
    json_decref(scale);
    return CLI_OK;
}
