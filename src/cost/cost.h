/* How long an operator takes on a device, from the device's rates: the cost
 * model that planning, simulation and the emulated accelerator share.
 *
 * Pure: numbers in, numbers out; no state, safe from any thread. Rates are
 * *effective* ones, what kernels reach in practice; a rig file says where each
 * figure is from (docs/rigs.md). */
#ifndef ATS_COST_COST_H
#define ATS_COST_COST_H

#include <stdbool.h>
#include <stdint.h>

/* Types whose matmul kernels run at about the same rates. */
enum ats_type_family {
    ATS_FAMILY_F32,
    ATS_FAMILY_F16, /* and BF16 */
    ATS_FAMILY_Q8,
    ATS_FAMILY_Q4, /* all block-quantised types below 8 bits that are not MXFP4 */
    ATS_FAMILY_MXFP4,
    ATS_FAMILIES
};

const char *ats_family_name(enum ats_type_family family);

struct ats_device_rates {
    double vram_gbps[ATS_FAMILIES];     /* reached when a mat-vec reads weights of that family */
    double matmul_tflops[ATS_FAMILIES]; /* reached at a large batch */
    double matmul_half_batch;           /* columns at which a matmul reaches half of that rate */
    double small_op_gbps;               /* read and written by norms, additions and the like */
    double attention_efficiency;        /* fraction of the F16 matmul rate */
    double launch_us;                   /* of one kernel */

    double h2d_gbps;        /* pinned memory to device */
    double d2h_gbps;        /* device to pinned memory */
    double pageable_gbps;   /* either way, with the calling thread busy */
    double copy_latency_us; /* from the start of a copy to its first byte */
    double copy_engines;    /* 1: both directions queue on it; 2: one per direction */

    double dram_limit_gbps; /* what CPU and link reach together */
    double cpu_gbps;        /* what the CPU takes of that with all its threads computing */
    double cpu_threads;
};

/* Multiplies every rate by `factor` and divides every time by it, which keeps
 * all their ratios. Counts and fractions stay. */
void ats_rates_scale(struct ats_device_rates *rates, double factor);

enum ats_cost_kind {
    ATS_COST_NONE,      /* takes no time: views */
    ATS_COST_MATMUL,    /* `batch` products of m x k weights with k x n activations */
    ATS_COST_EXPERTS,   /* n tokens, each through n_used of n_experts matrices of m x k */
    ATS_COST_ATTENTION, /* n queries of `batch` heads of size k over m keys and values */
    ATS_COST_BYTES,     /* limited by the bytes it reads and writes */
};

struct ats_op_shape {
    enum ats_cost_kind kind;
    enum ats_type_family family; /* of the weights */
    bool fused;                  /* part of the kernel of an operator before it: no launch */
    double m;
    double n;
    double k;
    double batch;        /* MATMUL, ATTENTION: 1 if there is just one */
    double n_experts;    /* EXPERTS */
    double n_used;       /* EXPERTS: per token */
    double n_distinct;   /* EXPERTS: used by all tokens together; 0: not known */
    double weight_bytes; /* MATMUL, ATTENTION: all that is read once; EXPERTS: of one expert */
    double io_bytes;     /* activations read and written */
};

/* Microseconds. MATMUL and EXPERTS: launch + max(bytes / bandwidth, flops /
 * rate(columns)), where rate(n) = matmul_tflops * n / (n + matmul_half_batch):
 * an estimate of how tiled kernels fill up between batch 1 and 512, on which
 * vendors publish nothing. For EXPERTS the columns are those of one expert on
 * average, and only the distinct experts are read. ATTENTION: the same with
 * 4 m n k flops per head. BYTES: launch + bytes / small_op_gbps. */
double ats_cost_op_us(const struct ats_device_rates *rates, const struct ats_op_shape *shape);

/* The number of distinct experts that n tokens use if each takes n_used of
 * n_experts independently: n_experts * (1 - (1 - n_used / n_experts)^n). */
double ats_cost_expected_experts(double n_experts, double n_used, double n);

/* A copy that has link and memory to itself: latency + bytes / rate. */
double ats_cost_copy_us(const struct ats_device_rates *rates, double bytes, bool to_host,
                        bool pinned);

#endif
