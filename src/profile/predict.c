#include "profile/predict.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- functions through points ---- */

/* Piecewise affine through points of strictly rising n; constant before the first, with the last
 * slope beyond the last. */
static double over_points(const struct ats_profile_point *points, size_t n_points, double n)
{
    if (n <= points[0].n || n_points == 1) {
        return n <= points[0].n ? points[0].us : points[0].us * n / points[0].n;
    }
    size_t i = 1;
    while (i + 1 < n_points && points[i].n < n) {
        i++;
    }
    const struct ats_profile_point *a = &points[i - 1];
    const struct ats_profile_point *b = &points[i];
    return a->us + (b->us - a->us) * (n - a->n) / (b->n - a->n);
}

/* Shapes of one type that answer; a model has a dozen. More are left out. */
enum { MAX_STEPS = 128 };

/* Shapes by size of their work. */
struct ladder {
    size_t n;
    double work[MAX_STEPS];
    double us[MAX_STEPS];
    size_t of[MAX_STEPS]; /* measurements behind an entry */
};

/* Adds a measurement; those of equal work are averaged. */
static void add_step(struct ladder *l, double work, double us)
{
    size_t at = 0;
    while (at < l->n && l->work[at] < work) {
        at++;
    }
    if (at < l->n && l->work[at] <= work) {
        l->us[at] += (us - l->us[at]) / (double)++l->of[at];
        return;
    }
    if (l->n == MAX_STEPS) {
        return;
    }
    memmove(&l->work[at + 1], &l->work[at], (l->n - at) * sizeof(l->work[0]));
    memmove(&l->us[at + 1], &l->us[at], (l->n - at) * sizeof(l->us[0]));
    memmove(&l->of[at + 1], &l->of[at], (l->n - at) * sizeof(l->of[0]));
    l->work[at] = work;
    l->us[at] = us;
    l->of[at] = 1;
    l->n++;
}

/* The time of `work`, by steps that begin at `launch`. */
static double climb(struct ladder *l, double launch, double work)
{
    ats_profile_make_monotone(l->us, l->n);
    double before_work = 0;
    double before_us = launch;
    for (size_t i = 0; i < l->n; i++) {
        const double us = fmax(l->us[i], launch);
        if (work <= l->work[i]) {
            return before_us + (us - before_us) * (work - before_work) / (l->work[i] - before_work);
        }
        before_work = l->work[i];
        before_us = us;
    }
    return launch + (before_us - launch) * work / before_work;
}

/* ---- which curves answer ---- */

static const char *usual_type(enum ats_type_family family)
{
    static const char *const types[ATS_FAMILIES] = {"f32", "f16", "q8_0", "q4_K", "mxfp4"};
    return types[family];
}

/* Bytes per element of a weight. */
static double element_bytes(const struct ats_profile_curve *c)
{
    return c->weight_bytes / (c->m * c->k);
}

/* The family of a type by its name in ggml, as model and emulator sort them. */
static enum ats_type_family family_of(const char *type)
{
    if (strcmp(type, "f32") == 0) {
        return ATS_FAMILY_F32;
    }
    if (strcmp(type, "f16") == 0 || strcmp(type, "bf16") == 0) {
        return ATS_FAMILY_F16;
    }
    if (strncmp(type, "q8", 2) == 0) {
        return ATS_FAMILY_Q8;
    }
    return strcmp(type, "mxfp4") == 0 ? ATS_FAMILY_MXFP4 : ATS_FAMILY_Q4;
}

struct question {
    const struct ats_profile *profile;
    enum ats_side side;
    enum ats_cost_kind kind;
    const char *type;
    double bytes; /* per element; 0: not known */
};

static bool is_candidate(const struct question *q, const struct ats_profile_curve *c)
{
    return c->side == q->side && c->kind == q->kind;
}

/* Distances (of logarithms) this close are equal: the first type stays, whatever rounding says. */
static const double SAME_DISTANCE = 1e-6;

/* The measured type that stands for the one asked about, and by how much its times are scaled. */
static const char *choose_type(const struct question *q, double *scale)
{
    const enum ats_type_family family = family_of(q->type);
    const char *best = NULL;
    double best_distance = 0;
    bool best_is_kin = false;
    *scale = 1;
    for (size_t i = 0; i < q->profile->n_curves; i++) {
        const struct ats_profile_curve *c = &q->profile->curves[i];
        if (!is_candidate(q, c)) {
            continue;
        }
        if (strcmp(c->type, q->type) == 0) {
            *scale = 1;
            return c->type;
        }
        const double ratio = q->bytes > 0 ? q->bytes / element_bytes(c) : 1;
        const double distance = fabs(log(ratio));
        const bool is_kin = family_of(c->type) == family;
        if (best == NULL || (is_kin && !best_is_kin) ||
            (is_kin == best_is_kin && distance < best_distance - SAME_DISTANCE)) {
            best = c->type;
            best_distance = distance;
            best_is_kin = is_kin;
            *scale = ratio;
        }
    }
    return best;
}

static bool is_same(double a, double b)
{
    return fabs(a - b) < 0.5; /* whole numbers */
}

/* More than logarithms of sizes differ by. */
static const double OTHER_TYPE = 100;

/* Of the curves of the same kind and type (ATTENTION: and size of a head) that go on to more
 * columns than `c`, the one with the nearest work; NULL if none does. */
static const struct ats_profile_curve *longer_curve(const struct question *q,
                                                    const struct ats_profile_curve *c)
{
    const struct ats_profile_curve *nearest = NULL;
    double least = INFINITY;
    for (size_t i = 0; i < q->profile->n_curves; i++) {
        const struct ats_profile_curve *o = &q->profile->curves[i];
        if (!is_candidate(q, o) || o->points[o->n_points - 1].n <= c->points[c->n_points - 1].n ||
            (c->kind == ATS_COST_ATTENTION && !is_same(o->k, c->k))) {
            continue;
        }
        const double other_type = strcmp(o->type, c->type) == 0 ? 0 : OTHER_TYPE;
        const double distance = fabs(log((o->m * o->k) / (c->m * c->k))) + other_type;
        if (distance < least - SAME_DISTANCE) {
            nearest = o;
            least = distance;
        }
    }
    return nearest;
}

/* A curve at n columns. Large shapes are measured with fewer of them, because they take long:
 * beyond the last they grow as a smaller shape does. */
static double over_batch(const struct question *q, const struct ats_profile_curve *c, double n)
{
    const struct ats_profile_point *last = &c->points[c->n_points - 1];
    const struct ats_profile_curve *longer = n > last->n ? longer_curve(q, c) : NULL;
    if (longer == NULL) {
        return over_points(c->points, c->n_points, n);
    }
    return last->us * over_points(longer->points, longer->n_points, n) /
           over_points(longer->points, longer->n_points, last->n);
}

/* ---- operators ---- */

static double matmul_us(struct question *q, const struct ats_op_shape *s)
{
    const double launch = q->profile->launch_us[q->side];
    const double work = s->m * s->k * s->batch;
    double scale;
    q->kind = ATS_COST_MATMUL;
    q->bytes = s->weight_bytes / work;
    const char *type = choose_type(q, &scale);
    struct ladder ladder = {0};
    for (size_t i = 0; i < q->profile->n_curves; i++) {
        const struct ats_profile_curve *c = &q->profile->curves[i];
        if (!is_candidate(q, c) || strcmp(c->type, type) != 0) {
            continue;
        }
        const double us = over_batch(q, c, s->n);
        if (strcmp(type, q->type) == 0 && is_same(c->m, s->m) && is_same(c->k, s->k) &&
            is_same(s->batch, 1)) {
            return us;
        }
        add_step(&ladder, c->m * c->k, us);
    }
    return launch + scale * (climb(&ladder, launch, work) - launch);
}

/* What one expert takes if `columns` fall on it, by one curve. */
static double one_expert_us(const struct ats_profile_curve *c, double launch, double columns)
{
    struct ladder by_columns = {0};
    for (size_t i = 0; i < c->n_points; i++) {
        const struct ats_profile_point *p = &c->points[i];
        add_step(&by_columns, p->n * c->n_used / p->distinct,
                 fmax(p->us - launch, 0) / p->distinct);
    }
    ats_profile_make_monotone(by_columns.us, by_columns.n);
    struct ats_profile_point points[ATS_PROFILE_MAX_POINTS];
    for (size_t i = 0; i < by_columns.n; i++) {
        points[i] = (struct ats_profile_point){by_columns.work[i], by_columns.us[i], 0};
    }
    return over_points(points, by_columns.n, columns);
}

static double experts_us(struct question *q, const struct ats_op_shape *s)
{
    const double launch = q->profile->launch_us[q->side];
    const double distinct = s->n_distinct > 0
                                ? s->n_distinct
                                : ats_cost_expected_experts(s->n_experts, s->n_used, s->n);
    const double columns = s->n * s->n_used / distinct;
    double scale;
    q->kind = ATS_COST_EXPERTS;
    q->bytes = s->weight_bytes / (s->m * s->k);
    const char *type = choose_type(q, &scale);
    if (type == NULL) { /* experts were not measured: each as a product of its own */
        struct ats_op_shape one = *s;
        one.n = columns;
        one.batch = 1;
        return launch + distinct * fmax(matmul_us(q, &one) - launch, 0);
    }
    struct ladder ladder = {0};
    for (size_t i = 0; i < q->profile->n_curves; i++) {
        const struct ats_profile_curve *c = &q->profile->curves[i];
        if (!is_candidate(q, c) || strcmp(c->type, type) != 0) {
            continue;
        }
        const double us = one_expert_us(c, launch, columns);
        if (strcmp(type, q->type) == 0 && is_same(c->m, s->m) && is_same(c->k, s->k) &&
            is_same(c->n_experts, s->n_experts) && is_same(c->n_used, s->n_used)) {
            return launch + distinct * us;
        }
        add_step(&ladder, c->m * c->k, us);
    }
    return launch + scale * distinct * climb(&ladder, 0, s->m * s->k);
}

static double attention_work(const struct ats_profile_curve *c)
{
    return c->m * c->k * c->heads;
}

/* How far a measured layout of heads is from the one asked about; 0 if it is the same. */
static double layout_distance(const struct ats_profile_curve *c, const struct ats_op_shape *s)
{
    const double work = s->m * s->k * s->batch;
    return fabs(log((c->weight_bytes / attention_work(c)) / (s->weight_bytes / work))) +
           fabs(log(c->k / s->k));
}

static double attention_us(struct question *q, const struct ats_op_shape *s)
{
    const double launch = q->profile->launch_us[q->side];
    q->kind = ATS_COST_ATTENTION;
    double nearest = INFINITY;
    for (size_t i = 0; i < q->profile->n_curves; i++) {
        const struct ats_profile_curve *c = &q->profile->curves[i];
        if (is_candidate(q, c)) {
            nearest = fmin(nearest, layout_distance(c, s));
        }
    }
    if (nearest == INFINITY) {
        const struct ats_op_shape products = {.kind = ATS_COST_MATMUL,
                                              .m = s->m,
                                              .k = 2 * s->k,
                                              .n = s->n,
                                              .batch = s->batch,
                                              .weight_bytes = 4 * s->m * s->k * s->batch};
        q->type = usual_type(ATS_FAMILY_F16);
        return matmul_us(q, &products);
    }
    struct ladder ladder = {0};
    for (size_t i = 0; i < q->profile->n_curves; i++) {
        const struct ats_profile_curve *c = &q->profile->curves[i];
        if (is_candidate(q, c) && layout_distance(c, s) < nearest + 1e-3) {
            add_step(&ladder, attention_work(c), over_batch(q, c, s->n));
        }
    }
    return climb(&ladder, launch, s->m * s->k * s->batch);
}

/* One curve over bytes, from the launch on. */
static double over_bytes(const struct ats_profile_curve *c, double launch, double bytes)
{
    const struct ats_profile_point *first = &c->points[0];
    const struct ats_profile_point *last = &c->points[c->n_points - 1];
    if (bytes <= first->n) {
        return launch + fmax(first->us - launch, 0) * bytes / first->n;
    }
    if (bytes >= last->n) {
        return launch + fmax(last->us - launch, 0) * bytes / last->n;
    }
    return fmax(over_points(c->points, c->n_points, bytes), launch);
}

static double bytes_us(struct question *q, const struct ats_op_shape *s)
{
    const double launch = q->profile->launch_us[q->side];
    double sum = 0;
    double n = 0;
    q->kind = ATS_COST_BYTES;
    for (size_t i = 0; i < q->profile->n_curves; i++) {
        const struct ats_profile_curve *c = &q->profile->curves[i];
        if (is_candidate(q, c)) {
            sum += over_bytes(c, launch, s->io_bytes);
            n++;
        }
    }
    return sum / n;
}

double ats_profile_op_us(const struct ats_profile *profile, enum ats_side side, const char *type,
                         const struct ats_op_shape *shape)
{
    struct question q = {
        .profile = profile, .side = side, .type = type != NULL ? type : usual_type(shape->family)};
    double us = 0;
    if (!(shape->kind == ATS_COST_BYTES || (shape->n > 0 && shape->m > 0 && shape->k > 0))) {
        return 0;
    }
    switch (shape->kind) {
    case ATS_COST_NONE:
        return 0;
    case ATS_COST_MATMUL:
        us = matmul_us(&q, shape);
        break;
    case ATS_COST_EXPERTS:
        us = experts_us(&q, shape);
        break;
    case ATS_COST_ATTENTION:
        us = attention_us(&q, shape);
        break;
    case ATS_COST_BYTES:
        us = bytes_us(&q, shape);
        break;
    }
    return shape->fused ? fmax(us - profile->launch_us[side], 0) : us;
}

/* ---- copies and splits ---- */

double ats_profile_copy_latency_us(const struct ats_profile *profile)
{
    const struct ats_profile_copies *c =
        &profile->copies[ATS_PROFILE_TO_DEVICE][ATS_PROFILE_PINNED];
    if (c->n_points < 2) {
        return 0;
    }
    const struct ats_profile_point *a = &c->points[0];
    const struct ats_profile_point *b = &c->points[1];
    return fmax(a->us - (b->us - a->us) * a->n / (b->n - a->n), 0);
}

double ats_profile_copy_us(const struct ats_profile *profile, double bytes, bool to_host,
                           bool pinned)
{
    const struct ats_profile_copies *c =
        &profile->copies[to_host ? ATS_PROFILE_TO_HOST : ATS_PROFILE_TO_DEVICE]
                        [pinned ? ATS_PROFILE_PINNED : ATS_PROFILE_PAGEABLE];
    const struct ats_profile_point *last = &c->points[c->n_points - 1];
    if (bytes <= last->n) {
        return over_points(c->points, c->n_points, bytes);
    }
    const double latency = fmin(ats_profile_copy_latency_us(profile), last->us);
    return latency + (last->us - latency) * bytes / last->n;
}

double ats_profile_split_us(const struct ats_profile *profile)
{
    return profile->round_trip_us / 2;
}

/* ---- rates ---- */

/* 1 GB/s is a thousand bytes per microsecond, 1 TFLOP/s a million operations. */
static const double BYTES_PER_US = 1e3;
static const double FLOPS_PER_US = 1e6;

static double copy_gbps(const struct ats_profile *p, int direction, int pinned)
{
    const struct ats_profile_copies *c = &p->copies[direction][pinned];
    const struct ats_profile_point *last = &c->points[c->n_points - 1];
    const double latency = ats_profile_copy_latency_us(p);
    const double us = last->us > latency ? last->us - latency : last->us;
    return last->n / us / BYTES_PER_US;
}

/* Of a large matrix: what a model's weights are like. */
static struct ats_op_shape large_matrix(const struct ats_profile *p, enum ats_side side,
                                        enum ats_type_family family, double n)
{
    double elements = 0;
    double bytes = 0;
    for (size_t i = 0; i < p->n_curves; i++) {
        const struct ats_profile_curve *c = &p->curves[i];
        if (c->side == side && c->kind == ATS_COST_MATMUL && c->m * c->k > elements) {
            elements = c->m * c->k;
        }
    }
    static const double per_element[ATS_FAMILIES] = {4, 2, 34.0 / 32, 144.0 / 256, 17.0 / 32};
    bytes = elements * per_element[family];
    return (struct ats_op_shape){.kind = ATS_COST_MATMUL,
                                 .family = family,
                                 .fused = true,
                                 .m = 1,
                                 .k = elements,
                                 .n = n,
                                 .batch = 1,
                                 .weight_bytes = bytes};
}

static void set_rates(const struct ats_profile *p, enum ats_side side, struct ats_device_rates *r)
{
    enum { LARGE_BATCH = 512 };
    const double launch = p->launch_us[side];
    for (int f = 0; f < ATS_FAMILIES; f++) {
        struct ats_op_shape s = large_matrix(p, side, (enum ats_type_family)f, 1);
        r->vram_gbps[f] =
            s.weight_bytes / fmax(ats_profile_op_us(p, side, NULL, &s), 1e-3) / BYTES_PER_US;
        s.n = LARGE_BATCH;
        const double flops = 2 * s.m * s.k * s.n;
        r->matmul_tflops[f] =
            flops / fmax(ats_profile_op_us(p, side, NULL, &s), 1e-3) / FLOPS_PER_US;
    }
    const struct ats_op_shape small = {.kind = ATS_COST_BYTES, .fused = true, .io_bytes = 16 << 20};
    r->small_op_gbps =
        small.io_bytes / fmax(ats_profile_op_us(p, side, NULL, &small), 1e-3) / BYTES_PER_US;
    /* 512 queries of 32 heads of 128 over 2048 keys, 8 of them stored */
    struct ats_op_shape attention = {.kind = ATS_COST_ATTENTION,
                                     .fused = true,
                                     .m = 2048,
                                     .n = LARGE_BATCH,
                                     .k = 128,
                                     .batch = 32,
                                     .weight_bytes = 2.0 * 2 * 2048 * 128 * 8};
    const double flops = 4 * attention.m * attention.n * attention.k * attention.batch;
    const double tflops =
        flops / fmax(ats_profile_op_us(p, side, "f16", &attention), 1e-3) / FLOPS_PER_US;
    r->attention_efficiency = fmin(tflops / r->matmul_tflops[ATS_FAMILY_F16], 1);
    r->launch_us = launch;
}

void ats_profile_rates(const struct ats_profile *profile, struct ats_device_rates *device,
                       struct ats_device_rates *cpu)
{
    struct ats_device_rates shared = {
        .h2d_gbps = copy_gbps(profile, ATS_PROFILE_TO_DEVICE, ATS_PROFILE_PINNED),
        .d2h_gbps = copy_gbps(profile, ATS_PROFILE_TO_HOST, ATS_PROFILE_PINNED),
        .pageable_gbps = copy_gbps(profile, ATS_PROFILE_TO_DEVICE, ATS_PROFILE_PAGEABLE),
        .copy_latency_us = ats_profile_copy_latency_us(profile),
        .copy_engines = 1,
        .cpu_threads = profile->identity.threads,
    };
    shared.dram_limit_gbps = profile->beside_link_gbps + profile->beside_cpu_gbps;
    for (size_t i = 0; i < profile->n_counts; i++) {
        const struct ats_profile_threads *count = &profile->counts[i];
        if (count->threads == profile->identity.threads) {
            shared.cpu_gbps = count->matvec_gbps;
        }
    }
    *device = shared;
    *cpu = shared;
    set_rates(profile, ATS_ACCEL, device);
    set_rates(profile, ATS_HOST, cpu);
    if (shared.cpu_gbps <= 0) { /* a thread count that was not tried for the table */
        device->cpu_gbps = cpu->vram_gbps[ATS_FAMILY_Q4];
        cpu->cpu_gbps = device->cpu_gbps;
    }
    device->dram_limit_gbps = fmax(device->dram_limit_gbps, device->cpu_gbps);
    cpu->dram_limit_gbps = device->dram_limit_gbps;
}

struct ats_plan_rates ats_profile_plan_rates(const struct ats_profile *profile)
{
    struct ats_device_rates device;
    struct ats_device_rates cpu;
    ats_profile_rates(profile, &device, &cpu);
    return ats_plan_rates_of(&cpu, &device, ats_profile_split_us(profile));
}
