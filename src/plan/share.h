/* Shares: of the experts of a layer that a prompt uses and that are not in VRAM, some cross the
 * link (used.h) while the CPU computes with the others where they are.
 *
 * Pure. An expert takes the link as long however many columns want it, the CPU longer with each.
 * With o of the CPU's time for what is left to it, and n experts that cross,
 *
 *   o = f + sum_e max(r, (n_e + h) c)
 *   T = max(o, o + n l - p o)
 *
 * over the n_e columns of each expert e that is left to the CPU; r is the time to read an expert, c
 * that to compute a column, h the columns at which the CPU computes half as fast as with many
 * (cost/cost.h), f what begins and ends the CPU's part, l that of an expert on the link while the
 * CPU does nothing, and p the part of that rate that it has beside the CPU. Those with the fewest
 * columns are left to the CPU, as many as make T the shortest: with as many left, any other choice
 * takes the CPU longer.
 *
 * Thread-safety: no shared state. */
#ifndef ATS_PLAN_SHARE_H
#define ATS_PLAN_SHARE_H

#include "plan/rates.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* In microseconds; of an expert, all of its matrices together. */
struct ats_share_costs {
    float link_us;   /* l */
    float read_us;   /* r */
    float column_us; /* c */
    float half;      /* h */
    float fixed_us;  /* f */
    float beside;    /* p */
};

/* Of experts that take `bytes`, copied in `n_copies`, and `flops` for a column. */
struct ats_share_costs ats_share_costs_of(const struct ats_plan_rates *rates,
                                          enum ats_type_family family, double bytes,
                                          double n_copies, double flops);

/* An expert that is used and not in VRAM. */
struct ats_share_expert {
    int32_t expert;
    uint32_t n_columns;
};

/* Sorts the experts, by the number of columns and then by their own, and returns how many of the
 * first are for the CPU: at most what have `most_columns` together. */
uint32_t ats_share_choose(const struct ats_share_costs *costs, struct ats_share_expert *experts,
                          uint32_t n, uint64_t most_columns);

/* Their T, in microseconds, of `n` experts that cross while the CPU takes own_us; 0: it takes no
 * share. */
double ats_share_us(const struct ats_share_costs *costs, double own_us, double n);

/* Whether it is faster to leave an expert with a single column to the CPU, if there is time. */
bool ats_share_may_pay(const struct ats_share_costs *costs);

/* How many of `n_experts` with the columns of a prompt spread evenly are left to the CPU, and in
 * *us the T of all. */
double ats_share_expected(const struct ats_share_costs *costs, uint32_t n_experts,
                          uint64_t n_columns, uint64_t most_columns, double *us);

#endif
