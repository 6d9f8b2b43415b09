#include "trace/export.h"

#include <string.h>

static const char *const kinds[ATS_BAR_KINDS] = {"compute", "to device", "to host", "stall",
                                                 "wait",    "submit",    "plan"};

static double since(const struct ats_trace_bars *bars, uint64_t ns)
{
    return (double)(ns - bars->begin_ns) * 1e-3;
}

/* Writes an object, which it takes over, as one line. */
static bool write_event(FILE *out, json_t *event, bool is_first)
{
    const size_t flags = JSON_COMPACT | JSON_REAL_PRECISION(15);
    const bool ok = event != NULL && fputs(is_first ? "\n" : ",\n", out) >= 0 &&
                    json_dumpf(event, out, flags) == 0;
    json_decref(event);
    return ok;
}

static json_t *thread_name(size_t thread, const char *name)
{
    return json_pack("{s:s, s:s, s:i, s:I, s:{s:s}}", "ph", "M", "name", "thread_name", "pid", 1,
                     "tid", (json_int_t)thread, "args", "name", name);
}

static json_t *thread_order(size_t thread)
{
    return json_pack("{s:s, s:s, s:i, s:I, s:{s:I}}", "ph", "M", "name", "thread_sort_index", "pid",
                     1, "tid", (json_int_t)thread, "args", "sort_index", (json_int_t)thread);
}

/* Thread 0 is for passes, then come the lanes. */
static bool write_threads(FILE *out, const struct ats_trace_bars *bars)
{
    bool ok = write_event(out, thread_name(0, "passes"), true) &&
              write_event(out, thread_order(0), false);
    for (size_t i = 0; ok && i < bars->trace->n_lanes; i++) {
        char name[96];
        ats_trace_lane_name(bars->trace, i, name, sizeof(name));
        ok = write_event(out, thread_name(i + 1, name), false) &&
             write_event(out, thread_order(i + 1), false);
    }
    return ok;
}

static bool write_passes(FILE *out, const struct ats_trace_bars *bars)
{
    bool ok = true;
    for (size_t i = 0; ok && i < bars->n_passes; i++) {
        const struct ats_trace_pass *pass = &bars->passes[i];
        char name[48];
        ats_trace_pass_name(pass, name, sizeof(name));
        /* asynchronous: the next pass may begin before this one is over */
        const char *const marks[] = {"b", "e"};
        const uint64_t times[] = {pass->begin_ns, pass->end_ns};
        for (int m = 0; ok && m < 2; m++) {
            ok = write_event(out,
                             json_pack("{s:s, s:s, s:s, s:I, s:f, s:i, s:i, s:{s:I}}", "ph",
                                       marks[m], "cat", "pass", "name", name, "id", (json_int_t)i,
                                       "ts", since(bars, times[m]), "pid", 1, "tid", 0, "args",
                                       "tokens", (json_int_t)pass->tokens),
                             false);
        }
    }
    return ok;
}

static json_t *bar_args(const struct ats_trace_bar *bar)
{
    json_t *args = json_object();
    if (bar->last[0] != '\0') {
        json_object_set_new(args, "last", json_string(bar->last));
    }
    if (bar->count > 0) {
        json_object_set_new(args, "operators", json_integer(bar->count));
    }
    const double us = (double)(bar->end_ns - bar->begin_ns) * 1e-3;
    if (bar->bytes > 0) {
        json_object_set_new(args, "bytes", json_integer((json_int_t)bar->bytes));
        if (us > 0 && bar->exact) {
            json_object_set_new(args, "gbps", json_real((double)bar->bytes / us * 1e-3));
        }
    }
    if (bar->pass != ATS_BAR_NO_PASS) {
        json_object_set_new(args, "pass", json_integer(bar->pass));
    }
    return args;
}

static bool write_bar(FILE *out, const struct ats_trace_bars *bars, size_t i)
{
    const struct ats_trace_bar *bar = &bars->bars[i];
    const json_int_t thread = bar->lane + 1;
    if (bar->exact) {
        return write_event(out,
                           json_pack("{s:s, s:s, s:s, s:f, s:f, s:i, s:I, s:o}", "ph", "X", "cat",
                                     kinds[bar->kind], "name", bar->name, "ts",
                                     since(bars, bar->begin_ns), "dur",
                                     (double)(bar->end_ns - bar->begin_ns) * 1e-3, "pid", 1, "tid",
                                     thread, "args", bar_args(bar)),
                           false);
    }
    const char *const marks[] = {"b", "e"};
    const uint64_t times[] = {bar->begin_ns, bar->end_ns};
    bool ok = true;
    for (int m = 0; ok && m < 2; m++) {
        ok = write_event(out,
                         json_pack("{s:s, s:s, s:s, s:I, s:f, s:i, s:I, s:o}", "ph", marks[m],
                                   "cat", kinds[bar->kind], "name", bar->name, "id",
                                   (json_int_t)bars->n_passes + (json_int_t)i, "ts",
                                   since(bars, times[m]), "pid", 1, "tid", thread, "args",
                                   bar_args(bar)),
                         false);
    }
    return ok;
}

bool ats_trace_write_chrome(FILE *out, const struct ats_trace_bars *bars, const json_t *summary)
{
    bool ok = fputs("{\"displayTimeUnit\": \"ms\", \"otherData\": ", out) >= 0 &&
              json_dumpf(summary, out, JSON_COMPACT) == 0 &&
              fputs(",\n\"traceEvents\": [", out) >= 0;
    ok = ok && write_threads(out, bars) && write_passes(out, bars);
    for (size_t i = 0; ok && i < bars->n_bars; i++) {
        ok = write_bar(out, bars, i);
    }
    return ok && fputs("\n]}\n", out) >= 0;
}
