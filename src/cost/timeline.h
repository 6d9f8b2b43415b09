/* When things happen on devices with queues: a discrete-event state of streams,
 * compute engines, copy engines and links, advanced to a given time.
 *
 * Streams execute their commands in order. A command that computes needs its
 * device's compute engine, a copy needs a copy engine, a copy kernel the
 * compute engine; each engine serves one command at a time, first come first
 * served. Copies are fluid: all transfers under way in one direction of one
 * device share its link equally, and all transfers of all devices share what
 * the CPU leaves of host memory's bandwidth:
 *
 *     rate = min(link / transfers, own limit), all scaled down together so that
 *     their sum is at most max(dram_limit - cpu_gbps, MIN_DRAM_SHARE * dram_limit)
 *
 * A device may have load from elsewhere, from given times on: its operators then take longer by a
 * factor; by another one its link is slower and the latency of copies longer. A command that is
 * under way goes on at the new speed.
 *
 * Pure: time is an argument in microseconds, never read from a clock; advance
 * steps from event to event, so results do not depend on how often it is
 * called, as long as the CPU's share stays the same. Not thread-safe; the
 * owner locks. */
#ifndef ATS_COST_TIMELINE_H
#define ATS_COST_TIMELINE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct ats_timeline_link {
    double h2d_gbps;
    double d2h_gbps;
    int copy_engines; /* 1: for both directions; 2: one per direction */
};

/* What a device has done until now; differences between two moments are those of a phase. */
struct ats_timeline_totals {
    double compute_us; /* compute engine in use by operators */
    double copy_us[2]; /* transfers under way: to the device, to the host */
    double link_us;    /* either */
    double both_us;    /* compute engine in use, and transfers under way */
    double bytes[2];   /* moved over the link */
    uint64_t copies[2];
    uint64_t launches;
};

enum ats_timeline_direction { ATS_TO_DEVICE = 0, ATS_TO_HOST = 1 };

struct ats_timeline_copy {
    enum ats_timeline_direction direction;
    double bytes;
    double latency_us; /* before the first byte, with the engine taken */
    double max_gbps;   /* own limit, such as pageable memory's; 0: none */
    bool kernel;       /* done by the compute engine */
};

/* A point in a stream's order: its first `sequence` commands. Stream 0 does not
 * exist: a zero ticket is done. */
struct ats_ticket {
    uint32_t stream;
    uint64_t sequence;
};

/* Told of commands that end: since when one computed or copied, or for a wait since when the stream
 * was held, and until when. `ended` must not call the timeline. */
struct ats_timeline_observer {
    void (*ended)(void *data, uint64_t tag, double begin_us, double end_us);
    void *data;
};

struct ats_timeline;

/* NULL if memory is out. `start_us` is the time to begin with. */
struct ats_timeline *ats_timeline_new(double start_us, double dram_limit_gbps);
void ats_timeline_free(struct ats_timeline *timeline);

/* The limit of the machine that the devices are in; from now on. */
void ats_timeline_set_dram_limit(struct ats_timeline *timeline, double dram_limit_gbps);

/* Adds a device and returns its index, -1 if memory is out. */
int ats_timeline_add_device(struct ats_timeline *timeline, const struct ats_timeline_link *link);

/* By which factors things take longer, 1 for not at all: from at_us after the device's first
 * command on; 0 is from now on, before the first command too. */
struct ats_timeline_load {
    double at_us;
    double compute; /* operators */
    double link;    /* what the link does, for copy engines and copy kernels, and their latency */
};

/* Replaces the load that the device is to have: `n` of them, at least one, in the order of their
 * times, copied. Before the first of them it has what it has now; one of the past counts at once.
 * False if memory is out; then nothing changes. */
bool ats_timeline_set_loads(struct ats_timeline *timeline, int device,
                            const struct ats_timeline_load *loads, size_t n);

/* What the device has now; at_us is that of its first. */
struct ats_timeline_load ats_timeline_load(const struct ats_timeline *timeline, int device);

/* A new stream of a device, 0 if memory is out. Closing drops what it holds;
 * tickets of a closed stream are done. */
uint32_t ats_timeline_open(struct ats_timeline *timeline, int device);
void ats_timeline_close(struct ats_timeline *timeline, uint32_t stream);

/* Sets who is told of the stream's commands, and what commands appended from now on are called; 0:
 * nobody is told of them. Ended waits that held up nothing are told of too. */
void ats_timeline_observe(struct ats_timeline *timeline, uint32_t stream,
                          struct ats_timeline_observer observer);
void ats_timeline_tag(struct ats_timeline *timeline, uint32_t stream, uint64_t tag);

/* Append a command to a stream at the current time; its ticket, or a zero one
 * if memory is out. A wait holds the stream until `ticket` is done. */
struct ats_ticket ats_timeline_compute(struct ats_timeline *timeline, uint32_t stream,
                                       double duration_us, unsigned launches);
struct ats_ticket ats_timeline_copy(struct ats_timeline *timeline, uint32_t stream,
                                    const struct ats_timeline_copy *copy);
struct ats_ticket ats_timeline_wait(struct ats_timeline *timeline, uint32_t stream,
                                    struct ats_ticket ticket);

/* All that the stream has been given until now. */
struct ats_ticket ats_timeline_record(const struct ats_timeline *timeline, uint32_t stream);

/* Moves on to `now_us` (earlier times do nothing) with the CPU taking
 * `cpu_gbps` of host memory's bandwidth since the time before. */
void ats_timeline_advance(struct ats_timeline *timeline, double now_us, double cpu_gbps);

double ats_timeline_now(const struct ats_timeline *timeline);

/* Whether a ticket is done; if so, and if `at_us` is not NULL, since when (the
 * current time if that is so long ago that it is forgotten). */
bool ats_timeline_done(const struct ats_timeline *timeline, struct ats_ticket ticket,
                       double *at_us);

/* The bytes that the copy with this ticket has moved; negative before it begins, infinity once it
 * is over. */
double ats_timeline_moved(const struct ats_timeline *timeline, struct ats_ticket ticket);

/* When the next command ends, or a load changes how fast one runs, if the CPU takes `cpu_gbps`;
 * infinity if none is under way. */
double ats_timeline_next_us(const struct ats_timeline *timeline, double cpu_gbps);

/* The last command of some stream of `device` that holds one; a zero ticket if none does. */
struct ats_ticket ats_timeline_last(const struct ats_timeline *timeline, int device);

/* Whether a copy is under way. */
bool ats_timeline_copying(const struct ats_timeline *timeline);

/* Whether any stream (of `device`, or of all if it is negative) holds a command. */
bool ats_timeline_busy(const struct ats_timeline *timeline, int device);

/* The time for which any stream held a command. */
double ats_timeline_busy_us(const struct ats_timeline *timeline);

struct ats_timeline_totals ats_timeline_totals(const struct ats_timeline *timeline, int device);

#endif
