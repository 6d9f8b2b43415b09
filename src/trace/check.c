#include "trace/check.h"

#include "trace/shadow.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define HASH_NONFATAL_OOM 1 /* uthash would end the program */
#include <uthash.h>

enum { HOST = ATS_TRACE_CPU }; /* agents are numbered as roles are */

/* What has happened before something: the latest of each agent. */
struct clocks {
    uint64_t of[ATS_TRACE_AGENTS];
};

struct event {
    uint64_t id; /* key */
    struct clocks clocks;
    UT_hash_handle hh;
};

struct memory {
    uint64_t space; /* key */
    struct ats_trace_shadow shadow;
    uint64_t staging_begin;
    uint64_t staging_end; /* equal: no staging memory */
    UT_hash_handle hh;
};

struct context {
    struct clocks agents[ATS_TRACE_AGENTS];
    struct event *events;
    struct memory *memories;
    size_t first_operand; /* of the command to come */
    size_t n_operands;
};

struct ran {
    uint64_t number;
    uint64_t begin_ns;
    uint64_t end_ns;
};

struct checker {
    const struct ats_trace *trace;
    struct ats_trace_check *result;
    struct context contexts[ATS_TRACE_MAX_LANES];
    struct ran *ran; /* by number */
    size_t n_ran;
    bool out_of_memory;
};

/* ---- clocks ---- */

static void join(struct clocks *to, const struct clocks *from)
{
    for (int i = 0; i < ATS_TRACE_AGENTS; i++) {
        to->of[i] = from->of[i] > to->of[i] ? from->of[i] : to->of[i];
    }
}

/* The next step of an agent; what the host has done comes before it. */
static const struct clocks *tick(struct context *c, int agent)
{
    struct clocks *clocks = &c->agents[agent];
    join(clocks, &c->agents[HOST]);
    clocks->of[agent]++;
    return clocks;
}

static struct event *event_of(struct context *c, uint64_t id, bool make)
{
    struct event *event;
    HASH_FIND(hh, c->events, &id, sizeof(id), event);
    if (event == NULL && make) {
        event = calloc(1, sizeof(*event));
        if (event != NULL) {
            event->id = id;
            HASH_ADD(hh, c->events, id, sizeof(id), event);
            if (event->hh.tbl == NULL) {
                free(event);
                event = NULL;
            }
        }
    }
    return event;
}

static struct memory *memory_of(struct context *c, uint64_t space)
{
    struct memory *memory;
    HASH_FIND(hh, c->memories, &space, sizeof(space), memory);
    if (memory == NULL) {
        memory = calloc(1, sizeof(*memory));
        if (memory != NULL) {
            memory->space = space;
            HASH_ADD(hh, c->memories, space, sizeof(space), memory);
            if (memory->hh.tbl == NULL) {
                free(memory);
                memory = NULL;
            }
        }
    }
    return memory;
}

/* ---- faults ---- */

static const char *const agent_names[ATS_TRACE_AGENTS] = {
    "CPU", "compute stream", "transfer stream", "second transfer stream"};

static int agent_of(const struct checker *k, const struct ats_trace_record *r)
{
    return k->trace->lanes[r->lane].role;
}

static void describe(const struct checker *k, size_t record, char *text, size_t size)
{
    const struct ats_trace_record *r = &k->trace->records[record];
    char split[24] = "";
    if (r->split != ATS_TRACE_NO_SPLIT) {
        snprintf(split, sizeof(split), ", split %d", r->split);
    }
    snprintf(text, size, "%s%s%s%s (pass %u%s, %s, command %" PRIu64 ")",
             ats_trace_is_copy(r) ? "copy of " : "", r->name, r->last[0] != '\0' ? ".." : "",
             r->last, r->pass, split, agent_names[agent_of(k, r)], r->number);
}

/* `expert`: of the tensor, from 1, or 0. */
static void fault(struct checker *k, size_t record, size_t other, const char *what,
                  const char *tensor, uint32_t expert)
{
    struct ats_trace_check *result = k->result;
    if (result->n_faults < ATS_TRACE_MAX_FAULTS) {
        struct ats_trace_fault *f = &result->faults[result->n_faults];
        char first[150];
        char second[150] = "";
        describe(k, record, first, sizeof(first));
        if (other != SIZE_MAX) {
            describe(k, other, second, sizeof(second));
        }
        f->record = record;
        f->other = other;
        char number[24] = "";
        if (expert != 0) {
            snprintf(number, sizeof(number), "[%" PRIu32 "]", expert - 1);
        }
        snprintf(f->text, sizeof(f->text), "%s %s %s%s%s%s", first, what, tensor, number,
                 other != SIZE_MAX ? ": " : "", second);
    }
    result->n_faults++;
}

/* ---- times ---- */

static int by_number(const void *a, const void *b)
{
    const struct ran *x = a;
    const struct ran *y = b;
    return (x->number > y->number) - (x->number < y->number);
}

static bool list_ran(struct checker *k)
{
    k->ran = malloc((k->trace->n_records + 1) * sizeof(*k->ran));
    if (k->ran == NULL) {
        return false;
    }
    for (size_t i = 0; i < k->trace->n_records; i++) {
        const struct ats_trace_record *r = &k->trace->records[i];
        if (r->kind == ATS_TRACE_RAN) {
            k->ran[k->n_ran++] = (struct ran){r->number, r->begin_ns, r->end_ns};
        }
    }
    qsort(k->ran, k->n_ran, sizeof(*k->ran), by_number);
    return true;
}

static bool when(const struct checker *k, size_t record, struct ran *ran)
{
    const struct ats_trace_record *r = &k->trace->records[record];
    if (agent_of(k, r) == HOST) {
        *ran = (struct ran){r->number, r->begin_ns, r->end_ns};
        return true;
    }
    const struct ran key = {.number = r->number};
    const struct ran *found = bsearch(&key, k->ran, k->n_ran, sizeof(*k->ran), by_number);
    if (found != NULL) {
        *ran = *found;
    }
    return found != NULL;
}

/* Two accesses of different agents are in order by what orders them; then so by the clock. */
static void confirm(struct checker *k, size_t record, size_t other, const char *tensor,
                    uint32_t expert)
{
    enum { ROUNDING_NS = 1000 }; /* microseconds in floating point, to the next one */
    struct ran later;
    struct ran earlier;
    k->result->n_ordered++;
    if (!when(k, record, &later) || !when(k, other, &earlier)) {
        return;
    }
    if (later.begin_ns + ROUNDING_NS < earlier.end_ns) {
        fault(k, record, other, "ran too early, by the accelerator's own times, for", tensor,
              expert);
    } else {
        k->result->n_timed++;
    }
}

/* ---- accesses ---- */

struct operand {
    uint64_t space;
    uint64_t begin;
    uint64_t bytes;
    const char *tensor;
    uint32_t expert;
    bool writes;
};

static bool is_before(const struct ats_trace_access *access, int agent, const struct clocks *now)
{
    return access->clock <= now->of[agent];
}

static void against_write(struct checker *k, const struct ats_trace_stretch *s, int agent,
                          const struct clocks *now, size_t record, const struct operand *o)
{
    if (s->write.clock == 0 || s->write.record == record) {
        return;
    }
    if (!is_before(&s->write, s->writer, now)) {
        fault(k, record, s->write.record,
              o->writes ? "may overwrite before it is written" : "may read before it is written",
              o->tensor, o->expert);
    } else if (s->writer != agent) {
        confirm(k, record, s->write.record, o->tensor, o->expert);
    }
}

static void against_reads(struct checker *k, const struct ats_trace_stretch *s, int agent,
                          const struct clocks *now, size_t record, const struct operand *o)
{
    for (int a = 0; a < ATS_TRACE_AGENTS; a++) {
        const struct ats_trace_access *read = &s->reads[a];
        if (read->clock == 0 || read->record == record) {
            continue;
        }
        if (!is_before(read, a, now)) {
            fault(k, record, read->record, "may overwrite what is still read, by writing",
                  o->tensor, o->expert);
        } else if (a != agent) {
            confirm(k, record, read->record, o->tensor, o->expert);
        }
    }
}

/* What staging memory or a slot holds must be what is to be read. */
static void check_staged(struct checker *k, const struct ats_trace_stretch *s, size_t record,
                         const struct operand *o)
{
    if (s->write.clock == 0) {
        fault(k, record, SIZE_MAX, "reads, where nothing was put,", o->tensor, o->expert);
        return;
    }
    if (strcmp(s->write.tensor, o->tensor) != 0 ||
        (o->expert != 0 && s->write.expert != o->expert)) {
        fault(k, record, s->write.record, "reads, where something else was put last,", o->tensor,
              o->expert);
    }
}

static void touch(struct checker *k, struct context *c, int agent, const struct clocks *now,
                  size_t record, const struct operand *o)
{
    struct memory *memory = memory_of(c, o->space);
    size_t n = 0;
    const size_t first = memory == NULL  ? SIZE_MAX
                         : o->bytes == 0 ? 0
                                         : ats_trace_shadow_cover(&memory->shadow, o->begin,
                                                                  o->begin + o->bytes, &n);
    if (first == SIZE_MAX) {
        k->out_of_memory = true;
        return;
    }
    const bool staged =
        !o->writes && o->begin < memory->staging_end && o->begin >= memory->staging_begin;
    k->result->n_reads += !o->writes;
    k->result->n_writes += o->writes;
    k->result->n_staged_reads += staged;
    k->result->n_expert_reads += staged && o->expert != 0;
    const struct ats_trace_access access = {now->of[agent], record, o->tensor, o->expert};
    for (size_t i = first; i < first + n; i++) {
        struct ats_trace_stretch *s = &memory->shadow.stretches[i];
        against_write(k, s, agent, now, record, o);
        if (o->writes) {
            against_reads(k, s, agent, now, record, o);
            continue;
        }
        if (staged) {
            check_staged(k, s, record, o);
        }
        s->reads[agent] = access;
    }
    if (o->writes && n > 0) {
        ats_trace_shadow_write(&memory->shadow, first, n, agent, access);
    }
}

/* ---- commands ---- */

/* What has been noted of the command that `record` tells of. False: nothing. */
static bool touch_operands(struct checker *k, struct context *c, int agent,
                           const struct clocks *now, size_t record)
{
    const uint64_t number = k->trace->records[record].number;
    const bool ours = c->n_operands > 0 && k->trace->records[c->first_operand].number == number;
    for (size_t i = c->first_operand; ours && i < record && c->n_operands > 0; i++) {
        const struct ats_trace_record *p = &k->trace->records[i];
        if ((p->kind != ATS_TRACE_READ && p->kind != ATS_TRACE_WRITE) || p->number != number) {
            continue; /* of another context, between ours */
        }
        const struct operand o = {p->space, p->address, p->bytes,
                                  p->name,  p->count,   p->kind == ATS_TRACE_WRITE};
        touch(k, c, agent, now, record, &o);
        c->n_operands--;
    }
    return ours;
}

static void copy(struct checker *k, struct context *c, size_t record)
{
    const struct ats_trace_record *r = &k->trace->records[record];
    const int agent = agent_of(k, r);
    const bool in = r->kind == ATS_TRACE_TO_DEVICE;
    const struct operand device = {r->space, r->address, r->bytes, r->name, 0, in};
    const struct operand host = {0, r->host, r->bytes, r->name, 0, !in};
    const struct clocks *now = tick(c, agent);
    touch(k, c, agent, now, record, in ? &host : &device);
    if (!touch_operands(k, c, agent, now, record)) {
        touch(k, c, agent, now, record, in ? &device : &host);
    }
}

static void compute(struct checker *k, struct context *c, size_t record)
{
    const int agent = agent_of(k, &k->trace->records[record]);
    touch_operands(k, c, agent, tick(c, agent), record);
}

static void note_operand(struct context *c, const struct ats_trace *trace, size_t record)
{
    if (c->n_operands == 0 ||
        trace->records[c->first_operand].number != trace->records[record].number) {
        c->first_operand = record;
        c->n_operands = 0;
    }
    c->n_operands++;
}

/* All that used this memory must be over for the host: what gets it next may be anybody. */
static void check_given_back(struct checker *k, const struct memory *memory, size_t record,
                             const struct clocks *host)
{
    for (size_t i = 0; i < memory->shadow.n; i++) {
        const struct ats_trace_stretch *s = &memory->shadow.stretches[i];
        const struct ats_trace_access *used = NULL;
        if (s->write.clock > host->of[s->writer]) {
            used = &s->write;
        }
        for (int a = 0; a < ATS_TRACE_AGENTS; a++) {
            used = s->reads[a].clock > host->of[a] ? &s->reads[a] : used;
        }
        if (used != NULL) {
            fault(k, record, used->record, "may be given back while in use, by", used->tensor,
                  used->expert);
        }
    }
}

static bool set_staging(struct checker *k, struct context *c, size_t record)
{
    const struct ats_trace_record *r = &k->trace->records[record];
    struct memory *memory = memory_of(c, r->space);
    if (memory == NULL) {
        return false;
    }
    if (memory->staging_end > memory->staging_begin) {
        check_given_back(k, memory, record, &c->agents[HOST]);
    }
    ats_trace_shadow_clear(&memory->shadow);
    memory->staging_begin = r->address;
    memory->staging_end = r->address + r->bytes;
    return true;
}

/* What waits for an event that was never recorded waits for nothing. */
static void wait_event(struct context *c, int agent, uint64_t id)
{
    const struct event *event = event_of(c, id, false);
    if (event != NULL) {
        join(&c->agents[agent], &event->clocks);
    }
}

static bool record_event(struct context *c, int agent, uint64_t id)
{
    struct event *event = event_of(c, id, true);
    if (event != NULL) {
        event->clocks = c->agents[agent];
    }
    return event != NULL;
}

static bool step(struct checker *k, size_t record)
{
    const struct ats_trace_record *r = &k->trace->records[record];
    struct context *c = &k->contexts[k->trace->lanes[r->lane].context];
    const int agent = agent_of(k, r);
    k->result->n_commands += ats_trace_is_command(r);
    switch ((enum ats_trace_kind)r->kind) {
    case ATS_TRACE_READ:
    case ATS_TRACE_WRITE:
        note_operand(c, k->trace, record);
        return true;
    case ATS_TRACE_COMPUTE:
        compute(k, c, record);
        return !k->out_of_memory;
    case ATS_TRACE_TO_DEVICE:
    case ATS_TRACE_TO_HOST:
        copy(k, c, record);
        return !k->out_of_memory;
    case ATS_TRACE_SYNCHRONIZE:
        join(&c->agents[HOST], &c->agents[agent]);
        return true;
    case ATS_TRACE_EVENT_RECORD:
        return record_event(c, agent, r->event);
    case ATS_TRACE_EVENT_WAIT:
        wait_event(c, agent, r->event);
        return true;
    case ATS_TRACE_EVENT_SYNC:
        wait_event(c, HOST, r->event);
        return true;
    case ATS_TRACE_STAGING:
        return set_staging(k, c, record);
    case ATS_TRACE_PASS:
    case ATS_TRACE_PLAN:
    case ATS_TRACE_RAN:
    case ATS_TRACE_KINDS:
        return true;
    }
    return true;
}

static void forget(struct context *c)
{
    struct event *event = c->events;
    HASH_CLEAR(hh, c->events); /* the list that the entries are in stays */
    while (event != NULL) {
        struct event *next = event->hh.next;
        free(event);
        event = next;
    }
    struct memory *memory = c->memories;
    HASH_CLEAR(hh, c->memories);
    while (memory != NULL) {
        struct memory *next = memory->hh.next;
        ats_trace_shadow_clear(&memory->shadow);
        free(memory);
        memory = next;
    }
}

static bool can_check(const struct ats_trace *trace, struct ats_error *err)
{
    if (!trace->has_operands) {
        return ats_fail(err, "the recording does not say what operators read and write: record it "
                             "with ATS_TRACE_CHECK=1");
    }
    if (trace->dropped > 0) {
        return ats_fail(err,
                        "the first %" PRIu64 " records are missing, so nothing can be proven: "
                        "record less, or more of it with ATS_TRACE_MEMORY",
                        trace->dropped);
    }
    return !trace->is_incomplete ||
           ats_fail(err,
                    "more contexts were in use than can be recorded, so nothing can be proven");
}

bool ats_trace_check(const struct ats_trace *trace, struct ats_trace_check *result,
                     struct ats_error *err)
{
    *result = (struct ats_trace_check){0};
    if (!can_check(trace, err)) {
        return false;
    }
    struct checker *k = calloc(1, sizeof(*k));
    bool ok = k != NULL;
    if (ok) {
        k->trace = trace;
        k->result = result;
        ok = list_ran(k);
    }
    for (size_t i = 0; ok && i < trace->n_records; i++) {
        ok = step(k, i);
    }
    for (size_t i = 0; k != NULL && i < ATS_TRACE_MAX_LANES; i++) {
        forget(&k->contexts[i]);
    }
    if (k != NULL) {
        free(k->ran);
    }
    free(k);
    return ok || ats_fail(err, "out of memory for checking the recording");
}
