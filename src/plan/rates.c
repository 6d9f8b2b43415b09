#include "plan/rates.h"

#include "plan/beside.h"

#include <math.h>

/* 1 GB/s is a thousand bytes per microsecond. */
static const double BYTES_PER_US = 1e3;

/* What crosses in each pass can be late, what is held cannot: a smaller gain is not worth it. */
#define MOST_OF_HELD 0.95F

const struct ats_plan_rates ats_plan_rates_assumed = {
    .side =
        {
            [ATS_HOST] = {.vram_gbps = {30, 30, 30, 30, 30},
                          .matmul_tflops = {0.1, 0.1, 0.1, 0.1, 0.1},
                          .small_op_gbps = 30,
                          .attention_efficiency = 1,
                          .launch_us = 2},
            [ATS_ACCEL] = {.vram_gbps = {250, 250, 250, 250, 250},
                           .matmul_tflops = {10, 10, 10, 10, 10},
                           .small_op_gbps = 250,
                           .attention_efficiency = 1,
                           .launch_us = 3},
        },
    .costs =
        {
            .split_us = 40.0F,
            .copy_latency_us = 10.0F,
            .link_bytes_per_us = 24e3F,
            .least_link_bytes_per_us = 12e3F,
            .link_beside_cpu_bytes_per_us = 9e3F,
            .chunk_bytes = ATS_BESIDE_CHUNK,
            .most_of_held = MOST_OF_HELD,
        },
};

struct ats_plan_rates ats_plan_rates_of(const struct ats_device_rates *cpu,
                                        const struct ats_device_rates *device, double split_us)
{
    const double link = fmin(device->h2d_gbps, device->dram_limit_gbps);
    const double left = fmax(device->dram_limit_gbps - device->cpu_gbps, 0);
    return (struct ats_plan_rates){
        .side = {[ATS_HOST] = *cpu, [ATS_ACCEL] = *device},
        .costs =
            {
                .split_us = (float)split_us,
                .copy_latency_us = (float)device->copy_latency_us,
                .link_bytes_per_us = (float)(link * BYTES_PER_US),
                .least_link_bytes_per_us = (float)(link * BYTES_PER_US),
                .link_beside_cpu_bytes_per_us = (float)(fmin(link, left) * BYTES_PER_US),
                .chunk_bytes = ATS_BESIDE_CHUNK,
                .most_of_held = MOST_OF_HELD,
            },
    };
}
