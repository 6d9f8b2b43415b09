/* `ats plan`, in parts: what to plan, planning it, showing it.
 *
 * The command has one thread. */
#ifndef ATS_CLI_PLAN_H
#define ATS_CLI_PLAN_H

#include "base/error.h"
#include "cli/simulate_options.h"
#include "model/model.h"
#include "sim/decide.h"

#include <limits.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

enum { PLAN_MAX_DEVICES = 8, PLAN_MAX_ALTERNATIVES = 8 };

/* What the user asks for. */
struct plan_options {
    struct simulate_options common; /* no VRAM given: the machine's, less headroom */
    const char *kv_type;
    const char *out;
    const char *svg;
    const char *accel; /* name of the device's buffers, for --llama-args; NULL: the machine's */
    uint32_t prompt;
    bool has_prompt; /* else as many as fit */
    uint32_t devices;
    bool llama_args;
};

/* What one device gets. */
struct plan_part {
    struct ats_model *model; /* its layers of the whole model; owned */
    struct ats_sim_setting setting;
    struct ats_sim_placement placement; /* owned */
    struct ats_decision decision;
};

/* How stock llama.cpp does with the same VRAM. */
struct plan_alternative {
    char name[64];
    struct ats_prediction prediction;
    uint64_t used_bytes;
};

struct plan {
    const struct plan_options *options;
    struct ats_model *model;     /* the whole; owned */
    struct ats_profile profile;  /* what the machine was measured as, if it was; owned */
    char profile_path[PATH_MAX]; /* its file; empty: a rig */
    bool is_kept;                /* and it was found, not named */
    struct ats_sim_machine machine;
    double factor; /* of the rig's rates */
    struct ats_workload workload;
    uint64_t budget;   /* of a device */
    uint64_t headroom; /* what the budget leaves of a device's memory */
    struct plan_part parts[PLAN_MAX_DEVICES];
    size_t n_parts;
    struct ats_prediction prediction; /* of all devices, one after another */
    double bound_us[ATS_PHASES];      /* of the same passes, for any placement */
    struct plan_alternative alternatives[PLAN_MAX_ALTERNATIVES];
    size_t n_alternatives;
};

/* Reads the model and the machine, and decides. False with an error; call plan_free in any case. */
bool plan_make(struct plan *plan, const struct plan_options *options, struct ats_error *err);
void plan_free(struct plan *plan);

/* Sets the machine: the rig or the profile that was named; else this machine, by the newest profile
 * kept of it (docs/planning.md); else the default rig. */
bool plan_find_machine(struct plan *plan, struct ats_error *err);

/* Where a unit of the model's description lives, as a word: "VRAM", "host", "part" if its tensors
 * are apart; NULL if it has neither matrices nor state. */
const char *plan_where(const struct plan_part *part, size_t unit);

/* Bytes of the unit's tensors and state in VRAM. */
uint64_t plan_unit_bytes(const struct plan_part *part, size_t unit);

/* Tokens per second in a phase. */
double plan_speed(const struct ats_prediction *prediction, enum ats_phase phase);

/* What it is worth to have units of a role in VRAM, by the solver's model. */
struct plan_reason {
    uint64_t bytes;              /* matrices and state */
    uint64_t vram_bytes;         /* of these in VRAM */
    double saved_us[ATS_PHASES]; /* of a pass, if all of it is there */
};

/* Adds a part's units of that role to the sum. False: out of memory. */
bool plan_add_reason(const struct plan *plan, const struct plan_part *part,
                     enum ats_model_role role, struct plan_reason *sum);

/* How VRAM of one device is used. */
struct plan_memory {
    uint64_t weights;
    uint64_t state;
    uint64_t compute;
    uint64_t staging;
    uint64_t free;
    uint64_t host_weights;
    uint64_t host_state;
};
struct plan_memory plan_memory_of(const struct plan_part *part);

/* Tables, at most 80 columns wide. */
void plan_print(const struct plan *plan);

void plan_print_json(const struct plan *plan);

/* Arguments for llama.cpp on stdout; on stderr what it cannot do. */
void plan_print_args(const struct plan *plan, FILE *out, FILE *notes);

/* Plan files for ATS_PLACEMENT: `path`, and for further devices `path`.ATS1 and so on. */
bool plan_write(const struct plan *plan, const char *path, struct ats_error *err);

/* Layers by tensors, coloured by side. */
bool plan_write_svg(const struct plan *plan, const char *path, struct ats_error *err);

#endif
