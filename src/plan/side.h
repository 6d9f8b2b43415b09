/* The two sides of a device: host memory with the CPU, and an accelerator with
 * its own memory. Shared vocabulary of all plans. */
#ifndef ATS_PLAN_SIDE_H
#define ATS_PLAN_SIDE_H

#include <stdint.h>

enum ats_side {
    ATS_HOST = 0,
    ATS_ACCEL = 1,
};

enum { ATS_SIDES = 2 };

/* A set of sides, e.g. those on which a tensor's bytes are valid. */
typedef uint8_t ats_side_set;

#define ATS_ON(side) ((ats_side_set)(1u << (side)))
#define ATS_ON_BOTH ((ats_side_set)(ATS_ON(ATS_HOST) | ATS_ON(ATS_ACCEL)))

static inline enum ats_side ats_other_side(enum ats_side side)
{
    return side == ATS_HOST ? ATS_ACCEL : ATS_HOST;
}

#endif
