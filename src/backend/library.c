/* The library's entry points: what ggml looks up when it loads a backend. */
#include "backend/device.h"
#include "backend/observe.h"
#include "backend/stats.h"
#include "backend/stream.h"
#include "emu/emu.h"

#include <stdlib.h>
#include <string.h>

#define EXPORTED __attribute__((visibility("default")))

/* How every reason for not offering a device begins. */
#define OFF "ATS is off; models run without it: "

static struct ats_config config;

static const char *reg_get_name(ggml_backend_reg_t reg)
{
    (void)reg;
    return "ATS";
}

static size_t reg_get_device_count(ggml_backend_reg_t reg)
{
    (void)reg;
    return ats_device_count();
}

static ggml_backend_dev_t reg_get_device(ggml_backend_reg_t reg, size_t index)
{
    (void)reg;
    return index < ats_device_count() ? &ats_device_at(index)->ggml : NULL;
}

/* The name of the accelerator behind an ATS device, for `ats devices`. */
static const char *device_accelerator(ggml_backend_dev_t dev)
{
    return ggml_backend_dev_name(ats_device_of(dev)->accel);
}

/* Function pointers travel as void pointers in this interface of ggml. */
static void *reg_get_proc_address(ggml_backend_reg_t reg, const char *name)
{
    (void)reg;
    void *address = NULL;
    if (strcmp(name, "ggml_backend_set_n_threads") == 0) {
        const ggml_backend_set_n_threads_t function = ats_stream_set_n_threads;
        memcpy(&address, &function, sizeof(address));
    } else if (strcmp(name, "ggml_backend_set_abort_callback") == 0) {
        const ggml_backend_set_abort_callback_t function = ats_stream_set_abort_callback;
        memcpy(&address, &function, sizeof(address));
    } else if (strcmp(name, "ats_device_accelerator") == 0) {
        const char *(*const function)(ggml_backend_dev_t) = device_accelerator;
        memcpy(&address, &function, sizeof(address));
    } else if (strcmp(name, "ats_device_summary") == 0) {
        char *(*const function)(ggml_backend_dev_t) = ats_stats_device;
        memcpy(&address, &function, sizeof(address));
    }
    return address;
}

static struct ggml_backend_reg registry = {
    .api_version = GGML_BACKEND_API_VERSION,
    .iface =
        {
            .get_name = reg_get_name,
            .get_device_count = reg_get_device_count,
            .get_device = reg_get_device,
            .get_proc_address = reg_get_proc_address,
        },
};

static bool start(const void *caller, struct ats_error *err)
{
    return ats_ggml_bind(caller, err) && ats_config_read(&config, err) &&
           ats_emu_start(getenv("ATS_EMULATE"), err) && ats_observe_start(&config, err) &&
           ats_devices_create(&config, &registry, err);
}

EXPORTED ggml_backend_reg_t ggml_backend_init(void);

/* Called by ggml's registry, from whose module ggml's functions are taken. Without a
 * usable configuration there are no devices. A program that asks for one says so and ends;
 * one that does not goes on without, so the message must tell. */
ggml_backend_reg_t ggml_backend_init(void)
{
    static bool started;
    struct ats_error err = {{0}};
    if (started) {
        return &registry;
    }
    started = true;
    if (!start(__builtin_return_address(0), &err)) {
        if (ats_ggml.fn_ggml_log_internal == NULL) {
            /* no ggml to log through */
            fprintf(stderr, "ats: " OFF "%s\n", err.text);
            started = false;
            return NULL;
        }
        ats_log_error(OFF "%s\n", err.text);
    } else if (ats_device_count() == 0) {
        ats_log_info(
            "no accelerator found, so no ATS device; ATS_EMULATE=emu-small emulates one\n");
    }
    for (size_t i = 0; i < ats_device_count(); i++) {
        ats_log_info("%s is %s\n", ats_device_at(i)->name, ats_device_at(i)->description);
    }
    return &registry;
}
