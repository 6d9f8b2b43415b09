/* Headroom: how much VRAM may be used while others take some and give it back, and which weights
 * leave first.
 *
 * Pure; no state, safe from any thread. */
#ifndef ATS_PLAN_HEADROOM_H
#define ATS_PLAN_HEADROOM_H

#include <stdbool.h>
#include <stddef.h>

/* A device's memory, in bytes, as it is now. */
struct ats_headroom {
    size_t total;
    size_t free;   /* that the device says is left */
    size_t used;   /* taken by us */
    size_t budget; /* that we may take in all, `used` included */
    size_t wanted; /* the budget at the start */
    size_t before; /* that was free at the start, before we took anything */
};

/* The budget from now on. If others have taken a 64th of the device since the start (less is
 * padding, and what a driver needs for itself) and our budget would leave less than a 64th of the
 * device free, it becomes what leaves a 32nd; if it would leave more than a 16th, it becomes what
 * leaves that, up to `wanted`. Between the two, which a driver that pages and a budget that swings
 * both shun, nothing changes. */
size_t ats_headroom_budget(const struct ats_headroom *memory);

/* The order in which weights leave VRAM, by their names: below 0 if `a` leaves before `b`. Experts,
 * of which a pass reads few, before feed-forward blocks, those before attention, and what belongs
 * to no layer last; of each kind the first layer first, as the rule `fill` places them the other
 * way round. 0: they are of one group, and leave together. */
int ats_leaves_before(const char *a, const char *b);

/* Microseconds until the next bytes may come back, if copying over a link of that rate is to take
 * at most a fiftieth of the time. */
double ats_return_us(size_t bytes, double link_bytes_per_us);

#endif
