/* `ats top`: what the processes that compute with ATS do just now. */
#include "cli/top.h"

#include "cli/cli.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum {
    KEY_ONCE = CLI_KEY_FIRST,
    KEY_INTERVAL,
    KEY_COUNT,
    KEY_PID,
    KEY_JSON,
    KEY_METRICS,
};

enum {
    DEFAULT_INTERVAL_MS = 1000,
    LEAST_INTERVAL_MS = 100,
    MOST_INTERVAL_S = 3600,
};

struct parsed {
    struct top_options o;
    const char *live_only; /* an option that makes no sense with --metrics */
};

static const struct argp_option option_table[] = {
    {"interval", KEY_INTERVAL, "SECONDS", 0, "Time between two samples, from 0.1; default: 1", 1},
    {"count", KEY_COUNT, "N", 0, "End after N samples", 1},
    {"once", KEY_ONCE, NULL, 0, "One sample, after one interval: --count=1", 1},
    {"pid", KEY_PID, "PID", 0, "Of this process only", 1},
    {"json", KEY_JSON, NULL, 0, "A line of JSON per sample", 1},
    {"metrics", KEY_METRICS, "PORT", 0,
     "Serve the figures on http://127.0.0.1:PORT/metrics for Prometheus instead; 0: a free port",
     1},
    CLI_HELP_OPTION,
    {0},
};

/* "0.5", "2": decimal digits, in every locale. */
static uint32_t parse_interval(const char *who, const char *text)
{
    char *end = NULL;
    const size_t digits = strspn(text, "0123456789.");
    const double seconds = digits == strlen(text) && digits > 0 ? strtod(text, &end) : -1;
    if (end == NULL || *end != '\0' || seconds * 1000 < LEAST_INTERVAL_MS ||
        seconds > MOST_INTERVAL_S) {
        cli_usage_error(who, "--interval: '%s' is no number of seconds from 0.1 to %d", text,
                        MOST_INTERVAL_S);
    }
    return (uint32_t)(seconds * 1000 + 0.5);
}

static const struct cli_field fields[] = {
    CLI_NUMBER_FIELD(KEY_COUNT, struct top_options, count, 1, UINT32_MAX),
    CLI_NUMBER_FIELD(KEY_PID, struct top_options, pid, 1, INT32_MAX),
    CLI_FLAG_FIELD(KEY_JSON, struct top_options, json),
    CLI_NUMBER_FIELD(KEY_METRICS, struct top_options, metrics, 0, UINT16_MAX),
    {0},
};

static error_t parse_option(int key, char *arg, struct argp_state *state)
{
    struct parsed *parsed = state->input;
    struct top_options *o = &parsed->o;
    switch (key) {
    case KEY_INTERVAL:
        parsed->live_only = "--interval";
        o->interval_ms = parse_interval(state->argv[0], arg);
        return 0;
    case KEY_ONCE:
        parsed->live_only = "--once";
        o->count = 1;
        return 0;
    case KEY_COUNT:
        parsed->live_only = "--count";
        break;
    case KEY_JSON:
        parsed->live_only = "--json";
        break;
    case KEY_METRICS:
        o->serves = true;
        break;
    default:
        break;
    }
    return cli_parse_field(fields, key, arg, state, o);
}

static const struct argp argp = {
    option_table,
    parse_option,
    NULL,
    "Shows what the processes of this user that compute with ATS do just now: tokens per second, "
    "how busy CPU, accelerator and link are, what VRAM holds, and when and why plans were made "
    "anew. On a terminal the table is redrawn until q is pressed; elsewhere one table follows the "
    "other."
    "\v"
    "Examples:\n"
    "  ats top                      (in a second terminal, while a model runs)\n"
    "  ats top --once --json | jq '.processes[].devices[].rates'\n"
    "  ats top --interval 5 --count 12 > minute.txt\n"
    "  ats top --metrics 9464       (Prometheus scrapes 127.0.0.1:9464/metrics)\n"
    "\n"
    "Rates are over the passes that ended between two samples; `busy` is over the clock. Of the "
    "accelerator the host sees from when to when it has work, not what it does with it.\n"
    "\n"
    "Any program that has loaded libggml-ats.so is seen from its first context on, unless it runs "
    "with ATS_LIVE=off. What is published, and the JSON (\"ats-top-1\"): docs/top.md.\n"
    "\n"
    "Exit code: 0, 1 when there is no such process or it could not be done, 2 for wrong usage.",
    NULL,
    NULL,
    NULL};

/* ---- looking ---- */

static uint64_t clock_ns(clockid_t clock)
{
    struct timespec t;
    clock_gettime(clock, &t);
    return (uint64_t)t.tv_sec * 1000000000U + (uint64_t)t.tv_nsec;
}

void top_look(const struct top_options *o, struct ats_live_list *list, uint64_t *at_ns)
{
    if (!ats_live_scan(list)) {
        fprintf(stderr, "ats: out of memory\n");
        exit(CLI_FAILED);
    }
    *at_ns = clock_ns(CLOCK_MONOTONIC);
    size_t n = 0;
    for (size_t i = 0; i < list->n; i++) {
        if (o->pid == 0 || list->processes[i].pid == o->pid) {
            list->processes[n++] = list->processes[i];
        }
    }
    list->n = n;
}

void top_sample(const struct top_options *o, struct ats_top_sample *last)
{
    struct ats_live_list list;
    struct ats_top_sample sample;
    uint64_t at_ns;
    top_look(o, &list, &at_ns);
    if (!ats_top_sample_make(&sample, list.processes, list.n,
                             (double)clock_ns(CLOCK_REALTIME) * 1e-9, at_ns,
                             last->at_ns > 0 ? last : NULL)) {
        fprintf(stderr, "ats: out of memory\n");
        exit(CLI_FAILED);
    }
    sample.n_other = list.n_other;
    ats_live_list_free(&list);
    ats_top_sample_free(last);
    *last = sample;
}

/* ---- signals ---- */

static volatile sig_atomic_t stopped_by;

static void note(int number)
{
    stopped_by = number;
}

static const int stopping[] = {SIGINT, SIGTERM, SIGHUP};

const sigset_t *top_catch_signals(void)
{
    static sigset_t before;
    sigset_t blocked;
    sigemptyset(&blocked);
    const struct sigaction action = {.sa_handler = note};
    for (size_t i = 0; i < sizeof(stopping) / sizeof(stopping[0]); i++) {
        sigaddset(&blocked, stopping[i]);
        sigaction(stopping[i], &action, NULL);
    }
    sigprocmask(SIG_BLOCK, &blocked, &before);
    for (size_t i = 0; i < sizeof(stopping) / sizeof(stopping[0]); i++) {
        sigdelset(&before, stopping[i]);
    }
    return &before;
}

int top_stopped_by(void)
{
    return stopped_by;
}

int top_end(int number)
{
    if (number == 0 || number == SIGINT) {
        return CLI_OK;
    }
    fflush(stdout);
    signal(number, SIG_DFL);
    sigset_t only;
    sigemptyset(&only);
    sigaddset(&only, number);
    raise(number);
    sigprocmask(SIG_UNBLOCK, &only, NULL);
    return CLI_FAILED;
}

/* ---- one after the other ---- */

static void print_sample(const struct top_options *o, const struct ats_top_sample *sample)
{
    if (o->json) {
        cli_print_json(ats_top_json(sample), JSON_COMPACT);
    } else {
        char time_of_day[16];
        const time_t now = (time_t)sample->unix_s;
        struct tm local;
        localtime_r(&now, &local);
        strftime(time_of_day, sizeof(time_of_day), "%H:%M:%S", &local);
        ats_top_print(stdout, sample,
                      &(struct ats_top_style){.clock = time_of_day, .line_end = "\n"});
    }
    fflush(stdout);
}

/* False: a signal came first. */
static bool wait_ms(uint32_t ms, const sigset_t *signals)
{
    const struct timespec timeout = {.tv_sec = ms / 1000, .tv_nsec = (long)(ms % 1000) * 1000000};
    (void)ppoll(NULL, 0, &timeout, signals);
    return stopped_by == 0;
}

/* Ends with the last process, or after so many samples. */
static int print_samples(const struct top_options *o, struct ats_top_sample *sample)
{
    const sigset_t *signals = top_catch_signals();
    for (uint32_t i = 0; o->count == 0 || i < o->count; i++) {
        if (!wait_ms(o->interval_ms, signals)) {
            break;
        }
        top_sample(o, sample);
        if (sample->n == 0) {
            break;
        }
        if (i > 0 && !o->json) {
            printf("\n");
        }
        print_sample(o, sample);
        if (ferror(stdout)) {
            break; /* told at exit */
        }
    }
    return top_end(stopped_by);
}

/* ---- the command ---- */

/* Whether stdout is a terminal that can be drawn on. */
static bool is_screen(void)
{
    const char *term = getenv("TERM");
    return isatty(STDOUT_FILENO) && term != NULL && term[0] != '\0' && strcmp(term, "dumb") != 0;
}

static int no_process(const char *who, const struct top_options *o, size_t n_other)
{
    struct ats_error err;
    if (o->pid > 0) {
        ats_fail(&err,
                 "process %u publishes no figures of ATS (or ATS_LIVE=off, or another user's)",
                 o->pid);
    } else if (n_other > 0) {
        ats_fail(&err, "the processes that compute with ATS are of another version of it");
    } else {
        ats_fail(&err, "no process of this user computes with ATS");
    }
    return cli_error(who, &err);
}

int cli_top(int argc, char **argv)
{
    struct parsed parsed = {.o = {.interval_ms = DEFAULT_INTERVAL_MS}};
    const struct top_options *o = &parsed.o;
    cli_parse(&argp, argc, argv, &parsed);
    if (o->serves && parsed.live_only != NULL) {
        cli_usage_error(argv[0], "--metrics serves until it is stopped: no %s", parsed.live_only);
    }
    if (o->serves) {
        return top_serve(argv[0], o);
    }
    struct ats_top_sample sample = {0};
    top_sample(o, &sample);
    if (sample.n == 0) {
        return no_process(argv[0], o, sample.n_other);
    }
    const bool live = o->count == 0 && !o->json && is_screen();
    const int code = live ? top_screen(o, &sample) : print_samples(o, &sample);
    ats_top_sample_free(&sample);
    return code;
}
