/* The CPU time of this process, up to now.
 *
 * The process's own clock (CLOCK_PROCESS_CPUTIME_ID) counts a thread that is
 * running on another CPU only up to the last tick, some milliseconds ago: too
 * coarse for a copy of two. The clock of a single thread is exact, so this adds
 * those up. Threads are listed anew every LIST_US; the time of a thread that
 * ends counts up to the last call.
 *
 * Linux only: clock ids by thread number are the kernel's interface. Not
 * thread-safe; the clock's lock guards it. */
#ifndef ATS_EMU_CPU_TIME_H
#define ATS_EMU_CPU_TIME_H

#include <stddef.h>
#include <sys/types.h>

enum { ATS_EMU_MAX_THREADS = 512 }; /* of those beyond, the time is not counted */

struct ats_emu_cpu_time {
    struct {
        pid_t thread;
        double us;
    } threads[ATS_EMU_MAX_THREADS];
    size_t n_threads;
    double listed_us; /* when, by the caller's clock; 0: never */
    double total_us;
};

/* Microseconds of all threads together since the first call, which returns 0.
 * `now_us` is the caller's clock. */
double ats_emu_cpu_time_us(struct ats_emu_cpu_time *time, double now_us);

#endif
