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

/* What the link and a change of sides cost (plan/rates.h). */
struct ats_partition_costs {
    float split_us;                     /* fixed cost of changing sides once */
    float copy_latency_us;              /* from the start of a copy to its first byte */
    float link_bytes_per_us;            /* bandwidth between the sides */
    float least_link_bytes_per_us;      /* what it has at least, for what must not be late */
    float link_beside_cpu_bytes_per_us; /* of it, while the CPU reads weights */
    float chunk_bytes;  /* of which weights cross beside the CPU; 0: as a whole, at no cost */
    float most_of_held; /* crossing may take at most this part of the time that holding takes */
};

/* Writes one side per operator. Returns false if memory ran out. */
bool ats_partition(const struct ats_graph_desc *graph, const struct ats_partition_costs *costs,
                   enum ats_side *sides);

/* A random partition from a seed, for tests: runs of random length, each on a
 * random side, bent only where the rule above leaves an operator one side. */
void ats_partition_random(const struct ats_graph_desc *graph, uint64_t seed, enum ats_side *sides);

#endif
