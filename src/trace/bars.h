/* Bars: a recording as what a person looks at, a list of stretches of time per lane.
 *
 * Pure. A command on a stream is a bar from when it began to when it ended if the accelerator told
 * that (`exact`). Otherwise the bar is the time within which it must have run: from when it was
 * given to when the host first knew that it was over. Such windows overlap, and what is summed
 * up from them is an upper bound. */
#ifndef ATS_TRACE_BARS_H
#define ATS_TRACE_BARS_H

#include "trace/record.h"

enum ats_trace_bar_kind {
    ATS_BAR_COMPUTE,   /* operators */
    ATS_BAR_TO_DEVICE, /* a copy over the link */
    ATS_BAR_TO_HOST,
    ATS_BAR_STALL,  /* the stream waits for an event */
    ATS_BAR_WAIT,   /* the host waits for a stream or an event; on the context's CPU lane */
    ATS_BAR_SUBMIT, /* the host gives a command, likewise */
    ATS_BAR_PLAN,   /* the host makes a plan, likewise */
    ATS_BAR_KINDS,
};

/* Names are borrowed from the recording. */
struct ats_trace_bar {
    uint64_t begin_ns;
    uint64_t end_ns;
    uint64_t bytes;
    const char *name; /* what is computed or copied; for stalls and waits, what is waited for */
    const char *last; /* COMPUTE: last operator; "" otherwise */
    uint32_t pass;    /* index in passes, or ATS_BAR_NO_PASS */
    uint32_t count;   /* COMPUTE: operators */
    uint8_t lane;
    uint8_t kind;
    bool exact;
    bool by_event; /* WAIT: for an event, not for the whole stream */
};

enum { ATS_BAR_NO_PASS = UINT32_MAX };

struct ats_trace_pass {
    uint64_t begin_ns;
    uint64_t end_ns; /* when all that it gave was over */
    uint32_t tokens;
    uint32_t decoded; /* number of this token since the last prompt, from 1; 0: prefill */
    uint8_t lane;     /* CPU lane of its context */
};

struct ats_trace_bars {
    const struct ats_trace *trace; /* borrowed */
    struct ats_trace_bar *bars;    /* by lane, then by begin_ns */
    size_t n_bars;
    struct ats_trace_pass *passes; /* by begin_ns */
    size_t n_passes;
    uint64_t begin_ns; /* of all */
    uint64_t end_ns;
};

/* False: out of memory. Free the result by ats_trace_bars_free; the recording must live as long. */
bool ats_trace_bars_make(const struct ats_trace *trace, struct ats_trace_bars *out);

void ats_trace_bars_free(struct ats_trace_bars *bars);

/* "prefill, 512 tokens", "token 17"; returns `text`. */
const char *ats_trace_pass_name(const struct ats_trace_pass *pass, char *text, size_t size);

/* "ATS: CPU", "ATS: EMU0 compute"; with a number if there are several contexts. */
const char *ats_trace_lane_name(const struct ats_trace *trace, size_t lane, char *text,
                                size_t size);

#endif
