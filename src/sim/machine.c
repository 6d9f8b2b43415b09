#include "sim/machine.h"

#include "cost/routing.h"
#include "profile/predict.h"

#include <math.h>
#include <stdio.h>

/* Columns at which a CPU matmul reaches half of its rate: its kernels take columns one by one or in
 * fours, so that the rate hardly depends on their number. An estimate. */
static const double CPU_HALF_BATCH = 0;

/* Share of the CPU's matmul rate that attention reaches. Measured on a two-core virtual machine
 * (AMD EPYC, one thread, 82 GFLOP/s in matmul): three layers of Qwen3-14B decode 1.25 ms slower at
 * a depth of 1024 than of 512, which is 25 GFLOP/s. */
static const double CPU_ATTENTION_EFFICIENCY = 0.3;

/* Share of the rate in one matrix of 96 MiB, over and over, that a model's weights are read at:
 * caches keep a part of such a matrix from pass to pass. Measured on the machine above, where that
 * matrix is read at 22.0 GB/s: the fourth layer of Qwen3-14B (210 MB) on the CPU takes 12.1 ms of a
 * token, 0.6 of them for attention at a depth of 512, which is 18.3 GB/s. */
static const double HOST_MODEL_SHARE = 0.83;

struct ats_sim_overheads ats_sim_overheads_default(void)
{
    return (struct ats_sim_overheads){.graph_us = 200,
                                      .embedding_ns = 0.8,
                                      .mask_ns = 2,
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
        m->cpu.vram_gbps[i] = known ? HOST_MODEL_SHARE * matvec_gbps[i] : m->device.cpu_gbps;
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

/* What crosses in the round trip of a profile, each way, from and to pageable memory:
 * src/measure/link.c. */
static const double ROUND_TRIP_BYTES = 16 << 10;

struct ats_sim_machine ats_sim_machine_of_profile(const struct ats_profile *profile,
                                                  const struct ats_sim_overheads *overheads)
{
    struct ats_sim_machine m = {.vram_bytes = profile->free_bytes,
                                .routing = ats_routing_model_default(),
                                .overheads = *overheads,
                                .profile = profile};
    snprintf(m.name, sizeof m.name, "%.63s", profile->identity.device);
    ats_profile_rates(profile, &m.device, &m.cpu);
    const double copies_us = ats_profile_copy_us(profile, ROUND_TRIP_BYTES, false, false) +
                             ats_profile_copy_us(profile, ROUND_TRIP_BYTES, true, false);
    m.overheads.split_us = fmax(ats_profile_split_us(profile) - copies_us / 2, 0);
    m.overheads.sync_us = 0; /* part of that */
    m.overheads.cpu_op_us = profile->launch_us[ATS_HOST];
    return m;
}

double ats_sim_machine_op_us(const struct ats_sim_machine *machine, enum ats_side side,
                             const char *type, const struct ats_op_shape *shape)
{
    if (machine->profile != NULL) {
        return ats_profile_op_us(machine->profile, side, type, shape);
    }
    return ats_cost_op_us(side == ATS_HOST ? &machine->cpu : &machine->device, shape);
}

struct ats_plan_rates ats_sim_machine_plan_rates(const struct ats_sim_machine *m)
{
    if (m->profile != NULL) { /* but for a link of another speed */
        return ats_plan_rates_of(&m->cpu, &m->device, ats_profile_split_us(m->profile));
    }
    /* half a round trip: two splits, of which one waits, and a copy each */
    const double split_us =
        m->overheads.split_us + m->overheads.sync_us / 2 + m->device.copy_latency_us;
    return ats_plan_rates_of(&m->cpu, &m->device, split_us);
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
