/* What a profile of a device is named after, asked of ggml.
 *
 * Defined here because it is compiled twice: into the backend library, which calls the ggml that it
 * is bound to (bind/ggml_bind.h), and into the program that measures, which is linked with one. */
#ifndef ATS_MEASURE_IDENTIFY_H
#define ATS_MEASURE_IDENTIFY_H

#include "profile/identity.h"

#include <ggml-backend.h>
#include <stdlib.h>
#include <string.h>

/* Any thread. */
static inline void ats_identify_device(ggml_backend_dev_t device, int threads,
                                       struct ats_profile_identity *identity)
{
    ggml_backend_reg_t registry = ggml_backend_dev_backend_reg(device);
    char *(*describe)(ggml_backend_dev_t) = NULL;
    void *address = ggml_backend_reg_get_proc_address(registry, "ats_emu_describe");
    if (address != NULL) {
        memcpy(&describe, &address, sizeof(describe));
    }
    char *emulation = describe != NULL ? describe(device) : NULL;
    size_t free_bytes = 0;
    size_t total_bytes = 0;
    ggml_backend_dev_memory(device, &free_bytes, &total_bytes);
    const struct ats_profile_device_facts facts = {
        .name = ggml_backend_dev_name(device),
        .description = ggml_backend_dev_description(device),
        .total_bytes = total_bytes,
        .registry = ggml_backend_reg_name(registry),
        .emulation = emulation,
        .ggml = ggml_version(),
    };
    ats_profile_identify(&facts, threads, identity);
    free(emulation);
}

#endif
