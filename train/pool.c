#include "pool.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

struct worker {
    struct pool *pool;
    size_t number;
    pthread_t thread;
};

/* `lock` guards everything but `next`. A run is announced by a new `round`; it is over when no
 * worker is `busy` with it, which also makes their results visible to the caller. */
struct pool {
    pthread_mutex_t lock;
    pthread_cond_t announced;
    pthread_cond_t finished;
    size_t round;
    size_t busy;
    bool stops;
    pool_job *run;
    void *context;
    size_t n_jobs;
    atomic_size_t next;
    size_t n_threads; /* started, beside the caller */
    struct worker *workers;
};

static void take_jobs(struct pool *pool, size_t worker)
{
    size_t job;
    while ((job = atomic_fetch_add(&pool->next, 1)) < pool->n_jobs) {
        pool->run(pool->context, job, worker);
    }
}

static void *work(void *argument)
{
    const struct worker *self = argument;
    struct pool *pool = self->pool;
    size_t seen = 0;
    pthread_mutex_lock(&pool->lock);
    for (;;) {
        while (pool->round == seen && !pool->stops) {
            pthread_cond_wait(&pool->announced, &pool->lock);
        }
        if (pool->stops) {
            break;
        }
        seen = pool->round;
        pthread_mutex_unlock(&pool->lock);
        take_jobs(pool, self->number);
        pthread_mutex_lock(&pool->lock);
        pool->busy--;
        if (pool->busy == 0) {
            pthread_cond_signal(&pool->finished);
        }
    }
    pthread_mutex_unlock(&pool->lock);
    return NULL;
}

struct pool *pool_new(size_t workers, struct ats_error *err)
{
    struct pool *pool = calloc(1, sizeof *pool);
    if (pool == NULL || (pool->workers = calloc(workers, sizeof *pool->workers)) == NULL) {
        free(pool);
        ats_fail(err, "out of memory for %zu threads", workers);
        return NULL;
    }
    pthread_mutex_init(&pool->lock, NULL);
    pthread_cond_init(&pool->announced, NULL);
    pthread_cond_init(&pool->finished, NULL);
    for (size_t i = 1; i < workers; i++) {
        struct worker *worker = &pool->workers[i];
        *worker = (struct worker){.pool = pool, .number = i};
        const int failed = pthread_create(&worker->thread, NULL, work, worker);
        if (failed != 0) {
            ats_fail(err, "cannot start thread %zu of %zu: %s", i + 1, workers, strerror(failed));
            pool_free(pool);
            return NULL;
        }
        pool->n_threads++;
    }
    return pool;
}

size_t pool_workers(const struct pool *pool)
{
    return pool->n_threads + 1;
}

void pool_run(struct pool *pool, size_t n_jobs, pool_job *run, void *context)
{
    pthread_mutex_lock(&pool->lock);
    pool->run = run;
    pool->context = context;
    pool->n_jobs = n_jobs;
    atomic_store(&pool->next, 0);
    pool->busy = pool->n_threads;
    pool->round++;
    pthread_cond_broadcast(&pool->announced);
    pthread_mutex_unlock(&pool->lock);
    take_jobs(pool, 0);
    pthread_mutex_lock(&pool->lock);
    while (pool->busy > 0) {
        pthread_cond_wait(&pool->finished, &pool->lock);
    }
    pthread_mutex_unlock(&pool->lock);
}

void pool_free(struct pool *pool)
{
    if (pool == NULL) {
        return;
    }
    pthread_mutex_lock(&pool->lock);
    pool->stops = true;
    pthread_cond_broadcast(&pool->announced);
    pthread_mutex_unlock(&pool->lock);
    for (size_t i = 1; i <= pool->n_threads; i++) {
        pthread_join(pool->workers[i].thread, NULL);
    }
    pthread_cond_destroy(&pool->finished);
    pthread_cond_destroy(&pool->announced);
    pthread_mutex_destroy(&pool->lock);
    free(pool->workers);
    free(pool);
}
