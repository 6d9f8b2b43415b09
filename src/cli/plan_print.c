/* `ats plan`: tables and JSON. */
#include "base/parse.h"
#include "cli/cli.h"
#include "cli/plan.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Columns of the table, in the order of execution. */
static const struct {
    enum ats_model_role role;
    const char *title;
} columns[] = {
    {ATS_ROLE_QKV, "qkv"},           {ATS_ROLE_ATTENTION, "state"},
    {ATS_ROLE_ATTN_OUT, "attn_o"},   {ATS_ROLE_ROUTER, "router"},
    {ATS_ROLE_EXPERTS_UP, "exp_up"}, {ATS_ROLE_EXPERTS_DOWN, "exp_dn"},
    {ATS_ROLE_SHARED_UP, "shd_up"},  {ATS_ROLE_SHARED_DOWN, "shd_dn"},
    {ATS_ROLE_FFN_UP, "ffn_up"},     {ATS_ROLE_FFN_DOWN, "ffn_dn"},
    {ATS_ROLE_OTHER, "other"},
};
enum { N_COLUMNS = sizeof columns / sizeof columns[0] };

/* A row of the table: what a layer's units are, by column; NULL where it has none. */
struct row {
    const char *where[N_COLUMNS];
    uint64_t bytes; /* in VRAM */
    bool exists;
};

struct table {
    struct row rows[ATS_MODEL_MAX_LAYERS];
    bool used[N_COLUMNS];
    uint32_t n;
};

static const char *merge(const char *a, const char *b)
{
    return a == NULL || strcmp(a, b) == 0 ? b : "part";
}

static void fill_table(const struct plan *p, struct table *t)
{
    t->n = p->model->params.n_layers;
    for (size_t k = 0; k < p->n_parts; k++) {
        const struct plan_part *part = &p->parts[k];
        for (size_t i = 0; i < part->model->n_units; i++) {
            const struct ats_model_unit *u = &part->model->units[i];
            const char *where = plan_where(part, i);
            if (u->layer < 0) {
                continue;
            }
            struct row *row = &t->rows[u->layer];
            row->bytes += plan_unit_bytes(part, i);
            row->exists = true;
            for (size_t c = 0; c < N_COLUMNS && where != NULL; c++) {
                if (columns[c].role == u->role) {
                    row->where[c] = merge(row->where[c], where);
                    t->used[c] = true;
                }
            }
        }
    }
}

static bool is_alike(const struct row *a, const struct row *b)
{
    for (size_t c = 0; c < N_COLUMNS; c++) {
        const char *x = a->where[c] != NULL ? a->where[c] : "";
        const char *y = b->where[c] != NULL ? b->where[c] : "";
        if (strcmp(x, y) != 0) {
            return false;
        }
    }
    return a->exists == b->exists;
}

static void print_cell(const char *text, bool colours)
{
    const char *colour = text == NULL                ? ""
                         : strcmp(text, "VRAM") == 0 ? "\033[32m"
                         : strcmp(text, "host") == 0 ? "\033[33m"
                                                     : "\033[36m";
    printf(" %s%-6s%s", colours ? colour : "", text != NULL ? text : "-",
           colours && text != NULL ? "\033[0m" : "");
}

static void print_rows(const struct table *t, bool colours)
{
    for (uint32_t first = 0; first < t->n;) {
        uint32_t last = first;
        uint64_t bytes = t->rows[first].bytes;
        while (last + 1 < t->n && is_alike(&t->rows[first], &t->rows[last + 1])) {
            bytes += t->rows[++last].bytes;
        }
        char range[24];
        char text[32];
        snprintf(range, sizeof range, last > first ? "%u-%u" : "%u", first, last);
        printf("%-7s", range);
        for (size_t c = 0; c < N_COLUMNS; c++) {
            if (t->used[c]) {
                print_cell(t->rows[first].where[c], colours);
            }
        }
        printf(" %9s\n", ats_format_bytes((size_t)bytes, text, sizeof text));
        first = last + 1;
    }
}

static void print_output(const struct plan *p)
{
    for (size_t k = 0; k < p->n_parts; k++) {
        const struct plan_part *part = &p->parts[k];
        for (size_t i = 0; i < part->model->n_units; i++) {
            const struct ats_model_unit *u = &part->model->units[i];
            if (u->role == ATS_ROLE_OUTPUT) {
                char text[32];
                printf("output  %s, %s\n", plan_where(part, i),
                       ats_format_bytes((size_t)u->weight_bytes, text, sizeof text));
            }
        }
    }
}

static void print_where(const struct plan *p)
{
    struct table *t = cli_alloc(sizeof(*t));
    fill_table(p, t);
    printf("\n%-7s", "layers");
    for (size_t c = 0; c < N_COLUMNS; c++) {
        if (t->used[c]) {
            printf(" %-6s", columns[c].title);
        }
    }
    printf(" %9s\n", "in VRAM");
    print_rows(t, cli_colours(STDOUT_FILENO));
    print_output(p);
    free(t);
}

/* ---- why ---- */

static void print_reason(const char *title, const struct plan_reason *r)
{
    char text[32];
    const double gib = (double)r->bytes / (double)(UINT64_C(1) << 30);
    printf("%-10s %10s %6.0f %% %12.2f %16.2f\n", title,
           ats_format_bytes((size_t)r->bytes, text, sizeof text),
           100 * (double)r->vram_bytes / (double)r->bytes, r->saved_us[ATS_DECODE] / 1e3 / gib,
           r->saved_us[ATS_PREFILL] / 1e3 / gib);
}

static void print_why(const struct plan *p)
{
    printf("\nWhy: milliseconds of a pass that a GiB of it saves in VRAM\n");
    printf("%-10s %10s %8s %12s %16s\n", "", "size", "in VRAM", "decode", "prefill (at most)");
    for (size_t c = 0; c <= N_COLUMNS; c++) {
        const enum ats_model_role role = c < N_COLUMNS ? columns[c].role : ATS_ROLE_OUTPUT;
        struct plan_reason sum = {0};
        for (size_t k = 0; k < p->n_parts; k++) {
            plan_add_reason(p, &p->parts[k], role, &sum);
        }
        if (sum.bytes > 0) {
            print_reason(c < N_COLUMNS ? columns[c].title : "output", &sum);
        }
    }
}

/* ---- memory ---- */

static void print_memory(const struct plan *p)
{
    for (size_t k = 0; k < p->n_parts; k++) {
        const struct plan_memory m = plan_memory_of(&p->parts[k]);
        char t[5][32];
        printf("\nVRAM");
        if (p->n_parts > 1) {
            printf(" of device %zu", k);
        }
        printf(": budget %s, left alone %s\n", ats_format_bytes(p->budget, t[0], 32),
               ats_format_bytes(p->headroom, t[1], 32));
        printf("  weights %s, KV cache and state %s, compute buffers %s,\n"
               "  staging memory %s, free %s\n",
               ats_format_bytes(m.weights, t[0], 32), ats_format_bytes(m.state, t[1], 32),
               ats_format_bytes(m.compute, t[2], 32), ats_format_bytes(m.staging, t[3], 32),
               ats_format_bytes(m.free, t[4], 32));
        printf("Host memory\n  weights %s, KV cache and state %s\n",
               ats_format_bytes(m.host_weights, t[0], 32),
               ats_format_bytes(m.host_state, t[1], 32));
    }
}

/* ---- speed ---- */

static void print_speed(const char *name, const struct ats_prediction *r, uint64_t used_bytes)
{
    char text[32];
    printf("%-28s %10.4g %10.4g %7.0f %7.0f %10s\n", name, plan_speed(r, ATS_PREFILL),
           plan_speed(r, ATS_DECODE), r->splits[ATS_PREFILL], r->splits[ATS_DECODE],
           used_bytes > 0 ? ats_format_bytes((size_t)used_bytes, text, sizeof text) : "-");
}

static uint64_t used_bytes(const struct plan *p)
{
    uint64_t bytes = 0;
    for (size_t k = 0; k < p->n_parts; k++) {
        bytes += p->parts[k].placement.used_bytes;
    }
    return bytes;
}

/* The best candidate that is not the solver's. */
static const struct ats_candidate *best_rule(const struct plan_part *part, const char *name)
{
    for (size_t i = 0; i < part->decision.n; i++) {
        if (strcmp(part->decision.candidates[i].name, name) == 0) {
            return &part->decision.candidates[i];
        }
    }
    return NULL;
}

static void print_rules(const struct plan *p)
{
    static const struct {
        const char *name;
        const char *title;
    } rules[] = {{"fill", "ATS, rule fill"},
                 {"layers", "ATS, by layers"},
                 {"n-cpu-moe", "ATS, experts last"},
                 {"slices", "ATS, experts by slice"}};
    for (size_t i = 0; i < sizeof rules / sizeof rules[0] && p->n_parts == 1; i++) {
        const struct ats_candidate *c = best_rule(&p->parts[0], rules[i].name);
        if (c != NULL) {
            print_speed(rules[i].title, &c->prediction, c->used_bytes);
        }
    }
}

static void print_speeds(const struct plan *p)
{
    const uint32_t n = p->prediction.tokens[ATS_PREFILL];
    printf("\nPredicted, not measured; prefill by %u, decode at a depth of %u\n", n,
           p->workload.prompt_tokens + p->workload.decode_tokens / 2);
    printf("%-28s %21s %15s\n", "", "tokens/s", "splits");
    printf("%-28s %10s %10s %7s %7s %10s\n", "", "prefill", "decode", "prefill", "decode", "VRAM");
    print_speed("this plan", &p->prediction, used_bytes(p));
    print_rules(p);
    for (size_t i = 0; i < p->n_alternatives; i++) {
        print_speed(p->alternatives[i].name, &p->alternatives[i].prediction,
                    p->alternatives[i].used_bytes);
    }
    struct ats_prediction bound = {.us = {p->bound_us[0], p->bound_us[1]},
                                   .tokens = {p->prediction.tokens[0], p->prediction.tokens[1]}};
    printf("%-28s %10.4g %10.4g\n", "physical bound", plan_speed(&bound, ATS_PREFILL),
           plan_speed(&bound, ATS_DECODE));
}

/* Differences of predictions up to this share say nothing: ats_decide takes sessions that close for
 * equal (sim/decide.h). */
static const double SAME_SPEED = 1e-3;

/* Says in which phase a stock llama.cpp at its best is faster: the session counts, not each phase.
 */
static void print_slower(const struct plan *p)
{
    for (int phase = ATS_PHASES - 1; phase >= 0; phase--) {
        const double own = plan_speed(&p->prediction, (enum ats_phase)phase);
        const struct plan_alternative *best = NULL;
        double most = own * (1 + SAME_SPEED);
        for (size_t i = 0; i < p->n_alternatives; i++) {
            const double speed = plan_speed(&p->alternatives[i].prediction, (enum ats_phase)phase);
            if (speed > most) {
                best = &p->alternatives[i];
                most = speed;
            }
        }
        if (best != NULL) {
            printf("This plan is slower in %s than %s, by %.1f %%.\n",
                   phase == ATS_PREFILL ? "prefill" : "decode", best->name, 100 * (1 - own / most));
        }
    }
}

/* What a plan file cannot say. */
static void print_slices(const struct plan *p)
{
    if (p->n_parts == 1 && p->parts[0].decision.slices_win) {
        printf("Experts by slice are faster than any placement of whole tensors: without\n"
               "a plan file ATS uses them by itself.\n");
    }
}

/* How far the solver's first proposal may be from the best, of what placement can save. */
static void print_choice(const struct plan *p)
{
    const struct ats_decision *d = &p->parts[0].decision;
    const struct ats_candidate *c = &d->candidates[d->chosen];
    const struct ats_solution *s = &d->solution;
    printf("\nChosen for a prompt of %u tokens and %u generated, %.3g s;\nproposed by: %s.\n",
           p->workload.prompt_tokens, p->workload.decode_tokens, p->prediction.session_us / 1e6,
           c->name);
    if (s->exact) {
        printf("The solver's own optimum is exact.\n");
    } else {
        printf("The solver is within %.2g %% of what a placement can save.\n",
               100 * (s->weighted_us - s->bound_us) / (s->host_us - s->bound_us));
    }
}

static void print_machine(const struct plan *p)
{
    if (p->profile_path[0] != '\0') {
        const struct ats_profile_identity *i = &p->profile.identity;
        printf("%.12s as measured %.20s: %.32s\n", i->device, p->profile.created, i->description);
        printf("%s profile: %s\n", p->is_kept ? "Kept" : "Given", p->profile_path);
    } else {
        printf("%s", p->machine.name);
        if (p->options->common.scale != NULL) {
            printf(", scaled by %.3g", p->factor);
        }
        printf("; ");
    }
    if (p->n_parts > 1) {
        printf("%zu devices; ", p->n_parts);
    }
}

void plan_print(const struct plan *p)
{
    char text[32];
    const struct plan_options *o = p->options;
    printf("%s: %s, %u layers, %s of weights\n",
           p->model->params.name[0] != '\0' ? p->model->params.name : o->common.model,
           p->model->params.arch, p->model->params.n_layers,
           ats_format_bytes((size_t)p->model->file_bytes, text, sizeof text));
    print_machine(p);
    printf("context %u, KV cache %s, ubatch %u\n", o->common.n_ctx, o->kv_type, o->common.ubatch);
    print_where(p);
    print_why(p);
    print_memory(p);
    print_speeds(p);
    print_slices(p);
    print_slower(p);
    print_choice(p);
}

/* ---- JSON ---- */

static json_t *prediction_json(const struct ats_prediction *r)
{
    static const char *const names[ATS_PHASES] = {"decode", "prefill"};
    json_t *o = json_pack("{s:f}", "session_us", r->session_us);
    for (int phase = 0; phase < ATS_PHASES; phase++) {
        json_object_set_new(o, names[phase],
                            json_pack("{s:f, s:i, s:f, s:f, s:f}", "us", r->us[phase], "tokens",
                                      (int)r->tokens[phase], "tokens_per_s",
                                      plan_speed(r, (enum ats_phase)phase), "splits",
                                      r->splits[phase], "bytes_in", r->bytes_in[phase]));
    }
    return o;
}

static json_t *candidates_json(const struct ats_decision *d)
{
    json_t *all = json_array();
    for (size_t i = 0; i < d->n; i++) {
        const struct ats_candidate *c = &d->candidates[i];
        json_array_append_new(all, json_pack("{s:s, s:b, s:b, s:b, s:I, s:o}", "name", c->name,
                                             "by_solver", c->is_solved, "by_slice", c->is_sliced,
                                             "chosen", i == d->chosen, "used_bytes",
                                             (json_int_t)c->used_bytes, "predicted",
                                             prediction_json(&c->prediction)));
    }
    return all;
}

static json_t *units_json(const struct plan_part *part)
{
    json_t *all = json_array();
    for (size_t i = 0; i < part->model->n_units; i++) {
        const struct ats_model_unit *u = &part->model->units[i];
        json_t *tensors = json_array();
        for (uint32_t w = 0; w < u->n_weights && u->role != ATS_ROLE_EMBEDDING; w++) {
            const int32_t t = part->model->weights[u->first_weight + w];
            const char *where = !part->placement.tensor[t]   ? "host"
                                : part->placement.on_both[t] ? "both"
                                                             : "vram";
            json_array_append_new(
                tensors, json_pack("{s:s, s:I, s:s}", "name", part->model->tensors[t].name, "bytes",
                                   (json_int_t)part->model->tensors[t].bytes, "where", where));
        }
        json_t *o =
            json_pack("{s:s, s:s, s:i, s:o}", "unit", u->name, "role", ats_model_role_name(u->role),
                      "layer", (int)u->layer, "tensors", tensors);
        const uint64_t state = ats_model_state_bytes(u, part->setting.n_ctx, part->setting.ubatch);
        if (state > 0) {
            json_object_set_new(o, "state",
                                json_pack("{s:I, s:s}", "bytes", (json_int_t)state, "where",
                                          part->placement.unit_state[i] ? "vram" : "host"));
        }
        json_array_append_new(all, o);
    }
    return all;
}

static json_t *part_json(const struct plan *p, const struct plan_part *part)
{
    const struct plan_memory m = plan_memory_of(part);
    const struct ats_solution *s = &part->decision.solution;
    return json_pack(
        "{s:{s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I}, s:{s:b, s:f, s:f, s:f, s:I}, s:o, s:o}",
        "memory", "budget_bytes", (json_int_t)p->budget, "headroom_bytes", (json_int_t)p->headroom,
        "weight_bytes", (json_int_t)m.weights, "state_bytes", (json_int_t)m.state, "compute_bytes",
        (json_int_t)m.compute, "staging_bytes", (json_int_t)m.staging, "free_bytes",
        (json_int_t)m.free, "host_weight_bytes", (json_int_t)m.host_weights, "host_state_bytes",
        (json_int_t)m.host_state, "solver", "exact", s->exact, "weighted_us", s->weighted_us,
        "bound_us", s->bound_us, "host_us", s->host_us, "changes", (json_int_t)s->changes,
        "candidates", candidates_json(&part->decision), "units", units_json(part));
}

void plan_print_json(const struct plan *p)
{
    const struct plan_options *o = p->options;
    json_t *parts = json_array();
    json_t *alternatives = json_array();
    for (size_t k = 0; k < p->n_parts; k++) {
        json_array_append_new(parts, part_json(p, &p->parts[k]));
    }
    for (size_t i = 0; i < p->n_alternatives; i++) {
        const struct plan_alternative *a = &p->alternatives[i];
        json_array_append_new(alternatives,
                              json_pack("{s:s, s:I, s:o}", "name", a->name, "used_bytes",
                                        (json_int_t)a->used_bytes, "predicted",
                                        prediction_json(&a->prediction)));
    }
    json_t *root = json_pack(
        "{s:s, s:b, s:{s:s, s:s, s:i, s:I}, s:s, s:s?, s:f, s:i, s:s, s:i, s:i, s:i, s:o, s:{s:f, "
        "s:f}, "
        "s:o, s:o}",
        "format", "ats-plan-report-1", "is_prediction", 1, "model", "name", o->common.model,
        "architecture", p->model->params.arch, "layers", (int)p->model->params.n_layers, "bytes",
        (json_int_t)p->model->file_bytes, "rig", p->machine.name, "profile",
        p->profile_path[0] != '\0' ? p->profile_path : NULL, "scale", p->factor, "n_ctx",
        (int)o->common.n_ctx, "kv_type", o->kv_type, "ubatch", (int)o->common.ubatch,
        "prompt_tokens", (int)p->workload.prompt_tokens, "decode_tokens",
        (int)p->workload.decode_tokens, "predicted", prediction_json(&p->prediction), "bound",
        "decode_us", p->bound_us[ATS_DECODE], "prefill_us", p->bound_us[ATS_PREFILL],
        "alternatives", alternatives, "devices", parts);
    cli_print_json(root, JSON_INDENT(1));
}
