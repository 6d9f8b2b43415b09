#include "emu/clock.h"

#include "emu/cpu_time.h"

#include <math.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

/* How often a waiting thread looks: finer is better for the link's rate, each look costs about
 * 2 us of system calls. */
static const double LOOK_US = 30;

/* How often the CPU's share is estimated at most: asking takes about 1 us per thread. */
static const double MIN_SAMPLE_US = 25;

/* A sleep overshoots by 80 us, at times by 150, and by up to 1000 when the machine is busy
 * (measured on a virtual machine), and a virtual machine that slept runs for some tens of
 * milliseconds at half its speed, which would be the CPU side's loss. So only waits that are
 * longer than anything of one token's sleep, and up to a margin before the deadline. */
static const double SLEEP_FROM_US = 200000;
static const double SLEEP_MARGIN_US = 5000;
static const double MAX_SLEEP_US = 50000;

/* A copy up to this is over before it matters what else uses the memory. */
enum { SMALL_COPY_BYTES = 64 << 10 };

/* Waking the reader takes longer than reading so little. */
enum { READ_AT_ONCE_BYTES = 64 << 10 };

/* The reader looks this often at copies that do not proceed. */
static const double READER_NAP_US = 60;
static const double READER_LONG_NAP_US = 400;

enum {
    CHUNK_BYTES = 128 << 10, /* read without looking up; some 10 us */
    AHEAD_BYTES = 1 << 20,   /* read before a copy under way is there, so as not to be behind it */
    LINE_BYTES = 64,
};

struct job {
    struct job *next;
    struct ats_ticket copy;
    struct ats_emu_rows source;
    /* Written without the lock by whoever reads a piece, so that a thread that waits for it need
     * not let go of the lock for long: */
    _Atomic size_t read; /* bytes, of all rows in order */
    _Atomic bool reading;
};

/* Guarded by `lock`, but for what says otherwise. */
static struct {
    pthread_mutex_t lock;
    unsigned users;
    struct ats_timeline *timeline;
    double start_us;

    double cpu_gbps;
    double cpu_threads;
    struct ats_emu_cpu_time cpu_time;
    double sampled_us; /* when the CPU's share was last estimated */
    double sampled_cpu_us;
    double sampled_own_us;
    double share_gbps;
    double own_cpu_us; /* of calls, waits and reads that are over, without the reader thread */

    pthread_t reader;
    clockid_t reader_clock;
    pthread_cond_t work;
    struct job *jobs;
    _Atomic int pieces; /* being read; without the lock too */
    struct job **last_job;
    bool stop;
    _Atomic unsigned n_loads; /* how often a load was set; read without the lock too */

    struct ats_emu_clock_counters counters;
} state = {.lock = PTHREAD_MUTEX_INITIALIZER, .work = PTHREAD_COND_INITIALIZER};

/* What entering commands took too long since the thread's last wait. */
static _Thread_local double entered_late_us;
static _Thread_local double entered_read_us; /* since the call began; it counts already */

static double clock_us(clockid_t id)
{
    struct timespec time;
    clock_gettime(id, &time);
    return (double)time.tv_sec * 1e6 + (double)time.tv_nsec * 1e-3;
}

double ats_emu_clock_us(void)
{
    return clock_us(CLOCK_MONOTONIC);
}

static double thread_us(void)
{
    return clock_us(CLOCK_THREAD_CPUTIME_ID);
}

static double own_cpu_us(void)
{
    return state.own_cpu_us + clock_us(state.reader_clock);
}

/* ---- looking ---- */

static void sample_cpu(double now_us)
{
    const double interval = now_us - state.sampled_us;
    if (interval < MIN_SAMPLE_US) {
        return;
    }
    const double cpu_us = ats_emu_cpu_time_us(&state.cpu_time, now_us);
    const double own_us = own_cpu_us();
    const double busy_us = (cpu_us - state.sampled_cpu_us) - (own_us - state.sampled_own_us);
    const double fraction = fmin(fmax(busy_us / (interval * state.cpu_threads), 0), 1);
    state.share_gbps = fraction * state.cpu_gbps;
    state.sampled_us = now_us;
    state.sampled_cpu_us = cpu_us;
    state.sampled_own_us = own_us;
}

/* What the CPU takes of host memory matters to copies only, and asking takes longer than a small
 * one. */
static void look(double now_us, bool begins_copy)
{
    const bool copying = begins_copy || ats_timeline_copying(state.timeline);
    if (copying) {
        sample_cpu(now_us);
    }
    ats_timeline_advance(state.timeline, now_us, state.share_gbps);
    if (!copying && ats_timeline_copying(state.timeline)) {
        sample_cpu(now_us); /* one has begun that had to wait for its turn */
    }
}

void ats_emu_clock_look(size_t copy_bytes)
{
    pthread_mutex_lock(&state.lock);
    look(ats_emu_clock_us(), copy_bytes > SMALL_COPY_BYTES);
    pthread_mutex_unlock(&state.lock);
}

bool ats_emu_clock_set_loads(int device, const struct ats_timeline_load *loads, size_t n)
{
    pthread_mutex_lock(&state.lock);
    look(ats_emu_clock_us(), false);
    const bool ok = ats_timeline_set_loads(state.timeline, device, loads, n);
    atomic_fetch_add(&state.n_loads, 1);
    pthread_mutex_unlock(&state.lock);
    return ok;
}

struct ats_timeline *ats_emu_clock_lock(void)
{
    pthread_mutex_lock(&state.lock);
    return state.timeline;
}

void ats_emu_clock_unlock(void)
{
    pthread_mutex_unlock(&state.lock);
}

struct ats_emu_entry ats_emu_clock_enter(void)
{
    entered_read_us = 0;
    return (struct ats_emu_entry){.us = ats_emu_clock_us(), .cpu_us = thread_us()};
}

void ats_emu_clock_own(const struct ats_emu_entry *entry)
{
    const double cpu_us = thread_us() - entry->cpu_us - entered_read_us;
    pthread_mutex_lock(&state.lock);
    state.own_cpu_us += cpu_us;
    pthread_mutex_unlock(&state.lock);
}

void ats_emu_clock_entered(const struct ats_emu_entry *entry, double allowed_us)
{
    entered_late_us += fmax(ats_emu_clock_us() - entry->us - allowed_us, 0);
    ats_emu_clock_own(entry);
}

/* ---- reading ---- */

static void relax(void)
{
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

/* Loads one word of each cache line of source bytes [begin, end), counted over all rows. Without
 * sanitizers: the program may write to memory whose copy it does not wait for. */
__attribute__((no_sanitize("address", "thread"))) static void
read_bytes(const struct ats_emu_rows *source, size_t begin, size_t end)
{
    uint8_t sum = 0;
    for (size_t at = begin; at < end;) {
        const size_t offset = at % source->size;
        const size_t left = source->size - offset;
        const size_t n = end - at < left ? end - at : left;
        const volatile uint8_t *row = source->data + at / source->size * source->stride + offset;
        for (size_t i = 0; i < n; i += LINE_BYTES) {
            sum = (uint8_t)(sum + row[i]);
        }
        at += n;
    }
    __asm__ volatile("" : : "r"(sum));
}

static size_t total_bytes(const struct ats_emu_rows *rows)
{
    return rows->size * rows->n_rows;
}

void ats_emu_clock_read_now(const struct ats_emu_rows *source)
{
    const double begin_us = thread_us();
    read_bytes(source, 0, total_bytes(source));
    const double took_us = thread_us() - begin_us;
    entered_read_us += took_us;
    pthread_mutex_lock(&state.lock);
    state.own_cpu_us += took_us;
    pthread_mutex_unlock(&state.lock);
}

void ats_emu_clock_read_along(struct ats_ticket copy, const struct ats_emu_rows *source)
{
    if (total_bytes(source) <= READ_AT_ONCE_BYTES) {
        ats_emu_clock_read_now(source);
        return;
    }
    struct job *job = calloc(1, sizeof(*job));
    if (job == NULL) {
        ats_emu_clock_read_now(source);
        return;
    }
    job->copy = copy;
    job->source = *source;
    pthread_mutex_lock(&state.lock);
    *state.last_job = job;
    state.last_job = &job->next;
    pthread_cond_signal(&state.work);
    pthread_mutex_unlock(&state.lock);
}

/* How far a job may be read now. */
static size_t readable(const struct job *job)
{
    const size_t total = total_bytes(&job->source);
    const double moved = ats_timeline_moved(state.timeline, job->copy);
    if (moved < 0) {
        return 0; /* it has not begun */
    }
    return moved + AHEAD_BYTES < (double)total ? (size_t)moved + AHEAD_BYTES : total;
}

static void unlink_job(struct job *job)
{
    struct job **link = &state.jobs;
    while (*link != job) {
        link = &(*link)->next;
    }
    *link = job->next;
    if (job->next == NULL) {
        state.last_job = link;
    }
    free(job);
}

/* Reads a piece of a job that nobody else reads; the lock is open meanwhile.
 * False if there is nothing to be read now. */
static bool read_piece(struct job *job)
{
    const size_t begin = job->read;
    size_t end = readable(job);
    if (end <= begin) {
        return false;
    }
    end = end - begin < CHUNK_BYTES ? end : begin + CHUNK_BYTES;
    const bool last = end == total_bytes(&job->source);
    atomic_store(&job->reading, true);
    atomic_fetch_add(&state.pieces, 1);
    pthread_mutex_unlock(&state.lock);
    read_bytes(&job->source, begin, end);
    atomic_store(&job->read, end);
    atomic_store(&job->reading, false); /* unless it is complete, it is another's from now on */
    atomic_fetch_sub(&state.pieces, 1);
    pthread_mutex_lock(&state.lock);
    if (last) {
        unlink_job(job);
    }
    return true;
}

/* A job that can be read, or, with `due`, one whose copy is over. */
static struct job *find_job(bool due, bool *others)
{
    *others = false;
    for (struct job *job = state.jobs; job != NULL; job = job->next) {
        if (due && !ats_timeline_done(state.timeline, job->copy, NULL)) {
            continue;
        }
        if (job->reading) {
            *others = true;
        } else if (readable(job) > job->read) {
            return job;
        }
    }
    return NULL;
}

static void nap(double us)
{
    const struct timespec time = {.tv_sec = (time_t)(us / 1e6),
                                  .tv_nsec = (long)(fmod(us, 1e6) * 1e3)};
    nanosleep(&time, NULL);
}

static double reader_nap_us(void)
{
    const double next_us = ats_timeline_next_us(state.timeline, state.share_gbps);
    const double left_us = next_us - ats_timeline_now(state.timeline);
    return left_us > READER_LONG_NAP_US ? READER_LONG_NAP_US : READER_NAP_US;
}

/* While a copy proceeds the naps are short enough for AHEAD_BYTES to cover them up to some
 * 7 GB/s; what is left at the end is read by whoever waits. */
/* The emulation's core is the last one, whatever the program is bound to; a benchmark keeps its own
 * threads off it, or moves this one too. Where that is not allowed the system chooses. */
static void take_own_core(void)
{
    const long n = sysconf(_SC_NPROCESSORS_ONLN);
    cpu_set_t core;
    CPU_ZERO(&core);
    CPU_SET((size_t)(n > 1 ? n - 1 : 0), &core);
    (void)pthread_setaffinity_np(pthread_self(), sizeof(core), &core);
}

static void *reader_main(void *argument)
{
    (void)argument;
    take_own_core();
    pthread_mutex_lock(&state.lock);
    while (!state.stop) {
        if (state.jobs == NULL) {
            pthread_cond_wait(&state.work, &state.lock);
            continue;
        }
        look(ats_emu_clock_us(), false);
        bool others;
        struct job *job = find_job(false, &others);
        if (job == NULL || !read_piece(job)) {
            const double us = reader_nap_us();
            pthread_mutex_unlock(&state.lock);
            nap(us);
            pthread_mutex_lock(&state.lock);
        }
    }
    pthread_mutex_unlock(&state.lock);
    return NULL;
}

/* Reads what is left of the sources of copies that are over. */
static void read_due(void)
{
    bool others = true;
    while (others) {
        struct job *job = find_job(true, &others);
        if (job != NULL) {
            read_piece(job);
            others = true;
        } else if (others) {
            /* taking the lock again and again would keep it from the reader */
            pthread_mutex_unlock(&state.lock);
            while (atomic_load(&state.pieces) > 0) {
                relax();
            }
            pthread_mutex_lock(&state.lock);
        }
    }
}

/* ---- waiting ---- */

/* Or until a load is set, which moves deadlines. */
static void spin_until(double us, unsigned n_loads)
{
    const double left_us = us - ats_emu_clock_us();
    if (left_us > SLEEP_FROM_US) {
        nap(left_us - SLEEP_MARGIN_US);
    }
    while (ats_emu_clock_us() < us && atomic_load(&state.n_loads) == n_loads) {
        relax();
    }
}

/* Until the next event, or a moment while copies proceed, whose rates change with what the CPU
 * does; helps the reader rather than spin. The lock is open meanwhile. */
static void wait_a_little(double now_us)
{
    bool others;
    struct job *job = find_job(false, &others);
    if (job != NULL) {
        read_piece(job);
        return;
    }
    const double next_us = ats_timeline_next_us(state.timeline, state.share_gbps);
    const bool copying = ats_timeline_copying(state.timeline);
    const unsigned n_loads = atomic_load(&state.n_loads);
    pthread_mutex_unlock(&state.lock);
    spin_until(fmin(next_us, now_us + (copying ? LOOK_US : MAX_SLEEP_US)), n_loads);
    pthread_mutex_lock(&state.lock);
}

void ats_emu_clock_wait(struct ats_ticket ticket, double begin_us)
{
    const double called_us = ats_emu_clock_us();
    double cpu_us = 0; /* of this thread, at the last count, or 0; asking takes 1 us */
    double due_us = begin_us;
    bool lasted = false;
    pthread_mutex_lock(&state.lock);
    if (ats_timeline_copying(state.timeline)) {
        cpu_us = thread_us();
        sample_cpu(called_us); /* how the program has computed beside copies until now */
    }
    for (;;) {
        const double now_us = ats_emu_clock_us();
        ats_timeline_advance(state.timeline, now_us, state.share_gbps);
        if (ats_timeline_done(state.timeline, ticket, &due_us)) {
            break;
        }
        /* what is asked here is paid by the wait */
        const bool copying = ats_timeline_copying(state.timeline);
        if (cpu_us <= 0 || copying) {
            const double now_cpu_us = thread_us();
            state.own_cpu_us += cpu_us > 0 ? now_cpu_us - cpu_us : 0;
            cpu_us = now_cpu_us;
        }
        if (copying) {
            sample_cpu(now_us);
        }
        lasted = true;
        wait_a_little(now_us);
    }
    const double done_us = ats_emu_clock_us();
    read_due();
    const double end_us = ats_emu_clock_us();
    state.own_cpu_us += cpu_us > 0 ? thread_us() - cpu_us : end_us - called_us;
    struct ats_emu_clock_counters *c = &state.counters;
    c->synchronizations++;
    c->waits += lasted;
    c->wait_us += end_us - called_us;
    c->lag_enter_us += fmax(entered_late_us - fmax(due_us - called_us, 0), 0);
    entered_late_us = 0;
    c->lag_wait_us += fmax(done_us - fmax(due_us, begin_us), 0);
    c->lag_read_us += end_us - done_us;
    pthread_mutex_unlock(&state.lock);
}

/* ---- life ---- */

static bool start_locked(const struct ats_device_rates *rates, struct ats_error *err)
{
    const double now_us = ats_emu_clock_us();
    state.timeline = ats_timeline_new(now_us, rates->dram_limit_gbps);
    if (state.timeline == NULL) {
        return ats_fail(err, "out of host memory for the emulation's clock");
    }
    state.start_us = now_us;
    state.last_job = &state.jobs;
    state.stop = false;
    const int error = pthread_create(&state.reader, NULL, reader_main, NULL);
    if (error != 0) {
        ats_timeline_free(state.timeline);
        state.timeline = NULL;
        return ats_fail(err, "cannot start the emulation's reader thread: %s", strerror(error));
    }
    pthread_setname_np(state.reader, "emu-reader");
    pthread_getcpuclockid(state.reader, &state.reader_clock);
    state.counters = (struct ats_emu_clock_counters){0};
    state.own_cpu_us = 0;
    state.sampled_us = now_us;
    state.cpu_time = (struct ats_emu_cpu_time){0};
    state.sampled_cpu_us = ats_emu_cpu_time_us(&state.cpu_time, now_us);
    state.sampled_own_us = own_cpu_us();
    state.share_gbps = 0;
    return true;
}

bool ats_emu_clock_start(const struct ats_device_rates *rates, struct ats_error *err)
{
    pthread_mutex_lock(&state.lock);
    const bool ok = state.users > 0 || start_locked(rates, err);
    if (ok) {
        state.users++;
        state.cpu_gbps = rates->cpu_gbps;
        state.cpu_threads = rates->cpu_threads;
        ats_timeline_set_dram_limit(state.timeline, rates->dram_limit_gbps);
    }
    pthread_mutex_unlock(&state.lock);
    return ok;
}

void ats_emu_clock_stop(void)
{
    pthread_mutex_lock(&state.lock);
    const bool last = --state.users == 0;
    if (last) {
        state.stop = true;
        pthread_cond_signal(&state.work);
    }
    pthread_mutex_unlock(&state.lock);
    if (!last) {
        return;
    }
    pthread_join(state.reader, NULL);
    while (state.jobs != NULL) {
        unlink_job(state.jobs);
    }
    ats_timeline_free(state.timeline);
    state.timeline = NULL;
}

struct ats_emu_clock_counters ats_emu_clock_counters(void)
{
    pthread_mutex_lock(&state.lock);
    const double now_us = ats_emu_clock_us();
    look(now_us, false);
    struct ats_emu_clock_counters counters = state.counters;
    counters.wall_us = now_us - state.start_us;
    counters.lag_us = counters.lag_enter_us + counters.lag_wait_us + counters.lag_read_us;
    counters.in_use_us = ats_timeline_busy_us(state.timeline) + counters.lag_us;
    counters.cpu_us = clock_us(CLOCK_PROCESS_CPUTIME_ID);
    counters.own_cpu_us = own_cpu_us();
    pthread_mutex_unlock(&state.lock);
    return counters;
}
