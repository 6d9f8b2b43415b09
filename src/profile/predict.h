/* The cost model: how long an operator, a copy or a change of side takes, by
 * interpolation in a measured profile (docs/profile.md).
 *
 * All times are microseconds. L is the measured launch of a side:
 * what the smallest operator within a graph takes.
 *
 * Over the batch a curve is piecewise affine between its points, as "a + b n"
 * and "proportional to n" both are; before the first point it is constant.
 * Beyond its last point it grows as the curve of the nearest size does that goes
 * on further, of its own type or else of another, and with its own last slope if
 * there is none.
 *
 * Over the size e of an operator's work (MATMUL: m * k * batch; EXPERTS: m * k
 * of one expert; ATTENTION: m * k * heads) the curves of one type, read at the
 * batch asked for and made monotone, are the points of another piecewise affine
 * function. It begins at L for no work, and goes on in proportion to the work
 * beyond the largest shape:
 *
 *     t = L + (t_last - L) * e / e_last
 *
 * so that a matrix far larger than any that was measured is read at the
 * bandwidth of the largest one. A shape that was measured itself (same type,
 * m and k) is answered by its own curve.
 *
 * EXPERTS: what one expert takes, u = (t - L) / distinct, is a function of the
 * columns that fall on it, c = n * used / distinct. So t = L + distinct * u(c),
 * with the distinct experts of the case asked about.
 *
 * ATTENTION: of the measured layouts of heads the nearest in bytes of cache per
 * unit of work and in head size is taken. Without any, two F16 products with
 * the keys and values as weights.
 *
 * BYTES: the mean of the measured operators over the bytes touched.
 *
 * A type that was not measured is answered by the measured type of its family
 * (cost.h) with the nearest bytes per element, or of any family if there is
 * none, with t - L scaled by the bytes per element.
 *
 * More columns, rows or bytes never take less time, except next to a shape that
 * was measured itself.
 *
 * Pure: no state, safe from any thread. Profiles must be settled (profile.h)
 * and complete, as those that were read are. */
#ifndef ATS_PROFILE_PREDICT_H
#define ATS_PROFILE_PREDICT_H

#include "plan/rates.h"
#include "profile/profile.h"

/* `type`: ggml's name of the weights' or the cache's type; NULL: a usual one of shape->family.
 * shape->fused: no launch. Kind NONE, and what computes nothing: 0. */
double ats_profile_op_us(const struct ats_profile *profile, enum ats_side side, const char *type,
                         const struct ats_op_shape *shape);

/* A copy with link and memory to itself, until it is over. Below the smallest size measured a copy
 * takes what that one took. */
double ats_profile_copy_us(const struct ats_profile *profile, double bytes, bool to_host,
                           bool pinned);

/* One change of side, beside the bytes that cross: half of a round trip. */
double ats_profile_split_us(const struct ats_profile *profile);

/* Time of a copy before its first byte: where the line through the two smallest sizes (pinned, to
 * the device) meets zero bytes; at least 0. */
double ats_profile_copy_latency_us(const struct ats_profile *profile);

/* The profile as rates, for what models queues and links (cost/timeline.h) and for bounds: of the
 * largest shapes and copies. `cpu` describes the CPU as if it were a device. dram_limit_gbps is
 * what CPU and link reached together, or the CPU alone if that is more. */
void ats_profile_rates(const struct ats_profile *profile, struct ats_device_rates *device,
                       struct ats_device_rates *cpu);

/* The rates by which graphs are planned on the profile's machine. */
struct ats_plan_rates ats_profile_plan_rates(const struct ats_profile *profile);

#endif
