/* Recordings: what was given to the accelerator's streams and to the CPU, when, and what the host
 * waited for. This header has the format; recorder.h makes recordings, file.h stores them, and
 * check.h, bars.h and summary.h read them.
 *
 * A recording is a list of fixed-size records and a table of lanes. A lane is a backend instance:
 * the CPU side of a context, its compute stream, its transfer streams. Records of one context are
 * in the order in which its thread gave the commands.
 *
 * Times are nanoseconds of CLOCK_MONOTONIC. begin and end of a record are the host's: from the call
 * to its return. What runs on a stream runs later; when is known only if the accelerator tells
 * (lane.has_clock), by an ATS_TRACE_RAN record with the command's number. */
#ifndef ATS_TRACE_RECORD_H
#define ATS_TRACE_RECORD_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    ATS_TRACE_MAX_LANES = 64,
    ATS_TRACE_NAME = 40,
    ATS_TRACE_LAST = 32,
    ATS_TRACE_NO_SPLIT = -1,
};

enum ats_trace_kind {
    ATS_TRACE_PASS = 1,     /* one graph of llama.cpp, from call to return; count: its tokens */
    ATS_TRACE_PLAN,         /* making a plan for it */
    ATS_TRACE_COMPUTE,      /* operators given to a lane, name to last; the CPU's are done by end */
    ATS_TRACE_TO_DEVICE,    /* a copy given to a lane: host to space, address */
    ATS_TRACE_TO_HOST,      /* the other way */
    ATS_TRACE_SYNCHRONIZE,  /* the host waits for all that the lane was given */
    ATS_TRACE_EVENT_RECORD, /* marks the point that the lane's commands have reached */
    ATS_TRACE_EVENT_WAIT,   /* what the lane is given later waits for the event */
    ATS_TRACE_EVENT_SYNC,   /* the host waits for the event */
    ATS_TRACE_RAN,          /* device time of the command with this number */
    ATS_TRACE_READ,         /* operand of the COMPUTE with this number, which follows */
    ATS_TRACE_WRITE,        /* its result; or, of a TO_DEVICE, experts that it puts there */
    ATS_TRACE_STAGING,      /* from here on these bytes are staging memory or slots; 0 bytes: given
                               back */
    ATS_TRACE_KINDS,
};

struct ats_trace_record {
    uint64_t begin_ns;
    uint64_t end_ns;
    uint64_t number;  /* of the command, from 1; never twice in a process */
    uint64_t bytes;   /* copied, read or written */
    uint64_t space;   /* which memory `address` is in: 0 is host memory, others are buffers */
    uint64_t address; /* of the bytes */
    union {
        uint64_t host;  /* TO_DEVICE, TO_HOST: the bytes' address in host memory */
        uint64_t event; /* EVENT_...: its identity */
    };
    uint32_t pass;  /* of the context, from 1; 0: between passes */
    int32_t split;  /* of the pass, or ATS_TRACE_NO_SPLIT */
    uint32_t count; /* COMPUTE: operators; PASS: tokens; READ, WRITE: the expert whose part of the
                       tensor this is, from 1, or 0 */
    uint8_t kind;
    uint8_t lane; /* PASS, PLAN, READ, WRITE too: of the context or the command */
    uint8_t reserved[2];
    char name[ATS_TRACE_NAME]; /* tensor, or first operator; cut, always terminated */
    char last[ATS_TRACE_LAST]; /* COMPUTE: last operator */
};

enum ats_trace_role {
    ATS_TRACE_CPU,
    ATS_TRACE_COMPUTE_STREAM,
    ATS_TRACE_TRANSFER_STREAM,        /* through staging memory */
    ATS_TRACE_SECOND_TRANSFER_STREAM, /* of anything else */
    ATS_TRACE_ROLES,
};

struct ats_trace_lane {
    uint32_t context; /* lanes of one context have the same; numbers of contexts that ended recur */
    uint8_t role;     /* enum ats_trace_role */
    bool has_clock;   /* RAN records tell when its commands ran */
    bool emulated;
    uint8_t reserved;
    char device[32];       /* "CUDA0" */
    char description[104]; /* the accelerator's own words */
};

struct ats_trace {
    struct ats_trace_lane lanes[ATS_TRACE_MAX_LANES];
    size_t n_lanes;
    struct ats_trace_record *records; /* owned; by begin_ns, equal ones in the order of recording */
    size_t n_records;
    uint64_t dropped;   /* the oldest, for want of memory */
    bool has_operands;  /* READ and WRITE are there */
    bool is_incomplete; /* something ran that had no lane */
};

void ats_trace_free(struct ats_trace *trace);

static inline bool ats_trace_is_copy(const struct ats_trace_record *record)
{
    return record->kind == ATS_TRACE_TO_DEVICE || record->kind == ATS_TRACE_TO_HOST;
}

/* Whether a lane executes it, sooner or later. */
static inline bool ats_trace_is_command(const struct ats_trace_record *record)
{
    return record->kind == ATS_TRACE_COMPUTE || ats_trace_is_copy(record) ||
           record->kind == ATS_TRACE_EVENT_WAIT;
}

#endif
