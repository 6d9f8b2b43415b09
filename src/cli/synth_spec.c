/* Parsing is by a table: one line per key says where it goes, which values make sense, and which
 * architectures need it. */
#include "cli/synth_spec.h"
#include "cli/cli.h"
#include "cli/paths.h"
#include "cli/synth.h"

#include <dirent.h>
#include <errno.h>
#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Which models need a key; it is an error for the others, where it would have no effect. */
enum need {
    ALL,      /* every model */
    OPTIONAL, /* may be left out by any */
    DENSE,    /* those with an ordinary feed-forward block; others may have it as metadata */
    EXPERTS,  /* mixtures of experts */
    SHARED,   /* with a shared expert */
    LINEAR,   /* with layers of linear attention */
    WINDOW,   /* with layers of sliding-window attention */
    SECTIONS, /* with rotary embedding in sections */
};

enum kind { NUMBER, REAL, FLAG };

struct field {
    const char *key;
    enum kind kind;
    enum need need;
    size_t offset;
    double least;
    double most;
};

/* Limits: what llama.cpp accepts (LLAMA_MAX_LAYERS, LLAMA_MAX_EXPERTS), and widths several times
 * those of the largest published models. */
#define U32(name, need, least, most)                                                               \
    {                                                                                              \
#name, NUMBER, need, offsetof(struct synth_spec, name), least, most                        \
    }
#define F64(name, need, least, most)                                                               \
    {                                                                                              \
#name, REAL, need, offsetof(struct synth_spec, name), least, most                          \
    }
#define BOOL(name, need)                                                                           \
    {                                                                                              \
#name, FLAG, need, offsetof(struct synth_spec, name), 0, 1                                 \
    }
static const struct field fields[] = {
    U32(layers, ALL, 1, 512),
    U32(benchmark_layers, OPTIONAL, 1, 512),
    U32(embedding, ALL, 32, 65536),
    U32(vocabulary, ALL, 256, 4 << 20),
    U32(context, ALL, 256, 1 << 28),
    U32(heads, ALL, 1, 1024),
    U32(kv_heads, ALL, 1, 1024),
    U32(head_dim, ALL, 8, 1024),
    U32(feed_forward, DENSE, 32, 262144),
    U32(experts, EXPERTS, 2, 512),
    U32(experts_used, EXPERTS, 1, 512),
    U32(expert_feed_forward, EXPERTS, 32, 65536),
    U32(shared_feed_forward, SHARED, 32, 65536),
    U32(sliding_window, WINDOW, 1, 1 << 20),
    U32(attention_interval, LINEAR, 2, 64),
    U32(linear_key_heads, LINEAR, 1, 1024),
    U32(linear_value_heads, LINEAR, 1, 1024),
    U32(linear_head_dim, LINEAR, 8, 1024),
    U32(conv_kernel, LINEAR, 2, 16),
    U32(rope_dim, ALL, 2, 1024),
    U32(yarn_context, OPTIONAL, 256, 1 << 28),
    F64(yarn_factor, OPTIONAL, 1, 1024),
    F64(rope_base, ALL, 1, 1e12),
    F64(rms_epsilon, ALL, 1e-12, 1e-2),
    BOOL(rope_factors, OPTIONAL),
    BOOL(qkv_bias, OPTIONAL),
    U32(topics, OPTIONAL, 1, 65536),
    F64(topic_share, OPTIONAL, 0, 0.999),
};
enum { N_FIELDS = sizeof fields / sizeof fields[0] };

/* Keys that the table does not cover. */
static const char *const other_keys[] = {"title", "architecture", "types", "rope_sections",
                                         "sources"};
enum { N_OTHER = sizeof other_keys / sizeof other_keys[0] };

static const struct {
    const char *name;
    unsigned needs;       /* bits of enum need */
    bool rotates_in_part; /* "rope_dim" may be less than "head_dim" */
} archs[] = {
    {"glm4", 1U << DENSE, true},
    {"qwen3", 1U << DENSE, false},
    {"llama", 1U << DENSE, false},
    {"qwen3moe", 1U << EXPERTS, false},
    {"gpt-oss", 1U << EXPERTS | 1U << WINDOW, false},
    {"qwen3next", 1U << EXPERTS | 1U << SHARED | 1U << LINEAR, true},
    {"qwen35moe", 1U << EXPERTS | 1U << SHARED | 1U << LINEAR | 1U << SECTIONS, true},
};
enum { N_ARCHS = sizeof archs / sizeof archs[0] };

static const char *const mix_names[] = {
    [SYNTH_MIX_F16] = "F16", [SYNTH_MIX_Q4_K_M] = "Q4_K_M", [SYNTH_MIX_MXFP4] = "MXFP4"};
enum { N_MIXES = sizeof mix_names / sizeof mix_names[0] };

static const char *suggestion(const char *key)
{
    const char *known[N_FIELDS + N_OTHER];
    for (size_t i = 0; i < N_FIELDS; i++) {
        known[i] = fields[i].key;
    }
    memcpy(known + N_FIELDS, other_keys, sizeof other_keys);
    return cli_suggest(key, known, N_FIELDS + N_OTHER);
}

static bool is_known(const char *key)
{
    for (size_t i = 0; i < N_FIELDS; i++) {
        if (strcmp(fields[i].key, key) == 0) {
            return true;
        }
    }
    for (size_t i = 0; i < N_OTHER; i++) {
        if (strcmp(other_keys[i], key) == 0) {
            return true;
        }
    }
    return false;
}

static bool check_keys(json_t *root, const char *path, struct ats_error *err)
{
    const char *key;
    json_t *value;
    json_object_foreach(root, key, value)
    {
        if (!is_known(key)) {
            const char *close = suggestion(key);
            return ats_fail(err, "%s: unknown key \"%s\"%s%s", path, key,
                            close != NULL ? "; did you mean " : "", close != NULL ? close : "");
        }
    }
    return true;
}

static bool read_text(json_t *root, const char *path, const char *key, char *text, size_t size,
                      struct ats_error *err)
{
    const char *value = json_string_value(json_object_get(root, key));
    if (value == NULL || value[0] == '\0' || strlen(value) >= size) {
        return ats_fail(err, "%s: \"%s\" must be a text of 1 to %zu characters", path, key,
                        size - 1);
    }
    snprintf(text, size, "%s", value);
    return true;
}

/* Whether a key that is absent is missing, or one that is there has no meaning. */
static bool check_need(const struct field *f, bool given, unsigned needs, const char *arch,
                       const char *path, struct ats_error *err)
{
    if (f->need == OPTIONAL || (f->need == DENSE && given)) {
        return true;
    }
    const bool needed = f->need == ALL || (needs & 1U << f->need) != 0;
    if (needed && !given) {
        return ats_fail(err, "%s: \"%s\" is missing, which %s needs", path, f->key, arch);
    }
    return needed || !given ||
           ats_fail(err, "%s: \"%s\" has no meaning for %s", path, f->key, arch);
}

static bool read_field(struct synth_spec *spec, const struct field *f, const json_t *value,
                       const char *path, struct ats_error *err)
{
    void *at = (char *)spec + f->offset;
    if (f->kind == FLAG) {
        *(bool *)at = json_is_true(value);
        return json_is_boolean(value) ||
               ats_fail(err, "%s: \"%s\" must be true or false", path, f->key);
    }
    const bool is_right = f->kind == NUMBER ? json_is_integer(value) : json_is_number(value);
    const double number = json_number_value(value);
    if (!is_right || !(number >= f->least && number <= f->most)) {
        return ats_fail(err, "%s: \"%s\" must be a %snumber from %g to %g", path, f->key,
                        f->kind == NUMBER ? "whole " : "", f->least, f->most);
    }
    if (f->kind == NUMBER) {
        *(uint32_t *)at = (uint32_t)number;
    } else {
        *(double *)at = number;
    }
    return true;
}

static bool read_sections(struct synth_spec *spec, json_t *root, unsigned needs, const char *path,
                          struct ats_error *err)
{
    json_t *value = json_object_get(root, "rope_sections");
    const bool needed = (needs & 1U << SECTIONS) != 0;
    if (value == NULL && !needed) {
        return true;
    }
    if (!needed) {
        return ats_fail(err, "%s: \"rope_sections\" has no meaning for %s", path, spec->arch);
    }
    bool ok = json_array_size(value) == 4;
    for (size_t i = 0; i < 4 && ok; i++) {
        json_int_t number = json_integer_value(json_array_get(value, i));
        ok = json_is_integer(json_array_get(value, i)) && number >= 0 && number <= 512;
        spec->rope_sections[i] = (uint32_t)number;
    }
    return ok || ats_fail(err, "%s: \"rope_sections\" must be 4 whole numbers from 0 to 512", path);
}

static bool read_sources(json_t *root, const char *path, struct ats_error *err)
{
    json_t *sources = json_object_get(root, "sources");
    const char *key;
    json_t *value;
    bool ok = sources == NULL || json_is_object(sources);
    json_object_foreach(sources, key, value)
    {
        ok = ok && json_is_string(value);
    }
    return ok || ats_fail(err, "%s: \"sources\" must be an object of texts", path);
}

/* llama.cpp has other shapes of rotary embedding for some architectures only. */
static bool check_rope(const struct synth_spec *s, const char *path, struct ats_error *err)
{
    bool in_part = false;
    for (size_t i = 0; i < N_ARCHS; i++) {
        in_part = in_part || (archs[i].rotates_in_part && strcmp(archs[i].name, s->arch) == 0);
    }
    if (s->rope_dim > s->head_dim || s->rope_dim % 2 != 0) {
        return ats_fail(err, "%s: \"rope_dim\" %u must be even and at most \"head_dim\" %u", path,
                        s->rope_dim, s->head_dim);
    }
    return in_part || s->rope_dim == s->head_dim ||
           ats_fail(err, "%s: \"rope_dim\" %u must be \"head_dim\" %u for %s", path, s->rope_dim,
                    s->head_dim, s->arch);
}

/* What each number alone does not tell. */
static bool check_together(const struct synth_spec *s, const char *path, struct ats_error *err)
{
    if (s->heads % s->kv_heads != 0) {
        return ats_fail(err, "%s: \"heads\" %u is no multiple of \"kv_heads\" %u", path, s->heads,
                        s->kv_heads);
    }
    if (s->experts_used > s->experts) {
        return ats_fail(err, "%s: \"experts_used\" %u is more than \"experts\" %u", path,
                        s->experts_used, s->experts);
    }
    if (!check_rope(s, path, err)) {
        return false;
    }
    if (s->linear_key_heads > 0 && s->linear_value_heads % s->linear_key_heads != 0) {
        return ats_fail(err,
                        "%s: \"linear_value_heads\" %u is no multiple of \"linear_key_heads\" %u",
                        path, s->linear_value_heads, s->linear_key_heads);
    }
    if ((s->yarn_factor > 0) != (s->yarn_context > 0)) {
        return ats_fail(err, "%s: \"yarn_factor\" and \"yarn_context\" go together", path);
    }
    const uint32_t period = synth_spec_period(s);
    if (s->layers % period != 0 || s->benchmark_layers % period != 0 ||
        s->benchmark_layers > s->layers) {
        return ats_fail(err,
                        "%s: \"layers\" %u and \"benchmark_layers\" %u must be multiples of %u, "
                        "the second at most the first",
                        path, s->layers, s->benchmark_layers, period);
    }
    return true;
}

static bool read_arch(struct synth_spec *spec, json_t *root, unsigned *needs, const char *path,
                      struct ats_error *err)
{
    char mix[16];
    if (!read_text(root, path, "architecture", spec->arch, sizeof spec->arch, err) ||
        !read_text(root, path, "types", mix, sizeof mix, err) ||
        !read_text(root, path, "title", spec->title, sizeof spec->title, err)) {
        return false;
    }
    size_t arch = 0;
    while (arch < N_ARCHS && strcmp(archs[arch].name, spec->arch) != 0) {
        arch++;
    }
    if (arch == N_ARCHS) {
        return ats_fail(err,
                        "%s: unknown architecture '%s'; there are glm4, qwen3, llama, qwen3moe, "
                        "gpt-oss, qwen3next and qwen35moe",
                        path, spec->arch);
    }
    *needs = archs[arch].needs;
    for (size_t i = 0; i < N_MIXES; i++) {
        if (strcmp(mix_names[i], mix) == 0) {
            spec->mix = (enum synth_mix)i;
            return true;
        }
    }
    return ats_fail(err, "%s: \"types\" '%s' is none of F16, Q4_K_M, MXFP4", path, mix);
}

static bool read_root(struct synth_spec *spec, json_t *root, const char *path,
                      struct ats_error *err)
{
    unsigned needs = 0;
    if (!json_is_object(root)) {
        return ats_fail(err, "%s: not a JSON object", path);
    }
    if (!check_keys(root, path, err) || !read_arch(spec, root, &needs, path, err)) {
        return false;
    }
    for (size_t i = 0; i < N_FIELDS; i++) {
        const json_t *value = json_object_get(root, fields[i].key);
        if (!check_need(&fields[i], value != NULL, needs, spec->arch, path, err) ||
            (value != NULL && !read_field(spec, &fields[i], value, path, err))) {
            return false;
        }
    }
    if (spec->benchmark_layers == 0) {
        spec->benchmark_layers = spec->layers;
    }
    return read_sections(spec, root, needs, path, err) && read_sources(root, path, err) &&
           check_together(spec, path, err);
}

uint32_t synth_spec_period(const struct synth_spec *spec)
{
    return spec->attention_interval > 0 ? spec->attention_interval : 1;
}

static bool is_file_name(const char *model)
{
    static const char end[] = ".json";
    const size_t length = strlen(model);
    return strchr(model, '/') != NULL ||
           (length >= sizeof end && strcmp(model + length - (sizeof end - 1), end) == 0);
}

static void set_name(struct synth_spec *spec, const char *path)
{
    const char *slash = strrchr(path, '/');
    snprintf(spec->name, sizeof spec->name, "%s", slash != NULL ? slash + 1 : path);
    char *end = strrchr(spec->name, '.');
    if (end != NULL && strcmp(end, ".json") == 0) {
        *end = '\0';
    }
}

static bool unknown_model(const char *model, struct ats_error *err)
{
    size_t n = 0;
    char **names = synth_spec_names(&n, err);
    if (names == NULL) {
        return false;
    }
    const char *close = cli_suggest(model, (const char *const *)names, n);
    ats_fail(err, "unknown model '%s'%s%s; `ats synth --list` shows all", model,
             close != NULL ? "; did you mean " : "", close != NULL ? close : "");
    for (size_t i = 0; i < n; i++) {
        free(names[i]);
    }
    free(names);
    return false;
}

bool synth_spec_read(struct synth_spec *spec, const char *model, struct ats_error *err)
{
    *spec = (struct synth_spec){.title = ""};
    char *folder = paths_models();
    char *path =
        is_file_name(model) ? cli_format("%s", model) : cli_format("%s/%s.json", folder, model);
    free(folder);
    FILE *file = fopen(path, "r");
    bool ok = file != NULL;
    if (!ok && !is_file_name(model)) {
        unknown_model(model, err);
    } else if (!ok) {
        ats_fail(err, "cannot read %s: %s", path, strerror(errno));
    }
    if (ok) {
        json_error_t why;
        json_t *root = json_loadf(file, JSON_REJECT_DUPLICATES, &why);
        ok = root != NULL || ats_fail(err, "%s is not JSON: line %d: %s", path, why.line, why.text);
        ok = ok && read_root(spec, root, path, err);
        json_decref(root);
        fclose(file);
    }
    set_name(spec, path);
    free(path);
    return ok;
}

static int is_json(const struct dirent *entry)
{
    return entry->d_name[0] != '.' && is_file_name(entry->d_name);
}

char **synth_spec_names(size_t *n, struct ats_error *err)
{
    char *folder = paths_models();
    struct dirent **entries = NULL;
    int count = scandir(folder, &entries, is_json, alphasort);
    char **names = NULL;
    if (count < 0) {
        ats_fail(err, "cannot read the folder of models %s: %s; ATS_MODELS names another", folder,
                 strerror(errno));
    } else {
        names = cli_alloc(((size_t)count + 1) * sizeof *names);
    }
    for (int i = 0; i < count; i++) {
        names[i] = cli_format("%s", entries[i]->d_name);
        *strrchr(names[i], '.') = '\0';
        free(entries[i]);
    }
    free(entries);
    free(folder);
    *n = count > 0 ? (size_t)count : 0;
    return names;
}
