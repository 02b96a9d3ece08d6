/* numbers.h - bf16 and the bits of floats. The other small formats of checkpoints: the operation
 * `decode` of ops.h.
 *
 * Room:    tensor (header only; uses nothing). A bf16 is given as its bit pattern. */
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

/* Rounds to nearest, ties to even; a value beyond the largest bf16 becomes infinite. A NaN stays a
 * (quiet) NaN: rounding alone would carry some of them over into infinity or zero. */
static inline uint16_t cpl_bf16_from_f32(float value)
{
    uint32_t bits = cpl_f32_bits(value);
    if ((bits & 0x7fffffffu) > 0x7f800000u) return (uint16_t)(bits >> 16 | 0x40u);
    return (uint16_t)((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16);
}

#endif /* CPL_TENSOR_NUMBERS_H */
