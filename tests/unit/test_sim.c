/* The simulator: times of two-layer models worked out by hand with round rates, known schedules,
 * and what must hold on any machine. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "seed.h"
#include "sim/experts.h"
#include "sim/sim.h"
#include "toy_models.h"

#include <math.h>
#include <unistd.h>

static void assert_near(double value, double expected, double tolerance)
{
    if (!(fabs(value - expected) <= tolerance)) {
        fail_msg("%.9g is not within %.3g of %.9g", value, tolerance, expected);
    }
}

/* CPU: 10 GB/s, 1 TFLOP/s. GPU: 100 GB/s, 10 TFLOP/s, 5 us per launch. Link: 20 GB/s in, 10 out,
 * 4 pageable, 10 us per copy. Host: 100 us per pass, 10 per split, 1 per synchronisation, 2 per
 * operator on the CPU. */
static struct ats_sim_machine round_machine(void)
{
    struct ats_sim_machine m = {
        .name = "round",
        .vram_bytes = UINT64_C(1) << 40,
        .device = {.matmul_half_batch = 25,
                   .small_op_gbps = 50,
                   .attention_efficiency = 0.5,
                   .launch_us = 5,
                   .h2d_gbps = 20,
                   .d2h_gbps = 10,
                   .pageable_gbps = 4,
                   .copy_latency_us = 10,
                   .copy_engines = 1,
                   .dram_limit_gbps = 40,
                   .cpu_gbps = 10,
                   .cpu_threads = 8},
        .cpu = {.matmul_half_batch = 1,
                .small_op_gbps = 10,
                .attention_efficiency = 0.5,
                .launch_us = 2},
        .routing = ats_routing_model_default(),
        .overheads = {.graph_us = 100, .split_us = 10, .sync_us = 1, .cpu_op_us = 2},
    };
    for (int i = 0; i < ATS_FAMILIES; i++) {
        m.device.vram_gbps[i] = 100;
        m.device.matmul_tflops[i] = 10;
        m.cpu.vram_gbps[i] = 10;
        m.cpu.matmul_tflops[i] = 1;
    }
    return m;
}

static struct ats_sim_setting setting_of(const struct ats_model *model,
                                         const struct ats_sim_machine *machine)
{
    return (struct ats_sim_setting){.model = model,
                                    .machine = machine,
                                    .vram_bytes = machine->vram_bytes,
                                    .n_ctx = 4096,
                                    .ubatch = 512,
                                    .batch = 2048,
                                    .fit_margin = UINT64_C(1) << 30,
                                    .mmap = true,
                                    .seed = 1};
}

static struct ats_sim_run *start(const struct ats_sim_setting *setting, const char *policy)
{
    struct ats_error err = {""};
    const char *argument;
    const struct ats_sim_policy *p = ats_sim_policy_find(policy, &argument, &err);
    if (p == NULL) {
        fail_msg("%s", err.text);
    }
    struct ats_sim_run *run = ats_sim_run_new(setting, p, argument, NULL, NULL, &err);
    if (run == NULL) {
        fail_msg("%s: %s", policy, err.text);
    }
    return run;
}

static struct ats_sim_use decode(const struct ats_sim_setting *setting, const char *policy)
{
    struct ats_error err;
    struct ats_sim_phase phase;
    struct ats_sim_run *run = start(setting, policy);
    assert_true(ats_sim_decode(run, 0, 1, &phase, &err));
    ats_sim_run_free(run);
    return phase.use;
}

static struct ats_sim_use prefill(const struct ats_sim_setting *setting, const char *policy,
                                  uint32_t n)
{
    struct ats_error err;
    struct ats_sim_phase phase;
    struct ats_sim_run *run = start(setting, policy);
    assert_true(ats_sim_prefill(run, n, &phase, &err));
    ats_sim_run_free(run);
    return phase.use;
}

/* ---- two layers of one 1000 x 1000 matrix in F32 each, and a head of the same size ---- */

static struct ats_model *two_matrices(void)
{
    struct toy toy;
    struct ats_error err;
    toy_start(&toy, "toy", 2, 1000, 0, 0, 0);
    toy_add(&toy, ATS_FAMILY_F32, 1000, 1000, 1, "blk.0.mix.weight");
    toy_add(&toy, ATS_FAMILY_F32, 1000, 1000, 1, "blk.1.mix.weight");
    toy_add(&toy, ATS_FAMILY_F32, 1000, 1000, 1, "output.weight");
    return toy_build(&toy, &err);
}

/* One vector: 4 MB and 8 kB of activations: 400.8 us and 2 of dispatch on the CPU; 40.08 us and 5
 * of launch on the GPU. */
static const double CPU_OP_US = 402.8;
static const double GPU_OP_US = 45.08;

/* Of ATS: 4 kB out to pageable memory. */
static const double LOGITS_US = 10 + 1;

static void test_decode_on_one_side(void **state)
{
    (void)state;
    struct ats_model *m = two_matrices();
    const struct ats_sim_machine machine = round_machine();
    const struct ats_sim_setting s = setting_of(m, &machine);
    struct ats_sim_use use = decode(&s, "cpu");
    assert_near(use.us, 100 + 10 + 3 * CPU_OP_US, 1e-3);
    assert_near(use.cpu_us, 3 * CPU_OP_US, 1e-3);
    assert_int_equal(use.splits, 1);
    assert_near(decode(&s, "ngl=0").us, use.us, 1e-3);
    /* all on the GPU: one more split, 4 kB in (10.2 us), three operators, logits out (10.4 us) */
    use = decode(&s, "ngl=3");
    assert_near(use.us, 100 + 10 + 10 + 1 + 10.2 + 3 * GPU_OP_US + 1 + 10.4, 1e-3);
    assert_near(use.gpu_us, 3 * GPU_OP_US, 1e-3);
    assert_int_equal(use.splits, 2);
    assert_near(decode(&s, "layers").us, use.us, 1e-3);
    ats_model_free(m);
}

static void test_decode_over_both_sides(void **state)
{
    (void)state;
    struct ats_model *m = two_matrices();
    const struct ats_sim_machine machine = round_machine();
    struct ats_sim_setting s = setting_of(m, &machine);
    /* the output head counts as the last layer */
    const double expected = 100 + 10 + 2 * CPU_OP_US + 10 + 1 + 10.2 + GPU_OP_US + 1 + 10.4;
    const struct ats_sim_use use = decode(&s, "ngl=1");
    assert_near(use.us, expected, 1e-3);
    assert_near(use.bytes[ATS_TO_DEVICE], 4000, 1e-3);
    assert_near(use.bytes[ATS_TO_HOST], 4000, 1e-3);
    /* room for the head and 1 MB for compute buffers: as -ngl 1; a MB less: nothing */
    s.compute_bytes = 1000000;
    s.vram_bytes = 5000000;
    assert_near(decode(&s, "layers").us, expected, 1e-3);
    s.vram_bytes = 4999999;
    assert_near(decode(&s, "layers").us, 100 + 10 + 3 * CPU_OP_US, 1e-3);
    /* --fit leaves 1 GiB free */
    s.vram_bytes = 5000000 + (UINT64_C(1) << 30);
    assert_near(decode(&s, "fit").us, expected, 1e-3);
    s.vram_bytes--;
    assert_near(decode(&s, "fit").us, 100 + 10 + 3 * CPU_OP_US, 1e-3);
    /* ATS sets a third aside for weights that pass through; the head is the first in what is left.
     * In: which rows to output (10.0002 us), before the CPU begins; then the activations */
    s.vram_bytes = 7500000;
    const double ats = 110 + 10.0002 + 1 + 2 * CPU_OP_US + 10 + 10.2 + GPU_OP_US + LOGITS_US;
    assert_near(decode(&s, "ats-placement").us, ats, 1e-3);
    assert_near(decode(&s, "ats-async").us, ats, 1e-3);
    s.vram_bytes = 7499998;
    /* nothing in VRAM: still a split of ATS behind that of the embeddings */
    assert_near(decode(&s, "ats-async").us, 110 + 10 + 3 * CPU_OP_US, 1e-3);
    ats_model_free(m);
}

/* 64 tokens, the logits of the last: GPU 5 + (4 MB + 512 kB) at 100 GB/s = 50.12 us per layer. The
 * layers' weights come over from pageable memory: 10 + 1000 us each. */
static void test_prefill_moves_weights(void **state)
{
    (void)state;
    struct ats_model *m = two_matrices();
    const struct ats_sim_machine machine = round_machine();
    struct ats_sim_setting s = setting_of(m, &machine);
    const double in = 10 + 64 * 4000 / 20e3;
    const double first = 100 + 10 + 10 + 1 + in + 1 + 1010;
    const double second = 10 + (50.12 - 10) + 1 + 1010; /* the split's 10 us pass meanwhile */
    const double last = 50.12 + GPU_OP_US + 1 + 10.4;
    struct ats_sim_use use = prefill(&s, "ngl=1", 64);
    assert_near(use.us, first + second + last, 1e-3);
    assert_near(use.bytes[ATS_TO_DEVICE], 2 * 4e6 + 64 * 4000, 1e-3);
    assert_int_equal(use.splits, 3);
    /* without mmap the memory is pinned: 10 + 200 us each */
    s.mmap = false;
    assert_near(prefill(&s, "ngl=1", 64).us, first + second + last - 2 * 800, 1e-3);
    /* below 32 tokens operators run where their weights are: (4 MB + 31 * 8 kB) at 10 GB/s */
    s.mmap = true;
    use = prefill(&s, "ngl=1", 31);
    assert_near(use.us, 100 + 10 + 2 * (424.8 + 2) + 10 + 1 + 10.2 + GPU_OP_US + 1 + 10.4, 1e-3);
    ats_model_free(m);
}

static void test_prompt_in_batches(void **state)
{
    (void)state;
    struct ats_model *m = two_matrices();
    const struct ats_sim_machine machine = round_machine();
    const struct ats_sim_setting s = setting_of(m, &machine);
    struct ats_error err = {""};
    struct ats_sim_phase phase;
    struct ats_sim_run *run = start(&s, "cpu");
    assert_true(ats_sim_prefill(run, 2600, &phase, &err));
    assert_int_equal(phase.n_passes, 4 + 2);
    assert_int_equal(phase.n_tokens, 2600);
    /* 512 tokens: 1.024e9 flops at 512 / 513 TFLOP/s = 1026 us a layer; 40: 432 us of memory;
     * logits of the last token of each batch of 2048 */
    assert_near(phase.use.us, 6 * 110 + 2 * (5 * 1028 + 434) + 2 * CPU_OP_US, 1e-3);
    assert_false(ats_sim_prefill(run, 4097, &phase, &err));
    assert_non_null(strstr(err.text, "context"));
    ats_sim_run_free(run);
    ats_model_free(m);
}

static void test_plan_file(void **state)
{
    (void)state;
    struct ats_model *m = two_matrices();
    const struct ats_sim_machine machine = round_machine();
    struct ats_sim_setting s = setting_of(m, &machine);
    char policy[64] = "plan=/tmp/ats-test-plan-XXXXXX";
    const int fd = mkstemp(policy + 5);
    assert_true(fd >= 0);
    FILE *out = fdopen(fd, "w");
    fputs("ats-plan 1\nvram 4000000 blk.0.mix.weight\nhost 4000000 blk.1.mix.weight\n"
          "vram 4000000 output.weight\n",
          out);
    fclose(out);
    const struct ats_sim_use use = decode(&s, policy);
    /* GPU, CPU, GPU. In: the embedding and the rows to output, while the host begins the first
     * split; out, by way of page-locked memory, and in again: 4 kB each */
    const double first = 110 + 10.2 + 10.0002 + GPU_OP_US;
    const double second = 10 + 0.4 + 1 + CPU_OP_US;
    assert_near(use.us, first + second + 10 + 10.2 + GPU_OP_US + LOGITS_US, 1e-3);
    assert_int_equal(use.splits, 4);
    unlink(policy + 5);
    ats_model_free(m);
}

/* ---- ATS: weights that pass through ---- */

/* Two layers of two such matrices each, and a head. */
static struct ats_model *four_matrices(void)
{
    struct toy toy;
    struct ats_error err;
    toy_start(&toy, "toy", 2, 1000, 0, 0, 0);
    toy_add(&toy, ATS_FAMILY_F32, 1000, 1000, 1, "blk.0.one.weight");
    toy_add(&toy, ATS_FAMILY_F32, 1000, 1000, 1, "blk.0.two.weight");
    toy_add(&toy, ATS_FAMILY_F32, 1000, 1000, 1, "blk.1.one.weight");
    toy_add(&toy, ATS_FAMILY_F32, 1000, 1000, 1, "blk.1.two.weight");
    toy_add(&toy, ATS_FAMILY_F32, 1000, 1000, 1, "output.weight");
    return toy_build(&toy, &err);
}

/* 12 MB for compute buffers, 8 MB for two weights that pass through, 4 MB for the head. */
static struct ats_sim_setting tight_setting(const struct ats_model *model,
                                            const struct ats_sim_machine *machine)
{
    struct ats_sim_setting s = setting_of(model, machine);
    s.compute_bytes = 12000000;
    s.vram_bytes = 24000000;
    return s;
}

/* A weight of 4 MB over the link. */
static const double WEIGHT_US = 10 + 200;

/* 64 tokens: their embeddings come from pageable memory while the host waits, 10 + 64 us; then the
 * rows to output. An operator takes 50.12 us, the head 45.08. */
static void test_promotion_in_prefill(void **state)
{
    (void)state;
    struct ats_model *m = four_matrices();
    struct ats_sim_machine machine = round_machine();
    const struct ats_sim_setting s = tight_setting(m, &machine);
    const double begin = 110 + 74 + 10.0002;
    const double end = GPU_OP_US + LOGITS_US;
    struct ats_sim_use use = prefill(&s, "ats-placement", 64);
    assert_near(use.us, begin + 4 * (WEIGHT_US + 50.12) + end, 1e-3);
    assert_near(use.bytes[ATS_TO_DEVICE], 4 * 4e6 + 64 * 4000 + 4, 1e-3);
    assert_near(use.cpu_us, 0, 1e-6);
    assert_int_equal(use.splits, 1 + 4);
    /* ahead: the link never pauses, the last operator waits for it */
    use = prefill(&s, "ats-async", 64);
    assert_near(use.us, begin + 4 * WEIGHT_US + 50.12 + end, 1e-3);
    /* mapped weights are page-locked as well */
    struct ats_sim_setting pinned = s;
    pinned.mmap = false;
    assert_near(prefill(&pinned, "ats-async", 64).us, use.us, 1e-6);
    /* a GPU that computes for longer than a copy takes hides all copies but the first: 128e6 flops
     * at 0.1 TFLOP/s * 64 / 89 are 1780 us. The third weight waits for the first one's place */
    machine.device.matmul_tflops[ATS_FAMILY_F32] = 0.1;
    machine.cpu.matmul_tflops[ATS_FAMILY_F32] = 0.01; /* slower still, or it would compute */
    const double head = 5 + 2e6 / (0.1e6 / 26);
    assert_near(prefill(&s, "ats-async", 64).us, begin + WEIGHT_US + 4 * 1785 + head + LOGITS_US,
                1e-3);
    assert_near(prefill(&s, "ats-placement", 64).us,
                begin + 4 * (WEIGHT_US + 1785) + head + LOGITS_US, 1e-3);
    ats_model_free(m);
}

static double decode_one(struct ats_sim_run *run)
{
    struct ats_error err;
    struct ats_sim_phase phase;
    assert_true(ats_sim_decode(run, 0, 1, &phase, &err));
    return phase.use.us;
}

/* Of a link that takes longer for a weight than the CPU, and that gets nothing beside it, the last
 * layer is held, so the CPU computes two operators and the GPU three. The first pass copies what is
 * held, before the CPU begins; it stays until a prompt passes through. */
static void test_holding_in_decode(void **state)
{
    (void)state;
    static const char *const policies[] = {"ats-placement", "ats-async"};
    struct ats_error err;
    struct ats_sim_phase phase;
    struct ats_model *m = four_matrices();
    struct ats_sim_machine machine = round_machine();
    machine.device.h2d_gbps = 5;
    machine.device.dram_limit_gbps = 10;
    const double weight_us = 10 + 4e6 / 5e3;
    const struct ats_sim_setting s = tight_setting(m, &machine);
    /* 4 bytes of a token and 4000 of an activation cross as well */
    const double steady = 110 + 10.0008 + 1 + 2 * CPU_OP_US + 10 + 10.8 + 3 * GPU_OP_US + LOGITS_US;
    for (size_t i = 0; i < sizeof policies / sizeof policies[0]; i++) {
        struct ats_sim_run *run = start(&s, policies[i]);
        assert_int_equal(ats_sim_run_placement(run)->used_bytes, 24000000);
        assert_near(decode_one(run), steady + 2 * weight_us, 1e-3);
        assert_near(decode_one(run), steady, 1e-3);
        assert_true(ats_sim_prefill(run, 512, &phase, &err));
        assert_near(decode_one(run), steady + 2 * weight_us, 1e-3);
        ats_sim_run_free(run);
    }
    ats_model_free(m);
}

/* A model that fits needs no staging memory and moves no weight. */
static void test_nothing_passes_through_what_fits(void **state)
{
    (void)state;
    struct ats_model *m = four_matrices();
    const struct ats_sim_machine machine = round_machine();
    struct ats_sim_setting s = tight_setting(m, &machine);
    s.vram_bytes = 12000000 + 5 * 4000000;
    struct ats_sim_run *run = start(&s, "ats-async");
    assert_int_equal(ats_sim_run_placement(run)->used_bytes, s.vram_bytes);
    assert_int_equal(ats_sim_run_placement(run)->staging_bytes, 0);
    ats_sim_run_free(run);
    struct ats_sim_use use = prefill(&s, "ats-async", 64);
    assert_near(use.bytes[ATS_TO_DEVICE], 64 * 4000 + 4, 1e-3);
    assert_int_equal(use.splits, 2);
    /* a byte less: 8 MB are set aside for two weights, and beside the head there is a byte too
     * little for a layer, so that all four matrices pass through */
    s.vram_bytes--;
    use = prefill(&s, "ats-async", 64);
    assert_near(use.bytes[ATS_TO_DEVICE], 4 * 4e6 + 64 * 4000 + 4, 1e-3);
    ats_model_free(m);
}

/* What the host does for each token: 1000 values at 2 ns, and no mask without attention. */
static void test_host_time_of_tokens(void **state)
{
    (void)state;
    struct ats_model *m = two_matrices();
    struct ats_sim_machine machine = round_machine();
    const struct ats_sim_setting s = setting_of(m, &machine);
    const double before = prefill(&s, "cpu", 64).us;
    machine.overheads.embedding_ns = 2;
    machine.overheads.mask_ns = 1000;
    assert_near(prefill(&s, "cpu", 64).us, before + 128, 1e-3);
    ats_model_free(m);
    /* with attention: 64 tokens beside 256 rows of the cache, at 1000 ns */
    m = toy_llama(1, 2048, 8192);
    const struct ats_sim_setting llama = setting_of(m, &machine);
    const double with = prefill(&llama, "ats-async", 64).us;
    machine.overheads.mask_ns = 0;
    assert_near(with - prefill(&llama, "ats-async", 64).us, 64 * 256, 1e-3);
    ats_model_free(m);
}

/* ---- experts ---- */

/* Per layer: a router, and 4 experts of which a token uses 2, with matrices of 1000 x 1000 in F32.
 * No attention: what the test is about stays countable. */
static struct ats_model *two_expert_layers(void)
{
    struct toy toy;
    struct ats_error err;
    toy_start(&toy, "toy", 2, 1000, 0, 0, 0);
    toy.params.n_experts = 4;
    toy.params.n_used = 2;
    for (unsigned i = 0; i < 2; i++) {
        toy_experts(&toy, ATS_FAMILY_F32, i, 1000);
    }
    toy_add(&toy, ATS_FAMILY_F32, 1000, 1000, 1, "output.weight");
    return toy_build(&toy, &err);
}

static void test_cpu_experts(void **state)
{
    (void)state;
    struct ats_model *m = two_expert_layers();
    const struct ats_sim_machine machine = round_machine();
    struct ats_sim_setting s = setting_of(m, &machine);
    const struct ats_sim_use all = decode(&s, "n-cpu-moe=0");
    const struct ats_sim_use use = decode(&s, "n-cpu-moe=1");
    /* two splits more: the experts', and what follows them on the GPU */
    assert_int_equal(all.splits, 2);
    assert_int_equal(use.splits, 4);
    /* CPU: gate, up and down of 2 experts, 8 MB + 2 * 8 kB each: 801.6 + 2 us; the activation, 3 *
     * 2
     * * 4 kB: 2.4 + 2 us */
    assert_near(use.cpu_us, 3 * 803.6 + 4.4, 1e-3);
    /* out: 4 kB and 4 ids; back: 2 * 4 kB */
    assert_near(use.bytes[ATS_TO_HOST] - all.bytes[ATS_TO_HOST], 4000 + 16, 1e-3);
    assert_near(use.bytes[ATS_TO_DEVICE] - all.bytes[ATS_TO_DEVICE], 8000, 1e-3);
    /* the GPU is left with all but those: gate and up in one launch, 5 + 160.32 * 2; activation
     * 0.48 without launch; down 165.16 */
    assert_near(all.gpu_us - use.gpu_us, 5 + 2 * 80.16 + 0.48 + 5 + 80.16, 1e-3);
    assert_near(decode(&s, "moe").us, all.us, 1e-6);
    /* the first layer's 48 MB do not fit */
    s.compute_bytes = 1000000;
    s.vram_bytes = 48000000 + 4000000 + 2 * 16000 + 1000000;
    assert_near(decode(&s, "moe").us, use.us, 1e-3);
    struct ats_error err = {""};
    const char *argument;
    const struct ats_sim_policy *p = ats_sim_policy_find("n-cpu-moe=0", &argument, &err);
    assert_null(ats_sim_run_new(&s, p, argument, NULL, NULL, &err));
    assert_non_null(strstr(err.text, "budget"));
    ats_model_free(m);
}

static void test_prefill_moves_used_experts(void **state)
{
    (void)state;
    struct ats_model *m = two_expert_layers();
    const struct ats_sim_machine machine = round_machine();
    const struct ats_sim_setting s = setting_of(m, &machine);
    const struct ats_sim_use all = prefill(&s, "n-cpu-moe=0", 64);
    const struct ats_sim_use use = prefill(&s, "n-cpu-moe=1", 64);
    /* 64 tokens use all 4 experts: 3 * 16 MB come over in one piece each, after the ids */
    assert_near(use.bytes[ATS_TO_DEVICE] - all.bytes[ATS_TO_DEVICE], 48e6, 1e-3);
    assert_near(use.bytes[ATS_TO_HOST] - all.bytes[ATS_TO_HOST], 64 * 16, 1e-3);
    assert_near(use.link_us[0] - all.link_us[0], 3 * (10 + 4000), 1e-2);
    assert_near(use.cpu_us, 0, 1e-6);
    ats_model_free(m);
}

/* As llama-bench with GGML_SCHED_DEBUG=2 shows it (v0.5.0) for -ngl 4 of seven layers: the norm of
 * 32 query heads has 32 rows, so that the GPU takes it in each of the four layers on the CPU. */
/* What the slots of a layer do over a text, counted apart from the simulation. */
static void count_slots(const struct ats_sim_setting *s, const struct ats_expert_slots *like,
                        uint64_t layer, int n_tokens, double *misses, double *admitted)
{
    enum { USED = 8 };
    struct ats_routing routing;
    struct ats_expert_slots slots;
    assert_true(
        ats_routing_init(&routing, &s->machine->routing, s->seed, layer, like->n_experts, USED));
    assert_true(ats_expert_slots_init(&slots, like->n_experts, like->n_slots, like->part_bytes,
                                      like->n_parts, like->copy_share));
    ats_expert_slots_fill(&slots);
    for (int t = 0; t < n_tokens; t++) {
        int32_t ids[USED];
        struct ats_expert_columns columns;
        struct ats_expert_copy copy;
        ats_routing_next(&routing, ids);
        ats_expert_slots_use(&slots, ids, USED, &columns);
        *misses += columns.n_misses;
        while (ats_expert_slots_next(&slots, &copy)) {
            *admitted += (double)slots.part_bytes[copy.part];
        }
    }
    ats_expert_slots_free(&slots);
    ats_routing_free(&routing);
}

static void test_experts_by_slice(void **state)
{
    (void)state;
    enum { LAYERS = 4, TOKENS = 40 };
    struct ats_model *m = toy_qwen3moe(LAYERS);
    const struct ats_sim_machine machine = round_machine();
    struct ats_sim_setting s = setting_of(m, &machine);
    s.vram_bytes = UINT64_C(1150) << 20;
    struct ats_error err;
    struct ats_sim_phase whole;
    struct ats_sim_phase slices;
    struct ats_sim_run *run = start(&s, "ats-async");
    assert_true(ats_sim_decode(run, 0, TOKENS, &whole, &err));
    ats_sim_run_free(run);
    run = start(&s, "ats-experts");
    const struct ats_sim_placement *p = ats_sim_run_placement(run);
    assert_true(p->used_bytes <= s.vram_bytes);
    assert_true(s.vram_bytes - p->used_bytes < LAYERS * (UINT64_C(3) << 20)); /* an expert each */
    double misses = 0;
    double admitted = 0;
    const struct ats_sim_experts *experts = p->state;
    for (uint64_t layer = 0; layer < LAYERS; layer++) {
        assert_true(experts->layers[layer].n_slots > 0);
        count_slots(&s, &experts->layers[layer], layer, TOKENS, &misses, &admitted);
    }
    assert_true(ats_sim_decode(run, 0, TOKENS, &slices, &err));
    ats_sim_run_free(run);
    /* the CPU reads the misses, three matrices of 2048 x 768 weights in 0.5625 bytes each, at 10
     * GB/s; besides, four operators of 2 us each and activations of some KiB per layer and token */
    const double matrix_bytes = 2048 * 768 * 0.5625;
    const double reading_us = misses * 3 * matrix_bytes / 1e4;
    assert_true(slices.use.cpu_us >= reading_us);
    assert_true(slices.use.cpu_us <= reading_us + TOKENS * LAYERS * (4 * 2 + 20));
    assert_true(slices.use.cpu_us < 0.8 * whole.use.cpu_us);
    assert_true(slices.use.us < whole.use.us);
    /* over the link: what is admitted, and little else */
    assert_true(slices.use.bytes[ATS_TO_DEVICE] >= admitted);
    assert_true(slices.use.bytes[ATS_TO_DEVICE] <= admitted + TOKENS * LAYERS * 8 * 2048 * 4.0 * 2);
    /* a model that fits is not sliced */
    s.vram_bytes = UINT64_C(1) << 40;
    assert_near(decode(&s, "ats-experts").us, decode(&s, "ats-async").us, 1e-6);
    ats_model_free(m);
}

/* A prompt of few tokens brings the experts that they use, counted apart from the simulation, of
 * each matrix in host memory. */
static void test_experts_by_use(void **state)
{
    (void)state;
    enum { LAYERS = 4, TOKENS = 32, USED = 8, EXPERTS = 128 };
    struct ats_model *m = toy_qwen3moe(LAYERS);
    struct ats_sim_machine machine = round_machine();
    struct ats_sim_setting s = setting_of(m, &machine);
    s.vram_bytes = UINT64_C(1150) << 20;
    struct ats_error err;
    struct ats_sim_phase phase;
    const struct ats_sim_use shared = prefill(&s, "ats-async", TOKENS);
    for (int i = 0; i < ATS_FAMILIES; i++) { /* too slow for a share */
        machine.cpu.matmul_tflops[i] = 1e-4;
    }
    struct ats_sim_run *run = start(&s, "ats-async");
    const struct ats_sim_placement *p = ats_sim_run_placement(run);
    double expected = 0;
    for (size_t t = 0; t < m->n_tensors; t++) {
        const struct ats_model_tensor *tensor = &m->tensors[t];
        /* of the last layer only the last token's experts are computed, by the CPU */
        if (tensor->ne[2] != EXPERTS || p->tensor[t] || tensor->layer == LAYERS - 1) {
            continue;
        }
        struct ats_routing routing;
        bool seen[EXPERTS] = {false};
        assert_true(ats_routing_init(&routing, &machine.routing, s.seed, (uint64_t)tensor->layer,
                                     EXPERTS, USED));
        for (int k = 0; k < TOKENS; k++) {
            int32_t ids[USED];
            ats_routing_next(&routing, ids);
            for (int i = 0; i < USED; i++) {
                expected += seen[ids[i]] ? 0 : (double)tensor->bytes / EXPERTS;
                seen[ids[i]] = true;
            }
        }
        ats_routing_free(&routing);
        expected += TOKENS * USED * sizeof(int32_t); /* lists */
    }
    assert_true(expected > 0);
    assert_true(ats_sim_prefill(run, TOKENS, &phase, &err));
    ats_sim_run_free(run);
    /* besides, the input of 2048 values per token, a mask and positions */
    assert_true(phase.use.bytes[ATS_TO_DEVICE] >= expected);
    assert_true(phase.use.bytes[ATS_TO_DEVICE] <= expected + 2 * TOKENS * 2048 * 4.0);
    /* a CPU that is faster takes a share: less crosses */
    assert_true(shared.bytes[ATS_TO_DEVICE] < 0.95 * phase.use.bytes[ATS_TO_DEVICE]);
    assert_true(shared.us < phase.use.us);
    ats_model_free(m);
}

static void test_norms_of_heads_are_offloaded(void **state)
{
    (void)state;
    const struct ats_sim_machine machine = round_machine();
    struct ats_model *m = toy_qwen3moe(7);
    struct ats_sim_setting s = setting_of(m, &machine);
    assert_int_equal(decode(&s, "ngl=4").splits, 10);
    /* prompts: a split per weight that is moved, and two per layer for the cache */
    assert_int_equal(prefill(&s, "ngl=4", 512).splits, 58);
    assert_int_equal(decode(&s, "n-cpu-moe=5").splits, 12);
    assert_int_equal(prefill(&s, "n-cpu-moe=5", 512).splits, 17);
    ats_model_free(m);
    m = toy_llama(7, 4096, 14336); /* no norms of heads */
    s = setting_of(m, &machine);
    assert_int_equal(decode(&s, "ngl=4").splits, 2);
    ats_model_free(m);
}

/* ---- schedules ---- */

enum { ROUNDS = 10 };

static double run_schedule(struct ats_sim_schedule *schedule, struct ats_sim_use *use)
{
    const struct ats_sim_machine machine = round_machine();
    struct ats_sim_engine *e = ats_sim_engine_new(&machine, NULL, NULL);
    assert_true(ats_sim_run(e, schedule));
    *use = ats_sim_used(e);
    ats_sim_engine_free(e);
    ats_sim_schedule_free(schedule);
    return use->us;
}

/* A copy of 20 MB (10 + 1000 us) and an operator of 1000 us, ten times. */
static void test_serial_and_overlapped(void **state)
{
    (void)state;
    struct ats_sim_use use;
    struct ats_sim_schedule serial = {0};
    struct ats_sim_schedule overlapped = {0};
    for (int i = 0; i < ROUNDS; i++) {
        struct ats_sim_action copy = {
            .kind = ATS_SIM_COPY, .bytes = 20e6, .direction = ATS_TO_DEVICE, .blocking = true};
        const struct ats_sim_action gpu = {.kind = ATS_SIM_GPU, .us = 1000, .launch = true};
        const struct ats_sim_action sync = {.kind = ATS_SIM_SYNC, .after = ATS_SIM_ALL};
        ats_sim_add(&serial, &copy);
        ats_sim_add(&serial, &gpu);
        ats_sim_add(&serial, &sync);
        copy.queue = ATS_SIM_TRANSFER_STREAM;
        copy.blocking = false;
        const struct ats_sim_action event = {.kind = ATS_SIM_EVENT,
                                             .queue = ATS_SIM_COMPUTE_STREAM,
                                             .after = ats_sim_add(&overlapped, &copy)};
        ats_sim_add(&overlapped, &event);
        ats_sim_add(&overlapped, &gpu);
    }
    assert_near(run_schedule(&serial, &use), ROUNDS * 2010, 1e-2);
    assert_int_equal(use.launches, ROUNDS);
    assert_near(run_schedule(&overlapped, &use), ROUNDS * 1010 + 1000, 1e-2);
    assert_near(use.gpu_us, ROUNDS * 1000, 1e-2);
    assert_near(use.link_us[ATS_TO_DEVICE], ROUNDS * 1010, 1e-2);
}

/* The CPU takes 30 of 40 GB/s, so a copy gets 10 instead of 20: 20 MB in 2000 us. */
static void test_memory_is_shared(void **state)
{
    (void)state;
    struct ats_sim_use use;
    struct ats_sim_schedule s = {0};
    const struct ats_sim_action copy = {.kind = ATS_SIM_COPY,
                                        .queue = ATS_SIM_TRANSFER_STREAM,
                                        .bytes = 20e6,
                                        .direction = ATS_TO_DEVICE};
    const struct ats_sim_action cpu = {.kind = ATS_SIM_CPU, .us = 5000, .bytes = 150e6};
    const struct ats_sim_action gpu = {.kind = ATS_SIM_GPU, .us = 100};
    const struct ats_sim_action event = {.kind = ATS_SIM_EVENT, .after = ats_sim_add(&s, &copy)};
    ats_sim_add(&s, &event);
    ats_sim_add(&s, &gpu);
    ats_sim_add(&s, &cpu);
    assert_near(run_schedule(&s, &use), 5000, 1e-3);
    assert_near(use.link_us[ATS_TO_DEVICE], 2010, 1e-2);
    assert_near(use.wait_us, 0, 1e-6);
}

/* ---- whatever the machine ---- */

static double between(struct ats_rng *rng, double low, double high)
{
    return low + (high - low) * (double)ats_rng_below(rng, 1000001) / 1e6;
}

static struct ats_sim_machine random_machine(struct ats_rng *rng)
{
    struct ats_sim_machine m = round_machine();
    for (int i = 0; i < ATS_FAMILIES; i++) {
        m.device.vram_gbps[i] = between(rng, 100, 1000);
        m.cpu.vram_gbps[i] = between(rng, 5, 40);
        m.device.matmul_tflops[i] = between(rng, 5, 200);
    }
    m.device.h2d_gbps = between(rng, 5, 30);
    m.device.dram_limit_gbps = between(rng, 40, 80);
    m.device.pageable_gbps = between(rng, 2, 10);
    return m;
}

static void simulate(const struct ats_sim_setting *s, const char *policy, double us[2],
                     double bound_us[2])
{
    struct ats_error err = {""};
    struct ats_sim_phase phases[2];
    struct ats_sim_run *run = start(s, policy);
    assert_true(ats_sim_prefill(run, 600, &phases[0], &err));
    assert_true(ats_sim_decode(run, 300, 2, &phases[1], &err));
    ats_sim_run_free(run);
    for (int i = 0; i < 2; i++) {
        us[i] = phases[i].use.us;
        bound_us[i] = phases[i].bound_us;
    }
}

static void test_no_policy_beats_the_bound(void **state)
{
    (void)state;
    static const char *const policies[] = {"cpu", "layers",        "moe",      "ats-experts",
                                           "fit", "ats-placement", "ats-async"};
    struct ats_rng rng = test_rng(1);
    struct ats_model *m = toy_qwen3moe(4);
    for (int round = 0; round < 8; round++) {
        const struct ats_sim_machine machine = random_machine(&rng);
        struct ats_sim_setting s = setting_of(m, &machine);
        s.vram_bytes = (uint64_t)between(&rng, 1.0e9, 3.5e9);
        for (size_t i = 0; i < sizeof policies / sizeof policies[0]; i++) {
            double us[2];
            double bound_us[2];
            simulate(&s, policies[i], us, bound_us);
            assert_true(bound_us[0] > 0 && bound_us[0] <= us[0]);
            assert_true(bound_us[1] > 0 && bound_us[1] <= us[1]);
        }
    }
    ats_model_free(m);
}

static void test_faster_link_and_more_vram(void **state)
{
    (void)state;
    static const char *const policies[] = {"layers", "fit", "ats-placement", "ats-async"};
    struct ats_rng rng = test_rng(2);
    struct ats_model *m = toy_llama(6, 2048, 8192);
    for (int round = 0; round < 8; round++) {
        struct ats_sim_machine machine = random_machine(&rng);
        struct ats_sim_setting s = setting_of(m, &machine);
        s.vram_bytes = (uint64_t)between(&rng, 0.3e9, 2.5e9);
        for (size_t i = 0; i < sizeof policies / sizeof policies[0]; i++) {
            double us[2][2];
            double bound_us[3][2];
            s.machine = &machine;
            simulate(&s, policies[i], us[0], bound_us[0]);
            struct ats_sim_machine faster = machine;
            ats_sim_machine_set_link(&faster, machine.device.h2d_gbps * 2);
            s.machine = &faster;
            simulate(&s, policies[i], us[1], bound_us[1]);
            s.machine = &machine;
            const uint64_t vram = s.vram_bytes;
            s.vram_bytes += vram / 2;
            double ignored[2];
            simulate(&s, policies[i], ignored, bound_us[2]);
            s.vram_bytes = vram;
            /* weights are weighed one by one: what a faster link lets cross may cost two splits,
             * of at most 100 us here, in a pass of milliseconds */
            const double slack = strncmp(policies[i], "ats", 3) == 0 ? 1.04 : 1 + 1e-9;
            for (int p = 0; p < 2; p++) {
                assert_true(us[1][p] <= us[0][p] * slack);
                assert_true(bound_us[1][p] <= bound_us[0][p] * (1 + 1e-9));
                assert_true(bound_us[2][p] <= bound_us[0][p] * (1 + 1e-9));
            }
        }
    }
    ats_model_free(m);
}

static void test_policy_names(void **state)
{
    (void)state;
    struct ats_error err = {""};
    const char *argument;
    assert_non_null(ats_sim_policy_find("ngl=12", &argument, &err));
    assert_string_equal(argument, "12");
    assert_null(ats_sim_policy_find("ngl", &argument, &err));
    assert_null(ats_sim_policy_find("fit=1", &argument, &err));
    assert_null(ats_sim_policy_find("best", &argument, &err));
    assert_non_null(strstr(err.text, "'best'"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_decode_on_one_side),
        cmocka_unit_test(test_decode_over_both_sides),
        cmocka_unit_test(test_prefill_moves_weights),
        cmocka_unit_test(test_prompt_in_batches),
        cmocka_unit_test(test_plan_file),
        cmocka_unit_test(test_promotion_in_prefill),
        cmocka_unit_test(test_holding_in_decode),
        cmocka_unit_test(test_nothing_passes_through_what_fits),
        cmocka_unit_test(test_host_time_of_tokens),
        cmocka_unit_test(test_cpu_experts),
        cmocka_unit_test(test_prefill_moves_used_experts),
        cmocka_unit_test(test_experts_by_slice),
        cmocka_unit_test(test_experts_by_use),
        cmocka_unit_test(test_norms_of_heads_are_offloaded),
        cmocka_unit_test(test_serial_and_overlapped),
        cmocka_unit_test(test_memory_is_shared),
        cmocka_unit_test(test_no_policy_beats_the_bound),
        cmocka_unit_test(test_faster_link_and_more_vram),
        cmocka_unit_test(test_policy_names),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
