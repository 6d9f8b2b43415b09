/* `ats profile`, in parts: options and measuring, showing.
 *
 * The command has one thread. */
#ifndef ATS_CLI_PROFILE_H
#define ATS_CLI_PROFILE_H

#include "measure/measure.h"

/* The profile as a table of 80 columns. */
void profile_show(const struct ats_profile *profile);

/* Errors of predictions on one side, as fractions of what was measured. */
struct profile_errors {
    size_t n;
    double median;
    double p90;
};

struct profile_errors profile_errors(const struct ats_measure_check *checks, size_t n,
                                     enum ats_side side);

/* The bounds that predictions have to keep: median and 90th percentile. */
#define PROFILE_MAX_MEDIAN 0.10
#define PROFILE_MAX_P90 0.25

void profile_show_check(const struct ats_measure_check *checks, size_t n);

void profile_print_check(const struct ats_measure_check *checks, size_t n);

#endif
