#include "emu/compute.h"

ggml_backend_dev_t ats_emu_cpu_device(void)
{
    /* found once: it is asked for at every node, and ggml's list of devices has no lock */
    static _Atomic(ggml_backend_dev_t) found;
    ggml_backend_dev_t dev = atomic_load_explicit(&found, memory_order_acquire);
    if (dev == NULL) {
        dev = ggml_backend_dev_by_type(GGML_BACKEND_DEVICE_TYPE_CPU);
        atomic_store_explicit(&found, dev, memory_order_release);
    }
    return dev;
}

bool ats_emu_supports_op(const struct ggml_tensor *op)
{
    switch (op->op) {
    case GGML_OP_CUSTOM:
    case GGML_OP_MAP_CUSTOM1:
    case GGML_OP_MAP_CUSTOM2:
    case GGML_OP_MAP_CUSTOM3:
        return false; /* host functions, which no GPU can call */
    default: {
        ggml_backend_dev_t cpu = ats_emu_cpu_device();
        return cpu != NULL && ggml_backend_dev_supports_op(cpu, op);
    }
    }
}

bool ats_emu_engine_init(struct ats_emu_engine *engine, struct ats_error *err)
{
    *engine = (struct ats_emu_engine){0};
    ggml_backend_dev_t dev = ats_emu_cpu_device();
    if (dev == NULL) {
        return ats_fail(err, "the emulated accelerator computes with ggml's CPU backend, "
                             "which is not loaded");
    }
    engine->cpu = ggml_backend_dev_init(dev, NULL);
    if (engine->cpu == NULL) {
        return ats_fail(err, "ggml's CPU backend does not start");
    }
    ggml_backend_reg_t reg = ggml_backend_dev_backend_reg(dev);
    engine->set_n_threads = (ggml_backend_set_n_threads_t)ggml_backend_reg_get_proc_address(
        reg, "ggml_backend_set_n_threads");
    engine->set_abort_callback =
        (ggml_backend_set_abort_callback_t)ggml_backend_reg_get_proc_address(
            reg, "ggml_backend_set_abort_callback");
    return true;
}

void ats_emu_engine_destroy(struct ats_emu_engine *engine)
{
    if (engine->cpu != NULL) {
        ggml_backend_free(engine->cpu);
    }
}

enum ggml_status ats_emu_engine_compute(struct ats_emu_engine *engine, struct ats_emu_graph *graph,
                                        int n_threads, ggml_abort_callback abort_callback,
                                        void *abort_data)
{
    if (n_threads > 0 && n_threads != engine->n_threads && engine->set_n_threads != NULL) {
        engine->set_n_threads(engine->cpu, n_threads);
        engine->n_threads = n_threads;
    }
    if (engine->set_abort_callback != NULL) {
        engine->set_abort_callback(engine->cpu, abort_callback, abort_data);
    }
    return ggml_backend_graph_compute_async(engine->cpu, &graph->cgraph);
}
