/* Experts by slice, at work: the slots that hold single experts of a stream's model in VRAM, and
 * the copies that fill them. What is decided is in plan/experts.h; experts_run.h computes with
 * them.
 *
 * Each layer's experts have slots of their own: a tensor like each of its weights, with n_slots
 * matrices instead of n_experts. The weights stay in host memory as a whole, so nothing is lost
 * with the accelerator. Slots take the VRAM that all else leaves, and are the first to give theirs
 * back. The first stream of a device that computes a model takes them; to another one, which finds
 * no VRAM left, such a model's experts are the CPU's.
 *
 * Copies into slots run on a stream of their own, an instance of the accelerator. A slot is never
 * written while it is read: the host has waited for the layer's earlier readers when it learns of a
 * token's experts, and no column of that token uses a slot that is given away. A reader waits by
 * event for what was copied since the layer was read last. Without events, or with
 * ATS_TRANSFER=serial, copies run on the compute stream, in order.
 *
 * Thread-safety: as the stream's: one thread at a time. */
#ifndef ATS_BACKEND_EXPERTS_H
#define ATS_BACKEND_EXPERTS_H

#include "backend/describe.h"
#include "plan/experts.h"
#include "plan/experts_region.h"

struct ats_stream;

/* The experts of one layer. Its address is stable until the slots are released. */
struct ats_expert_store {
    struct ats_expert_slots slots;
    /* Its weights in the order of the products; borrowed, and looked at only for a plan that has
     * found the same records alive. */
    struct ats_record *weights[ATS_EXPERT_MOST_PARTS];
    struct ggml_tensor in_vram[ATS_EXPERT_MOST_PARTS]; /* [n_in, n_out, n_slots] each */
    ggml_backend_buffer_t buffer;
    size_t bytes;
    ggml_backend_event_t arrived; /* NULL: copies run in order */
    bool fresh;                   /* copied to since readers waited for `arrived` */
    struct ggml_tensor list;      /* in VRAM: the expert of each slot (experts_fill.h) */
    bool listed;                  /* it has been sent as it is now */
    bool serves;                  /* this pass takes experts from slots for whole weights */
};

struct ats_experts {
    struct ats_expert_store **stores;
    size_t n_stores;
    ggml_backend_t transfer;        /* NULL: copies run on the compute stream */
    ggml_backend_event_t idle;      /* with a transfer stream: what it was given is done */
    ggml_backend_buffer_t exchange; /* ids and results on their way; NULL: nothing taken */
    char *exchange_base;
    size_t exchange_bytes;
    size_t vram_bytes;   /* all of it */
    uint64_t generation; /* of the device's weights when they were copied */
};

/* ---- deciding: the device's write lock; for ats_experts_mark a read lock ---- */

/* The regions of a graph; the caller frees them. False: out of memory. */
bool ats_experts_find(const struct ats_description *description, const struct ggml_cgraph *cgraph,
                      struct ats_expert_region **regions, size_t *n_regions);

/* Before what the graph brings is placed: gives all slots of the device back if there is any, so
 * that it finds the VRAM that slots would only have taken because it was not known yet. */
void ats_experts_make_way(struct ats_stream *stream, const struct ats_description *description);

/* Marks the records of weights that are to live in slots, before they are placed: if not all that
 * is to be placed fits, and the configuration wants slices, those of the layers that are not better
 * off as a whole. */
void ats_experts_want(struct ats_stream *stream, const struct ats_description *description,
                      const struct ggml_cgraph *cgraph, const struct ats_expert_region *regions,
                      size_t n_regions);

/* Takes slots for the regions' layers that have none yet, of the VRAM that is left, and copies
 * experts into them. Less VRAM than hoped for is not a failure. */
void ats_experts_take(struct ats_stream *stream, const struct ats_description *description,
                      const struct ggml_cgraph *cgraph, const struct ats_expert_region *regions,
                      size_t n_regions);

/* Makes regions of a single token, whose layers have slots, regions of the description, to be
 * computed by both sides. */
void ats_experts_mark(struct ats_stream *stream, struct ats_description *description,
                      const struct ggml_cgraph *cgraph, const struct ats_expert_region *regions,
                      size_t n_regions);

/* The store that holds experts of the weight, and which part of them it is; or NULL. */
struct ats_expert_store *ats_experts_store_of(const struct ats_stream *stream,
                                              const struct ats_record *weight, uint32_t *part);

/* The store of a region's layer, or NULL. */
struct ats_expert_store *ats_experts_store(const struct ats_stream *stream,
                                           const struct ats_description *description,
                                           const struct ggml_cgraph *cgraph,
                                           const struct ats_expert_region *region);

/* Waits for the copies and gives all back. Plans that use slots are void then. */
void ats_experts_release(struct ats_stream *stream);

/* The accelerator is lost: what the stream had there counts no more. */
void ats_experts_give_up(struct ats_stream *stream);

/* ---- during a pass: the read lock ---- */

/* Makes sure that slots hold what the weights are now, or nothing. */
void ats_experts_refresh(struct ats_stream *stream);

/* Orders the copies that the credit of the layer allows. */
void ats_experts_admit(struct ats_stream *stream, struct ats_expert_store *store);

/* Orders what is missing of the expert that is on its way. */
void ats_experts_finish(struct ats_stream *stream, struct ats_expert_store *store);

/* Notes whether a pass went well; if not, nobody knows what slots hold. */
void ats_experts_keep(struct ats_stream *stream, bool well);

/* ---- the exchange area ---- */

/* What lies where in it: three lists of numbers, then results of all columns. */
enum ats_expert_list { ATS_EXPERT_SLOT_IDS, ATS_EXPERT_IDS, ATS_EXPERT_ORDER, ATS_EXPERT_LISTS };

/* Bytes from one list to the next, and from the last to the results. */
size_t ats_experts_list_stride(const struct ats_device *device);

#endif
