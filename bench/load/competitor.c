#include "load/competitor.h"

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <spawn.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

extern char **environ;

static double seconds_of(clockid_t clock)
{
    struct timespec t;
    clock_gettime(clock, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* "0,2,3": the cores of this thread. */
static size_t list_cores(char *text, size_t size)
{
    cpu_set_t cores;
    CPU_ZERO(&cores);
    if (sched_getaffinity(0, sizeof(cores), &cores) != 0) {
        CPU_SET(0, &cores);
    }
    const long last = sysconf(_SC_NPROCESSORS_ONLN) - 1;
    if (CPU_COUNT(&cores) > 1 && last > 0) {
        CPU_CLR((size_t)last, &cores);
    }
    size_t n = 0;
    size_t length = 0;
    for (size_t core = 0; core < CPU_SETSIZE && length + 8 < size; core++) {
        if (CPU_ISSET(core, &cores)) {
            length +=
                (size_t)snprintf(text + length, size - length, "%s%zu", n > 0 ? "," : "", core);
            n++;
        }
    }
    return n;
}

/* The child has `fd` as standard input, and none of this process's output. */
static int spawn(const char *program, char *const argv[], int fd, pid_t *pid)
{
    posix_spawn_file_actions_t actions;
    int error = posix_spawn_file_actions_init(&actions);
    if (error != 0) {
        return error;
    }
    error = posix_spawn_file_actions_adddup2(&actions, fd, STDIN_FILENO);
    if (error == 0) {
        error = posix_spawn_file_actions_addopen(&actions, STDOUT_FILENO, "/dev/null", O_WRONLY, 0);
    }
    if (error == 0) {
        error = posix_spawn(pid, program, &actions, NULL, argv, environ);
    }
    posix_spawn_file_actions_destroy(&actions);
    return error;
}

bool competitor_start(struct competitor *c, const char *program, double period_ms,
                      struct ats_error *err)
{
    char cores[1024];
    char period[32];
    char name[] = "cpu-load";
    *c = (struct competitor){.n_cores = list_cores(cores, sizeof(cores))};
    snprintf(period, sizeof(period), "%g", period_ms);
    int ends[2];
    /* a socket: writing to one whose reader is gone raises no signal */
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0) {
        return ats_fail(err, "no socket for %s: %s", program, strerror(errno));
    }
    char *const argv[] = {name, cores, period, NULL};
    const int error = spawn(program, argv, ends[1], &c->pid);
    close(ends[1]);
    c->fd = ends[0];
    if (error != 0 || clock_getcpuclockid(c->pid, &c->clock) != 0) {
        close(ends[0]);
        c->pid = 0;
        return ats_fail(err, "%s cannot be started to load the CPU: %s", program,
                        strerror(error != 0 ? error : ESRCH));
    }
    c->begin_s = seconds_of(CLOCK_MONOTONIC);
    c->begin_cpu_s = seconds_of(c->clock);
    return true;
}

bool competitor_set(const struct competitor *c, double share, struct ats_error *err)
{
    char line[32];
    const int length = snprintf(line, sizeof(line), "%.4f\n", share);
    if (send(c->fd, line, (size_t)length, MSG_NOSIGNAL) != length) {
        return ats_fail(err, "the process that loads the CPU has ended (%s)", strerror(errno));
    }
    return true;
}

double competitor_share(const struct competitor *c)
{
    const double wall_s = seconds_of(CLOCK_MONOTONIC) - c->begin_s;
    return (seconds_of(c->clock) - c->begin_cpu_s) / (wall_s * (double)c->n_cores);
}

const char *competitor_priority(const struct competitor *c)
{
    if (sched_getscheduler(c->pid) == SCHED_FIFO) {
        return "real-time";
    }
    return getpriority(PRIO_PROCESS, (id_t)c->pid) == -20 ? "nice -20" : "normal";
}

bool competitor_stop(struct competitor *c, struct ats_error *err)
{
    if (c->pid == 0) {
        return true;
    }
    int status = 0;
    close(c->fd);
    while (waitpid(c->pid, &status, 0) < 0 && errno == EINTR) {
    }
    c->pid = 0;
    return status == 0 ||
           ats_fail(err, "the process that was to load the CPU failed (see its message)");
}
