/* A sample for people and for programs: a table for the terminal, JSON, and Prometheus' text.
 *
 * Pure, but for the streams written to; no shared state. */
#ifndef ATS_TOP_SHOW_H
#define ATS_TOP_SHOW_H

#include "top/rates.h"

#include <jansson.h>
#include <stdio.h>

enum { ATS_TOP_COLUMNS = 80 };

struct ats_top_style {
    const char *clock;    /* the time of day, for the first line */
    const char *line_end; /* behind each line, instead of a plain end of line */
    size_t most_lines;    /* the rest is left out; 0: all */
    bool colours;         /* with terminal sequences for them */
};

/* A block of lines per process and device, none longer than ATS_TOP_COLUMNS. */
void ats_top_print(FILE *out, const struct ats_top_sample *sample,
                   const struct ats_top_style *style);

/* The sample as an object, format "ats-top-1" (docs/top.md). NULL: out of memory. */
json_t *ats_top_json(const struct ats_top_sample *sample);

/* The figures in Prometheus' text format, version 0.0.4. Rates are left to the reader, who has all
 * counters. */
void ats_top_prometheus(FILE *out, const struct ats_live_process *processes, size_t n,
                        uint64_t at_ns);

#endif
