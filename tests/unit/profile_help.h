/* A measured profile of round numbers, for the tests of profiles. */
#ifndef ATS_TESTS_PROFILE_HELP_H
#define ATS_TESTS_PROFILE_HELP_H

#include "profile/profile.h"

#include <stddef.h>

/* Fails the test unless the value is the expected one, but for a millionth. */
void assert_near(double value, double expected);

/* Appends a curve of n points: {n, us, distinct}. */
void add_curve(struct ats_profile *p, struct ats_profile_curve curve, const char *type,
               const double (*points)[3], size_t n);

/* Of both sides, copies included; the caller frees it by ats_profile_free.
 *
 * Q4 matrices of 1e6 and 4e6 elements at half a byte each, on both sides; the CPU's launch is 2 us,
 * the accelerator's 10. */
struct ats_profile make_profile(void);

#endif
