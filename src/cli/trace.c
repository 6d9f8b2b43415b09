/* `ats trace`: runs a program with recording on, and makes of the recording a trace for Perfetto, a
 * web page, and a table.
 *
 * The program is a child of this process, which waits for it. Signals of the terminal reach both;
 * the child decides what they mean, and what it has recorded is shown all the same. */
#include "base/parse.h"
#include "base/replace.h"
#include "cli/cli.h"
#include "cli/paths.h"
#include "trace/check.h"
#include "trace/export.h"
#include "trace/file.h"

#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum {
    KEY_OUT = CLI_KEY_FIRST,
    KEY_FROM,
    KEY_RECORDING,
    KEY_CHECK,
    KEY_MEMORY,
    KEY_JSON,
};

struct options {
    const char *out;
    const char *from;
    const char *recording;
    const char *memory;
    bool check;
    bool json;
};

static const struct argp_option option_table[] = {
    {"out", KEY_OUT, "NAME", 0, "Write NAME.json and NAME.html; default: ats-trace", 1},
    {"check", KEY_CHECK, NULL, 0,
     "Record what each operator reads and writes, too, and prove that all was in order", 1},
    {"memory", KEY_MEMORY, "SIZE", 0, "Memory for the recording, e.g. 512M; default: 128M", 1},
    {"recording", KEY_RECORDING, "FILE", 0, "Keep the recording itself here", 1},
    {"from", KEY_FROM, "FILE", 0, "Run nothing: show a recording that ATS_TRACE wrote", 1},
    {"json", KEY_JSON, NULL, 0,
     "Print the totals as JSON; what the command prints goes to stderr then", 1},
    CLI_HELP_OPTION,
    {0},
};

static const struct cli_field fields[] = {
    CLI_TEXT_FIELD(KEY_OUT, struct options, out),
    CLI_TEXT_FIELD(KEY_FROM, struct options, from),
    CLI_TEXT_FIELD(KEY_RECORDING, struct options, recording),
    CLI_FLAG_FIELD(KEY_CHECK, struct options, check),
    CLI_TEXT_FIELD(KEY_MEMORY, struct options, memory),
    CLI_FLAG_FIELD(KEY_JSON, struct options, json),
    {0},
};

static error_t parse_option(int key, char *arg, struct argp_state *state)
{
    if (key == KEY_MEMORY) {
        cli_size(state->argv[0], "memory", arg); /* or else the library would find the mistake */
    }
    return cli_parse_field(fields, key, arg, state, state->input);
}

static const struct argp argp = {
    option_table,
    parse_option,
    "[--] COMMAND...",
    "Runs a command with recording on and shows what ran when: on the CPU, on the accelerator, on "
    "the link between them. COMMAND is run, serve or bench with its options, or any program that "
    "loads the backend."
    "\v"
    "Examples:\n"
    "  ats trace run -m model.gguf -p 'Once upon a time' -n 16 -no-cnv\n"
    "  ats trace --out big run --emulate laptop-3060 -m model.gguf -p Hello -n 16\n"
    "  ats trace --check run --emulate emu-small -m model.gguf -p Hello -n 4\n"
    "  ATS_TRACE=a.rec ats serve -m model.gguf; ats trace --from a.rec\n"
    "\n"
    "NAME.html is a page that needs no network: lanes for CPU, compute stream and transfer stream, "
    "with tensor names, bytes and waits. NAME.json is for ui.perfetto.dev or chrome://tracing.\n"
    "\n"
    "An emulated accelerator tells when its commands ran. Others do not: of them the page shows "
    "the time within which a command must have run, and the totals are upper bounds "
    "(docs/tracing.md).\n"
    "\n"
    "The table goes to stderr if a command ran, else to stdout. JSON has stdout to itself: "
    "with --json, all that the command prints goes to stderr. An object: format (\"ats-trace-1\"), "
    "emulated, devices, records, dropped, phases "
    "(all, prefill, decode: times in us, bytes, overlap, counts), with --check also check.\n"
    "\n"
    "Exit code: the command's; else 1 when something could not be done or --check found a fault, "
    "2 for wrong usage.",
    NULL,
    NULL,
    NULL};

/* ---- running the command ---- */

static volatile sig_atomic_t child;

static void pass_on(int number)
{
    if (child > 0) {
        kill((pid_t)child, number);
    }
}

/* A terminal sends its signals to the child too; others come to us alone. */
static void set_signals(void)
{
    struct sigaction ignore = {.sa_handler = SIG_IGN};
    struct sigaction forward = {.sa_handler = pass_on, .sa_flags = SA_RESTART};
    sigaction(SIGINT, &ignore, NULL);
    sigaction(SIGQUIT, &ignore, NULL);
    sigaction(SIGTERM, &forward, NULL);
    sigaction(SIGHUP, &forward, NULL);
}

static bool is_own_command(const char *word)
{
    return strcmp(word, "run") == 0 || strcmp(word, "serve") == 0 || strcmp(word, "bench") == 0;
}

/* In the child; returns only if it fails. */
static void start(char **words, int n_words, const struct options *o, const char *recording)
{
    setenv("ATS_TRACE", recording, 1);
    if (o->memory != NULL) {
        setenv("ATS_TRACE_MEMORY", o->memory, 1);
    }
    if (o->check) {
        setenv("ATS_TRACE_CHECK", "1", 1);
    }
    if (o->json) { /* which has stdout to itself */
        dup2(STDERR_FILENO, STDOUT_FILENO);
    }
    char **command = cli_alloc(((size_t)n_words + 2) * sizeof *command);
    static char own_name[] = "ats";
    size_t n = 0;
    const bool own = is_own_command(words[0]);
    if (own) {
        command[n++] = own_name;
    }
    memcpy(command + n, words, (size_t)n_words * sizeof *command);
    if (own) {
        execv("/proc/self/exe", command);
    } else {
        execvp(command[0], command);
    }
    fprintf(stderr, "ats trace: cannot start %s: %s\n", words[0], strerror(errno));
}

/* The command's exit code, as a shell has it; -1 with an error if it could not be run. */
static int run_command(char **words, int n_words, const struct options *o, const char *recording,
                       struct ats_error *err)
{
    fflush(NULL);
    sigset_t all;
    sigset_t before;
    sigfillset(&all);
    sigprocmask(SIG_BLOCK, &all, &before); /* until it is known whom to pass them on to */
    const pid_t pid = fork();
    if (pid == 0) {
        sigprocmask(SIG_SETMASK, &before, NULL);
        start(words, n_words, o, recording);
        _exit(127);
    }
    if (pid > 0) {
        child = pid;
        set_signals();
    }
    sigprocmask(SIG_SETMASK, &before, NULL);
    int status = 0;
    while (pid > 0 && waitpid(pid, &status, 0) < 0) {
        if (errno != EINTR) {
            ats_fail(err, "lost sight of %s: %s", words[0], strerror(errno));
            return -1;
        }
    }
    child = 0;
    if (pid < 0) {
        ats_fail(err, "cannot start %s: %s", words[0], strerror(errno));
        return -1;
    }
    return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
}

/* ---- showing ---- */

static double share(double part, double whole)
{
    return whole > 0 ? 100 * part / whole : 0;
}

static double gbps(double bytes, double us)
{
    return us > 0 ? bytes / us * 1e-3 : 0;
}

static void print_row(FILE *out, const char *name, const struct ats_trace_summary *s,
                      double (*value)(const struct ats_trace_totals *t), const char *unit)
{
    fprintf(out, "  %-32s", name);
    for (int p = 0; p < ATS_PHASES; p++) {
        if (s->phases[p].n_passes == 0) {
            fprintf(out, " %12s", "-");
        } else {
            fprintf(out, " %12.*f", unit[0] == '\0' ? 1 : 2, value(&s->phases[p]));
        }
    }
    fprintf(out, " %s\n", unit);
}

static double per_pass(const struct ats_trace_totals *t, uint64_t n)
{
    return (double)n / (double)t->n_passes;
}

#define ROW_VALUE(name, expression)                                                                \
    static double name(const struct ats_trace_totals *t)                                           \
    {                                                                                              \
        return expression;                                                                         \
    }
ROW_VALUE(row_wall, t->wall_us * 1e-3)
ROW_VALUE(row_tokens, (double)t->n_tokens)
ROW_VALUE(row_passes, (double)t->n_passes)
ROW_VALUE(row_cpu, share(t->cpu_us, t->wall_us))
ROW_VALUE(row_accel, share(t->accel_us, t->wall_us))
ROW_VALUE(row_link, share(t->link_us, t->wall_us))
ROW_VALUE(row_bytes_in, t->to_device_bytes * 1e-6)
ROW_VALUE(row_rate_in, gbps(t->to_device_bytes, t->to_device_us))
ROW_VALUE(row_bytes_out, t->to_host_bytes * 1e-6)
ROW_VALUE(row_overlap, 100 * t->overlap)
ROW_VALUE(row_stall, share(t->stall_us, t->wall_us))
ROW_VALUE(row_wait, share(t->wait_us, t->wall_us))
ROW_VALUE(row_submit, share(t->submit_us, t->wall_us))
ROW_VALUE(row_plan, share(t->plan_us, t->wall_us))
ROW_VALUE(row_splits, per_pass(t, t->n_splits))
ROW_VALUE(row_syncs, per_pass(t, t->n_synchronizations))
ROW_VALUE(row_events, per_pass(t, t->n_event_waits))

static void print_table(FILE *out, const struct ats_trace *trace, const struct ats_trace_summary *s)
{
    bool emulated = false;
    for (size_t i = 0; i < trace->n_lanes; i++) {
        emulated = emulated || trace->lanes[i].emulated;
    }
    fprintf(out, "%-34s %12s %12s %12s\n", emulated ? "Accelerator: EMULATED" : "", "all",
            "prefill", "decode");
    print_row(out, "passes", s, row_passes, "");
    print_row(out, "tokens", s, row_tokens, "");
    print_row(out, "time", s, row_wall, "ms");
    print_row(out, "CPU computes", s, row_cpu, "%");
    print_row(out, "accelerator computes", s, row_accel, "%");
    print_row(out, "link busy", s, row_link, "%");
    print_row(out, "copied to the device", s, row_bytes_in, "MB");
    print_row(out, "rate to the device", s, row_rate_in, "GB/s");
    print_row(out, "copied to the host", s, row_bytes_out, "MB");
    print_row(out, "overlap of copies and computing", s, row_overlap, "%");
    print_row(out, "accelerator waits for copies", s, row_stall, "%");
    print_row(out, "host waits", s, row_wait, "%");
    print_row(out, "host gives commands", s, row_submit, "%");
    print_row(out, "host makes plans", s, row_plan, "%");
    print_row(out, "pieces of graphs per pass", s, row_splits, "");
    print_row(out, "synchronisations per pass", s, row_syncs, "");
    print_row(out, "waits for events per pass", s, row_events, "");
    if (!s->phases[ATS_PHASE_ALL].exact) {
        fprintf(out, "Of the accelerator's times only upper bounds are known (docs/tracing.md).\n");
    }
    if (trace->dropped > 0) {
        fprintf(out, "The oldest %" PRIu64 " records are missing: --memory gives more room.\n",
                trace->dropped);
    }
    if (trace->is_incomplete) {
        fprintf(out, "Some contexts are missing: more were in use than can be recorded.\n");
    }
}

static json_t *check_json(const struct ats_trace_check *check)
{
    json_t *faults = json_array();
    for (uint64_t i = 0; i < check->n_faults && i < ATS_TRACE_MAX_FAULTS; i++) {
        json_array_append_new(faults, json_string(check->faults[i].text));
    }
    return json_pack("{s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:o}", "commands",
                     (json_int_t)check->n_commands, "reads", (json_int_t)check->n_reads, "writes",
                     (json_int_t)check->n_writes, "staged_reads", (json_int_t)check->n_staged_reads,
                     "expert_reads", (json_int_t)check->n_expert_reads, "ordered",
                     (json_int_t)check->n_ordered, "confirmed", (json_int_t)check->n_timed,
                     "n_faults", (json_int_t)check->n_faults, "faults", faults);
}

static void print_check(FILE *out, const struct ats_trace_check *c)
{
    fprintf(out,
            "Checked: %" PRIu64 " commands, %" PRIu64 " reads (%" PRIu64 " of weights that pass\n"
            "through staging memory, %" PRIu64 " of single experts in slots), %" PRIu64
            " writes.\n%" PRIu64
            " pairs of accesses on different sides or streams: in order, %" PRIu64
            "\nof them also by the accelerator's clock.\n",
            c->n_commands, c->n_reads, c->n_staged_reads - c->n_expert_reads, c->n_expert_reads,
            c->n_writes, c->n_ordered, c->n_timed);
    for (uint64_t i = 0; i < c->n_faults && i < ATS_TRACE_MAX_FAULTS; i++) {
        fprintf(out, "FAULT: %s\n", c->faults[i].text);
    }
    if (c->n_faults == 0) {
        fprintf(out, "No fault: every read follows its write, nothing was reused early.\n");
    } else {
        fprintf(out, "%" PRIu64 " faults.\n", c->n_faults);
    }
}

/* ---- files ---- */

typedef bool (*writer)(FILE *out, const struct ats_trace_bars *bars, const json_t *summary);

static bool write_file(const char *name, const char *ending, writer write,
                       const struct ats_trace_bars *bars, const json_t *summary,
                       struct ats_error *err)
{
    char *path = cli_format("%s.%s", name, ending);
    struct ats_replace file;
    const bool ok =
        ats_replace_begin(&file, path) && ats_replace_end(&file, write(file.out, bars, summary));
    if (!ok) {
        ats_fail(err, "cannot write %.300s: %s", path, strerror(errno));
    }
    free(path);
    return ok;
}

/* Makes the files and prints; false with an error. *faults: what --check found. */
static bool show(const struct ats_trace *trace, const struct options *o, uint64_t *faults,
                 struct ats_error *err)
{
    struct ats_trace_bars bars;
    struct ats_trace_summary summary;
    static struct ats_trace_check check;
    if (o->check && !ats_trace_check(trace, &check, err)) {
        return false;
    }
    *faults = check.n_faults;
    if (!ats_trace_bars_make(trace, &bars)) {
        return ats_fail(err, "out of memory");
    }
    json_t *json =
        ats_trace_summarize(&bars, &summary) ? ats_trace_summary_json(&bars, &summary) : NULL;
    bool ok = json != NULL || ats_fail(err, "out of memory");
    if (ok && o->check) {
        json_object_set_new(json, "check", check_json(&check));
    }
    ok = ok && write_file(o->out, "json", ats_trace_write_chrome, &bars, json, err) &&
         write_file(o->out, "html", ats_trace_write_page, &bars, json, err);
    FILE *out = o->from != NULL ? stdout : stderr;
    if (ok && o->json) {
        cli_print_json(json_incref(json), JSON_INDENT(2));
    } else if (ok) {
        print_table(out, trace, &summary);
        if (o->check) {
            print_check(out, &check);
        }
        fprintf(out, "Look at %s.html; %s.json is for ui.perfetto.dev.\n", o->out, o->out);
    }
    json_decref(json);
    ats_trace_bars_free(&bars);
    return ok;
}

/* Reads the recording, makes all of it, and returns the exit code. */
static int read_and_show(const char *who, const char *recording, const struct options *o)
{
    struct ats_error err = {{0}};
    struct ats_trace trace;
    uint64_t faults = 0;
    if (!ats_trace_read(recording, &trace, &err)) {
        return cli_error(who, &err);
    }
    bool ok = true;
    if (trace.n_records == 0) {
        ok = ats_fail(&err, "nothing was recorded: the command computed nothing on an ATS device");
    }
    ok = ok && show(&trace, o, &faults, &err);
    ats_trace_free(&trace);
    if (!ok) {
        return cli_error(who, &err);
    }
    return faults > 0 ? CLI_FAILED : CLI_OK;
}

/* Runs the command into a recording that is gone afterwards, unless it is to be kept. */
static int run_and_show(const char *who, char **words, int n_words, const struct options *o)
{
    struct ats_error err = {{0}};
    /* a recording of an earlier run is not taken for this one's */
    char *temporary =
        cli_format("%s.%ld.rec", o->recording != NULL ? o->recording : o->out, (long)getpid());
    /* the command may change its folder */
    char *folder = temporary[0] != '/' ? realpath(".", NULL) : NULL;
    char *recording =
        folder != NULL ? cli_format("%s/%s", folder, temporary) : cli_format("%s", temporary);
    int result = CLI_FAILED;
    const int code = run_command(words, n_words, o, recording, &err);
    if (code < 0) {
        cli_error(who, &err);
    } else if (access(recording, R_OK) != 0) {
        fprintf(stderr,
                "%s: %s left no recording (exit code %d): did it use an ATS device, and end by "
                "itself?\n",
                who, words[0], code);
    } else {
        result = read_and_show(who, recording, o);
    }
    if (o->recording == NULL) {
        unlink(recording);
    } else if (access(recording, F_OK) == 0 && rename(recording, o->recording) != 0) {
        fprintf(stderr, "%s: cannot rename %s to %s: %s\n", who, recording, o->recording,
                strerror(errno));
        result = CLI_FAILED;
    }
    free(recording);
    free(folder);
    free(temporary);
    return code > 0 ? code : result;
}

/* How many words are ours: options with their values in front of the command, and a "--". */
static int count_own(int argc, char **argv, int *command)
{
    int at = 1;
    while (at < argc && argv[at][0] == '-' && strcmp(argv[at], "--") != 0) {
        bool takes_value = false;
        for (const struct argp_option *o = option_table; o->name != NULL; o++) {
            takes_value = takes_value || (o->arg != NULL && strncmp(argv[at], "--", 2) == 0 &&
                                          strcmp(argv[at] + 2, o->name) == 0);
        }
        at += takes_value && at + 1 < argc ? 2 : 1;
    }
    *command = at < argc && strcmp(argv[at], "--") == 0 ? at + 1 : at;
    return at;
}

int cli_trace(int argc, char **argv)
{
    struct options o = {.out = "ats-trace"};
    int command;
    const int n_own = count_own(argc, argv, &command);
    char **own = cli_alloc(((size_t)n_own + 1) * sizeof *own);
    memcpy(own, argv, (size_t)n_own * sizeof *own);
    cli_parse(&argp, n_own, own, &o);
    free(own);
    const int n_words = argc - command;
    if (o.from == NULL && n_words <= 0) {
        cli_usage_error(argv[0], "a command is missing, such as `ats trace run -m model.gguf`");
    }
    if (o.from != NULL && (n_words > 0 || o.recording != NULL || o.memory != NULL)) {
        cli_usage_error(argv[0], "--from runs nothing, so it goes with no command, no --recording "
                                 "and no --memory");
    }
    struct ats_error err;
    char *json = cli_format("%s.json", o.out);
    char *html = cli_format("%s.html", o.out);
    const bool ok = paths_can_write(json, "--out", &err) && paths_can_write(html, "--out", &err) &&
                    (o.recording == NULL || paths_can_write(o.recording, "--recording", &err));
    free(json);
    free(html);
    if (!ok) {
        return cli_error(argv[0], &err);
    }
    return o.from != NULL ? read_and_show(argv[0], o.from, &o)
                          : run_and_show(argv[0], &argv[command], n_words, &o);
}
