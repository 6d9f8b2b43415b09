#include "cost/cost.h"

#include <math.h>

/* 1 GB/s is a thousand bytes per microsecond, 1 TFLOP/s a million operations. */
static const double BYTES_PER_US = 1e3;
static const double FLOPS_PER_US = 1e6;

const char *ats_family_name(enum ats_type_family family)
{
    static const char *const names[ATS_FAMILIES] = {"f32", "f16", "q8", "q4", "mxfp4"};
    return names[family];
}

void ats_rates_scale(struct ats_device_rates *rates, double factor)
{
    for (int i = 0; i < ATS_FAMILIES; i++) {
        rates->vram_gbps[i] *= factor;
        rates->matmul_tflops[i] *= factor;
    }
    rates->small_op_gbps *= factor;
    rates->launch_us /= factor;
    rates->h2d_gbps *= factor;
    rates->d2h_gbps *= factor;
    rates->pageable_gbps *= factor;
    rates->copy_latency_us /= factor;
    rates->dram_limit_gbps *= factor;
    rates->cpu_gbps *= factor;
}

static double bytes_us(double bytes, double gbps)
{
    return bytes / (gbps * BYTES_PER_US);
}

/* `columns` share the weights that a kernel has loaded. */
static double flops_us(const struct ats_device_rates *rates, double flops, double tflops,
                       double columns)
{
    const double reached = columns / (columns + rates->matmul_half_batch);
    return columns > 0 ? flops / (tflops * reached * FLOPS_PER_US) : 0;
}

static double matmul_us(const struct ats_device_rates *rates, const struct ats_op_shape *s)
{
    const double flops = 2 * s->m * s->n * s->k * s->batch;
    const double memory = bytes_us(s->weight_bytes + s->io_bytes, rates->vram_gbps[s->family]);
    return fmax(memory, flops_us(rates, flops, rates->matmul_tflops[s->family], s->n));
}

double ats_cost_expected_experts(double n_experts, double n_used, double n)
{
    return n_experts * (1 - pow(1 - n_used / n_experts, n));
}

static double experts_us(const struct ats_device_rates *rates, const struct ats_op_shape *s)
{
    const double distinct = s->n_distinct > 0
                                ? s->n_distinct
                                : ats_cost_expected_experts(s->n_experts, s->n_used, s->n);
    const double rows = s->n * s->n_used;
    const double flops = 2 * s->m * s->k * rows;
    const double memory =
        bytes_us(distinct * s->weight_bytes + s->io_bytes, rates->vram_gbps[s->family]);
    const double columns = distinct > 0 ? rows / distinct : 0;
    return fmax(memory, flops_us(rates, flops, rates->matmul_tflops[s->family], columns));
}

static double attention_us(const struct ats_device_rates *rates, const struct ats_op_shape *s)
{
    const double flops = 4 * s->m * s->n * s->k * s->batch;
    const double tflops = rates->matmul_tflops[ATS_FAMILY_F16] * rates->attention_efficiency;
    const double memory = bytes_us(s->weight_bytes + s->io_bytes, rates->vram_gbps[ATS_FAMILY_F16]);
    return fmax(memory, flops_us(rates, flops, tflops, s->n));
}

double ats_cost_op_us(const struct ats_device_rates *rates, const struct ats_op_shape *shape)
{
    const double launch = shape->fused ? 0 : rates->launch_us;
    switch (shape->kind) {
    case ATS_COST_NONE:
        return 0;
    case ATS_COST_MATMUL:
        return launch + matmul_us(rates, shape);
    case ATS_COST_EXPERTS:
        return launch + experts_us(rates, shape);
    case ATS_COST_ATTENTION:
        return launch + attention_us(rates, shape);
    case ATS_COST_BYTES:
        return launch + bytes_us(shape->io_bytes, rates->small_op_gbps);
    }
    return 0;
}

double ats_cost_copy_us(const struct ats_device_rates *rates, double bytes, bool to_host,
                        bool pinned)
{
    const double link = to_host ? rates->d2h_gbps : rates->h2d_gbps;
    double gbps = fmin(link, rates->dram_limit_gbps);
    if (!pinned) {
        gbps = fmin(gbps, rates->pageable_gbps);
    }
    return rates->copy_latency_us + bytes_us(bytes, gbps);
}
