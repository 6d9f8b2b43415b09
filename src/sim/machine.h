/* The machine that the simulator predicts for: a rig's rates, and what llama.cpp
 * itself costs on the host.
 *
 * The CPU is described by the same rates as a device (cost/cost.h), so one cost
 * model serves both sides: "VRAM" bandwidth is what a matrix-vector product
 * reads of host memory, a launch is the dispatch of an operator to the threads.
 *
 * Plain data. */
#ifndef ATS_SIM_MACHINE_H
#define ATS_SIM_MACHINE_H

#include "cost/cost.h"
#include "cost/rig.h"
#include "plan/rates.h"
#include "profile/profile.h"

/* Host time that no operator accounts for. Measure them on the machine at hand: run a model whose
 * layers are too small to matter, and divide. The defaults are estimates. */
struct ats_sim_overheads {
    double graph_us;     /* of a pass: building or reusing the graph, sampling */
    double embedding_ns; /* of a value of a token's embedding: looked up, converted, written */
    double mask_ns;      /* of a value of attention's mask: a token beside a row of the cache */
    double split_us;     /* of a split: the scheduler's bookkeeping and the call that submits it */
    double sync_us;      /* of a synchronisation, besides the time that it waits */
    double cpu_op_us;    /* of an operator on the CPU: dispatch to the threads, and their barrier */
};

struct ats_sim_overheads ats_sim_overheads_default(void);

struct ats_sim_machine {
    char name[64];
    uint64_t vram_bytes;
    struct ats_device_rates device;
    struct ats_device_rates cpu;
    struct ats_routing_model routing;
    struct ats_sim_overheads overheads;
    const struct ats_profile *profile; /* borrowed; NULL: operators take what the rates say */
};

/* The real machine of a rig. */
struct ats_sim_machine ats_sim_machine_of(const struct ats_rig *rig,
                                          const struct ats_sim_overheads *overheads);

/* The machine that a profile was measured on, which outlives it: operators take what was measured
 * (profile/predict.h), queues and links have the profile's rates, VRAM is what was free. A change
 * of side costs the measured one, less the two copies of the round trip; the other overheads are
 * the given ones. */
struct ats_sim_machine ats_sim_machine_of_profile(const struct ats_profile *profile,
                                                  const struct ats_sim_overheads *overheads);

/* Microseconds of an operator of this shape; `type` is ggml's name of its weight's type, or NULL.
 */
double ats_sim_machine_op_us(const struct ats_sim_machine *machine, enum ats_side side,
                             const char *type, const struct ats_op_shape *shape);

/* What decisions about this machine's graphs go by (plan/rates.h): as the backend has it from a
 * profile, or as a profile of the rig would have it. */
struct ats_plan_rates ats_sim_machine_plan_rates(const struct ats_sim_machine *machine);

/* Replaces the figures by those of a rig as it is emulated on a host: `rates` are the rig's,
 * scaled; matvec_gbps (of one matrix, which a
 * model's many do not quite reach; 0: not known, then the rates' cpu_gbps) and matmul_gflops are
 * the host's own. */
void ats_sim_machine_scale(struct ats_sim_machine *machine, const struct ats_device_rates *rates,
                           const double matvec_gbps[ATS_FAMILIES], double matmul_gflops);

/* A CPU that reads weights of any type at this rate in matrix-vector products. Measure it with the
 * model at hand, whose mix of types decides it: tokens/s of llama-bench -ngl 0 times the bytes that
 * a token reads. */
void ats_sim_machine_set_cpu(struct ats_sim_machine *machine, double gbps);

/* A link of another speed, both ways (pinned memory). */
void ats_sim_machine_set_link(struct ats_sim_machine *machine, double gbps);

#endif
