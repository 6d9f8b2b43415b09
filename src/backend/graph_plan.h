/* Graph plan: everything that running one graph of llama.cpp takes, decided ahead.
 *
 * Built once per graph (plan/: partition and schedule; here: tensors and memory) and
 * reused for as long as llama.cpp reuses the graph, which its uid tells. The executor
 * follows it and decides nothing. */
#ifndef ATS_BACKEND_GRAPH_PLAN_H
#define ATS_BACKEND_GRAPH_PLAN_H

#include "backend/experts_graph.h"
#include "backend/pieces.h"
#include "backend/share.h"
#include "backend/stand_ins.h"
#include "backend/stream.h"
#include "backend/transfer.h"

/* Bytes that have an address on both sides. */
struct ats_transfer {
    struct ats_buffer *buffer;
    struct ats_record *record; /* NULL: part of a compute buffer */
    size_t begin;              /* offset in the buffer */
    size_t bytes;
    struct ggml_tensor accel; /* part of a compute buffer in VRAM, if that has a place there */
};

/* A root that the graph reads before writing it, and where it must be valid. */
struct ats_external {
    struct ats_transfer transfer;
    ats_side_set needs;
};

struct ats_plan_split {
    enum ats_side side;
    bool computes; /* false: views only, nothing to run */
    struct ggml_cgraph graph;
    size_t first_copy;
    size_t n_copies;
    size_t first_promotion; /* must have arrived when the split begins */
    size_t n_promotions;
    bool by_use;                    /* its promotion says how (used.h) */
    struct ats_expert_run *experts; /* both sides compute it (experts_run.h); or NULL */
    struct ats_share *share;        /* the CPU's, of what ends with it (share.h); or NULL */
    float profile_us[ATS_SIDES];    /* that its operators take by the profile */
    ggml_backend_event_t done;      /* recorded behind the split, if a copy waits for it; or NULL */
};

/* State of a compute buffer's memory after the graph. */
struct ats_plan_ranges {
    struct ats_buffer *buffer;
    struct ats_range_map map;
};

struct ats_plan_record {
    struct ats_record *record;
    ats_side_set valid;
};

struct ats_graph_plan {
    uint64_t uid;
    uint64_t epoch;
    uint64_t n_rates; /* of the stream, when it was made */
    struct ats_plan_rates rates;
    struct ats_graph_plan
        *next;       /* made beside a pass of this one, which it is to replace; or NULL */
    bool needs_more; /* the next one can only be made between passes */
    uint32_t n_tokens;
    struct ggml_tensor **host_nodes; /* llama.cpp's own tensors */
    struct ats_stand_ins stand_ins;
    struct ats_external *externals;
    size_t n_externals;
    struct ats_transfer *copies;
    size_t n_copies;
    struct ats_promotion_step *promotions; /* in the order of their first use */
    size_t n_promotions;
    size_t chunk;   /* of which they are copied, or 0: each at once */
    bool has_fills; /* of some, a part is in slots (experts_fill.h) */
    uint64_t held;  /* names the promotions if they stay in staging memory; 0: they pass through */
    struct ats_piece_op *piece_ops; /* of splits that compute a piece */
    size_t n_piece_ops;
    struct ats_expert_run *regions;
    size_t n_regions;
    struct ats_share *shares;
    size_t n_shares;
    float *share_inputs; /* of one of them at a time */
    struct ats_plan_split *splits;
    size_t n_splits;
    struct ats_plan_ranges *ranges;
    size_t n_ranges;
    struct ats_plan_record *records;
    size_t n_records;
};

/* The stream's plan for `cgraph`: the one it has, or a new one. NULL with an error.
 * Takes the device's write lock while it builds; the caller holds no lock. */
struct ats_graph_plan *ats_graph_plan_get(struct ats_stream *stream,
                                          const struct ggml_cgraph *cgraph, struct ats_error *err);

/* The same beside a pass, by the stream's present rates, for a graph that has a plan of that epoch:
 * while it runs, from another thread, and with everything left as it is. NULL: that is impossible,
 * because more is to be placed, or memory is out. Takes the device's read lock. */
struct ats_graph_plan *ats_graph_plan_beside(struct ats_stream *stream,
                                             const struct ggml_cgraph *cgraph, uint64_t epoch);

void ats_graph_plan_free(struct ats_graph_plan *plan);

#endif
