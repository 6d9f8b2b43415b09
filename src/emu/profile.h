/* What an emulated device is like: read from a JSON file, then overridden by
 * the environment. See docs of the keys in profiles/emu-6g.json and profile.c. */
#ifndef ATS_EMU_PROFILE_H
#define ATS_EMU_PROFILE_H

#include "base/error.h"
#include "emu/inject.h"
#include "emu/load.h"
#include "emu/rig_scale.h"

#include <stddef.h>
#include <stdint.h>

struct ats_emu_profile {
    char name[64];
    char description[160];
    size_t memory;         /* bytes */
    size_t max_buffer;     /* bytes: the largest single buffer */
    size_t alignment;      /* bytes, a power of two: of tensors in a buffer */
    uint64_t seed;         /* of the random pauses */
    uint32_t max_delay_us; /* the longest pause before a command; 0: none */
    bool timed;            /* mode "timed" */
    struct ats_emu_inject_rules inject;

    /* of timed mode alone */
    struct ats_device_rates rates;    /* as emulated, after scaling */
    struct ats_routing_model routing; /* of experts */
    char rig[64];                     /* the rig that it is made from, or "" */
    struct ats_rig_scale scale;       /* of the rig's rates to this host; factor 1 without a rig */
    struct ats_emu_load_schedule load;
};

/* 1 GiB, exact, without pauses or failures. */
struct ats_emu_profile ats_emu_profile_default(void);

/* Reads one profile file. Anything unknown, mistyped or out of range is an
 * error that names file, key and what is allowed. A rig's file (cost/rig.h) gives a timed device
 * scaled to this host, whose CPU is measured if that was not done before. */
bool ats_emu_profile_read(const char *path, struct ats_emu_profile *profile, struct ats_error *err);

/* Finds and reads a profile by name or path: `name` is a path if it holds a
 * slash or ends in ".json"; otherwise NAME.json is looked for in
 * $ATS_PROFILES, next to this library (../share/ats/profiles, ../profiles) and in the
 * directory set at compile time, then a rig of that name. */
bool ats_emu_profile_find(const char *name, struct ats_emu_profile *profile, struct ats_error *err);

/* Applies ATS_EMU_MEMORY, ATS_EMU_SEED, ATS_EMU_DELAY_US, ATS_EMU_FAIL and ATS_EMU_LOAD, which a
 * device in exact mode ignores with a message. */
bool ats_emu_profile_override(struct ats_emu_profile *profile, struct ats_error *err);

#endif
