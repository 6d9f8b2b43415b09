/* Promotion at work: the staging memory of a stream, its transfer stream, and the copies of
 * weights that pass through.
 *
 * The transfer stream is a second instance of the accelerator. Copies to staging memory run on
 * it while the compute stream works; events order the two: an operator waits until its weight
 * has arrived, and a copy waits until the last reader of its place is done. Where the
 * accelerator has no events, or with ATS_TRANSFER=serial, the copies run on the compute stream,
 * in order with everything else.
 *
 * A plan that streams nothing holds weights there instead (plan/hold.h): they are copied in its
 * first pass and found there by those that follow.
 *
 * Thread-safety: as the stream's: one thread at a time. */
#ifndef ATS_BACKEND_TRANSFER_H
#define ATS_BACKEND_TRANSFER_H

#include "backend/buffer.h"

struct ats_stream;
struct ats_graph_plan;

enum { ATS_NO_SPLIT = -1 };

/* One weight on its way through staging memory, or a piece of it (plan/pieces.h). */
struct ats_promotion_step {
    struct ats_record *record;    /* borrowed; the plan is void before the record goes */
    struct ats_part part;         /* of its bytes: all, or the same of each expert */
    struct ggml_tensor accel;     /* these in staging memory, one behind the other, and padding */
    size_t bytes;                 /* of the part */
    size_t padding;               /* bytes behind them that the accelerator reads too */
    struct ats_expert_fill *fill; /* some of it is in slots (experts_fill.h); or NULL */
    struct ats_used_step *used; /* only what the pass uses of it comes (used.h); or NULL. Shared by
                                   its parcels */
    uint32_t parcel;
    double given_us;     /* when the copy was given to the link, */
    double given_cpu_us; /* and how long the CPU had computed in the pass by then */
    int32_t after_split; /* split that must be done first, or ATS_NO_SPLIT */
    ggml_backend_event_t
        arrived; /* owned by the plan; NULL: copied in order, nothing to wait for */
};

struct ats_staging_area {
    ggml_backend_buffer_t buffer; /* NULL: not taken */
    char *base;
    size_t size;
    size_t ring; /* of it, for weights that pass; behind them is scratch, for products with pieces
                    or parcels and columns of the CPU, or for weights that are held */
    struct ats_staging_way way;
    ggml_backend_t transfer;   /* the transfer stream, or NULL: copies run in order */
    ggml_backend_event_t free; /* what the compute stream was given before a pass is done */
    uint64_t held;       /* names the weights that the area keeps from pass to pass; 0: none */
    uint64_t generation; /* of the device's weights when they were copied */
    bool all_there;      /* the running pass finds its weights as an earlier one left them */
    size_t next;         /* promotion of the running pass that is to be copied next */
    const struct ggml_tensor *known_ids; /* of experts in the running pass, the latest that the CPU
                                            knows */
};

/* Takes staging memory of `ring` bytes for weights and `scratch` for products with parts of them,
 * within the VRAM budget, and starts the transfer stream. Needs the device's write lock. False:
 * there is no room; nothing has changed. */
bool ats_staging_take(struct ats_stream *stream, size_t ring, size_t scratch);

/* Waits for the transfer stream and gives all back. Needs the write lock. */
void ats_staging_release(struct ats_stream *stream);

/* The accelerator is lost: what the stream had there counts no more. Needs the write lock. */
void ats_staging_give_up(struct ats_stream *stream);

/* Whether the accelerator can page-lock memory that it has not allocated. */
bool ats_device_can_pin(const struct ats_device *device);

/* Makes copies of the buffer's host weights fast and asynchronous, if the accelerator can
 * page-lock memory that it has not allocated. Only runs of weights that live in host memory:
 * others may have given their pages back. Tried once per buffer; says so once if it cannot.
 * Needs the write lock. */
void ats_buffer_pin(struct ats_buffer *buffer);

/* For a buffer that is about to be freed and that no copy reads. */
void ats_buffer_unpin(struct ats_buffer *buffer);

/* Gives the plan's promotions and splits their events. Without memory for them the plan's
 * copies run in order. */
void ats_promotions_arm(struct ats_stream *stream, struct ats_graph_plan *plan);
void ats_promotions_disarm(struct ats_graph_plan *plan);

/* ---- during a pass; read lock ---- */

/* Begins a pass: the first copies start. */
void ats_promotions_begin(struct ats_stream *stream, const struct ats_graph_plan *plan);

/* In split `split`, experts' ids have become known: the copies that have waited for them start. */
void ats_promotions_ids_known(struct ats_stream *stream, const struct ats_graph_plan *plan,
                              size_t split);

/* Before split `split` is given to the compute stream: its weights are there in its order. False:
 * the accelerator could not put them together. */
bool ats_promotions_await(struct ats_stream *stream, const struct ats_graph_plan *plan,
                          size_t split);

/* Behind split `split`: what was waiting for it starts. */
void ats_promotions_advance(struct ats_stream *stream, const struct ats_graph_plan *plan,
                            size_t split);

/* Ends a pass, however it ended: the compute stream is behind all its copies. */
void ats_promotions_end(struct ats_stream *stream, const struct ats_graph_plan *plan);

/* Notes whether all went well, so that later passes find what this one holds, or do not. */
void ats_promotions_keep(struct ats_stream *stream, const struct ats_graph_plan *plan, bool well);

#endif
