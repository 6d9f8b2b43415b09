#include "sim/schedule.h"

#include <math.h>
#include <stdlib.h>

/* GB/s in bytes per microsecond */
static const double BYTES_PER_US = 1e3;

/* A wait moves time on by at least this: what is left of a command may be less than the next
 * number that a time of hours can be. */
static const double LEAST_STEP_US = 1e-5;

int32_t ats_sim_add(struct ats_sim_schedule *s, const struct ats_sim_action *action)
{
    if (s->n == s->capacity) {
        const size_t capacity = s->capacity > 0 ? 2 * s->capacity : 256;
        struct ats_sim_action *grown = realloc(s->actions, capacity * sizeof(grown[0]));
        if (grown == NULL) {
            s->failed = true;
            return -1;
        }
        s->actions = grown;
        s->capacity = capacity;
    }
    s->actions[s->n] = *action;
    return (int32_t)s->n++;
}

void ats_sim_schedule_free(struct ats_sim_schedule *s)
{
    free(s->actions);
    *s = (struct ats_sim_schedule){0};
}

/* ---- the engine ---- */

struct ats_sim_engine {
    const struct ats_sim_machine *machine;
    struct ats_timeline *timeline;
    int device;
    uint32_t streams[ATS_SIM_QUEUES];
    double now_us;
    struct ats_sim_use use; /* what the timeline does not count */
    void (*on_event)(void *context, const struct ats_sim_event *event);
    void *context;
    /* of the schedule at hand */
    const struct ats_sim_schedule *schedule;
    struct ats_ticket *tickets;        /* by action */
    double *entered_us;                /* by action: when it could begin at the earliest */
    size_t unreported[ATS_SIM_QUEUES]; /* actions before have been handed to on_event */
    double stream_end_us[ATS_SIM_QUEUES];
    size_t at; /* the action at hand */
};

struct ats_sim_engine *ats_sim_engine_new(const struct ats_sim_machine *machine,
                                          void (*on_event)(void *context,
                                                           const struct ats_sim_event *event),
                                          void *context)
{
    struct ats_sim_engine *e = calloc(1, sizeof(*e));
    if (e == NULL) {
        return NULL;
    }
    e->machine = machine;
    e->on_event = on_event;
    e->context = context;
    e->timeline = ats_timeline_new(0, machine->device.dram_limit_gbps);
    const struct ats_timeline_link link = {machine->device.h2d_gbps, machine->device.d2h_gbps,
                                           (int)machine->device.copy_engines};
    bool good = e->timeline != NULL;
    e->device = good ? ats_timeline_add_device(e->timeline, &link) : -1;
    good = e->device >= 0;
    for (int i = 0; good && i < ATS_SIM_QUEUES; i++) {
        e->streams[i] = ats_timeline_open(e->timeline, e->device);
        good = e->streams[i] != 0;
    }
    if (!good) {
        ats_sim_engine_free(e);
        return NULL;
    }
    return e;
}

void ats_sim_engine_free(struct ats_sim_engine *e)
{
    if (e == NULL) {
        return;
    }
    if (e->timeline != NULL) {
        ats_timeline_free(e->timeline);
    }
    free(e);
}

static void report(struct ats_sim_engine *e, const struct ats_sim_action *a, double begin_us,
                   double end_us)
{
    if (e->on_event != NULL && end_us > begin_us) {
        const struct ats_sim_event event = {a->kind,  a->direction, a->unit,
                                            begin_us, end_us,       a->bytes};
        e->on_event(e->context, &event);
    }
}

/* Reports what has ended in the queues. The timeline forgets ends after a while, so this is
 * called whenever time has passed. */
static void report_ended(struct ats_sim_engine *e)
{
    for (int q = 0; e->on_event != NULL && q < ATS_SIM_QUEUES; q++) {
        for (size_t *i = &e->unreported[q]; *i < e->at; (*i)++) {
            const struct ats_sim_action *a = &e->schedule->actions[*i];
            const bool queued =
                a->kind == ATS_SIM_GPU || a->kind == ATS_SIM_COPY || a->kind == ATS_SIM_EVENT;
            double end_us;
            if (!queued || a->queue != (enum ats_sim_queue)q) {
                continue;
            }
            if (!ats_timeline_done(e->timeline, e->tickets[*i], &end_us)) {
                break;
            }
            if (a->kind != ATS_SIM_EVENT) {
                const double ready_us = fmax(e->entered_us[*i], e->stream_end_us[q]);
                report(e, a, a->kind == ATS_SIM_GPU ? end_us - a->us : ready_us, end_us);
            }
            e->stream_end_us[q] = fmax(e->stream_end_us[q], end_us);
        }
    }
}

static void pass_time(struct ats_sim_engine *e, double until_us, double cpu_gbps)
{
    e->now_us = until_us;
    ats_timeline_advance(e->timeline, until_us, cpu_gbps);
    report_ended(e);
}

static void wait_for(struct ats_sim_engine *e, struct ats_ticket ticket)
{
    const double begin_us = e->now_us;
    while (!ats_timeline_done(e->timeline, ticket, NULL)) {
        const double next_us = ats_timeline_next_us(e->timeline, 0);
        if (!isfinite(next_us)) {
            break; /* nothing runs that it could be waiting for */
        }
        pass_time(e, fmax(next_us, e->now_us + LEAST_STEP_US), 0);
    }
    e->use.wait_us += e->now_us - begin_us;
}

static struct ats_ticket enter_copy(struct ats_sim_engine *e, const struct ats_sim_action *a)
{
    const struct ats_timeline_copy copy = {
        .direction = a->direction,
        .bytes = a->bytes,
        .latency_us = e->machine->device.copy_latency_us + a->us,
        .max_gbps = a->pageable ? e->machine->device.pageable_gbps : 0,
        .kernel = a->kernel,
    };
    const struct ats_ticket ticket = ats_timeline_copy(e->timeline, e->streams[a->queue], &copy);
    return ticket;
}

static void synchronise(struct ats_sim_engine *e, const struct ats_sim_action *a)
{
    const double begin_us = e->now_us;
    if (a->after == ATS_SIM_ALL) {
        wait_for(e, ats_timeline_record(e->timeline, e->streams[a->queue]));
    } else {
        wait_for(e, e->tickets[a->after]);
    }
    report(e, a, begin_us, e->now_us);
    pass_time(e, e->now_us + a->us, 0);
    e->use.host_us += a->us;
}

/* False if memory is out. */
static bool follow(struct ats_sim_engine *e, const struct ats_sim_action *a)
{
    struct ats_ticket *ticket = &e->tickets[e->at];
    e->entered_us[e->at] = e->now_us;
    switch (a->kind) {
    case ATS_SIM_HOST:
        report(e, a, e->now_us, e->now_us + a->us);
        pass_time(e, e->now_us + a->us, 0);
        e->use.host_us += a->us;
        return true;
    case ATS_SIM_CPU:
        report(e, a, e->now_us, e->now_us + a->us);
        pass_time(e, e->now_us + a->us, a->us > 0 ? a->bytes / a->us / BYTES_PER_US : 0);
        e->use.cpu_us += a->us;
        return true;
    case ATS_SIM_GPU:
        *ticket = ats_timeline_compute(e->timeline, e->streams[a->queue], a->us, a->launch);
        return ticket->stream != 0;
    case ATS_SIM_COPY:
        *ticket = enter_copy(e, a);
        if (a->blocking) {
            wait_for(e, *ticket);
        }
        return ticket->stream != 0;
    case ATS_SIM_EVENT:
        *ticket = ats_timeline_wait(e->timeline, e->streams[a->queue],
                                    a->after == ATS_SIM_ALL ? *ticket : e->tickets[a->after]);
        return ticket->stream != 0;
    case ATS_SIM_SYNC:
        synchronise(e, a);
        return true;
    case ATS_SIM_SPLIT:
        e->use.splits++;
        return true;
    }
    return true;
}

bool ats_sim_run(struct ats_sim_engine *e, const struct ats_sim_schedule *schedule)
{
    e->tickets = calloc(schedule->n + 1, sizeof(e->tickets[0]));
    e->entered_us = calloc(schedule->n + 1, sizeof(e->entered_us[0]));
    bool good = !schedule->failed && e->tickets != NULL && e->entered_us != NULL;
    e->schedule = schedule;
    for (int q = 0; q < ATS_SIM_QUEUES; q++) {
        e->unreported[q] = 0;
        e->stream_end_us[q] = e->now_us;
    }
    for (e->at = 0; good && e->at < schedule->n; e->at++) {
        good = follow(e, &schedule->actions[e->at]);
    }
    for (int q = 0; good && q < ATS_SIM_QUEUES; q++) {
        wait_for(e, ats_timeline_record(e->timeline, e->streams[q]));
    }
    report_ended(e);
    free(e->tickets);
    free(e->entered_us);
    e->tickets = NULL;
    e->entered_us = NULL;
    e->schedule = NULL;
    e->at = 0;
    return good;
}

struct ats_sim_use ats_sim_used(const struct ats_sim_engine *e)
{
    struct ats_sim_use use = e->use;
    const struct ats_timeline_totals totals = ats_timeline_totals(e->timeline, e->device);
    use.us = e->now_us;
    use.gpu_us = totals.compute_us;
    use.launches = totals.launches;
    for (int d = 0; d < 2; d++) {
        use.link_us[d] = totals.copy_us[d];
        use.bytes[d] = totals.bytes[d];
        use.copies += totals.copies[d];
    }
    return use;
}

struct ats_sim_use ats_sim_between(const struct ats_sim_use *from, const struct ats_sim_use *to)
{
    struct ats_sim_use d = *to;
    d.us -= from->us;
    d.cpu_us -= from->cpu_us;
    d.host_us -= from->host_us;
    d.wait_us -= from->wait_us;
    d.gpu_us -= from->gpu_us;
    d.copies -= from->copies;
    d.splits -= from->splits;
    d.launches -= from->launches;
    for (int i = 0; i < 2; i++) {
        d.link_us[i] -= from->link_us[i];
        d.bytes[i] -= from->bytes[i];
    }
    return d;
}
