/* cpu-load CORES PERIOD_MS: takes a share of each of these cores ("0" or "0,2,3") by computing at a
 * higher priority than other programs, for a part of each period. The share comes by standard
 * input, one line for each change, from 0 to 0.95; it is 0 at first. Ends when the input ends, and
 * so when the process that holds the other end does.
 *
 * What counts is the CPU time that it got: what it was held up is made up for by the next periods.
 * As root it runs with real-time priority and gets what it is to have; otherwise with as much
 * priority as it may. */
#include <math.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>

enum { MAX_CORES = 256 };

static const double MAX_SHARE = 0.95;
static const double MIN_PERIOD_MS = 0.5;
static const double MAX_PERIOD_MS = 1000;

/* CPU time that it is short of and makes up for; what a virtual machine stands still for at times.
 */
static const double MAX_SHORT_S = 0.02;

static double period_s;
static _Atomic double share;

static double seconds_of(clockid_t clock)
{
    struct timespec t;
    clock_gettime(clock, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void sleep_until(double s)
{
    const struct timespec t = {.tv_sec = (time_t)s, .tv_nsec = (long)(fmod(s, 1) * 1e9)};
    clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &t, NULL);
}

static void take_priority(void)
{
    const struct sched_param parameters = {.sched_priority = 1};
    if (sched_setscheduler(0, SCHED_FIFO, &parameters) != 0) {
        (void)setpriority(PRIO_PROCESS, 0, -20);
    }
}

/* Takes the share of its core, forever. */
static void *load_core(void *core)
{
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET(*(const size_t *)core, &set);
    if (sched_setaffinity(0, sizeof(set), &set) != 0) {
        fprintf(stderr, "cpu-load: core %zu is not to be had\n", *(const size_t *)core);
        exit(1);
    }
    double due_s = seconds_of(CLOCK_THREAD_CPUTIME_ID); /* CPU time that it is to have had */
    double end_s = seconds_of(CLOCK_MONOTONIC);
    for (;;) {
        end_s += period_s;
        due_s += atomic_load(&share) * period_s;
        double used_s;
        while ((used_s = seconds_of(CLOCK_THREAD_CPUTIME_ID)) < due_s &&
               seconds_of(CLOCK_MONOTONIC) < end_s) {
        }
        due_s = fmin(due_s, used_s + MAX_SHORT_S);
        end_s = fmax(end_s, seconds_of(CLOCK_MONOTONIC) - period_s);
        sleep_until(end_s);
    }
    return NULL;
}

static bool read_cores(const char *text, size_t *cores, size_t *n)
{
    for (*n = 0; *n < MAX_CORES; text++) {
        char *end = NULL;
        const unsigned long core = strtoul(text, &end, 10);
        if (end == text || text[0] == '-' || core >= CPU_SETSIZE) {
            return false;
        }
        cores[(*n)++] = core;
        text = end;
        if (*text != ',') {
            return *text == '\0';
        }
    }
    return false;
}

static bool read_number(const char *text, double least, double most, double *number)
{
    char *end = NULL;
    *number = strtod(text, &end);
    return end != text && (*end == '\0' || *end == '\n') && *number >= least && *number <= most;
}

int main(int argc, char **argv)
{
    static size_t cores[MAX_CORES];
    size_t n = 0;
    double period_ms = 0;
    if (argc != 3 || !read_cores(argv[1], cores, &n) ||
        !read_number(argv[2], MIN_PERIOD_MS, MAX_PERIOD_MS, &period_ms)) {
        fprintf(stderr, "usage: cpu-load CORES PERIOD_MS (0.5 to 1000), with shares of 0 to 0.95 "
                        "in lines of standard input\n");
        return 2;
    }
    period_s = period_ms * 1e-3;
    take_priority(); /* threads inherit it */
    for (size_t i = 0; i < n; i++) {
        pthread_t thread;
        const int error = pthread_create(&thread, NULL, load_core, &cores[i]);
        if (error != 0) {
            fprintf(stderr, "cpu-load: no thread for core %zu: %s\n", cores[i], strerror(error));
            return 1;
        }
    }
    char line[64];
    while (fgets(line, sizeof(line), stdin) != NULL) {
        double wanted = 0;
        if (!read_number(line, 0, MAX_SHARE, &wanted)) {
            line[strcspn(line, "\n")] = '\0';
            fprintf(stderr, "cpu-load: not a share from 0 to 0.95: %s\n", line);
            return 2;
        }
        atomic_store(&share, wanted);
    }
    return 0;
}
