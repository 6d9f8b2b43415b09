/* Schedule: the splits of a graph whose operators have sides, and the copies
 * that keep both memories coherent.
 *
 * Pure. The rule: an operator reads a root on its own side, so the root must be
 * valid there; writing a root makes the other side's bytes stale; writing a part
 * of a root needs the rest of it to be valid there first. Roots that the graph
 * has not written are *external*: their state is known only when the graph runs,
 * so the schedule says on which sides they must be valid at the start (`needs`)
 * and leaves it to the executor to bring them there.
 *
 * Promoted weights are in nobody's way: they are copied to staging memory (staging.h). An
 * operator that reads one for the first time begins a split, so that the accelerator can
 * wait there for the copy, unless the operator before it did so too (gate and up of one
 * block) and both fit.
 *
 * An operator whose matrix comes in pieces is as many splits of its own, each of which computes its
 * rows: they have the operator in common. One whose matrix comes by use is a split for each parcel;
 * if the CPU lacks the ids of its columns, a split of the CPU without operators has their copy.
 *
 * A region (graph_desc.h) is a split of its own. If the CPU lacks what it reads, a split of the CPU
 * without operators comes before it, which has the copies. So it does before a stretch of which the
 * CPU computes a share, which ends with a split.
 *
 * Copies are made at the beginning of the split that reads them. That is safe
 * with recycled memory: both sides use one layout, and a root occupies its
 * address on both from its writing to its last reading.
 *
 * Thread-safety: no shared state. */
#ifndef ATS_PLAN_SCHEDULE_H
#define ATS_PLAN_SCHEDULE_H

#include "plan/graph_desc.h"

/* Consecutive operators on one side, and the roots copied to it beforehand. */
struct ats_split {
    enum ats_side side;
    uint32_t first_op;
    uint32_t n_ops;
    uint32_t first_copy; /* schedule->copies[first_copy .. first_copy + n_copies) */
    uint32_t n_copies;
    uint32_t first_promotion; /* schedule->promotions[...]: read here for the first time */
    uint32_t n_promotions;
    uint32_t piece;    /* of the promoted matrix that its one operator reads in pieces or parcels */
    uint32_t n_pieces; /* 0: none is */
    bool by_use;       /* parcels: it takes of its matrix what the pass uses (used.h) */
    uint32_t share;    /* the stretch of operators that ends with it (graph_desc.h); 0: none does */
};

/* A promoted weight, in the order of first reading. */
struct ats_promoted {
    uint32_t root;
    uint32_t piece; /* or parcel of the root, if there are several: each has an entry */
    uint32_t first_split;
    uint32_t last_split;
};

struct ats_schedule {
    struct ats_split *splits;
    size_t n_splits;
    uint32_t *copies; /* roots */
    size_t n_copies;
    struct ats_promoted *promotions;
    size_t n_promotions;
    ats_side_set *needs;  /* per root: sides on which it must be valid at the start */
    ats_side_set *final;  /* per root: sides on which it is valid at the end; 0: never written */
    ats_side_set *copied; /* per root: sides that it was copied to within the graph */
};

/* The root that the operator reads in pieces or by use if it is on that side, or ATS_NO_ROOT. */
int32_t ats_alone_read(const struct ats_graph_desc *graph, const struct ats_op *op,
                       enum ats_side side);

/* Builds the schedule; free it with ats_schedule_free. False: out of memory. */
bool ats_schedule_build(const struct ats_graph_desc *graph, const enum ats_side *sides,
                        struct ats_schedule *schedule);

void ats_schedule_free(struct ats_schedule *schedule);

#endif
