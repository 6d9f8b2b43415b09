/* The roles of tensors, by their names in llama.cpp's files. */
#ifndef ATS_MODEL_ROLES_H
#define ATS_MODEL_ROLES_H

#include "model/model.h"

/* What a tensor does within its unit. */
enum ats_model_use {
    ATS_USE_MATMUL,
    ATS_USE_EXPERTS,
    ATS_USE_SCALE,  /* of a norm that is a unit or part of one */
    ATS_USE_BIAS,   /* added where its product is made: no operator of its own */
    ATS_USE_PART,   /* of the attention operator: sinks, convolution, decay */
    ATS_USE_LOOKUP, /* the token embedding */
    ATS_USE_NONE,   /* read by no operator of ordinary decoding */
};

struct ats_model_part {
    enum ats_model_role role;
    enum ats_model_use use;
    int order; /* of its unit within the layer; parts with equal order and role share a unit */
};

/* Orders of the units that have no weight of their own. */
enum {
    ATS_ORDER_ATTENTION = 20,
    ATS_ORDER_COMBINE = 80,
    ATS_ORDER_OTHER = 115,
    ATS_ORDERS = 120,
};

/* The layer of "blk.N.…", else -1. `rest` gets the name behind it. */
int32_t ats_model_layer_of(const char *name, const char **rest);

/* The role of a tensor named `rest` within a layer (in_layer) or outside. Tensors without a
 * known role are OTHER: matmuls, or experts if their name ends in "_exps.weight". */
struct ats_model_part ats_model_part_of(const char *rest, bool in_layer, const uint64_t ne[4]);

#endif
