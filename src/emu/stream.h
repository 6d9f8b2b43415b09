/* A stream: a queue of commands and the thread that executes them in order.
 *
 * Any thread may submit; commands execute in the order of submission. The
 * queue thread owns a command once it is submitted and frees it after
 * execution. Waiting is by sequence number: the Nth submitted command is done
 * when `executed` >= N.
 *
 * A ticket marks a point in a stream's order. It is submitted as a RECORD
 * command before anybody can wait for it, so waiting never forms a cycle. */
#ifndef ATS_EMU_STREAM_H
#define ATS_EMU_STREAM_H

#include "base/rng.h"
#include "emu/compute.h"
#include "emu/device.h"
#include "emu/emu.h"

struct ats_emu_ticket; /* reference-counted */

enum ats_emu_command_kind {
    ATS_EMU_COMMAND_COPY,
    ATS_EMU_COMMAND_COMPUTE,
    ATS_EMU_COMMAND_RECORD,
    ATS_EMU_COMMAND_WAIT,
};

/* n_copies rows of `size` bytes. Addresses are ones that the emulator can
 * dereference: shadow, pinned, staged, or the caller's while it waits. */
struct ats_emu_copy {
    uint8_t *dst;
    const uint8_t *src;
    size_t size;
    size_t n_copies;
    size_t dst_stride;
    size_t src_stride;
    bool to_host;                /* a failed copy then delivers poison */
    struct ats_emu_stream *peer; /* the stream that gets to know of a failure too, or NULL */
};

struct ats_emu_compute {
    struct ats_emu_graph *graph;
    int n_threads; /* 0: the CPU backend's default */
    ggml_abort_callback abort_callback;
    void *abort_data;
    enum ggml_status *status; /* where to put the result for a caller that waits, or NULL */
};

struct ats_emu_command {
    struct ats_emu_command *next;
    enum ats_emu_command_kind kind;
    uint64_t tag;  /* for the observer; 0: none */
    void *staging; /* what a copy reads, if it was staged; freed with the command */
    union {
        struct ats_emu_copy copy;
        struct ats_emu_compute compute;
        struct ats_emu_ticket *ticket;
    };
};

struct ats_emu_stream {
    struct ats_emu_device *device;
    struct ats_emu_stream *next; /* in the device's list, under streams_lock */
    unsigned number;
    pthread_t thread;
    struct ats_emu_fault fault;

    /* `lock` guards the queue; `work` says that it grew, `done` that a command was executed */
    pthread_mutex_t lock;
    pthread_cond_t work;
    pthread_cond_t done;
    struct ats_emu_command *head;
    struct ats_emu_command **tail;
    uint64_t submitted;
    uint64_t executed;
    unsigned n_waiting;
    bool stop;
    uint64_t tag;          /* of commands to come; of the thread that gives them */
    ats_emu_ended_t ended; /* set before commands have tags, constant afterwards */
    void *ended_data;

    /* `settings_lock` guards what later computes are to use, and the cloner */
    pthread_mutex_t settings_lock;
    int n_threads;
    ggml_abort_callback abort_callback;
    void *abort_data;
    struct ats_emu_cloner cloner;

    /* of the queue thread alone */
    struct ats_rng rng;
    struct ats_emu_engine engine;
};

/* Starts the thread and links the stream into the device; NULL on failure. */
struct ats_emu_stream *ats_emu_stream_create(struct ats_emu_device *device, struct ats_error *err);

/* Executes what is queued, ends the thread, unlinks and frees. */
void ats_emu_stream_destroy(struct ats_emu_stream *stream);

/* Appends a copy of `command` (whose staging, graph or ticket reference it
 * takes over) and returns its sequence number; 0 if there is no host memory,
 * which the stream's fault then tells. */
uint64_t ats_emu_stream_submit(struct ats_emu_stream *stream, struct ats_emu_command *command);

/* Waits until the command of that number, or all that are submitted now, is done. */
void ats_emu_stream_wait(struct ats_emu_stream *stream, uint64_t number);
void ats_emu_stream_synchronize(struct ats_emu_stream *stream);

/* Whether copies and graphs are skipped: an error is latched or the device is lost. */
bool ats_emu_stream_failed(struct ats_emu_stream *stream);

/* Marks the point after all that is submitted now; NULL if out of host memory.
 * The caller gets a reference. */
struct ats_emu_ticket *ats_emu_stream_record(struct ats_emu_stream *stream);

/* Makes later commands of `stream` wait for the ticket. */
void ats_emu_stream_wait_ticket(struct ats_emu_stream *stream, struct ats_emu_ticket *ticket);

struct ats_emu_ticket *ats_emu_ticket_ref(struct ats_emu_ticket *ticket);
void ats_emu_ticket_unref(struct ats_emu_ticket *ticket); /* NULL is fine */
void ats_emu_ticket_wait(struct ats_emu_ticket *ticket);  /* the calling thread waits */

#endif
