/* What devices did during a phase: the emulated accelerator's and the ATS devices' own counters,
 * before and after. Devices of other backends have none. One thread. */
#ifndef ATS_BENCH_COUNTERS_H
#define ATS_BENCH_COUNTERS_H

#include <jansson.h>
#include <stdbool.h>

struct bench_counters;

/* For all devices that ggml knows now. NULL: out of memory. */
struct bench_counters *bench_counters_new(void);
void bench_counters_free(struct bench_counters *counters);

/* Remembers the counters. The devices must be idle. */
void bench_counters_begin(struct bench_counters *counters);

/* What was counted since: an object with one member per device that counts. Caller owns it. */
json_t *bench_counters_end(struct bench_counters *counters);

/* What is counted between the two does not count, such as copies that end while the run waits. */
void bench_counters_pause(struct bench_counters *counters);
void bench_counters_resume(struct bench_counters *counters);

/* Whether a device is emulated in timed mode. */
bool bench_counters_are_emulated(const struct bench_counters *counters);

/* By how much the emulation was late until now, and for how long it had something to do, in
 * microseconds. Both are 0 without an emulated device in timed mode. */
struct bench_lateness {
    double late_us;
    double used_us;
};
struct bench_lateness bench_counters_lateness(const struct bench_counters *counters);

#endif
