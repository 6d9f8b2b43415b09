/* Load from elsewhere on an emulated accelerator in timed mode: another program computes on it, or
 * uses its link. Its operators take longer by a factor, and copies by another one: a load of 60 %
 * leaves 40 % to us, so that everything takes 1 / 0.4 = 2.5 times as long.
 *
 * A schedule is plain data, read from the text of ATS_EMU_LOAD:
 *
 *     10s:compute=2.5,link=2.5;40s:off
 *
 * Steps in the order of their times, separated by ";". A time is a decimal number and "s" or "ms",
 * counted from the device's first command. What follows says what the load is from then on:
 * compute=FACTOR, link=FACTOR or both, FACTOR from 1 to 1000 and 1 for what is not named; or "off".
 * "off" alone is no load at all. */
#ifndef ATS_EMU_LOAD_H
#define ATS_EMU_LOAD_H

#include "base/error.h"
#include "cost/timeline.h"

#include <stdbool.h>
#include <stddef.h>

enum { ATS_EMU_LOAD_STEPS = 64 };

struct ats_emu_load_schedule {
    size_t n; /* 0: no load */
    struct ats_timeline_load steps[ATS_EMU_LOAD_STEPS];
};

/* Whether something can take so many times as long: from 1 to 1000. */
bool ats_emu_load_is_factor(double factor);

/* False with a message that quotes the step that is wrong; `schedule` is as it was then. */
bool ats_emu_load_parse(const char *spec, struct ats_emu_load_schedule *schedule,
                        struct ats_error *err);

#endif
