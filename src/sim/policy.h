/* What decides in a simulated run: a policy is where things live (once) and a
 * schedule per pass.
 *
 * A policy is a struct of hooks, so that new ones can be added without touching
 * the engine: `place` fills a placement, `schedule` turns it, pass by pass, into
 * actions (sim/schedule.h). Both are pure of clocks; a policy with memory (a
 * cache of experts) keeps it behind the placement's `state`.
 *
 * Used by one thread at a time. */
#ifndef ATS_SIM_POLICY_H
#define ATS_SIM_POLICY_H

#include "model/model.h"
#include "plan/staging.h"
#include "sim/schedule.h"

/* What a simulated run is about. Everything is borrowed. */
struct ats_sim_setting {
    const struct ats_model *model;
    const struct ats_sim_machine *machine;
    uint64_t vram_bytes;    /* budget */
    uint64_t compute_bytes; /* of it, for compute buffers; 0: estimated, see below */
    uint32_t n_ctx;
    uint32_t ubatch;
    uint32_t batch;      /* llama.cpp's -b: logits of the last token of each batch are asked for */
    uint64_t fit_margin; /* what --fit leaves free */
    bool mmap;           /* weights in the page cache: pageable memory. Else pinned */
    uint64_t seed;       /* of the routing */
    struct ats_staging_way staging; /* of ATS; 0 places: what is predicted to be faster */
    bool whole_experts;             /* no experts by slice: they are not asked for, or cannot be */
};

/* What of a model is in VRAM. */
struct ats_sim_placement {
    bool *tensor;     /* by tensor of the model */
    bool *on_both;    /* by tensor: there is a copy in host memory too (ATS) */
    bool *sliced;     /* by tensor: not as a whole, but single experts (sim/experts.h) */
    bool *unit_state; /* by unit: its cache or recurrent state */
    bool fixed;       /* no weight enters compute buffers */
    struct ats_staging_way staging; /* of ATS; 0 places: ATS_STAGING_PLACES */
    uint64_t staging_bytes;         /* ATS's memory for weights that pass through, */
    uint64_t scratch_bytes;         /* and of it, for products with pieces of them (plan/pieces.h)
                                        and columns of the CPU (plan/share.h) */
    bool holds;                     /* it holds weights from the pass before (ATS) */
    uint64_t used_bytes;            /* weights, state, compute buffers and staging memory */
    void *state;                    /* of the policy; freed by its `forget` */
};

/* Which experts the tokens of a pass use, by layer. */
struct ats_sim_routing {
    double *distinct; /* experts that any token uses */
    double *groups;   /* stretches of neighbours among them: copied at once */
    int32_t *last; /* experts of the pass's last token: those of a layer from layer * stride on */
    size_t stride;
};

struct ats_sim_policy {
    const char *name; /* as users write it; with '=' if it takes an argument */
    const char *help;
    /* False with an error, also if what the policy must have in VRAM does not fit. `argument` is
     * the text behind '=', or NULL. */
    bool (*place)(const struct ats_sim_setting *setting, const char *argument,
                  struct ats_sim_placement *placement, struct ats_error *err);
    /* Appends one pass to `schedule`. */
    void (*schedule)(const struct ats_sim_setting *setting, struct ats_sim_placement *placement,
                     const struct ats_model_pass *pass, const struct ats_sim_routing *routing,
                     struct ats_sim_schedule *schedule);
    void (*forget)(struct ats_sim_placement *placement); /* optional */
};

/* All policies; *n of them. */
const struct ats_sim_policy *ats_sim_policies(size_t *n);

/* The policy that `text` names ("fit", "ngl=20"); *argument points into it. NULL with an error. */
const struct ats_sim_policy *ats_sim_policy_find(const char *text, const char **argument,
                                                 struct ats_error *err);

bool ats_sim_placement_init(const struct ats_sim_setting *setting,
                            struct ats_sim_placement *placement);
void ats_sim_placement_free(struct ats_sim_placement *placement);

/* Bytes of compute buffers. Those of llama.cpp and of ATS hold the logits of a whole ubatch beside
 * what they are made from, or the widest activations and, for llama.cpp, one weight brought over,
 * whichever is larger: an estimate, replaced by setting->compute_bytes. */
uint64_t ats_sim_compute_bytes(const struct ats_sim_setting *setting,
                               const struct ats_sim_placement *placement);

/* Bytes that a placement takes: its weights and state, compute buffers, staging memory. Nothing is
 * needed if nothing runs on the GPU. */
uint64_t ats_sim_placement_bytes(const struct ats_sim_setting *setting,
                                 const struct ats_sim_placement *placement);

#endif
