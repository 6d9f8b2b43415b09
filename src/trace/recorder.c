#include "trace/recorder.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

struct chunk {
    struct chunk *next; /* in the list that it is in; under the lock */
    uint64_t serial;    /* order in which chunks were begun; under the lock */
    atomic_uint n;      /* written by the thread that fills it, released with the record */
    struct ats_trace_record records[ATS_TRACE_CHUNK_RECORDS];
};

/* Guarded by `lock`, but for `chunks` and what follows it, which are constant between start and
 * stop. */
static struct {
    pthread_mutex_t lock;
    struct chunk *full; /* oldest first */
    struct chunk **full_tail;
    uint64_t next_serial;
    uint64_t dropped;
    bool is_incomplete;
    struct ats_trace_lane lanes[ATS_TRACE_MAX_LANES];
    size_t n_lanes;

    size_t n_begun; /* chunks behind these have never been used, and their pages not touched */

    struct chunk *chunks;
    size_t n_chunks;
    bool with_operands;
    unsigned generation; /* of the recorder: a thread's chunk of an earlier one is gone */
} state = {.lock = PTHREAD_MUTEX_INITIALIZER, .full_tail = &state.full};

static _Thread_local struct {
    struct chunk *chunk;
    unsigned generation;
} mine;

/* Gives a thread's chunk back when the thread ends. */
static pthread_key_t at_thread_end;
static pthread_once_t key_made = PTHREAD_ONCE_INIT;

uint64_t ats_trace_now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec;
}

void ats_trace_free(struct ats_trace *trace)
{
    free(trace->records);
    *trace = (struct ats_trace){0};
}

/* ---- chunks; under the lock ---- */

static void put_full(struct chunk *chunk)
{
    chunk->next = NULL;
    *state.full_tail = chunk;
    state.full_tail = &chunk->next;
}

static struct chunk *take_oldest(void)
{
    struct chunk *chunk = state.full;
    if (chunk != NULL) {
        state.full = chunk->next;
        if (state.full == NULL) {
            state.full_tail = &state.full;
        }
        state.dropped += atomic_load_explicit(&chunk->n, memory_order_relaxed);
    }
    return chunk;
}

/* NULL: every chunk is being filled by some thread. */
static struct chunk *take(void)
{
    struct chunk *chunk =
        state.n_begun < state.n_chunks ? &state.chunks[state.n_begun++] : take_oldest();
    if (chunk != NULL) {
        chunk->serial = state.next_serial++;
        atomic_store_explicit(&chunk->n, 0, memory_order_relaxed);
    }
    return chunk;
}

/* ---- threads ---- */

static void leave(void *unused)
{
    (void)unused;
    pthread_mutex_lock(&state.lock);
    if (mine.chunk != NULL && mine.generation == state.generation && state.chunks != NULL) {
        put_full(mine.chunk);
    }
    mine.chunk = NULL;
    pthread_mutex_unlock(&state.lock);
}

static void make_key(void)
{
    (void)pthread_key_create(&at_thread_end, leave);
}

/* A chunk with room for a record of the calling thread, or NULL. */
static struct chunk *next_chunk(void)
{
    pthread_mutex_lock(&state.lock);
    if (mine.generation != state.generation) {
        mine.chunk = NULL;
        mine.generation = state.generation;
    }
    if (mine.chunk != NULL) {
        put_full(mine.chunk);
    }
    mine.chunk = state.chunks != NULL ? take() : NULL;
    if (mine.chunk == NULL) {
        state.dropped++;
    }
    pthread_mutex_unlock(&state.lock);
    /* any value but NULL: then `leave` is called */
    (void)pthread_setspecific(at_thread_end, &mine);
    return mine.chunk;
}

void ats_trace_add(const struct ats_trace_record *record)
{
    struct chunk *chunk = mine.chunk;
    unsigned n = 0;
    if (chunk != NULL && mine.generation == state.generation) {
        n = atomic_load_explicit(&chunk->n, memory_order_relaxed);
    } else {
        chunk = NULL;
    }
    if (chunk == NULL || n == ATS_TRACE_CHUNK_RECORDS) {
        chunk = next_chunk();
        n = 0;
    }
    if (chunk != NULL) {
        chunk->records[n] = *record;
        atomic_store_explicit(&chunk->n, n + 1, memory_order_release);
    }
}

/* ---- life ---- */

bool ats_trace_start(size_t bytes, bool with_operands, struct ats_error *err)
{
    pthread_once(&key_made, make_key);
    const size_t size = bytes < ATS_TRACE_LEAST_BYTES ? ATS_TRACE_LEAST_BYTES : bytes;
    const size_t n = size / sizeof(struct chunk);
    void *memory = mmap(NULL, n * sizeof(struct chunk), PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED) {
        return ats_fail(err, "no memory for recording (%zu bytes); ATS_TRACE_MEMORY asks for less",
                        size);
    }
    /* a fault per 2 MiB instead of 4 KiB takes less of the time that is recorded; if refused, it
     * takes more */
    (void)madvise(memory, n * sizeof(struct chunk), MADV_HUGEPAGE);
    pthread_mutex_lock(&state.lock);
    state.chunks = memory;
    state.n_chunks = n;
    state.with_operands = with_operands;
    state.generation++;
    state.full = NULL;
    state.full_tail = &state.full;
    state.dropped = 0;
    state.n_lanes = 0;
    state.is_incomplete = false;
    state.n_begun = 0;
    state.next_serial = 0;
    pthread_mutex_unlock(&state.lock);
    return true;
}

void ats_trace_stop(void)
{
    pthread_mutex_lock(&state.lock);
    if (state.chunks != NULL) {
        munmap(state.chunks, state.n_chunks * sizeof(struct chunk));
    }
    state.chunks = NULL;
    state.n_chunks = 0;
    state.n_begun = 0;
    state.full = NULL;
    state.full_tail = &state.full;
    state.generation++;
    pthread_mutex_unlock(&state.lock);
}

bool ats_trace_wants_operands(void)
{
    return state.with_operands;
}

int ats_trace_lane(const struct ats_trace_lane *lane)
{
    pthread_mutex_lock(&state.lock);
    size_t i = 0;
    while (i < state.n_lanes &&
           (state.lanes[i].context != lane->context || state.lanes[i].role != lane->role)) {
        i++;
    }
    if (i == ATS_TRACE_MAX_LANES) {
        state.is_incomplete = true;
    } else {
        state.lanes[i] = *lane;
        state.n_lanes += i == state.n_lanes;
    }
    pthread_mutex_unlock(&state.lock);
    return i == ATS_TRACE_MAX_LANES ? -1 : (int)i;
}

/* ---- reading ---- */

/* A record of a snapshot, by what it is sorted by: equal times keep the order of recording. */
struct key {
    uint64_t begin_ns;
    uint64_t order;
    const struct ats_trace_record *record;
};

static int by_time(const void *a, const void *b)
{
    const struct key *x = a;
    const struct key *y = b;
    if (x->begin_ns != y->begin_ns) {
        return x->begin_ns < y->begin_ns ? -1 : 1;
    }
    return (x->order > y->order) - (x->order < y->order);
}

/* All records that are complete now; returns how many. */
static size_t list_keys(struct key *keys)
{
    size_t n = 0;
    for (size_t c = 0; c < state.n_begun; c++) {
        const struct chunk *chunk = &state.chunks[c];
        const size_t held = atomic_load_explicit(&chunk->n, memory_order_acquire);
        for (size_t i = 0; i < held; i++) {
            const struct ats_trace_record *record = &chunk->records[i];
            keys[n + i] =
                (struct key){record->begin_ns, chunk->serial * ATS_TRACE_CHUNK_RECORDS + i, record};
        }
        n += held;
    }
    return n;
}

static bool copy_records(struct ats_trace *trace)
{
    const size_t most = state.n_begun * ATS_TRACE_CHUNK_RECORDS;
    struct key *keys = malloc((most + 1) * sizeof(*keys));
    trace->n_records = keys != NULL ? list_keys(keys) : 0;
    trace->records = malloc((trace->n_records + 1) * sizeof(*trace->records));
    const bool ok = keys != NULL && trace->records != NULL;
    if (ok) {
        qsort(keys, trace->n_records, sizeof(*keys), by_time);
        for (size_t i = 0; i < trace->n_records; i++) {
            trace->records[i] = *keys[i].record;
        }
    }
    free(keys);
    return ok;
}

bool ats_trace_snapshot(struct ats_trace *trace)
{
    pthread_mutex_lock(&state.lock);
    *trace = (struct ats_trace){
        .n_lanes = state.n_lanes,
        .dropped = state.dropped,
        .has_operands = state.with_operands,
        .is_incomplete = state.is_incomplete,
    };
    memcpy(trace->lanes, state.lanes, sizeof(state.lanes));
    const bool ok = copy_records(trace);
    pthread_mutex_unlock(&state.lock);
    if (!ok) {
        ats_trace_free(trace);
    }
    return ok;
}
