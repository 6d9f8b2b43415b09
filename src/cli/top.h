/* What the parts of `ats top` share: one process, one thread. */
#ifndef ATS_CLI_TOP_H
#define ATS_CLI_TOP_H

#include "top/folder.h"
#include "top/show.h"

#include <signal.h>

struct top_options {
    uint32_t interval_ms;
    uint32_t count;   /* samples; 0: until it is stopped */
    uint32_t pid;     /* 0: all */
    uint32_t metrics; /* port; 0: any that is free */
    bool serves;      /* metrics was given */
    bool json;
};

/* What the processes publish, by the options. Ends the process if memory is out. */
void top_look(const struct top_options *o, struct ats_live_list *list, uint64_t *at_ns);

/* A sample of now; its rates are since *last, which it takes the place of. */
void top_sample(const struct top_options *o, struct ats_top_sample *last);

/* Signals that stop the command are noted instead of ending it: SIGINT, SIGTERM, SIGHUP. They are
 * blocked, but for waits with the mask that it returns, so that none is missed. */
const sigset_t *top_catch_signals(void);

/* The signal that came, or 0. */
int top_stopped_by(void);

/* The exit code after that signal. Of one that is no wish of the user's, the process ends by it. */
int top_end(int number);

/* The live table, redrawn until q or a signal; the terminal is put back on every way out. */
int top_screen(const struct top_options *o, struct ats_top_sample *sample);

/* Serves Prometheus' text on 127.0.0.1 until a signal comes. */
int top_serve(const char *who, const struct top_options *o);

#endif
