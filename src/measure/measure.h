/* Measuring a profile of this machine through ggml.
 *
 * Calls ggml directly: for the program ats-ggml. Takes no longer than a budget:
 * shapes are measured in passes from coarse to fine, and what does not fit into
 * the time is left to interpolation. One call at a time; it may bind the
 * calling thread to cores. */
#ifndef ATS_MEASURE_MEASURE_H
#define ATS_MEASURE_MEASURE_H

#include "model/model.h"
#include "profile/profile.h"

#include <ggml-backend.h>

struct ats_measure_options {
    ggml_backend_dev_t device; /* the accelerator */
    int threads;               /* of the CPU; 0: the best by measurement */
    bool quick;
    bool leave_core;               /* an emulated device needs a core for itself */
    const struct ats_model *model; /* whose exact shapes are measured too, or NULL */
    double budget_us;              /* 0: the default of a full or quick profile */
    size_t span_bytes;             /* of weights in turn; 0: several times the caches */
    /* Called now and then with what is done, 0 to 1, and what is being measured; or NULL. */
    void (*progress)(void *context, double done, const char *what);
    void *context;
};

/* What a profile of this device would be of, with `threads`. */
void ats_measure_identify(ggml_backend_dev_t device, int threads,
                          struct ats_profile_identity *identity);

/* Fills a profile, which the caller frees. False with an error, and nothing to free, if a device
 * fails or memory is out. */
bool ats_measure(const struct ats_measure_options *options, struct ats_profile *profile,
                 struct ats_error *err);

/* A held-back shape: measured, and predicted from a profile that does not have it. */
struct ats_measure_check {
    struct ats_profile_curve shape; /* without points */
    double n;
    double measured_us;
    double predicted_us;
};

enum { ATS_MEASURE_MAX_CHECKS = 256 };

/* Measures shapes between those of the grid with the profile's threads. `checks` has room for
 * ATS_MEASURE_MAX_CHECKS. */
bool ats_measure_check(const struct ats_measure_options *options, const struct ats_profile *profile,
                       struct ats_measure_check *checks, size_t *n, struct ats_error *err);

#endif
