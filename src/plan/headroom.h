/* Headroom: how much VRAM may be used while others take some and give it back, which weights leave
 * first, and when to look.
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

/* When to look at the device's memory. Times are in microseconds of a clock that does not go back.
 */
enum ats_look {
    ATS_LOOK_LATER,
    ATS_LOOK_IF_FREE, /* unless others use the device just then */
    ATS_LOOK_NOW,     /* for 10 s others have been in the way: wait for them */
};

/* What to do at `now_us` if a look is due at `due_us`. */
enum ats_look ats_look_at(double due_us, double now_us);

/* When the next look is due: after one with nothing to come back, in 0.5 s; */
double ats_look_again(double now_us);

/* after so many bytes came back, perhaps none, in so much more that copying over a link of that
 * rate takes at most a fiftieth of it; */
double ats_look_after_return(double now_us, size_t bytes, double link_bytes_per_us);

/* after weights could not come back, in 0.5 s more, and each time in a row in twice that and 0.5 s
 * more, but never more than a minute. *wait_us is what the failure before has added; 0: there was
 * none. */
double ats_look_after_failure(double now_us, double *wait_us);

#endif
