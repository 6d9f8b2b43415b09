#include "sim/machine.h"

#include <stdio.h>

/* Columns at which a CPU matmul reaches half of its rate: its kernels take columns one by one or in
 * fours, so that the rate hardly depends on their number. An estimate. */
static const double CPU_HALF_BATCH = 0;

/* Share of the CPU's matmul rate that attention reaches: an estimate. */
static const double CPU_ATTENTION_EFFICIENCY = 0.5;

struct ats_sim_overheads ats_sim_overheads_default(void)
{
    return (struct ats_sim_overheads){.graph_us = 200,
                                      .embedding_ns = 1.5,
                                      .mask_ns = 11,
                                      .split_us = 10,
                                      .sync_us = 5,
                                      .cpu_op_us = 4};
}

static void set_cpu(struct ats_sim_machine *m, const double matvec_gbps[ATS_FAMILIES],
                    double matmul_gflops)
{
    m->cpu = (struct ats_device_rates){
        .matmul_half_batch = CPU_HALF_BATCH,
        .small_op_gbps = m->device.cpu_gbps,
        .attention_efficiency = CPU_ATTENTION_EFFICIENCY,
        .launch_us = m->overheads.cpu_op_us,
    };
    for (int i = 0; i < ATS_FAMILIES; i++) {
        const bool known = matvec_gbps != NULL && matvec_gbps[i] > 0;
        m->cpu.vram_gbps[i] = known ? matvec_gbps[i] : m->device.cpu_gbps;
        m->cpu.matmul_tflops[i] = matmul_gflops / 1e3;
    }
}

struct ats_sim_machine ats_sim_machine_of(const struct ats_rig *rig,
                                          const struct ats_sim_overheads *overheads)
{
    struct ats_sim_machine m = {.vram_bytes = rig->memory,
                                .device = rig->rates,
                                .routing = rig->routing,
                                .overheads = *overheads};
    snprintf(m.name, sizeof m.name, "%s", rig->name);
    set_cpu(&m, NULL, rig->cpu_gflops);
    return m;
}

void ats_sim_machine_scale(struct ats_sim_machine *m, const struct ats_device_rates *rates,
                           const double matvec_gbps[ATS_FAMILIES], double matmul_gflops)
{
    m->device = *rates;
    set_cpu(m, matvec_gbps, matmul_gflops);
}

void ats_sim_machine_set_cpu(struct ats_sim_machine *m, double gbps)
{
    for (int i = 0; i < ATS_FAMILIES; i++) {
        m->cpu.vram_gbps[i] = gbps;
    }
}

void ats_sim_machine_set_link(struct ats_sim_machine *m, double gbps)
{
    m->device.h2d_gbps = gbps;
    m->device.d2h_gbps = gbps;
}
