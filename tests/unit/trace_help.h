/* Hand-made recordings. Include it after cmocka.h. */
#ifndef ATS_TESTS_TRACE_HELP_H
#define ATS_TESTS_TRACE_HELP_H

#include "trace/record.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Lanes of a context, in the order of roles; context c has lanes 3c and behind. */
enum { CPU, COMPUTE, TRANSFER, LANES };

enum { MOST_MADE = 4096 };

struct made {
    struct ats_trace trace;
    struct ats_trace_record records[MOST_MADE];
    uint64_t next_number;
    uint64_t now_ns; /* of the next record */
};

/* Starts an empty recording of `n_contexts` contexts. The clock begins at 1000 ns. */
static inline void make_trace(struct made *m, size_t n_contexts)
{
    memset(m, 0, sizeof(*m));
    m->trace.records = m->records;
    m->trace.has_operands = true;
    m->trace.n_lanes = n_contexts * LANES;
    m->next_number = 1;
    m->now_ns = 1000;
    for (size_t i = 0; i < m->trace.n_lanes; i++) {
        m->trace.lanes[i] = (struct ats_trace_lane){
            .context = (uint32_t)(i / LANES), .role = (uint8_t)(i % LANES), .has_clock = true};
        snprintf(m->trace.lanes[i].device, sizeof(m->trace.lanes[i].device), "%s",
                 i % LANES == CPU ? "CPU" : "EMU0");
    }
}

/* Appends a record that lasts 10 ns on the host, 20 ns after the one before. Commands are numbered.
 */
static inline struct ats_trace_record *make(struct made *m, enum ats_trace_kind kind, size_t lane)
{
    if (m->trace.n_records == MOST_MADE) {
        abort();
    }
    struct ats_trace_record *r = &m->records[m->trace.n_records++];
    *r = (struct ats_trace_record){.begin_ns = m->now_ns,
                                   .end_ns = m->now_ns + 10,
                                   .kind = (uint8_t)kind,
                                   .lane = (uint8_t)lane,
                                   .split = ATS_TRACE_NO_SPLIT};
    m->now_ns += 20;
    if (ats_trace_is_command(r)) {
        r->number = m->next_number++;
    }
    return r;
}

static inline struct ats_trace_record *make_copy(struct made *m, enum ats_trace_kind kind,
                                                 size_t lane, const char *name, uint64_t space,
                                                 uint64_t address, uint64_t host, uint64_t bytes)
{
    struct ats_trace_record *r = make(m, kind, lane);
    snprintf(r->name, sizeof(r->name), "%s", name);
    r->space = space;
    r->address = address;
    r->host = host;
    r->bytes = bytes;
    return r;
}

/* An operand of the command to come. */
static inline void make_operand(struct made *m, enum ats_trace_kind kind, size_t lane,
                                const char *name, uint64_t space, uint64_t address, uint64_t bytes)
{
    struct ats_trace_record *r = make(m, kind, lane);
    snprintf(r->name, sizeof(r->name), "%s", name);
    r->number = m->next_number;
    r->space = space;
    r->address = address;
    r->bytes = bytes;
}

static inline void make_event(struct made *m, enum ats_trace_kind kind, size_t lane, uint64_t event)
{
    make(m, kind, lane)->event = event;
}

/* When the command ran. */
static inline void make_ran(struct made *m, size_t lane, uint64_t number, uint64_t begin_ns,
                            uint64_t end_ns)
{
    struct ats_trace_record *r = make(m, ATS_TRACE_RAN, lane);
    r->number = number;
    r->begin_ns = begin_ns;
    r->end_ns = end_ns;
}

/* Takes a record out. */
static inline void take_out(struct made *m, size_t record)
{
    memmove(&m->records[record], &m->records[record + 1],
            (--m->trace.n_records - record) * sizeof(m->records[0]));
}

#endif
