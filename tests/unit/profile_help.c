#include "profile_help.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <math.h>
#include <stdio.h>
#include <string.h>

void assert_near(double value, double expected)
{
    if (!(fabs(value - expected) <= 1e-6 * fmax(fabs(expected), 1))) {
        fail_msg("%.9g is not %.9g", value, expected);
    }
}

void add_curve(struct ats_profile *p, struct ats_profile_curve curve, const char *type,
               const double (*points)[3], size_t n)
{
    snprintf(curve.type, sizeof(curve.type), "%s", type);
    struct ats_profile_curve *c = ats_profile_add_curve(p, &curve);
    assert_non_null(c);
    for (size_t i = 0; i < n; i++) {
        assert_true(ats_profile_add_point(
            c->points, &c->n_points,
            (struct ats_profile_point){points[i][0], points[i][1], points[i][2]}));
    }
}

/* Q4 matrices of 1e6 and 4e6 elements at half a byte each, on both sides; the CPU's launch is 2 us,
 * the accelerator's 10. */
static void add_matmuls(struct ats_profile *p, enum ats_side side)
{
    static const double small[][3] = {{1, 12}, {4, 18}, {16, 60}};
    static const double large[][3] = {{1, 42}, {16, 222}};
    add_curve(
        p,
        (struct ats_profile_curve){
            .side = side, .kind = ATS_COST_MATMUL, .m = 1000, .k = 1000, .weight_bytes = 0.5e6},
        "q4_K", small, 3);
    add_curve(p,
              (struct ats_profile_curve){
                  .side = side, .kind = ATS_COST_MATMUL, .m = 2000, .k = 2000, .weight_bytes = 2e6},
              "q4_K", large, 2);
}

static void add_bytes(struct ats_profile *p, enum ats_side side)
{
    static const double sums[][3] = {{1e4, 12, 0}, {1e6, 30, 0}};
    static const double norms[][3] = {{1e4, 14, 0}, {1e6, 50, 0}};
    const struct ats_profile_curve curve = {.side = side, .kind = ATS_COST_BYTES};
    add_curve(p, curve, "add", sums, 2);
    add_curve(p, curve, "rms_norm", norms, 2);
}

static void add_copies(struct ats_profile *p)
{
    for (int d = 0; d < 2; d++) {
        for (int m = 0; m < 2; m++) {
            struct ats_profile_copies *c = &p->copies[d][m];
            const double slower = (d == 1 ? 2 : 1) * (m == 0 ? 4 : 1);
            const struct ats_profile_point points[] = {
                {4e3, 12 * slower, 0}, {2e4, 20 * slower, 0}, {1e6, 110 * slower, 0}};
            memcpy(c->points, points, sizeof(points));
            c->n_points = 3;
        }
    }
}

struct ats_profile make_profile(void)
{
    struct ats_profile p = {
        .identity = {.cpu = "Some CPU",
                     .host_bytes = (uint64_t)32 << 30,
                     .device = "GPU0",
                     .description = "Some GPU",
                     .device_bytes = (uint64_t)8 << 30,
                     .driver = "GPU, some 1.0",
                     .ggml = "0.25.1",
                     .threads = 4},
        .created = "2026-11-29T12:00:00Z",
        .cores = 4,
        .hw_threads = 8,
        .cache_bytes = 16 << 20,
        .cpus = "0-3",
        .best_threads = 4,
        .n_counts = 2,
        .counts = {{1, 10, 5}, {4, 30, 15}},
        .free_bytes = (uint64_t)7 << 30,
        .launch_us = {2, 10},
        .round_trip_us = 60,
        .beside_link_gbps = 9,
        .beside_cpu_gbps = 30,
        .broken_fusion_us = 7,
    };
    add_copies(&p);
    for (int side = 0; side < ATS_SIDES; side++) {
        add_matmuls(&p, (enum ats_side)side);
        add_bytes(&p, (enum ats_side)side);
    }
    return p;
}
