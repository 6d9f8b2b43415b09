#include "trace/bars.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define HASH_NONFATAL_OOM 1 /* uthash would end the program */
#include <uthash.h>

/* The point of a lane that an event marks. */
struct event {
    uint64_t id; /* key */
    uint8_t lane;
    uint64_t number;  /* of the last command before it; 0: none */
    const char *name; /* of that command */
    UT_hash_handle hh;
};

/* What is known of a lane while the recording is walked through. */
struct lane {
    uint64_t number;                      /* of the last command given */
    const char *name;                     /* its name, "" before the first */
    uint64_t covers[ATS_TRACE_MAX_LANES]; /* commands of other lanes that it has waited for */
    uint32_t pass;                        /* CPU lane: index of the pass that runs, or ran last */
};

struct open {
    size_t bar;
    uint64_t number;
    uint8_t lane;
};

struct ran {
    uint64_t number;
    const struct ats_trace_record *record;
};

struct maker {
    const struct ats_trace *trace;
    struct ats_trace_bars *out;
    struct lane lanes[ATS_TRACE_MAX_LANES];
    struct event *events;
    struct open *opens; /* windows whose end is not known yet */
    size_t n_opens;
    struct ran *ran;
    size_t n_ran;
    bool out_of_memory;
};

/* ---- device times ---- */

static int by_number(const void *a, const void *b)
{
    const struct ran *x = a;
    const struct ran *y = b;
    return (x->number > y->number) - (x->number < y->number);
}

static void list_ran(struct maker *m)
{
    for (size_t i = 0; i < m->trace->n_records; i++) {
        if (m->trace->records[i].kind == ATS_TRACE_RAN) {
            m->ran[m->n_ran++] = (struct ran){m->trace->records[i].number, &m->trace->records[i]};
        }
    }
    qsort(m->ran, m->n_ran, sizeof(*m->ran), by_number);
}

static const struct ats_trace_record *ran_of(const struct maker *m, uint64_t number)
{
    const struct ran key = {.number = number};
    const struct ran *found = bsearch(&key, m->ran, m->n_ran, sizeof(*m->ran), by_number);
    return found != NULL ? found->record : NULL;
}

/* ---- bars ---- */

static uint8_t cpu_lane_of(const struct ats_trace *trace, uint8_t lane)
{
    for (size_t i = 0; i < trace->n_lanes; i++) {
        if (trace->lanes[i].context == trace->lanes[lane].context &&
            trace->lanes[i].role == ATS_TRACE_CPU) {
            return (uint8_t)i;
        }
    }
    return lane;
}

static struct ats_trace_bar *add(struct maker *m, const struct ats_trace_record *r, uint8_t lane,
                                 enum ats_trace_bar_kind kind)
{
    struct ats_trace_bar *bar = &m->out->bars[m->out->n_bars++];
    *bar = (struct ats_trace_bar){
        .begin_ns = r->begin_ns,
        .end_ns = r->end_ns,
        .name = r->name,
        .last = "",
        .pass = m->lanes[cpu_lane_of(m->trace, r->lane)].pass,
        .lane = lane,
        .kind = (uint8_t)kind,
        .exact = true,
    };
    return bar;
}

/* Closes the windows of a lane up to command `number`: the host knows at `ns` that they are over.
 */
static void close_windows(struct maker *m, uint8_t lane, uint64_t number, uint64_t ns)
{
    size_t kept = 0;
    for (size_t i = 0; i < m->n_opens; i++) {
        const struct open *o = &m->opens[i];
        if (o->lane == lane && o->number <= number) {
            struct ats_trace_bar *bar = &m->out->bars[o->bar];
            bar->end_ns = ns > bar->begin_ns ? ns : bar->begin_ns;
        } else {
            m->opens[kept++] = *o;
        }
    }
    m->n_opens = kept;
}

/* The host knows at `ns` that the lane is done up to `number`, and so what it had waited for. */
static void seen(struct maker *m, uint8_t lane, uint64_t number, uint64_t ns)
{
    close_windows(m, lane, number, ns);
    for (size_t i = 0; i < m->trace->n_lanes; i++) {
        if (m->lanes[lane].covers[i] > 0) {
            close_windows(m, (uint8_t)i, m->lanes[lane].covers[i], ns);
        }
    }
}

/* A command of a stream: what the host took to give it, and when it ran. */
static void add_command(struct maker *m, const struct ats_trace_record *r,
                        enum ats_trace_bar_kind kind)
{
    struct lane *lane = &m->lanes[r->lane];
    lane->number = r->number;
    lane->name = r->name;
    struct ats_trace_bar *submit = add(m, r, cpu_lane_of(m->trace, r->lane), ATS_BAR_SUBMIT);
    submit->last = r->last;
    struct ats_trace_bar *bar = add(m, r, r->lane, kind);
    bar->bytes = ats_trace_is_copy(r) ? r->bytes : 0;
    bar->count = r->count;
    bar->last = r->last;
    const struct ats_trace_record *ran = ran_of(m, r->number);
    if (ran != NULL) {
        bar->begin_ns = ran->begin_ns;
        bar->end_ns = ran->end_ns;
        return;
    }
    bar->exact = false;
    m->opens[m->n_opens++] = (struct open){(size_t)(bar - m->out->bars), r->number, r->lane};
}

static void add_compute(struct maker *m, const struct ats_trace_record *r)
{
    if (m->trace->lanes[r->lane].role != ATS_TRACE_CPU) {
        add_command(m, r, ATS_BAR_COMPUTE);
        return;
    }
    struct ats_trace_bar *bar = add(m, r, r->lane, ATS_BAR_COMPUTE);
    bar->count = r->count;
    bar->last = r->last;
}

static struct event *event_of(const struct maker *m, uint64_t id)
{
    struct event *event;
    HASH_FIND(hh, m->events, &id, sizeof(id), event);
    return event;
}

static void record_event(struct maker *m, const struct ats_trace_record *r)
{
    struct event *event = event_of(m, r->event);
    if (event == NULL) {
        event = calloc(1, sizeof(*event));
        if (event == NULL) {
            m->out_of_memory = true;
            return;
        }
        event->id = r->event;
        HASH_ADD(hh, m->events, id, sizeof(event->id), event);
        if (event->hh.tbl == NULL) {
            free(event);
            m->out_of_memory = true;
            return;
        }
    }
    event->lane = r->lane;
    event->number = m->lanes[r->lane].number;
    event->name = m->lanes[r->lane].name;
}

/* A stall shows only where the accelerator tells how long it was. */
static void add_event_wait(struct maker *m, const struct ats_trace_record *r)
{
    const struct event *event = event_of(m, r->event);
    const struct ats_trace_record *ran = ran_of(m, r->number);
    if (event != NULL) {
        uint64_t *covers = &m->lanes[r->lane].covers[event->lane];
        *covers = event->number > *covers ? event->number : *covers;
    }
    if (ran != NULL && ran->end_ns > ran->begin_ns) {
        struct ats_trace_bar *bar = add(m, r, r->lane, ATS_BAR_STALL);
        bar->begin_ns = ran->begin_ns;
        bar->end_ns = ran->end_ns;
        bar->name = event != NULL ? event->name : "";
    }
}

static void add_wait(struct maker *m, const struct ats_trace_record *r)
{
    struct ats_trace_bar *bar = add(m, r, cpu_lane_of(m->trace, r->lane), ATS_BAR_WAIT);
    if (r->kind == ATS_TRACE_SYNCHRONIZE) {
        bar->name = m->lanes[r->lane].name;
        seen(m, r->lane, m->lanes[r->lane].number, r->end_ns);
        return;
    }
    bar->by_event = true;
    const struct event *event = event_of(m, r->event);
    bar->name = event != NULL ? event->name : "";
    if (event != NULL) {
        close_windows(m, event->lane, event->number, r->end_ns);
    }
}

static void begin_pass(struct maker *m, const struct ats_trace_record *r)
{
    m->lanes[r->lane].pass = (uint32_t)m->out->n_passes;
    m->out->passes[m->out->n_passes++] = (struct ats_trace_pass){
        .begin_ns = r->begin_ns, .end_ns = r->end_ns, .tokens = r->count, .lane = r->lane};
}

static void walk(struct maker *m)
{
    for (size_t i = 0; i < m->trace->n_records && !m->out_of_memory; i++) {
        const struct ats_trace_record *r = &m->trace->records[i];
        switch ((enum ats_trace_kind)r->kind) {
        case ATS_TRACE_PASS:
            begin_pass(m, r);
            break;
        case ATS_TRACE_PLAN:
            add(m, r, r->lane, ATS_BAR_PLAN);
            break;
        case ATS_TRACE_COMPUTE:
            add_compute(m, r);
            break;
        case ATS_TRACE_TO_DEVICE:
            add_command(m, r, ATS_BAR_TO_DEVICE);
            break;
        case ATS_TRACE_TO_HOST:
            add_command(m, r, ATS_BAR_TO_HOST);
            break;
        case ATS_TRACE_SYNCHRONIZE:
        case ATS_TRACE_EVENT_SYNC:
            add_wait(m, r);
            break;
        case ATS_TRACE_EVENT_RECORD:
            record_event(m, r);
            break;
        case ATS_TRACE_EVENT_WAIT:
            add_event_wait(m, r);
            break;
        case ATS_TRACE_RAN:
        case ATS_TRACE_READ:
        case ATS_TRACE_WRITE:
        case ATS_TRACE_STAGING:
        case ATS_TRACE_KINDS:
            break;
        }
    }
}

/* ---- the whole ---- */

static void find_ends(struct ats_trace_bars *out)
{
    out->begin_ns = UINT64_MAX;
    out->end_ns = 0;
    for (size_t i = 0; i < out->n_passes; i++) {
        out->begin_ns =
            out->passes[i].begin_ns < out->begin_ns ? out->passes[i].begin_ns : out->begin_ns;
        out->end_ns = out->passes[i].end_ns > out->end_ns ? out->passes[i].end_ns : out->end_ns;
    }
    for (size_t i = 0; i < out->n_bars; i++) {
        const struct ats_trace_bar *bar = &out->bars[i];
        out->begin_ns = bar->begin_ns < out->begin_ns ? bar->begin_ns : out->begin_ns;
        out->end_ns = bar->end_ns > out->end_ns ? bar->end_ns : out->end_ns;
    }
    if (out->begin_ns > out->end_ns) {
        out->begin_ns = out->end_ns;
    }
}

/* A pass lasts until all is over that it gave to the streams. */
static void extend_passes(struct ats_trace_bars *out)
{
    for (size_t i = 0; i < out->n_bars; i++) {
        const struct ats_trace_bar *bar = &out->bars[i];
        if (bar->pass != ATS_BAR_NO_PASS && bar->kind <= ATS_BAR_TO_HOST) {
            struct ats_trace_pass *pass = &out->passes[bar->pass];
            pass->end_ns = bar->end_ns > pass->end_ns ? bar->end_ns : pass->end_ns;
        }
    }
}

static void count_tokens(struct ats_trace_bars *out)
{
    uint32_t decoded[ATS_TRACE_MAX_LANES] = {0};
    for (size_t i = 0; i < out->n_passes; i++) {
        struct ats_trace_pass *pass = &out->passes[i];
        decoded[pass->lane] = pass->tokens == 1 ? decoded[pass->lane] + 1 : 0;
        pass->decoded = decoded[pass->lane];
    }
}

static int by_lane_and_time(const void *a, const void *b)
{
    const struct ats_trace_bar *x = a;
    const struct ats_trace_bar *y = b;
    if (x->lane != y->lane) {
        return x->lane < y->lane ? -1 : 1;
    }
    if (x->begin_ns != y->begin_ns) {
        return x->begin_ns < y->begin_ns ? -1 : 1;
    }
    return (x->end_ns < y->end_ns) - (x->end_ns > y->end_ns);
}

/* What comes before the first pass of a context is of no interest: it would only make the others
 * small. */
static void drop_outsiders(struct ats_trace_bars *out)
{
    size_t n = 0;
    for (size_t i = 0; i < out->n_bars; i++) {
        if (out->bars[i].pass != ATS_BAR_NO_PASS) {
            out->bars[n++] = out->bars[i];
        }
    }
    out->n_bars = n;
}

static void finish(struct maker *m)
{
    struct ats_trace_bars *out = m->out;
    find_ends(out);
    for (size_t i = 0; i < m->n_opens; i++) {
        /* the host never asked: somewhere until the end */
        out->bars[m->opens[i].bar].end_ns = out->end_ns;
    }
    drop_outsiders(out);
    find_ends(out);
    extend_passes(out);
    count_tokens(out);
    qsort(out->bars, out->n_bars, sizeof(*out->bars), by_lane_and_time);
}

bool ats_trace_bars_make(const struct ats_trace *trace, struct ats_trace_bars *out)
{
    *out = (struct ats_trace_bars){.trace = trace};
    struct maker *m = calloc(1, sizeof(*m));
    const size_t n = trace->n_records;
    out->bars = calloc(2 * n + 1, sizeof(*out->bars)); /* a command has two */
    out->passes = calloc(n + 1, sizeof(*out->passes));
    bool ok = m != NULL && out->bars != NULL && out->passes != NULL;
    if (ok) {
        *m = (struct maker){.trace = trace, .out = out};
        m->opens = calloc(n + 1, sizeof(*m->opens));
        m->ran = calloc(n + 1, sizeof(*m->ran));
        ok = m->opens != NULL && m->ran != NULL;
    }
    for (size_t i = 0; ok && i < ATS_TRACE_MAX_LANES; i++) {
        m->lanes[i].name = "";
        m->lanes[i].pass = ATS_BAR_NO_PASS;
    }
    if (ok) {
        list_ran(m);
        walk(m);
        finish(m);
        ok = !m->out_of_memory;
    }
    if (m != NULL) {
        struct event *event = m->events;
        HASH_CLEAR(hh, m->events); /* the list that the entries are in stays */
        while (event != NULL) {
            struct event *next = event->hh.next;
            free(event);
            event = next;
        }
        free(m->opens);
        free(m->ran);
    }
    free(m);
    if (!ok) {
        ats_trace_bars_free(out);
    }
    return ok;
}

void ats_trace_bars_free(struct ats_trace_bars *bars)
{
    free(bars->bars);
    free(bars->passes);
    *bars = (struct ats_trace_bars){0};
}

const char *ats_trace_pass_name(const struct ats_trace_pass *pass, char *text, size_t size)
{
    if (pass->decoded > 0) {
        snprintf(text, size, "token %u", pass->decoded);
    } else {
        snprintf(text, size, "prefill, %u tokens", pass->tokens);
    }
    return text;
}

const char *ats_trace_lane_name(const struct ats_trace *trace, size_t lane, char *text, size_t size)
{
    static const char *const roles[ATS_TRACE_ROLES] = {"", " compute stream", " transfer stream",
                                                       " second transfer"};
    const struct ats_trace_lane *l = &trace->lanes[lane];
    bool several = false;
    for (size_t i = 0; i < trace->n_lanes; i++) {
        several = several || trace->lanes[i].context != l->context;
    }
    char context[32] = "";
    if (several) {
        snprintf(context, sizeof(context), "context %u: ", l->context + 1);
    }
    snprintf(text, size, "%s%s%s", context, l->role == ATS_TRACE_CPU ? "CPU" : l->device,
             roles[l->role]);
    return text;
}
