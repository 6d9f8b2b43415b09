#include "model/gguf.h"

#include "bind/family.h"

#include <errno.h>
#include <ggml.h>
#include <gguf.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_PARTS = 1000 }; /* llama-gguf-split numbers parts with five digits; nobody has as many */

struct reader {
    const char *path; /* of the part at hand */
    struct gguf_context *gguf;
    struct ats_model_params params;
    struct ats_model_tensor *tensors;
    size_t n_tensors;
    struct ats_error *err;
};

static void ignore_log(enum ggml_log_level level, const char *text, void *data)
{
    (void)level;
    (void)text;
    (void)data;
}

/* ---- keys ---- */

static bool as_number(const struct gguf_context *g, int64_t key, uint64_t *value)
{
    switch (gguf_get_kv_type(g, key)) {
    case GGUF_TYPE_UINT8:
        *value = gguf_get_val_u8(g, key);
        return true;
    case GGUF_TYPE_UINT16:
        *value = gguf_get_val_u16(g, key);
        return true;
    case GGUF_TYPE_UINT32:
        *value = gguf_get_val_u32(g, key);
        return true;
    case GGUF_TYPE_UINT64:
        *value = gguf_get_val_u64(g, key);
        return true;
    case GGUF_TYPE_INT32: {
        const int32_t number = gguf_get_val_i32(g, key);
        *value = (uint64_t)number;
        return number >= 0;
    }
    default:
        return false;
    }
}

/* The key "ARCH.NAME", or -1. */
static int64_t find_key(const struct reader *r, const char *name)
{
    char key[192];
    snprintf(key, sizeof key, "%s.%s", r->params.arch, name);
    return gguf_find_key(r->gguf, key);
}

/* *value stays as it is if the key is missing. */
static bool read_number(struct reader *r, const char *name, uint32_t *value)
{
    const int64_t key = find_key(r, name);
    if (key < 0) {
        return true;
    }
    uint64_t number;
    if (!as_number(r->gguf, key, &number) || number > UINT32_MAX) {
        return ats_fail(r->err, "%s: %s.%s is not a whole number that fits", r->path,
                        r->params.arch, name);
    }
    *value = (uint32_t)number;
    return true;
}

/* A number for all layers, or an array with one per layer. */
static bool read_per_layer(struct reader *r, const char *name, uint32_t *values)
{
    const int64_t key = find_key(r, name);
    if (key < 0 || gguf_get_kv_type(r->gguf, key) != GGUF_TYPE_ARRAY) {
        uint32_t value = 0;
        const bool good = read_number(r, name, &value);
        for (int i = 0; i < ATS_MODEL_MAX_LAYERS; i++) {
            values[i] = key >= 0 ? value : values[i];
        }
        return good;
    }
    const enum gguf_type type = gguf_get_arr_type(r->gguf, key);
    const size_t n = gguf_get_arr_n(r->gguf, key);
    if ((type != GGUF_TYPE_UINT32 && type != GGUF_TYPE_INT32) || n < r->params.n_layers) {
        return ats_fail(r->err, "%s: %s.%s must have a whole number per layer", r->path,
                        r->params.arch, name);
    }
    const uint32_t *data = gguf_get_arr_data(r->gguf, key);
    for (size_t i = 0; i < n && i < ATS_MODEL_MAX_LAYERS; i++) {
        values[i] = data[i];
    }
    return true;
}

/* Which layers have a sliding window. The key is a number (every n-th layer sees all) or an
 * array of truth values; gpt-oss alternates and says nothing. */
static bool read_windows(struct reader *r)
{
    struct ats_model_params *p = &r->params;
    uint32_t pattern = strcmp(p->arch, "gpt-oss") == 0 ? 2 : 0;
    const char *name = "attention.sliding_window_pattern";
    const int64_t key = find_key(r, name);
    if (key >= 0 && gguf_get_kv_type(r->gguf, key) == GGUF_TYPE_ARRAY &&
        gguf_get_arr_type(r->gguf, key) == GGUF_TYPE_BOOL) {
        const int8_t *data = gguf_get_arr_data(r->gguf, key);
        const size_t n = gguf_get_arr_n(r->gguf, key);
        for (size_t i = 0; i < n && i < ATS_MODEL_MAX_LAYERS; i++) {
            p->windowed[i] = data[i] != 0;
        }
        return true;
    }
    if (!read_number(r, name, &pattern)) {
        return false;
    }
    for (uint32_t i = 0; i < ATS_MODEL_MAX_LAYERS && pattern > 1; i++) {
        p->windowed[i] = i % pattern < pattern - 1;
    }
    return true;
}

static void read_text(const struct gguf_context *g, const char *name, char *text, size_t size)
{
    const int64_t key = gguf_find_key(g, name);
    if (key >= 0 && gguf_get_kv_type(g, key) == GGUF_TYPE_STRING) {
        snprintf(text, size, "%s", gguf_get_val_str(g, key));
    }
}

static bool read_layers(struct reader *r)
{
    uint32_t predicting = 0;
    uint32_t *n = &r->params.n_layers;
    if (!read_number(r, "block_count", n) || !read_number(r, "nextn_predict_layers", &predicting)) {
        return false;
    }
    if (*n > ATS_MODEL_MAX_LAYERS || predicting > *n) {
        return ats_fail(r->err,
                        "%s: %u layers, of which %u predict further tokens: not a model "
                        "that ATS handles",
                        r->path, *n, predicting);
    }
    if (predicting == *n) {
        return ats_fail(r->err, "%s has no layers, by its %s.block_count: it is not a model",
                        r->path, r->params.arch);
    }
    *n -= predicting;
    return true;
}

static bool read_params(struct reader *r)
{
    struct ats_model_params *p = &r->params;
    read_text(r->gguf, "general.architecture", p->arch, sizeof p->arch);
    read_text(r->gguf, "general.name", p->name, sizeof p->name);
    if (p->arch[0] == '\0') {
        return ats_fail(r->err, "%s does not name an architecture: it is not a model", r->path);
    }
    if (!read_layers(r) || !read_number(r, "embedding_length", &p->n_embd) ||
        !read_per_layer(r, "attention.head_count", p->n_heads)) {
        return false;
    }
    memcpy(p->n_kv_heads, p->n_heads, sizeof p->n_kv_heads);
    const uint32_t heads = p->n_heads[p->n_layers - 1];
    p->head_dim_k = heads > 0 ? p->n_embd / heads : 0;
    p->head_dim_v = p->head_dim_k;
    return read_per_layer(r, "attention.head_count_kv", p->n_kv_heads) &&
           read_number(r, "attention.key_length", &p->head_dim_k) &&
           read_number(r, "attention.value_length", &p->head_dim_v) &&
           read_number(r, "attention.sliding_window", &p->window) && read_windows(r) &&
           read_number(r, "expert_count", &p->n_experts) &&
           read_number(r, "expert_used_count", &p->n_used) &&
           read_number(r, "ssm.conv_kernel", &p->conv_kernel) &&
           read_number(r, "ssm.state_size", &p->state_size) &&
           read_number(r, "ssm.inner_size", &p->inner_size) &&
           read_number(r, "ssm.group_count", &p->n_groups);
}

/* ---- tensors ---- */

static bool read_tensors(struct reader *r)
{
    const int64_t n = gguf_get_n_tensors(r->gguf);
    if (n < 0 || (uint64_t)n + r->n_tensors > ATS_MODEL_MAX_TENSORS) {
        return ats_fail(r->err, "%s has %" PRId64 " tensors, more than ATS handles", r->path, n);
    }
    struct ats_model_tensor *grown =
        realloc(r->tensors, (r->n_tensors + (size_t)n + 1) * sizeof(grown[0]));
    if (grown == NULL) {
        return ats_fail(r->err, "out of memory for the tensors of %s", r->path);
    }
    r->tensors = grown;
    for (int64_t i = 0; i < n; i++) {
        struct ats_model_tensor *t = &r->tensors[r->n_tensors];
        const enum ggml_type type = gguf_get_tensor_type(r->gguf, i);
        const int64_t *ne = gguf_get_tensor_ne(r->gguf, i);
        *t = (struct ats_model_tensor){.name = strdup(gguf_get_tensor_name(r->gguf, i)),
                                       .type_name = ggml_type_name(type),
                                       .family = ats_family_of(type),
                                       .bytes = gguf_get_tensor_size(r->gguf, i)};
        if (t->name == NULL) {
            return ats_fail(r->err, "out of memory for the tensors of %s", r->path);
        }
        r->n_tensors++;
        for (int d = 0; d < 4; d++) {
            t->ne[d] = ne[d] > 0 ? (uint64_t)ne[d] : 0;
        }
    }
    return true;
}

/* ---- files ---- */

static bool open_part(struct reader *r, const char *path)
{
    FILE *file = fopen(path, "rb");
    if (file == NULL) {
        return ats_fail(r->err, "cannot read the model %s: %s", path, strerror(errno));
    }
    r->path = path;
    r->gguf = gguf_init_from_file_ptr(file, (struct gguf_init_params){.no_alloc = true});
    fclose(file);
    return r->gguf != NULL || ats_fail(r->err, "%s is not a GGUF file, or is damaged", path);
}

static bool count_parts(struct reader *r, uint64_t *n)
{
    *n = 1;
    const int64_t key = gguf_find_key(r->gguf, "split.count");
    if (key < 0) {
        return true;
    }
    if (!as_number(r->gguf, key, n) || *n > MAX_PARTS) {
        return ats_fail(r->err, "%s: split.count is not a number of parts", r->path);
    }
    *n = *n > 0 ? *n : 1;
    return true;
}

/* The name of part `i` of `n`, from 1, given that of the first. False if that is not one. */
static bool part_name(const char *first, uint64_t i, uint64_t n, char *name, size_t size)
{
    char end[40];
    snprintf(end, sizeof end, "-00001-of-%05u.gguf", (unsigned)n);
    const size_t length = strlen(first);
    if (length < strlen(end) || strcmp(first + length - strlen(end), end) != 0) {
        return false;
    }
    const int written = snprintf(name, size, "%.*s-%05u-of-%05u.gguf", (int)(length - strlen(end)),
                                 first, (unsigned)i, (unsigned)n);
    return written > 0 && (size_t)written < size;
}

static bool read_parts(struct reader *r, const char *path)
{
    uint64_t n;
    if (!open_part(r, path) || !read_params(r) || !read_tensors(r) || !count_parts(r, &n)) {
        return false;
    }
    for (uint64_t i = 2; i <= n; i++) {
        char name[4096];
        if (!part_name(path, i, n, name, sizeof name)) {
            return ats_fail(r->err, "%s is one of %u parts; name the first one (-00001-of-%05u)",
                            path, (unsigned)n, (unsigned)n);
        }
        gguf_free(r->gguf);
        r->gguf = NULL;
        const bool good = open_part(r, name) && read_tensors(r);
        r->path = path;
        if (!good) {
            return false;
        }
    }
    return true;
}

struct ats_model *ats_model_read(const char *path, struct ats_error *err)
{
    ggml_log_callback old_log;
    void *old_data;
    ggml_log_get(&old_log, &old_data);
    ggml_log_set(ignore_log, NULL);
    struct reader r = {.err = err};
    const bool good = read_parts(&r, path);
    gguf_free(r.gguf);
    ggml_log_set(old_log, old_data);
    if (!good) {
        ats_model_free_tensors(r.tensors, r.n_tensors);
        return NULL;
    }
    struct ats_error why;
    struct ats_model *model = ats_model_build(&r.params, r.tensors, r.n_tensors, &why);
    if (model == NULL) {
        ats_fail(err, "%s: %s", path, why.text);
    }
    return model;
}
