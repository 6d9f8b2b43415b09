/* The clock of timed mode: one per process, shared by all timed devices.
 *
 * It owns the timeline (cost/timeline.h), moves it on to the present whenever
 * somebody looks, and makes the host's waits last. Nothing else takes time: a
 * command is entered into the timeline and the caller goes on.
 *
 * Host memory is shared: while the program computes, copies get what it leaves.
 * What it takes is estimated from its CPU time between two looks, less that of
 * the emulation itself (waiting threads and the reader), as a fraction of
 * cpu_threads, times cpu_gbps. That is too much where the CPU is not bound by
 * memory, as in large batches: copies then are slower than on a real machine,
 * never faster.
 *
 * The reader is a thread that reads the sources of copies while they proceed,
 * since a real copy takes part of the memory's bandwidth. It, the waiting thread
 * and what it takes to enter commands are all the CPU time that the emulation uses.
 *
 * The clock checks itself. Lag is the time by which waits returned late, plus
 * what entering commands took beyond the launches that they stand for: not if
 * the thread's next wait lasted longer than that, since commands begin at the
 * time at which they are entered, and so the wait ended when it would have anyway.
 *
 * Thread-safe, by one lock. */
#ifndef ATS_EMU_CLOCK_H
#define ATS_EMU_CLOCK_H

#include "base/error.h"
#include "cost/cost.h"
#include "cost/timeline.h"

#include <stddef.h>

/* Counts one more user; the first starts the clock and the reader. `rates` says
 * what host memory gives and what the CPU takes; those of the last user count. */
bool ats_emu_clock_start(const struct ats_device_rates *rates, struct ats_error *err);
void ats_emu_clock_stop(void);

/* Microseconds since some moment of this process. */
double ats_emu_clock_us(void);

/* Moves the timeline on to the present. Commands entered afterwards begin at that time, however
 * long their caller takes to work them out. `copy_bytes`: of a copy that is entered next, or 0
 * for none, a small one or an unknown one. */
void ats_emu_clock_look(size_t copy_bytes);

/* Replaces the load of a device of the timeline, from now on: ats_timeline_set_loads. */
bool ats_emu_clock_set_loads(int device, const struct ats_timeline_load *loads, size_t n);

/* The timeline, locked, as it was at the last look. */
struct ats_timeline *ats_emu_clock_lock(void);
void ats_emu_clock_unlock(void);

/* The calling thread waits until `ticket` is done and the sources of all copies that are done
 * have been read. What it returns later than the later of that and `begin_us`, is lag. */
void ats_emu_clock_wait(struct ats_ticket ticket, double begin_us);

/* n_rows rows of `size` bytes, `stride` bytes apart. */
struct ats_emu_rows {
    const uint8_t *data;
    size_t size;
    size_t n_rows;
    size_t stride;
};

/* The reader is to read the source of a copy while that proceeds. Whoever waits for the copy
 * waits for the reader. Without memory for it, reads at once. */
void ats_emu_clock_read_along(struct ats_ticket copy, const struct ats_emu_rows *source);

/* Reads on the calling thread, which counts as the emulation's time. */
void ats_emu_clock_read_now(const struct ats_emu_rows *source);

/* When a call that enters commands began: by the clock, and by its thread's. */
struct ats_emu_entry {
    double us;
    double cpu_us;
};
struct ats_emu_entry ats_emu_clock_enter(void);

/* What the call's thread has computed since counts as the emulation's. */
void ats_emu_clock_own(const struct ats_emu_entry *entry);

/* The same, and the call is over: `allowed_us` of it is what it takes on a real device. */
void ats_emu_clock_entered(const struct ats_emu_entry *entry, double allowed_us);

struct ats_emu_clock_counters {
    double wall_us;      /* since the clock's start */
    double in_use_us;    /* in which a device had something to do, or the host waited for one */
    double wait_us;      /* host waits, from call to return */
    double lag_us;       /* see above: the sum of the next three */
    double lag_enter_us; /* counted at the thread's next wait */
    double lag_wait_us;
    double lag_read_us;        /* reading what the reader had not read yet */
    double cpu_us;             /* of the process */
    double own_cpu_us;         /* of these, the emulation's */
    uint64_t waits;            /* that had to last */
    uint64_t synchronizations; /* all waits */
};

struct ats_emu_clock_counters ats_emu_clock_counters(void);

#endif
