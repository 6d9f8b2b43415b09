/* `ats simulate`, in parts: what to simulate, running it, showing it.
 *
 * The command has one thread. */
#ifndef ATS_CLI_SIMULATE_H
#define ATS_CLI_SIMULATE_H

#include "base/error.h"
#include "model/model.h"
#include "sim/sim.h"

#include <jansson.h>

enum {
    SIMULATE_MAX_LIST = 16,     /* entries of a comma-separated option */
    SIMULATE_MAX_RESULTS = 512, /* combinations of rigs, swept values and policies */
};

/* Reads a GGUF file, or describes the model that a name in models/ stands for. `layers` of 0
 * means all; fewer only for a name. Caller frees with ats_model_free. */
struct ats_model *simulate_model(const char *name, uint32_t layers, struct ats_error *err);

/* The machine of a rig. `scale`: NULL for the real machine, "host" for the rig as it is emulated
 * here, or a factor. `factor` gets the factor (1 for the real machine). */
bool simulate_machine(const char *rig, const char *scale, const struct ats_sim_overheads *overheads,
                      struct ats_sim_machine *machine, double *factor, struct ats_error *err);

struct simulate_result {
    char rig[64];
    char policy[256];
    bool bound_only; /* of the policy "bound": nothing was simulated */
    double link_gbps;
    double factor; /* of the rig's rates */
    uint64_t vram_bytes;
    uint64_t used_bytes;
    struct ats_sim_phase phases[SIMULATE_MAX_LIST + 1];
    bool is_decode[SIMULATE_MAX_LIST + 1];
    uint32_t depth[SIMULATE_MAX_LIST + 1];
    size_t n_phases;
};

/* What all results share. */
struct simulate_summary {
    const struct ats_model *model;
    const char *model_name;
    uint32_t n_ctx;
    uint32_t ubatch;
    bool mmap;
    struct ats_sim_overheads overheads;
};

void simulate_print(const struct simulate_summary *summary, const struct simulate_result *results,
                    size_t n);

void simulate_print_json(const struct simulate_summary *summary,
                         const struct simulate_result *results, size_t n);

/* A trace in the format of Chrome's about:tracing (and Perfetto). */
struct simulate_trace;
struct simulate_trace *simulate_trace_open(const char *path, const struct ats_model *model,
                                           struct ats_error *err);
void simulate_trace_event(void *trace, const struct ats_sim_event *event);
bool simulate_trace_close(struct simulate_trace *trace, struct ats_error *err);

#endif
