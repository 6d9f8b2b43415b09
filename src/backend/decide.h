/* Deciding for this machine: by which rates its graphs are planned, and where a model lives.
 *
 * Needs a measured profile (machine_profile.h). Without one, rates are assumed and the rule `fill`
 * places. Both functions need the device's write lock. */
#ifndef ATS_BACKEND_DECIDE_H
#define ATS_BACKEND_DECIDE_H

#include "backend/describe.h"
#include "backend/stream.h"

/* Gets the profile and its rates when the first model comes that does not fit into VRAM; the
 * description is void then, and plans too, as the device's epoch says. Takes device memory for a
 * moment, and seconds where nothing has been measured yet: call it before the device is filled.
 * Otherwise it does nothing. */
void ats_decide_rates(struct ats_stream *stream, const struct ats_description *description);

/* Where the rule is `auto`: decides where the weights and the state of the described graph live
 * that have no home yet (sim/decide.h), and notes it in their records, or that experts by slice are
 * faster. Says in one line what is predicted. Staging memory has been taken; where there is none,
 * or no profile, nothing is decided. */
void ats_decide_homes(struct ats_stream *stream, const struct ats_description *description,
                      const struct ggml_cgraph *cgraph);

#endif
