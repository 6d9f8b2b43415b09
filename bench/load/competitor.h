/* A process that takes CPU time from this one: cpu-load (cpu_load_main.c), started, told how much,
 * and ended. It ends by itself if this process does. One thread. */
#ifndef ATS_BENCH_LOAD_COMPETITOR_H
#define ATS_BENCH_LOAD_COMPETITOR_H

#include "base/error.h"

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>
#include <time.h>

struct competitor {
    pid_t pid; /* 0: there is none */
    int fd;    /* what it reads its share from */
    clockid_t clock;
    size_t n_cores;
    double begin_s;
    double begin_cpu_s;
};

/* Starts `program` on this thread's cores, on which it takes nothing yet. The last core of the
 * machine is left alone if there are others: it is the emulation's (src/emu/clock.h). */
bool competitor_start(struct competitor *competitor, const char *program, double period_ms,
                      struct ats_error *err);

/* From now on takes this share of each core, from 0 to 0.95. */
bool competitor_set(const struct competitor *competitor, double share, struct ats_error *err);

/* The share of its cores that it has had since it was started; its priority: "real-time", "nice
 * -20", ... (static text). */
double competitor_share(const struct competitor *competitor);
const char *competitor_priority(const struct competitor *competitor);

/* Ends it and waits for that. Does nothing if there is none. False if it had failed. */
bool competitor_stop(struct competitor *competitor, struct ats_error *err);

#endif
