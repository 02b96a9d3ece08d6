/* numbers.h - bf16, f16 and the bits of floats. The operation `decode` of host_ops.h reads f16 and
 * the other small formats of checkpoints.
 *
 * Room:    tensor (header only; uses nothing). A bf16 or f16 is given as its bit pattern. */
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

/* Rounds to nearest, ties to even. A value beyond the largest bf16 becomes infinite. A NaN stays a
 * (quiet) NaN: rounding alone would turn some NaN into infinity or zero. */
static inline uint16_t cpl_bf16_from_f32(float value)
{
    uint32_t bits = cpl_f32_bits(value);
    if ((bits & 0x7fffffffu) > 0x7f800000u) return (uint16_t)(bits >> 16 | 0x40u);
    return (uint16_t)((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16);
}

/* Rounds to the nearest f16, ties to even. Absolute values from 65,520 on become infinite, values
 * up to 2^-25 become 0. */
static inline uint16_t cpl_f16_from_f32(float value)
{
    const uint32_t least_infinite = 0x477ff000u, least_normal = 0x38800000u;
    const uint32_t bits = cpl_f32_bits(value), size = bits & 0x7fffffffu;
    const uint32_t sign = bits >> 16 & 0x8000u;
    if (size > 0x7f800000u) return (uint16_t)(sign | 0x7e00u | (size >> 13 & 0x3ffu));
    if (size >= least_infinite) return (uint16_t)(sign | 0x7c00u);
    if (size < least_normal) /* sums near 0.5 are multiples of 2^-24, as subnormal f16 are */
        return (uint16_t)(sign | (cpl_f32_bits(cpl_f32_from_bits(size) + 0.5f) - 0x3f000000u));
    return (uint16_t)(sign | (size - 0x38000000u + 0xfffu + (size >> 13 & 1u)) >> 13);
}

#endif /* CPL_TENSOR_NUMBERS_H */
