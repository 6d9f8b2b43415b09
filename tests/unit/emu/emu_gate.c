#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "emu_gate.h"

static bool gate_callback(void *data)
{
    struct gate *gate = data;
    if (!gate->has_entered) {
        gate->has_entered = true;
        sem_post(&gate->entered);
        sem_wait(&gate->opened);
    }
    return gate->abort;
}

static void *gate_main(void *data)
{
    struct gate *gate = data;
    gate->status = ggml_backend_graph_compute_async(gate->stream, gate->graph);
    return NULL;
}

void close_gate(struct gate *gate, struct ats_emu_device *device)
{
    *gate = (struct gate){.stream = make_backend(device),
                          .event = ggml_backend_event_new(&device->dev)};
    gate->v.ctx = make_context();
    gate->v.tensor = ggml_new_tensor_1d(gate->v.ctx, GGML_TYPE_F32, 16);
    gate->graph = ggml_new_graph(gate->v.ctx);
    struct ggml_tensor *first = ggml_silu(gate->v.ctx, gate->v.tensor);
    ggml_build_forward_expand(gate->graph, ggml_silu(gate->v.ctx, first));
    gate->v.buffer = ggml_backend_alloc_ctx_tensors_from_buft(gate->v.ctx, &device->buft);
    assert_non_null(gate->v.buffer);
    ggml_backend_buffer_clear(gate->v.buffer, 0);
    sem_init(&gate->entered, 0, 0);
    sem_init(&gate->opened, 0, 0);
    ats_emu_set_abort_callback(gate->stream, gate_callback, gate);
    assert_int_equal(pthread_create(&gate->thread, NULL, gate_main, gate), 0);
    sem_wait(&gate->entered);
    ggml_backend_event_record(gate->event, gate->stream);
}

void open_gate(struct gate *gate)
{
    sem_post(&gate->opened);
    pthread_join(gate->thread, NULL);
}

void free_gate(struct gate *gate)
{
    ggml_backend_free(gate->stream);
    ggml_backend_event_free(gate->event);
    free_vector(&gate->v);
    sem_destroy(&gate->entered);
    sem_destroy(&gate->opened);
}
