/* Recordings for people: a trace for Perfetto (ui.perfetto.dev) or chrome://tracing, and a web page
 * of its own.
 *
 * Pure, but for the streams written to. False: could not be written, or out of memory. */
#ifndef ATS_TRACE_EXPORT_H
#define ATS_TRACE_EXPORT_H

#include "trace/summary.h"

#include <stdio.h>

/* Chrome's trace format: an "X" event per bar, microseconds from the beginning, a thread per lane,
 * one for passes; windows are asynchronous events ("b", "e"), which may overlap. The summary is in
 * "otherData". */
bool ats_trace_write_chrome(FILE *out, const struct ats_trace_bars *bars, const json_t *summary);

/* One HTML file that needs nothing else and no network. */
bool ats_trace_write_page(FILE *out, const struct ats_trace_bars *bars, const json_t *summary);

#endif
