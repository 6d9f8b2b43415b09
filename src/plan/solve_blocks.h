/* The solver's problem once units are blocks and phases are weighted. Internal to src/plan/solve*.
 *
 * Used by one thread. */
#ifndef ATS_PLAN_SOLVE_BLOCKS_H
#define ATS_PLAN_SOLVE_BLOCKS_H

#include "plan/side.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Units that share a side. */
struct ats_block {
    uint64_t bytes;
    double us[ATS_SIDES]; /* weighted */
    double change_us;     /* weighted, if it is on another side than the block before */
    size_t first;         /* unit */
    ats_side_set sides;
};

struct ats_blocks {
    struct ats_block *at;
    size_t n;
    uint64_t budget; /* at most the sum of all bytes */
    /* The problem without a budget, at a price of `price` microseconds per byte: the least time and
     * price together of the blocks from i on, by the side of the block before, and the side of
     * block i that goes with it. */
    double price;
    double (*rest_us)[ATS_SIDES];
    uint8_t (*next)[ATS_SIDES];
};

/* Room for `most` blocks. False: out of memory; free it all the same. */
bool ats_blocks_make(struct ats_blocks *blocks, size_t most);
void ats_blocks_free(struct ats_blocks *blocks);

#endif
