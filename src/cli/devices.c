/* `ats devices`: what the backend library would work with. */
#include "base/parse.h"
#include "cli/cli.h"
#include "cli/paths.h"
#include "cli/probe.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { KEY_JSON = CLI_KEY_FIRST, KEY_EMULATE, KEY_ACCEL, KEY_LLAMA_BIN };

struct options {
    bool json;
    bool verbose;
    const char *llama_bin;
};

static const struct argp_option option_table[] = {
    {"json", KEY_JSON, NULL, 0, "Print JSON", 0},
    {"emulate", KEY_EMULATE, "PROFILE", 0, "Add an emulated accelerator (sets ATS_EMULATE)", 0},
    {"accel", KEY_ACCEL, "NAMES", 0, "Use only these accelerators (sets ATS_ACCEL)", 0},
    {"llama-bin", KEY_LLAMA_BIN, "DIR", 0, "Folder with llama.cpp's programs and libraries", 0},
    {"verbose", 'v', NULL, 0, "Show ggml's log on stderr", 0},
    CLI_HELP_OPTION,
    {0},
};

static const struct cli_field fields[] = {
    CLI_FLAG_FIELD(KEY_JSON, struct options, json),
    CLI_VARIABLE_FIELD(KEY_EMULATE, "ATS_EMULATE"),
    CLI_VARIABLE_FIELD(KEY_ACCEL, "ATS_ACCEL"),
    CLI_TEXT_FIELD(KEY_LLAMA_BIN, struct options, llama_bin),
    CLI_FLAG_FIELD('v', struct options, verbose),
    {0},
};

static error_t parse_option(int key, char *arg, struct argp_state *state)
{
    return cli_parse_field(fields, key, arg, state, state->input);
}

static const struct argp argp = {
    option_table,
    parse_option,
    NULL,
    "Shows the CPU, the accelerators that ggml finds, and the ATS devices: each ATS device "
    "joins one accelerator with the CPU."
    "\v"
    "Examples:\n"
    "  ats devices\n"
    "  ats devices --emulate emu-small\n"
    "  ats devices --json | jq -r '.ats[].name'\n"
    "\n"
    "With --json, an object: format (\"ats-devices-1\"), ggml_version, llama_bin, backend "
    "{path, loaded}, cpu (a device, or null), accelerators (devices), ats (devices), messages "
    "(warnings and errors while loading). A device is {name, description, type, registry, "
    "memory_free_bytes, memory_total_bytes, capabilities {async, events, host_buffer, "
    "buffer_from_host_ptr, mmap}}; the CPU has cores, an accelerator has emulated (true or "
    "false) and emulation (null, or {profile, mode}, for a rig rig and scale, in timed mode load), "
    "an ATS device "
    "has accelerator (the name of the one it uses, or null).",
    NULL,
    NULL,
    NULL};

static const char *text_of(const json_t *object, const char *key)
{
    const char *text = json_string_value(json_object_get(object, key));
    return text != NULL ? text : "-";
}

static size_t bytes_of(const json_t *object, const char *key)
{
    json_int_t value = json_integer_value(json_object_get(object, key));
    return value > 0 ? (size_t)value : 0;
}

static bool can(const json_t *device, const char *capability)
{
    return json_is_true(json_object_get(json_object_get(device, "capabilities"), capability));
}

static void heading(const char *text)
{
    bool bold = cli_colours(STDOUT_FILENO);
    printf("%s%s%s\n", bold ? "\033[1m" : "", text, bold ? "\033[0m" : "");
}

static void print_memory(const json_t *device)
{
    char free_text[32];
    char total_text[32];
    printf("%s free of %s",
           ats_format_bytes(bytes_of(device, "memory_free_bytes"), free_text, sizeof free_text),
           ats_format_bytes(bytes_of(device, "memory_total_bytes"), total_text, sizeof total_text));
}

/* Name and description; 68 characters of the latter still fit into 80 columns. */
static void print_title(const json_t *device)
{
    printf("  %-8s  %.68s\n", text_of(device, "name"), text_of(device, "description"));
}

static void print_cpu(const json_t *cpu)
{
    heading("CPU");
    if (!json_is_object(cpu)) {
        printf("  ggml's CPU backend was not found\n");
        return;
    }
    print_title(cpu);
    printf("            %lld cores, ",
           (long long)json_integer_value(json_object_get(cpu, "cores")));
    print_memory(cpu);
    printf("\n");
}

static void print_capabilities(const json_t *device)
{
    static const struct {
        const char *key;
        const char *text;
    } list[] = {{"async", "asynchronous"},
                {"events", "events"},
                {"host_buffer", "pinned memory"},
                {"buffer_from_host_ptr", "host pointers"},
                {"mmap", "mmap"}};
    bool any = false;
    for (size_t i = 0; i < sizeof list / sizeof list[0]; i++) {
        if (can(device, list[i].key)) {
            printf("%s%s", any ? ", " : "", list[i].text);
            any = true;
        }
    }
    printf("%s\n", any ? "" : "no optional capabilities");
}

static void print_accelerators(const json_t *devices)
{
    heading("Accelerators");
    size_t i;
    json_t *device;
    json_array_foreach(devices, i, device)
    {
        print_title(device);
        printf("            ");
        print_memory(device);
        printf(", registry %s%s\n            ", text_of(device, "registry"),
               json_is_true(json_object_get(device, "emulated")) ? ", emulated" : "");
        print_capabilities(device);
    }
    if (json_array_size(devices) == 0) {
        printf("  none; an emulated one: ats devices --emulate emu-small\n");
    }
}

static void print_ats(const json_t *devices)
{
    heading("ATS devices");
    size_t i;
    json_t *device;
    json_array_foreach(devices, i, device)
    {
        print_title(device);
        printf("            ");
        const char *accelerator = json_string_value(json_object_get(device, "accelerator"));
        if (accelerator != NULL) {
            printf("CPU and %s, ", accelerator);
        }
        print_memory(device);
        printf("\n");
    }
    if (json_array_size(devices) == 0) {
        printf("  none: models run on the CPU only\n");
    }
}

static void print_messages(const json_t *root)
{
    size_t i;
    json_t *message;
    json_array_foreach(json_object_get(root, "messages"), i, message)
    {
        fprintf(stderr, "%s\n", json_string_value(message));
    }
}

static int show(const char *who, json_t *root, const struct options *o)
{
    bool loaded = json_is_true(json_object_get(json_object_get(root, "backend"), "loaded"));
    if (o->json) {
        cli_print_json(json_incref(root), JSON_INDENT(2));
    } else {
        print_cpu(json_object_get(root, "cpu"));
        print_accelerators(json_object_get(root, "accelerators"));
        print_ats(json_object_get(root, "ats"));
        fflush(stdout);
        if (!o->verbose) {
            print_messages(root);
        }
    }
    if (!loaded) {
        fprintf(stderr, "%s: the backend library %s could not be loaded\n", who,
                text_of(json_object_get(root, "backend"), "path"));
        return CLI_FAILED;
    }
    return CLI_OK;
}

int cli_devices(int argc, char **argv)
{
    struct options o = {0};
    cli_parse(&argp, argc, argv, &o);
    struct ats_error err;
    char *llama_bin = paths_llama_bin(o.llama_bin, &err);
    char *backend = llama_bin != NULL ? paths_backend(&err) : NULL;
    json_t *root = backend != NULL ? probe_devices(llama_bin, backend, o.verbose, &err) : NULL;
    int result = root != NULL ? show(argv[0], root, &o) : cli_error(argv[0], &err);
    json_decref(root);
    free(backend);
    free(llama_bin);
    return result;
}
