#include "emu/stream.h"

#include "emu/clock.h"

#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* ---- tickets ---- */

struct ats_emu_ticket {
    atomic_int references;
    pthread_mutex_t lock;
    pthread_cond_t passed;
    bool done; /* under lock */
};

static struct ats_emu_ticket *ticket_new(void)
{
    struct ats_emu_ticket *ticket = calloc(1, sizeof(*ticket));
    if (ticket != NULL) {
        atomic_init(&ticket->references, 1);
        pthread_mutex_init(&ticket->lock, NULL);
        pthread_cond_init(&ticket->passed, NULL);
    }
    return ticket;
}

struct ats_emu_ticket *ats_emu_ticket_ref(struct ats_emu_ticket *ticket)
{
    atomic_fetch_add_explicit(&ticket->references, 1, memory_order_relaxed);
    return ticket;
}

void ats_emu_ticket_unref(struct ats_emu_ticket *ticket)
{
    if (ticket == NULL ||
        atomic_fetch_sub_explicit(&ticket->references, 1, memory_order_acq_rel) > 1) {
        return;
    }
    pthread_mutex_destroy(&ticket->lock);
    pthread_cond_destroy(&ticket->passed);
    free(ticket);
}

static void ticket_pass(struct ats_emu_ticket *ticket)
{
    pthread_mutex_lock(&ticket->lock);
    ticket->done = true;
    pthread_cond_broadcast(&ticket->passed);
    pthread_mutex_unlock(&ticket->lock);
}

void ats_emu_ticket_wait(struct ats_emu_ticket *ticket)
{
    pthread_mutex_lock(&ticket->lock);
    while (!ticket->done) {
        pthread_cond_wait(&ticket->passed, &ticket->lock);
    }
    pthread_mutex_unlock(&ticket->lock);
}

/* ---- execution, on the queue thread ---- */

/* Shifts this stream against the host and the others, so that a missing wait shows. */
static void pause_randomly(struct ats_emu_stream *stream)
{
    const uint32_t max_us = stream->device->profile.max_delay_us;
    if (max_us == 0 || atomic_load(&stream->device->lost)) {
        return;
    }
    const uint64_t choice = ats_rng_below(&stream->rng, 4);
    const uint64_t delay_us = ats_rng_below(&stream->rng, (uint64_t)max_us + 1);
    if (choice == 0) {
        return;
    }
    if (choice == 1) {
        sched_yield();
        return;
    }
    const struct timespec delay = {.tv_sec = (time_t)(delay_us / 1000000),
                                   .tv_nsec = (long)(delay_us % 1000000) * 1000};
    nanosleep(&delay, NULL);
}

bool ats_emu_stream_failed(struct ats_emu_stream *stream)
{
    const struct ats_emu_device *device = stream->device;
    return atomic_load(&device->lost) || atomic_load(&device->fault.latched) ||
           atomic_load(&stream->fault.latched);
}

static void execute_copy(struct ats_emu_stream *stream, const struct ats_emu_copy *copy)
{
    const bool go = !ats_emu_stream_failed(stream) &&
                    ats_emu_device_admit(stream->device, ATS_EMU_OP_COPY, &stream->fault);
    for (size_t i = 0; i < copy->n_copies; i++) {
        uint8_t *dst = copy->dst + i * copy->dst_stride;
        if (go) {
            memmove(dst, copy->src + i * copy->src_stride, copy->size);
        } else if (copy->to_host) {
            memset(dst, ATS_EMU_POISON, copy->size);
        }
    }
    if (!go && copy->peer != NULL) {
        char text[160];
        snprintf(text, sizeof(text), "%s: a copy from %s did not arrive", copy->peer->device->name,
                 stream->device->name);
        ats_emu_fault_latch(&copy->peer->fault, text);
    }
}

struct abort_question {
    const struct ats_emu_device *device;
    const struct ats_emu_compute *compute;
};

/* Asked by the CPU backend after each node. */
static bool should_abort(void *data)
{
    const struct abort_question *question = data;
    const struct ats_emu_compute *compute = question->compute;
    return atomic_load(&question->device->lost) ||
           (compute->abort_callback != NULL && compute->abort_callback(compute->abort_data));
}

static enum ggml_status compute_status(struct ats_emu_stream *stream,
                                       const struct ats_emu_compute *compute)
{
    struct ats_emu_device *device = stream->device;
    if (ats_emu_stream_failed(stream) ||
        !ats_emu_device_admit(device, ATS_EMU_OP_COMPUTE, &stream->fault)) {
        return GGML_STATUS_FAILED;
    }
    struct abort_question question = {device, compute};
    const enum ggml_status status = ats_emu_engine_compute(
        &stream->engine, compute->graph, compute->n_threads, should_abort, &question);
    if (status == GGML_STATUS_SUCCESS ||
        (status == GGML_STATUS_ABORTED && compute->status != NULL && !atomic_load(&device->lost))) {
        return status;
    }
    char text[160];
    snprintf(text, sizeof(text), "%s: computing a graph ended with status '%s'", device->name,
             ggml_status_to_string(status));
    ats_emu_fault_latch(&stream->fault, text);
    return GGML_STATUS_FAILED;
}

static void execute_compute(struct ats_emu_stream *stream, const struct ats_emu_compute *compute)
{
    const enum ggml_status status = compute_status(stream, compute);
    if (compute->status != NULL) {
        *compute->status = status;
    }
    ats_emu_clone_release(&stream->cloner, compute->graph);
}

static void execute(struct ats_emu_stream *stream, struct ats_emu_command *command)
{
    pause_randomly(stream);
    const double begin_us = command->tag != 0 ? ats_emu_clock_us() : 0;
    switch (command->kind) {
    case ATS_EMU_COMMAND_COPY:
        execute_copy(stream, &command->copy);
        break;
    case ATS_EMU_COMMAND_COMPUTE:
        execute_compute(stream, &command->compute);
        break;
    case ATS_EMU_COMMAND_RECORD:
        ticket_pass(command->ticket);
        ats_emu_ticket_unref(command->ticket);
        break;
    case ATS_EMU_COMMAND_WAIT:
        ats_emu_ticket_wait(command->ticket);
        ats_emu_ticket_unref(command->ticket);
        break;
    }
    if (command->tag != 0) {
        stream->ended(stream->ended_data, command->tag, begin_us, ats_emu_clock_us());
    }
}

/* The next command, or NULL when the stream is to end and the queue is empty. */
static struct ats_emu_command *next_command(struct ats_emu_stream *stream)
{
    pthread_mutex_lock(&stream->lock);
    while (stream->head == NULL && !stream->stop) {
        pthread_cond_wait(&stream->work, &stream->lock);
    }
    struct ats_emu_command *command = stream->head;
    if (command != NULL) {
        stream->head = command->next;
        if (stream->head == NULL) {
            stream->tail = &stream->head;
        }
    }
    pthread_mutex_unlock(&stream->lock);
    return command;
}

static void *stream_main(void *argument)
{
    struct ats_emu_stream *stream = argument;
    struct ats_emu_command *command;
    while ((command = next_command(stream)) != NULL) {
        execute(stream, command);
        free(command->staging);
        free(command);
        pthread_mutex_lock(&stream->lock);
        stream->executed++;
        if (stream->n_waiting > 0) {
            pthread_cond_broadcast(&stream->done);
        }
        pthread_mutex_unlock(&stream->lock);
    }
    return NULL;
}

/* ---- submission and waiting, on any thread ---- */

static void release_command(struct ats_emu_stream *stream, const struct ats_emu_command *command)
{
    switch (command->kind) {
    case ATS_EMU_COMMAND_COPY:
        free(command->staging);
        break;
    case ATS_EMU_COMMAND_COMPUTE:
        ats_emu_clone_release(&stream->cloner, command->compute.graph);
        break;
    case ATS_EMU_COMMAND_RECORD:
    case ATS_EMU_COMMAND_WAIT:
        ats_emu_ticket_unref(command->ticket);
        break;
    }
}

uint64_t ats_emu_stream_submit(struct ats_emu_stream *stream, struct ats_emu_command *command)
{
    struct ats_emu_command *queued = malloc(sizeof(*queued));
    if (queued == NULL) {
        release_command(stream, command);
        ats_emu_fault_latch(&stream->fault, "out of host memory for a command");
        return 0;
    }
    *queued = *command;
    queued->next = NULL;
    pthread_mutex_lock(&stream->lock);
    /* a record is over before it could be told of: whoever waits for it sees all before it told */
    queued->tag = command->kind == ATS_EMU_COMMAND_RECORD ? 0 : stream->tag;
    *stream->tail = queued;
    stream->tail = &queued->next;
    const uint64_t number = ++stream->submitted;
    pthread_cond_signal(&stream->work);
    pthread_mutex_unlock(&stream->lock);
    return number;
}

static void wait_locked(struct ats_emu_stream *stream, uint64_t number)
{
    stream->n_waiting++;
    while (stream->executed < number) {
        pthread_cond_wait(&stream->done, &stream->lock);
    }
    stream->n_waiting--;
}

void ats_emu_stream_wait(struct ats_emu_stream *stream, uint64_t number)
{
    pthread_mutex_lock(&stream->lock);
    wait_locked(stream, number);
    pthread_mutex_unlock(&stream->lock);
}

void ats_emu_stream_synchronize(struct ats_emu_stream *stream)
{
    pthread_mutex_lock(&stream->lock);
    wait_locked(stream, stream->submitted);
    pthread_mutex_unlock(&stream->lock);
}

struct ats_emu_ticket *ats_emu_stream_record(struct ats_emu_stream *stream)
{
    struct ats_emu_ticket *ticket = ticket_new();
    if (ticket == NULL) {
        return NULL;
    }
    struct ats_emu_command command = {.kind = ATS_EMU_COMMAND_RECORD,
                                      .ticket = ats_emu_ticket_ref(ticket)};
    if (ats_emu_stream_submit(stream, &command) == 0) {
        ats_emu_ticket_unref(ticket);
        return NULL;
    }
    return ticket;
}

void ats_emu_stream_wait_ticket(struct ats_emu_stream *stream, struct ats_emu_ticket *ticket)
{
    struct ats_emu_command command = {.kind = ATS_EMU_COMMAND_WAIT,
                                      .ticket = ats_emu_ticket_ref(ticket)};
    ats_emu_stream_submit(stream, &command);
}

/* ---- life ---- */

static void init_fields(struct ats_emu_stream *stream, struct ats_emu_device *device,
                        unsigned number)
{
    stream->device = device;
    stream->number = number;
    stream->tail = &stream->head;
    /* by device and creation order, so that a seed means the same schedule of pauses every time */
    stream->rng.state = device->profile.seed;
    stream->rng.state = ats_rng_next(&stream->rng) ^ ((uint64_t)device->index << 32 | number);
    ats_emu_fault_init(&stream->fault);
    pthread_mutex_init(&stream->lock, NULL);
    pthread_cond_init(&stream->work, NULL);
    pthread_cond_init(&stream->done, NULL);
    pthread_mutex_init(&stream->settings_lock, NULL);
    ats_emu_cloner_init(&stream->cloner);
}

static void free_fields(struct ats_emu_stream *stream)
{
    ats_emu_engine_destroy(&stream->engine);
    ats_emu_cloner_destroy(&stream->cloner);
    pthread_mutex_destroy(&stream->settings_lock);
    pthread_cond_destroy(&stream->done);
    pthread_cond_destroy(&stream->work);
    pthread_mutex_destroy(&stream->lock);
    ats_emu_fault_destroy(&stream->fault);
    free(stream);
}

struct ats_emu_stream *ats_emu_stream_create(struct ats_emu_device *device, struct ats_error *err)
{
    struct ats_emu_stream *stream = calloc(1, sizeof(*stream));
    if (stream == NULL) {
        ats_fail(err, "out of host memory for a stream of %s", device->name);
        return NULL;
    }
    pthread_mutex_lock(&device->streams_lock);
    const unsigned number = device->n_streams_created++;
    pthread_mutex_unlock(&device->streams_lock);
    init_fields(stream, device, number);
    if (!ats_emu_engine_init(&stream->engine, err)) {
        free_fields(stream);
        return NULL;
    }
    const int error = pthread_create(&stream->thread, NULL, stream_main, stream);
    if (error != 0) {
        ats_fail(err, "cannot start a thread for a stream of %s: %s", device->name,
                 strerror(error));
        free_fields(stream);
        return NULL;
    }
    char name[16]; /* the kernel's limit */
    snprintf(name, sizeof(name), "emu%u-stream%u", (unsigned)device->index % 100, number % 1000);
    pthread_setname_np(stream->thread, name);
    pthread_mutex_lock(&device->streams_lock);
    stream->next = device->streams;
    device->streams = stream;
    pthread_mutex_unlock(&device->streams_lock);
    return stream;
}

void ats_emu_stream_destroy(struct ats_emu_stream *stream)
{
    struct ats_emu_device *device = stream->device;
    pthread_mutex_lock(&stream->lock);
    stream->stop = true;
    pthread_cond_signal(&stream->work);
    pthread_mutex_unlock(&stream->lock);
    pthread_join(stream->thread, NULL);
    pthread_mutex_lock(&device->streams_lock);
    struct ats_emu_stream **link = &device->streams;
    while (*link != stream) {
        link = &(*link)->next;
    }
    *link = stream->next;
    pthread_mutex_unlock(&device->streams_lock);
    free_fields(stream);
}
