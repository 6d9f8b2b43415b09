/* What decisions about a graph take operators, copies and changes of side to cost.
 *
 * Pure; no state, safe from any thread. Backend and simulator decide by the same rates, those of
 * the machine's profile (profile/predict.h) where there is one. */
#ifndef ATS_PLAN_RATES_H
#define ATS_PLAN_RATES_H

#include "cost/cost.h"
#include "plan/partition.h"

struct ats_plan_rates {
    struct ats_device_rates side[ATS_SIDES]; /* the CPU is described as if it were a device */
    struct ats_partition_costs costs;
};

/* Without a profile: a desktop CPU, a mid-range GPU, a PCIe 4.0 x16 link's 24 GB/s, and tens of
 * microseconds for a launch, a synchronisation and a drained pipeline. Beside a CPU that decodes,
 * the link gets what two channels of DDR4 leave it: 45 of 51.2 GB/s in all, less 36 (rigs/). What
 * must not be late counts on PCIe 3.0 x16, 12 GB/s. */
extern const struct ats_plan_rates ats_plan_rates_assumed;

/* Those of a machine whose sides have these rates. A change of side takes split_us. What the link
 * gets beside the CPU is what it leaves of the memory that both share. */
struct ats_plan_rates ats_plan_rates_of(const struct ats_device_rates *cpu,
                                        const struct ats_device_rates *device, double split_us);

#endif
