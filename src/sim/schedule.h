/* What a policy decided for one pass, as a list of actions, and the machine that
 * follows it in simulated time.
 *
 * The host is one actor: it goes through the list in order. CPU operators and
 * host work take its time; GPU operators and copies are entered into queues
 * (cost/timeline.h) and take theirs there; the host waits where the list says
 * so. The engine decides nothing.
 *
 * Not thread-safe; each object is used by one thread. */
#ifndef ATS_SIM_SCHEDULE_H
#define ATS_SIM_SCHEDULE_H

#include "cost/timeline.h"
#include "sim/machine.h"

#include <stdbool.h>
#include <stdint.h>

enum ats_sim_kind {
    ATS_SIM_HOST,  /* the host thread works for `us` */
    ATS_SIM_CPU,   /* the CPU computes for `us` and reads `bytes` of host memory */
    ATS_SIM_GPU,   /* the GPU computes for `us` */
    ATS_SIM_COPY,  /* `bytes` over the link */
    ATS_SIM_EVENT, /* the stream waits for action `after` */
    ATS_SIM_SYNC,  /* the host waits for action `after`, or for all of the stream */
    ATS_SIM_SPLIT, /* a split begins; takes no time */
};

enum ats_sim_queue { ATS_SIM_COMPUTE_STREAM, ATS_SIM_TRANSFER_STREAM, ATS_SIM_QUEUES };

enum { ATS_SIM_ALL = -1 };

struct ats_sim_action {
    enum ats_sim_kind kind;
    enum ats_sim_queue queue;
    int32_t unit; /* of the model, for people; -1: none */
    int32_t after;
    double us; /* COPY: latency besides that of the first byte */
    double bytes;
    enum ats_timeline_direction direction;
    bool pageable; /* COPY: at the rate of pageable memory */
    bool kernel;   /* COPY: by the compute engine */
    bool blocking; /* COPY: the host waits for its end */
    bool launch;   /* GPU: counts as one */
};

struct ats_sim_schedule {
    struct ats_sim_action *actions;
    size_t n;
    size_t capacity;
    bool failed; /* memory ran out: it is incomplete */
};

/* Appends and returns the index; -1 (and schedule->failed) if memory is out. */
int32_t ats_sim_add(struct ats_sim_schedule *schedule, const struct ats_sim_action *action);
void ats_sim_schedule_free(struct ats_sim_schedule *schedule);

/* What happened between two moments. */
struct ats_sim_use {
    double us;
    double cpu_us;     /* the CPU computed */
    double host_us;    /* the host thread worked for llama.cpp itself */
    double wait_us;    /* the host thread waited, blocking copies included */
    double gpu_us;     /* the GPU computed */
    double link_us[2]; /* copies under way: to the device, to the host */
    double bytes[2];
    uint64_t copies;
    uint64_t splits;
    uint64_t launches;
};

/* One thing that took time, for a trace. */
struct ats_sim_event {
    enum ats_sim_kind kind; /* HOST, CPU, GPU, COPY, SYNC */
    enum ats_timeline_direction direction;
    int32_t unit;
    double begin_us;
    double end_us;
    double bytes;
};

struct ats_sim_engine;

/* NULL if memory is out. `machine` is borrowed. `on_event` may be NULL; it is called for all that
 * takes time, in no particular order. */
struct ats_sim_engine *ats_sim_engine_new(const struct ats_sim_machine *machine,
                                          void (*on_event)(void *context,
                                                           const struct ats_sim_event *event),
                                          void *context);
void ats_sim_engine_free(struct ats_sim_engine *engine);

/* Follows a schedule to its end, which includes all that it queued. False if memory is out. */
bool ats_sim_run(struct ats_sim_engine *engine, const struct ats_sim_schedule *schedule);

/* All since the beginning. */
struct ats_sim_use ats_sim_used(const struct ats_sim_engine *engine);

/* The difference between two moments. */
struct ats_sim_use ats_sim_between(const struct ats_sim_use *from, const struct ats_sim_use *to);

#endif
