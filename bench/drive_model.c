#include "drive_model.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void log_errors(enum ggml_log_level level, const char *text, void *verbose)
{
    static enum ggml_log_level last;
    if (level != GGML_LOG_LEVEL_CONT) {
        last = level;
    }
    if (*(const bool *)verbose || last >= GGML_LOG_LEVEL_WARN) {
        fputs(text, stderr);
    }
}

static ggml_backend_buffer_type_t find_buffer_type(const char *name)
{
    for (size_t i = 0; i < ggml_backend_dev_count(); i++) {
        ggml_backend_buffer_type_t type = ggml_backend_dev_buffer_type(ggml_backend_dev_get(i));
        if (type != NULL && strcmp(ggml_backend_buft_name(type), name) == 0) {
            return type;
        }
    }
    return NULL;
}

/* The tensors that the command line puts elsewhere; ends the process on a wrong one. The
 * patterns are never freed: llama.cpp keeps pointers to them. */
static void fill_overrides(const struct drive_options *o,
                           struct llama_model_tensor_buft_override *list)
{
    size_t n = 0;
    ggml_backend_buffer_type_t cpu = find_buffer_type("CPU");
    for (int layer = 0; layer < o->n_cpu_moe; layer++) {
        char pattern[80];
        snprintf(pattern, sizeof(pattern), "blk\\.%d\\.ffn_(up|down|gate|gate_up)_(ch|)exps",
                 layer);
        list[n++] = (struct llama_model_tensor_buft_override){strdup(pattern), cpu};
    }
    for (size_t i = 0; i < o->n_overrides; i++) {
        char *pattern = strdup(o->overrides[i]);
        char *buffer = pattern == NULL ? NULL : strrchr(pattern, '=');
        ggml_backend_buffer_type_t type = NULL;
        if (buffer != NULL) {
            *buffer++ = '\0';
            type = find_buffer_type(buffer);
        }
        if (type == NULL) {
            fprintf(stderr, "drive: --override %s: no such buffer type\n", o->overrides[i]);
            exit(1);
        }
        list[n++] = (struct llama_model_tensor_buft_override){pattern, type};
    }
    list[n] = (struct llama_model_tensor_buft_override){NULL, NULL};
}

ggml_backend_dev_t drive_device(const struct drive_options *o)
{
    if (strcmp(o->device, "none") == 0) {
        return NULL;
    }
    ggml_backend_dev_t device = ggml_backend_dev_by_name(o->device);
    if (device == NULL) {
        fprintf(stderr, "drive: there is no device %s; there are", o->device);
        for (size_t i = 0; i < ggml_backend_dev_count(); i++) {
            fprintf(stderr, " %s", ggml_backend_dev_name(ggml_backend_dev_get(i)));
        }
        fprintf(stderr, "\n");
        exit(1);
    }
    return device;
}

/* Makes a large card small, for every system alike: holds memory until only so much is free.
 * In pieces, as drivers limit the size of one. Held until the process ends. Returns what is free
 * then, which the device's own needs may have made less than the cap. */
static size_t cap_memory(const struct drive_options *o)
{
    const size_t piece = (size_t)1 << 30;
    ggml_backend_dev_t device = ggml_backend_dev_by_name(o->cap_device);
    if (device == NULL) {
        fprintf(stderr, "drive: --cap: there is no device %s\n", o->cap_device);
        exit(1);
    }
    size_t free_bytes = 0;
    size_t total = 0;
    ggml_backend_dev_memory(device, &free_bytes, &total);
    if (free_bytes < o->cap_bytes) {
        fprintf(stderr, "drive: --cap: %s has only %zu bytes free, less than the cap of %llu\n",
                o->cap_device, free_bytes, (unsigned long long)o->cap_bytes);
        exit(1);
    }
    while (free_bytes > o->cap_bytes) {
        const size_t left = free_bytes - o->cap_bytes;
        const size_t bytes = left < piece ? left : piece;
        ggml_backend_buffer_t held =
            ggml_backend_buft_alloc_buffer(ggml_backend_dev_buffer_type(device), bytes);
        if (held == NULL) {
            fprintf(stderr, "drive: --cap: cannot hold %zu bytes of %s\n", bytes, o->cap_device);
            exit(1);
        }
        ggml_backend_buffer_clear(held, 0); /* some drivers commit memory on first use */
        free_bytes -= bytes;
    }
    ggml_backend_dev_memory(device, &free_bytes, &total);
    return free_bytes < o->cap_bytes ? free_bytes : (size_t)o->cap_bytes;
}

/* ATS reads its budget when it is loaded, and leaves a part of the whole device alone. On a
 * capped device it is loaded after the cap, with a budget that leaves the same part of the cap
 * alone, unless ATS_VRAM is set. */
static void load_backends(const struct drive_options *o)
{
    enum { MARGIN_DIVISOR = 16 }; /* docs/configuration.md, ATS_VRAM */
    const char *library = getenv("GGML_BACKEND_PATH");
    char *last = o->cap_device == NULL || library == NULL ? NULL : strdup(library);
    if (last != NULL) {
        unsetenv("GGML_BACKEND_PATH");
    }
    ggml_backend_load_all_from_path(o->libraries);
    if (o->cap_device == NULL) {
        return;
    }
    const size_t free_bytes = cap_memory(o);
    const size_t margin = (size_t)(o->cap_bytes / MARGIN_DIVISOR);
    char budget[32];
    snprintf(budget, sizeof(budget), "%zu", free_bytes > margin ? free_bytes - margin : 0);
    setenv("ATS_VRAM", budget, 0);
    if (last != NULL && ggml_backend_load(last) == NULL) {
        fprintf(stderr, "drive: cannot load %s\n", last);
        exit(1);
    }
    free(last);
}

void drive_start(const struct drive_options *o)
{
    static bool verbose;
    verbose = o->verbose;
    llama_log_set(log_errors, &verbose);
    load_backends(o);
    llama_backend_init();
}

struct llama_model *drive_load(const struct drive_options *o, ggml_backend_dev_t device)
{
    static struct llama_model_tensor_buft_override overrides[MAX_OVERRIDES + 1];
    static ggml_backend_dev_t devices[2]; /* ends with NULL */
    devices[0] = device;
    fill_overrides(o, overrides);
    struct llama_model_params params = llama_model_default_params();
    params.devices = devices;
    params.n_gpu_layers = device == NULL ? 0 : o->n_layers;
    params.load_mode = llama_load_mode_from_str(o->load);
    params.no_host = o->no_host;
    params.tensor_buft_overrides = overrides;
    struct llama_model *model = llama_model_load_from_file(o->model, params);
    if (model == NULL) {
        fprintf(stderr, "drive: cannot load %s\n", o->model);
        exit(1);
    }
    return model;
}

struct llama_context *drive_context(const struct drive_options *o, struct llama_model *model)
{
    struct llama_context_params params = llama_context_default_params();
    params.n_ctx = (uint32_t)o->n_ctx;
    params.n_batch = (uint32_t)o->n_ubatch;
    params.n_ubatch = (uint32_t)o->n_ubatch;
    params.n_threads = (int32_t)o->n_threads;
    params.n_threads_batch = (int32_t)o->n_threads;
    params.no_perf = true;
    params.swa_full = false; /* as llama.cpp's own programs have it */
    struct llama_context *context = llama_init_from_model(model, params);
    if (context == NULL) {
        fprintf(stderr, "drive: cannot create a context of %llu tokens\n",
                (unsigned long long)o->n_ctx);
        exit(1);
    }
    return context;
}
