/* `ats plan`: plan files for the backend, and arguments for llama.cpp. */
#include "base/replace.h"
#include "cli/cli.h"
#include "cli/plan.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ---- plan files ---- */

struct lines {
    struct ats_unit *units;
    enum ats_where *where;
    char (*names)[2][32]; /* of state, by unit of the model */
    size_t n;
};

static void add_line(struct lines *l, const char *name, uint64_t bytes, enum ats_where where)
{
    l->where[l->n] = where;
    l->units[l->n++] = (struct ats_unit){.name = name, .bytes = (size_t)bytes};
}

/* llama.cpp has two tensors of state per layer: keys and values, or convolution and state. Their
 * sizes depend on the context and are not checked when the file is read. */
static void add_state(const struct plan_part *part, size_t unit, struct lines *l)
{
    const struct ats_model_unit *u = &part->model->units[unit];
    const uint64_t bytes = ats_model_state_bytes(u, part->setting.n_ctx, part->setting.ubatch);
    const bool in_vram = part->placement.unit_state[unit];
    for (int i = 0; i < 2 && bytes > 0; i++) {
        const char *kinds = u->recurrent_bytes > 0 ? "rs" : "kv";
        snprintf(l->names[unit][i], sizeof l->names[unit][i], "cache_%c_l%d", kinds[i], u->layer);
        add_line(l, l->names[unit][i], bytes / 2, in_vram ? ATS_WHERE_VRAM : ATS_WHERE_HOST);
    }
}

static void fill_lines(const struct plan_part *part, struct lines *l)
{
    const struct ats_model *m = part->model;
    for (size_t i = 0; i < m->n_units; i++) {
        const struct ats_model_unit *u = &m->units[i];
        for (uint32_t w = 0; w < u->n_weights && u->role != ATS_ROLE_EMBEDDING; w++) {
            const int32_t t = m->weights[u->first_weight + w];
            const enum ats_where own = part->placement.on_both[t] ? ATS_WHERE_BOTH : ATS_WHERE_VRAM;
            add_line(l, m->tensors[t].name, m->tensors[t].bytes,
                     part->placement.tensor[t] ? own : ATS_WHERE_HOST);
        }
        add_state(part, i, l);
    }
    /* of no unit, but llama.cpp may use them all the same, such as factors of rotations, which
     * every layer reads */
    for (size_t t = 0; t < m->n_tensors; t++) {
        bool listed = strcmp(m->tensors[t].name, "token_embd.weight") == 0;
        for (size_t i = 0; i < l->n && !listed; i++) {
            listed = strcmp(l->units[i].name, m->tensors[t].name) == 0;
        }
        if (!listed) {
            const bool is_vector = m->tensors[t].ne[1] <= 1;
            add_line(l, m->tensors[t].name, m->tensors[t].bytes,
                     is_vector ? ATS_WHERE_BOTH : ATS_WHERE_HOST);
        }
    }
}

static bool write_part(const struct plan_part *part, const char *path, struct ats_error *err)
{
    const struct ats_model *m = part->model;
    const size_t most = m->n_tensors + m->n_weights + 2 * m->n_units + 1;
    struct lines l = {cli_alloc(most * sizeof(*l.units)), cli_alloc(most * sizeof(*l.where)),
                      cli_alloc((m->n_units + 1) * sizeof(*l.names)), 0};
    fill_lines(part, &l);
    struct ats_replace file;
    errno = 0;
    const bool good = ats_replace_begin(&file, path) &&
                      ats_replace_end(&file, ats_placement_print(file.out, part->placement.staging,
                                                                 l.units, l.n, l.where));
    if (!good) {
        ats_fail(err, "cannot write the plan %s: %s", path, strerror(errno));
    }
    free(l.units);
    free(l.where);
    free(l.names);
    return good;
}

/* The file of a device. Caller frees. */
static char *part_path(const char *path, size_t device)
{
    return device == 0 ? cli_format("%s", path) : cli_format("%s.ATS%zu", path, device);
}

/* The file behind those of this plan that its reader would take for one more device's, as a plan
 * for more devices left it; NULL if there is none. Caller frees. */
static char *stale_path(const struct plan *p, const char *path, size_t i)
{
    char *stale = part_path(path, p->n_parts + i);
    if (access(stale, F_OK) == 0) {
        return stale;
    }
    free(stale);
    return NULL;
}

/* What is not a plan was not left by one, and is not ours to remove. */
static bool check_stale(const struct plan *p, const char *path, struct ats_error *err)
{
    bool good = true;
    char *stale;
    for (size_t i = 0; good && (stale = stale_path(p, path, i)) != NULL; i++) {
        struct ats_placement_table table;
        struct ats_error why;
        good = ats_placement_read(stale, &table, &why);
        if (good) {
            ats_placement_table_free(&table);
        } else {
            ats_fail(err,
                     "--out %s: %s would be read as its part for one more device, and is no plan "
                     "that could be removed; move it, or name another file",
                     path, stale);
        }
        free(stale);
    }
    return good;
}

static bool remove_stale(const struct plan *p, const char *path, struct ats_error *err)
{
    bool good = true;
    char *stale;
    for (size_t i = 0; good && (stale = stale_path(p, path, i)) != NULL; i++) {
        good = unlink(stale) == 0 || ats_fail(err, "cannot remove %s, a part of an older plan: %s",
                                              stale, strerror(errno));
        if (good) {
            fprintf(stderr, "%s: removed %s, a part of an older plan for more devices\n",
                    p->options->common.who, stale);
        }
        free(stale);
    }
    return good;
}

bool plan_write(const struct plan *p, const char *path, struct ats_error *err)
{
    bool good = check_stale(p, path, err);
    for (size_t k = 0; good && k < p->n_parts; k++) {
        char *own = part_path(path, k);
        good = write_part(&p->parts[k], own, err);
        free(own);
    }
    return good && remove_stale(p, path, err);
}

/* ---- arguments for llama.cpp ---- */

/* The part of a tensor's name behind its layer. */
static const char *suffix_of(const char *name)
{
    const char *dot = strncmp(name, "blk.", 4) == 0 ? strchr(name + 4, '.') : NULL;
    return dot != NULL ? dot + 1 : name;
}

/* Layers as llama.cpp counts them, those that predict further tokens included. */
static int count_layers(const struct ats_model *m)
{
    int n = (int)m->params.n_layers;
    for (size_t i = 0; i < m->n_tensors; i++) {
        n = m->tensors[i].layer >= n ? m->tensors[i].layer + 1 : n;
    }
    return n;
}

/* The first layer of those at the end that have their state on the accelerator; a layer without
 * state goes with the one behind it. */
static int first_accel_layer(const struct plan_part *part, int n_layers, bool *has_more)
{
    bool in_host[ATS_MODEL_MAX_LAYERS] = {false};
    bool in_vram[ATS_MODEL_MAX_LAYERS] = {false};
    for (size_t i = 0; i < part->model->n_units; i++) {
        const struct ats_model_unit *u = &part->model->units[i];
        if (u->layer >= 0 && (u->kv_bytes_per_token > 0 || u->recurrent_bytes > 0)) {
            (part->placement.unit_state[i] ? in_vram : in_host)[u->layer] = true;
        }
    }
    int first = n_layers;
    while (first > 0 && !in_host[first - 1]) {
        first--;
    }
    while (first < n_layers && !in_vram[first]) {
        first++;
    }
    *has_more = false;
    for (int i = 0; i < first; i++) {
        *has_more = *has_more || in_vram[i];
    }
    return first;
}

/* Names of a layer's tensors that are elsewhere than the layer, as a regular expression; empty if
 * there are none. Norms and biases go with their layer: llama.cpp has no copies on both sides. */
static char *moved_in_layer(const struct plan_part *part, int layer, bool on_accel)
{
    char *names = cli_format("%s", "");
    for (size_t t = 0; t < part->model->n_tensors; t++) {
        const struct ats_model_tensor *tensor = &part->model->tensors[t];
        if (tensor->layer != layer || tensor->ne[1] <= 1 || part->placement.tensor[t] == on_accel) {
            continue;
        }
        char *longer =
            cli_format("%s%s%s", names, names[0] != '\0' ? "|" : "", suffix_of(tensor->name));
        free(names);
        names = longer;
    }
    return names;
}

/* Appends "PATTERN=BUFFER" for the layers from `layer` on whose tensors `names` are elsewhere. */
static void add_override(char **text, const char *const *moved, int layer, int n_layers,
                         int first_accel, const char *buffer)
{
    const bool on_accel = layer >= first_accel;
    char *layers = cli_format("%d", layer);
    for (int i = layer + 1; i < n_layers; i++) {
        if (strcmp(moved[i], moved[layer]) == 0 && (i >= first_accel) == on_accel) {
            char *longer = cli_format("%s|%d", layers, i);
            free(layers);
            layers = longer;
        }
    }
    char *escaped = cli_alloc(2 * strlen(moved[layer]) + 1);
    size_t n = 0;
    for (const char *c = moved[layer]; *c != '\0'; c++) {
        if (*c == '.') {
            escaped[n++] = '\\';
        }
        escaped[n++] = *c;
    }
    char *longer = cli_format("%s%s^blk\\.(%s)\\.(%s)$=%s", *text, **text != '\0' ? "," : "",
                              layers, escaped, buffer);
    free(*text);
    free(layers);
    free(escaped);
    *text = longer;
}

/* All but the output head's. */
static void add_overrides(const struct plan *p, int n_layers, int first_accel, char **text)
{
    const struct plan_part *part = &p->parts[0];
    const char *measured = p->profile_path[0] != '\0' ? p->profile.identity.device : "CUDA0";
    const char *accel = p->options->accel != NULL ? p->options->accel : measured;
    char **moved = cli_alloc(((size_t)n_layers + 1) * sizeof(*moved));
    for (int i = 0; i < n_layers; i++) {
        moved[i] = moved_in_layer(part, i, i >= first_accel);
    }
    for (int i = 0; i < n_layers; i++) {
        bool done = moved[i][0] == '\0';
        for (int k = 0; k < i && !done; k++) { /* with an earlier layer */
            done = strcmp(moved[k], moved[i]) == 0 && (k >= first_accel) == (i >= first_accel);
        }
        if (!done) {
            add_override(text, (const char *const *)moved, i, n_layers, first_accel,
                         i >= first_accel ? "CPU" : accel);
        }
    }
    for (int i = 0; i < n_layers; i++) {
        free(moved[i]);
    }
    free(moved);
}

static bool is_output_in_vram(const struct plan_part *part)
{
    for (size_t i = 0; i < part->model->n_units; i++) {
        const struct ats_model_unit *u = &part->model->units[i];
        if (u->role == ATS_ROLE_OUTPUT && u->n_weights > 0) {
            return part->placement.tensor[part->model->weights[u->first_weight]];
        }
    }
    return false;
}

void plan_print_args(const struct plan *p, FILE *out, FILE *notes)
{
    const struct plan_part *part = &p->parts[0];
    bool has_more;
    const int n_layers = count_layers(part->model);
    int first = first_accel_layer(part, n_layers, &has_more);
    const bool has_output = is_output_in_vram(part);
    const int ngl = first < n_layers || has_output ? n_layers + 1 - first : 0;
    char *overrides = cli_format("%s", "");
    if (ngl > 0 && !has_output) {
        free(overrides);
        overrides = cli_format("^output\\.weight$=CPU");
    }
    add_overrides(p, n_layers, first, &overrides);
    const char *quote = isatty(fileno(out)) ? "'" : "";
    fprintf(out, "-ngl %d", ngl);
    if (overrides[0] != '\0') {
        fprintf(out, " -ot %s%s%s", quote, overrides, quote);
    }
    fprintf(out, "\n");
    free(overrides);
    if (has_more) {
        fprintf(notes,
                "%s: llama.cpp keeps a KV cache with its layer: those of layers before %d stay in "
                "host memory\n",
                p->options->common.who, first);
    }
}
