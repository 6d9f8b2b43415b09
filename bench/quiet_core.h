/* Whether the core that computes is the run's own, and waiting until it is.
 *
 * A virtual machine's core may share a physical one with a neighbour (cpu_speed.h), mostly one of
 * several cores at a time. A run with one computing thread on the emulated accelerator takes the
 * first core that is free of that, and leaves the emulation another one. Not thread-safe: for the
 * thread that computes. */
#ifndef BENCH_QUIET_CORE_H
#define BENCH_QUIET_CORE_H

#include <stdbool.h>
#include <stdint.h>

struct quiet_core {
    double speed;      /* of an undisturbed core: bench_cpu_speed_best */
    double patience_s; /* how long it may be waited for in all */
    double waited_s;   /* of that, used */
    bool moves;        /* to another core while it waits */
};

/* What probes found, as shares of the undisturbed speed. */
struct core_speed {
    double sum;
    uint64_t n_probes;
};

/* Whether the core is as fast as it can be; the share of that which it does is added to *found. */
bool quiet_core_is(const struct quiet_core *core, struct core_speed *found);

/* Returns after a core was undisturbed for a while, at least `least_s` from now, or when patience
 * is used up; then the process is bound to that core. True if it waited at all. */
bool quiet_core_wait(struct quiet_core *core, double least_s);

#endif
