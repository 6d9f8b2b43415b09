/* Seeds of random tests: a new one per run, printed, repeated by ATS_TEST_SEED.
 *
 * Include it after cmocka.h. */
#ifndef ATS_TESTS_SEED_H
#define ATS_TESTS_SEED_H

#include "base/rng.h"

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

/* The seed of this process. The first call prints it. */
static inline uint64_t test_seed(void)
{
    static _Atomic uint64_t kept;
    uint64_t seed = kept;
    if (seed == 0) {
        const char *text = getenv("ATS_TEST_SEED");
        seed = text != NULL ? strtoull(text, NULL, 0)
                            : (uint64_t)time(NULL) * 1000 + (uint64_t)getpid() % 1000;
        seed += seed == 0;
        if (text == NULL) { /* shared with the other files of the program and its children */
            char number[32];
            snprintf(number, sizeof(number), "%llu", (unsigned long long)seed);
            setenv("ATS_TEST_SEED", number, 1);
            printf("seed: repeat with ATS_TEST_SEED=%s\n", number);
            fflush(stdout);
        }
        kept = seed;
    }
    return seed;
}

/* An independent stream of random numbers for each test and each of its rounds. */
static inline struct ats_rng test_rng(uint64_t stream)
{
    struct ats_rng mix = {.state = test_seed() ^ (stream * UINT64_C(0xD1342543DE82EF95))};
    return (struct ats_rng){.state = ats_rng_next(&mix)};
}

/* Uniform in [low, high]. */
static inline size_t test_between(struct ats_rng *rng, size_t low, size_t high)
{
    return low + (size_t)ats_rng_below(rng, high - low + 1);
}

/* True in `percent` of the cases. */
static inline bool test_chance(struct ats_rng *rng, unsigned percent)
{
    return ats_rng_below(rng, 100) < percent;
}

#endif
