/* Description of a ggml graph for the planner: its operators, their roots, and
 * where each root is.
 *
 * The only place that reads the meaning of a ggml graph; what comes out is plain
 * data (plan/graph_desc.h) and the tables that lead back to tensors. */
#ifndef ATS_BACKEND_DESCRIBE_H
#define ATS_BACKEND_DESCRIBE_H

#include "backend/buffer.h"
#include "plan/graph_desc.h"

#define HASH_NONFATAL_OOM 1 /* uthash would end the program */
#include <uthash.h>

struct ats_used_shape;

/* Where a root is. Exactly one of record and "part of a compute buffer" holds;
 * buffer is NULL for host memory of another backend, which only the CPU reads. */
struct ats_location {
    struct ats_buffer *buffer;
    struct ats_record *record;
    size_t begin;
    size_t bytes;
    const struct ggml_tensor *tensor;
    size_t first_use;              /* operator that uses it first */
    size_t last_use;               /* operator that uses it last */
    size_t last_write;             /* operator that writes it last */
    ggml_backend_buffer_t staging; /* where a promoted root is for this pass, or NULL */
    char *staged;                  /* its address there */
    bool written;
    bool is_node;     /* an operator of this graph makes it */
    bool host_can;    /* the CPU supports every operator that uses it */
    bool accel_can;   /* the accelerator likewise */
    bool unreachable; /* memory of another device: only no-ops (views) may refer to it */
};

/* What is known of one tensor of the graph. */
struct ats_tensor_entry {
    const struct ggml_tensor *tensor; /* key */
    int32_t root;                     /* index of its root, or ATS_NO_ROOT */
    int32_t node;                     /* its index in the graph, or -1: made elsewhere */
    struct ggml_tensor *stand_in;     /* its stand-in on the accelerator, made later */
    UT_hash_handle hh;
};

struct ats_description {
    struct ats_graph_desc graph;
    struct ats_op *ops;
    uint32_t *reads;
    struct ats_root *roots;
    struct ats_location *locations; /* one per root */
    struct ats_tensor_entry *entries;
    struct ats_tensor_entry *table; /* the hash over entries */
    size_t n_entries;
    size_t n_reads;
    const struct ats_plan_rates *rates; /* borrowed */
    const struct ggml_cgraph *cgraph;   /* borrowed; its nodes are the operators */
    bool only_known;                    /* no record is made */
    size_t chunk; /* promoted weights are copied in chunks of this size; 0: each at once */
    uint32_t share_columns;      /* that the CPU can take of a layer (share.h) */
    struct ats_used_shape *used; /* by root, of those that pass by use (used.h); or NULL */
};

/* Describes `cgraph`, with what its operators take at these rates. Needs the device's write lock,
 * because it may make records; with `only_known` a read lock, and a tensor without a record is an
 * error. Fails on memory, or on tensors that are in no memory of this device or the host. */
bool ats_describe(struct ats_device *device, const struct ats_plan_rates *rates,
                  const struct ggml_cgraph *cgraph, bool only_known, struct ats_description *out,
                  struct ats_error *err);

/* Tokens of a graph: rows of the first product with a weight, which in llama.cpp's graphs is one
 * of the first operators and computes all tokens of the batch; 0 if there is none. */
uint32_t ats_graph_tokens(const struct ggml_cgraph *cgraph);

/* Fills in what depends on where records live: the homes of the roots. */
void ats_describe_homes(struct ats_description *description);

void ats_description_free(struct ats_description *description);

/* The entry of a tensor of the described graph, or NULL. */
struct ats_tensor_entry *ats_description_find(struct ats_description *description,
                                              const struct ggml_tensor *tensor);

/* The tensor at the end of a chain of views. */
static inline const struct ggml_tensor *ats_root_of(const struct ggml_tensor *tensor)
{
    while (tensor->view_src != NULL) {
        tensor = tensor->view_src;
    }
    return tensor;
}

/* Whether the operator does nothing when a graph is run. */
bool ats_op_is_empty(const struct ggml_tensor *node);

#endif
