#include "emu/profile.h"

#include "base/parse.h"
#include "cost/rig.h"
#include "emu/device.h"
#include "emu/rig_scale.h"

#include <dlfcn.h>
#include <jansson.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const size_t MIN_MEMORY = (size_t)1 << 20;
static const size_t MAX_MEMORY = (size_t)1 << 40;
/* ggml's CPU kernels want their tensors at multiples of 32 bytes */
static const size_t MIN_ALIGNMENT = 32;
static const size_t MAX_ALIGNMENT = 65536;
static const uint32_t MAX_DELAY_US = 1000000;

struct ats_emu_profile ats_emu_profile_default(void)
{
    return (struct ats_emu_profile){
        .name = "default",
        .description = "emulated accelerator",
        .memory = (size_t)1 << 30,
        .max_buffer = SIZE_MAX,
        .alignment = 128,
        .routing = ats_routing_model_default(),
        .scale = {.factor = 1},
    };
}

/* A key's value: where to put it, and for errors where it is from. */
struct reader {
    const char *path;
    const char *key;
    const json_t *value;
    struct ats_emu_profile *profile;
    struct ats_error *err;
};

static bool fail_key(const struct reader *reader, const char *allowed)
{
    return ats_fail(reader->err, "%s: \"%s\" must be %s", reader->path, reader->key, allowed);
}

static bool read_text(const struct reader *reader, char *text, size_t size, const char *allowed)
{
    const char *value = json_string_value(reader->value);
    if (value == NULL || value[0] == '\0' || json_string_length(reader->value) >= size ||
        strpbrk(value, "\n\r\t") != NULL) {
        return fail_key(reader, allowed);
    }
    memcpy(text, value, strlen(value) + 1);
    return true;
}

static bool read_integer(const struct reader *reader, uint64_t max, uint64_t *number,
                         const char *allowed)
{
    if (!json_is_integer(reader->value) || json_integer_value(reader->value) < 0 ||
        (uint64_t)json_integer_value(reader->value) > max) {
        return fail_key(reader, allowed);
    }
    *number = (uint64_t)json_integer_value(reader->value);
    return true;
}

/* A size is a number of bytes or a text such as "6G". */
static bool read_size(const struct reader *reader, size_t *bytes, const char *allowed)
{
    size_t size = 0;
    if (json_is_integer(reader->value) && json_integer_value(reader->value) >= 0) {
        size = (size_t)json_integer_value(reader->value);
    } else if (!json_is_string(reader->value) ||
               !ats_parse_bytes(json_string_value(reader->value), &size, NULL)) {
        return fail_key(reader, allowed);
    }
    if (size < MIN_MEMORY || size > MAX_MEMORY) {
        return fail_key(reader, allowed);
    }
    *bytes = size;
    return true;
}

static bool read_format(const struct reader *reader)
{
    const char *value = json_string_value(reader->value);
    return value != NULL && strcmp(value, "ats-device-1") == 0
               ? true
               : fail_key(reader, "\"ats-device-1\"");
}

static bool read_name(const struct reader *reader)
{
    return read_text(reader, reader->profile->name, sizeof(reader->profile->name),
                     "a text of 1 to 63 bytes on one line");
}

static bool read_description(const struct reader *reader)
{
    return read_text(reader, reader->profile->description, sizeof(reader->profile->description),
                     "a text of 1 to 159 bytes on one line");
}

static bool read_memory(const struct reader *reader)
{
    return read_size(reader, &reader->profile->memory,
                     "a size from 1M to 1T, in bytes or as text such as \"6G\"");
}

static bool read_max_buffer(const struct reader *reader)
{
    return read_size(reader, &reader->profile->max_buffer,
                     "a size from 1M to 1T, in bytes or as text such as \"4G\"");
}

static bool read_mode(const struct reader *reader)
{
    const char *value = json_string_value(reader->value);
    reader->profile->timed = value != NULL && strcmp(value, "timed") == 0;
    return reader->profile->timed || (value != NULL && strcmp(value, "exact") == 0)
               ? true
               : fail_key(reader, "\"exact\" or \"timed\"");
}

static bool read_max_delay(const struct reader *reader)
{
    uint64_t delay_us = 0;
    if (!read_integer(reader, MAX_DELAY_US, &delay_us,
                      "a whole number of microseconds from 0 to 1000000")) {
        return false;
    }
    reader->profile->max_delay_us = (uint32_t)delay_us;
    return true;
}

static bool read_seed(const struct reader *reader)
{
    return read_integer(reader, INT64_MAX, &reader->profile->seed,
                        "a whole number from 0 to 2^63 - 1");
}

static bool read_alignment(const struct reader *reader)
{
    static const char allowed[] = "a power of two from 32 to 65536 (bytes)";
    uint64_t alignment = 0;
    if (!read_integer(reader, MAX_ALIGNMENT, &alignment, allowed)) {
        return false;
    }
    if (alignment < MIN_ALIGNMENT || (alignment & (alignment - 1)) != 0) {
        return fail_key(reader, allowed);
    }
    reader->profile->alignment = (size_t)alignment;
    return true;
}

static bool read_inject_rule(const struct reader *reader, const char *key, const json_t *value)
{
    char text[32];
    if (json_is_integer(value)) {
        snprintf(text, sizeof(text), "%lld", (long long)json_integer_value(value));
    } else {
        const char *string = json_is_string(value) ? json_string_value(value) : "";
        snprintf(text, sizeof(text), "%s", strlen(string) < sizeof(text) ? string : "");
    }
    for (int op = 0; op < ATS_EMU_OP_COUNT; op++) {
        if (strcmp(key, ats_emu_op_name((enum ats_emu_op)op)) == 0) {
            if (ats_emu_inject_parse_rule(text, &reader->profile->inject.rule[op], NULL)) {
                return true;
            }
            return ats_fail(reader->err,
                            "%s: \"inject\": \"%s\" must be a count from 1, or a text such as "
                            "\"3+\" (all from the third on)",
                            reader->path, key);
        }
    }
    return ats_fail(reader->err,
                    "%s: \"inject\": unknown key \"%s\"; allowed are alloc, pinned, copy, "
                    "compute, loss",
                    reader->path, key);
}

static bool read_inject(const struct reader *reader)
{
    if (!json_is_object(reader->value)) {
        return fail_key(reader, "an object such as {\"copy\": 3}");
    }
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)reader->value, key, value)
    {
        if (!read_inject_rule(reader, key, value)) {
            return false;
        }
    }
    return true;
}

/* The figures of a rig, without a rig's scaling. */
static bool read_rates(const struct reader *reader)
{
    char context[PATH_MAX + 16];
    snprintf(context, sizeof(context), "%s: \"rates\"", reader->path);
    struct ats_rig rig = {.routing = reader->profile->routing};
    if (!ats_rig_read_rates(context, reader->value, &rig, reader->err)) {
        return false;
    }
    reader->profile->rates = rig.rates;
    reader->profile->routing = rig.routing;
    return true;
}

static const struct {
    const char *key;
    bool (*read)(const struct reader *reader);
    bool required;
} keys[] = {
    {"format", read_format, true},
    {"name", read_name, true},
    {"description", read_description, false},
    {"memory", read_memory, true},
    {"mode", read_mode, false},
    {"max_delay_us", read_max_delay, false},
    {"seed", read_seed, false},
    {"alignment", read_alignment, false},
    {"max_buffer", read_max_buffer, false},
    {"inject", read_inject, false},
    {"rates", read_rates, false},
};
enum { N_KEYS = sizeof(keys) / sizeof(keys[0]) };

static bool fail_unknown(const char *path, const char *key, struct ats_error *err)
{
    char allowed[256] = "";
    for (size_t i = 0; i < N_KEYS; i++) {
        const size_t length = strlen(allowed);
        snprintf(allowed + length, sizeof(allowed) - length, "%s%s", i > 0 ? ", " : "",
                 keys[i].key);
    }
    return ats_fail(err, "%s: unknown key \"%.60s\"; allowed are %s", path, key, allowed);
}

static bool read_object(const char *path, json_t *object, struct ats_emu_profile *profile,
                        struct ats_error *err)
{
    if (!json_is_object(object)) {
        return ats_fail(err, "%s: a profile is a JSON object", path);
    }
    for (size_t i = 0; i < N_KEYS; i++) {
        const json_t *value = json_object_get(object, keys[i].key);
        if (value == NULL && keys[i].required) {
            return ats_fail(err, "%s: \"%s\" is missing", path, keys[i].key);
        }
        const struct reader reader = {path, keys[i].key, value, profile, err};
        if (value != NULL && !keys[i].read(&reader)) {
            return false;
        }
    }
    if (profile->timed && json_object_get(object, "rates") == NULL) {
        return ats_fail(err, "%s: \"rates\" is missing, which mode \"timed\" needs", path);
    }
    const char *key;
    json_t *value;
    json_object_foreach(object, key, value)
    {
        size_t i = 0;
        while (i < N_KEYS && strcmp(key, keys[i].key) != 0) {
            i++;
        }
        if (i == N_KEYS) {
            return fail_unknown(path, key, err);
        }
    }
    return true;
}

/* Tells what the rig is scaled by, since all figures of a run depend on it. */
static void log_scale(const struct ats_rig *rig, const struct ats_rig_scale *scale)
{
    if (scale->given) {
        ats_log_info("rig '%s': all rates times %.3f (ATS_RIG_SCALE)\n", rig->name, scale->factor);
        return;
    }
    ats_log_info("rig '%s': all rates times %.3f: this CPU reads %s weights at %.1f GB/s with %d "
                 "thread(s)%s, the rig's at %.1f; CPU batch compute is %.2f of what it would be "
                 "on the rig\n",
                 rig->name, scale->factor, ats_family_name(scale->reference),
                 scale->host.matvec_gbps[scale->reference], scale->host.threads,
                 scale->host.cached ? " (measured before)" : "", rig->rates.cpu_gbps,
                 scale->compute_ratio);
}

/* A device as the rig has it, at the speed that this host can stand in for. */
static bool read_rig(const char *path, struct ats_emu_profile *profile, struct ats_error *err)
{
    struct ats_rig rig;
    struct ats_rig_scale scale;
    if (!ats_rig_read(path, &rig, err) || !ats_rig_scale(&rig, ats_emu_cpu_device(), &scale, err)) {
        return false;
    }
    struct ats_emu_profile read = ats_emu_profile_default();
    snprintf(read.name, sizeof(read.name), "%s", rig.name);
    snprintf(read.rig, sizeof(read.rig), "%s", rig.name);
    snprintf(read.description, sizeof(read.description), "emulated %s, rig %s", rig.device,
             rig.name);
    read.memory = rig.memory;
    read.seed = 1;
    read.timed = true;
    read.rates = ats_rig_scaled_rates(&rig, &scale);
    read.routing = rig.routing;
    read.scale = scale;
    log_scale(&rig, &scale);
    *profile = read;
    return true;
}

static bool is_rig(const json_t *object)
{
    const char *format = json_string_value(json_object_get(object, "format"));
    return format != NULL && strcmp(format, "ats-rig-1") == 0;
}

bool ats_emu_profile_read(const char *path, struct ats_emu_profile *profile, struct ats_error *err)
{
    json_error_t json_error;
    json_t *object = json_load_file(path, JSON_REJECT_DUPLICATES, &json_error);
    if (object == NULL) {
        if (json_error.line > 0) {
            return ats_fail(err, "%s:%d: %s", path, json_error.line, json_error.text);
        }
        return ats_fail(err, "%s: %s", path, json_error.text);
    }
    struct ats_emu_profile read = ats_emu_profile_default();
    const bool ok =
        is_rig(object) ? read_rig(path, &read, err) : read_object(path, object, &read, err);
    json_decref(object);
    if (ok) {
        *profile = read;
    }
    return ok;
}

/* The directory of the module that contains this code, or "" if unknown. */
static void own_directory(char *path, size_t size)
{
    static const char marker = 0;
    Dl_info info;
    path[0] = '\0';
    if (dladdr(&marker, &info) == 0 || info.dli_fname == NULL) {
        return;
    }
    const char *slash = strrchr(info.dli_fname, '/');
    if (slash == NULL) {
        snprintf(path, size, ".");
    } else {
        snprintf(path, size, "%.*s", (int)(slash - info.dli_fname), info.dli_fname);
    }
}

static bool is_path(const char *name)
{
    const size_t length = strlen(name);
    return strchr(name, '/') != NULL || (length > 5 && strcmp(name + length - 5, ".json") == 0);
}

static bool try_directory(const char *directory, const char *below, const char *name, char *path,
                          size_t size)
{
    if (directory == NULL || directory[0] == '\0') {
        return false;
    }
    const int length = snprintf(path, size, "%s%s/%s.json", directory, below, name);
    return length > 0 && (size_t)length < size && access(path, F_OK) == 0;
}

bool ats_emu_profile_find(const char *name, struct ats_emu_profile *profile, struct ats_error *err)
{
    if (is_path(name)) {
        return ats_emu_profile_read(name, profile, err);
    }
#ifdef ATS_PROFILE_DIR
    const char *built_in = ATS_PROFILE_DIR;
#else
    const char *built_in = NULL;
#endif
    const char *from_environment = getenv("ATS_PROFILES");
    char own[PATH_MAX];
    char path[PATH_MAX];
    own_directory(own, sizeof(own));
    if (try_directory(from_environment, "", name, path, sizeof(path)) ||
        try_directory(own, "/../share/ats/profiles", name, path, sizeof(path)) ||
        try_directory(own, "/../profiles", name, path, sizeof(path)) ||
        try_directory(built_in, "", name, path, sizeof(path))) {
        return ats_emu_profile_read(path, profile, err);
    }
    if (ats_rig_find(name, path, sizeof(path), NULL)) {
        return ats_emu_profile_read(path, profile, err);
    }
    return ats_fail(err,
                    "no device profile '%.60s': looked for %.60s.json in ATS_PROFILES=%.80s, "
                    "%.80s/../share/ats/profiles, %.80s/../profiles%s%.80s, and for a rig of that "
                    "name; a path to a JSON file works too",
                    name, name, from_environment == NULL ? "(not set)" : from_environment, own, own,
                    built_in == NULL ? "" : ", ", built_in == NULL ? "" : built_in);
}

static bool fail_variable(struct ats_error *err, const char *name, const struct ats_error *cause)
{
    return ats_fail(err, "%s: %.400s", name, cause->text);
}

static bool override_number(const char *name, uint64_t max, uint64_t *number, struct ats_error *err)
{
    const char *text = getenv(name);
    struct ats_error cause;
    if (text == NULL || text[0] == '\0' || ats_parse_u64(text, max, number, &cause)) {
        return true;
    }
    return fail_variable(err, name, &cause);
}

bool ats_emu_profile_override(struct ats_emu_profile *profile, struct ats_error *err)
{
    struct ats_emu_profile changed = *profile;
    struct ats_error cause;
    const char *memory = getenv("ATS_EMU_MEMORY");
    if (memory != NULL && memory[0] != '\0') {
        if (!ats_parse_bytes(memory, &changed.memory, &cause)) {
            return fail_variable(err, "ATS_EMU_MEMORY", &cause);
        }
        if (changed.memory < MIN_MEMORY || changed.memory > MAX_MEMORY) {
            return ats_fail(err, "ATS_EMU_MEMORY: %.60s is not a size from 1M to 1T", memory);
        }
    }
    const char *spec = getenv("ATS_EMU_FAIL");
    if (spec != NULL && spec[0] != '\0' && !ats_emu_inject_parse(spec, &changed.inject, &cause)) {
        return fail_variable(err, "ATS_EMU_FAIL", &cause);
    }
    const char *load = getenv("ATS_EMU_LOAD");
    if (load != NULL && load[0] != '\0') {
        if (!ats_emu_load_parse(load, &changed.load, &cause)) {
            return fail_variable(err, "ATS_EMU_LOAD", &cause);
        }
        if (!changed.timed) {
            ats_log_warn("ATS_EMU_LOAD is ignored: '%s' is not in timed mode\n", changed.name);
        }
    }
    uint64_t delay_us = changed.max_delay_us;
    if (!override_number("ATS_EMU_SEED", UINT64_MAX, &changed.seed, err) ||
        !override_number("ATS_EMU_DELAY_US", MAX_DELAY_US, &delay_us, err)) {
        return false;
    }
    changed.max_delay_us = (uint32_t)delay_us;
    *profile = changed;
    return true;
}
