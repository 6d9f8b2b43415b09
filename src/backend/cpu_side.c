#include "backend/cpu_side.h"

#include <string.h>

bool ats_backend_proc(ggml_backend_t backend, const char *name, void *function)
{
    ggml_backend_reg_t reg = ggml_backend_dev_backend_reg(backend->device);
    void *address = ggml_backend_reg_get_proc_address(reg, name);
    if (address == NULL) {
        return false;
    }
    /* POSIX lets a function's address travel as a void pointer; ISO C has no cast for it */
    memcpy(function, &address, sizeof(address));
    return true;
}

static bool has_feature(ggml_backend_t backend, const char *name)
{
    ggml_backend_get_features_t get_features;
    if (!ats_backend_proc(backend, "ggml_backend_get_features", &get_features)) {
        return false;
    }
    const struct ggml_backend_feature *feature =
        get_features(ggml_backend_dev_backend_reg(backend->device));
    while (feature->name != NULL && strcmp(feature->name, name) != 0) {
        feature++;
    }
    return feature->name != NULL;
}

bool ats_cpu_side_start(struct ats_cpu_side *side, ggml_backend_dev_t cpu)
{
    *side = (struct ats_cpu_side){.backend = ggml_backend_dev_init(cpu, NULL)};
    if (side->backend == NULL) {
        return false;
    }
    side->needs_pool = !has_feature(side->backend, "OPENMP");
    return true;
}

static void drop_pool(struct ats_cpu_side *side)
{
    void (*set_pool)(ggml_backend_t, ggml_threadpool_t);
    void (*free_pool)(ggml_threadpool_t);
    if (side->pool == NULL ||
        !ats_backend_proc(side->backend, "ggml_backend_cpu_set_threadpool", &set_pool) ||
        !ats_backend_proc(side->backend, "ggml_threadpool_free", &free_pool)) {
        return;
    }
    set_pool(side->backend, NULL);
    free_pool(side->pool);
    side->pool = NULL;
}

static void make_pool(struct ats_cpu_side *side, int n_threads)
{
    ggml_threadpool_t (*new_pool)(struct ggml_threadpool_params *);
    void (*set_pool)(ggml_backend_t, ggml_threadpool_t);
    if (!ats_backend_proc(side->backend, "ggml_threadpool_new", &new_pool) ||
        !ats_backend_proc(side->backend, "ggml_backend_cpu_set_threadpool", &set_pool)) {
        return;
    }
    struct ggml_threadpool_params params;
    ggml_threadpool_params_init(&params, n_threads);
    side->pool = new_pool(&params);
    side->pool_threads = n_threads;
    if (side->pool != NULL) {
        set_pool(side->backend, side->pool);
    }
}

void ats_cpu_side_set_n_threads(struct ats_cpu_side *side, int n_threads)
{
    ggml_backend_set_n_threads_t set_n_threads;
    side->n_threads = n_threads;
    if (ats_backend_proc(side->backend, "ggml_backend_set_n_threads", &set_n_threads)) {
        set_n_threads(side->backend, n_threads);
    }
    if (side->needs_pool && (side->pool == NULL || side->pool_threads != n_threads)) {
        drop_pool(side);
        make_pool(side, n_threads);
    }
}

void ats_cpu_side_stop(struct ats_cpu_side *side)
{
    drop_pool(side);
    ggml_backend_free(side->backend);
}
