/* Which type a tensor has in a usual quantisation of its model.
 *
 * The rules are those of llama.cpp's quantiser (v0.5.0, src/llama-quant.cpp) for the file types
 * F16, Q4_K_M and MXFP4_MOE; a test compares with what llama-quantize itself would do. */
#ifndef ATS_CLI_SYNTH_MIX_H
#define ATS_CLI_SYNTH_MIX_H

#include "cli/synth_spec.h"

#include <ggml.h>

/* The type of the weight `name` in layer `layer` of `layers` (0 for tensors of no layer). `n_dims`
 * is the number of its dimensions, `row` the elements of one row. Q4_K_M gives the values and the
 * down projections of some layers more bits, by the layer's place among all: a model with fewer
 * layers has about the same share of them. */
enum ggml_type synth_mix_type(const struct synth_spec *spec, const char *name, int n_dims,
                              int64_t row, uint32_t layer, uint32_t layers);

/* llama.cpp's number for the whole file (general.file_type). */
uint32_t synth_mix_file_type(enum synth_mix mix);

/* "F16", "Q4_K_M" or "MXFP4". */
const char *synth_mix_name(enum synth_mix mix);

#endif
