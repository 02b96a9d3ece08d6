/* simd.h - elementary functions that the compiler can put into vector loops.
 *
 * Room:  tensor/cpu (header only). Plain C without branches or calls, so that a loop marked
 *        `#pragma omp simd` becomes vector code of the instruction set it is compiled for. */
#ifndef CPL_TENSOR_CPU_SIMD_H
#define CPL_TENSOR_CPU_SIMD_H

#include <math.h>
#include <stdint.h>

#include "tensor/numbers.h"
#include "tensor/tensor.h"

/* Returns a b + c, rounded once if the processor has fused multiply-add, otherwise twice. */
static inline float cpl_madd(float a, float b, float c)
{
#ifdef __FMA__
    return __builtin_fmaf(a, b, c);
#else
    return a * b + c;
#endif
}

/* Returns exp(x) with a relative error below 2e-7. The result is 0 far below -87 (by way of
 * subnormals), infinite above 88.73, NaN for NaN. x = k ln 2 + r with |r| <= ln 2 / 2. The series
 * of exp(r) to the 7th power is off by less than 6e-9. 2^k is two factors, both in range. */
static inline float cpl_exp(float x)
{
    const float round_magic = 0x1.8p23f, ln2_high = 0x1.63p-1f, ln2_low = -0x1.bd0106p-13f;
    x            = x < -104.0f ? -104.0f : x;
    x            = x > 89.0f ? 89.0f : x;
    float rounds = cpl_madd(x, 0x1.715476p0f, round_magic);
    float k      = rounds - round_magic;
    float r      = cpl_madd(k, -ln2_low, cpl_madd(k, -ln2_high, x));
    float p      = cpl_madd(r, 1.0f / 5040, 1.0f / 720);
    p            = cpl_madd(p, r, 1.0f / 120);
    p            = cpl_madd(p, r, 1.0f / 24);
    p            = cpl_madd(p, r, 1.0f / 6);
    p            = cpl_madd(p, r, 0.5f);
    p            = 1.0f + cpl_madd(p * r, r, r);
    int32_t n    = (int32_t)(cpl_f32_bits(rounds) - cpl_f32_bits(round_magic));
    uint32_t low = (uint32_t)(n >> 1), high = (uint32_t)n - low;
    return p * cpl_f32_from_bits((low + 127u) << 23) * cpl_f32_from_bits((high + 127u) << 23);
}

/* Sets `to` [n] to from [n], rounded to bf16. The next function converts back. */
static inline void cpl_round_row(uint16_t *to, const float *from, int64_t n)
{
#pragma omp simd
    for (int64_t i = 0; i < n; i++) to[i] = cpl_bf16_from_f32(from[i]);
}

static inline void cpl_widen_row(float *to, const uint16_t *from, int64_t n)
{
#pragma omp simd
    for (int64_t i = 0; i < n; i++) to[i] = cpl_bf16_to_f32(from[i]);
}

/* Returns numbers at ... at + n - 1 of x, F32 or BF16, as F32: in place, or in `room` [n]. */
static inline const float *cpl_row_read(cpl_tensor x, int64_t at, int64_t n, float *room)
{
    if (x.dtype == CPL_F32) return (const float *)x.storage + at;
    CPL_ASSERT(x.dtype == CPL_BF16);
    cpl_widen_row(room, (const uint16_t *)x.storage + at, n);
    return room;
}

/* Begin and end writing F32 numbers to y, F32 or BF16, from number `at` on. cpl_row_begin returns
 * the place to compute them, y itself or `room`. cpl_row_end rounds them into a BF16 y. */
static inline float *cpl_row_begin(cpl_tensor y, int64_t at, float *room)
{
    CPL_ASSERT(y.dtype == CPL_F32 || y.dtype == CPL_BF16);
    return y.dtype == CPL_F32 ? (float *)y.storage + at : room;
}

static inline void cpl_row_end(cpl_tensor y, int64_t at, int64_t n, const float *made)
{
    if (y.dtype == CPL_BF16) cpl_round_row((uint16_t *)y.storage + at, made, n);
}

/* Returns the largest number of x [n], without NaN, or -infinity if all are NaN. The explicit lanes
 * are needed because not every compiler vectorises a maximum that must respect NaN. */
static inline float cpl_largest(const float *x, int64_t n)
{
    enum { LANES = 16 };
    float lane[LANES], largest = -INFINITY;
    int64_t i = 0;
    for (int k = 0; k < LANES; k++) lane[k] = -INFINITY;
    for (; i + LANES <= n; i += LANES) {
#pragma omp simd
        for (int k = 0; k < LANES; k++) lane[k] = x[i + k] > lane[k] ? x[i + k] : lane[k];
    }
    for (; i < n; i++) lane[0] = x[i] > lane[0] ? x[i] : lane[0];
    for (int k = 0; k < LANES; k++) largest = lane[k] > largest ? lane[k] : largest;
    return largest;
}

#endif /* CPL_TENSOR_CPU_SIMD_H */
