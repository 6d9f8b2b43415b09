/* Totals of a recording: who was busy for how much of the time, what the link moved, how much of it
 * ran beside computing, and what the host waited for.
 *
 * Pure. Times are unions: two bars that overlap count once. All of it is within the passes of the
 * phase, each of which lasts from llama.cpp's call until what it gave is over. */
#ifndef ATS_TRACE_SUMMARY_H
#define ATS_TRACE_SUMMARY_H

#include "trace/bars.h"

#include <jansson.h>

enum ats_trace_phase { ATS_PHASE_ALL, ATS_PHASE_PREFILL, ATS_PHASE_DECODE, ATS_PHASES };

struct ats_trace_totals {
    uint64_t n_passes;
    uint64_t n_tokens;
    double wall_us;  /* of the passes */
    double cpu_us;   /* in which the CPU side computed */
    double accel_us; /* in which a compute stream did */
    double link_us;  /* in which something was copied over the link */
    double to_device_us;
    double to_host_us;
    double to_device_bytes;
    double to_host_bytes;
    double compute_us; /* CPU side or compute stream */
    double both_us;    /* compute and link together */
    double overlap;    /* both_us over the shorter of compute_us and link_us; 0 if that is none */
    double wait_us;    /* in which the host waited */
    double stall_us;   /* in which a compute stream waited for an event */
    double submit_us;  /* in which the host gave commands */
    double plan_us;    /* in which it made plans */
    uint64_t n_synchronizations; /* waits of the host for a whole stream */
    uint64_t n_event_waits;      /* for an event */
    uint64_t n_splits;           /* pieces of graphs computed */
    bool exact; /* false: accelerator times are windows, and so upper bounds (bars.h) */
};

struct ats_trace_summary {
    struct ats_trace_totals phases[ATS_PHASES];
};

/* "all", "prefill", "decode" */
extern const char *const ats_trace_phase_names[ATS_PHASES];

/* False: out of memory. */
bool ats_trace_summarize(const struct ats_trace_bars *bars, struct ats_trace_summary *summary);

/* {"format": "ats-trace-1", "emulated", "devices", "records", "dropped", "phases": {...}}, with the
 * names of the members above. NULL: out of memory. The caller gives up its reference. */
json_t *ats_trace_summary_json(const struct ats_trace_bars *bars,
                               const struct ats_trace_summary *summary);

#endif
