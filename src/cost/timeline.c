#include "cost/timeline.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* GB/s in bytes per microsecond */
static const double BYTES_PER_US = 1e3;

/* What copies get of host memory however busy the CPU is. A memory controller
 * starves nobody; how much it leaves is an estimate. */
static const double MIN_DRAM_SHARE = 0.1;

/* Times and amounts below this count as nothing: rounding, not work. */
static const double EPSILON = 1e-9;

enum {
    FIRST_COMMANDS = 64,    /* of a stream's ring; it grows by doubling */
    REMEMBERED_ENDS = 1024, /* of a stream's last commands; a power of two */
};

enum kind { COMPUTE, COPY, WAIT };

/* Engines of a device. With one copy engine both directions use the first. */
enum engine { ENGINE_COMPUTE, ENGINE_COPY_0, ENGINE_COPY_1, ENGINES, NO_ENGINE = ENGINES };

struct command {
    enum kind kind;
    enum ats_timeline_direction direction;
    bool kernel;
    unsigned launches;
    double left_us;    /* COMPUTE: duration; COPY: latency */
    double left_bytes; /* COPY */
    double bytes;
    double max_gbps;
    struct ats_ticket target; /* WAIT */
    uint64_t tag;             /* for the observer; 0: none */
};

struct stream {
    uint32_t id; /* 0: the slot is free */
    int device;
    struct command *ring;
    size_t capacity; /* a power of two */
    uint64_t submitted;
    uint64_t completed;
    uint64_t arrival; /* order in which first commands became ready */
    enum engine held; /* by the first command; NO_ENGINE: it waits */
    double rate;      /* bytes per microsecond of the first command, as last computed */
    double begun_us;  /* since when the first command has its engine, or holds the stream */
    uint64_t tag;     /* of commands to come */
    struct ats_timeline_observer observer;
    double ends[REMEMBERED_ENDS];
};

struct device {
    struct ats_timeline_link link;
    struct ats_timeline_totals totals;
    struct stream *holder[ENGINES];
    bool has_begun; /* has had a command */
    double first_us;
    struct ats_timeline_load load;   /* now */
    struct ats_timeline_load *loads; /* of which the first `load_index` are past */
    size_t n_loads;
    size_t load_index;
};

struct ats_timeline {
    double now_us;
    double busy_us;
    double dram_limit_gbps;
    struct device *devices;
    int n_devices;
    struct stream **streams;
    size_t n_streams;
    uint32_t next_id;
    uint64_t arrivals;
};

static struct command *first(const struct stream *s)
{
    return s->submitted > s->completed ? &s->ring[s->completed & (s->capacity - 1)] : NULL;
}

static struct stream *find(const struct ats_timeline *t, uint32_t id)
{
    for (size_t i = 0; id != 0 && i < t->n_streams; i++) {
        if (t->streams[i]->id == id) {
            return t->streams[i];
        }
    }
    return NULL;
}

/* ---- life ---- */

struct ats_timeline *ats_timeline_new(double start_us, double dram_limit_gbps)
{
    struct ats_timeline *t = calloc(1, sizeof(*t));
    if (t != NULL) {
        t->now_us = start_us;
        t->dram_limit_gbps = dram_limit_gbps;
        t->next_id = 1;
    }
    return t;
}

void ats_timeline_free(struct ats_timeline *t)
{
    for (size_t i = 0; i < t->n_streams; i++) {
        free(t->streams[i]->ring);
        free(t->streams[i]);
    }
    for (int d = 0; d < t->n_devices; d++) {
        free(t->devices[d].loads);
    }
    free(t->streams);
    free(t->devices);
    free(t);
}

void ats_timeline_set_dram_limit(struct ats_timeline *t, double dram_limit_gbps)
{
    t->dram_limit_gbps = dram_limit_gbps;
}

int ats_timeline_add_device(struct ats_timeline *t, const struct ats_timeline_link *link)
{
    struct device *grown = realloc(t->devices, ((size_t)t->n_devices + 1) * sizeof(grown[0]));
    if (grown == NULL) {
        return -1;
    }
    t->devices = grown;
    t->devices[t->n_devices] = (struct device){.link = *link, .load = {.compute = 1, .link = 1}};
    return t->n_devices++;
}

static struct stream *free_slot(struct ats_timeline *t)
{
    for (size_t i = 0; i < t->n_streams; i++) {
        if (t->streams[i]->id == 0) {
            return t->streams[i];
        }
    }
    struct stream **grown = realloc(t->streams, (t->n_streams + 1) * sizeof(struct stream *));
    if (grown == NULL) {
        return NULL;
    }
    t->streams = grown;
    struct stream *s = calloc(1, sizeof(*s));
    struct command *ring = calloc(FIRST_COMMANDS, sizeof(*ring));
    if (s == NULL || ring == NULL) {
        free(s);
        free(ring);
        return NULL;
    }
    s->ring = ring;
    s->capacity = FIRST_COMMANDS;
    t->streams[t->n_streams++] = s;
    return s;
}

uint32_t ats_timeline_open(struct ats_timeline *t, int device)
{
    struct stream *s = free_slot(t);
    if (s == NULL) {
        return 0;
    }
    s->id = t->next_id++;
    s->device = device;
    s->submitted = 0;
    s->completed = 0;
    s->held = NO_ENGINE;
    s->tag = 0;
    s->observer = (struct ats_timeline_observer){0};
    return s->id;
}

/* ---- load from elsewhere ---- */

/* When the device's next load begins; infinity if none is to come. */
static double next_load_us(const struct device *d)
{
    if (d->load_index == d->n_loads) {
        return INFINITY;
    }
    const double at_us = d->loads[d->load_index].at_us;
    if (!d->has_begun) {
        return at_us > 0 ? INFINITY : 0;
    }
    return d->first_us + at_us;
}

static void change_loads(struct ats_timeline *t)
{
    for (int i = 0; i < t->n_devices; i++) {
        struct device *d = &t->devices[i];
        while (next_load_us(d) <= t->now_us) {
            d->load = d->loads[d->load_index++];
        }
    }
}

/* Until some device's next load begins. */
static double change_us(const struct ats_timeline *t)
{
    double us = INFINITY;
    for (int i = 0; i < t->n_devices; i++) {
        us = fmin(us, next_load_us(&t->devices[i]) - t->now_us);
    }
    return fmax(us, 0);
}

bool ats_timeline_set_loads(struct ats_timeline *t, int device,
                            const struct ats_timeline_load *loads, size_t n)
{
    struct ats_timeline_load *copy = malloc(n * sizeof(*copy));
    if (copy == NULL) {
        return false;
    }
    memcpy(copy, loads, n * sizeof(*copy));
    struct device *d = &t->devices[device];
    free(d->loads);
    d->loads = copy;
    d->n_loads = n;
    d->load_index = 0;
    change_loads(t);
    return true;
}

struct ats_timeline_load ats_timeline_load(const struct ats_timeline *t, int device)
{
    return t->devices[device].load;
}

/* ---- which command runs ---- */

static enum engine engine_of(const struct device *d, const struct command *c)
{
    if (c->kind == COMPUTE || c->kernel) {
        return ENGINE_COMPUTE;
    }
    return d->link.copy_engines > 1 && c->direction == ATS_TO_HOST ? ENGINE_COPY_1 : ENGINE_COPY_0;
}

/* The stream has a new first command. */
static void arrive(struct ats_timeline *t, struct stream *s)
{
    s->arrival = ++t->arrivals;
    s->held = NO_ENGINE;
    s->rate = 0;
    s->begun_us = t->now_us;
}

static void account_start(struct device *d, const struct command *c)
{
    if (c->kind == COPY) {
        d->totals.copies[c->direction]++;
    }
    d->totals.launches += c->launches;
}

/* Ends the first command of a stream, now. */
static void finish(struct ats_timeline *t, struct stream *s)
{
    if (s->held != NO_ENGINE) {
        t->devices[s->device].holder[s->held] = NULL;
    }
    const uint64_t tag = first(s)->tag;
    if (tag != 0 && s->observer.ended != NULL) {
        s->observer.ended(s->observer.data, tag, s->begun_us, t->now_us);
    }
    s->ends[s->completed & (REMEMBERED_ENDS - 1)] = t->now_us;
    s->completed++;
    arrive(t, s);
}

bool ats_timeline_done(const struct ats_timeline *t, struct ats_ticket ticket, double *at_us)
{
    const struct stream *s = find(t, ticket.stream);
    if (s != NULL && s->completed < ticket.sequence) {
        return false;
    }
    if (at_us != NULL) {
        const bool known =
            s != NULL && ticket.sequence > 0 && s->completed - ticket.sequence < REMEMBERED_ENDS;
        *at_us = known ? s->ends[(ticket.sequence - 1) & (REMEMBERED_ENDS - 1)] : t->now_us;
    }
    return true;
}

static bool pass_waits(struct ats_timeline *t)
{
    bool passed = false;
    for (size_t i = 0; i < t->n_streams; i++) {
        struct stream *s = t->streams[i];
        const struct command *c;
        while (s->id != 0 && (c = first(s)) != NULL && c->kind == WAIT &&
               ats_timeline_done(t, c->target, NULL)) {
            finish(t, s);
            passed = true;
        }
    }
    return passed;
}

static bool is_before(const struct stream *a, const struct stream *b)
{
    return b == NULL || a->arrival < b->arrival;
}

static void grant_engines(struct ats_timeline *t)
{
    for (int d = 0; d < t->n_devices; d++) {
        struct device *device = &t->devices[d];
        struct stream *best[ENGINES] = {NULL};
        for (size_t i = 0; i < t->n_streams; i++) {
            struct stream *s = t->streams[i];
            const struct command *c = s->id != 0 && s->device == d ? first(s) : NULL;
            if (c == NULL || c->kind == WAIT || s->held != NO_ENGINE) {
                continue;
            }
            const enum engine e = engine_of(device, c);
            if (device->holder[e] == NULL && is_before(s, best[e])) {
                best[e] = s;
            }
        }
        for (int e = 0; e < ENGINES; e++) {
            if (best[e] != NULL) {
                device->holder[e] = best[e];
                best[e]->held = (enum engine)e;
                best[e]->begun_us = t->now_us;
                account_start(device, first(best[e]));
            }
        }
    }
}

/* Passes waits and gives out engines until nothing more can start now. */
static void settle(struct ats_timeline *t)
{
    do {
        grant_engines(t);
    } while (pass_waits(t));
}

/* ---- how fast it runs ---- */

static bool is_moving(const struct stream *s)
{
    const struct command *c = s->id != 0 && s->held != NO_ENGINE ? first(s) : NULL;
    return c != NULL && c->kind == COPY && c->left_us <= EPSILON;
}

static unsigned count_moving(const struct ats_timeline *t, int device,
                             enum ats_timeline_direction direction)
{
    unsigned n = 0;
    for (size_t i = 0; i < t->n_streams; i++) {
        const struct stream *s = t->streams[i];
        n += is_moving(s) && s->device == device && first(s)->direction == direction;
    }
    return n;
}

/* The rate of each transfer under way, in bytes per microsecond. */
static void set_rates(const struct ats_timeline *t, double cpu_gbps)
{
    double sum = 0;
    for (size_t i = 0; i < t->n_streams; i++) {
        struct stream *s = t->streams[i];
        s->rate = 0;
        if (!is_moving(s)) {
            continue;
        }
        const struct command *c = first(s);
        const struct device *d = &t->devices[s->device];
        const double gbps = c->direction == ATS_TO_HOST ? d->link.d2h_gbps : d->link.h2d_gbps;
        s->rate = gbps / d->load.link * BYTES_PER_US / count_moving(t, s->device, c->direction);
        if (c->max_gbps > 0) {
            s->rate = fmin(s->rate, c->max_gbps * BYTES_PER_US);
        }
        sum += s->rate;
    }
    const double left = fmax(t->dram_limit_gbps - cpu_gbps, MIN_DRAM_SHARE * t->dram_limit_gbps);
    const double scale = sum > left * BYTES_PER_US ? left * BYTES_PER_US / sum : 1;
    for (size_t i = 0; i < t->n_streams; i++) {
        t->streams[i]->rate *= scale;
    }
}

/* How long the first command of a stream still takes, at the rates set: to its
 * end, or for a copy to its first byte. Infinity: it does not run. */
static double left_us(const struct ats_timeline *t, const struct stream *s)
{
    const struct command *c = s->id != 0 && s->held != NO_ENGINE ? first(s) : NULL;
    if (c == NULL) {
        return INFINITY;
    }
    const struct ats_timeline_load *load = &t->devices[s->device].load;
    if (c->kind == COMPUTE) {
        return c->left_us * load->compute;
    }
    if (c->left_us > EPSILON) {
        return c->left_us * load->link;
    }
    return c->left_bytes > EPSILON ? c->left_bytes / s->rate : 0;
}

static double shortest_us(const struct ats_timeline *t)
{
    double shortest = INFINITY;
    for (size_t i = 0; i < t->n_streams; i++) {
        shortest = fmin(shortest, left_us(t, t->streams[i]));
    }
    return shortest;
}

double ats_timeline_next_us(const struct ats_timeline *t, double cpu_gbps)
{
    set_rates(t, cpu_gbps);
    const double shortest = shortest_us(t);
    return t->now_us + (isfinite(shortest) ? fmin(shortest, change_us(t)) : shortest);
}

/* ---- time passes ---- */

static void progress(struct ats_timeline *t, struct stream *s, double us)
{
    struct command *c = s->id != 0 && s->held != NO_ENGINE ? first(s) : NULL;
    if (c == NULL) {
        return;
    }
    struct ats_timeline_totals *totals = &t->devices[s->device].totals;
    const struct ats_timeline_load *load = &t->devices[s->device].load;
    if (c->kind == COMPUTE) {
        c->left_us -= us / load->compute;
        totals->compute_us += us;
        return;
    }
    totals->copy_us[c->direction] += us;
    if (c->left_us > EPSILON) {
        c->left_us -= us / load->link;
        return;
    }
    const double bytes = fmin(s->rate * us, c->left_bytes);
    c->left_bytes -= bytes;
    totals->bytes[c->direction] += bytes;
}

static bool is_over(const struct stream *s)
{
    const struct command *c = s->id != 0 && s->held != NO_ENGINE ? first(s) : NULL;
    if (c == NULL || c->left_us > EPSILON) {
        return false;
    }
    /* less than a thousandth of a byte is rounding */
    return c->kind == COMPUTE || c->left_bytes < 1e-3;
}

/* What a device does at once. */
static void count_together(struct ats_timeline *t, int device, double us)
{
    bool computes = false;
    bool copies = false;
    for (size_t i = 0; i < t->n_streams; i++) {
        const struct stream *s = t->streams[i];
        if (s->id != 0 && s->device == device && s->held != NO_ENGINE && first(s) != NULL) {
            computes = computes || first(s)->kind == COMPUTE;
            copies = copies || first(s)->kind != COMPUTE;
        }
    }
    struct ats_timeline_totals *totals = &t->devices[device].totals;
    totals->link_us += copies ? us : 0;
    totals->both_us += copies && computes ? us : 0;
}

static void step(struct ats_timeline *t, double us)
{
    for (int d = 0; d < t->n_devices; d++) {
        count_together(t, d, us);
    }
    if (ats_timeline_busy(t, -1)) {
        t->busy_us += us;
    }
    for (size_t i = 0; i < t->n_streams; i++) {
        progress(t, t->streams[i], us);
    }
    t->now_us += us;
    for (size_t i = 0; i < t->n_streams; i++) {
        if (is_over(t->streams[i])) {
            finish(t, t->streams[i]);
        }
    }
    change_loads(t);
    settle(t);
}

/* Ends what takes no time at all. */
static void end_instant(struct ats_timeline *t)
{
    while (shortest_us(t) <= EPSILON) {
        step(t, 0);
    }
}

void ats_timeline_advance(struct ats_timeline *t, double now_us, double cpu_gbps)
{
    while (t->now_us < now_us) {
        set_rates(t, cpu_gbps);
        const double next = fmin(shortest_us(t), change_us(t));
        const double rest = now_us - t->now_us;
        step(t, fmin(next, rest));
        if (next >= rest) {
            t->now_us = now_us;
        }
    }
    end_instant(t);
}

/* ---- commands ---- */

static bool grow(struct stream *s)
{
    struct command *ring = calloc(s->capacity * 2, sizeof(*ring));
    if (ring == NULL) {
        return false;
    }
    for (uint64_t i = s->completed; i < s->submitted; i++) {
        ring[i & (s->capacity * 2 - 1)] = s->ring[i & (s->capacity - 1)];
    }
    free(s->ring);
    s->ring = ring;
    s->capacity *= 2;
    return true;
}

static struct ats_ticket submit(struct ats_timeline *t, uint32_t stream,
                                const struct command *command)
{
    struct stream *s = find(t, stream);
    if (s == NULL || s->ring == NULL || (s->submitted - s->completed == s->capacity && !grow(s))) {
        return (struct ats_ticket){0};
    }
    struct device *d = &t->devices[s->device];
    if (!d->has_begun) {
        d->has_begun = true;
        d->first_us = t->now_us;
        change_loads(t);
    }
    const bool was_empty = s->submitted == s->completed;
    s->ring[s->submitted & (s->capacity - 1)] = *command;
    s->ring[s->submitted & (s->capacity - 1)].tag = s->tag;
    s->submitted++;
    const struct ats_ticket ticket = {stream, s->submitted};
    if (was_empty) {
        arrive(t, s);
        settle(t);
        end_instant(t);
    }
    return ticket;
}

void ats_timeline_observe(struct ats_timeline *t, uint32_t stream,
                          struct ats_timeline_observer observer)
{
    struct stream *s = find(t, stream);
    if (s != NULL) {
        s->observer = observer;
    }
}

void ats_timeline_tag(struct ats_timeline *t, uint32_t stream, uint64_t tag)
{
    struct stream *s = find(t, stream);
    if (s != NULL) {
        s->tag = tag;
    }
}

struct ats_ticket ats_timeline_compute(struct ats_timeline *t, uint32_t stream, double duration_us,
                                       unsigned launches)
{
    const struct command command = {.kind = COMPUTE, .left_us = duration_us, .launches = launches};
    return submit(t, stream, &command);
}

struct ats_ticket ats_timeline_copy(struct ats_timeline *t, uint32_t stream,
                                    const struct ats_timeline_copy *copy)
{
    const struct command command = {.kind = COPY,
                                    .direction = copy->direction,
                                    .kernel = copy->kernel,
                                    .launches = copy->kernel,
                                    .left_us = copy->latency_us,
                                    .left_bytes = copy->bytes,
                                    .bytes = copy->bytes,
                                    .max_gbps = copy->max_gbps};
    return submit(t, stream, &command);
}

struct ats_ticket ats_timeline_wait(struct ats_timeline *t, uint32_t stream,
                                    struct ats_ticket ticket)
{
    const struct command command = {.kind = WAIT, .target = ticket};
    return submit(t, stream, &command);
}

struct ats_ticket ats_timeline_record(const struct ats_timeline *t, uint32_t stream)
{
    const struct stream *s = find(t, stream);
    return s == NULL ? (struct ats_ticket){0} : (struct ats_ticket){stream, s->submitted};
}

void ats_timeline_close(struct ats_timeline *t, uint32_t stream)
{
    struct stream *s = find(t, stream);
    if (s == NULL) {
        return;
    }
    if (s->held != NO_ENGINE && first(s) != NULL) {
        t->devices[s->device].holder[s->held] = NULL;
    }
    s->id = 0;
    settle(t);
}

/* ---- questions ---- */

double ats_timeline_now(const struct ats_timeline *t)
{
    return t->now_us;
}

double ats_timeline_moved(const struct ats_timeline *t, struct ats_ticket ticket)
{
    const struct stream *s = find(t, ticket.stream);
    if (s == NULL || s->completed >= ticket.sequence) {
        return INFINITY;
    }
    if (s->completed + 1 < ticket.sequence || s->held == NO_ENGINE) {
        return -1;
    }
    const struct command *c = first(s);
    return c->bytes - c->left_bytes;
}

struct ats_ticket ats_timeline_last(const struct ats_timeline *t, int device)
{
    for (size_t i = 0; i < t->n_streams; i++) {
        const struct stream *s = t->streams[i];
        if (s->id != 0 && s->device == device && first(s) != NULL) {
            return (struct ats_ticket){s->id, s->submitted};
        }
    }
    return (struct ats_ticket){0};
}

bool ats_timeline_copying(const struct ats_timeline *t)
{
    for (size_t i = 0; i < t->n_streams; i++) {
        const struct stream *s = t->streams[i];
        if (s->id != 0 && s->held != NO_ENGINE && first(s) != NULL && first(s)->kind == COPY) {
            return true;
        }
    }
    return false;
}

bool ats_timeline_busy(const struct ats_timeline *t, int device)
{
    for (size_t i = 0; i < t->n_streams; i++) {
        const struct stream *s = t->streams[i];
        if (s->id != 0 && (device < 0 || s->device == device) && first(s) != NULL) {
            return true;
        }
    }
    return false;
}

double ats_timeline_busy_us(const struct ats_timeline *t)
{
    return t->busy_us;
}

struct ats_timeline_totals ats_timeline_totals(const struct ats_timeline *t, int device)
{
    return t->devices[device].totals;
}
