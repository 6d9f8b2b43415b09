#include "plan/share.h"

#include <stdlib.h>

/* GB/s and TFLOP/s, in units per microsecond. */
static const double BYTES_PER_US = 1e3;
static const double FLOPS_PER_US = 1e6;

struct ats_share_costs ats_share_costs_of(const struct ats_plan_rates *rates,
                                          enum ats_type_family family, double bytes,
                                          double n_copies, double flops)
{
    const struct ats_device_rates *cpu = &rates->side[ATS_HOST];
    const struct ats_partition_costs *costs = &rates->costs;
    const double read_us = bytes / (BYTES_PER_US * cpu->vram_gbps[family]);
    const double column_us = flops / (FLOPS_PER_US * cpu->matmul_tflops[family]);
    const double rate = (double)costs->link_bytes_per_us;
    return (struct ats_share_costs){
        .link_us = (float)(bytes / rate + n_copies * (double)costs->copy_latency_us),
        .read_us = (float)read_us,
        .column_us = (float)column_us,
        .half = (float)cpu->matmul_half_batch,
        .fixed_us = 2 * costs->split_us,
        .beside = costs->link_beside_cpu_bytes_per_us / costs->link_bytes_per_us,
    };
}

static int compare(const void *a, const void *b)
{
    const struct ats_share_expert *x = a;
    const struct ats_share_expert *y = b;
    if (x->n_columns != y->n_columns) {
        return x->n_columns < y->n_columns ? -1 : 1;
    }
    return x->expert < y->expert ? -1 : x->expert > y->expert;
}

static double cpu_us(const struct ats_share_costs *costs, double n_columns)
{
    const double computing = (double)costs->column_us * (n_columns + (double)costs->half);
    return computing > (double)costs->read_us ? computing : (double)costs->read_us;
}

double ats_share_us(const struct ats_share_costs *costs, double own_us, double n)
{
    const double late_us = (double)costs->link_us * n - (double)costs->beside * own_us;
    return late_us > 0 ? own_us + late_us : own_us;
}

bool ats_share_may_pay(const struct ats_share_costs *costs)
{
    return cpu_us(costs, 1) * (1 - (double)costs->beside) < (double)costs->link_us;
}

uint32_t ats_share_choose(const struct ats_share_costs *costs, struct ats_share_expert *experts,
                          uint32_t n, uint64_t most_columns)
{
    double best_us = ats_share_us(costs, 0, n);
    double own_us = (double)costs->fixed_us;
    uint64_t columns = 0;
    uint32_t best = 0;
    qsort(experts, n, sizeof(*experts), compare);
    for (uint32_t k = 0; k < n; k++) {
        own_us += cpu_us(costs, experts[k].n_columns);
        columns += experts[k].n_columns;
        if (columns > most_columns) {
            break;
        }
        const double us = ats_share_us(costs, own_us, n - k - 1);
        if (us < best_us) {
            best_us = us;
            best = k + 1;
        }
    }
    return best;
}

double ats_share_expected(const struct ats_share_costs *costs, uint32_t n_experts,
                          uint64_t n_columns, uint64_t most_columns, double *us)
{
    const double n = n_experts;
    const double columns = n_experts > 0 ? (double)n_columns / n : 0;
    const double each_us = cpu_us(costs, columns);
    const double fixed_us = (double)costs->fixed_us;
    const double link_us = (double)costs->link_us;
    const double beside = (double)costs->beside;
    /* as many as keep the CPU at work until the others have crossed: p (f + k each) = (n - k) l */
    double k = (link_us * n - beside * fixed_us) / (link_us + beside * each_us);
    const double most = columns > 0 ? (double)most_columns / columns : 0;
    k = k < most ? k : most;
    *us = ats_share_us(costs, 0, n);
    if (n_experts == 0 || k <= 0) {
        return 0;
    }
    const double shared_us = ats_share_us(costs, fixed_us + k * each_us, n - k);
    if (shared_us >= *us) {
        return 0;
    }
    *us = shared_us;
    return k;
}
