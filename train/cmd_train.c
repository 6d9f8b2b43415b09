/* `ats-train train`: the loop of steps, with checkpoints, progress and the loss curve. */
#include "batches.h"
#include "commands.h"
#include "curve.h"
#include "run.h"

#include "base/parse.h"
#include "cli/cli.h"

#include <errno.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum {
    HELD_OUT_WINDOWS = 32, /* that the curve's dots are measured on: 16384 tokens */
    HELD_OUT_STEPS = 400,  /* between two dots */
    WARM_UP_STEPS = 200,
    FALL_PART = 4, /* the rate falls over a fourth of the steps */
    CHECKPOINT_S = 300,
    REPORT_S = 60, /* between two lines of progress in a log; a terminal shows each step */
};

struct options {
    const char *dir;
    const char *text;
    const char *held_out;
    const char *tokenizer;
    uint64_t steps;
    uint64_t seed;
    uint64_t threads;
    uint64_t stop_at;
    uint64_t layers, width, ff, context, windows;
};

enum {
    KEY_HELD_OUT = CLI_KEY_FIRST,
    KEY_TOKENIZER,
    KEY_STEPS,
    KEY_SEED,
    KEY_THREADS,
    KEY_STOP_AT,
    KEY_LAYERS,
    KEY_WIDTH,
    KEY_FF,
    KEY_CONTEXT,
    KEY_WINDOWS,
};

static const struct argp_option option_table[] = {
    {"dir", 'd', "DIR", 0, "Folder of the run: checkpoint run.bin, curve loss.svg", 1},
    {"text", 't', "FILE", 0, "Text to train on", 1},
    {"held-out", KEY_HELD_OUT, "FILE", 0, "Text to measure on", 1},
    {"tokenizer", KEY_TOKENIZER, "FILE", 0, "From `ats-train tokenizer`", 1},
    {"threads", KEY_THREADS, "N", 0, "Threads (one per core); results do not depend on them", 2},
    {"stop-at", KEY_STOP_AT, "STEP", 0, "End there or just after, with a checkpoint", 2},
    {"steps", KEY_STEPS, "N", 0, "Length of the run (7600); may change until the rate falls", 3},
    {"seed", KEY_SEED, "N", 0, "Of weights and order (1)", 3},
    {"layers", KEY_LAYERS, "N", 0, "Layers (4)", 3},
    {"width", KEY_WIDTH, "N", 0, "Of the residual stream (256); heads have 64", 3},
    {"ff", KEY_FF, "N", 0, "Hidden units per layer (768)", 3},
    {"context", KEY_CONTEXT, "N", 0, "Tokens of a window (512)", 3},
    {"windows", KEY_WINDOWS, "N", 0, "Windows per step (4)", 3},
    CLI_HELP_OPTION,
    {0},
};

static void parse_number(struct argp_state *state, const char *name, const char *arg, uint64_t max,
                         uint64_t *value)
{
    struct ats_error err;
    if (!ats_parse_u64(arg, max, value, &err)) {
        cli_usage_error(state->name, "--%s: %s", name, err.text);
    }
    if (*value == 0 && strcmp(name, "seed") != 0) {
        cli_usage_error(state->name, "--%s must be 1 or more", name);
    }
}

static error_t parse_option(int key, char *arg, struct argp_state *state)
{
    struct options *o = state->input;
    const struct {
        int key;
        const char *name;
        uint64_t max;
        uint64_t *value;
    } numbers[] = {
        {KEY_STEPS, "steps", 1u << 24, &o->steps},
        {KEY_SEED, "seed", UINT64_MAX, &o->seed},
        {KEY_THREADS, "threads", 256, &o->threads},
        {KEY_STOP_AT, "stop-at", 1u << 24, &o->stop_at},
        {KEY_LAYERS, "layers", 256, &o->layers},
        {KEY_WIDTH, "width", 8192, &o->width},
        {KEY_FF, "ff", 32768, &o->ff},
        {KEY_CONTEXT, "context", 8192, &o->context},
        {KEY_WINDOWS, "windows", 4096, &o->windows},
    };
    for (size_t i = 0; i < sizeof numbers / sizeof numbers[0]; i++) {
        if (key == numbers[i].key) {
            parse_number(state, numbers[i].name, arg, numbers[i].max, numbers[i].value);
            return 0;
        }
    }
    switch (key) {
    case 'd':
        o->dir = arg;
        return 0;
    case 't':
        o->text = arg;
        return 0;
    case KEY_HELD_OUT:
        o->held_out = arg;
        return 0;
    case KEY_TOKENIZER:
        o->tokenizer = arg;
        return 0;
    default:
        return cli_parse_common(key, state);
    }
}

static const struct argp argp = {
    option_table,
    parse_option,
    "--dir=DIR --text=FILE --held-out=FILE --tokenizer=FILE",
    "Trains, or goes on where the checkpoint in DIR is. The same options and text give the same "
    "numbers, however often the run is interrupted and whatever the number of threads, on one "
    "kind of processor and with one compiler. The rate stays for three fourths of the steps, then "
    "falls; until then --steps may change.\n"
    "\n"
    "SIGINT or SIGTERM end it within ten steps, with a checkpoint.\n"
    "\nOptions:",
    NULL,
    NULL,
    NULL};

static volatile sig_atomic_t asked_to_stop;

static void ask_to_stop(int signal_number)
{
    (void)signal_number;
    asked_to_stop = 1;
}

static double now_s(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

/* Everything that a step needs. */
struct training {
    struct run run;
    struct pool *pool;
    struct net *net;
    struct bpe bpe;
    struct tokens tokens;
    struct tokens held_out;
    struct batches batches;
    struct batches held_out_batches;
    float *grads;
    int32_t *ids;
    char *checkpoint;
    char *curve;
    double loss_sum; /* since the last point */
    size_t loss_count;
    float held_out_loss;
    double started_s;
    size_t started_step;
    double saved_s;
    double reported_s;
};

static bool read_tokens(struct tokens *tokens, const struct bpe *bpe, const char *path,
                        struct ats_error *err)
{
    struct text text;
    if (!text_read(&text, path, err)) {
        return false;
    }
    const bool ok = tokens_of_text(tokens, bpe, &text, err);
    text_free(&text);
    return ok;
}

static struct run_options run_options(const struct options *o, const struct training *t)
{
    enum { HEAD = 64 };
    const uint32_t heads = (uint32_t)(o->width / HEAD > 0 ? o->width / HEAD : 1);
    struct run_options options;
    memset(&options, 0, sizeof options);
    options.shape = (struct net_shape){
        .vocab = (uint32_t)t->bpe.n_tokens,
        .width = (uint32_t)o->width,
        .layers = (uint32_t)o->layers,
        .heads = heads,
        .kv_heads = heads % 2 == 0 ? heads / 2 : heads,
        .ff = (uint32_t)o->ff,
        .context = (uint32_t)o->context,
    };
    options.adamw = (struct adamw){
        .peak_rate = 1.5e-3f,
        .beta1 = 0.9f,
        .beta2 = 0.98f,
        .epsilon = 1e-8f,
        .decay = 0.1f,
        .clip = 1.0f,
        .warm_up_steps = WARM_UP_STEPS,
        .steps = (uint32_t)o->steps,
        .fall_steps = (uint32_t)o->steps / FALL_PART,
    };
    options.windows = (uint32_t)o->windows;
    options.seed = o->seed;
    options.text = tokens_fingerprint(&t->tokens);
    return options;
}

/* A new run, or the one whose checkpoint there is. */
static bool find_run(struct training *t, const struct options *o, struct ats_error *err)
{
    const struct run_options options = run_options(o, t);
    if (access(t->checkpoint, F_OK) != 0) {
        return run_new(&t->run, &options, err);
    }
    if (!run_load(&t->run, t->checkpoint, err)) {
        return false;
    }
    struct ats_error differs;
    return run_continue(&t->run, &options, &differs) ||
           ats_fail(err, "%s: %s; use the same, or another --dir", t->checkpoint, differs.text);
}

static bool begin(struct training *t, const struct options *o, struct ats_error *err)
{
    if (mkdir(o->dir, 0777) != 0 && errno != EEXIST) {
        return ats_fail(err, "cannot make the folder %s: %s", o->dir, strerror(errno));
    }
    t->checkpoint = cli_format("%s/run.bin", o->dir);
    t->curve = cli_format("%s/loss.svg", o->dir);
    if (!bpe_load(&t->bpe, o->tokenizer, err) || !read_tokens(&t->tokens, &t->bpe, o->text, err) ||
        !read_tokens(&t->held_out, &t->bpe, o->held_out, err) || !find_run(t, o, err)) {
        return false;
    }
    const struct run_options *options = &t->run.options;
    const size_t context = options->shape.context;
    if (!batches_begin(&t->batches, &t->tokens, context, options->seed, err) ||
        !batches_begin(&t->held_out_batches, &t->held_out, context, 0, err)) {
        return false;
    }
    t->pool = pool_new(o->threads, err);
    t->net = t->pool == NULL ? NULL : net_new(&options->shape, options->windows, t->pool, err);
    t->grads = cli_alloc(t->run.n_params * sizeof *t->grads);
    t->ids = cli_alloc(options->windows * (context + 1) * sizeof *t->ids);
    return t->net != NULL;
}

static void end(struct training *t)
{
    net_free(t->net);
    pool_free(t->pool);
    batches_end(&t->batches);
    batches_end(&t->held_out_batches);
    tokens_free(&t->tokens);
    tokens_free(&t->held_out);
    bpe_free(&t->bpe);
    run_free(&t->run);
    free(t->grads);
    free(t->ids);
    free(t->checkpoint);
    free(t->curve);
}

static double measure_held_out(struct training *t)
{
    const size_t windows = t->run.options.windows;
    const size_t batches = (HELD_OUT_WINDOWS + windows - 1) / windows;
    double sum = 0.0;
    for (size_t i = 0; i < batches; i++) {
        batches_of_step(&t->held_out_batches, i, windows, t->ids);
        sum += net_loss(t->net, t->run.params, t->ids, windows, NULL);
    }
    return sum / (double)batches;
}

/* One step of AdamW; returns the loss before it. */
static double step(struct training *t)
{
    struct run *run = &t->run;
    const struct run_options *o = &run->options;
    batches_of_step(&t->batches, run->step, o->windows, t->ids);
    const double loss = net_loss(t->net, run->params, t->ids, o->windows, t->grads);
    const double norm = adamw_norm(t->pool, t->grads, run->n_params);
    for (size_t i = 0; i < net_tensor_count(&o->shape); i++) {
        const struct net_tensor at = net_tensor_at(&o->shape, i);
        adamw_step(t->pool, &o->adamw, run->step, norm, at.rows > 1 ? o->adamw.decay : 0.0f,
                   at.rows * at.columns, t->grads + at.offset, run->params + at.offset,
                   run->mean + at.offset, run->square + at.offset);
    }
    run->step++;
    return loss;
}

static bool save(struct training *t, struct ats_error *err)
{
    t->saved_s = now_s();
    return run_save(&t->run, t->checkpoint, err) && curve_save(&t->run, t->curve, err);
}

static void report(struct training *t, bool always)
{
    const bool terminal = isatty(STDERR_FILENO) != 0;
    const double now = now_s();
    if (!always && !terminal && now - t->reported_s < REPORT_S) {
        return;
    }
    t->reported_s = now;
    const struct run *run = &t->run;
    const struct run_options *o = &run->options;
    const size_t since = run->step - t->started_step;
    const double per_step = (now - t->started_s) / (double)(since > 0 ? since : 1);
    const double left_s = per_step * (double)(o->adamw.steps - run->step);
    const double loss = run->n_points > 0 ? (double)run->points[run->n_points - 1].loss : 0.0;
    fprintf(stderr, "%sstep %zu of %u  loss %.3f  held-out %.3f  %.0f tokens/s  %d:%02d h left%s",
            terminal ? "\r" : "", run->step, o->adamw.steps, loss, (double)t->held_out_loss,
            (double)o->windows * o->shape.context / per_step, (int)(left_s / 3600.0),
            (int)(left_s / 60.0) % 60, terminal && !always ? "\033[K" : "\n");
}

/* True where a point of the curve is complete, which is where checkpoints are made: the losses
 * since then are in no file. */
static bool at_point(const struct training *t)
{
    return t->run.step % RUN_POINT_STEPS == 0 || t->run.step == t->run.options.adamw.steps;
}

/* Books a step's loss; every so many steps a point of the curve. */
static bool book(struct training *t, double loss, struct ats_error *err)
{
    struct run *run = &t->run;
    t->loss_sum += loss;
    t->loss_count++;
    if (!at_point(t)) {
        return true;
    }
    const bool is_last = run->step == run->options.adamw.steps;
    struct run_point point = {.step = (uint32_t)run->step,
                              .loss = (float)(t->loss_sum / (double)t->loss_count),
                              .held_out = -1.0f};
    if (run->step % HELD_OUT_STEPS == 0 || is_last) {
        t->held_out_loss = (float)measure_held_out(t);
        point.held_out = t->held_out_loss;
    }
    t->loss_sum = 0.0;
    t->loss_count = 0;
    return run_add_point(run, point, err);
}

static void recall_held_out_loss(struct training *t)
{
    t->held_out_loss = NAN;
    for (size_t i = 0; i < t->run.n_points; i++) {
        if (t->run.points[i].held_out >= 0.0f) {
            t->held_out_loss = t->run.points[i].held_out;
        }
    }
}

static bool train(struct training *t, const struct options *o, struct ats_error *err)
{
    const struct run_options *options = &t->run.options;
    fprintf(stderr, "%zu parameters, %zu tokens of text; step %zu of %u\n", t->run.n_params,
            t->tokens.n, t->run.step, options->adamw.steps);
    recall_held_out_loss(t);
    t->started_s = t->saved_s = t->reported_s = now_s();
    t->started_step = t->run.step;
    while (t->run.step < options->adamw.steps) {
        if (at_point(t) && (t->run.step >= o->stop_at || asked_to_stop)) {
            break;
        }
        const double loss = step(t);
        if (!isfinite(loss)) {
            return ats_fail(err, "step %zu: the loss is no number; the last checkpoint stays",
                            t->run.step);
        }
        if (!book(t, loss, err)) {
            return false;
        }
        report(t, false);
        if (at_point(t) && now_s() - t->saved_s >= CHECKPOINT_S && !save(t, err)) {
            return false;
        }
    }
    report(t, true);
    return save(t, err);
}

int command_train(int argc, char **argv)
{
    const long cores = sysconf(_SC_NPROCESSORS_ONLN);
    struct options o = {
        .steps = 7600,
        .seed = 1,
        .threads = cores > 0 ? (uint64_t)cores : 1,
        .stop_at = UINT64_MAX,
        .layers = 4,
        .width = 256,
        .ff = 768,
        .context = 512,
        .windows = 4,
    };
    cli_parse(&argp, argc, argv, &o);
    if (o.dir == NULL || o.text == NULL || o.held_out == NULL || o.tokenizer == NULL) {
        cli_usage_error(argv[0], "--dir, --text, --held-out and --tokenizer are needed");
    }
    signal(SIGINT, ask_to_stop);
    signal(SIGTERM, ask_to_stop);
    struct training t = {0};
    struct ats_error err;
    const bool ok = begin(&t, &o, &err) && train(&t, &o, &err);
    end(&t);
    return ok ? CLI_OK : cli_error(argv[0], &err);
}
