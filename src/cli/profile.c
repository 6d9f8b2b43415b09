/* `ats profile`: measures this machine, keeps the result, shows and checks it. */
#include "cli/profile.h"

#include "cli/cli.h"
#include "cli/paths.h"
#include "model/gguf.h"
#include "profile/identity.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum {
    KEY_DEVICE = CLI_KEY_FIRST,
    KEY_QUICK,
    KEY_MODEL,
    KEY_THREADS,
    KEY_OUT,
    KEY_FROM,
    KEY_SHOW,
    KEY_JSON,
    KEY_CHECK,
};

struct options {
    const char *who;
    const char *device;
    const char *model;
    const char *out;
    const char *from;
    uint32_t threads;
    bool quick;
    bool show;
    bool json;
    bool check;
};

static const struct argp_option option_table[] = {
    {"device", KEY_DEVICE, "NAME", 0,
     "Accelerator to measure, such as CUDA0 (default: the one behind ATS0)", 1},
    {"quick", KEY_QUICK, NULL, 0, "Few shapes: seconds instead of a minute", 1},
    {"model", KEY_MODEL, "FILE", 0, "Measure the exact shapes of this GGUF file too", 1},
    {"threads", KEY_THREADS, "N", 0, "CPU threads (default: the best, by measurement)", 1},
    {"out", KEY_OUT, "FILE", 0, "Keep the profile in this file", 2},
    {"show", KEY_SHOW, NULL, 0, "Show the kept profile; measures and writes nothing", 3},
    {"check", KEY_CHECK, NULL, 0,
     "Compare predictions of the kept profile with shapes that it does not have; measures a "
     "profile "
     "first if there is none",
     3},
    {"from", KEY_FROM, "FILE", 0, "Show or check this profile instead of the kept one", 3},
    {"json", KEY_JSON, NULL, 0, "Print JSON", 4},
    CLI_HELP_OPTION,
    {0},
};

static const struct cli_field fields[] = {
    CLI_TEXT_FIELD(KEY_DEVICE, struct options, device),
    CLI_FLAG_FIELD(KEY_QUICK, struct options, quick),
    CLI_TEXT_FIELD(KEY_MODEL, struct options, model),
    CLI_NUMBER_FIELD(KEY_THREADS, struct options, threads, 1, ATS_PROFILE_MAX_THREADS),
    CLI_TEXT_FIELD(KEY_OUT, struct options, out),
    CLI_TEXT_FIELD(KEY_FROM, struct options, from),
    CLI_FLAG_FIELD(KEY_SHOW, struct options, show),
    CLI_FLAG_FIELD(KEY_JSON, struct options, json),
    CLI_FLAG_FIELD(KEY_CHECK, struct options, check),
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
    "Measures this machine through ggml: how long operators, copies and changes of side take on "
    "the CPU and on an accelerator. Predictions for this machine are made from that profile. It is "
    "kept, one for each CPU and device, and replaces an earlier one."
    "\v"
    "Examples:\n"
    "  ats profile                     (under a minute; close other programs)\n"
    "  ats profile --quick             (under five seconds, coarser)\n"
    "  ats profile --model model.gguf  (with that model's own matrices)\n"
    "  ats profile --show              (or a file: --show --from FILE)\n"
    "  ats profile --check             (how good predictions are)\n"
    "  ats simulate model.gguf --profile FILE\n"
    "  ATS_EMULATE=laptop-3060 ats profile --quick\n"
    "\n"
    "--check fails (exit code 1) if on a side the median error is above 10 % or the 90th "
    "percentile above 25 %.\n"
    "\n"
    "--json prints the profile (format \"ats-profile-2\") or the check "
    "(\"ats-profile-check-1\"). Profiles are in $XDG_CACHE_HOME/ats, else ~/.cache/ats; "
    "docs/profile.md describes them.",
    NULL,
    NULL,
    NULL};

/* ---- devices ---- */

static void keep_error(enum ggml_log_level level, const char *text, void *data)
{
    struct ats_error *last = data;
    if (level == GGML_LOG_LEVEL_ERROR) {
        ats_fail(last, "%.*s", (int)strcspn(text, "\n"), text);
    }
}

static bool load_backends(struct ats_error *err)
{
    char *llama_bin = paths_llama_bin(NULL, err);
    char *backend = llama_bin != NULL ? paths_backend(err) : NULL;
    if (backend != NULL) {
        setenv("GGML_BACKEND_PATH", backend, 1);
        /* an emulated device needs a core that waiting threads do not spin on; read when the CPU
         * backend is loaded */
        if (getenv("ATS_EMULATE") != NULL) {
            setenv("OMP_WAIT_POLICY", "passive", 0);
        }
        ggml_backend_load_all_from_path(llama_bin);
    }
    const bool good = backend != NULL;
    free(backend);
    free(llama_bin);
    return good;
}

static bool is_accelerator(ggml_backend_dev_t device)
{
    const enum ggml_backend_dev_type type = ggml_backend_dev_type(device);
    const char *registry = ggml_backend_reg_name(ggml_backend_dev_backend_reg(device));
    return (type == GGML_BACKEND_DEVICE_TYPE_GPU || type == GGML_BACKEND_DEVICE_TYPE_IGPU) &&
           strcmp(registry, "ATS") != 0;
}

/* The accelerator behind an ATS device; NULL if it is none. */
static ggml_backend_dev_t wrapped(ggml_backend_dev_t device)
{
    ggml_backend_reg_t registry = ggml_backend_dev_backend_reg(device);
    const char *(*name)(ggml_backend_dev_t) = NULL;
    void *address = ggml_backend_reg_get_proc_address(registry, "ats_device_accelerator");
    if (address == NULL) {
        return NULL;
    }
    memcpy(&name, &address, sizeof(name));
    return ggml_backend_dev_by_name(name(device));
}

static ggml_backend_dev_t default_device(void)
{
    ggml_backend_dev_t ats = ggml_backend_dev_by_name("ATS0");
    ggml_backend_dev_t device = ats != NULL ? wrapped(ats) : NULL;
    for (size_t i = 0; device == NULL && i < ggml_backend_dev_count(); i++) {
        ggml_backend_dev_t candidate = ggml_backend_dev_get(i);
        device = is_accelerator(candidate) ? candidate : NULL;
    }
    return device;
}

static ggml_backend_dev_t find_device(const char *name, const struct ats_error *log,
                                      struct ats_error *err)
{
    if (name == NULL) {
        ggml_backend_dev_t device = default_device();
        if (device == NULL) {
            ats_fail(err, "no accelerator to measure%s%.300s; `ats devices` shows what is there",
                     log->text[0] != '\0' ? ": " : "", log->text);
        }
        return device;
    }
    ggml_backend_dev_t device = ggml_backend_dev_by_name(name);
    if (device != NULL && !is_accelerator(device)) {
        device = wrapped(device);
    }
    if (device == NULL) {
        ats_fail(err, "no accelerator '%.60s'%s%.300s; `ats devices` shows what is there", name,
                 log->text[0] != '\0' ? ": " : "", log->text);
    }
    return device;
}

/* ---- measuring ---- */

struct progress {
    struct timespec begin;
    bool shown;
};

static void show_progress(void *context, double done, const char *what)
{
    enum { QUIET_SECONDS = 2 };
    struct progress *p = context;
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    if (isatty(STDERR_FILENO) && now.tv_sec - p->begin.tv_sec >= QUIET_SECONDS) {
        fprintf(stderr, "\r\033[Kmeasuring, %.0f %%: %s", 100 * done, what);
        p->shown = true;
    }
}

static void end_progress(const struct progress *p)
{
    if (p->shown) {
        fputs("\r\033[K", stderr);
    }
}

static bool is_emulated(ggml_backend_dev_t device)
{
    return strcmp(ggml_backend_reg_name(ggml_backend_dev_backend_reg(device)), "EMU") == 0;
}

struct job {
    const struct options *o;
    ggml_backend_dev_t device;
    struct ats_model *model;
    struct progress progress;
    char path[PATH_MAX];
    struct ats_profile profile;
};

static struct ats_measure_options measure_options(struct job *job)
{
    clock_gettime(CLOCK_MONOTONIC, &job->progress.begin);
    return (struct ats_measure_options){.device = job->device,
                                        .threads = (int)job->o->threads,
                                        .quick = job->o->quick,
                                        .leave_core = is_emulated(job->device),
                                        .model = job->model,
                                        .progress = show_progress,
                                        .context = &job->progress};
}

static bool measure(struct job *job, struct ats_error *err)
{
    if (!ats_profile_make_folders(job->path)) {
        return ats_fail(err, "cannot make the folder of %.200s: %s; name a file with --out",
                        job->path, strerror(errno));
    }
    if (!paths_can_write(job->path, job->o->out != NULL ? "--out" : "profile", err)) {
        return false;
    }
    const struct ats_measure_options options = measure_options(job);
    const bool measured = ats_measure(&options, &job->profile, err);
    end_progress(&job->progress);
    return measured && ats_profile_write(job->path, &job->profile, err);
}

/* What became of a profile that is there already. */
enum loaded { LOADED, MISSING, DAMAGED, STALE };

/* Reads job->path. What is wrong with it, and what differs of a stale one, is in `why`. */
static enum loaded load(struct job *job, struct ats_error *why)
{
    struct ats_profile_identity want;
    if (access(job->path, F_OK) != 0) {
        return MISSING;
    }
    if (!ats_profile_read(job->path, &job->profile, why)) {
        return DAMAGED;
    }
    const int threads = job->o->threads > 0 ? (int)job->o->threads : job->profile.identity.threads;
    ats_measure_identify(job->device, threads, &want);
    const char *differs = ats_profile_mismatch(&job->profile.identity, &want);
    if (differs != NULL) {
        ats_fail(why, "%s", differs);
        ats_profile_free(&job->profile);
        return STALE;
    }
    return LOADED;
}

/* Why there is nothing to show or check, where nothing may be measured instead. */
static bool refuse(const struct job *job, enum loaded state, const struct ats_error *why,
                   struct ats_error *err)
{
    switch (state) {
    case MISSING:
        return ats_fail(err, "there is no profile %.300s; `ats profile` measures one", job->path);
    case STALE:
        return ats_fail(err, "%.300s is of another %.60s; `ats profile` measures anew", job->path,
                        why->text);
    default:
        *err = *why;
        return false;
    }
}

static void tell(const char *who, enum loaded state, const struct ats_error *why)
{
    if (state == STALE) {
        fprintf(stderr, "%s: the kept profile is of another %s, measuring again\n", who, why->text);
    } else if (state == DAMAGED) {
        fprintf(stderr, "%s: the kept profile is damaged, measuring again: %s\n", who, why->text);
    }
}

static bool find_path(struct job *job, struct ats_error *err)
{
    const char *named = job->o->from != NULL ? job->o->from : job->o->out;
    if (named != NULL) {
        const int length = snprintf(job->path, sizeof(job->path), "%s", named);
        return (size_t)length < sizeof(job->path) ||
               ats_fail(err, "the path is too long: %.60s...", named);
    }
    struct ats_profile_identity identity;
    ats_measure_identify(job->device, (int)job->o->threads, &identity);
    return ats_profile_path(&identity, job->o->threads == 0, job->path, sizeof(job->path), err);
}

static bool get_profile(struct job *job, struct ats_error *err)
{
    const struct options *o = job->o;
    if (!find_path(job, err)) {
        return false;
    }
    if (o->show || o->check) {
        struct ats_error why = {""};
        const enum loaded state = load(job, &why);
        if (state == LOADED || o->show || o->from != NULL) {
            return state == LOADED || refuse(job, state, &why, err);
        }
        tell(o->who, state, &why);
    }
    if (o->model != NULL) {
        job->model = ats_model_read(o->model, err);
        if (job->model == NULL) {
            return false;
        }
    }
    return measure(job, err);
}

/* ---- checking ---- */

static bool check_bounds(const struct ats_measure_check *checks, size_t n, struct ats_error *err)
{
    for (int side = 0; side < ATS_SIDES; side++) {
        const struct profile_errors e = profile_errors(checks, n, (enum ats_side)side);
        if (e.n == 0 || e.median > PROFILE_MAX_MEDIAN || e.p90 > PROFILE_MAX_P90) {
            return ats_fail(
                err,
                "predictions for the %s are off by %.1f %% in the median and %.1f %% in "
                "the 90th percentile; is the machine idle? `ats profile` measures anew",
                side == ATS_HOST ? "CPU" : "accelerator", 100 * e.median, 100 * e.p90);
        }
    }
    return true;
}

static bool check(struct job *job, struct ats_error *err)
{
    struct ats_measure_check *checks = cli_alloc(ATS_MEASURE_MAX_CHECKS * sizeof(checks[0]));
    const struct ats_measure_options options = measure_options(job);
    size_t n = 0;
    bool good = ats_measure_check(&options, &job->profile, checks, &n, err);
    end_progress(&job->progress);
    if (good && job->o->json) {
        profile_print_check(checks, n);
    } else if (good) {
        profile_show_check(checks, n);
    }
    good = good && check_bounds(checks, n, err);
    free(checks);
    return good;
}

static bool show(const struct job *job, struct ats_error *err)
{
    if (job->o->json) { /* that stdout cannot be written is told at exit */
        return ats_profile_print(stdout, &job->profile, err) || ferror(stdout) != 0;
    }
    profile_show(&job->profile);
    printf("\nKept in %s\n", job->path);
    return true;
}

/* A file tells all by itself: no device is asked. */
static bool show_file(const struct options *o, struct ats_error *err)
{
    struct job job = {.o = o};
    const bool good =
        find_path(&job, err) && ats_profile_read(job.path, &job.profile, err) && show(&job, err);
    ats_profile_free(&job.profile);
    return good;
}

static bool run(const struct options *o, struct ats_error *err)
{
    struct ats_error log = {""};
    struct job job = {.o = o};
    if (o->show && o->from != NULL) {
        return show_file(o, err);
    }
    ggml_log_set(keep_error, &log);
    bool good = load_backends(err);
    if (good) {
        job.device = find_device(o->device, &log, err);
        good = job.device != NULL && get_profile(&job, err) &&
               (o->check ? check(&job, err) : show(&job, err));
    }
    ats_model_free(job.model);
    ats_profile_free(&job.profile);
    ggml_log_set(NULL, NULL); /* the log's error goes out of scope before the libraries do */
    return good;
}

static void check_options(const struct options *o)
{
    const char *task = o->show ? "--show" : "--check";
    if (o->show && o->check) {
        cli_usage_error(o->who, "--show and --check do not go together");
    }
    if (o->from != NULL && !o->show && !o->check) {
        cli_usage_error(o->who, "--from is for --show and --check");
    }
    if (o->out != NULL && (o->show || o->check)) {
        cli_usage_error(o->who, "--out is for measuring and does not go with %s; --from %s is read",
                        task, o->out);
    }
    if (o->show && (o->quick || o->model != NULL)) {
        cli_usage_error(o->who, "--show measures nothing, so it does not go with %s",
                        o->quick ? "--quick" : "--model");
    }
    if (o->from != NULL && (o->model != NULL || o->threads > 0 || (o->show && o->device != NULL))) {
        cli_usage_error(o->who, "--from names a profile, so it does not go with %s",
                        o->model != NULL ? "--model"
                        : o->threads > 0 ? "--threads"
                                         : "--device");
    }
}

int cli_profile(int argc, char **argv)
{
    struct options o = {.who = argv[0]};
    cli_parse(&argp, argc, argv, &o);
    check_options(&o);
    struct ats_error err = {""};
    return run(&o, &err) ? CLI_OK : cli_error(argv[0], &err);
}
