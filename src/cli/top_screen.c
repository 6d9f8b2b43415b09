/* The live table: on the terminal's other screen, which leaves what was there before as it was. */
#include "cli/cli.h"
#include "cli/top.h"

#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <termios.h>
#include <time.h>
#include <unistd.h>

#define ENTER "\033[?1049h\033[?25l" /* the other screen, no cursor */
#define LEAVE "\033[?25h\033[?1049l"
#define HOME "\033[H"
#define LINE_END "\033[K\n" /* the rest of the line is erased */
#define REST "\033[K\033[J" /* what is behind is erased */

enum { DEFAULT_LINES = 24 };

static bool entered;
static bool has_keys; /* the terminal's settings were changed for them */
static struct termios settings;

static void leave(void)
{
    if (!entered) {
        return;
    }
    entered = false;
    fputs(LEAVE, stdout);
    fflush(stdout);
    if (has_keys) {
        tcsetattr(STDIN_FILENO, TCSAFLUSH, &settings);
    }
}

static void enter(void)
{
    has_keys = isatty(STDIN_FILENO) && tcgetattr(STDIN_FILENO, &settings) == 0;
    if (has_keys) {
        /* keys at once and unseen; Ctrl-C stays a signal */
        struct termios keys = settings;
        keys.c_lflag &= ~(tcflag_t)(ICANON | ECHO);
        keys.c_cc[VMIN] = 1;
        keys.c_cc[VTIME] = 0;
        tcsetattr(STDIN_FILENO, TCSANOW, &keys);
    }
    fputs(ENTER, stdout);
    entered = true;
}

static size_t terminal_lines(void)
{
    struct winsize window;
    const bool known = ioctl(STDOUT_FILENO, TIOCGWINSZ, &window) == 0 && window.ws_row > 0;
    return known ? window.ws_row : DEFAULT_LINES;
}

static void draw(const struct ats_top_sample *sample, bool colours)
{
    char time_of_day[16];
    const time_t now = (time_t)sample->unix_s;
    struct tm local;
    localtime_r(&now, &local);
    strftime(time_of_day, sizeof(time_of_day), "%H:%M:%S", &local);
    fputs(HOME, stdout);
    ats_top_print(stdout, sample,
                  &(struct ats_top_style){.clock = time_of_day,
                                          .line_end = LINE_END,
                                          .most_lines = terminal_lines(),
                                          .colours = colours});
    fputs(REST, stdout);
    fflush(stdout);
}

/* Ctrl-Z: the terminal is the shell's until the command goes on. */
static volatile sig_atomic_t suspended;

static void note_suspension(int number)
{
    suspended = number;
}

static void catch_suspension(void)
{
    const struct sigaction action = {.sa_handler = note_suspension};
    sigset_t only;
    sigemptyset(&only);
    sigaddset(&only, SIGTSTP);
    sigprocmask(SIG_BLOCK, &only, NULL);
    sigaction(SIGTSTP, &action, NULL);
}

static void suspend(void)
{
    suspended = 0;
    leave();
    raise(SIGSTOP);
    enter();
}

static double now_s(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

/* Waits for a key, a signal or the time until_s. True: q. */
static bool wait_for_q(double until_s, const sigset_t *signals)
{
    while (top_stopped_by() == 0) {
        const double left_s = until_s - now_s();
        if (left_s <= 0) {
            return false;
        }
        const struct timespec timeout = {
            .tv_sec = (time_t)left_s, .tv_nsec = (long)((left_s - (double)(time_t)left_s) * 1e9)};
        struct pollfd keys = {.fd = has_keys ? STDIN_FILENO : -1, .events = POLLIN};
        char key;
        const int n = ppoll(&keys, 1, &timeout, signals);
        if (suspended != 0) {
            suspend();
            return false;
        }
        if (n <= 0) {
            continue;
        }
        if (read(STDIN_FILENO, &key, 1) != 1) {
            return true; /* the terminal is gone */
        }
        if (key == 'q' || key == 'Q') {
            return true;
        }
    }
    return false;
}

int top_screen(const struct top_options *o, struct ats_top_sample *sample)
{
    const sigset_t *signals = top_catch_signals();
    const bool colours = cli_colours(STDOUT_FILENO);
    if (atexit(leave) != 0) {
        fprintf(stderr, "ats: out of memory\n");
        return CLI_FAILED;
    }
    catch_suspension();
    enter();
    double next_s = now_s();
    do {
        draw(sample, colours);
        next_s += o->interval_ms * 1e-3;
        if (next_s < now_s()) { /* it was stopped for a while */
            next_s = now_s() + o->interval_ms * 1e-3;
        }
        if (ferror(stdout) || wait_for_q(next_s, signals)) {
            break;
        }
        top_sample(o, sample);
    } while (top_stopped_by() == 0);
    leave();
    return top_end(top_stopped_by());
}
