/*
 * Random numbers that are functions of (seed, counter): no hidden state, so that a draw does not
 * depend on which rank, batch or thread makes it.
 */
#ifndef EEP_BASE_RNG_H
#define EEP_BASE_RNG_H

#include <stdint.h>

/** SplitMix64's output function (Steele, Lea, Flood 2014): a well-mixed bijection. */
static inline uint64_t eep_rng_mix(uint64_t x)
{
    x += UINT64_C(0x9e3779b97f4a7c15);
    x = (x ^ (x >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    x = (x ^ (x >> 27)) * UINT64_C(0x94d049bb133111eb);
    return x ^ (x >> 31);
}

/** 64 random bits for (seed, counter). */
static inline uint64_t eep_rng_bits(uint64_t seed, uint64_t counter)
{
    return eep_rng_mix(eep_rng_mix(seed) ^ counter);
}

/** Uniform in [0, 1), 53 bits, for (seed, counter). */
static inline double eep_rng_uniform(uint64_t seed, uint64_t counter)
{
    return (double)(eep_rng_bits(seed, counter) >> 11) * 0x1.0p-53;
}

#endif
