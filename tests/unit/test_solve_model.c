/* Deciding where a model lives: the solver's problem against numbers worked out by hand, what must
 * hold of any decision, and the way from a backend's tensors to places. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "model/infer.h"
#include "plan/staging.h"
#include "seed.h"
#include "sim/problem.h"
#include "toy_models.h"

#include <math.h>

static void assert_near(double value, double expected, double tolerance)
{
    if (!(fabs(value - expected) <= tolerance)) {
        fail_msg("%.9g is not within %.3g of %.9g", value, tolerance, expected);
    }
}

/* CPU: 10 GB/s, 1 TFLOP/s, 2 us per operator. GPU: 100 GB/s, 10 TFLOP/s, 5 us per launch. Link: 20
 * GB/s in, 4 pageable, 10 us per copy. Host: 10 us per split, 1 per synchronisation. */
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
                                         const struct ats_sim_machine *machine, uint64_t vram_bytes)
{
    return (struct ats_sim_setting){.model = model,
                                    .machine = machine,
                                    .vram_bytes = vram_bytes,
                                    .n_ctx = 4096,
                                    .ubatch = 512,
                                    .batch = 2048,
                                    .fit_margin = UINT64_C(1) << 30,
                                    .mmap = true,
                                    .seed = 1};
}

/* ---- the problem ---- */

/* One layer of a 1000 x 1000 matrix in F32, and a head of the same size. */
static struct ats_model *two_matrices(void)
{
    struct toy toy;
    struct ats_error err;
    toy_start(&toy, "toy", 1, 1000, 0, 0, 0);
    toy_add(&toy, ATS_FAMILY_F32, 1000, 1000, 1, "blk.0.mix.weight");
    toy_add(&toy, ATS_FAMILY_F32, 1000, 1, 1, "output_norm.weight");
    toy_add(&toy, ATS_FAMILY_F32, 1000, 1000, 1, "output.weight");
    return toy_build(&toy, &err);
}

static void test_costs_by_hand(void **state)
{
    (void)state;
    struct ats_model *m = two_matrices();
    const struct ats_sim_machine machine = round_machine();
    const struct ats_sim_setting s = setting_of(m, &machine, 100000000);
    const struct ats_workload w = {.prompt_tokens = 1024, .decode_tokens = 100};
    struct ats_sim_placement reserved;
    struct ats_sim_problem p;
    assert_true(ats_sim_placement_init(&s, &reserved));
    reserved.staging_bytes = 8000000; /* room for two */
    assert_true(ats_sim_problem_make(&s, &w, &reserved, &p));
    assert_int_equal(p.n, 3);
    assert_near(p.passes[ATS_PREFILL], 2, 0);
    assert_near(p.passes[ATS_DECODE], 100, 0);
    assert_int_equal(p.vector_bytes, 4096); /* 4000, at multiples of 128 */
    const struct ats_solve_unit *mix = &p.units[0];
    assert_int_equal(mix->bytes, 4000000);
    /* one token: 4 MB of weights and 8 kB of activations, at 10 and at 100 GB/s */
    assert_near(mix->us[ATS_DECODE][ATS_HOST], 402.8, 1e-6);
    assert_near(mix->us[ATS_DECODE][ATS_ACCEL], 45.08, 1e-6);
    /* 512 tokens: 1.024 GFLOP at 10 TFLOP/s * 512 / 537 and 5 us; the CPU's 1026 us and more lose
     * against a copy of 4 MB at 20 GB/s, which takes longer than computing */
    assert_near(mix->us[ATS_PREFILL][ATS_ACCEL], 5 + 102.4 * 537 / 512, 1e-6);
    assert_near(mix->us[ATS_PREFILL][ATS_HOST], 210, 1e-6);
    /* the first change, from the embedding: 10 of a split, half a synchronisation, 10 for a copy, 4
     * kB of input and 4 kB of the stream at 4 GB/s */
    assert_near(mix->change_us[ATS_DECODE], 20.5 + 2, 1e-6);
    assert_near(mix->change_us[ATS_PREFILL], 20.5 + 512 * 2, 1e-6);
    /* a norm reads the stream and nothing besides; in prefill the matrix before is streamed */
    const struct ats_solve_unit *norm = &p.units[1];
    assert_int_equal(norm->bytes, 0);
    assert_near(norm->change_us[ATS_DECODE], 20.5 + 1, 1e-6);
    /* the output head is not streamed */
    const struct ats_solve_unit *head = &p.units[2];
    assert_near(head->us[ATS_PREFILL][ATS_HOST], 0, 1e-6); /* no logits are asked for */
    assert_near(head->us[ATS_DECODE][ATS_HOST], 402.8, 1e-6);
    ats_sim_problem_free(&p);
    reserved.staging_bytes = 7999999; /* a weight takes half of it at most */
    assert_true(ats_sim_problem_make(&s, &w, &reserved, &p));
    assert_true(p.units[0].us[ATS_PREFILL][ATS_HOST] > 1000);
    ats_sim_problem_free(&p);
    ats_sim_placement_free(&reserved);
    ats_model_free(m);
}

/* No room; room for the norm and one of two matrices that save 350 us each; room for all. */
static void test_decision_by_hand(void **state)
{
    (void)state;
    struct ats_model *m = two_matrices();
    const struct ats_sim_machine machine = round_machine();
    struct ats_sim_setting s = setting_of(m, &machine, 1000000);
    const struct ats_workload w = {.prompt_tokens = 0, .decode_tokens = 100};
    struct ats_sim_placement p;
    struct ats_decision d;
    struct ats_error err = {""};
    s.compute_bytes = 1000000;
    assert_true(ats_sim_placement_init(&s, &p));
    assert_true(ats_decide(&s, &w, ATS_BUDGET_OF_SETTING, &p, &d, &err));
    assert_false(p.tensor[0] || p.tensor[2]);
    assert_int_equal(d.budget, 0);
    /* budgets below what the setting leaves count too */
    s.vram_bytes = UINT64_C(1) << 30;
    assert_true(ats_decide(&s, &w, 4000000 + 4096, &p, &d, &err));
    assert_int_equal(d.budget, 4004096);
    assert_true(p.tensor[0] != p.tensor[2]);
    assert_true(p.tensor[1]); /* the norm has its room */
    assert_true(d.solution.exact);
    assert_true(ats_decide(&s, &w, ATS_BUDGET_OF_SETTING, &p, &d, &err));
    assert_true(p.tensor[0] && p.tensor[1] && p.tensor[2]);
    ats_sim_placement_free(&p);
    ats_model_free(m);
}

/* ---- what holds of any decision ---- */

static double splits_of(const struct ats_decision *d, const char *name)
{
    for (size_t i = 0; i < d->n; i++) {
        if (strcmp(d->candidates[i].name, name) == 0) {
            return d->candidates[i].prediction.splits[ATS_DECODE];
        }
    }
    return INFINITY;
}

static double session_of(const struct ats_decision *d, const char *name)
{
    for (size_t i = 0; i < d->n; i++) {
        if (strcmp(d->candidates[i].name, name) == 0) {
            return d->candidates[i].prediction.session_us;
        }
    }
    return INFINITY;
}

static size_t n_sliced; /* decisions that knew of experts by slice */
static size_t n_few;    /* with less staging memory, */
static size_t n_many;   /* with more, */
static size_t n_whole;  /* and without pieces */

/* The chosen plan fits, no candidate is predicted to be faster by more than what counts as equal
 * (0.1 %), and it has more splits than the placement by layers only if it is faster. */
static void check_decision(const struct ats_sim_setting *s, const struct ats_workload *w,
                           struct ats_decision *d)
{
    struct ats_sim_placement p;
    struct ats_error err = {""};
    assert_true(ats_sim_placement_init(s, &p));
    if (!ats_decide(s, w, ATS_BUDGET_OF_SETTING, &p, d, &err)) {
        fail_msg("%s", err.text);
    }
    const struct ats_candidate *chosen = &d->candidates[d->chosen];
    assert_true(p.used_bytes <= s->vram_bytes);
    assert_int_equal(p.used_bytes, chosen->used_bytes);
    assert_int_equal(p.staging.places, d->staging.places);
    assert_int_equal(p.staging.whole, d->staging.whole);
    if (p.staging.places == ATS_STAGING_FEW_PLACES) {
        assert_true(p.staging_bytes > 0);
        n_few++;
    }
    n_many += p.staging.places == ATS_STAGING_MANY_PLACES;
    n_whole += p.staging.whole;
    if (p.staging.whole) { /* nothing comes in pieces, but experts may in parcels */
        assert_int_equal(p.scratch_bytes > 0,
                         p.staging_bytes > 0 && s->model->params.n_experts > 0);
    }
    for (size_t i = 0; i < d->n; i++) {
        assert_true(d->candidates[i].used_bytes <= s->vram_bytes);
        if (d->candidates[i].is_sliced) { /* no placement; the last, and only of experts */
            assert_int_equal(i, d->n - 1);
            assert_true(s->model->params.n_experts > 0);
            const struct ats_candidate *other = d->keeps_fill ? &d->candidates[d->fill] : chosen;
            assert_int_equal(d->slices_win, 1.02 * d->candidates[i].prediction.session_us <
                                                other->prediction.session_us);
            n_sliced++;
            continue;
        }
        assert_true(chosen->prediction.session_us <=
                    1.001 * d->candidates[i].prediction.session_us);
    }
    assert_true(!d->slices_win || d->candidates[d->n - 1].is_sliced);
    assert_false(chosen->is_sliced);
    if (chosen->prediction.splits[ATS_DECODE] > splits_of(d, "layers")) {
        assert_true(chosen->prediction.session_us < session_of(d, "layers"));
    }
    const struct ats_solution *sol = &d->solution;
    assert_true(sol->weighted_us - sol->bound_us <=
                0.01 * (sol->host_us - sol->bound_us) + 1e-9 * sol->host_us);
    ats_sim_placement_free(&p);
}

static uint64_t total_bytes(const struct ats_sim_setting *s)
{
    uint64_t bytes = 0;
    for (size_t i = 0; i < s->model->n_units; i++) {
        const struct ats_model_unit *u = &s->model->units[i];
        bytes += u->role != ATS_ROLE_EMBEDDING ? u->weight_bytes : 0;
        bytes += ats_model_state_bytes(u, s->n_ctx, s->ubatch);
    }
    return bytes;
}

static void check_model(struct ats_model *m)
{
    const struct ats_sim_machine machine = round_machine();
    struct ats_sim_setting s = setting_of(m, &machine, 1);
    const struct ats_workload w = ats_workload_default();
    const uint64_t total = total_bytes(&s);
    double before = INFINITY;
    s.compute_bytes = 100 << 20;
    for (uint64_t quarter = 0; quarter <= 6; quarter++) {
        struct ats_decision d;
        struct ats_decision again;
        s.vram_bytes = total * quarter / 4;
        check_decision(&s, &w, &d);
        check_decision(&s, &w, &again);
        assert_memory_equal(&d, &again, sizeof d);
        const double us = d.candidates[d.chosen].prediction.session_us;
        if (us > before * (1 + 1e-9)) { /* more VRAM never predicts slower */
            fail_msg("%.6g us with %llu bytes of VRAM, %.6g with less", us,
                     (unsigned long long)s.vram_bytes, before);
        }
        before = us;
    }
    ats_model_free(m);
}

static void test_decisions_on_models(void **state)
{
    (void)state;
    check_model(toy_qwen3moe(8));
    check_model(toy_llama(8, 4096, 14336));
    check_model(two_matrices());
    assert_true(n_sliced > 0);
    printf("staging memory: %zu with fewer places, %zu with many, %zu with whole matrices\n", n_few,
           n_many, n_whole);
    assert_true(n_few > 0 && n_whole > 0);
}

/* Any machine, any session. */
static void test_decisions_on_random_machines(void **state)
{
    (void)state;
    for (uint64_t round = 0; round < 12; round++) {
        struct ats_rng rng = test_rng(round);
        struct ats_sim_machine machine = round_machine();
        machine.overheads.split_us = (double)test_between(&rng, 1, 200);
        machine.device.h2d_gbps = (double)test_between(&rng, 2, 60);
        machine.device.launch_us = (double)test_between(&rng, 1, 20);
        for (int i = 0; i < ATS_FAMILIES; i++) {
            machine.cpu.vram_gbps[i] = (double)test_between(&rng, 1, 150);
            machine.cpu.matmul_tflops[i] = (double)test_between(&rng, 1, 40) / 10;
        }
        struct ats_model *m = test_chance(&rng, 50) ? toy_qwen3moe(4) : toy_llama(4, 2048, 8192);
        struct ats_sim_setting s = setting_of(m, &machine, 1);
        s.ubatch = (uint32_t)test_between(&rng, 1, 1024);
        s.n_ctx = (uint32_t)test_between(&rng, 300, 9000);
        s.vram_bytes = test_between(&rng, 0, total_bytes(&s) + (500 << 20));
        const struct ats_workload w = {.prompt_tokens = (uint32_t)test_between(&rng, 1, 250),
                                       .decode_tokens = (uint32_t)test_between(&rng, 0, 50)};
        struct ats_decision d;
        check_decision(&s, &w, &d);
        ats_model_free(m);
    }
}

/* ---- a backend's tensors ---- */

/* The tensors of a model as they come to a backend, and its caches. */
static struct ats_model_tensor *copy_tensors(const struct ats_model *m, size_t *n)
{
    struct ats_model_tensor *tensors = calloc(m->n_tensors + 1, sizeof(*tensors));
    *n = 0;
    for (size_t i = 0; i < m->n_tensors; i++) {
        if (strcmp(m->tensors[i].name, "token_embd.weight") != 0) {
            tensors[*n] = m->tensors[i];
            tensors[(*n)++].name = strdup(m->tensors[i].name);
        }
    }
    return tensors;
}

enum { LAYERS = 4, KEYS = 4 * 128 };

static struct ats_model_tensor cache_of(char *name, const char *kind, int layer, uint64_t tokens)
{
    sprintf(name, "cache_%s_l%d", kind, layer);
    return (struct ats_model_tensor){
        .name = name, .ne = {KEYS, tokens, 1, 1}, .bytes = KEYS * tokens * 2};
}

static void test_inferred_description(void **state)
{
    (void)state;
    struct ats_model *m = toy_qwen3moe(LAYERS);
    char names[2 * LAYERS][32];
    struct ats_model_tensor caches[2 * LAYERS];
    for (int i = 0; i < 2 * LAYERS; i++) {
        caches[i] = cache_of(names[i], i % 2 == 0 ? "k" : "v", i / 2, 4096);
    }
    const struct ats_model_clues clues = {
        .state = caches, .n_state = sizeof caches / sizeof caches[0], .n_used = 8};
    struct ats_error err = {""};
    size_t n;
    uint32_t n_ctx;
    struct ats_model_tensor *tensors = copy_tensors(m, &n);
    struct ats_model *inferred = ats_model_infer(tensors, n, &clues, &n_ctx, &err);
    assert_non_null(inferred);
    assert_int_equal(n_ctx, 4096);
    assert_int_equal(inferred->params.n_layers, LAYERS);
    assert_int_equal(inferred->params.n_embd, 2048);
    assert_int_equal(inferred->params.n_experts, 128);
    assert_int_equal(inferred->params.n_used, 8);
    assert_int_equal(inferred->params.n_heads[3], 32);
    assert_int_equal(inferred->params.n_kv_heads[3], 4);
    assert_int_equal(inferred->n_units, m->n_units - 1); /* without the embedding */
    for (size_t i = 0; i < inferred->n_units; i++) {
        const struct ats_model_unit *a = &inferred->units[i];
        const struct ats_model_unit *b = &m->units[i + 1];
        assert_string_equal(a->name, b->name);
        assert_int_equal(a->weight_bytes, b->weight_bytes);
        assert_int_equal(a->kv_bytes_per_token, b->kv_bytes_per_token);
        assert_int_equal(a->in_bytes_per_token, b->in_bytes_per_token);
        assert_int_equal(a->n_used, b->n_used);
        assert_int_equal(a->n_ops, b->n_ops);
    }
    ats_model_free(inferred);
    /* a smaller cache has a window, an 8-bit one fewer bytes, and routers may be unknown */
    caches[4] = cache_of(names[4], "k", 2, 1024);
    caches[5] = cache_of(names[5], "v", 2, 1024);
    caches[0].bytes /= 2;
    caches[1].bytes /= 2;
    const struct ats_model_clues fewer = {.state = caches,
                                          .n_state = sizeof caches / sizeof caches[0]};
    tensors = copy_tensors(m, &n);
    inferred = ats_model_infer(tensors, n, &fewer, &n_ctx, &err);
    assert_non_null(inferred);
    assert_int_equal(inferred->params.n_used, 8); /* 128 / 16 */
    for (size_t i = 0; i < inferred->n_units; i++) {
        const struct ats_model_unit *u = &inferred->units[i];
        if (u->kv_bytes_per_token > 0) {
            assert_int_equal(u->kv_bytes_per_token, u->layer == 0 ? 2 * KEYS : 4 * KEYS);
            assert_int_equal(u->window, u->layer == 2 ? 1024 : 0);
        }
    }
    ats_model_free(inferred);
    ats_model_free(m);
}

/* Backend and command decide alike: places by name are those of the decision on the whole model. */
static void test_places_by_name(void **state)
{
    (void)state;
    struct ats_model *m = toy_qwen3moe(LAYERS);
    const struct ats_sim_machine machine = round_machine();
    struct ats_sim_setting s = setting_of(m, &machine, UINT64_C(900) << 20);
    const struct ats_workload w = ats_workload_default();
    struct ats_sim_placement p;
    struct ats_sim_listing l;
    struct ats_error err = {""};
    s.compute_bytes = 100 << 20;
    assert_true(ats_sim_placement_init(&s, &p));
    struct ats_decision d;
    assert_true(ats_decide(&s, &w, ATS_BUDGET_OF_SETTING, &p, NULL, &err));
    assert_true(ats_sim_listing_make(&s, &l));
    enum ats_where *where = calloc(l.n + 4, sizeof(*where));
    struct ats_unit *units = calloc(l.n + 4, sizeof(*units));
    memcpy(units, l.units, l.n * sizeof(*units));
    units[l.n] =
        (struct ats_unit){.name = "lora.weight", .bytes = 10, .accel_can = true, .host_can = true};
    units[l.n + 1] = (struct ats_unit){.name = "only.weight", .bytes = 10, .accel_can = true};
    units[l.n + 2] = (struct ats_unit){.name = "cache_v_l2",
                                       .bytes = 10,
                                       .kind = ATS_UNIT_STATE,
                                       .accel_can = true,
                                       .host_can = true};
    units[l.n + 3] = (struct ats_unit){.name = "rope_freqs.weight",
                                       .bytes = 10,
                                       .is_vector = true,
                                       .accel_can = true,
                                       .host_can = true};
    units[0].accel_can = false;
    assert_true(ats_decide_units(&s, &w, ATS_BUDGET_OF_SETTING, units, l.n + 4, where, &d, &err));
    size_t n[3] = {0};
    for (size_t i = 1; i < l.n; i++) {
        const bool expected = l.source[i] < m->n_tensors ? p.tensor[l.source[i]]
                                                         : p.unit_state[l.source[i] - m->n_tensors];
        assert_int_equal(where[i] != ATS_WHERE_HOST, expected);
        n[where[i]]++;
    }
    assert_true(n[ATS_WHERE_HOST] > 0 && n[ATS_WHERE_VRAM] > 0);
    assert_int_equal(where[0], ATS_WHERE_HOST);       /* the accelerator cannot */
    assert_int_equal(where[l.n], ATS_WHERE_HOST);     /* of no model that we know */
    assert_int_equal(where[l.n + 1], ATS_WHERE_VRAM); /* nothing else can */
    assert_int_equal(where[l.n + 2], ATS_WHERE_VRAM); /* with the keys */
    assert_int_equal(where[l.n + 3], ATS_WHERE_BOTH); /* a vector that every layer may read */
    /* what does not fit any more stays; there is no room for staging memory */
    s.vram_bytes = s.compute_bytes + 1000;
    assert_true(ats_decide_units(&s, &w, 15, units + l.n, 3, where, &d, &err));
    assert_int_equal(where[1], ATS_WHERE_VRAM);
    assert_int_equal(where[2], ATS_WHERE_HOST);
    free(where);
    free(units);
    ats_sim_listing_free(&l);
    ats_sim_placement_free(&p);
    ats_model_free(m);
}

/* ---- models that nobody has made ---- */

static const char *const odd_names[] = {
    "attn_norm.weight",   "attn_q.weight",        "attn_k.weight",      "attn_v.weight",
    "attn_qkv.weight",    "attn_kv_a_mqa.weight", "attn_output.weight", "attn_k_norm.weight",
    "ssm_conv1d.weight",  "ssm_out.weight",       "ssm_norm.weight",    "ffn_gate_inp.weight",
    "ffn_up_exps.weight", "ffn_down_exps.weight", "ffn_up.weight",      "ffn_down.weight",
    "ffn_down_exps.bias", "anything.weight",
};

static uint64_t odd_size(struct ats_rng *rng)
{
    return test_between(rng, 1, 300) == 1 ? test_between(rng, 1, SIZE_MAX >> 20)
           : test_chance(rng, 20)         ? test_between(rng, 1, 3)
                                          : 32 * test_between(rng, 1, 200);
}

static size_t draw_tensors(struct ats_rng *rng, struct ats_model_tensor *tensors)
{
    const size_t n_names = sizeof odd_names / sizeof odd_names[0];
    size_t n = 0;
    for (size_t layer = 0; layer < 3; layer++) {
        for (size_t i = 0; i < n_names; i++) {
            if (test_chance(rng, 60)) {
                continue;
            }
            char name[64];
            snprintf(name, sizeof name, "blk.%zu.%s", layer, odd_names[i]);
            struct ats_model_tensor *t = &tensors[n++];
            *t = (struct ats_model_tensor){.name = strdup(name),
                                           .type_name = "f32",
                                           .ne = {odd_size(rng), odd_size(rng), 1, 1}};
            t->ne[2] = strstr(name, "_exps") != NULL ? test_between(rng, 1, 300) : 1;
            t->bytes = t->ne[0] * t->ne[1] * t->ne[2] * 4;
        }
    }
    return n;
}

/* Tensors and caches of any shape: refused with a message, or decided within the budget. */
static void test_odd_models(void **state)
{
    (void)state;
    size_t decided = 0;
    for (uint64_t round = 0; round < 400; round++) {
        struct ats_rng rng = test_rng(50000 + round);
        const size_t n_names = 3 * sizeof odd_names / sizeof odd_names[0];
        struct ats_model_tensor *tensors = calloc(n_names, sizeof(*tensors));
        const size_t n = draw_tensors(&rng, tensors);
        char names[6][32];
        struct ats_model_tensor caches[6];
        for (int i = 0; i < 6; i++) {
            static const char *const kinds[] = {"k", "v", "r", "s", "?", "k_lx"};
            caches[i] = cache_of(names[i], kinds[test_between(&rng, 0, 5)], i % 3, 1);
            caches[i].ne[1] = odd_size(&rng);
            caches[i].bytes = test_between(&rng, 1, 1 << 24);
        }
        const struct ats_model_clues clues = {
            .state = caches, .n_state = 6, .n_used = (uint32_t)test_between(&rng, 0, 40)};
        struct ats_error err = {""};
        uint32_t n_ctx;
        struct ats_model *m = ats_model_infer(tensors, n, &clues, &n_ctx, &err);
        if (m == NULL) {
            assert_true(err.text[0] != '\0');
            continue;
        }
        const struct ats_sim_machine machine = round_machine();
        struct ats_sim_setting s = setting_of(m, &machine, test_between(&rng, 0, 1 << 28));
        s.n_ctx = n_ctx > 0 && n_ctx < 100000 ? n_ctx : 100;
        const struct ats_workload w = {.prompt_tokens = 64, .decode_tokens = 4};
        struct ats_sim_placement p;
        struct ats_decision d;
        assert_true(ats_sim_placement_init(&s, &p));
        if (ats_decide(&s, &w, ATS_BUDGET_OF_SETTING, &p, &d, &err)) {
            assert_true(p.used_bytes <= s.vram_bytes);
            decided++;
        } else {
            assert_true(err.text[0] != '\0');
        }
        ats_sim_placement_free(&p);
        ats_model_free(m);
    }
    assert_true(decided > 100);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_costs_by_hand),
        cmocka_unit_test(test_decision_by_hand),
        cmocka_unit_test(test_decisions_on_models),
        cmocka_unit_test(test_decisions_on_random_machines),
        cmocka_unit_test(test_inferred_description),
        cmocka_unit_test(test_places_by_name),
        cmocka_unit_test(test_odd_models),
    };
    return cmocka_run_group_tests_name("solve_model", tests, NULL, NULL);
}
