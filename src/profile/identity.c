#include "profile/identity.h"

#include <errno.h>
#include <jansson.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/utsname.h>

/* The rest of the first line of a file that begins with `key`, behind a colon if the key is not
 * empty. */
static bool read_line(const char *path, const char *key, char *text, size_t size)
{
    FILE *file = fopen(path, "r");
    char line[512];
    bool found = false;
    while (!found && file != NULL && fgets(line, sizeof(line), file) != NULL) {
        if (strncmp(line, key, strlen(key)) == 0) {
            const char *colon = key[0] == '\0' ? NULL : strchr(line, ':');
            const char *rest = colon == NULL ? line : colon + 1;
            rest += strspn(rest, " \t");
            snprintf(text, size, "%.*s", (int)strcspn(rest, "\r\n"), rest);
            found = true;
        }
    }
    if (file != NULL) {
        fclose(file);
    }
    return found;
}

/* Texts end up in JSON and on terminals. */
static void make_plain(char *text)
{
    for (; *text != '\0'; text++) {
        if ((unsigned char)*text < ' ' || (unsigned char)*text > '~') {
            *text = '?';
        }
    }
}

static void set_text(char *text, size_t size, const char *value)
{
    snprintf(text, size, "%s", value == NULL ? "unknown" : value);
    make_plain(text);
}

/* "laptop-3060 x 0.61", or the profile's name. */
static void describe_emulation(const char *emulation, char *text, size_t size)
{
    json_t *object = json_loads(emulation, 0, NULL);
    const char *rig = json_string_value(json_object_get(object, "rig"));
    const char *profile = json_string_value(json_object_get(object, "profile"));
    const json_t *factor = json_object_get(json_object_get(object, "scale"), "factor");
    if (rig != NULL && json_is_number(factor)) {
        snprintf(text, size, "emulated %.60s x %.2g", rig, json_number_value(factor));
    } else {
        snprintf(text, size, "emulated %.60s", profile != NULL ? profile : "device");
    }
    json_decref(object);
    make_plain(text);
}

static void describe_driver(const struct ats_profile_device_facts *facts, char *text, size_t size)
{
    static const char *const modules[] = {"nvidia", "amdgpu", "xe", "i915"};
    if (facts->emulation != NULL) {
        describe_emulation(facts->emulation, text, size);
        return;
    }
    const char *registry = facts->registry == NULL ? "unknown" : facts->registry;
    for (size_t i = 0; i < sizeof(modules) / sizeof(modules[0]); i++) {
        char path[64];
        char version[80];
        snprintf(path, sizeof(path), "/sys/module/%s/version", modules[i]);
        if (read_line(path, "", version, sizeof(version))) {
            snprintf(text, size, "%.40s, %s %.70s", registry, modules[i], version);
            make_plain(text);
            return;
        }
    }
    struct utsname kernel;
    const bool known = uname(&kernel) == 0;
    snprintf(text, size, "%.40s, Linux %.80s", registry, known ? kernel.release : "unknown");
    make_plain(text);
}

void ats_profile_identify(const struct ats_profile_device_facts *facts, int threads,
                          struct ats_profile_identity *identity)
{
    *identity =
        (struct ats_profile_identity){.device_bytes = facts->total_bytes, .threads = threads};
    char text[ATS_PROFILE_TEXT];
    const bool has_model = read_line("/proc/cpuinfo", "model name", text, sizeof(text));
    set_text(identity->cpu, sizeof(identity->cpu), has_model ? text : NULL);
    if (read_line("/proc/meminfo", "MemTotal", text, sizeof(text))) {
        identity->host_bytes = strtoull(text, NULL, 10) << 10;
    }
    set_text(identity->device, sizeof(identity->device), facts->name);
    set_text(identity->description, sizeof(identity->description), facts->description);
    set_text(identity->ggml, sizeof(identity->ggml), facts->ggml);
    describe_driver(facts, identity->driver, sizeof(identity->driver));
}

/* FNV-1a (Fowler, Noll, Vo); the end of each text counts. */
static uint64_t hash_text(uint64_t hash, const char *text)
{
    const size_t n = strlen(text) + 1;
    for (size_t i = 0; i < n; i++) {
        hash = (hash ^ (uint8_t)text[i]) * UINT64_C(0x100000001B3);
    }
    return hash;
}

static bool find_folder(char *folder, size_t size)
{
    const char *cache = getenv("XDG_CACHE_HOME");
    const char *home = getenv("HOME");
    int length = -1;
    if (cache != NULL && cache[0] == '/') {
        length = snprintf(folder, size, "%s/ats", cache);
    } else if (home != NULL && home[0] == '/') {
        length = snprintf(folder, size, "%s/.cache/ats", home);
    }
    return length > 0 && (size_t)length < size;
}

bool ats_profile_path(const struct ats_profile_identity *i, bool is_auto, char *path, size_t size,
                      struct ats_error *err)
{
    char folder[PATH_MAX];
    if (!find_folder(folder, sizeof(folder))) {
        return ats_fail(err, "no folder to keep profiles in: set HOME or XDG_CACHE_HOME to an "
                             "absolute path, or name a file with --out");
    }
    uint64_t hash = UINT64_C(0xCBF29CE484222325);
    hash = hash_text(hash_text(hash_text(hash, i->cpu), i->device), i->description);
    char threads[24] = "auto";
    if (!is_auto) {
        snprintf(threads, sizeof(threads), "t%d", i->threads);
    }
    const int length = snprintf(path, size, "%s/profile-%016llx-%s.json", folder,
                                (unsigned long long)hash, threads);
    return (length > 0 && (size_t)length < size) ||
           ats_fail(err, "the path of the folder for profiles is too long: %.200s", folder);
}

bool ats_profile_make_folders(const char *path)
{
    char folder[PATH_MAX];
    if ((size_t)snprintf(folder, sizeof(folder), "%s", path) >= sizeof(folder)) {
        errno = ENAMETOOLONG;
        return false;
    }
    for (char *slash = strchr(folder + 1, '/'); slash != NULL; slash = strchr(slash + 1, '/')) {
        *slash = '\0';
        if (mkdir(folder, 0777) != 0 && errno != EEXIST) {
            return false;
        }
        *slash = '/';
    }
    return true;
}
