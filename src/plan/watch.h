/* Watching how fast the machine is now: from what passes took, when graphs should be planned anew,
 * and by which rates.
 *
 * Pure: takes times and the time, keeps its state in a struct.
 *
 * Rates come from a profile of a quiet machine. What a side takes for its part of a pass, over what
 * the profile says it takes, is its *drift*: 1 as profiled, 2.5 with 60 % of its time taken by
 * others. Drifts of single passes are noisy, so the median of the latest few counts, which one pass
 * in which the system did something else does not move; of the accelerator the quickest, because
 * for the host it is done when the host goes on. The link's is seen when the accelerator
 * waits for weights: what would have crossed by the profile in the time that weights were on their
 * way, over what did. A host whose cores are taken by others goes on late each time that the
 * accelerator is done, which makes changes of side dearer. While nothing waits, a link that was
 * slow, and a side that was slow and has nothing to do now, are tried again from time to time, the
 * longer apart the more often it was in vain; at once if a side has become faster.
 *
 * Graphs are planned anew when a drift deviates by 15 % from that of the plan in use, if that is
 * worth 5 % of a pass, at the earliest after five times the time of a pass (the published system's
 * threshold and interval). A plan that lasts for less than 40 passes makes the interval twice as
 * long, so that a load that comes and goes does not have plans made all the time, but
 * never more than 1.5 s; quiet times shorten it again. A new plan under which passes take longer
 * than under the old one, on the same machine, is taken back, and tried again after 2 s, the longer
 * apart the more often in vain.
 *
 * Thread-safety: no shared state; one struct may be used by one thread at a time. */
#ifndef ATS_PLAN_WATCH_H
#define ATS_PLAN_WATCH_H

#include "base/rng.h"
#include "plan/rates.h"
#include "plan/side.h"

#include <stdbool.h>
#include <stddef.h>

/* Passes of more tokens are not judged: they compute more than they read, so their times say
 * something else. */
enum { ATS_WATCH_MOST_TOKENS = 16 };

/* How many times the profile's time things take. */
struct ats_drift {
    double side[ATS_SIDES];
    double link;
    double late_us; /* what the host takes longer to go on when the accelerator is done */
};

extern const struct ats_drift ats_no_drift;

/* A stretch of the accelerator's work, from its first command until the host has waited for the
 * last. */
struct ats_stretch {
    double us;         /* as the host saw it */
    double profile_us; /* by the profile */
};

/* One pass of a plan, in microseconds. */
struct ats_pass_times {
    double wall_us;
    double n_tokens;              /* passes of one number of tokens are compared */
    double us[ATS_SIDES];         /* that a side worked */
    double profile_us[ATS_SIDES]; /* that it would by the profile; 0: it had nothing to do */
    double late_us; /* in all, that the host went on late after an accelerator's stretch of work */
    double n_stretches;
    double stalled_us;    /* that a weight on the link was waited for */
    double crossed_bytes; /* of weights of which is known how long they were on their way */
    double credit_bytes;  /* that would have crossed in that time by the profile's rates */
};

enum ats_watch_reason {
    ATS_WATCH_NOTHING,
    ATS_WATCH_CPU_SLOWER,
    ATS_WATCH_CPU_FASTER,
    ATS_WATCH_ACCEL_SLOWER,
    ATS_WATCH_ACCEL_FASTER,
    ATS_WATCH_LINK_SLOWER,
    ATS_WATCH_LINK_TRIED, /* whether it is as fast as it was */
    ATS_WATCH_SIDE_TRIED, /* likewise, a side that has had nothing to do */
    ATS_WATCH_HOST_LATE,
    ATS_WATCH_HOST_IN_TIME,
    ATS_WATCH_TAKEN_BACK, /* the new plan was slower than the old one */
    ATS_WATCH_REASONS,
};

/* Drifts between a quarter and four times, for tests; every second call none. */
struct ats_drift ats_drift_draw(struct ats_rng *rng);

/* "the CPU is slower". */
const char *ats_watch_reason_text(enum ats_watch_reason reason);

enum { ATS_WATCH_PASSES = 9 };

struct ats_watch {
    struct ats_drift planned; /* of the plan in use; what graphs are to be planned by */
    struct ats_drift seen;    /* the latest medians */
    struct ats_drift judged;  /* a deviation is one from this */
    struct ats_pass_times passes[ATS_WATCH_PASSES];
    size_t n_passes; /* since the latest plan */
    double planned_at_us;
    double patience; /* the interval is five passes by this factor */
    double probe_after_us;
    double retry_after_us; /* what was taken back is tried again after that */
    bool was_taken_back;
    size_t n_others; /* passes in a row of another number of tokens */
    bool assumed;    /* the link was taken to be as slow as the accelerator */
    bool tried;      /* the latest plan was to see whether something is faster again */
    double quiet_since_us;
    struct {
        struct ats_drift drift;
        double wall_us;
        bool is_there;
    } before; /* the latest plan */
};

/* Takes what of the pass's n stretches was the host's being late out of the accelerator's time, and
 * into late_us. A stretch ends for the host when it goes on, which may be late but never early: so
 * the quickest one, relative to the profile, says how fast the accelerator is, and what the others
 * take beyond that was the host's. Stretches of less than 100 us by the profile are measured by
 * that, and say nothing themselves, as overheads are too large a part; without longer ones nothing
 * changes. */
void ats_watch_take_lateness(struct ats_pass_times *pass, const struct ats_stretch *stretches,
                             size_t n);

/* Nothing seen yet; what is planned is planned by the profile. */
void ats_watch_start(struct ats_watch *watch, double now_us);

/* Takes a pass into account, which ended at now_us of a clock that does not go back. A reason:
 * plan anew by watch->planned. */
enum ats_watch_reason ats_watch_pass(struct ats_watch *watch, const struct ats_pass_times *pass,
                                     double now_us);

/* Whether the CPU has become slower, beyond noise. */
bool ats_drift_has_cpu_load(const struct ats_drift *drift);

/* Rates of a machine whose parts have drifted. A CPU that computes less leaves more of host memory
 * to the link. */
struct ats_plan_rates ats_plan_rates_drifted(const struct ats_plan_rates *rates,
                                             const struct ats_drift *drift);

#endif
