/* `ats simulate`: predicts how fast a policy runs a model on a machine, without running it. */
#include "cli/simulate.h"
#include "cli/cli.h"
#include "cli/simulate_options.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    KEY_POLICY = SIMULATE_KEY_OWN,
    KEY_BATCH,
    KEY_FIT_MARGIN,
    KEY_PROMPT,
    KEY_DEPTH,
    KEY_SWEEP,
    KEY_TRACE,
    KEY_CPU_GBPS,
    KEY_GRAPH_US,
    KEY_EMBEDDING_NS,
    KEY_MASK_NS,
    KEY_SPLIT_US,
    KEY_SYNC_US,
    KEY_CPU_OP_US,
};

enum { MAX_TOKENS = 1 << 20 };

static const double MAX_OVERHEAD_US = 1e6;
static const double MAX_LINK_GBPS = 1e4;

/* A comma-separated option. */
struct list {
    char *text; /* owned; the entries point into it */
    char *entries[SIMULATE_MAX_LIST];
    size_t n;
};

enum sweep { SWEEP_NOTHING, SWEEP_LINK, SWEEP_VRAM };

struct options {
    struct simulate_options common; /* n_ctx of 0: what the longest phase needs */
    struct list rigs;
    struct list policies;
    struct list swept;
    enum sweep sweep;
    uint32_t prompts[SIMULATE_MAX_LIST];
    size_t n_prompts;
    uint32_t batch;
    size_t fit_margin;
    double cpu_gbps; /* 0: the rig's, or the host's */
    uint32_t depth;
    const char *trace;
    struct ats_sim_overheads overheads;
};

static const struct argp_option option_table[] = {
    {"rig", SIMULATE_KEY_RIG, "NAME,...", 0, "Machines, by name or file (default desktop-4090)", 1},
    {"profile", SIMULATE_KEY_PROFILE, "FILE", 0,
     "This machine instead, as `ats profile` measured it", 1},
    {"policy", KEY_POLICY, "P,...", 0, "Who decides, see below (default fit)", 1},
    {"vram", SIMULATE_KEY_VRAM, "SIZE", 0, "VRAM budget (default: the rig's memory)", 1},
    {"sweep", KEY_SWEEP, "WHAT=V,...", 0, "link=GB/s,... or vram=SIZE,...: a row for each", 1},
    {"scale", SIMULATE_KEY_SCALE, "host|X", 0,
     "The rig as it is emulated on this host, or by a factor (default: the real machine)", 1},
    {"layers", SIMULATE_KEY_LAYERS, "N", 0, "Fewer layers, for a model given by name", 2},
    {"ctx", SIMULATE_KEY_CTX, "N", 0, "Context (default: what the phases need)", 2},
    {"ubatch", SIMULATE_KEY_UBATCH, "N", 0, "Tokens of a pass (default 512)", 2},
    {"batch", KEY_BATCH, "N", 0,
     "llama.cpp's -b: a batch asks for the logits of its last token (2048)", 2},
    {"fit-margin", KEY_FIT_MARGIN, "SIZE", 0, "What the policy fit leaves free (1G)", 2},
    {"prompt", KEY_PROMPT, "N,...", 0, "Prompt lengths; 0 for none (default 512,1024,2048)", 2},
    {"depth", KEY_DEPTH, "N", 0, "Tokens before decoding (default 2048)", 2},
    {"decode", SIMULATE_KEY_DECODE, "N", 0, "Tokens to decode (default 128); 0 for none", 2},
    {"no-mmap", SIMULATE_KEY_NO_MMAP, NULL, 0, "Weights in pinned memory instead of the page cache",
     2},
    {"compute", SIMULATE_KEY_COMPUTE, "SIZE", 0, "VRAM for compute buffers (default: estimated)",
     2},
    {"cpu-gbps", KEY_CPU_GBPS, "X", 0,
     "What the CPU reads of weights when it decodes (default: the rig's or the host's)", 3},
    {"graph-us", KEY_GRAPH_US, "X", 0, "Host time of a pass besides its splits (200)", 3},
    {"embedding-ns", KEY_EMBEDDING_NS, "X", 0, "Host time of a value of an embedding (0.8)", 3},
    {"mask-ns", KEY_MASK_NS, "X", 0, "Host time of a value of attention's mask (2)", 3},
    {"split-us", KEY_SPLIT_US, "X", 0, "Host time of a split (10)", 3},
    {"sync-us", KEY_SYNC_US, "X", 0, "Host time of a synchronisation (5)", 3},
    {"cpu-op-us", KEY_CPU_OP_US, "X", 0, "Dispatch of an operator on the CPU (4)", 3},
    {"json", SIMULATE_KEY_JSON, NULL, 0, "Print JSON (format \"ats-simulation-1\")", 4},
    {"trace", KEY_TRACE, "FILE", 0, "Write a timeline for Chrome's tracing or Perfetto", 4},
    CLI_HELP_OPTION,
    {0},
};

/* ---- options ---- */

static double real(const struct options *o, const char *option, const char *text, double least,
                   double most)
{
    char *end;
    errno = 0;
    const double value = strtod(text, &end);
    if (end == text || *end != '\0' || errno != 0 || !(value >= least && value <= most)) {
        cli_usage_error(o->common.who, "--%s: '%s' is not a number from %g to %g", option, text,
                        least, most);
    }
    return value;
}

static size_t positive_size(const struct options *o, const char *option, const char *text)
{
    const size_t bytes = cli_size(o->common.who, option, text);
    if (bytes == 0) {
        cli_usage_error(o->common.who, "--%s must be more than 0; the policy cpu does without VRAM",
                        option);
    }
    return bytes;
}

static void split_list(const struct options *o, const char *option, const char *text,
                       struct list *list)
{
    free(list->text);
    *list = (struct list){.text = cli_format("%s", text)};
    char *rest = list->text;
    char *entry;
    while ((entry = strsep(&rest, ",")) != NULL) {
        if (entry[0] == '\0') {
            cli_usage_error(o->common.who, "--%s: '%s' has an empty entry", option, text);
        }
        if (list->n == SIMULATE_MAX_LIST) {
            cli_usage_error(o->common.who, "--%s takes at most %d entries", option,
                            SIMULATE_MAX_LIST);
        }
        list->entries[list->n++] = entry;
    }
}

static void parse_prompts(struct options *o, const char *text)
{
    struct list list = {0};
    split_list(o, "prompt", text, &list);
    o->n_prompts = 0;
    for (size_t i = 0; i < list.n; i++) {
        const uint32_t n = cli_number(o->common.who, "prompt", list.entries[i], 0, MAX_TOKENS);
        o->prompts[o->n_prompts] = n;
        o->n_prompts += n > 0;
    }
    free(list.text);
}

static void parse_sweep(struct options *o, const char *text)
{
    const char *values = strchr(text, '=');
    if (values != NULL && strncmp(text, "link=", 5) == 0) {
        o->sweep = SWEEP_LINK;
    } else if (values != NULL && strncmp(text, "vram=", 5) == 0) {
        o->sweep = SWEEP_VRAM;
    } else {
        cli_usage_error(o->common.who, "--sweep '%s' is neither link=GB/s,... nor vram=SIZE,...",
                        text);
    }
    split_list(o, "sweep", values + 1, &o->swept);
}

static error_t parse_overheads(int key, char *arg, struct argp_state *state)
{
    struct options *o = state->input;
    switch (key) {
    case KEY_CPU_GBPS:
        o->cpu_gbps = real(o, "cpu-gbps", arg, 1e-3, MAX_LINK_GBPS);
        return 0;
    case KEY_GRAPH_US:
        o->overheads.graph_us = real(o, "graph-us", arg, 0, MAX_OVERHEAD_US);
        return 0;
    case KEY_EMBEDDING_NS:
        o->overheads.embedding_ns = real(o, "embedding-ns", arg, 0, MAX_OVERHEAD_US);
        return 0;
    case KEY_MASK_NS:
        o->overheads.mask_ns = real(o, "mask-ns", arg, 0, MAX_OVERHEAD_US);
        return 0;
    case KEY_SPLIT_US:
        o->overheads.split_us = real(o, "split-us", arg, 0, MAX_OVERHEAD_US);
        return 0;
    case KEY_SYNC_US:
        o->overheads.sync_us = real(o, "sync-us", arg, 0, MAX_OVERHEAD_US);
        return 0;
    case KEY_CPU_OP_US:
        o->overheads.cpu_op_us = real(o, "cpu-op-us", arg, 0, MAX_OVERHEAD_US);
        return 0;
    default:
        return simulate_parse_option(key, arg, state, &o->common);
    }
}

static error_t parse_option(int key, char *arg, struct argp_state *state)
{
    struct options *o = state->input;
    switch (key) {
    case KEY_POLICY:
        split_list(o, "policy", arg, &o->policies);
        return 0;
    case KEY_SWEEP:
        parse_sweep(o, arg);
        return 0;
    case KEY_BATCH:
        o->batch = cli_number(o->common.who, "batch", arg, 1, MAX_TOKENS);
        return 0;
    case KEY_FIT_MARGIN:
        o->fit_margin = positive_size(o, "fit-margin", arg);
        return 0;
    case KEY_PROMPT:
        parse_prompts(o, arg);
        return 0;
    case KEY_DEPTH:
        o->depth = cli_number(o->common.who, "depth", arg, 0, MAX_TOKENS);
        return 0;
    case KEY_TRACE:
        o->trace = arg;
        return 0;
    default:
        return parse_overheads(key, arg, state);
    }
}

static const struct argp argp = {
    option_table,
    parse_option,
    "MODEL",
    "Predicts how fast a model runs on a machine: MODEL is a GGUF file (metadata suffices) or a "
    "name that `ats synth --list` shows."
    "\v"
    "Policies:\n"
    "  cpu            no GPU at all\n"
    "  ngl=N          llama.cpp -ngl N\n"
    "  layers         llama.cpp with the largest -ngl that fits\n"
    "  n-cpu-moe=N    llama.cpp --n-cpu-moe N\n"
    "  moe            llama.cpp with the smallest --n-cpu-moe that fits\n"
    "  fit            llama.cpp --fit, its default\n"
    "  ats-placement  ATS, weights copied in order (ATS_TRANSFER=serial)\n"
    "  ats-async      ATS, weights copied ahead of their use, its default\n"
    "  ats-solved     ATS with the placement of `ats plan`\n"
    "  ats-async      ATS, weights copied ahead of their use\n"
    "  ats-experts    the same with experts by slice, its default\n"
    "  plan=FILE      ATS with a plan file (ATS_PLAN_OUT)\n"
    "  bound          no policy, only the physical bound\n"
    "\n"
    "Examples:\n"
    "  ats simulate qwen3-30b-a3b --rig laptop-3060 --policy fit,ats-async\n"
    "  ats simulate llama-3.1-70b --policy layers,bound --sweep link=12,24,50\n"
    "  ats simulate model.gguf --rig laptop-3060 --scale host --trace run.json\n"
    "\n"
    "docs/simulator.md says what is modelled and what is not.",
    NULL,
    NULL,
    NULL};

static void check(const struct options *o)
{
    const struct simulate_options *common = &o->common;
    simulate_check_options(common);
    if (common->has_vram && common->vram_bytes == 0) {
        cli_usage_error(common->who,
                        "--vram must be more than 0; the policy cpu does without VRAM");
    }
    if (o->n_prompts == 0 && common->decode == 0) {
        cli_usage_error(common->who, "neither prompt nor decode: nothing to simulate");
    }
    if (common->profile != NULL && o->cpu_gbps > 0) {
        cli_usage_error(common->who, "--cpu-gbps is for rigs; a profile was measured");
    }
}

/* ---- running ---- */

struct job {
    const struct options *o;
    const struct ats_model *model;
    uint32_t n_ctx;
    struct simulate_trace *trace;
    struct simulate_result *results;
    size_t n_results;
};

/* A rig's file name without folder and ending, which fits a table. */
static void set_rig_name(struct simulate_result *r, const struct ats_sim_machine *machine)
{
    snprintf(r->rig, sizeof r->rig, "%s", machine->name);
}

static bool run_phases(struct job *job, struct ats_sim_run *run, struct simulate_result *r,
                       struct ats_error *err)
{
    const struct options *o = job->o;
    for (size_t i = 0; i < o->n_prompts; i++) {
        if (!ats_sim_prefill(run, o->prompts[i], &r->phases[r->n_phases++], err)) {
            return false;
        }
    }
    if (o->common.decode == 0) {
        return true;
    }
    r->is_decode[r->n_phases] = true;
    r->depth[r->n_phases] = o->depth;
    return ats_sim_decode(run, o->depth, o->common.decode, &r->phases[r->n_phases++], err);
}

static bool run_policy(struct job *job, const struct ats_sim_machine *machine, const char *name,
                       uint64_t vram_bytes, double factor, struct ats_error *err)
{
    const struct options *o = job->o;
    if (job->n_results == SIMULATE_MAX_RESULTS) {
        return ats_fail(err, "more than %d combinations", SIMULATE_MAX_RESULTS);
    }
    const struct ats_sim_setting setting = {
        .model = job->model,
        .machine = machine,
        .vram_bytes = vram_bytes,
        .compute_bytes = o->common.compute_bytes,
        .n_ctx = job->n_ctx,
        .ubatch = o->common.ubatch,
        .batch = o->batch,
        .fit_margin = o->fit_margin,
        .mmap = !o->common.no_mmap,
        .seed = 1,
    };
    struct simulate_result *r = &job->results[job->n_results++];
    *r = (struct simulate_result){.bound_only = strcmp(name, "bound") == 0,
                                  .link_gbps = machine->device.h2d_gbps,
                                  .factor = factor,
                                  .vram_bytes = vram_bytes};
    snprintf(r->policy, sizeof r->policy, "%s", name);
    set_rig_name(r, machine);
    const char *argument;
    const struct ats_sim_policy *policy =
        ats_sim_policy_find(r->bound_only ? "cpu" : name, &argument, err);
    struct ats_sim_run *run =
        policy == NULL
            ? NULL
            : ats_sim_run_new(&setting, policy, argument,
                              job->trace != NULL ? simulate_trace_event : NULL, job->trace, err);
    if (run == NULL) {
        return false;
    }
    r->used_bytes = ats_sim_run_placement(run)->used_bytes;
    const bool good = run_phases(job, run, r, err);
    ats_sim_run_free(run);
    return good;
}

static bool run_policies(struct job *job, const struct ats_sim_machine *machine,
                         uint64_t vram_bytes, double factor, struct ats_error *err)
{
    bool good = true;
    for (size_t i = 0; i < job->o->policies.n && good; i++) {
        good = run_policy(job, machine, job->o->policies.entries[i], vram_bytes, factor, err);
    }
    return good;
}

static bool run_machine(struct job *job, struct ats_sim_machine machine, double factor,
                        struct ats_error *err)
{
    const struct options *o = job->o;
    const uint64_t vram_bytes =
        o->common.vram_bytes > 0 ? o->common.vram_bytes : machine.vram_bytes;
    if (o->sweep == SWEEP_NOTHING) {
        return run_policies(job, &machine, vram_bytes, factor, err);
    }
    bool good = true;
    for (size_t i = 0; i < o->swept.n && good; i++) {
        uint64_t vram = vram_bytes;
        if (o->sweep == SWEEP_LINK) {
            const double gbps = real(o, "sweep link", o->swept.entries[i], 1e-3, MAX_LINK_GBPS);
            ats_sim_machine_set_link(&machine, gbps * factor);
        } else {
            vram = positive_size(o, "sweep vram", o->swept.entries[i]);
        }
        good = run_policies(job, &machine, vram, factor, err);
    }
    return good;
}

static bool run_rig(struct job *job, const char *rig, struct ats_error *err)
{
    const struct options *o = job->o;
    struct ats_sim_machine machine;
    double factor;
    if (!simulate_machine(rig, o->common.scale, &o->overheads, &machine, &factor, err)) {
        return false;
    }
    if (o->cpu_gbps > 0) {
        ats_sim_machine_set_cpu(&machine, o->cpu_gbps);
    }
    return run_machine(job, machine, factor, err);
}

static bool run_profile(struct job *job, struct ats_error *err)
{
    struct ats_profile profile;
    if (!ats_profile_read(job->o->common.profile, &profile, err)) {
        return false;
    }
    const bool good =
        run_machine(job, ats_sim_machine_of_profile(&profile, &job->o->overheads), 1, err);
    ats_profile_free(&profile);
    return good;
}

static uint32_t needed_context(const struct options *o)
{
    uint32_t most = o->common.decode > 0 ? o->depth + o->common.decode : 1;
    for (size_t i = 0; i < o->n_prompts; i++) {
        most = o->prompts[i] > most ? o->prompts[i] : most;
    }
    return most;
}

static void show(const struct job *job)
{
    const struct simulate_options *o = &job->o->common;
    const struct simulate_summary summary = {job->model, o->model,    job->n_ctx,
                                             o->ubatch,  !o->no_mmap, job->o->overheads};
    if (o->json) {
        simulate_print_json(&summary, job->results, job->n_results);
    } else {
        simulate_print(&summary, job->results, job->n_results);
    }
}

static bool run_all(struct options *o, struct ats_error *err)
{
    struct job job = {.o = o, .n_ctx = o->common.n_ctx > 0 ? o->common.n_ctx : needed_context(o)};
    struct ats_model *model = simulate_model(o->common.model, o->common.layers, err);
    job.model = model;
    if (model == NULL) {
        return false;
    }
    job.results = cli_alloc(SIMULATE_MAX_RESULTS * sizeof(job.results[0]));
    bool good = true;
    if (o->trace != NULL) {
        job.trace = simulate_trace_open(o->trace, model, err);
        good = job.trace != NULL;
    }
    if (o->common.profile != NULL) {
        good = good && run_profile(&job, err);
    }
    for (size_t i = 0; o->common.profile == NULL && i < o->rigs.n && good; i++) {
        good = run_rig(&job, o->rigs.entries[i], err);
    }
    if (job.trace != NULL) {
        struct ats_error late;
        const bool written = simulate_trace_close(job.trace, good ? err : &late);
        good = good && written;
    }
    if (good) {
        show(&job);
    }
    free(job.results);
    ats_model_free(model);
    return good;
}

int cli_simulate(int argc, char **argv)
{
    struct options o = {
        .common = {.who = argv[0], .max_tokens = MAX_TOKENS, .ubatch = 512, .decode = 128},
        .batch = 2048,
        .fit_margin = (size_t)1 << 30,
        .depth = 2048,
        .overheads = ats_sim_overheads_default()};
    split_list(&o, "policy", "fit", &o.policies);
    parse_prompts(&o, "512,1024,2048");
    cli_parse(&argp, argc, argv, &o);
    check(&o);
    split_list(&o, "rig", o.common.rig != NULL ? o.common.rig : "desktop-4090", &o.rigs);
    if (o.trace != NULL && (o.rigs.n > 1 || o.policies.n > 1 || o.swept.n > 1)) {
        cli_usage_error(argv[0], "--trace is for one rig and one policy");
    }
    struct ats_error err = {""};
    const bool good = run_all(&o, &err);
    free(o.rigs.text);
    free(o.policies.text);
    free(o.swept.text);
    return good ? CLI_OK : cli_error(argv[0], &err);
}
