#include "backend/live.h"

#include "backend/stats.h"
#include "emu/emu.h"
#include "top/folder.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

/* What lives where, and what that was summed from: while these are the same, so are the sums. */
struct memory {
    uint64_t epoch;
    uint64_t plans_built;
    size_t used_bytes;

    size_t budget_bytes;
    struct ats_tally weights[ATS_SIDES];
    struct ats_tally state[ATS_SIDES];
};

/* A device that is published. Its lock guards the rest, and orders the writers of its figures. */
struct published {
    pthread_mutex_t lock;
    struct ats_device *device;
    struct ats_live_file_device *file;
    uint64_t n_running; /* passes of any stream */
    uint64_t busy_since_ns;
    uint64_t busy_ns;
    uint64_t n_streams;
    struct memory memory;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* of what follows, but for `published` */
static bool tried;                                       /* to make the file */
static bool watches_forks;
static pid_t owner;
static char path[PATH_MAX];
static struct published devices[ATS_LIVE_DEVICES];
static atomic_size_t n_published; /* of these devices; 0: no file */

static uint64_t now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000U + (uint64_t)t.tv_nsec;
}

/* ---- the file ---- */

/* The descriptor stays open, as it holds the lock; closing another one of this file would give the
 * lock up, so the file is never opened again. */
static int make_file(char *name, size_t bytes, struct ats_error *err)
{
    struct rlimit most;
    /* beyond that limit a write is a signal, which is the program's */
    if (getrlimit(RLIMIT_FSIZE, &most) == 0 && most.rlim_cur < bytes) {
        ats_fail(err, "%.300s: %s", name, strerror(EFBIG));
        return -1;
    }
    const int file = mkostemps(name, (int)strlen(ATS_LIVE_UNBORN), O_CLOEXEC);
    if (file < 0) {
        ats_fail(err, "%.300s: %s", name, strerror(errno));
        return -1;
    }
    struct flock whole = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
    /* all of it for sure: a store into a page that the file system has no room for is a SIGBUS */
    int reason;
    do {
        reason = posix_fallocate(file, 0, (off_t)bytes);
    } while (reason == EINTR);
    if (reason == 0 && fcntl(file, F_SETLK, &whole) != 0) {
        reason = errno;
    }
    if (reason != 0) {
        ats_fail(err, "%.300s: %s", name, strerror(reason));
        close(file);
        unlink(name);
        return -1;
    }
    return file;
}

static void set_text(char *to, size_t size, const char *from)
{
    snprintf(to, size, "%s", from);
}

/* What does not change, in a file that nobody reads yet. */
static void fill_file(struct ats_live_file *file, size_t n)
{
    file->header = (struct ats_live_file_header){
        .version = ATS_LIVE_VERSION,
        .header_bytes = sizeof(file->header),
        .device_bytes = sizeof(file->devices[0]),
        .n_devices = (uint32_t)n,
        .pid = owner,
        .started_s = time(NULL),
    };
    memcpy(file->header.magic, ATS_LIVE_MAGIC, sizeof(file->header.magic));
    set_text(file->header.program, ATS_LIVE_PROGRAM, program_invocation_short_name);
    for (size_t i = 0; i < n; i++) {
        struct ats_device *device = ats_device_at(i);
        set_text(file->devices[i].name, ATS_LIVE_NAME, device->name);
        set_text(file->devices[i].accelerator, ATS_LIVE_ACCELERATOR,
                 ggml_backend_dev_name(device->accel));
        devices[i] = (struct published){.device = device, .file = &file->devices[i]};
        pthread_mutex_init(&devices[i].lock, NULL);
    }
}

/* Makes the file under its name, with this process as the holder of its lock. */
static bool publish(size_t n, struct ats_error *err)
{
    char folder[PATH_MAX];
    char unborn[PATH_MAX];
    const size_t bytes = ats_live_file_bytes(n);
    if (!ats_live_folder(folder, err)) {
        return false;
    }
    owner = getpid();
    const int fits =
        snprintf(unborn, sizeof(unborn), "%s/%d-XXXXXX" ATS_LIVE_UNBORN, folder, (int)owner);
    if (fits < 0 || (size_t)fits >= sizeof(unborn)) {
        return ats_fail(err, "%.300s: the name is too long", folder);
    }
    const int file = make_file(unborn, bytes, err);
    if (file < 0) {
        return false;
    }
    void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    const size_t stem = strlen(unborn) - strlen(ATS_LIVE_UNBORN);
    memcpy(path, unborn, stem);
    memcpy(path + stem, ATS_LIVE_ENDING, sizeof(ATS_LIVE_ENDING));
    if (memory != MAP_FAILED) {
        fill_file(memory, n);
    }
    if (memory == MAP_FAILED || rename(unborn, path) != 0) {
        ats_fail(err, "%.300s: %s", path, strerror(errno));
        if (memory != MAP_FAILED) {
            munmap(memory, bytes);
        }
        close(file);
        unlink(unborn);
        return false;
    }
    return true;
}

/* At exit. Threads may still compute, so the mapping stays; a child that was forked off without a
 * file of its own leaves its parent's alone. */
static void remove_file(void)
{
    if (atomic_load(&n_published) > 0 && getpid() == owner) {
        unlink(path);
    }
}

static void before_fork(void)
{
    pthread_mutex_lock(&lock);
}

static void in_parent(void)
{
    pthread_mutex_unlock(&lock);
}

/* The file is the parent's. Other threads, which may have held the devices' locks, are not here. */
static void in_child(void)
{
    atomic_store(&n_published, 0);
    tried = false;
    pthread_mutex_unlock(&lock);
}

static void start(const struct ats_config *config)
{
    struct ats_error err = {{0}};
    const size_t n = ats_device_count() < ATS_LIVE_DEVICES ? ats_device_count() : ATS_LIVE_DEVICES;
    if (!config->live || n == 0) {
        return;
    }
    if (!watches_forks) {
        watches_forks =
            pthread_atfork(before_fork, in_parent, in_child) == 0 && atexit(remove_file) == 0;
    }
    if (!watches_forks || !publish(n, &err)) {
        ats_log_info("no figures for `ats top` (ATS_LIVE=off does without): %s\n",
                     watches_forks ? err.text : "out of memory");
        return;
    }
    atomic_store_explicit(&n_published, n, memory_order_release);
}

/* ---- figures ---- */

/* Locked, or NULL: nothing is published. */
static struct published *begin(const struct ats_device *device)
{
    const size_t n = atomic_load_explicit(&n_published, memory_order_acquire);
    for (size_t i = 0; i < n; i++) {
        if (devices[i].device == device) {
            pthread_mutex_lock(&devices[i].lock);
            return &devices[i];
        }
    }
    return NULL;
}

/* Sums anew if that may have changed. The lock is only tried: another stream may hold it while it
 * uploads a model, and then the sums of the next pass are early enough. */
static void sum_memory(struct published *p)
{
    struct ats_device *device = p->device;
    struct memory *memory = &p->memory;
    if (pthread_rwlock_tryrdlock(&device->lock) != 0) {
        return;
    }
    const uint64_t epoch = atomic_load(&device->epoch);
    const uint64_t plans_built = atomic_load(&device->counters.plans_built);
    if (epoch != memory->epoch || plans_built != memory->plans_built ||
        device->vram_used != memory->used_bytes || device->vram_budget != memory->budget_bytes) {
        *memory = (struct memory){.epoch = epoch,
                                  .plans_built = plans_built,
                                  .used_bytes = device->vram_used,
                                  .budget_bytes = device->vram_budget};
        ats_stats_tally(device, memory->weights, memory->state);
    }
    pthread_rwlock_unlock(&device->lock);
}

static void set(struct ats_live_file_device *file, enum ats_live_figure figure, uint64_t value)
{
    /* release, so that it follows the odd number (live_file.h) */
    atomic_store_explicit(&file->figures[figure], value, memory_order_release);
}

static void copy(struct ats_live_file_device *file, enum ats_live_figure figure,
                 const atomic_ullong *counter)
{
    set(file, figure, atomic_load_explicit(counter, memory_order_relaxed));
}

static void copy_memory(struct ats_live_file_device *file, const struct memory *memory)
{
    set(file, ATS_LIVE_BUDGET_BYTES, memory->budget_bytes);
    set(file, ATS_LIVE_USED_BYTES, memory->used_bytes);
    set(file, ATS_LIVE_WEIGHTS_VRAM_BYTES, memory->weights[ATS_ACCEL].bytes);
    set(file, ATS_LIVE_WEIGHTS_HOST_BYTES, memory->weights[ATS_HOST].bytes);
    set(file, ATS_LIVE_STATE_VRAM_BYTES, memory->state[ATS_ACCEL].bytes);
    set(file, ATS_LIVE_STATE_HOST_BYTES, memory->state[ATS_HOST].bytes);
}

static void copy_counters(struct ats_live_file_device *file, const struct ats_device_counters *c)
{
    copy(file, ATS_LIVE_GRAPHS, &c->graphs);
    copy(file, ATS_LIVE_PLANS_BUILT, &c->plans_built);
    copy(file, ATS_LIVE_SPLITS, &c->splits);
    copy(file, ATS_LIVE_LAST_SPLITS, &c->last_splits);
    copy(file, ATS_LIVE_TO_ACCEL_BYTES, &c->copied_to_accel_bytes);
    copy(file, ATS_LIVE_TO_HOST_BYTES, &c->copied_to_host_bytes);
    copy(file, ATS_LIVE_PROMOTED_BYTES, &c->promoted_bytes);
    copy(file, ATS_LIVE_EXPERT_HITS, &c->expert_hits);
    copy(file, ATS_LIVE_EXPERT_MISSES, &c->expert_misses);
    copy(file, ATS_LIVE_EXPERT_BYTES, &c->expert_bytes);
    copy(file, ATS_LIVE_PROMPT_TOKENS, &c->prompt_tokens);
    copy(file, ATS_LIVE_PROMPT_NS, &c->prompt_ns);
    copy(file, ATS_LIVE_ANSWER_TOKENS, &c->answer_tokens);
    copy(file, ATS_LIVE_ANSWER_NS, &c->answer_ns);
    copy(file, ATS_LIVE_CPU_NS, &c->cpu_ns);
    copy(file, ATS_LIVE_ACCEL_NS, &c->accel_ns);
    copy(file, ATS_LIVE_STALLED_NS, &c->stalled_ns);
    copy(file, ATS_LIVE_REPLANS, &c->replans);
    copy(file, ATS_LIVE_ROLLBACKS, &c->rollbacks);
    copy(file, ATS_LIVE_REPLAN_NS, &c->replan_ns);
    set(file, ATS_LIVE_REPLAN_REASON, (uint64_t)atomic_load(&c->replan_reason));
}

/* Writes all figures and unlocks. */
static void end(struct published *p)
{
    struct ats_live_file_device *file = p->file;
    const uint64_t sequence = atomic_load_explicit(&file->sequence, memory_order_relaxed);
    sum_memory(p);
    atomic_store_explicit(&file->sequence, sequence + 1, memory_order_relaxed);
    set(file, ATS_LIVE_UPDATED_NS, now_ns());
    set(file, ATS_LIVE_BUSY_NS, p->busy_ns);
    set(file, ATS_LIVE_BUSY_SINCE_NS, p->busy_since_ns);
    set(file, ATS_LIVE_EMULATED, ats_emu_is_device(p->device->accel));
    set(file, ATS_LIVE_CONTEXTS, p->n_streams);
    copy_memory(file, &p->memory);
    copy_counters(file, &p->device->counters);
    atomic_store_explicit(&file->sequence, sequence + 2, memory_order_release);
    pthread_mutex_unlock(&p->lock);
}

void ats_live_stream(struct ats_stream *stream)
{
    pthread_mutex_lock(&lock);
    if (!tried) {
        tried = true;
        start(stream->device->config);
    }
    pthread_mutex_unlock(&lock);
    struct published *p = begin(stream->device);
    if (p != NULL) {
        p->n_streams++;
        end(p);
    }
}

void ats_live_stream_end(struct ats_stream *stream)
{
    struct published *p = begin(stream->device);
    if (p != NULL) {
        p->n_streams -= p->n_streams > 0; /* in a child, the parent's are not counted */
        end(p);
    }
}

void ats_live_pass(struct ats_stream *stream)
{
    struct published *p = begin(stream->device);
    if (p == NULL) {
        return;
    }
    /* else the accelerator has been at work since the pass before */
    if (stream->live_pass == ATS_LIVE_NO_PASS && p->n_running++ == 0) {
        p->busy_since_ns = now_ns();
        set(p->file, ATS_LIVE_BUSY_SINCE_NS, p->busy_since_ns);
    }
    stream->live_pass = ATS_LIVE_IN_PASS;
    pthread_mutex_unlock(&p->lock);
}

/* The stream has nothing to do any more. */
static void stop(struct published *p, struct ats_stream *stream)
{
    if (stream->live_pass == ATS_LIVE_NO_PASS) {
        return;
    }
    stream->live_pass = ATS_LIVE_NO_PASS;
    p->n_running -= p->n_running > 0; /* in a child, the parent's passes are not counted */
    if (p->n_running == 0 && p->busy_since_ns > 0) {
        p->busy_ns += now_ns() - p->busy_since_ns;
        p->busy_since_ns = 0;
    }
}

void ats_live_pass_end(struct ats_stream *stream)
{
    struct published *p = begin(stream->device);
    if (p == NULL) {
        return;
    }
    if (stream->in_flight) {
        stream->live_pass = ATS_LIVE_BEHIND_PASS;
    } else {
        stop(p, stream);
    }
    end(p);
}

void ats_live_idle(struct ats_stream *stream)
{
    /* within a pass, the host waits before it gives more */
    struct published *p = stream->live_pass == ATS_LIVE_BEHIND_PASS ? begin(stream->device) : NULL;
    if (p != NULL) {
        stop(p, stream);
        end(p);
    }
}
