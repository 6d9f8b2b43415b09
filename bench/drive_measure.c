#include "drive_measure.h"

#include "cpu_speed.h"
#include "load/measure.h"

#include "base/error.h"

#include <stdio.h>
#include <stdlib.h>
#include <time.h>

/* Decoded before phases are: an expert cache is warm after about so many (imp PR 1359). */
enum { WARM_TOKENS = 64 };

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

/* What probes of the core's speed found, as shares of the undisturbed one. */
struct core_speed {
    double sum;
    uint64_t n_probes;
};

/* Whether the core is as fast as it can be; the share of that which it does is added to *core. */
static bool undisturbed(const struct drive_run *run, struct core_speed *core)
{
    /* clocks move by up to a tenth (other cores busy or not, heat); a shared core loses 30 % */
    static const double least = 0.86;
    const double share = bench_cpu_speed() / run->options->cpu_speed;
    core->sum += share;
    core->n_probes++;
    return share >= least;
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
    json_t *counters;
};

static void add_result(struct drive_run *run, const struct result *r)
{
    json_array_append_new(
        run->tests,
        json_pack("{s:s, s:I, s:I, s:I, s:f, s:I, s:f, s:f, s:f, s:o}", "phase", r->phase, "tokens",
                  (json_int_t)r->n_tokens, "depth", (json_int_t)r->depth, "repetition",
                  (json_int_t)r->repetition, "tokens_per_s", r->tokens_per_s, "all_tokens",
                  (json_int_t)r->all_tokens, "all_seconds", r->all_seconds, "disturbed",
                  r->disturbed, "core_speed", r->core.sum / (double)r->core.n_probes, "counters",
                  r->counters));
}

/* Once more if the core was disturbed before or after; of the attempts, the first undisturbed one
 * or else the fastest counts. */
static void measure_prefill(struct drive_run *run, uint64_t n, uint64_t repetition)
{
    enum { ATTEMPTS = 3 };
    struct result best = {.phase = "prefill", .n_tokens = n, .repetition = repetition};
    for (int attempt = 0; attempt < ATTEMPTS && (attempt == 0 || best.disturbed > 0); attempt++) {
        forget(run);
        struct core_speed core = {0};
        const bool good_before = undisturbed(run, &core);
        bench_counters_begin(run->counters);
        const double begin = drive_now_s();
        feed(run, 0, n);
        llama_synchronize(run->context);
        const double seconds = drive_now_s() - begin;
        json_t *counters = bench_counters_end(run->counters);
        const bool good = undisturbed(run, &core) && good_before;
        if (attempt > 0 && !good && (double)n / seconds <= best.tokens_per_s) {
            json_decref(counters);
            continue;
        }
        json_decref(best.counters);
        best.tokens_per_s = (double)n / seconds;
        best.all_tokens = n;
        best.all_seconds = seconds;
        best.disturbed = good ? 0 : 1;
        best.core = core;
        best.counters = counters;
    }
    add_result(run, &best);
}

/* The context holds `depth` tokens. Tokens before and after which the core was undisturbed count,
 * until there are enough of them; at most twice as many are decoded, and if too few count, all
 * do. */
static void measure_decode(struct drive_run *run, uint64_t depth, uint64_t repetition)
{
    const uint64_t n = run->options->n_decode;
    const uint64_t room = run->options->n_ctx - depth;
    const uint64_t most = 2 * n < room ? 2 * n : room;
    struct result result = {
        .phase = "decode", .n_tokens = n, .depth = depth, .repetition = repetition};
    uint64_t counted = 0;
    double counted_s = 0;
    bool good_before = undisturbed(run, &result.core);
    bench_counters_begin(run->counters);
    while (result.all_tokens < most && counted < n) {
        const double begin = drive_now_s();
        feed(run, depth + result.all_tokens, depth + result.all_tokens + 1);
        llama_synchronize(run->context);
        const double seconds = drive_now_s() - begin;
        result.all_tokens++;
        result.all_seconds += seconds;
        const bool good = undisturbed(run, &result.core);
        if (good && good_before) {
            counted++;
            counted_s += seconds;
        }
        good_before = good;
    }
    result.counters = bench_counters_end(run->counters);
    result.disturbed = 1 - (double)counted / (double)result.all_tokens;
    result.tokens_per_s = 2 * counted >= n ? (double)counted / counted_s
                                           : (double)result.all_tokens / result.all_seconds;
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
    const bool good = undisturbed(((const struct walk *)data)->run, &core);
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
