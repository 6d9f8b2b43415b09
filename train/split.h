/* Feed-forward blocks cut into experts: which hidden units go together, and what the router looks
 * at. From the weights alone, without any text.
 *
 * After Zhang et al., "MoEfication: Transformer Feed-forward Layers are Mixtures of Experts", 2022:
 * units whose gates look at similar things become an expert. The block's result is the sum of its
 * units' parts, so all experts together with equal weight give it back; leaving out the experts
 * whose gates are closed changes it little. */
#ifndef ATS_TRAIN_SPLIT_H
#define ATS_TRAIN_SPLIT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct split_block {
    size_t width;      /* of the residual stream */
    size_t ff;         /* hidden units */
    const float *gain; /* of the norm before the block: width */
    const float *gate; /* ff rows of width */
    const float *up;   /* ff rows of width */
    const float *down; /* width rows of ff */
};

enum { SPLIT_MAX_EXPERTS = 256 };

/* Fills order[ff] with the units, those of an expert one after the other, smallest number first
 * in each. Groups are of equal size: ff must be a multiple of `experts`, which
 * are 1 to SPLIT_MAX_EXPERTS. False: out of memory. */
bool split_group(const struct split_block *block, size_t experts, uint32_t *order);

/* The router, `experts` rows of width: an expert's row is the sum of its units' gates, each weighed
 * by how much the unit writes when its gate is open (|up| |down|). The better an input opens an
 * expert's gates, the higher its logit. Rows are scaled so that logits of inputs of usual size
 * spread by SPLIT_LOGIT_SPREAD: the order decides which experts are used, and the weights of those
 * stay nearly equal. */
void split_router(const struct split_block *block, size_t experts, const uint32_t *order,
                  float *router);

#define SPLIT_LOGIT_SPREAD 0.002f

#endif
