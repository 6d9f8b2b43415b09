/* Fitting a rig to this host: one factor for all its rates.
 *
 * factor = CPU bandwidth here / CPU bandwidth of the rig, both of a matrix-
 * vector product; the device's and the link's rates are multiplied by it and
 * times divided. So every ratio among GPU, VRAM, link, memory and CPU bandwidth
 * is the real machine's. The CPU's speed at large batches has a ratio of its
 * own that one factor cannot keep: `compute_ratio` says how far it is off. */
#ifndef ATS_EMU_RIG_SCALE_H
#define ATS_EMU_RIG_SCALE_H

#include "cost/rig.h"
#include "emu/host_speed.h"

struct ats_rig_scale {
    double factor;
    enum ats_type_family reference; /* the type that it was measured with */
    bool given;                     /* by ATS_RIG_SCALE; then nothing below is known */
    struct ats_host_speed host;
    double compute_ratio; /* CPU's batch speed here / (the rig's * factor) */
};

/* The scale of a rig on this host. Environment: ATS_RIG_SCALE (a factor from
 * 1e-4 to 1e4, measures nothing), ATS_RIG_TYPE (q4, f16 or mxfp4: the type whose
 * speed sets the factor; q4). `cpu` is ggml's CPU device, NULL if there is none. */
bool ats_rig_scale(const struct ats_rig *rig, ggml_backend_dev_t cpu, struct ats_rig_scale *scale,
                   struct ats_error *err);

/* The rig's rates as they are emulated here: scaled, with this host's threads. */
struct ats_device_rates ats_rig_scaled_rates(const struct ats_rig *rig,
                                             const struct ats_rig_scale *scale);

#endif
