/* Holds a stream of the emulated accelerator until a test lets it go on. Include it after
 * cmocka.h. */
#ifndef ATS_TESTS_EMU_GATE_H
#define ATS_TESTS_EMU_GATE_H

#include "emu_help.h"

#include <pthread.h>
#include <semaphore.h>

/* Holds a stream: an operator on another stream is kept from ending until the
 * gate opens, and the held stream waits for its event. */
struct gate {
    ggml_backend_t stream;
    ggml_backend_event_t event;
    struct vector v;
    struct ggml_cgraph *graph;
    sem_t entered;
    sem_t opened;
    bool has_entered;
    bool abort;
    enum ggml_status status;
    pthread_t thread;
};

/* Returns once the operator is under way. Then streams may be made to wait for gate->event. */
void close_gate(struct gate *gate, struct ats_emu_device *device);

/* Lets the operator end, and waits for the graph; gate->status has its result. */
void open_gate(struct gate *gate);

void free_gate(struct gate *gate);

#endif
