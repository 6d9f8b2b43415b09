/* The model of train/net.h once more, in doubles and as plainly as possible: what the fast code is
 * compared with. */
#ifndef ATS_TESTS_REFERENCE_H
#define ATS_TESTS_REFERENCE_H

#include "net.h"

/* Mean loss over windows x (context + 1) tokens. */
double reference_loss(const struct net_shape *shape, const double *params, const int32_t *tokens,
                      size_t windows);

/* Logits of the position `at` of one window: vocab numbers. */
void reference_logits(const struct net_shape *shape, const double *params, const int32_t *tokens,
                      size_t at, double *logits);

#endif
