/* numbers.h - the small number formats of checkpoints, to and from f32.
 *
 * Room:    tensor (header only; uses nothing).
 * Names:   the argument of each `x_to_f32` is the bit pattern of one value.
 * Source:  IEEE 754 for f16; OCP 8-bit and microscaling formats for f8, e8m0 and f4.
 *
 * Every value of every format here is exactly a float, so only cpl_bf16_from_f32 rounds. */
#ifndef CPL_TENSOR_NUMBERS_H
#define CPL_TENSOR_NUMBERS_H

#include <stdint.h>
#include <string.h>

static inline float cpl_f32_from_bits(uint32_t bits)
{
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static inline uint32_t cpl_f32_bits(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

static inline float cpl_bf16_to_f32(uint16_t bits)
{
    return cpl_f32_from_bits((uint32_t)bits << 16);
}

/* Rounds to nearest, ties to even; what is beyond the largest bf16 becomes infinite. A NaN stays a
 * (quiet) NaN: rounding alone would carry some of them over into infinity or zero. */
static inline uint16_t cpl_bf16_from_f32(float value)
{
    uint32_t bits = cpl_f32_bits(value);
    if ((bits & 0x7fffffffu) > 0x7f800000u) return (uint16_t)(bits >> 16 | 0x40u);
    return (uint16_t)((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16);
}

/* Sign 1, exponent 5 (bias 15), mantissa 10; with subnormals, infinities and NaN. */
static inline float cpl_f16_to_f32(uint16_t bits)
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

/* The "fn" form: sign 1, exponent 4 (bias 7), mantissa 3; no infinities, 0x7f and 0xff are NaN,
 * the largest value is 448. */
static inline float cpl_f8_e4m3_to_f32(uint8_t bits)
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

/* Sign 1, exponent 5 (bias 15), mantissa 2: the upper byte of an f16. */
static inline float cpl_f8_e5m2_to_f32(uint8_t bits)
{
    return cpl_f16_to_f32((uint16_t)(bits << 8));
}

/* A power of two, 2^(bits - 127); 0xff is NaN; neither sign nor zero. */
static inline float cpl_e8m0_to_f32(uint8_t bits)
{
    if (bits == 0xff) return cpl_f32_from_bits(0x7fc00000u);
    return bits ? cpl_f32_from_bits((uint32_t)bits << 23) : 0x1p-127f; /* the first is subnormal */
}

/* E2M1 in the low four bits; the upper four are ignored. */
static inline float cpl_f4_to_f32(uint8_t bits)
{
    static const float values[16] = {0.0f,  0.5f,  1.0f,  1.5f,  2.0f,  3.0f,  4.0f,  6.0f,
                                     -0.0f, -0.5f, -1.0f, -1.5f, -2.0f, -3.0f, -4.0f, -6.0f};
    return values[bits & 15u];
}

#endif /* CPL_TENSOR_NUMBERS_H */
