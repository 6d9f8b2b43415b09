#include "emu/cpu_time.h"

#include <dirent.h>
#include <stdbool.h>
#include <stdlib.h>
#include <time.h>

/* Listing takes some 20 us, and a new thread's time counts from its start anyway. */
static const double LIST_US = 20000;

/* The kernel's id of the scheduler's clock of one thread (linux/posix-timers.h). */
static clockid_t clock_of(pid_t thread)
{
    enum { SCHEDULER_CLOCK = 2, OF_A_THREAD = 4 };
    return (clockid_t)(~(unsigned)thread << 3 | SCHEDULER_CLOCK | OF_A_THREAD);
}

static bool read_thread(pid_t thread, double *us)
{
    struct timespec time;
    if (clock_gettime(clock_of(thread), &time) != 0) {
        return false; /* it has ended */
    }
    *us = (double)time.tv_sec * 1e6 + (double)time.tv_nsec * 1e-3;
    return true;
}

static bool is_listed(const struct ats_emu_cpu_time *time, pid_t thread)
{
    for (size_t i = 0; i < time->n_threads; i++) {
        if (time->threads[i].thread == thread) {
            return true;
        }
    }
    return false;
}

static void list_threads(struct ats_emu_cpu_time *time)
{
    const bool first = time->listed_us == 0;
    DIR *folder = opendir("/proc/self/task");
    const struct dirent *entry;
    while (folder != NULL && (entry = readdir(folder)) != NULL) {
        const pid_t thread = (pid_t)strtol(entry->d_name, NULL, 10);
        double us = 0;
        if (thread <= 0 || time->n_threads == ATS_EMU_MAX_THREADS || is_listed(time, thread) ||
            !read_thread(thread, &us)) {
            continue;
        }
        time->threads[time->n_threads].thread = thread;
        time->threads[time->n_threads].us = us;
        time->n_threads++;
        time->total_us += first ? 0 : us;
    }
    if (folder != NULL) {
        closedir(folder);
    }
}

double ats_emu_cpu_time_us(struct ats_emu_cpu_time *time, double now_us)
{
    for (size_t i = 0; i < time->n_threads;) {
        double us = 0;
        if (read_thread(time->threads[i].thread, &us)) {
            time->total_us += us - time->threads[i].us;
            time->threads[i].us = us;
            i++;
        } else {
            time->threads[i] = time->threads[--time->n_threads];
        }
    }
    if (time->listed_us == 0 || now_us - time->listed_us > LIST_US) {
        list_threads(time);
        time->listed_us = now_us;
    }
    return time->total_us;
}
