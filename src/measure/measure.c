#include "measure/measure.h"

#include "base/parse.h"
#include "measure/bench.h"
#include "measure/grid.h"
#include "measure/identify.h"
#include "measure/link.h"
#include "measure/topology.h"
#include "profile/identity.h"
#include "profile/predict.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* Of a whole profile, with room below the 60 and 5 seconds that users are promised: for starting
 * drivers, and for an operator that takes longer than expected. */
static const double FULL_BUDGET_US = 45e6;
static const double QUICK_BUDGET_US = 3.6e6;
static const double CHECK_BUDGET_US = 40e6;
static const double QUICK_CHECK_BUDGET_US = 5e6;

/* Time for the runs of one graph; what a single operator may take at most to be measured. */
static const double FULL_SLOT_US = 50e3;
static const double QUICK_SLOT_US = 12e3;
static const double FULL_MAX_OP_US = 200e3;
static const double QUICK_MAX_OP_US = 40e3;

/* Weights that successive operators read: three times the caches, within bounds. Without a known
 * cache 64 MiB are assumed. */
static const uint64_t ASSUMED_CACHE_BYTES = (uint64_t)64 << 20;
static const uint64_t QUICK_SPAN_BYTES = (uint64_t)96 << 20;
static const uint64_t MIN_SPAN_BYTES = (uint64_t)192 << 20;
static const uint64_t MAX_SPAN_BYTES = (uint64_t)1 << 30;

struct session {
    const struct ats_measure_options *options;
    struct ats_topology *topology;
    struct ats_bench sides[ATS_SIDES];
    struct ats_profile *profile;
    double begin_us;
    double budget_us;
    double round_us; /* of it, until the end of the round */
    double slot_us;
    double max_op_us;
    struct ats_bench_graph probe; /* of the CPU: how disturbed it is right now */
    double best_probe_us;
};

static void report(const struct session *s, const char *what)
{
    if (s->options->progress != NULL) {
        const double done = (ats_bench_now_us() - s->begin_us) / s->budget_us;
        s->options->progress(s->options->context, done < 1 ? done : 1, what);
    }
}

/* ---- who is measured ---- */

void ats_measure_identify(ggml_backend_dev_t device, int threads,
                          struct ats_profile_identity *identity)
{
    ats_identify_device(device, threads, identity);
}

static double row_bytes(const char *type, double k)
{
    for (int t = 0; t < GGML_TYPE_COUNT; t++) {
        const char *name = ggml_type_name((enum ggml_type)t);
        const int64_t block = ggml_blck_size((enum ggml_type)t);
        if (name != NULL && strcmp(name, type) == 0 && block > 0 && llround(k) % block == 0) {
            return (double)ggml_row_size((enum ggml_type)t, llround(k));
        }
    }
    return 0;
}

/* ---- threads ---- */

static bool matvec_gbps(struct session *s, const char *type, double *gbps, struct ats_error *err)
{
    struct ats_profile_curve curve = {.kind = ATS_COST_MATMUL, .m = 2048, .k = 2048};
    snprintf(curve.type, sizeof(curve.type), "%s", type);
    curve.weight_bytes = curve.m * row_bytes(type, curve.k);
    struct ats_profile_point point;
    const enum ats_bench_result result =
        ats_bench_point(&s->sides[ATS_HOST], &curve, 1, s->slot_us, &point, err);
    if (result != ATS_BENCH_DONE) {
        return result == ATS_BENCH_FAILED ? false
                                          : ats_fail(err, "the CPU cannot multiply %s", type);
    }
    *gbps = curve.weight_bytes / point.us * 1e-3;
    return true;
}

static void use_threads(struct session *s, int threads)
{
    if (!s->options->leave_core) { /* the emulation's threads may run anywhere */
        ats_topology_bind(s->topology, threads);
    }
    ats_bench_set_threads(&s->sides[ATS_HOST], threads);
    if (s->options->leave_core) { /* in exact mode it computes on the CPU; others do not care */
        ats_bench_set_threads(&s->sides[ATS_ACCEL], threads);
    }
}

/* 1, 2, 4, ... and the counts at which something ends: cores, fast cores, hardware threads. */
static size_t candidates(const struct session *s, int most, int counts[ATS_PROFILE_MAX_COUNTS])
{
    const int special[] = {ats_topology_fast_cores(s->topology), ats_topology_cores(s->topology),
                           ats_topology_threads(s->topology), s->options->threads};
    size_t n = 0;
    for (int count = 1; count <= most && n < ATS_PROFILE_MAX_COUNTS - 1; count++) {
        bool wanted = (count & (count - 1)) == 0 || count == most;
        for (size_t i = 0; i < sizeof(special) / sizeof(special[0]); i++) {
            wanted = wanted || count == special[i];
        }
        if (wanted) {
            counts[n++] = count;
        }
    }
    return n;
}

/* The fewest threads that read Q4_K weights at nearly the best rate: further ones only take cores
 * from others. */
static int choose_threads(const struct ats_profile *p)
{
    static const double NEARLY = 0.97;
    double best = 0;
    for (size_t i = 0; i < p->n_counts; i++) {
        best = fmax(best, p->counts[i].matvec_gbps);
    }
    for (size_t i = 0; i < p->n_counts; i++) {
        if (p->counts[i].matvec_gbps >= NEARLY * best) {
            return p->counts[i].threads;
        }
    }
    return 1;
}

static bool measure_threads(struct session *s, struct ats_error *err)
{
    struct ats_profile *p = s->profile;
    int most = ats_topology_threads(s->topology);
    most = s->options->leave_core && most > 1 ? most - 1 : most;
    most = most > ATS_PROFILE_MAX_THREADS ? ATS_PROFILE_MAX_THREADS : most;
    int counts[ATS_PROFILE_MAX_COUNTS];
    const size_t n = candidates(s, most, counts);
    for (size_t i = 0; i < n; i++) {
        struct ats_profile_threads *count = &p->counts[p->n_counts];
        report(s, "threads");
        use_threads(s, counts[i]);
        count->threads = counts[i];
        if (!matvec_gbps(s, "f32", &count->read_gbps, err) ||
            !matvec_gbps(s, "q4_K", &count->matvec_gbps, err)) {
            return false;
        }
        p->n_counts++;
    }
    p->best_threads = choose_threads(p);
    p->identity.threads = s->options->threads > 0 ? s->options->threads : p->best_threads;
    p->cores = ats_topology_cores(s->topology);
    p->hw_threads = ats_topology_threads(s->topology);
    p->cache_bytes = ats_topology_cache_bytes(s->topology);
    ats_topology_list(s->topology, p->best_threads, p->cpus, sizeof(p->cpus));
    use_threads(s, p->identity.threads);
    return true;
}

/* ---- disturbance ---- */

/* Other programs slow a CPU down for seconds at a time, all the more one that is shared with other
 * virtual machines. So a small product is timed before each point of the CPU; points that were
 * measured while it took longer than its best by this factor are measured once more at the end, and
 * the shorter time counts. */
static const double DISTURBED = 1.1;

/* The share of the time after which that begins. */
static const double FIRST_ROUND = 0.8;

static bool build_probe(struct session *s, struct ats_error *err)
{
    enum { COPIES = 8, ROWS = 512, WIDTH = 2048 };
    struct ats_bench *b = &s->sides[ATS_HOST];
    bool good = ats_bench_graph_init(&s->probe, 3 * COPIES + 2);
    struct ggml_tensor *input =
        good ? ggml_new_tensor_1d(s->probe.context, GGML_TYPE_F32, WIDTH) : NULL;
    good = good && ats_bench_take_input(b, input, 0);
    for (int i = 0; good && i < COPIES; i++) {
        struct ggml_tensor *weight =
            ggml_new_tensor_2d(s->probe.context, GGML_TYPE_Q4_K, WIDTH, ROWS);
        struct ggml_tensor *product = ggml_mul_mat(s->probe.context, weight, input);
        good = ats_bench_take_weight(b, weight) && ats_bench_take_output(b, product, 0);
        ggml_build_forward_expand(s->probe.graph, product);
    }
    return good || ats_fail(err, "out of memory");
}

static bool run_probe(struct session *s, double *us, struct ats_error *err)
{
    *us = 0;
    if (!ats_bench_time(&s->sides[ATS_HOST], s->probe.graph, 0, us, err)) {
        return false;
    }
    s->best_probe_us = s->best_probe_us > 0 ? fmin(s->best_probe_us, *us) : *us;
    return true;
}

/* ---- operators ---- */

/* When a point was measured: how long the probe took. */
struct note {
    double tokens;
    double probe_us;
};

/* A shape on a side, while it is measured. */
struct task {
    struct ats_profile_curve curve;
    struct note notes[ATS_PROFILE_MAX_POINTS]; /* of the host's points */
    size_t n_notes;
    bool is_own; /* asked about: of the user's model, or held back */
    bool closed; /* no further points: it does not fit or is not supported */
};

struct tasks {
    struct task *tasks;
    size_t n;
};

static bool has_point(const struct ats_profile_curve *c, double n)
{
    for (size_t i = 0; i < c->n_points; i++) {
        if (c->points[i].n >= n && c->points[i].n <= n) {
            return true;
        }
    }
    return false;
}

/* Without a few points nothing can be predicted: these are measured however late it is. So is, for
 * one token, what was asked about. */
static bool is_essential(const struct task *task, double tokens)
{
    static const double SMALL = 1024.0 * 2048; /* the smallest matrix of the grid */
    const struct ats_profile_curve *c = &task->curve;
    const bool is_basic =
        c->kind == ATS_COST_BYTES ||
        (c->kind == ATS_COST_MATMUL && c->m * c->k <= SMALL && strcmp(c->type, "q4_K") == 0);
    const long n = lround(tokens);
    return (is_basic && (n == 1 || n == 32 || n == 512)) || (task->is_own && n == 1);
}

/* At most what the nearest smaller batch takes, in proportion; 0 if there is none. */
static double most_us(const struct ats_profile_curve *c, double n)
{
    double us = 0;
    for (size_t i = 0; i < c->n_points && c->points[i].n < n; i++) {
        us = c->points[i].us * n / c->points[i].n;
    }
    return us;
}

static bool has_time(const struct session *s, double op_us)
{
    enum { RUNS = 4 };
    return ats_bench_now_us() - s->begin_us + RUNS * op_us + 2 * s->slot_us < s->round_us;
}

static bool measure_point(struct session *s, struct task *task, double tokens,
                          struct ats_error *err)
{
    struct ats_profile_curve *c = &task->curve;
    const double n = ats_grid_n(c, tokens);
    const double op_us = most_us(c, n);
    if (task->closed || has_point(c, n) || op_us > s->max_op_us ||
        (!has_time(s, op_us) && !is_essential(task, tokens))) {
        return true;
    }
    char what[64];
    snprintf(what, sizeof(what), "%s %s on %s", ats_profile_kind_name(c->kind), c->type,
             c->side == ATS_HOST ? "the CPU" : ggml_backend_dev_name(s->options->device));
    report(s, what);
    struct note note = {.tokens = tokens};
    if (c->side == ATS_HOST && !run_probe(s, &note.probe_us, err)) {
        return false;
    }
    struct ats_profile_point point;
    const enum ats_bench_result result =
        ats_bench_point(&s->sides[c->side], c, n, s->slot_us, &point, err);
    if (result == ATS_BENCH_SKIPPED) {
        task->closed = c->n_points == 0;
        return true;
    }
    if (result == ATS_BENCH_DONE && ats_profile_add_point(c->points, &c->n_points, point) &&
        note.probe_us > 0) {
        task->notes[task->n_notes++] = note;
    }
    return result == ATS_BENCH_DONE;
}

/* The point that was measured under the worst disturbance; NULL if none was disturbed. */
static struct note *most_disturbed(const struct session *s, const struct tasks *tasks,
                                   struct task **of)
{
    struct note *worst = NULL;
    double worst_us = DISTURBED * s->best_probe_us;
    for (size_t i = 0; i < tasks->n; i++) {
        for (size_t j = 0; j < tasks->tasks[i].n_notes; j++) {
            struct note *note = &tasks->tasks[i].notes[j];
            if (note->probe_us > worst_us) {
                worst = note;
                worst_us = note->probe_us;
                *of = &tasks->tasks[i];
            }
        }
    }
    return worst;
}

static bool measure_again(struct session *s, struct tasks *tasks, struct ats_error *err)
{
    struct task *task = NULL;
    struct note *note;
    while ((note = most_disturbed(s, tasks, &task)) != NULL) {
        struct ats_profile_curve *c = &task->curve;
        const double n = ats_grid_n(c, note->tokens);
        size_t at = 0;
        while (at + 1 < c->n_points && c->points[at].n < n) {
            at++;
        }
        note->probe_us = 0; /* not a third time */
        if (!has_time(s, c->points[at].us)) {
            continue;
        }
        report(s, "again what was disturbed");
        struct ats_profile_point point;
        if (ats_bench_point(&s->sides[ATS_HOST], c, n, s->slot_us, &point, err) != ATS_BENCH_DONE) {
            return false;
        }
        c->points[at].us = fmin(c->points[at].us, point.us);
    }
    return true;
}

static bool measure_batches(struct session *s, struct tasks *tasks, const double *batches, size_t n,
                            struct ats_error *err)
{
    for (size_t b = 0; b < n; b++) {
        for (size_t i = 0; i < tasks->n; i++) {
            if (!measure_point(s, &tasks->tasks[i], batches[b], err)) {
                return false;
            }
        }
    }
    return true;
}

static bool is_listed(const struct tasks *tasks, const struct ats_profile_curve *c)
{
    for (size_t i = 0; i < tasks->n; i++) {
        const struct ats_profile_curve *o = &tasks->tasks[i].curve;
        if (o->side == c->side && o->kind == c->kind && fabs(o->m - c->m) < 0.5 &&
            fabs(o->k - c->k) < 0.5 && fabs(o->n_experts - c->n_experts) < 0.5 &&
            fabs(o->heads - c->heads) < 0.5 && strcmp(o->type, c->type) == 0) {
            return true;
        }
    }
    return false;
}

static bool add_tasks(struct tasks *tasks, const struct ats_grid_shape *shapes, size_t n,
                      bool quick, bool is_own, struct ats_error *err)
{
    struct task *grown = realloc(tasks->tasks, (tasks->n + 2 * n + 1) * sizeof(*grown));
    if (grown == NULL || shapes == NULL) {
        tasks->tasks = grown != NULL ? grown : tasks->tasks;
        return ats_fail(err, "out of memory");
    }
    tasks->tasks = grown;
    for (size_t i = 0; i < n; i++) {
        for (int side = 0; side < ATS_SIDES; side++) {
            struct task task = {.curve = shapes[i].curve, .is_own = is_own};
            task.curve.side = (enum ats_side)side;
            if ((!quick || shapes[i].is_quick) && !is_listed(tasks, &task.curve)) {
                tasks->tasks[tasks->n++] = task;
            }
        }
    }
    return true;
}

/* A model's shapes come first; the grid's that are the same are left out. */
static bool list_tasks(const struct session *s, struct tasks *tasks, struct ats_error *err)
{
    size_t n = 0;
    bool good = true;
    if (s->options->model != NULL) {
        struct ats_grid_shape *shapes = ats_grid_model(s->options->model, &n);
        good = add_tasks(tasks, shapes, n, false, true, err);
        free(shapes);
    }
    struct ats_grid_shape *shapes = ats_grid_shapes(row_bytes, &n);
    good = good && add_tasks(tasks, shapes, n, s->options->quick, false, err);
    free(shapes);
    return good;
}

static bool keep_curves(struct ats_profile *p, const struct tasks *tasks, struct ats_error *err)
{
    for (size_t i = 0; i < tasks->n; i++) {
        const struct ats_profile_curve *c = &tasks->tasks[i].curve;
        if (c->n_points == 0) {
            continue;
        }
        struct ats_profile_curve *kept = ats_profile_add_curve(p, c);
        if (kept == NULL) {
            return ats_fail(err, "out of memory, or too many shapes");
        }
        *kept = *c;
    }
    return true;
}

/* A device may support none of the operators that matter. */
static bool check_sides(const struct session *s, struct ats_error *err)
{
    for (int side = 0; side < ATS_SIDES; side++) {
        size_t matmuls = 0;
        size_t others = 0;
        for (size_t i = 0; i < s->profile->n_curves; i++) {
            const struct ats_profile_curve *c = &s->profile->curves[i];
            matmuls += (int)c->side == side && c->kind == ATS_COST_MATMUL;
            others += (int)c->side == side && c->kind == ATS_COST_BYTES;
        }
        if (matmuls == 0 || others == 0) {
            return ats_fail(err,
                            "%s computes no matrix products or no additions, or has too little "
                            "memory for them",
                            ggml_backend_dev_name(s->sides[side].device));
        }
    }
    return true;
}

static bool measure_operators(struct session *s, struct ats_error *err)
{
    struct tasks tasks = {0};
    bool good = list_tasks(s, &tasks, err) && build_probe(s, err);
    size_t n = 0;
    s->round_us = FIRST_ROUND * s->budget_us;
    for (size_t pass = 0; good; pass++) {
        const double *batches = ats_grid_pass(pass, s->options->quick, &n);
        if (n == 0) {
            break;
        }
        good = measure_batches(s, &tasks, batches, n, err);
    }
    s->round_us = s->budget_us;
    good = good && measure_again(s, &tasks, err) && keep_curves(s->profile, &tasks, err) &&
           check_sides(s, err);
    free(tasks.tasks);
    return good;
}

/* ---- all ---- */

static size_t span_bytes(const struct session *s)
{
    if (s->options->span_bytes > 0) {
        return s->options->span_bytes;
    }
    uint64_t cache = ats_topology_cache_bytes(s->topology);
    cache = cache > 0 ? cache : ASSUMED_CACHE_BYTES;
    uint64_t span = 3 * cache;
    span = span < MIN_SPAN_BYTES ? MIN_SPAN_BYTES : span;
    span = span > MAX_SPAN_BYTES ? MAX_SPAN_BYTES : span;
    return (size_t)(s->options->quick ? QUICK_SPAN_BYTES : span);
}

static void set_created(struct ats_profile *p)
{
    const time_t now = time(NULL);
    struct tm utc;
    gmtime_r(&now, &utc);
    strftime(p->created, sizeof(p->created), "%Y-%m-%dT%H:%M:%SZ", &utc);
}

static void close_session(struct session *s)
{
    ats_bench_graph_free(&s->probe);
    ats_bench_close(&s->sides[ATS_HOST]);
    ats_bench_close(&s->sides[ATS_ACCEL]);
    ats_topology_free(s->topology);
}

/* The accelerator first: its driver's threads are not to be bound with ours. */
static bool open_session(struct session *s, struct ats_error *err)
{
    ggml_backend_dev_t cpu = ggml_backend_dev_by_type(GGML_BACKEND_DEVICE_TYPE_CPU);
    if (cpu == NULL) {
        return ats_fail(err, "ggml has no CPU backend here; is ATS_LLAMA_BIN a whole build?");
    }
    s->begin_us = ats_bench_now_us();
    s->round_us = s->budget_us;
    s->slot_us = s->options->quick ? QUICK_SLOT_US : FULL_SLOT_US;
    s->max_op_us = s->options->quick ? QUICK_MAX_OP_US : FULL_MAX_OP_US;
    s->topology = ats_topology_new(err);
    if (s->topology == NULL) {
        return false;
    }
    report(s, "memory");
    const size_t span = span_bytes(s);
    if (ats_bench_open(&s->sides[ATS_ACCEL], ATS_ACCEL, s->options->device, span, err) &&
        ats_bench_open(&s->sides[ATS_HOST], ATS_HOST, cpu, span, err)) {
        return true;
    }
    close_session(s);
    return false;
}

static bool measure_all(struct session *s, struct ats_error *err)
{
    struct ats_profile *p = s->profile;
    struct ats_bench *host = &s->sides[ATS_HOST];
    struct ats_bench *accel = &s->sides[ATS_ACCEL];
    const double slot_us = s->slot_us / 4;
    if (!measure_threads(s, err)) {
        return false;
    }
    report(s, "copies");
    if (!ats_measure_copies(host, accel, s->options->quick, slot_us, p, err) ||
        !ats_measure_beside(host, accel, p, err)) {
        return false;
    }
    report(s, "launches and splits");
    return ats_measure_launch(host, slot_us, &p->launch_us[ATS_HOST], err) &&
           ats_measure_launch(accel, slot_us, &p->launch_us[ATS_ACCEL], err) &&
           ats_measure_splits(host, accel, slot_us, p, err) && measure_operators(s, err);
}

bool ats_measure(const struct ats_measure_options *options, struct ats_profile *profile,
                 struct ats_error *err)
{
    struct ats_profile measured = {.quick = options->quick};
    struct session s = {.options = options, .profile = &measured};
    s.budget_us = options->budget_us > 0 ? options->budget_us
                  : options->quick       ? QUICK_BUDGET_US
                                         : FULL_BUDGET_US;
    ats_measure_identify(options->device, options->threads, &measured.identity);
    set_created(&measured);
    size_t total_bytes = 0;
    size_t free_bytes = 0;
    ggml_backend_dev_memory(options->device, &free_bytes, &total_bytes);
    measured.free_bytes = free_bytes;
    if (!open_session(&s, err)) {
        return false;
    }
    const bool good = measure_all(&s, err);
    close_session(&s);
    if (!good) {
        ats_profile_free(&measured);
        return false;
    }
    ats_profile_settle(&measured);
    *profile = measured;
    return true;
}

/* ---- checking ---- */

static struct ats_op_shape shape_of(const struct ats_profile_curve *c,
                                    const struct ats_profile_point *point)
{
    return (struct ats_op_shape){.kind = c->kind,
                                 .m = c->m,
                                 .k = c->k,
                                 .n = point->n,
                                 .batch = c->kind == ATS_COST_ATTENTION ? c->heads : 1,
                                 .n_experts = c->n_experts,
                                 .n_used = c->n_used,
                                 .n_distinct = point->distinct,
                                 .weight_bytes = c->weight_bytes,
                                 .io_bytes = c->kind == ATS_COST_BYTES ? point->n : 0};
}

static void compare_tasks(const struct ats_profile *profile, const struct tasks *tasks,
                          struct ats_measure_check *checks, size_t *n)
{
    for (size_t i = 0; i < tasks->n; i++) {
        const struct ats_profile_curve *c = &tasks->tasks[i].curve;
        for (size_t j = 0; j < c->n_points && *n < ATS_MEASURE_MAX_CHECKS; j++) {
            const struct ats_op_shape shape = shape_of(c, &c->points[j]);
            struct ats_measure_check *check = &checks[(*n)++];
            *check = (struct ats_measure_check){
                .shape = *c,
                .n = c->points[j].n,
                .measured_us = c->points[j].us,
                .predicted_us = ats_profile_op_us(profile, c->side, c->type, &shape)};
            check->shape.n_points = 0;
        }
    }
}

bool ats_measure_check(const struct ats_measure_options *options, const struct ats_profile *profile,
                       struct ats_measure_check *checks, size_t *n, struct ats_error *err)
{
    struct session s = {.options = options};
    s.budget_us = options->budget_us > 0 ? options->budget_us
                  : options->quick       ? QUICK_CHECK_BUDGET_US
                                         : CHECK_BUDGET_US;
    *n = 0;
    if (!open_session(&s, err)) {
        return false;
    }
    use_threads(&s, profile->identity.threads);
    struct tasks tasks = {0};
    size_t n_shapes = 0;
    size_t n_batches = 0;
    struct ats_grid_shape *shapes = ats_grid_held(row_bytes, &n_shapes);
    const double *batches = ats_grid_held_batches(&n_batches);
    const bool good =
        add_tasks(&tasks, shapes, n_shapes, false, true, err) && build_probe(&s, err) &&
        measure_batches(&s, &tasks, batches, n_batches, err) && measure_again(&s, &tasks, err);
    if (good) {
        compare_tasks(profile, &tasks, checks, n);
    }
    free(shapes);
    free(tasks.tasks);
    close_session(&s);
    return good;
}
