/* small_floats.h - the small number formats of checkpoints as floats, one number at a time. Tests
 * compare the operation `decode` with them. test_numbers.c compares them with their definitions.
 *
 * Names:   the argument of each `x_to_f32` is the bit pattern of one value.
 * Source:  IEEE 754 for f16; OCP 8-bit and microscaling formats for f8, e8m0 and f4. */
#ifndef CPL_TESTS_TENSOR_SMALL_FLOATS_H
#define CPL_TESTS_TENSOR_SMALL_FLOATS_H

#include "tensor/numbers.h"

/* Format: sign 1, exponent 5 (bias 15), mantissa 10, with subnormals, infinities and NaN. */
static inline float f16_to_f32(uint16_t bits)
{
    uint32_t sign = (uint32_t)(bits & 0x8000u) << 16, exponent = bits >> 10 & 31u;
    uint32_t mantissa = bits & 1023u;
    if (exponent == 0) { /* m 2^-24: both factors are exact */
        float value = (float)mantissa * 0x1p-24f;
        return sign ? -value : value;
    }
    uint32_t wide = exponent == 31 ? 255u : exponent + (127u - 15u);
    return cpl_f32_from_bits(sign | wide << 23 | mantissa << 13);
}

/* Format: the "fn" form with sign 1, exponent 4 (bias 7), mantissa 3. It has no infinities, 0x7f
 * and 0xff are NaN, and the largest value is 448. */
static inline float f8_e4m3_to_f32(uint8_t bits)
{
    uint32_t sign = (uint32_t)(bits & 0x80u) << 24, exponent = bits >> 3 & 15u;
    uint32_t mantissa = bits & 7u;
    if (exponent == 15 && mantissa == 7) return cpl_f32_from_bits(sign | 0x7fc00000u);
    if (exponent == 0) {
        float value = (float)mantissa * 0x1p-9f;
        return sign ? -value : value;
    }
    return cpl_f32_from_bits(sign | (exponent + (127u - 7u)) << 23 | mantissa << 20);
}

/* Format: sign 1, exponent 5 (bias 15), mantissa 2. The byte is the upper byte of an f16. */
static inline float f8_e5m2_to_f32(uint8_t bits)
{
    return f16_to_f32((uint16_t)(bits << 8));
}

/* Returns a power of two, 2^(bits - 127), or NaN for 0xff. The format has neither sign nor zero. */
static inline float e8m0_to_f32(uint8_t bits)
{
    if (bits == 0xff) return cpl_f32_from_bits(0x7fc00000u);
    return bits ? cpl_f32_from_bits((uint32_t)bits << 23) : 0x1p-127f; /* 2^-127 is subnormal */
}

/* Reads E2M1 from the low four bits and ignores the upper four. */
static inline float f4_to_f32(uint8_t bits)
{
    static const float values[] = {0, 0.5f, 1, 1.5f, 2, 3, 4, 6};
    return bits & 8 ? -values[bits & 7] : values[bits & 7];
}

#endif /* CPL_TESTS_TENSOR_SMALL_FLOATS_H */
