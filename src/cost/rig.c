#include "cost/rig.h"

#include "base/parse.h"

#include <dlfcn.h>
#include <jansson.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define AT(member) offsetof(struct ats_rig, member)
#define RATE(member) AT(rates.member)

/* The bounds catch slips of units and powers of ten, no more. */
const struct ats_rig_figure ats_rig_figures[ATS_RIG_FIGURES] = {
    {"cpu", "threads", "threads", 1, 1024, RATE(cpu_threads), true, 0},
    {"cpu", "matvec_gbps", "GB/s", 0.01, 10000, RATE(cpu_gbps), false, 1},
    {"cpu", "matmul_gflops", "GFLOP/s", 0.1, 1e6, AT(cpu_gflops), false, 0},
    {"cpu", "dram_limit_gbps", "GB/s", 0.01, 10000, RATE(dram_limit_gbps), false, 1},

    {"device", "vram_f32_gbps", "GB/s", 0.01, 1e5, RATE(vram_gbps[ATS_FAMILY_F32]), false, 1},
    {"device", "vram_f16_gbps", "GB/s", 0.01, 1e5, RATE(vram_gbps[ATS_FAMILY_F16]), false, 1},
    {"device", "vram_q8_gbps", "GB/s", 0.01, 1e5, RATE(vram_gbps[ATS_FAMILY_Q8]), false, 1},
    {"device", "vram_q4_gbps", "GB/s", 0.01, 1e5, RATE(vram_gbps[ATS_FAMILY_Q4]), false, 1},
    {"device", "vram_mxfp4_gbps", "GB/s", 0.01, 1e5, RATE(vram_gbps[ATS_FAMILY_MXFP4]), false, 1},
    {"device", "matmul_f32_tflops", "TFLOP/s", 1e-4, 1e4, RATE(matmul_tflops[ATS_FAMILY_F32]),
     false, 1},
    {"device", "matmul_f16_tflops", "TFLOP/s", 1e-4, 1e4, RATE(matmul_tflops[ATS_FAMILY_F16]),
     false, 1},
    {"device", "matmul_q8_tflops", "TFLOP/s", 1e-4, 1e4, RATE(matmul_tflops[ATS_FAMILY_Q8]), false,
     1},
    {"device", "matmul_q4_tflops", "TFLOP/s", 1e-4, 1e4, RATE(matmul_tflops[ATS_FAMILY_Q4]), false,
     1},
    {"device", "matmul_mxfp4_tflops", "TFLOP/s", 1e-4, 1e4, RATE(matmul_tflops[ATS_FAMILY_MXFP4]),
     false, 1},
    {"device", "matmul_half_batch", "columns", 0, 4096, RATE(matmul_half_batch), false, 0},
    {"device", "small_op_gbps", "GB/s", 0.01, 1e5, RATE(small_op_gbps), false, 1},
    {"device", "attention_efficiency", "of F16", 0.01, 1, RATE(attention_efficiency), false, 0},
    {"device", "launch_us", "us", 0, 1000, RATE(launch_us), false, -1},

    {"link", "h2d_gbps", "GB/s", 0.01, 10000, RATE(h2d_gbps), false, 1},
    {"link", "d2h_gbps", "GB/s", 0.01, 10000, RATE(d2h_gbps), false, 1},
    {"link", "pageable_gbps", "GB/s", 0.01, 10000, RATE(pageable_gbps), false, 1},
    {"link", "copy_latency_us", "us", 0, 10000, RATE(copy_latency_us), false, -1},
    {"link", "copy_engines", "engines", 1, 2, RATE(copy_engines), true, 0},

    /* how experts are selected has no section of the machine, but sources as well */
    {"routing", "repeat_next", "of selections", 0, 0.99, AT(routing.repeat_next), false, 0},
    {"routing", "repeat_near", "of selections", 0, 0.999, AT(routing.repeat_near), false, 0},
    {"routing", "far_exponent", "", 1, 20, AT(routing.far_exponent), false, 0},
};

static const char *const sections[] = {"cpu", "device", "link", "routing"};
enum { N_SECTIONS = sizeof(sections) / sizeof(sections[0]), MAX_BASES = 4 };

double ats_rig_value(const struct ats_rig *rig, int figure)
{
    double value;
    memcpy(&value, (const char *)rig + ats_rig_figures[figure].offset, sizeof(value));
    return value;
}

/* ---- what a reader carries along ---- */

struct reader {
    const char *path;
    struct ats_rig *rig;
    struct ats_error *err;
    bool with_sources; /* each figure must have one */
    bool given[ATS_RIG_FIGURES];
};

static bool fail_allowed(const struct reader *r, const char *section, const char *key,
                         const char *allowed)
{
    if (section[0] == '\0') {
        return ats_fail(r->err, "%s: \"%s\" must be %s", r->path, key, allowed);
    }
    return ats_fail(r->err, "%s: \"%s\": \"%s\" must be %s", r->path, section, key, allowed);
}

static bool read_text(const struct reader *r, const char *section, const char *key,
                      const json_t *value, char *text, size_t size)
{
    const char *string = json_string_value(value);
    char allowed[64];
    if (string == NULL || string[0] == '\0' || json_string_length(value) >= size ||
        strpbrk(string, "\n\r\t") != NULL) {
        snprintf(allowed, sizeof(allowed), "a text of 1 to %zu bytes on one line", size - 1);
        return fail_allowed(r, section, key, allowed);
    }
    memcpy(text, string, strlen(string) + 1);
    return true;
}

/* ---- figures ---- */

/* A figure is a number, or {"value": NUMBER, "source": TEXT}. */
static bool read_figure(struct reader *r, int index, const json_t *value)
{
    const struct ats_rig_figure *f = &ats_rig_figures[index];
    char allowed[160];
    snprintf(allowed, sizeof(allowed), "%s {\"value\": %s from %g to %g%s%s, \"source\": TEXT}",
             r->with_sources ? "an object" : "a number, or", f->whole ? "whole number" : "number",
             f->min, f->max, f->unit[0] == '\0' ? "" : " ", f->unit);
    const json_t *number = value;
    if (json_is_object(value)) {
        number = json_object_get(value, "value");
        const json_t *source = json_object_get(value, "source");
        if (json_object_size(value) != (source != NULL ? 2U : 1U) ||
            (source == NULL && r->with_sources)) {
            return fail_allowed(r, f->section, f->key, allowed);
        }
        if (source != NULL && !read_text(r, f->section, f->key, source, r->rig->sources[index],
                                         sizeof(r->rig->sources[index]))) {
            return false;
        }
    } else if (r->with_sources) {
        return fail_allowed(r, f->section, f->key, allowed);
    }
    const double read = json_number_value(number);
    if (!json_is_number(number) || !(read >= f->min && read <= f->max) ||
        (f->whole && read != (double)(long)read)) {
        return fail_allowed(r, f->section, f->key, allowed);
    }
    memcpy((char *)r->rig + f->offset, &read, sizeof(read));
    r->given[index] = true;
    return true;
}

static int find_figure(const char *section, const char *key)
{
    for (int i = 0; i < ATS_RIG_FIGURES; i++) {
        if (strcmp(ats_rig_figures[i].section, section) == 0 &&
            strcmp(ats_rig_figures[i].key, key) == 0) {
            return i;
        }
    }
    return -1;
}

static bool fail_unknown(const struct reader *r, const char *section, const char *key)
{
    char allowed[400] = "";
    for (int i = 0; i < ATS_RIG_FIGURES; i++) {
        if (strcmp(ats_rig_figures[i].section, section) == 0) {
            const size_t length = strlen(allowed);
            snprintf(allowed + length, sizeof(allowed) - length, "%s%s", length > 0 ? ", " : "",
                     ats_rig_figures[i].key);
        }
    }
    return ats_fail(r->err, "%.150s: \"%s\": unknown key \"%.40s\"; allowed are %s", r->path,
                    section, key, allowed);
}

/* Keys of a section that are no figures; true with `*taken` if it was one. */
static bool read_name_or_memory(struct reader *r, const char *section, const char *key,
                                const json_t *value, bool *taken)
{
    const bool is_cpu = strcmp(section, "cpu") == 0;
    const bool is_device = strcmp(section, "device") == 0;
    *taken = true;
    if (strcmp(key, "model") == 0 && (is_cpu || is_device)) {
        char *text = is_cpu ? r->rig->cpu : r->rig->device;
        return read_text(r, section, key, value, text, sizeof(r->rig->cpu));
    }
    if (strcmp(key, "memory") == 0 && is_device) {
        const char *text = json_string_value(value);
        return (text != NULL && ats_parse_bytes(text, &r->rig->memory, NULL) &&
                r->rig->memory >= (size_t)1 << 20 && r->rig->memory <= (size_t)1 << 40) ||
               fail_allowed(r, section, key, "a size from 1M to 1T, as text such as \"6G\"");
    }
    *taken = false;
    return true;
}

static bool read_section(struct reader *r, const char *section, const json_t *object)
{
    if (!json_is_object(object)) {
        return fail_allowed(r, "", section, "an object of figures");
    }
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)(uintptr_t)object, key, value)
    {
        bool taken = false;
        if (!read_name_or_memory(r, section, key, value, &taken)) {
            return false;
        }
        const int figure = find_figure(section, key);
        if (!taken && figure < 0) {
            return fail_unknown(r, section, key);
        }
        if (!taken && !read_figure(r, figure, value)) {
            return false;
        }
    }
    return true;
}

/* ---- consistency ---- */

static bool check_complete(const struct reader *r)
{
    for (int i = 0; i < ATS_RIG_FIGURES; i++) {
        const struct ats_rig_figure *f = &ats_rig_figures[i];
        if (!r->given[i] && strcmp(f->section, "routing") != 0) {
            return ats_fail(r->err, "%s: \"%s\": \"%s\" is missing", r->path, f->section, f->key);
        }
    }
    const struct ats_device_rates *rates = &r->rig->rates;
    if (rates->dram_limit_gbps < rates->cpu_gbps) {
        return ats_fail(r->err,
                        "%s: \"cpu\": \"dram_limit_gbps\" (%g) must be at least \"matvec_gbps\" "
                        "(%g): it is what CPU and link reach together",
                        r->path, rates->dram_limit_gbps, rates->cpu_gbps);
    }
    if (r->rig->routing.repeat_near < r->rig->routing.repeat_next) {
        return ats_fail(r->err, "%s: \"routing\": \"repeat_near\" must be at least \"repeat_next\"",
                        r->path);
    }
    return true;
}

bool ats_rig_read_rates(const char *context, const json_t *object, struct ats_rig *rig,
                        struct ats_error *err)
{
    struct reader r = {.path = context, .rig = rig, .err = err};
    if (!json_is_object(object)) {
        return ats_fail(err, "%s must be an object with \"cpu\", \"device\" and \"link\"", context);
    }
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)(uintptr_t)object, key, value)
    {
        int i = 0;
        while (i < N_SECTIONS && strcmp(sections[i], key) != 0) {
            i++;
        }
        if (i == N_SECTIONS) {
            return ats_fail(err,
                            "%s: unknown key \"%.60s\"; allowed are cpu, device, link, routing",
                            context, key);
        }
        if (!read_section(&r, key, value)) {
            return false;
        }
    }
    return check_complete(&r);
}

/* ---- files ---- */

static bool read_file(struct reader *r, const char *path, int depth);

/* The base is a name in the same folder. */
static bool read_base(struct reader *r, const char *path, const json_t *value, int depth)
{
    char name[64];
    char base[PATH_MAX];
    if (!read_text(r, "", "base", value, name, sizeof(name))) {
        return false;
    }
    if (strchr(name, '/') != NULL) {
        return fail_allowed(r, "", "base", "the name of a rig in the same folder");
    }
    if (depth >= MAX_BASES) {
        return ats_fail(r->err, "%s: more than %d bases on top of each other", path, MAX_BASES);
    }
    const char *slash = strrchr(path, '/');
    const int folder = slash == NULL ? 0 : (int)(slash - path) + 1;
    const int length = snprintf(base, sizeof(base), "%.*s%s.json", folder, path, name);
    if (length < 0 || (size_t)length >= sizeof(base)) {
        return ats_fail(r->err, "%s: \"base\": the path is too long", path);
    }
    const bool ok = read_file(r, base, depth + 1);
    r->path = path;
    return ok;
}

static bool read_key(struct reader *r, const char *key, const json_t *value)
{
    for (int i = 0; i < N_SECTIONS; i++) {
        if (strcmp(key, sections[i]) == 0) {
            return read_section(r, key, value);
        }
    }
    if (strcmp(key, "name") == 0) {
        return read_text(r, "", key, value, r->rig->name, sizeof(r->rig->name));
    }
    if (strcmp(key, "description") == 0) {
        return read_text(r, "", key, value, r->rig->description, sizeof(r->rig->description));
    }
    if (strcmp(key, "format") == 0 || strcmp(key, "base") == 0) {
        return true;
    }
    return ats_fail(r->err,
                    "%s: unknown key \"%.60s\"; allowed are format, name, description, base, cpu, "
                    "device, link, routing",
                    r->path, key);
}

static bool read_object(struct reader *r, const char *path, const json_t *object, int depth)
{
    const char *format = json_string_value(json_object_get(object, "format"));
    if (format == NULL || strcmp(format, "ats-rig-1") != 0) {
        return fail_allowed(r, "", "format", "\"ats-rig-1\"");
    }
    if (json_object_get(object, "name") == NULL) {
        return ats_fail(r->err, "%s: \"name\" is missing", path);
    }
    const json_t *base = json_object_get(object, "base");
    if (base != NULL && !read_base(r, path, base, depth)) {
        return false;
    }
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)(uintptr_t)object, key, value)
    {
        if (!read_key(r, key, value)) {
            return false;
        }
    }
    return true;
}

static bool read_file(struct reader *r, const char *path, int depth)
{
    json_error_t json_error;
    r->path = path;
    json_t *object = json_load_file(path, JSON_REJECT_DUPLICATES, &json_error);
    if (object == NULL) {
        if (json_error.line > 0) {
            return ats_fail(r->err, "%s:%d: %s", path, json_error.line, json_error.text);
        }
        return ats_fail(r->err, "%s: %s", path, json_error.text);
    }
    const bool ok = json_is_object(object) ? read_object(r, path, object, depth)
                                           : ats_fail(r->err, "%s: a rig is a JSON object", path);
    json_decref(object);
    return ok;
}

bool ats_rig_read(const char *path, struct ats_rig *rig, struct ats_error *err)
{
    struct ats_rig read = {.routing = ats_routing_model_default()};
    struct reader r = {.rig = &read, .err = err, .with_sources = true};
    if (!read_file(&r, path, 0) || !check_complete(&r)) {
        return false;
    }
    if (read.memory == 0) {
        return ats_fail(err, "%s: \"device\": \"memory\" is missing", path);
    }
    *rig = read;
    return true;
}

/* ---- where rigs are ---- */

static void own_directory(char *path, size_t size)
{
    static const char marker = 0;
    Dl_info info;
    const char *name = dladdr(&marker, &info) != 0 ? info.dli_fname : NULL;
    char program[PATH_MAX];
    if (name == NULL || strchr(name, '/') == NULL) { /* a program, as it was called */
        const ssize_t length = readlink("/proc/self/exe", program, sizeof(program) - 1);
        program[length > 0 ? length : 0] = '\0';
        name = program;
    }
    const char *slash = strrchr(name, '/');
    if (slash == NULL) {
        snprintf(path, size, ".");
    } else {
        snprintf(path, size, "%.*s", (int)(slash - name), name);
    }
}

static bool try_folder(const char *folder, const char *below, const char *name, char *path,
                       size_t size)
{
    if (folder == NULL || folder[0] == '\0') {
        return false;
    }
    const int length = snprintf(path, size, "%s%s/%s.json", folder, below, name);
    return length > 0 && (size_t)length < size && access(path, F_OK) == 0;
}

bool ats_rig_find(const char *name, char *path, size_t size, struct ats_error *err)
{
    const size_t length = strlen(name);
    if (strchr(name, '/') != NULL || (length > 5 && strcmp(name + length - 5, ".json") == 0)) {
        const int written = snprintf(path, size, "%s", name);
        return (written >= 0 && (size_t)written < size) || ats_fail(err, "the path is too long");
    }
#ifdef ATS_RIG_DIR
    const char *built_in = ATS_RIG_DIR;
#else
    const char *built_in = NULL;
#endif
    const char *from_environment = getenv("ATS_RIGS");
    char own[PATH_MAX];
    own_directory(own, sizeof(own));
    if (try_folder(from_environment, "", name, path, size) ||
        try_folder(own, "/../share/ats/rigs", name, path, size) ||
        try_folder(own, "/../../share/ats/rigs", name, path, size) || /* of libexec/ats */
        try_folder(own, "/../rigs", name, path, size) ||
        try_folder(built_in, "", name, path, size)) {
        return true;
    }
    return ats_fail(
        err,
        "no rig '%.60s': looked for %.60s.json in ATS_RIGS=%.80s, "
        "%.80s/../share/ats/rigs, %.80s/../rigs%s%.80s; a path to a JSON file works too",
        name, name, from_environment == NULL ? "(not set)" : from_environment, own, own,
        built_in == NULL ? "" : ", ", built_in == NULL ? "" : built_in);
}
