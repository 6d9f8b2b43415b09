/* What `ats profile` prints. */
#include "base/parse.h"
#include "cli/cli.h"
#include "cli/profile.h"
#include "profile/predict.h"

#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- the machine ---- */

static void show_machine(const struct ats_profile *p)
{
    const struct ats_profile_identity *i = &p->identity;
    char total[32];
    char unused[32];
    printf("CPU          %.66s\n", i->cpu);
    printf("             %d core%s, %d hardware thread%s, %s of memory\n", p->cores,
           p->cores == 1 ? "" : "s", p->hw_threads, p->hw_threads == 1 ? "" : "s",
           ats_format_bytes(i->host_bytes, total, sizeof(total)));
    printf("Accelerator  %.12s: %.52s\n", i->device, i->description);
    printf("             %s, %s free; %.40s\n",
           ats_format_bytes(i->device_bytes, total, sizeof(total)),
           ats_format_bytes(p->free_bytes, unused, sizeof(unused)), i->driver);
    printf("Measured     %.20s, %s, with %d thread%s and ggml %s\n", p->created,
           p->quick ? "quick" : "full", i->threads, i->threads == 1 ? "" : "s", i->ggml);
}

static void show_threads(const struct ats_profile *p)
{
    printf("\nThreads  reading GB/s  Q4_K matrix-vector GB/s\n");
    for (size_t i = 0; i < p->n_counts; i++) {
        const struct ats_profile_threads *count = &p->counts[i];
        printf("%7d  %12.1f  %23.1f%s\n", count->threads, count->read_gbps, count->matvec_gbps,
               count->threads == p->best_threads ? "  best" : "");
    }
    if (p->cpus[0] != '\0') {
        printf("Best on hardware threads %.50s\n", p->cpus);
    }
}

/* ---- copies and splits ---- */

static void show_copies(const struct ats_profile *p)
{
    static const size_t sizes[] = {(size_t)4 << 10, (size_t)64 << 10, (size_t)1 << 20,
                                   (size_t)16 << 20, (size_t)64 << 20};
    static const char *const names[2][2] = {{"to device, pageable", "to device, pinned"},
                                            {"to host, pageable", "to host, pinned"}};
    printf("\nCopies, GB/s           4 KiB    64 KiB     1 MiB    16 MiB    64 MiB\n");
    for (int d = 0; d < 2; d++) {
        for (int m = 1; m >= 0; m--) {
            printf("%-19s", names[d][m]);
            for (size_t i = 0; i < 5; i++) {
                const double us =
                    ats_profile_copy_us(p, (double)sizes[i], d == ATS_PROFILE_TO_HOST, m == 1);
                printf("%10.3g", (double)sizes[i] / us * 1e-3);
            }
            printf("\n");
        }
    }
    printf("\nMicroseconds: smallest operator %.3g on the CPU, %.3g on the accelerator;\n"
           "round trip between them %.3g; broken fusion of a feed-forward block %.3g;\n"
           "latency of a copy %.3g\n"
           "At once, GB/s: %.3g of pinned memory to the device, %.3g read by the CPU\n",
           p->launch_us[ATS_HOST], p->launch_us[ATS_ACCEL], p->round_trip_us, p->broken_fusion_us,
           ats_profile_copy_latency_us(p), p->beside_link_gbps, p->beside_cpu_gbps);
}

/* ---- operators ---- */

static const double shown_batches[] = {1, 8, 32, 128, 512};
enum { N_SHOWN = sizeof(shown_batches) / sizeof(shown_batches[0]) };

static void describe_shape(const struct ats_profile_curve *c, char *text, size_t size)
{
    switch (c->kind) {
    case ATS_COST_EXPERTS:
        snprintf(text, size, "%.0fx%.0f %.0f/%.0f", c->m, c->k, c->n_used, c->n_experts);
        break;
    case ATS_COST_ATTENTION:
        snprintf(text, size, "%.0f keys, %.0fx%.0f", c->m, c->heads, c->k);
        break;
    case ATS_COST_MATMUL:
        snprintf(text, size, "%.0fx%.0f", c->m, c->k);
        break;
    default:
        snprintf(text, size, "%s, 4096", c->type);
        break;
    }
}

static const char *type_of(const struct ats_profile_curve *c)
{
    return c->kind == ATS_COST_BYTES ? "f32" : c->type;
}

/* Four significant digits in eight columns. */
static void print_us(double us)
{
    if (us < 9999.5) {
        printf("%8.4g", us);
    } else if (us < 9999999.5) {
        printf("%8.0f", us);
    } else {
        printf("%8.2g", us);
    }
}

static double shown_n(const struct ats_profile_curve *c, double batch)
{
    const double row = 4096.0 * sizeof(float) * (strcmp(c->type, "add") == 0 ? 3 : 2);
    return c->kind == ATS_COST_BYTES ? batch * row : batch;
}

static void show_curve(const struct ats_profile_curve *c)
{
    char shape[32];
    describe_shape(c, shape, sizeof(shape));
    printf("%-6.5s%-10.9s%-18.17s%-4.3s", type_of(c), ats_profile_kind_name(c->kind), shape,
           c->side == ATS_HOST ? "CPU" : "acc");
    for (size_t b = 0; b < N_SHOWN; b++) {
        const struct ats_profile_point *found = NULL;
        const double n = shown_n(c, shown_batches[b]);
        for (size_t i = 0; i < c->n_points; i++) {
            found = fabs(c->points[i].n - n) < 0.5 ? &c->points[i] : found;
        }
        if (found != NULL) {
            print_us(found->us);
        } else {
            printf("%8s", "-");
        }
    }
    printf("\n");
}

void profile_show(const struct ats_profile *profile)
{
    show_machine(profile);
    show_threads(profile);
    show_copies(profile);
    printf("\nOperators, microseconds of one by tokens (- not measured)\n");
    printf("%-38s", "");
    for (size_t b = 0; b < N_SHOWN; b++) {
        printf("%8.0f", shown_batches[b]);
    }
    printf("\n");
    for (size_t i = 0; i < profile->n_curves; i++) {
        show_curve(&profile->curves[i]);
    }
}

/* ---- checks ---- */

static double error_of(const struct ats_measure_check *check)
{
    return check->predicted_us / check->measured_us - 1;
}

static int compare(const void *a, const void *b)
{
    const double x = *(const double *)a;
    const double y = *(const double *)b;
    return (x > y) - (x < y);
}

struct profile_errors profile_errors(const struct ats_measure_check *checks, size_t n,
                                     enum ats_side side)
{
    double errors[ATS_MEASURE_MAX_CHECKS];
    struct profile_errors result = {0};
    for (size_t i = 0; i < n; i++) {
        if (checks[i].shape.side == side) {
            errors[result.n++] = fabs(error_of(&checks[i]));
        }
    }
    if (result.n > 0) {
        qsort(errors, result.n, sizeof(errors[0]), compare);
        result.median = errors[(result.n - 1) / 2];
        result.p90 = errors[(result.n - 1) * 9 / 10];
    }
    return result;
}

static const char *side_name(enum ats_side side)
{
    return side == ATS_HOST ? "CPU" : "accelerator";
}

void profile_show_check(const struct ats_measure_check *checks, size_t n)
{
    printf("Held-back shapes                  side tokens   measured  predicted    off by\n"
           "                                                      us         us\n");
    for (size_t i = 0; i < n; i++) {
        const struct ats_measure_check *check = &checks[i];
        char shape[32];
        describe_shape(&check->shape, shape, sizeof(shape));
        printf("%-6.5s%-10.9s%-18.17s%-4.3s%6.0f%11.4g%11.4g%+9.1f %%\n", check->shape.type,
               ats_profile_kind_name(check->shape.kind), shape,
               check->shape.side == ATS_HOST ? "CPU" : "acc", check->n, check->measured_us,
               check->predicted_us, 100 * error_of(check));
    }
    printf("\n");
    for (int side = 0; side < ATS_SIDES; side++) {
        const struct profile_errors e = profile_errors(checks, n, (enum ats_side)side);
        printf("%-11s  %zu cases; error: median %.1f %% (bound %.0f), 90th percentile "
               "%.1f %% (%.0f)\n",
               side_name((enum ats_side)side), e.n, 100 * e.median, 100 * PROFILE_MAX_MEDIAN,
               100 * e.p90, 100 * PROFILE_MAX_P90);
    }
}

void profile_print_check(const struct ats_measure_check *checks, size_t n)
{
    json_t *cases = json_array();
    for (size_t i = 0; i < n; i++) {
        const struct ats_measure_check *check = &checks[i];
        char shape[32];
        describe_shape(&check->shape, shape, sizeof(shape));
        json_array_append_new(
            cases, json_pack("{s:s, s:s, s:s, s:s, s:f, s:f, s:f}", "side",
                             check->shape.side == ATS_HOST ? "host" : "accelerator", "kind",
                             ats_profile_kind_name(check->shape.kind), "type", check->shape.type,
                             "shape", shape, "tokens", check->n, "measured_us", check->measured_us,
                             "predicted_us", check->predicted_us));
    }
    json_t *sides = json_object();
    for (int side = 0; side < ATS_SIDES; side++) {
        const struct profile_errors e = profile_errors(checks, n, (enum ats_side)side);
        json_object_set_new(sides, side == ATS_HOST ? "host" : "accelerator",
                            json_pack("{s:I, s:f, s:f}", "cases", (json_int_t)e.n, "median_error",
                                      e.median, "p90_error", e.p90));
    }
    json_t *root = json_pack("{s:s, s:f, s:f, s:o, s:o}", "format", "ats-profile-check-1",
                             "max_median_error", PROFILE_MAX_MEDIAN, "max_p90_error",
                             PROFILE_MAX_P90, "sides", sides, "cases", cases);
    cli_print_json(root, JSON_INDENT(2));
}
