/* What `ats simulate` shows: tables, JSON, traces. */
#include "base/parse.h"
#include "base/replace.h"
#include "cli/cli.h"
#include "cli/simulate.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const double US_PER_S = 1e6;

static double us_of(const struct simulate_result *r, size_t phase)
{
    const struct ats_sim_phase *p = &r->phases[phase];
    return r->bound_only ? p->bound_us : p->use.us;
}

static double per_second(const struct ats_sim_phase *p, double us)
{
    return us > 0 ? p->n_tokens * US_PER_S / us : 0;
}

/* ---- tables ---- */

static void print_head(const struct simulate_summary *s)
{
    const struct ats_model *m = s->model;
    char bytes[32];
    printf("%.40s: %s, %u layers, %s of weights\n",
           m->params.name[0] != '\0' ? m->params.name : s->model_name, m->params.arch,
           m->params.n_layers, ats_format_bytes((size_t)m->file_bytes, bytes, sizeof bytes));
    printf("Predicted, not measured; context %u, ubatch %u, %s\n\n", s->n_ctx, s->ubatch,
           s->mmap ? "mmap" : "no mmap");
    printf("%-13s%9s%9s%6s%5s%5s%5s%9s%9s%8s\n", "  phase", "tokens/s", "bound", "of it", "CPU",
           "GPU", "link", "MB in", "MB out", "splits");
}

/* Who decides, where, with what. */
static void print_result(const struct simulate_result *r)
{
    char used[32];
    printf("%s, link %.4g GB/s, %s", r->rig, r->link_gbps, r->policy);
    if (!r->bound_only) {
        printf(": %s of VRAM", ats_format_bytes((size_t)r->used_bytes, used, sizeof used));
    }
    printf("\n");
}

/* Four digits without an exponent, right-aligned behind a space. */
static void print_number(double value, int width)
{
    if (value < 9999.5) {
        printf(" %*.4g", width - 1, value);
    } else {
        printf(" %*.0f", width - 1, value);
    }
}

static void print_phase(const struct simulate_result *r, size_t i)
{
    const struct ats_sim_phase *p = &r->phases[i];
    const struct ats_sim_use *u = &p->use;
    const double us = us_of(r, i);
    char phase[32];
    if (r->is_decode[i]) {
        snprintf(phase, sizeof phase, "tg%u@%u", p->n_tokens, r->depth[i]);
    } else {
        snprintf(phase, sizeof phase, "pp%u", p->n_tokens);
    }
    printf("  %-11s", phase);
    print_number(per_second(p, us), 9);
    print_number(per_second(p, p->bound_us), 9);
    printf("%5.0f%%", us > 0 ? 100 * p->bound_us / us : 0);
    if (!r->bound_only && us > 0) {
        printf("%4.0f%%%4.0f%%%4.0f%%", 100 * u->cpu_us / us, 100 * u->gpu_us / us,
               100 * (u->link_us[0] + u->link_us[1]) / us);
        print_number(u->bytes[0] / p->n_tokens / 1e6, 9);
        print_number(u->bytes[1] / p->n_tokens / 1e6, 9);
        printf("%8.1f", (double)u->splits / p->n_passes);
    }
    printf("\n");
}

void simulate_print(const struct simulate_summary *summary, const struct simulate_result *results,
                    size_t n)
{
    print_head(summary);
    for (size_t i = 0; i < n; i++) {
        print_result(&results[i]);
        for (size_t k = 0; k < results[i].n_phases; k++) {
            print_phase(&results[i], k);
        }
    }
    printf("\nlink GB/s: of pinned memory. bound: the physical bound of any placement.\n"
           "CPU, GPU, link: busy. MB: per token, to the device and to the host.\n"
           "splits: per pass. docs/simulator.md says how it is predicted.\n");
}

/* ---- JSON ---- */

static json_t *phase_json(const struct simulate_result *r, size_t i)
{
    const struct ats_sim_phase *p = &r->phases[i];
    const struct ats_sim_use *u = &p->use;
    const double us = us_of(r, i);
    json_t *o =
        json_pack("{s:s, s:i, s:i, s:i, s:f, s:f, s:f, s:f, s:f}", "phase",
                  r->is_decode[i] ? "decode" : "prefill", "n_tokens", (int)p->n_tokens, "depth",
                  (int)r->depth[i], "passes", (int)p->n_passes, "us", us, "tokens_per_s",
                  per_second(p, us), "bound_us", p->bound_us, "bound_tokens_per_s",
                  per_second(p, p->bound_us), "of_bound", us > 0 ? p->bound_us / us : 0.0);
    if (r->bound_only || o == NULL) {
        return o;
    }
    json_t *use =
        json_pack("{s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:I, s:I, s:I}", "cpu_us", u->cpu_us,
                  "host_us", u->host_us, "wait_us", u->wait_us, "gpu_us", u->gpu_us, "to_device_us",
                  u->link_us[0], "to_host_us", u->link_us[1], "to_device_bytes", u->bytes[0],
                  "to_host_bytes", u->bytes[1], "copies", (json_int_t)u->copies, "splits",
                  (json_int_t)u->splits, "launches", (json_int_t)u->launches);
    json_object_update_new(o, use);
    return o;
}

static json_t *result_json(const struct simulate_result *r)
{
    json_t *phases = json_array();
    for (size_t i = 0; i < r->n_phases; i++) {
        json_array_append_new(phases, phase_json(r, i));
    }
    return json_pack("{s:s, s:f, s:f, s:s, s:I, s:I, s:o}", "rig", r->rig, "scale", r->factor,
                     "link_gbps", r->link_gbps, "policy", r->policy, "vram_bytes",
                     (json_int_t)r->vram_bytes, "used_bytes", (json_int_t)r->used_bytes, "phases",
                     phases);
}

void simulate_print_json(const struct simulate_summary *s, const struct simulate_result *results,
                         size_t n)
{
    json_t *array = json_array();
    for (size_t i = 0; i < n; i++) {
        json_array_append_new(array, result_json(&results[i]));
    }
    json_t *root = json_pack(
        "{s:s, s:b, s:{s:s, s:s, s:i, s:I}, s:i, s:i, s:b, s:{s:f, s:f, s:f, s:f, s:f, s:f}, s:o}",
        "format", "ats-simulation-1", "predicted", 1, "model", "name", s->model_name,
        "architecture", s->model->params.arch, "layers", (int)s->model->params.n_layers, "bytes",
        (json_int_t)s->model->file_bytes, "n_ctx", (int)s->n_ctx, "ubatch", (int)s->ubatch, "mmap",
        s->mmap, "overheads", "graph_us", s->overheads.graph_us, "embedding_ns",
        s->overheads.embedding_ns, "mask_ns", s->overheads.mask_ns, "split_us",
        s->overheads.split_us, "sync_us", s->overheads.sync_us, "cpu_op_us", s->overheads.cpu_op_us,
        "results", array);
    cli_print_json(root, JSON_INDENT(1));
}

/* ---- traces ---- */

enum track { TRACK_HOST, TRACK_CPU, TRACK_GPU, TRACK_LINK, TRACKS };

static const char *const track_names[TRACKS] = {"host", "CPU", "GPU", "link"};

struct simulate_trace {
    struct ats_replace file;
    const struct ats_model *model;
    const char *path;
};

struct simulate_trace *simulate_trace_open(const char *path, const struct ats_model *model,
                                           struct ats_error *err)
{
    struct simulate_trace *t = cli_alloc(sizeof(*t));
    *t = (struct simulate_trace){.model = model, .path = path};
    if (!ats_replace_begin(&t->file, path)) {
        ats_fail(err, "cannot write the trace %s: %s", path, strerror(errno));
        free(t);
        return NULL;
    }
    fprintf(t->file.out, "[");
    for (int i = 0; i < TRACKS; i++) {
        fprintf(t->file.out,
                "%s\n{\"ph\":\"M\",\"pid\":1,\"tid\":%d,\"name\":\"thread_name\","
                "\"args\":{\"name\":\"%s\"}}",
                i > 0 ? "," : "", i, track_names[i]);
    }
    return t;
}

static enum track track_of(enum ats_sim_kind kind)
{
    switch (kind) {
    case ATS_SIM_CPU:
        return TRACK_CPU;
    case ATS_SIM_GPU:
        return TRACK_GPU;
    case ATS_SIM_COPY:
        return TRACK_LINK;
    default:
        return TRACK_HOST;
    }
}

void simulate_trace_event(void *trace, const struct ats_sim_event *event)
{
    struct simulate_trace *t = trace;
    const char *unit = event->unit >= 0 ? t->model->units[event->unit].name : "graph";
    fprintf(t->file.out,
            ",\n{\"ph\":\"X\",\"pid\":1,\"tid\":%d,\"name\":\"%s%s\",\"ts\":%.3f,"
            "\"dur\":%.3f,\"args\":{\"bytes\":%.0f}}",
            (int)track_of(event->kind), unit, event->kind == ATS_SIM_SYNC ? " wait" : "",
            event->begin_us, event->end_us - event->begin_us, event->bytes);
}

bool simulate_trace_close(struct simulate_trace *t, struct ats_error *err)
{
    fprintf(t->file.out, "\n]\n");
    const bool good = ats_replace_end(&t->file, true);
    if (!good) {
        ats_fail(err, "cannot write the trace %s: %s", t->path, strerror(errno));
    }
    free(t);
    return good;
}
