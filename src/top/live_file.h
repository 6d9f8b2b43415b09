/* What a process that computes with ATS publishes for `ats top`: the layout of its file.
 *
 * The process (backend/live.h) has the file mapped and stores the figures of a device after each
 * pass; anyone who may read the file may look at any time. A write lock (fcntl) on the file, held
 * by the process from before the file has its name, tells that the process is there: it goes with
 * the process, however that ends, and with an exec; a process forked off does not have it.
 *
 * A device's figures are written under a sequence number, which is odd meanwhile. A reader reads
 * the file twice until it gets the same bytes with even numbers: then none is of another pass than
 * the rest.
 *
 * Numbers are in the machine's own byte order, as the file never leaves it. Any change of the
 * layout or of what a figure means raises the version; readers refuse others.
 *
 * Thread-safety: the functions are pure. */
#ifndef ATS_TOP_LIVE_FILE_H
#define ATS_TOP_LIVE_FILE_H

#include "base/error.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define ATS_LIVE_MAGIC "ats-live" /* 8 bytes, no zero */
#define ATS_LIVE_ENDING ".live"   /* of the files' names: PID-XXXXXX.live */
#define ATS_LIVE_UNBORN ".new"    /* of a file that is not locked yet */

enum {
    ATS_LIVE_VERSION = 1,
    ATS_LIVE_DEVICES = 16, /* published of a process; more are not */
    ATS_LIVE_PROGRAM = 64,
    ATS_LIVE_NAME = 16,
    ATS_LIVE_ACCELERATOR = 48,
    ATS_LIVE_FILE_NAME = 32, /* with its end, enough for any process number */
};

/* Those without a remark are of struct ats_device_counters (backend/device.h). Nanoseconds are of
 * CLOCK_MONOTONIC. */
enum ats_live_figure {
    ATS_LIVE_UPDATED_NS, /* when these were written */
    ATS_LIVE_BUSY_NS,    /* in which a pass ran, of any context, up to the end of the latest... */
    ATS_LIVE_BUSY_SINCE_NS, /* ...and on from then, if a pass runs; 0: none does */
    ATS_LIVE_EMULATED,      /* 1: the accelerator is emulated, so its speed says nothing */
    ATS_LIVE_CONTEXTS,      /* that are there now */
    ATS_LIVE_BUDGET_BYTES,  /* of VRAM */
    ATS_LIVE_USED_BYTES,    /* of it: weights, state, compute and staging memory */
    ATS_LIVE_WEIGHTS_VRAM_BYTES,
    ATS_LIVE_WEIGHTS_HOST_BYTES,
    ATS_LIVE_STATE_VRAM_BYTES, /* KV cache, recurrent state */
    ATS_LIVE_STATE_HOST_BYTES,
    ATS_LIVE_GRAPHS,
    ATS_LIVE_PLANS_BUILT,
    ATS_LIVE_SPLITS,
    ATS_LIVE_LAST_SPLITS,
    ATS_LIVE_TO_ACCEL_BYTES,
    ATS_LIVE_TO_HOST_BYTES,
    ATS_LIVE_PROMOTED_BYTES,
    ATS_LIVE_EXPERT_HITS,
    ATS_LIVE_EXPERT_MISSES,
    ATS_LIVE_EXPERT_BYTES,
    ATS_LIVE_PROMPT_TOKENS,
    ATS_LIVE_PROMPT_NS,
    ATS_LIVE_ANSWER_TOKENS,
    ATS_LIVE_ANSWER_NS,
    ATS_LIVE_CPU_NS,
    ATS_LIVE_ACCEL_NS,
    ATS_LIVE_STALLED_NS,
    ATS_LIVE_REPLANS,
    ATS_LIVE_ROLLBACKS,
    ATS_LIVE_REPLAN_NS,
    ATS_LIVE_REPLAN_REASON, /* enum ats_watch_reason */
    ATS_LIVE_FIGURES,
};

struct ats_live_file_device {
    char name[ATS_LIVE_NAME]; /* zero-terminated, as all text */
    char accelerator[ATS_LIVE_ACCELERATOR];
    _Atomic uint64_t sequence;
    _Atomic uint64_t figures[ATS_LIVE_FIGURES];
};

struct ats_live_file_header {
    char magic[8];
    uint32_t version;
    uint32_t header_bytes; /* size of this struct */
    uint32_t device_bytes; /* size of each of those that follow */
    uint32_t n_devices;    /* 1 to ATS_LIVE_DEVICES */
    int64_t pid;           /* as the process itself sees it */
    int64_t started_s;     /* Unix time at which it began to publish */
    char program[ATS_LIVE_PROGRAM];
};

/* The file: the header and its devices, nothing behind. */
struct ats_live_file {
    struct ats_live_file_header header;
    struct ats_live_file_device devices[ATS_LIVE_DEVICES];
};

/* Bytes of a file with so many devices. */
static inline size_t ats_live_file_bytes(size_t n_devices)
{
    return sizeof(struct ats_live_file_header) + n_devices * sizeof(struct ats_live_file_device);
}

enum { ATS_LIVE_MOST_BYTES = sizeof(struct ats_live_file) };

/* The same as plain values. */
struct ats_live_device {
    char name[ATS_LIVE_NAME];
    char accelerator[ATS_LIVE_ACCELERATOR];
    uint64_t figures[ATS_LIVE_FIGURES];
};

struct ats_live_process {
    int64_t pid;
    int64_t started_s;
    char program[ATS_LIVE_PROGRAM];
    char file[ATS_LIVE_FILE_NAME]; /* name of its file, by which it is told from others: for the
                                      reader to set */
    uint32_t n_devices;
    struct ats_live_device devices[ATS_LIVE_DEVICES];
    bool settled; /* all figures of a device are of one pass, else some may be a pass older: for the
                     reader to set */
};

/* Takes the content of a file apart. Text comes out printable, whatever it was. False with what is
 * wrong: `bytes` are not such a file, or of another version. */
bool ats_live_parse(const void *bytes, size_t n, struct ats_live_process *process,
                    struct ats_error *err);

/* Whether two readings in a row of a valid file, of n bytes each, prove that no figure was written
 * in between: see above. */
bool ats_live_is_settled(const void *first, const void *second, size_t n);

#endif
