#include "profile/profile.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

const char *ats_profile_kind_name(enum ats_cost_kind kind)
{
    switch (kind) {
    case ATS_COST_MATMUL:
        return "matmul";
    case ATS_COST_EXPERTS:
        return "experts";
    case ATS_COST_ATTENTION:
        return "attention";
    case ATS_COST_BYTES:
        return "bytes";
    case ATS_COST_NONE:
        break;
    }
    return "none";
}

void ats_profile_free(struct ats_profile *profile)
{
    free(profile->curves);
    *profile = (struct ats_profile){0};
}

struct ats_profile_curve *ats_profile_add_curve(struct ats_profile *profile,
                                                const struct ats_profile_curve *curve)
{
    if (profile->n_curves == ATS_PROFILE_MAX_CURVES) {
        return NULL;
    }
    /* room for 1, 2, 4, ... */
    if ((profile->n_curves & (profile->n_curves - 1)) == 0) {
        const size_t room = profile->n_curves == 0 ? 1 : 2 * profile->n_curves;
        struct ats_profile_curve *grown =
            realloc(profile->curves, room * sizeof(profile->curves[0]));
        if (grown == NULL) {
            return NULL;
        }
        profile->curves = grown;
    }
    struct ats_profile_curve *added = &profile->curves[profile->n_curves++];
    *added = *curve;
    added->n_points = 0;
    return added;
}

bool ats_profile_add_point(struct ats_profile_point *points, size_t *n_points,
                           struct ats_profile_point point)
{
    size_t at = 0;
    while (at < *n_points && points[at].n < point.n) {
        at++;
    }
    if (at < *n_points && points[at].n <= point.n) {
        points[at] = point;
        return true;
    }
    if (*n_points == ATS_PROFILE_MAX_POINTS) {
        return false;
    }
    memmove(&points[at + 1], &points[at], (*n_points - at) * sizeof(points[0]));
    points[at] = point;
    (*n_points)++;
    return true;
}

void ats_profile_make_monotone(double *values, size_t n)
{
    /* pools of neighbours with their sums, from the left; the last two merge while they fall */
    size_t first[ATS_PROFILE_MAX_CURVES];
    double sum[ATS_PROFILE_MAX_CURVES];
    size_t n_pools = 0;
    for (size_t i = 0; i < n && i < ATS_PROFILE_MAX_CURVES; i++) {
        first[n_pools] = i;
        sum[n_pools] = values[i];
        n_pools++;
        size_t end = i + 1;
        while (n_pools > 1) {
            const double last = sum[n_pools - 1] / (double)(end - first[n_pools - 1]);
            const double before =
                sum[n_pools - 2] / (double)(first[n_pools - 1] - first[n_pools - 2]);
            if (before <= last) {
                break;
            }
            sum[n_pools - 2] += sum[n_pools - 1];
            n_pools--;
        }
    }
    for (size_t p = 0; p < n_pools; p++) {
        const size_t end = p + 1 < n_pools ? first[p + 1] : n;
        for (size_t i = first[p]; i < end; i++) {
            values[i] = sum[p] / (double)(end - first[p]);
        }
    }
}

static void settle_points(struct ats_profile_point *points, size_t n)
{
    double us[ATS_PROFILE_MAX_POINTS];
    for (size_t i = 0; i < n; i++) {
        us[i] = points[i].us;
    }
    ats_profile_make_monotone(us, n);
    for (size_t i = 0; i < n; i++) {
        points[i].us = us[i];
    }
}

void ats_profile_settle(struct ats_profile *profile)
{
    size_t kept = 0;
    for (size_t i = 0; i < profile->n_curves; i++) {
        if (profile->curves[i].n_points > 0) {
            profile->curves[kept++] = profile->curves[i];
        }
    }
    profile->n_curves = kept;
    for (size_t i = 0; i < kept; i++) {
        settle_points(profile->curves[i].points, profile->curves[i].n_points);
    }
    for (int d = 0; d < 2; d++) {
        for (int p = 0; p < 2; p++) {
            settle_points(profile->copies[d][p].points, profile->copies[d][p].n_points);
        }
    }
}

static bool is_other_size(uint64_t a, uint64_t b)
{
    const double larger = (double)(a > b ? a : b);
    return fabs((double)a - (double)b) > larger / 20;
}

const char *ats_profile_mismatch(const struct ats_profile_identity *have,
                                 const struct ats_profile_identity *want)
{
    if (strcmp(have->cpu, want->cpu) != 0) {
        return "CPU";
    }
    if (is_other_size(have->host_bytes, want->host_bytes)) {
        return "size of host memory";
    }
    if (strcmp(have->device, want->device) != 0) {
        return "device";
    }
    if (strcmp(have->description, want->description) != 0) {
        return "description of the device";
    }
    if (is_other_size(have->device_bytes, want->device_bytes)) {
        return "size of device memory";
    }
    if (strcmp(have->driver, want->driver) != 0) {
        return "driver";
    }
    if (strcmp(have->ggml, want->ggml) != 0) {
        return "version of ggml";
    }
    return have->threads == want->threads ? NULL : "number of threads";
}
