#include "counters.h"

/* the program links to ggml itself: no redirection of its functions */
#define ATS_GGML_BIND_IMPLEMENTATION
#include "emu/emu.h"

#include <stdlib.h>
#include <string.h>

enum { MAX_DEVICES = 16 };

typedef bool (*emu_counters_t)(ggml_backend_dev_t, struct ats_emu_counters *);
typedef char *(*ats_summary_t)(ggml_backend_dev_t);

struct source {
    ggml_backend_dev_t device;
    emu_counters_t read;    /* of an emulated device */
    ats_summary_t describe; /* of an ATS device: JSON, to be freed */
    struct ats_emu_counters before;
    struct ats_emu_counters paused;
    json_t *summary;
};

struct bench_counters {
    struct source sources[MAX_DEVICES];
    size_t n;
};

static void find(ggml_backend_dev_t device, const char *name, void *function)
{
    void *address = ggml_backend_reg_get_proc_address(ggml_backend_dev_backend_reg(device), name);
    memcpy(function, &address, sizeof(address));
}

struct bench_counters *bench_counters_new(void)
{
    struct bench_counters *counters = calloc(1, sizeof(*counters));
    for (size_t i = 0; counters != NULL && i < ggml_backend_dev_count() && i < MAX_DEVICES; i++) {
        struct source *source = &counters->sources[counters->n];
        source->device = ggml_backend_dev_get(i);
        find(source->device, "ats_emu_counters", &source->read);
        find(source->device, "ats_device_summary", &source->describe);
        counters->n += source->read != NULL || source->describe != NULL;
    }
    return counters;
}

static json_t *summary_of(const struct source *source)
{
    char *text = source->describe == NULL ? NULL : source->describe(source->device);
    json_t *summary = text == NULL ? NULL : json_loads(text, 0, NULL);
    free(text);
    return summary;
}

static void read_emulated(const struct source *source, struct ats_emu_counters *counters)
{
    *counters = (struct ats_emu_counters){.version = ATS_EMU_COUNTERS_VERSION};
    if (source->read == NULL || !source->read(source->device, counters)) {
        counters->version = 0; /* not a timed device */
    }
}

void bench_counters_begin(struct bench_counters *counters)
{
    for (size_t i = 0; i < counters->n; i++) {
        struct source *source = &counters->sources[i];
        json_decref(source->summary);
        source->summary = summary_of(source);
        read_emulated(source, &source->before);
    }
}

static json_t *emulated_since(const struct source *source)
{
    const struct ats_emu_counters *b = &source->before;
    struct ats_emu_counters a;
    read_emulated(source, &a);
    if (a.version == 0 || b->version == 0) {
        return NULL;
    }
    return json_pack("{s:I, s:I, s:I, s:I, s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:f, "
                     "s:f, s:I, s:I, s:f, s:f}",
                     "graphs", (json_int_t)(a.graphs - b->graphs), "launches",
                     (json_int_t)(a.launches - b->launches), "copies_h2d",
                     (json_int_t)(a.copies_h2d - b->copies_h2d), "copies_d2h",
                     (json_int_t)(a.copies_d2h - b->copies_d2h), "bytes_h2d",
                     a.bytes_h2d - b->bytes_h2d, "bytes_d2h", a.bytes_d2h - b->bytes_d2h,
                     "compute_us", a.compute_us - b->compute_us, "copy_h2d_us",
                     a.copy_h2d_us - b->copy_h2d_us, "copy_d2h_us", a.copy_d2h_us - b->copy_d2h_us,
                     "scale", a.scale, "wall_us", a.wall_us - b->wall_us, "in_use_us",
                     a.in_use_us - b->in_use_us, "wait_us", a.wait_us - b->wait_us, "lag_us",
                     a.lag_us - b->lag_us, "cpu_us", a.cpu_us - b->cpu_us, "own_cpu_us",
                     a.own_cpu_us - b->own_cpu_us, "waits", (json_int_t)(a.waits - b->waits),
                     "synchronizations", (json_int_t)(a.synchronizations - b->synchronizations),
                     "link_us", a.link_us - b->link_us, "both_us", a.both_us - b->both_us);
}

/* Integers that are counters, less what they were; figures of a state as they are. */
static json_t *summary_since(const struct source *source)
{
    static const char *const counted[] = {"graphs",
                                          "splits",
                                          "plans_built",
                                          "synchronizations",
                                          "copied_to_accel_bytes",
                                          "copied_to_host_bytes",
                                          "promoted_bytes"};
    json_t *summary = summary_of(source);
    for (size_t i = 0; summary != NULL && i < sizeof(counted) / sizeof(counted[0]); i++) {
        const json_t *now = json_object_get(summary, counted[i]);
        const json_t *then = json_object_get(source->summary, counted[i]);
        if (now != NULL && then != NULL) {
            json_object_set_new(summary, counted[i],
                                json_integer(json_integer_value(now) - json_integer_value(then)));
        }
    }
    static const char *const adapted[] = {"replans", "rollbacks"};
    const json_t *now = json_object_get(summary, "adapt");
    const json_t *then = json_object_get(source->summary, "adapt");
    for (size_t i = 0; now != NULL && i < sizeof(adapted) / sizeof(adapted[0]); i++) {
        const json_int_t n = json_integer_value(json_object_get(now, adapted[i])) -
                             json_integer_value(json_object_get(then, adapted[i]));
        json_object_set_new(summary, adapted[i], json_integer(n));
    }
    return summary;
}

json_t *bench_counters_end(struct bench_counters *counters)
{
    json_t *all = json_object();
    for (size_t i = 0; i < counters->n; i++) {
        const struct source *source = &counters->sources[i];
        json_t *one = source->describe != NULL ? summary_since(source) : emulated_since(source);
        if (one != NULL) {
            json_object_set_new(all, ggml_backend_dev_name(source->device), one);
        }
    }
    return all;
}

void bench_counters_pause(struct bench_counters *counters)
{
    for (size_t i = 0; i < counters->n; i++) {
        read_emulated(&counters->sources[i], &counters->sources[i].paused);
    }
}

/* What was counted since `from` is as if it had been before `to`. */
static void skip(struct ats_emu_counters *to, const struct ats_emu_counters *from,
                 const struct ats_emu_counters *now)
{
    to->graphs += now->graphs - from->graphs;
    to->launches += now->launches - from->launches;
    to->copies_h2d += now->copies_h2d - from->copies_h2d;
    to->copies_d2h += now->copies_d2h - from->copies_d2h;
    to->bytes_h2d += now->bytes_h2d - from->bytes_h2d;
    to->bytes_d2h += now->bytes_d2h - from->bytes_d2h;
    to->compute_us += now->compute_us - from->compute_us;
    to->copy_h2d_us += now->copy_h2d_us - from->copy_h2d_us;
    to->copy_d2h_us += now->copy_d2h_us - from->copy_d2h_us;
    to->wall_us += now->wall_us - from->wall_us;
    to->in_use_us += now->in_use_us - from->in_use_us;
    to->wait_us += now->wait_us - from->wait_us;
    to->lag_us += now->lag_us - from->lag_us;
    to->cpu_us += now->cpu_us - from->cpu_us;
    to->own_cpu_us += now->own_cpu_us - from->own_cpu_us;
    to->waits += now->waits - from->waits;
    to->synchronizations += now->synchronizations - from->synchronizations;
    to->link_us += now->link_us - from->link_us;
    to->both_us += now->both_us - from->both_us;
}

void bench_counters_resume(struct bench_counters *counters)
{
    for (size_t i = 0; i < counters->n; i++) {
        struct source *source = &counters->sources[i];
        struct ats_emu_counters now;
        read_emulated(source, &now);
        if (now.version != 0 && source->paused.version != 0) {
            skip(&source->before, &source->paused, &now);
        }
    }
}

/* The first device in timed mode; NULL if there is none. */
static const struct source *find_emulated(const struct bench_counters *counters,
                                          struct ats_emu_counters *now)
{
    for (size_t i = 0; i < counters->n; i++) {
        read_emulated(&counters->sources[i], now);
        if (now->version != 0) {
            return &counters->sources[i];
        }
    }
    return NULL;
}

bool bench_counters_are_emulated(const struct bench_counters *counters)
{
    struct ats_emu_counters now;
    return find_emulated(counters, &now) != NULL;
}

struct bench_lateness bench_counters_lateness(const struct bench_counters *counters)
{
    struct ats_emu_counters now;
    if (find_emulated(counters, &now) == NULL) {
        return (struct bench_lateness){0};
    }
    return (struct bench_lateness){.late_us = now.lag_us, .used_us = now.in_use_us};
}

void bench_counters_free(struct bench_counters *counters)
{
    for (size_t i = 0; counters != NULL && i < counters->n; i++) {
        json_decref(counters->sources[i].summary);
    }
    free(counters);
}
