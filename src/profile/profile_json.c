/* Profiles as JSON: the reader, which believes nothing, and the writer. */
#include "profile/profile.h"

#include "base/replace.h"

#include <errno.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

/* Bounds catch slips of units and powers of ten, no more. */
static const double MAX_US = 1e9;
static const double MAX_SIZE = 1e9; /* rows, columns, experts, tokens */
static const double MAX_BYTES = 1e15;
static const double MAX_GBPS = 1e5;
static const double MIN_POSITIVE = 1e-6;

static const char *const side_names[ATS_SIDES] = {"host", "accelerator"};
static const char *const direction_names[2] = {"to_device", "to_host"};
static const char *const memory_names[2] = {"pageable", "pinned"};

struct reader {
    const char *path;
    struct ats_error *err;
};

/* ---- single values; `where` begins as "identity" or "operators[3]" ---- */

static bool fail_allowed(const struct reader *r, const char *where, const char *key,
                         const char *allowed)
{
    return ats_fail(r->err, "%.200s: %s%s\"%s\" must be %s; `ats profile` measures anew", r->path,
                    where, where[0] == '\0' ? "" : ": ", key, allowed);
}

static bool read_number(const struct reader *r, const char *where, const json_t *object,
                        const char *key, double min, double max, double *value)
{
    const json_t *json = json_object_get(object, key);
    const double read = json_number_value(json);
    if (!json_is_number(json) || !(read >= min && read <= max)) {
        char allowed[80];
        snprintf(allowed, sizeof(allowed), "a number from %g to %g", min, max);
        return fail_allowed(r, where, key, allowed);
    }
    *value = read;
    return true;
}

static bool read_whole(const struct reader *r, const char *where, const json_t *object,
                       const char *key, json_int_t min, json_int_t max, json_int_t *value)
{
    const json_t *json = json_object_get(object, key);
    const json_int_t read = json_integer_value(json);
    if (!json_is_integer(json) || read < min || read > max) {
        char allowed[80];
        snprintf(allowed, sizeof(allowed), "a whole number from %lld to %lld", (long long)min,
                 (long long)max);
        return fail_allowed(r, where, key, allowed);
    }
    *value = read;
    return true;
}

static bool read_int(const struct reader *r, const char *where, const json_t *object,
                     const char *key, int max, int *value)
{
    json_int_t read = 0;
    if (!read_whole(r, where, object, key, 1, max, &read)) {
        return false;
    }
    *value = (int)read;
    return true;
}

static bool read_bytes(const struct reader *r, const char *where, const json_t *object,
                       const char *key, json_int_t min, uint64_t *value)
{
    json_int_t read = 0;
    if (!read_whole(r, where, object, key, min, (json_int_t)MAX_BYTES, &read)) {
        return false;
    }
    *value = (uint64_t)read;
    return true;
}

static bool read_text(const struct reader *r, const char *where, const json_t *object,
                      const char *key, char *text, size_t size)
{
    const json_t *json = json_object_get(object, key);
    const char *string = json_string_value(json);
    if (string == NULL || json_string_length(json) != strlen(string) || strlen(string) >= size ||
        strpbrk(string, "\n\r\t\033") != NULL) {
        char allowed[64];
        snprintf(allowed, sizeof(allowed), "a text of at most %zu bytes on one line", size - 1);
        return fail_allowed(r, where, key, allowed);
    }
    memcpy(text, string, strlen(string) + 1);
    return true;
}

/* Whether `key` is a word of `keys`, which are separated and ended by blanks. */
static bool is_word(const char *key, const char *keys)
{
    const size_t n = strlen(key);
    for (const char *word = keys; *word != '\0'; word = strchr(word, ' ') + 1) {
        if (n > 0 && strcspn(word, " ") == n && strncmp(word, key, n) == 0) {
            return true;
        }
    }
    return false;
}

static bool only_keys(const struct reader *r, const char *where, const json_t *object,
                      const char *keys)
{
    if (!json_is_object(object)) {
        return ats_fail(r->err, "%.200s: %s must be an object; `ats profile` measures anew",
                        r->path, where[0] == '\0' ? "a profile" : where);
    }
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)(uintptr_t)object, key, value)
    {
        if (!is_word(key, keys)) {
            return ats_fail(r->err, "%.200s: %s%sunknown key \"%.45s\"; allowed are %s", r->path,
                            where, where[0] == '\0' ? "" : ": ", key, keys);
        }
    }
    return true;
}

/* The index of the text in `names`. */
static bool read_name(const struct reader *r, const char *where, const json_t *object,
                      const char *key, const char *const *names, int n, int *index)
{
    const char *text = json_string_value(json_object_get(object, key));
    for (int i = 0; i < n; i++) {
        if (text != NULL && strcmp(text, names[i]) == 0) {
            *index = i;
            return true;
        }
    }
    char allowed[80] = "one of";
    for (int i = 0; i < n; i++) {
        const size_t length = strlen(allowed);
        snprintf(allowed + length, sizeof(allowed) - length, "%s \"%s\"", i == 0 ? "" : ",",
                 names[i]);
    }
    return fail_allowed(r, where, key, allowed);
}

/* ---- points ---- */

/* [[n, us], ...], or [[n, us, distinct], ...] with at most `experts` of those. */
static bool read_points(const struct reader *r, const char *where, const json_t *object,
                        double max_n, double experts, struct ats_profile_point *points,
                        size_t *n_points)
{
    const json_t *array = json_object_get(object, "points");
    const size_t n = json_array_size(array);
    const size_t width = experts > 0 ? 3 : 2;
    char allowed[200];
    snprintf(allowed, sizeof(allowed),
             "an array of 1 to %d points [%s from 1 to %g and rising, microseconds from %g to "
             "%g%s]",
             ATS_PROFILE_MAX_POINTS, "size", max_n, MIN_POSITIVE, MAX_US,
             experts > 0 ? ", distinct experts" : "");
    if (n < 1 || n > ATS_PROFILE_MAX_POINTS) {
        return fail_allowed(r, where, "points", allowed);
    }
    for (size_t i = 0; i < n; i++) {
        const json_t *point = json_array_get(array, i);
        const json_t *third = json_array_get(point, 2);
        bool good = json_array_size(point) == width;
        for (size_t j = 0; good && j < width; j++) {
            good = json_is_number(json_array_get(point, j));
        }
        const struct ats_profile_point read = {json_number_value(json_array_get(point, 0)),
                                               json_number_value(json_array_get(point, 1)),
                                               json_number_value(third)};
        good = good && read.n >= 1 && read.n <= max_n && read.us >= MIN_POSITIVE &&
               read.us <= MAX_US && (i == 0 || read.n > points[i - 1].n) &&
               (experts <= 0 || (read.distinct >= 1 && read.distinct <= experts));
        if (!good) {
            return fail_allowed(r, where, "points", allowed);
        }
        points[i] = read;
    }
    *n_points = n;
    return true;
}

/* ---- sections ---- */

static bool read_identity(const struct reader *r, const json_t *object,
                          struct ats_profile_identity *identity)
{
    static const char where[] = "\"identity\"";
    return only_keys(r, where, object,
                     "cpu host_memory_bytes device description device_memory_bytes driver ggml "
                     "threads ") &&
           read_text(r, where, object, "cpu", identity->cpu, sizeof(identity->cpu)) &&
           read_bytes(r, where, object, "host_memory_bytes", 1, &identity->host_bytes) &&
           read_text(r, where, object, "device", identity->device, sizeof(identity->device)) &&
           read_text(r, where, object, "description", identity->description,
                     sizeof(identity->description)) &&
           read_bytes(r, where, object, "device_memory_bytes", 0, &identity->device_bytes) &&
           read_text(r, where, object, "driver", identity->driver, sizeof(identity->driver)) &&
           read_text(r, where, object, "ggml", identity->ggml, sizeof(identity->ggml)) &&
           read_int(r, where, object, "threads", ATS_PROFILE_MAX_THREADS, &identity->threads);
}

static bool read_counts(const struct reader *r, const json_t *array, struct ats_profile *p)
{
    const size_t n = json_array_size(array);
    if (n < 1 || n > ATS_PROFILE_MAX_COUNTS) {
        char allowed[64];
        snprintf(allowed, sizeof(allowed), "an array of 1 to %d objects", ATS_PROFILE_MAX_COUNTS);
        return fail_allowed(r, "\"host\"", "by_threads", allowed);
    }
    for (size_t i = 0; i < n; i++) {
        const json_t *object = json_array_get(array, i);
        struct ats_profile_threads *count = &p->counts[i];
        char where[48];
        snprintf(where, sizeof(where), "\"host\": by_threads[%zu]", i);
        if (!only_keys(r, where, object, "threads read_gbps matvec_gbps ") ||
            !read_int(r, where, object, "threads", ATS_PROFILE_MAX_THREADS, &count->threads) ||
            !read_number(r, where, object, "read_gbps", MIN_POSITIVE, MAX_GBPS,
                         &count->read_gbps) ||
            !read_number(r, where, object, "matvec_gbps", MIN_POSITIVE, MAX_GBPS,
                         &count->matvec_gbps)) {
            return false;
        }
        if (i > 0 && count->threads <= p->counts[i - 1].threads) {
            return fail_allowed(r, where, "threads", "more than in the entry before");
        }
    }
    p->n_counts = n;
    return true;
}

static bool read_host(const struct reader *r, const json_t *object, struct ats_profile *p)
{
    static const char where[] = "\"host\"";
    return only_keys(r, where, object,
                     "cores hardware_threads cache_bytes cpus best_threads by_threads ") &&
           read_int(r, where, object, "cores", ATS_PROFILE_MAX_THREADS, &p->cores) &&
           read_int(r, where, object, "hardware_threads", ATS_PROFILE_MAX_THREADS,
                    &p->hw_threads) &&
           read_bytes(r, where, object, "cache_bytes", 0, &p->cache_bytes) &&
           read_text(r, where, object, "cpus", p->cpus, sizeof(p->cpus)) &&
           read_int(r, where, object, "best_threads", ATS_PROFILE_MAX_THREADS, &p->best_threads) &&
           read_counts(r, json_object_get(object, "by_threads"), p);
}

static bool read_device(const struct reader *r, const json_t *object, struct ats_profile *p)
{
    static const char where[] = "\"device\"";
    return only_keys(r, where, object, "free_bytes host_launch_us launch_us ") &&
           read_bytes(r, where, object, "free_bytes", 0, &p->free_bytes) &&
           read_number(r, where, object, "host_launch_us", 0, MAX_US, &p->launch_us[ATS_HOST]) &&
           read_number(r, where, object, "launch_us", 0, MAX_US, &p->launch_us[ATS_ACCEL]);
}

static bool read_split(const struct reader *r, const json_t *object, struct ats_profile *p)
{
    static const char where[] = "\"split\"";
    return only_keys(r, where, object, "round_trip_us broken_fusion_us ") &&
           read_number(r, where, object, "round_trip_us", 0, MAX_US, &p->round_trip_us) &&
           read_number(r, where, object, "broken_fusion_us", 0, MAX_US, &p->broken_fusion_us);
}

static bool read_beside(const struct reader *r, const json_t *object, struct ats_profile *p)
{
    static const char where[] = "\"beside\"";
    return only_keys(r, where, object, "link_gbps cpu_gbps ") &&
           read_number(r, where, object, "link_gbps", MIN_POSITIVE, MAX_GBPS,
                       &p->beside_link_gbps) &&
           read_number(r, where, object, "cpu_gbps", 0, MAX_GBPS, &p->beside_cpu_gbps);
}

static bool read_copies(const struct reader *r, const json_t *array, struct ats_profile *p)
{
    if (json_array_size(array) != 4) {
        return fail_allowed(r, "", "copies", "an array of 4: each direction, each kind of memory");
    }
    for (size_t i = 0; i < 4; i++) {
        const json_t *object = json_array_get(array, i);
        char where[32];
        int direction = 0;
        int memory = 0;
        snprintf(where, sizeof(where), "\"copies\"[%zu]", i);
        if (!only_keys(r, where, object, "direction memory points ") ||
            !read_name(r, where, object, "direction", direction_names, 2, &direction) ||
            !read_name(r, where, object, "memory", memory_names, 2, &memory)) {
            return false;
        }
        struct ats_profile_copies *copies = &p->copies[direction][memory];
        if (copies->n_points > 0) {
            return fail_allowed(r, where, "direction",
                                "of another direction or memory than the others");
        }
        if (!read_points(r, where, object, MAX_BYTES, 0, copies->points, &copies->n_points)) {
            return false;
        }
    }
    return true;
}

static bool read_shape(const struct reader *r, const char *where, const json_t *object,
                       struct ats_profile_curve *c)
{
    switch (c->kind) {
    case ATS_COST_MATMUL:
        return only_keys(r, where, object, "side kind type m k bytes points ");
    case ATS_COST_EXPERTS:
        return only_keys(r, where, object, "side kind type m k experts used bytes points ") &&
               read_number(r, where, object, "experts", 1, MAX_SIZE, &c->n_experts) &&
               read_number(r, where, object, "used", 1, c->n_experts, &c->n_used);
    case ATS_COST_ATTENTION:
        return only_keys(r, where, object, "side kind type m k heads bytes points ") &&
               read_number(r, where, object, "heads", 1, MAX_SIZE, &c->heads);
    default:
        return only_keys(r, where, object, "side kind type points ");
    }
}

static bool read_curve(const struct reader *r, const char *where, const json_t *object,
                       struct ats_profile_curve *c)
{
    static const char *const kinds[] = {"matmul", "experts", "attention", "bytes"};
    static const enum ats_cost_kind values[] = {ATS_COST_MATMUL, ATS_COST_EXPERTS,
                                                ATS_COST_ATTENTION, ATS_COST_BYTES};
    int side = 0;
    int kind = 0;
    if (!json_is_object(object)) {
        return only_keys(r, where, object, "");
    }
    if (!read_name(r, where, object, "side", side_names, 2, &side) ||
        !read_name(r, where, object, "kind", kinds, 4, &kind) ||
        !read_text(r, where, object, "type", c->type, sizeof(c->type))) {
        return false;
    }
    c->side = (enum ats_side)side;
    c->kind = values[kind];
    if (!read_shape(r, where, object, c)) {
        return false;
    }
    if (c->kind != ATS_COST_BYTES &&
        (!read_number(r, where, object, "m", 1, MAX_SIZE, &c->m) ||
         !read_number(r, where, object, "k", 1, MAX_SIZE, &c->k) ||
         !read_number(r, where, object, "bytes", 1, MAX_BYTES, &c->weight_bytes))) {
        return false;
    }
    return read_points(r, where, object, c->kind == ATS_COST_BYTES ? MAX_BYTES : MAX_SIZE,
                       c->n_experts, c->points, &c->n_points);
}

/* Without these nothing can be predicted. */
static bool check_complete(const struct reader *r, const struct ats_profile *p)
{
    static const enum ats_cost_kind needed[] = {ATS_COST_MATMUL, ATS_COST_BYTES};
    for (int side = 0; side < ATS_SIDES; side++) {
        for (size_t i = 0; i < 2; i++) {
            size_t found = 0;
            for (size_t c = 0; c < p->n_curves; c++) {
                found += (int)p->curves[c].side == side && p->curves[c].kind == needed[i];
            }
            if (found == 0) {
                return ats_fail(r->err,
                                "%.200s: \"operators\" has no %s of side \"%s\"; `ats profile` "
                                "measures anew",
                                r->path, ats_profile_kind_name(needed[i]), side_names[side]);
            }
        }
    }
    return true;
}

static bool read_curves(const struct reader *r, const json_t *array, struct ats_profile *p)
{
    const size_t n = json_array_size(array);
    if (n < 1 || n > ATS_PROFILE_MAX_CURVES) {
        char allowed[64];
        snprintf(allowed, sizeof(allowed), "an array of 1 to %d objects", ATS_PROFILE_MAX_CURVES);
        return fail_allowed(r, "", "operators", allowed);
    }
    p->curves = calloc(n, sizeof(p->curves[0]));
    if (p->curves == NULL) {
        return ats_fail(r->err, "%.200s: out of memory", r->path);
    }
    for (; p->n_curves < n; p->n_curves++) {
        char where[40];
        snprintf(where, sizeof(where), "\"operators\"[%zu]", p->n_curves);
        if (!read_curve(r, where, json_array_get(array, p->n_curves), &p->curves[p->n_curves])) {
            return false;
        }
    }
    return check_complete(r, p);
}

static bool read_all(const struct reader *r, const json_t *root, struct ats_profile *p)
{
    const char *format = json_string_value(json_object_get(root, "format"));
    if (json_is_object(root) && (format == NULL || strcmp(format, ATS_PROFILE_FORMAT) != 0)) {
        return fail_allowed(r, "", "format", "\"" ATS_PROFILE_FORMAT "\"");
    }
    const json_t *quick = json_object_get(root, "quick");
    if (!only_keys(r, "", root,
                   "format created quick identity host device split beside copies operators ") ||
        !read_text(r, "", root, "created", p->created, sizeof(p->created))) {
        return false;
    }
    if (!json_is_boolean(quick)) {
        return fail_allowed(r, "", "quick", "true or false");
    }
    p->quick = json_is_true(quick);
    return read_identity(r, json_object_get(root, "identity"), &p->identity) &&
           read_host(r, json_object_get(root, "host"), p) &&
           read_device(r, json_object_get(root, "device"), p) &&
           read_split(r, json_object_get(root, "split"), p) &&
           read_beside(r, json_object_get(root, "beside"), p) &&
           read_copies(r, json_object_get(root, "copies"), p) &&
           read_curves(r, json_object_get(root, "operators"), p);
}

bool ats_profile_read(const char *path, struct ats_profile *profile, struct ats_error *err)
{
    json_error_t json_error;
    json_t *root = json_load_file(path, JSON_REJECT_DUPLICATES, &json_error);
    if (root == NULL) {
        if (json_error.line > 0) {
            return ats_fail(err, "%.200s:%d: %.160s; `ats profile` measures anew", path,
                            json_error.line, json_error.text);
        }
        return ats_fail(err, "%.200s: %.160s", path, json_error.text);
    }
    const struct reader r = {path, err};
    struct ats_profile read = {0};
    const bool good = read_all(&r, root, &read);
    json_decref(root);
    if (!good) {
        ats_profile_free(&read);
        return false;
    }
    ats_profile_settle(&read);
    *profile = read;
    return true;
}

/* ---- writing ---- */

static json_t *write_points(const struct ats_profile_point *points, size_t n, bool distinct)
{
    json_t *array = json_array();
    for (size_t i = 0; i < n; i++) {
        json_t *point = json_pack("[f, f]", points[i].n, points[i].us);
        if (distinct) {
            json_array_append_new(point, json_real(points[i].distinct));
        }
        json_array_append_new(array, point);
    }
    return array;
}

static json_t *write_curve(const struct ats_profile_curve *c)
{
    json_t *object = json_pack("{s:s, s:s, s:s}", "side", side_names[c->side], "kind",
                               ats_profile_kind_name(c->kind), "type", c->type);
    if (c->kind != ATS_COST_BYTES) {
        json_object_set_new(object, "m", json_real(c->m));
        json_object_set_new(object, "k", json_real(c->k));
        json_object_set_new(object, "bytes", json_real(c->weight_bytes));
    }
    if (c->kind == ATS_COST_EXPERTS) {
        json_object_set_new(object, "experts", json_real(c->n_experts));
        json_object_set_new(object, "used", json_real(c->n_used));
    }
    if (c->kind == ATS_COST_ATTENTION) {
        json_object_set_new(object, "heads", json_real(c->heads));
    }
    json_object_set_new(object, "points",
                        write_points(c->points, c->n_points, c->kind == ATS_COST_EXPERTS));
    return object;
}

static json_t *write_host(const struct ats_profile *p)
{
    json_t *counts = json_array();
    for (size_t i = 0; i < p->n_counts; i++) {
        const struct ats_profile_threads *count = &p->counts[i];
        json_array_append_new(counts,
                              json_pack("{s:i, s:f, s:f}", "threads", count->threads, "read_gbps",
                                        count->read_gbps, "matvec_gbps", count->matvec_gbps));
    }
    return json_pack("{s:i, s:i, s:I, s:s, s:i, s:o}", "cores", p->cores, "hardware_threads",
                     p->hw_threads, "cache_bytes", (json_int_t)p->cache_bytes, "cpus", p->cpus,
                     "best_threads", p->best_threads, "by_threads", counts);
}

static json_t *write_identity(const struct ats_profile_identity *i)
{
    return json_pack("{s:s, s:I, s:s, s:s, s:I, s:s, s:s, s:i}", "cpu", i->cpu, "host_memory_bytes",
                     (json_int_t)i->host_bytes, "device", i->device, "description", i->description,
                     "device_memory_bytes", (json_int_t)i->device_bytes, "driver", i->driver,
                     "ggml", i->ggml, "threads", i->threads);
}

static json_t *write_all(const struct ats_profile *p)
{
    json_t *copies = json_array();
    for (int d = 0; d < 2; d++) {
        for (int m = 0; m < 2; m++) {
            const struct ats_profile_copies *c = &p->copies[d][m];
            json_array_append_new(copies,
                                  json_pack("{s:s, s:s, s:o}", "direction", direction_names[d],
                                            "memory", memory_names[m], "points",
                                            write_points(c->points, c->n_points, false)));
        }
    }
    json_t *curves = json_array();
    for (size_t i = 0; i < p->n_curves; i++) {
        json_array_append_new(curves, write_curve(&p->curves[i]));
    }
    return json_pack(
        "{s:s, s:s, s:b, s:o, s:o, s:{s:I, s:f, s:f}, s:{s:f, s:f}, s:{s:f, s:f}, s:o, s:o}",
        "format", ATS_PROFILE_FORMAT, "created", p->created, "quick", p->quick, "identity",
        write_identity(&p->identity), "host", write_host(p), "device", "free_bytes",
        (json_int_t)p->free_bytes, "host_launch_us", p->launch_us[ATS_HOST], "launch_us",
        p->launch_us[ATS_ACCEL], "split", "round_trip_us", p->round_trip_us, "broken_fusion_us",
        p->broken_fusion_us, "beside", "link_gbps", p->beside_link_gbps, "cpu_gbps",
        p->beside_cpu_gbps, "copies", copies, "operators", curves);
}

bool ats_profile_print(FILE *out, const struct ats_profile *profile, struct ats_error *err)
{
    json_t *root = write_all(profile);
    if (root == NULL) {
        return ats_fail(err, "out of memory, or a text of the profile is not UTF-8");
    }
    const bool good = json_dumpf(root, out, JSON_INDENT(1) | JSON_REAL_PRECISION(9)) == 0 &&
                      fputc('\n', out) != EOF;
    json_decref(root);
    return good || ats_fail(err, "cannot write the profile: %s", strerror(errno));
}

bool ats_profile_write(const char *path, const struct ats_profile *profile, struct ats_error *err)
{
    struct ats_replace file;
    if (!ats_replace_begin(&file, path)) {
        return ats_fail(err, "cannot write the profile %.200s: %s", path, strerror(errno));
    }
    const bool printed = ats_profile_print(file.out, profile, err);
    return (ats_replace_end(&file, printed) && printed) ||
           (printed && ats_fail(err, "cannot write the profile %.200s: %s", path, strerror(errno)));
}
