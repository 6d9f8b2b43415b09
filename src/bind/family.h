/* The family of a ggml type, for the cost model (cost/cost.h).
 *
 * Defined here because it is compiled twice: into the backend library and into the program that
 * reads model files. */
#ifndef ATS_BIND_FAMILY_H
#define ATS_BIND_FAMILY_H

#include "cost/cost.h"

#include <ggml.h>

static inline enum ats_type_family ats_family_of(enum ggml_type type)
{
    switch (type) {
    case GGML_TYPE_F32:
        return ATS_FAMILY_F32;
    case GGML_TYPE_F16:
    case GGML_TYPE_BF16:
        return ATS_FAMILY_F16;
    case GGML_TYPE_Q8_0:
    case GGML_TYPE_Q8_1:
    case GGML_TYPE_Q8_K:
        return ATS_FAMILY_Q8;
    case GGML_TYPE_MXFP4:
        return ATS_FAMILY_MXFP4;
    default:
        return ATS_FAMILY_Q4;
    }
}

#endif
