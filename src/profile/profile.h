/* What was measured of a machine: how long operators, copies and splits take
 * on its CPU and on one accelerator (format "ats-profile-2", docs/profile.md).
 *
 * Plain data. src/measure fills it, predict.h reads times out of it. Reading
 * and writing touch files and nothing else; safe from any thread, as long as a
 * profile is not changed meanwhile. */
#ifndef ATS_PROFILE_PROFILE_H
#define ATS_PROFILE_PROFILE_H

#include "base/error.h"
#include "cost/cost.h"
#include "plan/side.h"

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#define ATS_PROFILE_FORMAT "ats-profile-2"

enum {
    ATS_PROFILE_TEXT = 160, /* bytes of a text, the end included */
    ATS_PROFILE_TYPE = 16,  /* of a type's name */
    ATS_PROFILE_MAX_THREADS = 1024,
    ATS_PROFILE_MAX_COUNTS = 32, /* thread counts that were tried */
    ATS_PROFILE_MAX_POINTS = 32,
    ATS_PROFILE_MAX_CURVES = 1024,
};

/* What a profile holds for. Another CPU, device, driver, ggml or thread count has other times. */
struct ats_profile_identity {
    char cpu[ATS_PROFILE_TEXT]; /* model name, as the kernel has it */
    uint64_t host_bytes;        /* of memory */
    char device[ATS_PROFILE_TEXT];
    char description[ATS_PROFILE_TEXT];
    uint64_t device_bytes;
    char driver[ATS_PROFILE_TEXT]; /* ggml's backend and the driver below it */
    char ggml[ATS_PROFILE_TYPE];
    int threads; /* that the CPU computed with */
};

/* A measured time. */
struct ats_profile_point {
    double n;        /* MATMUL, EXPERTS: columns, that is tokens; ATTENTION: queries;
                        BYTES and copies: bytes */
    double us;       /* of one operator or copy */
    double distinct; /* EXPERTS: how many experts those tokens used; else 0 */
};

/* Times of one operator shape over its batch. */
struct ats_profile_curve {
    enum ats_side side;
    enum ats_cost_kind kind;     /* MATMUL, EXPERTS, ATTENTION or BYTES */
    char type[ATS_PROFILE_TYPE]; /* ggml's name of the weights' or the cache's type; BYTES: of the
                                    operator, "add" or "rms_norm" */
    double m;                    /* rows of the weight; ATTENTION: keys; BYTES: 0 */
    double k;                    /* its columns; ATTENTION: size of a head; BYTES: 0 */
    double heads;                /* ATTENTION: of the queries; else 0 */
    double n_experts;            /* EXPERTS: that the weight stacks; else 0 */
    double n_used;               /* EXPERTS: per token; else 0 */
    double weight_bytes;         /* of the weight, of one expert, of keys and values; BYTES: 0 */
    size_t n_points;
    struct ats_profile_point points[ATS_PROFILE_MAX_POINTS]; /* n rises strictly, us never falls */
};

/* Times of copies over their size. */
struct ats_profile_copies {
    size_t n_points;
    struct ats_profile_point points[ATS_PROFILE_MAX_POINTS];
};

enum { ATS_PROFILE_TO_DEVICE = 0, ATS_PROFILE_TO_HOST = 1 };
enum { ATS_PROFILE_PAGEABLE = 0, ATS_PROFILE_PINNED = 1 };

/* What host memory gives to a number of threads. */
struct ats_profile_threads {
    int threads;
    double read_gbps;   /* of F32 weights in matrix-vector products: next to no arithmetic */
    double matvec_gbps; /* of Q4_K weights */
};

struct ats_profile {
    struct ats_profile_identity identity;
    char created[ATS_PROFILE_TEXT]; /* "2026-11-29T21:37:00Z" */
    bool quick;                     /* few shapes, in a few seconds */

    int cores;                   /* physical ones that this process may use */
    int hw_threads;              /* hardware threads of those */
    uint64_t cache_bytes;        /* last-level cache; 0: not known */
    char cpus[ATS_PROFILE_TEXT]; /* the hardware threads to compute on, such as "0-7,16" */
    int best_threads;
    size_t n_counts;
    struct ats_profile_threads counts[ATS_PROFILE_MAX_COUNTS]; /* by rising count */

    uint64_t free_bytes;         /* of device memory, before anything was measured */
    double launch_us[ATS_SIDES]; /* of the smallest operator within a graph */
    double round_trip_us;        /* CPU to accelerator and back, with nothing to do there */
    double broken_fusion_us;     /* what gate, up and activation take longer if not fused */
    struct ats_profile_copies copies[2][2]; /* [direction][pinned] */
    /* What link and CPU get at the same time: pinned memory is copied to the device while the CPU
     * reads weights with its threads. */
    double beside_link_gbps;
    double beside_cpu_gbps;
    size_t n_curves;
    struct ats_profile_curve *curves; /* owned */
};

/* Reads a file. Anything unknown, missing, mistyped or out of range is an error that names file,
 * key and what is allowed; then `profile` is untouched. The caller frees what was read. */
bool ats_profile_read(const char *path, struct ats_profile *profile, struct ats_error *err);

/* Replaces the file at once, so that readers see the old one or the new one. The folder must be
 * there. */
bool ats_profile_write(const char *path, const struct ats_profile *profile, struct ats_error *err);

/* The same text to a stream. False with an error if memory is out or it cannot be written. */
bool ats_profile_print(FILE *out, const struct ats_profile *profile, struct ats_error *err);

void ats_profile_free(struct ats_profile *profile);

/* Appends a curve without points; NULL if memory is out or there are too many. The pointer holds
 * until the next call. */
struct ats_profile_curve *ats_profile_add_curve(struct ats_profile *profile,
                                                const struct ats_profile_curve *curve);

/* Puts a point where its n belongs, replacing one of equal n. False if there is no room. */
bool ats_profile_add_point(struct ats_profile_point *points, size_t *n_points,
                           struct ats_profile_point point);

/* Drops curves without points and makes times monotone: where more work was measured to take less
 * time, which is noise or a better kernel, the times around become their mean (isotonic regression
 * by pooling adjacent violators). A model of costs needs "more is never faster" more than it needs
 * that detail. Reading does this too. */
void ats_profile_settle(struct ats_profile *profile);

/* Isotonic regression of `values` by least squares with equal weights, in place. Each result is
 * max over i <= x of min over j >= x of the mean of values i..j (Barlow et al., "Statistical
 * Inference under Order Restrictions", 1972), so it rises with every value. At most
 * ATS_PROFILE_MAX_CURVES values. */
void ats_profile_make_monotone(double *values, size_t n);

/* NULL if a profile of `have` may be used on a machine of `want`; else what differs, as a name for
 * messages: "CPU", "driver" and so on. Memory sizes may differ by a twentieth, as reserved parts
 * do from boot to boot. */
const char *ats_profile_mismatch(const struct ats_profile_identity *have,
                                 const struct ats_profile_identity *want);

const char *ats_profile_kind_name(enum ats_cost_kind kind);

#endif
