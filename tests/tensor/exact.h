/* exact.h - numbers that are equal, bit for bit, here and in the scripts of tests/golden.
 *
 * A uniform number is the upper 12 bits of splitmix64 over 4096. A normal number is the sum of
 * twelve uniform ones minus 6. All are exact in F32 and their sums in double, in Python and C. */
#ifndef CPL_TESTS_TENSOR_EXACT_H
#define CPL_TESTS_TENSOR_EXACT_H

#include <stdint.h>

/* Returns number i of stream `seed`, in [0,1). */
static inline double exact_uniform(uint64_t seed, int64_t i)
{
    uint64_t z = seed + (uint64_t)(i + 1) * 0x9E3779B97F4A7C15u;
    z          = (z ^ z >> 30) * 0xBF58476D1CE4E5B9u;
    z          = (z ^ z >> 27) * 0x94D049BB133111EBu;
    return (double)((z ^ z >> 31) >> 52) / 4096;
}

static inline double exact_normal(uint64_t seed, int64_t i)
{
    double sum = -6;
    for (int k = 0; k < 12; k++) sum += exact_uniform(seed, 12 * i + k);
    return sum;
}

#endif /* CPL_TESTS_TENSOR_EXACT_H */
