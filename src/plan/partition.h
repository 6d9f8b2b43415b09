/* Partition: which side computes each operator of a graph.
 *
 * Pure. Splits follow the placement: an operator that touches data with a home runs
 * there (of several homes, that of what it writes decides first, then those of its reads
 * in order, each as far as it leaves a side that supports the operator). For the rest it
 * minimises the estimated time of one serial pass over the graph,
 *
 *   sum_i t_i(side_i) + h_i(side_i) + sum_{i: side_i != side_{i-1}} (c + live_i / B)
 *
 * with t_i the operator's own time, h_i the time to bring data with a home on
 * the other side, c the fixed cost of a split, live_i the bytes of activations
 * that are alive across the boundary and B the link's bandwidth. The optimum is
 * found by dynamic programming over (operator, side), O(n). The published
 * switching cost has no c; without it the solution fragments (measured by
 * others: 645 splits against 308, see docs/architecture.md).
 *
 * Thread-safety: no shared state. */
#ifndef ATS_PLAN_PARTITION_H
#define ATS_PLAN_PARTITION_H

#include "plan/graph_desc.h"

#include <stdbool.h>

/* Rates that the partition works with, until a measured profile replaces them. */
struct ats_partition_costs {
    float split_us;                     /* fixed cost of changing sides once */
    float copy_latency_us;              /* from the start of a copy to its first byte */
    float link_bytes_per_us;            /* bandwidth between the sides */
    float least_link_bytes_per_us;      /* what any link has: see below */
    float link_beside_cpu_bytes_per_us; /* of it, while the CPU reads weights */
};

/* Placeholder rates: a PCIe 4.0 x16 link's 24 GB/s effective, and tens of
 * microseconds for a launch, a synchronisation and a drained pipeline. Beside a CPU that decodes,
 * the link gets what two channels of DDR4 leave it: 45 of 51.2 GB/s in all, less 36 (rigs/). What
 * must not be late counts on PCIe 3.0 x16, 12 GB/s, as long as the link is not measured. */
extern const struct ats_partition_costs ats_partition_default_costs;

/* Writes one side per operator. Returns false if memory ran out. */
bool ats_partition(const struct ats_graph_desc *graph, const struct ats_partition_costs *costs,
                   enum ats_side *sides);

/* A random partition from a seed, for tests: runs of random length, each on a
 * random side, bent only where the rule above leaves an operator one side. */
void ats_partition_random(const struct ats_graph_desc *graph, uint64_t seed, enum ats_side *sides);

#endif
