/* What stands between the two sides: copies, launches, changes of side.
 *
 * Each function measures into a profile and fails with an error if a device
 * does. Used by one thread. */
#ifndef ATS_MEASURE_LINK_H
#define ATS_MEASURE_LINK_H

#include "measure/bench.h"

/* Copies of 4 KiB to 64 MiB (quick: fewer sizes, to 16 MiB; less if the device's pool is smaller),
 * both ways, from and to pageable
 * memory (the host's pool) and memory that the device's backend has pinned; without such memory the
 * pageable one stands in. Each copy is waited for. */
bool ats_measure_copies(struct ats_bench *host, struct ats_bench *accel, bool quick, double slot_us,
                        struct ats_profile *profile, struct ats_error *err);

/* beside_link_gbps, beside_cpu_gbps: copies of the largest size that was measured, from pinned
 * memory, while the CPU reads Q4_K weights with its threads. Needs the copies. Where copying keeps
 * the calling thread, nothing is beside anything: the link's own rate, and 0. */
bool ats_measure_beside(struct ats_bench *host, struct ats_bench *accel,
                        struct ats_profile *profile, struct ats_error *err);

/* What the smallest operator takes within a graph. */
bool ats_measure_launch(struct ats_bench *bench, double slot_us, double *launch_us,
                        struct ats_error *err);

/* round_trip_us: from the CPU to the device and back with 16 KiB each way and one tiny operator
 * there, less that operator and what the CPU does in any case. broken_fusion_us: what a block of
 * gate, up and activation takes longer on the device if the two products cannot be fused with what
 * follows. Needs launch_us. */
bool ats_measure_splits(struct ats_bench *host, struct ats_bench *accel, double slot_us,
                        struct ats_profile *profile, struct ats_error *err);

#endif
