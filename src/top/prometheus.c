/* `ats top --metrics`. */
#include "plan/watch.h"
#include "top/show.h"

#include <inttypes.h>

/* A metric of a device. Prometheus wants seconds and bytes, and a name that says so. */
struct metric {
    const char *name;
    const char *help;
    enum ats_live_figure figure;
    bool is_counter; /* else a gauge */
    bool is_time;    /* nanoseconds, told as seconds */
};

static const struct metric metrics[] = {
    {"ats_contexts", "Contexts (ggml backend instances) of the device.", ATS_LIVE_CONTEXTS, false,
     false},
    {"ats_vram_budget_bytes", "VRAM that may be used.", ATS_LIVE_BUDGET_BYTES, false, false},
    {"ats_vram_used_bytes", "VRAM in use: weights, state, compute and staging memory.",
     ATS_LIVE_USED_BYTES, false, false},
    {"ats_vram_weights_bytes", "Weights that live in VRAM.", ATS_LIVE_WEIGHTS_VRAM_BYTES, false,
     false},
    {"ats_host_weights_bytes", "Weights that live in host memory.", ATS_LIVE_WEIGHTS_HOST_BYTES,
     false, false},
    {"ats_vram_state_bytes", "KV cache and recurrent state in VRAM.", ATS_LIVE_STATE_VRAM_BYTES,
     false, false},
    {"ats_host_state_bytes", "KV cache and recurrent state in host memory.",
     ATS_LIVE_STATE_HOST_BYTES, false, false},
    {"ats_last_splits", "Splits of the latest graph.", ATS_LIVE_LAST_SPLITS, false, false},
    {"ats_graphs_total", "Graphs computed.", ATS_LIVE_GRAPHS, true, false},
    {"ats_plans_built_total", "Graph plans built; other graphs reused one.", ATS_LIVE_PLANS_BUILT,
     true, false},
    {"ats_splits_total", "Splits executed.", ATS_LIVE_SPLITS, true, false},
    {"ats_prompt_tokens_total", "Tokens of passes of more than one.", ATS_LIVE_PROMPT_TOKENS, true,
     false},
    {"ats_prompt_seconds_total", "Time of these passes.", ATS_LIVE_PROMPT_NS, true, true},
    {"ats_answer_tokens_total", "Passes of one token.", ATS_LIVE_ANSWER_TOKENS, true, false},
    {"ats_answer_seconds_total", "Time of these passes.", ATS_LIVE_ANSWER_NS, true, true},
    {"ats_cpu_seconds_total", "Of all passes: the CPU side computed.", ATS_LIVE_CPU_NS, true, true},
    {"ats_accelerator_seconds_total",
     "Of all passes: the accelerator had work, as far as the host could see.", ATS_LIVE_ACCEL_NS,
     true, true},
    {"ats_stalled_seconds_total", "Of all passes: the host waited for a weight on the link.",
     ATS_LIVE_STALLED_NS, true, true},
    {"ats_copied_to_accelerator_bytes_total", "Copied from host memory to VRAM.",
     ATS_LIVE_TO_ACCEL_BYTES, true, false},
    {"ats_copied_to_host_bytes_total", "Copied from VRAM to host memory.", ATS_LIVE_TO_HOST_BYTES,
     true, false},
    {"ats_promoted_bytes_total", "Of those to VRAM: weights of host memory that pass through.",
     ATS_LIVE_PROMOTED_BYTES, true, false},
    {"ats_expert_hits_total", "Columns of experts that the accelerator computed from slots.",
     ATS_LIVE_EXPERT_HITS, true, false},
    {"ats_expert_misses_total", "Columns of the same regions that the CPU computed.",
     ATS_LIVE_EXPERT_MISSES, true, false},
    {"ats_expert_admitted_bytes_total", "Copied into slots while decoding.", ATS_LIVE_EXPERT_BYTES,
     true, false},
    {"ats_replans_total", "Times that graphs were planned anew for how fast things are.",
     ATS_LIVE_REPLANS, true, false},
    {"ats_rollbacks_total", "Times that such a plan was taken back.", ATS_LIVE_ROLLBACKS, true,
     false},
    {"ats_replan_seconds_total", "Time that passes took longer for those plans.",
     ATS_LIVE_REPLAN_NS, true, true},
};

static void put_head(FILE *out, const char *name, const char *type, const char *help)
{
    fprintf(out, "# HELP %s %s\n# TYPE %s %s\n", name, help, name, type);
}

/* Text in a label's quotation marks; it is printable (live_file.h). */
static void put_quoted(FILE *out, const char *text)
{
    fputc('"', out);
    for (; *text != '\0'; text++) {
        if (*text == '\\' || *text == '"') {
            fputc('\\', out);
        }
        fputc(*text, out);
    }
    fputc('"', out);
}

static void put_label(FILE *out, const char *name, const char *value)
{
    fprintf(out, ",%s=", name);
    put_quoted(out, value);
}

/* A metric's name and its labels up to the device, open for more. */
static void put_name(FILE *out, const char *name, const struct ats_live_process *process,
                     const struct ats_live_device *device)
{
    fprintf(out, "%s{pid=\"%" PRId64 "\"", name, process->pid);
    if (device != NULL) {
        put_label(out, "device", device->name);
    }
}

static void put_seconds(FILE *out, uint64_t ns)
{
    /* exact, whatever the locale */
    fprintf(out, "} %" PRIu64 ".%09" PRIu64 "\n", ns / 1000000000, ns % 1000000000);
}

static void put_processes(FILE *out, const struct ats_live_process *processes, size_t n)
{
    put_head(out, "ats_processes", "gauge", "Processes that publish figures.");
    fprintf(out, "ats_processes %zu\n", n);
    put_head(out, "ats_process_info", "gauge", "1; the program is a label.");
    for (size_t i = 0; i < n; i++) {
        put_name(out, "ats_process_info", &processes[i], NULL);
        put_label(out, "program", processes[i].program);
        fprintf(out, "} 1\n");
    }
    put_head(out, "ats_start_time_seconds", "gauge",
             "Unix time at which the process made its first context.");
    for (size_t i = 0; i < n; i++) {
        put_name(out, "ats_start_time_seconds", &processes[i], NULL);
        fprintf(out, "} %" PRId64 "\n", processes[i].started_s);
    }
}

/* Calls `put` for each device. */
static void for_each(FILE *out, const struct ats_live_process *processes, size_t n, uint64_t at_ns,
                     void (*put)(FILE *, const struct ats_live_process *,
                                 const struct ats_live_device *, uint64_t at_ns))
{
    for (size_t i = 0; i < n; i++) {
        for (uint32_t d = 0; d < processes[i].n_devices; d++) {
            put(out, &processes[i], &processes[i].devices[d], at_ns);
        }
    }
}

static void put_info(FILE *out, const struct ats_live_process *process,
                     const struct ats_live_device *device, uint64_t at_ns)
{
    (void)at_ns;
    put_name(out, "ats_device_info", process, device);
    put_label(out, "accelerator", device->accelerator);
    put_label(out, "emulated", device->figures[ATS_LIVE_EMULATED] != 0 ? "true" : "false");
    fprintf(out, "} 1\n");
}

static void put_busy(FILE *out, const struct ats_live_process *process,
                     const struct ats_live_device *device, uint64_t at_ns)
{
    put_name(out, "ats_busy_seconds_total", process, device);
    put_seconds(out, ats_top_busy_ns(device, at_ns));
}

static void put_reason(FILE *out, const struct ats_live_process *process,
                       const struct ats_live_device *device, uint64_t at_ns)
{
    (void)at_ns;
    const char *reason = ats_top_reason(device);
    if (reason != NULL) {
        put_name(out, "ats_last_replan_info", process, device);
        put_label(out, "reason", reason);
        fprintf(out, "} 1\n");
    }
}

static void put_metric(FILE *out, const struct metric *metric,
                       const struct ats_live_process *processes, size_t n)
{
    put_head(out, metric->name, metric->is_counter ? "counter" : "gauge", metric->help);
    for (size_t i = 0; i < n; i++) {
        for (uint32_t d = 0; d < processes[i].n_devices; d++) {
            const uint64_t value = processes[i].devices[d].figures[metric->figure];
            put_name(out, metric->name, &processes[i], &processes[i].devices[d]);
            if (metric->is_time) {
                put_seconds(out, value);
            } else {
                fprintf(out, "} %" PRIu64 "\n", value);
            }
        }
    }
}

void ats_top_prometheus(FILE *out, const struct ats_live_process *processes, size_t n,
                        uint64_t at_ns)
{
    put_processes(out, processes, n);
    put_head(out, "ats_device_info", "gauge",
             "1; the accelerator, and whether it is emulated, are labels.");
    for_each(out, processes, n, at_ns, put_info);
    put_head(out, "ats_busy_seconds_total", "counter",
             "Time in which a pass ran, the running one included.");
    for_each(out, processes, n, at_ns, put_busy);
    for (size_t i = 0; i < sizeof(metrics) / sizeof(metrics[0]); i++) {
        put_metric(out, &metrics[i], processes, n);
    }
    put_head(out, "ats_last_replan_info", "gauge",
             "1; why graphs were planned anew the last time is a label.");
    for_each(out, processes, n, at_ns, put_reason);
}
