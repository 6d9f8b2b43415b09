/* A pool of threads that share out numbered jobs.
 *
 * Which thread runs which job is left to chance, so a job must write only what no other job of the
 * same run reads or writes. Whoever sums over jobs does it afterwards, in order: results then do
 * not depend on the number of threads. */
#ifndef ATS_TRAIN_POOL_H
#define ATS_TRAIN_POOL_H

#include "base/error.h"

#include <stddef.h>

struct pool;

/* Job number `job` of a run, on thread number `worker` (0 is the caller). */
typedef void pool_job(void *context, size_t job, size_t worker);

/* `workers` threads in all, 1 or more; the caller of pool_run is one of them. NULL with an error
 * if the system gives no threads. */
struct pool *pool_new(size_t workers, struct ats_error *err);

size_t pool_workers(const struct pool *pool);

/* Runs jobs 0 .. n_jobs - 1 and returns when all are done. One run at a time, from one thread. */
void pool_run(struct pool *pool, size_t n_jobs, pool_job *run, void *context);

/* NULL is allowed. */
void pool_free(struct pool *pool);

#endif
