#include "trace/summary.h"

#include <stdlib.h>
#include <string.h>

const char *const ats_trace_phase_names[ATS_PHASES] = {"all", "prefill", "decode"};

/* ---- sets of stretches of time ---- */

struct span {
    uint64_t begin_ns;
    uint64_t end_ns;
};

/* Sorted and disjoint, once they are united. */
struct spans {
    struct span *spans;
    size_t n;
};

static int by_begin(const void *a, const void *b)
{
    const uint64_t x = ((const struct span *)a)->begin_ns;
    const uint64_t y = ((const struct span *)b)->begin_ns;
    return (x > y) - (x < y);
}

static void unite(struct spans *set)
{
    qsort(set->spans, set->n, sizeof(*set->spans), by_begin);
    size_t n = 0;
    for (size_t i = 0; i < set->n; i++) {
        const struct span s = set->spans[i];
        if (n > 0 && s.begin_ns <= set->spans[n - 1].end_ns) {
            if (s.end_ns > set->spans[n - 1].end_ns) {
                set->spans[n - 1].end_ns = s.end_ns;
            }
        } else {
            set->spans[n++] = s;
        }
    }
    set->n = n;
}

/* Makes `a` what is in both; both are united. `room` has space for the result, which has at most as
 * many spans as both together. */
static void intersect(struct spans *a, const struct spans *b, struct span *room)
{
    size_t n = 0;
    for (size_t i = 0, j = 0; i < a->n && j < b->n;) {
        const struct span x = a->spans[i];
        const struct span y = b->spans[j];
        const uint64_t begin_ns = x.begin_ns > y.begin_ns ? x.begin_ns : y.begin_ns;
        const uint64_t end_ns = x.end_ns < y.end_ns ? x.end_ns : y.end_ns;
        if (begin_ns < end_ns) {
            room[n++] = (struct span){begin_ns, end_ns};
        }
        i += x.end_ns <= y.end_ns;
        j += x.end_ns > y.end_ns;
    }
    memcpy(a->spans, room, n * sizeof(*room));
    a->n = n;
}

static double length_us(const struct spans *set)
{
    uint64_t ns = 0;
    for (size_t i = 0; i < set->n; i++) {
        ns += set->spans[i].end_ns - set->spans[i].begin_ns;
    }
    return (double)ns * 1e-3;
}

/* ---- one phase ---- */

struct phase {
    const struct ats_trace_bars *bars;
    enum ats_trace_phase phase;
    struct spans window; /* of its passes */
    struct spans set;
    struct spans other;
    struct span *room;
};

static bool is_in(enum ats_trace_phase phase, const struct ats_trace_pass *pass)
{
    return phase == ATS_PHASE_ALL || (phase == ATS_PHASE_DECODE) == (pass->decoded > 0);
}

static void set_window(struct phase *p, struct ats_trace_totals *t)
{
    for (size_t i = 0; i < p->bars->n_passes; i++) {
        const struct ats_trace_pass *pass = &p->bars->passes[i];
        if (is_in(p->phase, pass)) {
            t->n_passes++;
            t->n_tokens += pass->tokens;
            p->window.spans[p->window.n++] = (struct span){pass->begin_ns, pass->end_ns};
        }
    }
    unite(&p->window);
    t->wall_us = length_us(&p->window);
}

static bool is_cpu(const struct phase *p, const struct ats_trace_bar *bar)
{
    return p->bars->trace->lanes[bar->lane].role == ATS_TRACE_CPU;
}

enum { ON_CPU = 1, ON_STREAM = 2, ANYWHERE = ON_CPU | ON_STREAM };

/* Fills `set` with the bars of these kinds (bits) in these places, within the window. */
static void collect(struct phase *p, struct spans *set, unsigned kinds, unsigned places)
{
    set->n = 0;
    for (size_t i = 0; i < p->bars->n_bars; i++) {
        const struct ats_trace_bar *bar = &p->bars->bars[i];
        if ((kinds >> bar->kind & 1) != 0 &&
            (places & (is_cpu(p, bar) ? (unsigned)ON_CPU : (unsigned)ON_STREAM)) != 0) {
            set->spans[set->n++] = (struct span){bar->begin_ns, bar->end_ns};
        }
    }
    unite(set);
    intersect(set, &p->window, p->room);
}

static double time_of(struct phase *p, unsigned kinds, unsigned places)
{
    collect(p, &p->set, kinds, places);
    return length_us(&p->set);
}

/* A bar belongs to the phase of its pass. */
static void count(const struct phase *p, struct ats_trace_totals *t)
{
    t->exact = true;
    for (size_t i = 0; i < p->bars->n_bars; i++) {
        const struct ats_trace_bar *bar = &p->bars->bars[i];
        if (bar->pass == ATS_BAR_NO_PASS || !is_in(p->phase, &p->bars->passes[bar->pass])) {
            continue;
        }
        t->exact = t->exact && bar->exact;
        t->to_device_bytes += bar->kind == ATS_BAR_TO_DEVICE ? (double)bar->bytes : 0;
        t->to_host_bytes += bar->kind == ATS_BAR_TO_HOST ? (double)bar->bytes : 0;
        t->n_splits += bar->kind == ATS_BAR_COMPUTE;
        t->n_synchronizations += bar->kind == ATS_BAR_WAIT && !bar->by_event;
        t->n_event_waits += bar->kind == ATS_BAR_WAIT && bar->by_event;
    }
}

static void sum_up(struct phase *p, struct ats_trace_totals *t)
{
    const unsigned compute = 1U << ATS_BAR_COMPUTE;
    const unsigned copies = 1U << ATS_BAR_TO_DEVICE | 1U << ATS_BAR_TO_HOST;
    set_window(p, t);
    count(p, t);
    t->cpu_us = time_of(p, compute, ON_CPU);
    t->accel_us = time_of(p, compute, ON_STREAM);
    t->to_device_us = time_of(p, 1U << ATS_BAR_TO_DEVICE, ANYWHERE);
    t->to_host_us = time_of(p, 1U << ATS_BAR_TO_HOST, ANYWHERE);
    t->wait_us = time_of(p, 1U << ATS_BAR_WAIT, ANYWHERE);
    t->submit_us = time_of(p, 1U << ATS_BAR_SUBMIT, ANYWHERE);
    t->plan_us = time_of(p, 1U << ATS_BAR_PLAN, ANYWHERE);
    t->compute_us = time_of(p, compute, ANYWHERE);
    collect(p, &p->other, copies, ANYWHERE);
    t->link_us = length_us(&p->other);
    intersect(&p->set, &p->other, p->room); /* set: computing, of time_of above */
    t->both_us = length_us(&p->set);
    const double shorter = t->compute_us < t->link_us ? t->compute_us : t->link_us;
    t->overlap = shorter > 0 ? t->both_us / shorter : 0;
}

/* Waits of compute streams alone: a transfer stream waits whenever it is ahead. */
static double stall_time(struct phase *p)
{
    p->set.n = 0;
    for (size_t i = 0; i < p->bars->n_bars; i++) {
        const struct ats_trace_bar *bar = &p->bars->bars[i];
        if (bar->kind == ATS_BAR_STALL &&
            p->bars->trace->lanes[bar->lane].role == ATS_TRACE_COMPUTE_STREAM) {
            p->set.spans[p->set.n++] = (struct span){bar->begin_ns, bar->end_ns};
        }
    }
    unite(&p->set);
    intersect(&p->set, &p->window, p->room);
    return length_us(&p->set);
}

bool ats_trace_summarize(const struct ats_trace_bars *bars, struct ats_trace_summary *summary)
{
    *summary = (struct ats_trace_summary){0};
    const size_t most = bars->n_bars + bars->n_passes + 1;
    struct phase p = {
        .bars = bars,
        .window.spans = calloc(bars->n_passes + 1, sizeof(struct span)),
        .set.spans = calloc(most, sizeof(struct span)),
        .other.spans = calloc(most, sizeof(struct span)),
        .room = calloc(2 * most, sizeof(struct span)),
    };
    const bool ok =
        p.window.spans != NULL && p.set.spans != NULL && p.other.spans != NULL && p.room != NULL;
    for (int phase = 0; ok && phase < ATS_PHASES; phase++) {
        p.phase = (enum ats_trace_phase)phase;
        p.window.n = 0;
        sum_up(&p, &summary->phases[phase]);
        summary->phases[phase].stall_us = stall_time(&p);
    }
    free(p.window.spans);
    free(p.set.spans);
    free(p.other.spans);
    free(p.room);
    return ok;
}

/* ---- JSON ---- */

static json_t *phase_json(const struct ats_trace_totals *t)
{
    return json_pack(
        "{s:I, s:I, s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:f, "
        "s:I, s:I, s:I, s:b}",
        "passes", (json_int_t)t->n_passes, "tokens", (json_int_t)t->n_tokens, "wall_us", t->wall_us,
        "cpu_us", t->cpu_us, "accel_us", t->accel_us, "link_us", t->link_us, "to_device_us",
        t->to_device_us, "to_host_us", t->to_host_us, "to_device_bytes", t->to_device_bytes,
        "to_host_bytes", t->to_host_bytes, "compute_us", t->compute_us, "both_us", t->both_us,
        "overlap", t->overlap, "wait_us", t->wait_us, "stall_us", t->stall_us, "submit_us",
        t->submit_us, "plan_us", t->plan_us, "synchronizations", (json_int_t)t->n_synchronizations,
        "event_waits", (json_int_t)t->n_event_waits, "splits", (json_int_t)t->n_splits, "exact",
        t->exact);
}

/* Accelerators by name, each once. */
static json_t *devices_json(const struct ats_trace *trace, bool *emulated)
{
    json_t *devices = json_object();
    for (size_t i = 0; i < trace->n_lanes; i++) {
        const struct ats_trace_lane *lane = &trace->lanes[i];
        *emulated = *emulated || lane->emulated;
        if (lane->role != ATS_TRACE_CPU) {
            json_object_set_new(devices, lane->device, json_string(lane->description));
        }
    }
    return devices;
}

json_t *ats_trace_summary_json(const struct ats_trace_bars *bars,
                               const struct ats_trace_summary *summary)
{
    bool emulated = false;
    json_t *devices = devices_json(bars->trace, &emulated);
    json_t *phases = json_object();
    for (int i = 0; i < ATS_PHASES; i++) {
        json_object_set_new(phases, ats_trace_phase_names[i], phase_json(&summary->phases[i]));
    }
    return json_pack("{s:s, s:b, s:o, s:I, s:I, s:o}", "format", "ats-trace-1", "emulated",
                     emulated, "devices", devices, "records", (json_int_t)bars->trace->n_records,
                     "dropped", (json_int_t)bars->trace->dropped, "phases", phases);
}
