/* Decoding while the machine has more or less load: token by token, phase by phase. */
#ifndef ATS_BENCH_LOAD_MEASURE_H
#define ATS_BENCH_LOAD_MEASURE_H

#include "counters.h"
#include "load/phases.h"

#include <jansson.h>

struct load_run {
    const struct load_phase *phases;
    size_t n_phases;
    const char *cpu_load; /* the program that takes CPU time */
    double period_ms;     /* of which it takes a part */
    struct bench_counters *counters;
    void *data;
    /* Makes room for the next token, which is not measured; decodes it and waits for it. */
    void (*make_room)(void *data);
    void (*decode)(void *data);
    /* Whether the core is nobody else's (another machine's, not that of the program that takes CPU
     * time), and its speed as a share of the full one. */
    bool (*undisturbed)(void *data, double *share);
};

/* One object per phase, in their order:
 *   begin_s, end_s       since the first phase began
 *   cpu_percent          from, to; wanted
 *   cpu_taken            share of each core that the other process had; null: there was none
 *   cpu_priority         of that process
 *   compute, link        factors
 *   own_cpu              CPU time of this thread over the time (getrusage)
 *   disturbed            share of the tokens during which the core was somebody else's
 *   core_speed           mean share of the full speed
 *   all_seconds, counters
 *   tokens               begin_s, us, undisturbed (1 or 0): one list each
 * The load is taken away again behind each phase. NULL with an error if it cannot be applied. */
json_t *load_measure(const struct load_run *run, struct ats_error *err);

#endif
