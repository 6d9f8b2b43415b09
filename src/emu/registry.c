/* The registry "EMU": the devices that ats_emu_start made, and the functions
 * that programs look up by name. */
#include "emu/backend.h"
#include "emu/report.h"

#include "base/parse.h"

#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_DEVICES = 16 };

/* Written by ats_emu_start before ggml knows the registry, constant afterwards. */
static struct ats_emu_device *devices[MAX_DEVICES];
static size_t n_devices;
static char *started_spec;

static const char *registry_name(ggml_backend_reg_t reg)
{
    (void)reg;
    return "EMU";
}

static size_t registry_device_count(ggml_backend_reg_t reg)
{
    (void)reg;
    return n_devices;
}

static ggml_backend_dev_t registry_device(ggml_backend_reg_t reg, size_t index)
{
    (void)reg;
    return index < n_devices ? &devices[index]->dev : NULL;
}

static bool register_host_buffer(void *address, size_t size)
{
    return ats_emu_pinned_register(address, size);
}

static void unregister_host_buffer(void *address)
{
    ats_emu_drain_all();
    ats_emu_pinned_unregister(address);
}

static void *registry_function(ggml_backend_reg_t reg, const char *name)
{
    (void)reg;
    static const struct {
        const char *name;
        void (*function)(void);
    } functions[] = {
        {"ggml_backend_set_n_threads", (void (*)(void))ats_emu_set_n_threads},
        {"ggml_backend_set_abort_callback", (void (*)(void))ats_emu_set_abort_callback},
        {"ggml_backend_register_host_buffer", (void (*)(void))register_host_buffer},
        {"ggml_backend_unregister_host_buffer", (void (*)(void))unregister_host_buffer},
        {"ats_backend_take_error", (void (*)(void))ats_emu_take_error},
        {"ats_backend_observe", (void (*)(void))ats_emu_observe},
        {"ats_backend_tag", (void (*)(void))ats_emu_tag},
        {"ats_emu_inject", (void (*)(void))ats_emu_inject},
        {"ats_emu_set_load", (void (*)(void))ats_emu_set_load},
        {"ats_emu_counters", (void (*)(void))ats_emu_counters},
        {"ats_emu_describe", (void (*)(void))ats_emu_describe},
        {"ats_emu_occupy", (void (*)(void))ats_emu_occupy},
    };
    for (size_t i = 0; i < sizeof(functions) / sizeof(functions[0]); i++) {
        if (strcmp(name, functions[i].name) == 0) {
            /* POSIX: a function pointer fits into a void pointer; ISO C has no cast for it */
            void *address;
            memcpy(&address, &functions[i].function, sizeof(address));
            return address;
        }
    }
    return NULL;
}

ggml_backend_reg_t ats_emu_registry(void)
{
    static struct ggml_backend_reg registry = {
        .api_version = GGML_BACKEND_API_VERSION,
        .iface = {.get_name = registry_name,
                  .get_device_count = registry_device_count,
                  .get_device = registry_device,
                  .get_proc_address = registry_function},
    };
    return &registry;
}

bool ats_emu_occupy(ggml_backend_dev_t dev, size_t bytes)
{
    if (!ats_emu_is_device(dev)) {
        return false;
    }
    struct ats_emu_device *device = dev->context;
    ats_emu_memory_occupy(&device->memory, bytes);
    return true;
}

bool ats_emu_inject(ggml_backend_dev_t dev, const char *spec, struct ats_error *err)
{
    if (!ats_emu_is_device(dev)) {
        return ats_fail(err, "not an emulated device");
    }
    struct ats_emu_inject_rules rules;
    if (!ats_emu_inject_parse(spec, &rules, err)) {
        return false;
    }
    struct ats_emu_device *device = dev->context;
    ats_emu_injector_set(&device->injector, &rules);
    return true;
}

/* Reads the profiles of a comma-separated list. */
static bool read_profiles(const char *spec, struct ats_emu_profile *profiles, size_t *count,
                          struct ats_error *err)
{
    *count = 0;
    for (const char *at = spec;; at++) {
        char item[1024];
        const size_t length = strcspn(at, ",");
        if (length == 0 || length >= sizeof(item)) {
            return ats_fail(err,
                            "'%.200s' is not a comma-separated list of device profiles; "
                            "write e.g. emu-6g or emu-6g,./mine.json",
                            spec);
        }
        if (*count == MAX_DEVICES) {
            return ats_fail(err, "more than %d emulated devices", MAX_DEVICES);
        }
        memcpy(item, at, length);
        item[length] = '\0';
        if (!ats_emu_profile_find(item, &profiles[*count], err) ||
            !ats_emu_profile_override(&profiles[*count], err)) {
            return false;
        }
        (*count)++;
        at += length;
        if (*at == '\0') {
            return true;
        }
    }
}

/* ggml keeps pointers into this library from now on, but it unloads a library
 * whose initialisation fails after this, or that is loaded twice. */
static void stay_loaded(void)
{
    Dl_info info;
    if (dladdr(devices, &info) != 0 && info.dli_fname != NULL) {
        dlopen(info.dli_fname, RTLD_LAZY | RTLD_NOLOAD | RTLD_NODELETE);
    }
}

static bool create_devices(const char *spec, struct ats_error *err)
{
    struct ats_emu_profile profiles[MAX_DEVICES];
    size_t count = 0;
    if (!read_profiles(spec, profiles, &count, err)) {
        return false;
    }
    for (size_t i = 0; i < count; i++) {
        devices[i] = ats_emu_device_create(&profiles[i], (int)i, err);
        if (devices[i] == NULL) {
            while (i > 0) {
                ats_emu_device_destroy(devices[--i]);
                devices[i] = NULL;
            }
            return false;
        }
    }
    n_devices = count;
    for (size_t i = 0; i < count; i++) {
        char memory[32];
        ats_log_info("%s: emulated device '%s', %s, seed %llu, %s\n", devices[i]->name,
                     profiles[i].name,
                     ats_format_bytes(devices[i]->memory.size, memory, sizeof(memory)),
                     (unsigned long long)profiles[i].seed,
                     profiles[i].timed ? "timed: results are not computed" : "exact");
    }
    return true;
}

bool ats_emu_start(const char *spec, struct ats_error *err)
{
    if (spec == NULL || spec[0] == '\0') {
        return true;
    }
    if (started_spec != NULL) {
        return strcmp(spec, started_spec) == 0 ||
               ats_fail(err, "the emulated devices exist already, made from '%.200s'",
                        started_spec);
    }
    char *spec_copy = strdup(spec);
    if (spec_copy == NULL) {
        return ats_fail(err, "out of host memory for the emulated devices");
    }
    if (!create_devices(spec, err)) {
        free(spec_copy);
        return false;
    }
    started_spec = spec_copy;
    stay_loaded();
    ats_emu_report_at_exit(devices, n_devices);
    ggml_backend_register(ats_emu_registry());
    return true;
}
