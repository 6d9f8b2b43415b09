/* What a profile holds for, found out, and where it is kept.
 *
 * Touches files below /proc and /sys and the environment, nothing else; no
 * ggml: the caller says what ggml says of the device. */
#ifndef ATS_PROFILE_IDENTITY_H
#define ATS_PROFILE_IDENTITY_H

#include "profile/profile.h"

/* Borrowed texts of ggml. */
struct ats_profile_device_facts {
    const char *name;        /* ggml_backend_dev_name: "CUDA0" */
    const char *description; /* ggml_backend_dev_description */
    uint64_t total_bytes;    /* ggml_backend_dev_memory */
    const char *registry;    /* ggml_backend_reg_name: "CUDA" */
    const char *emulation;   /* ats_emu_describe's JSON, or NULL for a real device */
    const char *ggml;        /* ggml_version */
};

/* `threads` of 0: not known yet. The driver is told by the kernel's module of the vendor, else by
 * the kernel's release, of which the driver is a part; an emulated device's by what it emulates,
 * the scale to this host rounded to two digits. */
void ats_profile_identify(const struct ats_profile_device_facts *facts, int threads,
                          struct ats_profile_identity *identity);

/* $XDG_CACHE_HOME/ats/profile-HASH-tN.json or -auto.json (~/.cache/ats without that variable). The
 * hash is of the CPU's and the device's names, so that a profile of an older driver or ggml is
 * found, seen to be stale and replaced; `auto` is the profile whose thread count was chosen by
 * measuring. False with an error if there is no home. */
bool ats_profile_path(const struct ats_profile_identity *identity, bool is_auto, char *path,
                      size_t size, struct ats_error *err);

/* Makes the folders that a path is in. False with errno set. */
bool ats_profile_make_folders(const char *path);

#endif
