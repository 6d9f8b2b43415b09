/* What happened between two looks at the live figures.
 *
 * A device's figures change when a pass ends, and a pass may take longer than the time between two
 * looks. So all rates but `busy` are over the time that the ended passes took, not over the clock:
 * a prompt of three seconds, seen once a second, counts with its own speed once it is over. Of
 * several contexts that compute at once, it is the speed of one.
 *
 * Pure; no shared state. */
#ifndef ATS_TOP_RATES_H
#define ATS_TOP_RATES_H

#include "top/live_file.h"

/* NAN: there was nothing of the kind. Shares are from 0 to 1. */
struct ats_top_rates {
    double pass_s; /* that the ended passes took together */
    uint64_t answer_tokens;
    uint64_t prompt_tokens;
    double answer_per_s; /* tokens, over the passes of one token */
    double prompt_per_s; /* over those of several */

    double busy; /* share of the clock's time in which a pass ran, ended or not */
    /* shares of the passes: the CPU side computed; the accelerator had work, as far as the host
     * could see; the host waited for a weight on the link */
    double cpu;
    double accel;
    double stalled;
    double to_accel_gbps; /* 1e9 bytes per second of the passes */
    double to_host_gbps;
    double promoted_per_token; /* bytes */
    double splits_per_graph;
    double expert_hits; /* share of the columns that the accelerator computed from slots */
};

/* One look at a process. */
struct ats_top_entry {
    struct ats_live_process process;
    struct ats_top_rates rates[ATS_LIVE_DEVICES];
};

/* One look at all. */
struct ats_top_sample {
    double unix_s;
    uint64_t at_ns;    /* CLOCK_MONOTONIC */
    double interval_s; /* since the sample before; 0: this is the first */
    struct ats_top_entry *entries;
    size_t n;
    size_t n_other; /* processes whose figures this version cannot read */
};

/* The rates of a device between two looks. `before` NULL: all NAN. */
struct ats_top_rates ats_top_compare(const struct ats_live_device *before, uint64_t before_ns,
                                     const struct ats_live_device *now, uint64_t now_ns);

/* Makes a sample of n processes, whose rates are those since `before` (NULL: none). Where no pass
 * has ended since, but one runs, the rates of that sample go on. False: out of memory. The caller
 * frees the sample. */
bool ats_top_sample_make(struct ats_top_sample *sample, const struct ats_live_process *processes,
                         size_t n, double unix_s, uint64_t at_ns,
                         const struct ats_top_sample *before);
void ats_top_sample_free(struct ats_top_sample *sample);

/* Nanoseconds in which a pass ran up to at_ns. */
uint64_t ats_top_busy_ns(const struct ats_live_device *device, uint64_t at_ns);

/* Seconds for which the device has done nothing at at_ns; 0 if a pass runs. */
double ats_top_idle_s(const struct ats_live_device *device, uint64_t at_ns);

/* Text of the latest reason for a new plan; NULL: there has been none. */
const char *ats_top_reason(const struct ats_live_device *device);

#endif
