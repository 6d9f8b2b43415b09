/* A small deterministic random generator for seeded plans and delays.
 *
 * SplitMix64 (Steele, Lea, Flood: "Fast Splittable Pseudorandom Number
 * Generators", OOPSLA 2014): one 64-bit word of state, any seed is good, and
 * the same seed gives the same stream on every machine. */
#ifndef ATS_BASE_RNG_H
#define ATS_BASE_RNG_H

#include <stdint.h>

struct ats_rng {
    uint64_t state;
};

static inline uint64_t ats_rng_next(struct ats_rng *rng)
{
    uint64_t z = (rng->state += UINT64_C(0x9E3779B97F4A7C15));
    z = (z ^ (z >> 30)) * UINT64_C(0xBF58476D1CE4E5B9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94D049BB133111EB);
    return z ^ (z >> 31);
}

/* Uniform in [0, n); n > 0. The bias of the modulo is below n / 2^64. */
static inline uint64_t ats_rng_below(struct ats_rng *rng, uint64_t n)
{
    return ats_rng_next(rng) % n;
}

#endif
