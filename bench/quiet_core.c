#include "quiet_core.h"

#include "cpu_speed.h"

#include <dirent.h>
#include <sched.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

/* Clocks move by up to a tenth (other cores busy or not, heat); a shared core loses 30 %. */
static const double LEAST_SHARE = 0.86;

/* Disturbances come and go within milliseconds for minutes, then stay away for seconds. */
enum { QUIET_PROBES = 20, MAX_CORES = 64 };
static const double PROBE_EVERY_S = 1e-3;

static double now_s(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

bool quiet_core_is(const struct quiet_core *core, struct core_speed *found)
{
    const double share = bench_cpu_speed() / core->speed;
    found->sum += share;
    found->n_probes++;
    return share >= LEAST_SHARE;
}

/* ---- moving ---- */

static void bind_thread(pid_t thread, size_t core)
{
    cpu_set_t cores;
    CPU_ZERO(&cores);
    CPU_SET(core, &cores);
    (void)sched_setaffinity(thread, sizeof(cores), &cores);
}

/* The thread that reads for the emulation (emu/clock.c): it computes nothing of the program's. */
static bool is_emulation(const char *thread)
{
    char path[64];
    snprintf(path, sizeof(path), "/proc/self/task/%.20s/comm", thread);
    FILE *f = fopen(path, "r");
    char name[32] = "";
    if (f != NULL) {
        (void)!fgets(name, sizeof(name), f);
        fclose(f);
    }
    return strncmp(name, "emu-reader", strlen("emu-reader")) == 0;
}

/* Binds all threads to `core`, but the emulation's to `other`. */
static void take(size_t core, size_t other)
{
    DIR *threads = opendir("/proc/self/task");
    if (threads == NULL) {
        return;
    }
    for (struct dirent *d = readdir(threads); d != NULL; d = readdir(threads)) {
        if (d->d_name[0] != '.') {
            bind_thread((pid_t)atoi(d->d_name), is_emulation(d->d_name) ? other : core);
        }
    }
    closedir(threads);
}

/* ---- waiting ---- */

bool quiet_core_wait(struct quiet_core *core, double least_s)
{
    const double begin = now_s();
    const struct timespec pause = {.tv_nsec = (long)(1e9 * PROBE_EVERY_S)};
    const long n = core->moves ? sysconf(_SC_NPROCESSORS_ONLN) : 1;
    const size_t n_cores = n < 1 ? 1 : n > MAX_CORES ? MAX_CORES : (size_t)n;
    int quiet[MAX_CORES] = {0};
    struct core_speed found = {0};
    size_t at = 0;
    double waited = 0;
    while ((quiet[at] < QUIET_PROBES || waited < least_s) &&
           core->waited_s + waited < core->patience_s) {
        at = (at + 1) % n_cores;
        nanosleep(&pause, NULL);
        if (n_cores > 1) {
            bind_thread(0, at);
        }
        quiet[at] = quiet_core_is(core, &found) ? quiet[at] + 1 : 0;
        waited = now_s() - begin;
    }
    if (n_cores > 1 && waited > 0) {
        for (size_t c = 0; c < n_cores; c++) { /* patience may have ended at any */
            at = quiet[c] > quiet[at] ? c : at;
        }
        take(at, (at + 1) % n_cores);
    }
    core->waited_s += waited;
    return waited > 0;
}
