/* The meter: what passes take on either side and on the link, and planning anew when that is no
 * longer what graphs were planned by (plan/watch.h).
 *
 * Times are the host's: the CPU's from call to return; the accelerator's from the first command
 * that an idle one was given until it has been waited for; the link's are the waits for weights
 * that cross beside the CPU. No synchronisation is added but those waits, which the accelerator
 * would have instead. The clock is read once per split, where it ends for the host: what follows
 * begins there.
 *
 * Passes are judged between two of them; new plans are made beside the next (replan.h).
 *
 * Thread-safety: as the stream's: one thread at a time. */
#ifndef ATS_BACKEND_METER_H
#define ATS_BACKEND_METER_H

#include "plan/watch.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct ats_graph_plan;
struct ats_promotion_step;
struct ats_stream;

enum { ATS_METER_STRETCHES = 128 };

struct ats_meter {
    struct ats_watch watch;
    struct ats_rng rng;         /* of drifts for tests */
    struct ats_pass_times pass; /* the running one, or the latest */
    double begin_us;            /* of the pass */
    double seen_us;             /* the clock's latest reading */
    double busy_since_us;       /* 0: the accelerator is idle */
    double stretch_profile_us;  /* of what it has been given since */
    bool stretch_computes;      /* it has been given more than copies */
    bool stretch_stalled;       /* and has waited for a weight: its time says nothing */
    struct ats_stretch stretches[ATS_METER_STRETCHES]; /* of the pass */
    size_t n_stretches;
    double arrived_us;     /* the latest weight, */
    double arrived_cpu_us; /* and how long the CPU had computed by then */
    bool arrived_late;     /* it was waited for */
    uint32_t n_tokens;     /* of the pass */
    bool is_current;       /* it runs by the latest rates, else it says nothing of them */
    bool counts;           /* the pass can be compared with others, and has not been judged */
    bool is_counted;       /* it is in the device's counters */
};

/* A new stream: nothing seen. */
void ats_meter_start(struct ats_stream *stream);

/* Whether passes are watched: not where nothing can be planned otherwise, nor where time means
 * nothing. */
bool ats_meter_watches(const struct ats_stream *stream);

/* Takes the latest pass into the counters, if it is over and has not been. When it has been waited
 * for, or another one begins. */
void ats_meter_settle(struct ats_stream *stream);

/* Between passes: judges the latest. If graphs are to be planned anew, the stream's rates are new
 * and with them its plans void. */
void ats_meter_judge(struct ats_stream *stream);

void ats_meter_begin(struct ats_stream *stream, const struct ats_graph_plan *plan);

/* `well`: all of it has run. */
void ats_meter_end(struct ats_stream *stream, bool well);

/* The accelerator is given something that the profile says takes so long. */
void ats_meter_given(struct ats_stream *stream, double profile_us);

/* The same for a copy of an activation. */
void ats_meter_copy(struct ats_stream *stream, size_t bytes);

/* The accelerator has been waited for: it has nothing to do. */
void ats_meter_idle(struct ats_stream *stream);

/* The clock. */
double ats_meter_now_us(void);

/* Reads the clock where something has passed that is neither side's. */
void ats_meter_look(struct ats_stream *stream);

/* The CPU has computed since the latest reading. */
void ats_meter_cpu(struct ats_stream *stream, double profile_us);

/* A weight is given to the link. */
void ats_meter_note_given(struct ats_stream *stream, struct ats_promotion_step *step);

/* The host has waited since then until it has arrived. If that took time, it says how long the
 * weight was on its way: from when it was given, or the one before it arrived. */
void ats_meter_arrived(struct ats_stream *stream, const struct ats_promotion_step *step,
                       double since_us);

#endif
