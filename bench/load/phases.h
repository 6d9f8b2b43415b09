/* What the driver does in which order while it decodes: quiet times and times of load.
 *
 *     20s;30s:cpu=60;15s;30s:compute=2.5,link=2.5;15s
 *
 * Phases are separated by ";". Each has a length, in seconds ("20s") or tokens ("512t"), and what
 * is loaded meanwhile, which is nothing if nothing is named:
 *   cpu=60           per cent of each of the driver's cores that another process takes
 *   cpu=0-30         rising evenly from the first to the second
 *   compute=2.5      how many times as long the emulated accelerator's operators take
 *   link=2.5         and what its link does */
#ifndef ATS_BENCH_LOAD_PHASES_H
#define ATS_BENCH_LOAD_PHASES_H

#include "base/error.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { LOAD_PHASES = 32 };

struct load_phase {
    double seconds;  /* 0: the length is given in tokens */
    uint64_t tokens; /* 0: in seconds */
    double cpu_from; /* per cent */
    double cpu_to;
    double compute; /* factors, 1: none */
    double link;
};

bool load_phase_has_cpu(const struct load_phase *phase);
bool load_phase_has_accel(const struct load_phase *phase);

/* False with a message that quotes the phase that is wrong. `phases` has room for LOAD_PHASES. */
bool load_phases_parse(const char *text, struct load_phase *phases, size_t *n,
                       struct ats_error *err);

#endif
