/* A model as what can be scheduled: units in the order in which llama.cpp's
 * graph runs them, with the operators, weights and state of each.
 *
 * A unit is what stays together: the matrices of one fused expression (gate, up
 * and their activation), the projections that read one normalised input, an
 * attention operator with its cache. Weights within a unit are still single
 * tensors, because llama.cpp places by tensor.
 *
 * Built from names, shapes and hyper-parameters alone (model/gguf.h reads them
 * from a file); no weights are read. The roles of tensors follow llama.cpp's
 * names (v0.5.0, src/llama-arch.cpp): the eight architectures of the benchmark
 * are described operator by operator; of others, a matrix that has no known role
 * is a matmul, stacked experts are expert matmuls, in file order within a layer.
 *
 * Pure: no ggml, no files. A model does not change once built; reading it is
 * safe from any thread. */
#ifndef ATS_MODEL_MODEL_H
#define ATS_MODEL_MODEL_H

#include "base/error.h"
#include "cost/cost.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    ATS_NO_TENSOR = -1,
    ATS_MODEL_MAX_LAYERS = 1024,
    ATS_MODEL_MAX_TENSORS = 1 << 20,
    /* llama.cpp pads the part of a cache that attention reads to this many tokens
     * (v0.5.0, src/llama-kv-cache.cpp, get_n_kv) */
    ATS_MODEL_CACHE_PAD = 256,
};

struct ats_model_tensor {
    char *name;            /* as in the file; owned by the model */
    const char *type_name; /* "q4_K"; static, of whoever described the tensor */
    enum ats_type_family family;
    int32_t layer;  /* -1: of no layer */
    uint64_t ne[4]; /* elements per dimension, the row first; 1 beyond the last */
    uint64_t bytes;
    bool tied; /* second use of the embedding as output head: not in the file again */
};

/* What a file says of the whole model. 0 where it says nothing. */
struct ats_model_params {
    char arch[64];
    char name[128];
    uint32_t n_layers; /* without those that predict further tokens (MTP) */
    uint32_t n_embd;
    uint32_t n_heads[ATS_MODEL_MAX_LAYERS];
    uint32_t n_kv_heads[ATS_MODEL_MAX_LAYERS];
    uint32_t head_dim_k;
    uint32_t head_dim_v;
    uint32_t window; /* tokens that a sliding-window layer sees */
    bool windowed[ATS_MODEL_MAX_LAYERS];
    uint32_t n_experts;
    uint32_t n_used;
    uint32_t conv_kernel; /* of recurrent layers */
    uint32_t state_size;
    uint32_t inner_size;
    uint32_t n_groups;
};

enum ats_model_role {
    ATS_ROLE_EMBEDDING, /* looked up on llama.cpp's CPU side, outside of any placement */
    ATS_ROLE_NORM,
    ATS_ROLE_QKV,       /* projections before attention, linear attention included */
    ATS_ROLE_ATTENTION, /* with KV cache or recurrent state */
    ATS_ROLE_ATTN_OUT,  /* output projection and residual addition */
    ATS_ROLE_ROUTER,    /* and selection of experts */
    ATS_ROLE_EXPERTS_UP,
    ATS_ROLE_EXPERTS_DOWN,
    ATS_ROLE_COMBINE, /* weighted sum of the experts' results */
    ATS_ROLE_SHARED_UP,
    ATS_ROLE_SHARED_DOWN,
    ATS_ROLE_FFN_UP, /* gate, up, activation */
    ATS_ROLE_FFN_DOWN,
    ATS_ROLE_OTHER, /* a weight whose role is not known */
    ATS_ROLE_OUTPUT_NORM,
    ATS_ROLE_OUTPUT,
    ATS_ROLES,
};

/* One operator. Sizes are per token where the name says so, else per pass. */
struct ats_model_op {
    enum ats_cost_kind kind;
    int32_t tensor;          /* the weight it reads (for norms within a unit: the scale), or
                                ATS_NO_TENSOR */
    bool fused_always;       /* a GPU computes it in the kernel before: no launch */
    bool fused_vector;       /* the same, for one token only */
    uint64_t m;              /* rows of the weight: results per token */
    uint64_t k;              /* its columns; ATTENTION: head size */
    uint32_t n_heads;        /* ATTENTION */
    uint32_t rows_per_token; /* of its result, as ggml counts rows: heads for norms of heads */
    uint64_t io_bytes_per_token;
    uint64_t io_bytes; /* besides, such as recurrent state read and written */
};

struct ats_model_unit {
    char name[48]; /* "blk.3.ffn_up" */
    enum ats_model_role role;
    int32_t layer; /* -1: of no layer */
    uint32_t first_op;
    uint32_t n_ops;
    uint32_t first_weight; /* its tensors are model->weights[first_weight ..] */
    uint32_t n_weights;
    uint64_t weight_bytes;
    bool outputs_only; /* computed only for tokens whose logits are asked for */
    /* Experts: how many matrices each weight stacks, and how many a token uses. */
    uint32_t n_experts;
    uint32_t n_used;
    uint64_t expert_bytes; /* of one expert, all weights of the unit */
    /* State: ATTENTION only. */
    uint64_t kv_bytes_per_token; /* keys and values in F16 */
    uint32_t window;             /* 0: all tokens are kept */
    uint64_t recurrent_bytes;    /* per sequence */
    /* Activations that the unit reads from and hands to others, per token. */
    uint64_t in_bytes_per_token;
    uint64_t out_bytes_per_token;
};

struct ats_model {
    struct ats_model_params params;
    struct ats_model_tensor *tensors;
    size_t n_tensors;
    struct ats_model_unit *units;
    size_t n_units;
    struct ats_model_op *ops;
    size_t n_ops;
    int32_t *weights; /* indices of tensors, by unit */
    size_t n_weights;
    uint64_t file_bytes; /* of all tensors in the file */
};

/* What is computed at once. */
struct ats_model_pass {
    uint32_t n_tokens;
    uint32_t n_outputs; /* tokens whose logits are asked for */
    uint32_t depth;     /* tokens already in the cache */
    uint32_t ubatch;    /* the most tokens of a pass: sizes a sliding-window cache */
};

/* Builds the description. Takes over `tensors` and their names, on failure too.
 * NULL with an error that names the tensor if sizes are absurd. Caller frees
 * with ats_model_free. */
struct ats_model *ats_model_build(const struct ats_model_params *params,
                                  struct ats_model_tensor *tensors, size_t n_tensors,
                                  struct ats_error *err);
void ats_model_free(struct ats_model *model);

/* Frees what has not been given to ats_model_build. */
void ats_model_free_tensors(struct ats_model_tensor *tensors, size_t n);

/* "attention", "experts_up" and so on. */
const char *ats_model_role_name(enum ats_model_role role);

/* Tokens that the unit computes in a pass. */
uint32_t ats_model_rows(const struct ats_model_unit *unit, const struct ats_model_pass *pass);

/* Tokens in the cache that attention reads, padding included. 0 for other units. */
uint64_t ats_model_cache_rows(const struct ats_model_unit *unit, const struct ats_model_pass *pass);

/* The operator as the cost model takes it; kind NONE if it has no rows. */
struct ats_op_shape ats_model_shape(const struct ats_model *model,
                                    const struct ats_model_unit *unit,
                                    const struct ats_model_op *op,
                                    const struct ats_model_pass *pass);

/* Bytes of a unit's state for a context of n_ctx tokens. */
uint64_t ats_model_state_bytes(const struct ats_model_unit *unit, uint32_t n_ctx, uint32_t ubatch);

/* All units' state. */
uint64_t ats_model_total_state_bytes(const struct ats_model *model, uint32_t n_ctx,
                                     uint32_t ubatch);

#endif
