/* `ats plan`: the machine that it plans for. */
#include "cli/cli.h"
#include "cli/plan.h"
#include "cli/simulate.h"
#include "profile/identity.h"

#include <dirent.h>
#include <fnmatch.h>
#include <ggml.h>
#include <libgen.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- this machine, as a kept profile has it ----
 *
 * ggml's devices are not asked: loading their drivers takes longer than planning. What can be known
 * without is compared: CPU, memory, driver and ggml; and which accelerator ATS would use, as far as
 * the environment says. */

static const char EMULATED[] = "emulated "; /* the begin of an emulated device's driver */

static const char *environment(const char *name)
{
    const char *value = getenv(name);
    return value != NULL && value[0] != '\0' ? value : NULL;
}

/* Whether a comma-separated list has the name. */
static bool has_name(const char *list, const char *name)
{
    const size_t n = strlen(name);
    for (const char *at = list; at != NULL; at = strchr(at, ',')) {
        at += *at == ',';
        if (strncmp(at, name, n) == 0 && (at[n] == '\0' || at[n] == ',')) {
            return true;
        }
    }
    return false;
}

/* Whether an emulated device's driver, "emulated NAME" or "emulated NAME x SCALE", is that of the
 * first device that ATS_EMULATE lists by name or file. */
static bool is_emulation(const char *driver, const char *list)
{
    char *first = cli_format("%.*s", (int)strcspn(list, ","), list);
    char *name = basename(first);
    const size_t n = strlen(name);
    if (n > 5 && strcmp(name + n - 5, ".json") == 0) {
        name[n - 5] = '\0';
    }
    driver += strlen(EMULATED);
    const size_t length = strlen(name);
    const bool is = strncmp(driver, name, length) == 0 &&
                    (driver[length] == '\0' || strncmp(driver + length, " x ", 3) == 0);
    free(first);
    return is;
}

/* Whether ATS would use this accelerator. */
static bool is_used(const struct ats_profile_identity *i)
{
    const char *accel = environment("ATS_ACCEL");
    const char *emulate = environment("ATS_EMULATE");
    const bool is_emulated = strncmp(i->driver, EMULATED, strlen(EMULATED)) == 0;
    if (accel != NULL && !has_name(accel, i->device)) {
        return false;
    }
    if (is_emulated) {
        return emulate != NULL && is_emulation(i->driver, emulate);
    }
    return accel != NULL || emulate == NULL;
}

/* What differs between a profile and this host; NULL if nothing does. */
static const char *mismatch(const struct ats_profile_identity *have)
{
    char *registry = cli_format("%.*s", (int)strcspn(have->driver, ","), have->driver);
    const struct ats_profile_device_facts facts = {.name = have->device,
                                                   .description = have->description,
                                                   .total_bytes = have->device_bytes,
                                                   .registry = registry,
                                                   .ggml = ggml_version()};
    struct ats_profile_identity want;
    ats_profile_identify(&facts, have->threads, &want);
    if (strncmp(have->driver, EMULATED, strlen(EMULATED)) == 0) {
        snprintf(want.driver, sizeof want.driver, "%s", have->driver);
    }
    free(registry);
    return ats_profile_mismatch(have, &want);
}

static char *profile_folder(void)
{
    static const struct ats_profile_identity none;
    char path[PATH_MAX];
    struct ats_error ignored;
    return ats_profile_path(&none, true, path, sizeof path, &ignored)
               ? cli_format("%s", dirname(path))
               : NULL;
}

/* Makes a file's profile the chosen one if it fits and is newer than that. `stale` gets the reason
 * if it only fitted once. */
static void consider(const char *file, struct plan *p, struct ats_error *stale)
{
    struct ats_profile candidate;
    struct ats_error ignored; /* `ats profile` says what is wrong with a damaged file */
    if (!ats_profile_read(file, &candidate, &ignored)) {
        return;
    }
    const bool wanted = is_used(&candidate.identity);
    const char *differs = wanted ? mismatch(&candidate.identity) : NULL;
    if (differs != NULL) {
        ats_fail(stale, "%.200s is of another %s", file, differs);
    }
    /* times of this form sort as text */
    if (!wanted || differs != NULL ||
        (p->is_kept && strcmp(candidate.created, p->profile.created) <= 0)) {
        ats_profile_free(&candidate);
        return;
    }
    ats_profile_free(&p->profile);
    p->profile = candidate;
    p->is_kept = true;
    snprintf(p->profile_path, sizeof p->profile_path, "%s", file);
}

/* Takes the newest kept profile that fits. */
static bool use_kept(struct plan *p)
{
    struct ats_error stale = {""};
    char *folder = profile_folder();
    DIR *entries = folder != NULL ? opendir(folder) : NULL;
    const struct dirent *entry;
    while (entries != NULL && (entry = readdir(entries)) != NULL) {
        char *file = cli_format("%s/%s", folder, entry->d_name);
        if (fnmatch("profile-*.json", entry->d_name, 0) == 0) {
            consider(file, p, &stale);
        }
        free(file);
    }
    if (entries != NULL) {
        closedir(entries);
    }
    free(folder);
    if (!p->is_kept && stale.text[0] != '\0') {
        fprintf(stderr, "%s: %s, so it is not used; `ats profile` measures anew\n",
                p->options->common.who, stale.text);
    }
    return p->is_kept;
}

/* ---- any ---- */

bool plan_find_machine(struct plan *p, struct ats_error *err)
{
    static const char default_rig[] = "desktop-4090";
    const struct simulate_options *o = &p->options->common;
    const struct ats_sim_overheads overheads = ats_sim_overheads_default();
    p->factor = 1;
    if (o->profile != NULL) {
        snprintf(p->profile_path, sizeof p->profile_path, "%s", o->profile);
        if (!ats_profile_read(o->profile, &p->profile, err)) {
            return false;
        }
    } else if (o->rig != NULL || o->scale != NULL || !use_kept(p)) {
        return simulate_machine(o->rig != NULL ? o->rig : default_rig, o->scale, &overheads,
                                &p->machine, &p->factor, err);
    }
    p->machine = ats_sim_machine_of_profile(&p->profile, &overheads);
    return true;
}
