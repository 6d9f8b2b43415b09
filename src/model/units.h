/* From the weights of a unit to its operators. Internal to src/model. */
#ifndef ATS_MODEL_UNITS_H
#define ATS_MODEL_UNITS_H

#include "model/roles.h"

/* A unit has at most one operator per weight and this many besides. */
enum { ATS_MODEL_EXTRA_OPS = 4 };

/* What a layer's other units are. */
struct ats_model_layer {
    int32_t layer; /* -1: of no layer */
    bool attention;
    bool recurrent; /* attention is linear, with a state instead of a cache */
    bool experts;
    bool shared; /* has a shared expert */
};

/* Appends a unit without weights. `tensor` names it if its role is not known. */
void ats_model_open_unit(struct ats_model *model, enum ats_model_role role,
                         const struct ats_model_layer *layer, int32_t tensor);

/* Adds a weight, and the product it takes part in, to the last unit. */
void ats_model_add_weight(struct ats_model *model, int32_t tensor, enum ats_model_use use);

/* Adds what the last unit computes besides its products, and sums up. */
void ats_model_close_unit(struct ats_model *model, const struct ats_model_layer *layer);

#endif
