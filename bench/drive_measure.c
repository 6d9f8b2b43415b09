#include "drive_measure.h"

#include "load/measure.h"

#include "base/error.h"

#include <stdio.h>
#include <stdlib.h>
#include <time.h>

/* Decoded before phases are: an expert cache is warm after about so many (imp PR 1359). */
enum { WARM_TOKENS = 64 };

/* Short prompts are over in milliseconds, so several in a row are measured. */
enum { SHORT_TOKENS = 256, SHORT_PROMPTS = 5 };

double drive_now_s(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* Feeds tokens [from, to) of the stream in passes of at most a ubatch; ends the process on failure.
 */
static void feed(struct drive_run *run, uint64_t from, uint64_t to)
{
    while (from < to) {
        const uint64_t left = to - from;
        const uint64_t n = left < run->options->n_ubatch ? left : run->options->n_ubatch;
        struct llama_batch batch = llama_batch_get_one(run->tokens + from, (int32_t)n);
        const int32_t status = llama_decode(run->context, batch);
        if (status != 0) {
            fprintf(stderr, "drive: llama_decode of %llu tokens at %llu returned %d\n",
                    (unsigned long long)n, (unsigned long long)from, status);
            exit(1);
        }
        from += n;
    }
}

static void forget(struct drive_run *run)
{
    llama_synchronize(run->context);
    llama_memory_clear(llama_get_memory(run->context), false);
}

struct result {
    const char *phase;
    uint64_t n_tokens;
    uint64_t depth;
    uint64_t repetition;
    double tokens_per_s;
    uint64_t all_tokens; /* that the counters are about */
    double all_seconds;
    double disturbed; /* share of the tokens during which the core was not the run's own */
    struct core_speed core;
    struct bench_lateness lateness; /* in what counted */
    double waited_s;                /* for a core that is not disturbed */
    json_t *counters;
};

static void add_result(struct drive_run *run, const struct result *r)
{
    json_array_append_new(
        run->tests,
        json_pack("{s:s, s:I, s:I, s:I, s:f, s:I, s:f, s:f, s:f, s:f, s:f, s:f, s:o}", "phase",
                  r->phase, "tokens", (json_int_t)r->n_tokens, "depth", (json_int_t)r->depth,
                  "repetition", (json_int_t)r->repetition, "tokens_per_s", r->tokens_per_s,
                  "all_tokens", (json_int_t)r->all_tokens, "all_seconds", r->all_seconds,
                  "disturbed", r->disturbed, "waited_s", r->waited_s, "late_us",
                  r->lateness.late_us, "used_us", r->lateness.used_us, "core_speed",
                  r->core.sum / (double)r->core.n_probes, "counters", r->counters));
}

/* A share of what is measured: what the emulation was late by is part of that. */
static const double MOST_LATE = 0.05;

/* After a token whose emulation was late, whose core is another than the one that is probed. */
static const double PAUSE_S = 0.2;

static bool is_late(const struct bench_lateness *lateness, double seconds)
{
    return lateness->late_us > MOST_LATE * 1e6 * seconds;
}

static struct bench_lateness lateness_since(const struct drive_run *run, struct bench_lateness then)
{
    const struct bench_lateness now = bench_counters_lateness(run->counters);
    return (struct bench_lateness){.late_us = now.late_us - then.late_us,
                                   .used_us = now.used_us - then.used_us};
}

/* Once more if the core was disturbed before or after, or the emulation late; of the attempts, the
 * first in order or else the fastest counts. */
static void measure_prefill(struct drive_run *run, uint64_t n, uint64_t repetition)
{
    enum { ATTEMPTS = 3 };
    const uint64_t n_prompts = n < SHORT_TOKENS ? SHORT_PROMPTS : 1;
    struct result best = {.phase = "prefill", .n_tokens = n, .repetition = repetition};
    const double waited_s = run->core.waited_s;
    for (int attempt = 0; attempt < ATTEMPTS && (attempt == 0 || best.disturbed > 0); attempt++) {
        quiet_core_wait(&run->core, attempt > 0 ? PAUSE_S : 0);
        struct core_speed core = {0};
        const bool good_before = quiet_core_is(&run->core, &core);
        const struct bench_lateness then = bench_counters_lateness(run->counters);
        bench_counters_begin(run->counters);
        const double begin = drive_now_s();
        for (uint64_t i = 0; i < n_prompts; i++) {
            forget(run);
            feed(run, 0, n);
        }
        llama_synchronize(run->context);
        const double seconds = drive_now_s() - begin;
        json_t *counters = bench_counters_end(run->counters);
        const struct bench_lateness lateness = lateness_since(run, then);
        const bool good =
            quiet_core_is(&run->core, &core) && good_before && !is_late(&lateness, seconds);
        const double tokens_per_s = (double)(n * n_prompts) / seconds;
        if (attempt > 0 && !good && tokens_per_s <= best.tokens_per_s) {
            json_decref(counters);
            continue;
        }
        json_decref(best.counters);
        best.tokens_per_s = tokens_per_s;
        best.all_tokens = n * n_prompts;
        best.all_seconds = seconds;
        best.disturbed = good ? 0 : 1;
        best.core = core;
        best.lateness = lateness;
        best.counters = counters;
    }
    best.waited_s = run->core.waited_s - waited_s;
    add_result(run, &best);
}

/* Tokens of a decode. */
struct tokens {
    uint64_t n;
    double seconds;
    struct bench_lateness lateness;
};

static void add_token(struct tokens *sum, double seconds, const struct bench_lateness *lateness)
{
    sum->n++;
    sum->seconds += seconds;
    sum->lateness.late_us += lateness->late_us;
    sum->lateness.used_us += lateness->used_us;
}

static void finish_decode(struct result *result, const struct tokens *counted,
                          const struct tokens *steady, const struct tokens *all)
{
    const struct tokens *shown = 2 * counted->n >= result->n_tokens ? counted
                                 : steady->n > 0                    ? steady
                                                                    : all;
    result->all_tokens = all->n;
    result->all_seconds = all->seconds;
    result->disturbed = 1 - (double)counted->n / (double)all->n;
    result->tokens_per_s = (double)shown->n / shown->seconds;
    result->lateness = shown->lateness;
}

/* The context holds `depth` tokens. Tokens count before and after which the core was undisturbed,
 * until there are enough of them; at most twice as many are decoded, and if too few count, all
 * do. After a disturbance the run waits, also for the emulation's core, whose disturbance shows in
 * what it is late. The token behind a wait never counts: what was under way has had the pause to
 * arrive. */
static void measure_decode(struct drive_run *run, uint64_t depth, uint64_t repetition)
{
    const uint64_t n = run->options->n_decode;
    const uint64_t room = run->options->n_ctx - depth;
    const uint64_t most = 2 * n < room ? 2 * n : room;
    struct result result = {
        .phase = "decode", .n_tokens = n, .depth = depth, .repetition = repetition};
    struct tokens counted = {0};
    struct tokens steady = {0}; /* those that are not behind a wait */
    struct tokens all = {0};
    const double waited_s = run->core.waited_s;
    bool behind_wait = quiet_core_wait(&run->core, 0);
    bool good_before = quiet_core_is(&run->core, &result.core);
    bench_counters_begin(run->counters);
    while (all.n < most && counted.n < n) {
        const struct bench_lateness then = bench_counters_lateness(run->counters);
        const double begin = drive_now_s();
        feed(run, depth + all.n, depth + all.n + 1);
        llama_synchronize(run->context);
        const double seconds = drive_now_s() - begin;
        const struct bench_lateness lateness = lateness_since(run, then);
        const bool good = quiet_core_is(&run->core, &result.core);
        add_token(&all, seconds, &lateness);
        if (!behind_wait) {
            add_token(&steady, seconds, &lateness);
        }
        if (!behind_wait && good && good_before) {
            add_token(&counted, seconds, &lateness);
        }
        good_before = good;
        behind_wait = false;
        const bool late = is_late(&lateness, seconds);
        if (!good || late) {
            bench_counters_pause(run->counters);
            behind_wait = quiet_core_wait(&run->core, late ? PAUSE_S : 0);
            bench_counters_resume(run->counters);
        }
    }
    result.counters = bench_counters_end(run->counters);
    result.waited_s = run->core.waited_s - waited_s;
    finish_decode(&result, &counted, &steady, &all);
    add_result(run, &result);
}

/* ---- load ---- */

/* A run whose context holds `at` tokens. */
struct walk {
    struct drive_run *run;
    uint64_t at;
};

/* Stays within the window, so that a token takes the same however long the run is. A model with
 * recurrent state cannot go back and gets its prompt anew. */
static void make_room(void *data)
{
    struct walk *walk = data;
    const struct drive_options *o = walk->run->options;
    if (o->window > 0 && walk->at == o->depth + o->window) {
        llama_memory_t memory = llama_get_memory(walk->run->context);
        if (!llama_memory_seq_rm(memory, 0, (llama_pos)o->depth, -1)) {
            forget(walk->run);
            feed(walk->run, 0, o->depth);
            llama_synchronize(walk->run->context);
        }
        walk->at = o->depth;
    }
    if (walk->at == o->n_ctx) {
        fprintf(stderr, "drive: --ctx %llu is full: give a --window or shorter phases\n",
                (unsigned long long)o->n_ctx);
        exit(1);
    }
}

static void decode_next(void *data)
{
    struct walk *walk = data;
    feed(walk->run, walk->at, walk->at + 1);
    llama_synchronize(walk->run->context);
    walk->at++;
}

static bool is_undisturbed(void *data, double *share)
{
    struct core_speed core = {0};
    const bool good = quiet_core_is(&((const struct walk *)data)->run->core, &core);
    *share = core.sum;
    return good;
}

static json_t *measure_phases(struct drive_run *run)
{
    const struct drive_options *o = run->options;
    struct walk walk = {.run = run, .at = o->depth};
    forget(run);
    feed(run, 0, o->depth);
    for (int i = 0; i < WARM_TOKENS; i++) {
        make_room(&walk);
        decode_next(&walk);
    }
    const struct load_run load = {.phases = o->phases,
                                  .n_phases = o->n_phases,
                                  .cpu_load = o->cpu_load,
                                  .period_ms = (double)o->period_ms,
                                  .counters = run->counters,
                                  .data = &walk,
                                  .make_room = make_room,
                                  .decode = decode_next,
                                  .undisturbed = is_undisturbed};
    struct ats_error err;
    json_t *phases = load_measure(&load, &err);
    if (phases == NULL) {
        fprintf(stderr, "drive: %s\n", err.text);
        exit(1);
    }
    return phases;
}

/* Decoding starts from a prompt of its depth; where that is a measured length, both are
 * measured in one go. */
static void measure_all(struct drive_run *run)
{
    const struct drive_options *o = run->options;
    feed(run, 0, o->n_ubatch < o->n_ctx ? o->n_ubatch : o->n_ctx - 1); /* warm-up */
    feed(run, o->n_ubatch, o->n_ubatch + 1);
    /* the first pass of a size takes memory and touches it: 0.1 ms per token on some machines */
    for (size_t i = 0; i <= o->n_prompts; i++) {
        forget(run);
        feed(run, 0, i < o->n_prompts ? o->prompts[i] : o->n_decode > 0 ? o->depth : 0);
    }
    for (uint64_t r = 0; r < o->n_repeat; r++) {
        for (size_t i = 0; i < o->n_prompts; i++) {
            if (o->prompts[i] != o->depth || o->n_decode == 0) {
                measure_prefill(run, o->prompts[i], r);
            }
        }
        if (o->n_decode > 0) {
            if (o->depth > 0) {
                measure_prefill(run, o->depth, r);
            } else {
                forget(run);
            }
            measure_decode(run, o->depth, r);
        }
    }
}

void drive_measure(struct drive_run *run)
{
    measure_all(run);
    if (run->options->n_phases > 0) {
        run->phases = measure_phases(run);
    }
}
