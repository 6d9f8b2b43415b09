/* Streams of the emulated accelerator: events order them, and many run at once. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "emu_model.h"

#include <pthread.h>

/* Node after node on a random stream, each waiting for the one before by an event. */
static void test_events_order_streams(void **state)
{
    (void)state;
    enum { STREAMS = 3 };
    const uint64_t seed = first_seed();
    print_message("seed %llu\n", (unsigned long long)seed);
    struct ats_emu_device *device = make_device(64 * MIB, 300, 0);
    ggml_backend_t streams[STREAMS];
    for (int i = 0; i < STREAMS; i++) {
        streams[i] = make_backend(device);
    }
    ggml_backend_event_t event = ggml_backend_event_new(&device->dev);
    ggml_backend_event_wait(streams[0], event); /* never recorded: no wait */
    ggml_backend_event_synchronize(event);
    for (uint64_t i = 0; i < 8; i++) {
        struct ats_rng rng = {seed + i};
        struct model expected = cpu_reference(seed + i);
        struct model model = make_model(seed + i, &device->buft);
        for (int n = 0; n < model.graph->n_nodes;) {
            /* a fused pair stays together, as any real splitting has to see to */
            const bool pair = model.graph->nodes[n]->op == GGML_OP_RMS_NORM;
            struct ggml_cgraph part = graph_part(model.graph, n, n + (pair ? 2 : 1));
            ggml_backend_t stream = streams[ats_rng_below(&rng, STREAMS)];
            ggml_backend_event_wait(stream, event);
            assert_int_equal(ggml_backend_graph_compute_async(stream, &part), GGML_STATUS_SUCCESS);
            ggml_backend_event_record(event, stream);
            n += part.n_nodes;
        }
        ggml_backend_event_synchronize(event);
        assert_same_results(&expected, &model, seed + i);
        free_model(&model);
        free_model(&expected);
    }
    ggml_backend_event_free(event);
    for (int i = 0; i < STREAMS; i++) {
        ggml_backend_free(streams[i]);
    }
    ats_emu_device_destroy(device);
}

struct worker {
    struct ats_emu_device *device;
    uint64_t seed;
    pthread_t thread;
    bool same;
};

static void *worker_main(void *argument)
{
    struct worker *worker = argument;
    ggml_backend_t backend = make_backend(worker->device);
    for (uint64_t i = 0; i < 4; i++) {
        struct ats_rng rng = {worker->seed + i};
        struct model expected = cpu_reference(worker->seed + i);
        struct model model = make_model(worker->seed + i, &worker->device->buft);
        compute_in_parts(backend, &model, &rng);
        ggml_backend_synchronize(backend);
        assert_same_results(&expected, &model, worker->seed + i);
        free_model(&model);
        free_model(&expected);
    }
    ggml_backend_free(backend);
    worker->same = true;
    return NULL;
}

static void test_many_streams_at_once(void **state)
{
    (void)state;
    enum { WORKERS = 8 };
    const uint64_t seed = first_seed();
    struct ats_emu_device *devices[2] = {make_device(64 * MIB, 100, 0),
                                         make_device(64 * MIB, 0, 1)};
    struct worker workers[WORKERS];
    for (uint64_t i = 0; i < WORKERS; i++) {
        workers[i] = (struct worker){.device = devices[i % 2], .seed = seed + i * 1000};
        assert_int_equal(pthread_create(&workers[i].thread, NULL, worker_main, &workers[i]), 0);
    }
    for (int i = 0; i < WORKERS; i++) {
        pthread_join(workers[i].thread, NULL);
        assert_true(workers[i].same);
    }
    ats_emu_device_destroy(devices[0]);
    ats_emu_device_destroy(devices[1]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_events_order_streams),
        cmocka_unit_test(test_many_streams_at_once),
    };
    return cmocka_run_group_tests_name("emulated accelerator, streams", tests, load_ggml, NULL);
}
