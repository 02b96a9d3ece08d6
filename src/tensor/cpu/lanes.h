/* lanes.h - a vector of floats as wide as the instruction set has them.
 *
 * Room:  tensor/cpu (header only). The panel products need five operations, written as functions so
 *        that the products read as plain loops. `doubles` is a vector of half as many numbers in
 *        double, for sums of squares; the compiler's own conversion takes twice as long. */
#ifndef CPL_TENSOR_CPU_LANES_H
#define CPL_TENSOR_CPU_LANES_H

#include <stdint.h>
#include <string.h>

#if defined(__AVX512F__) || (defined(__AVX2__) && defined(__FMA__))
#    include <immintrin.h>
#endif

#if defined(__AVX512F__)
typedef __m512 lanes;
enum { VECTOR = 16, PANEL_VECTORS = 4 }; /* vectors of a panel: 6 x 4 sums fit 32 registers */
static inline lanes lanes_all(float x)
{
    return _mm512_set1_ps(x);
}
static inline lanes lanes_madd(lanes a, lanes b, lanes c) /* Returns a b + c. */
{
    return _mm512_fmadd_ps(a, b, c);
}
typedef __m512d doubles;
static inline doubles doubles_load(const float *x) /* Returns VECTOR / 2 numbers as doubles. */
{
    return _mm512_cvtps_pd(_mm256_loadu_ps(x));
}
static inline doubles doubles_madd(doubles a, doubles b, doubles c) /* Returns a b + c. */
{
    return _mm512_fmadd_pd(a, b, c);
}
/* Sets out[k] to numbers k of VECTOR rows that begin `stride` apart, k = 0 ... 3: a transposition,
 * in pieces of 4 x 4. */
static inline void lanes_columns(lanes out[4], const float *x, int64_t stride)
{
    lanes r[4];
    for (int i = 0; i < 4; i++) {
        const float *at = x + i * stride;
        r[i]            = _mm512_castps128_ps512(_mm_loadu_ps(at));
        r[i]            = _mm512_mask_broadcast_f32x4(r[i], 0x00f0, _mm_loadu_ps(at + 4 * stride));
        r[i]            = _mm512_mask_broadcast_f32x4(r[i], 0x0f00, _mm_loadu_ps(at + 8 * stride));
        r[i]            = _mm512_mask_broadcast_f32x4(r[i], 0xf000, _mm_loadu_ps(at + 12 * stride));
    }
    __m512d a = _mm512_castps_pd(_mm512_unpacklo_ps(r[0], r[1]));
    __m512d b = _mm512_castps_pd(_mm512_unpackhi_ps(r[0], r[1]));
    __m512d c = _mm512_castps_pd(_mm512_unpacklo_ps(r[2], r[3]));
    __m512d d = _mm512_castps_pd(_mm512_unpackhi_ps(r[2], r[3]));
    out[0]    = _mm512_castpd_ps(_mm512_unpacklo_pd(a, c));
    out[1]    = _mm512_castpd_ps(_mm512_unpackhi_pd(a, c));
    out[2]    = _mm512_castpd_ps(_mm512_unpacklo_pd(b, d));
    out[3]    = _mm512_castpd_ps(_mm512_unpackhi_pd(b, d));
}
#elif defined(__AVX2__) && defined(__FMA__)
typedef __m256 lanes;
enum { VECTOR = 8, PANEL_VECTORS = 2 }; /* 6 x 2 sums fit 16 registers */
static inline lanes lanes_all(float x)
{
    return _mm256_set1_ps(x);
}
static inline lanes lanes_madd(lanes a, lanes b, lanes c)
{
    return _mm256_fmadd_ps(a, b, c);
}
typedef __m256d doubles;
static inline doubles doubles_load(const float *x)
{
    return _mm256_cvtps_pd(_mm_loadu_ps(x));
}
static inline doubles doubles_madd(doubles a, doubles b, doubles c)
{
    return _mm256_fmadd_pd(a, b, c);
}
static inline void lanes_columns(lanes out[4], const float *x, int64_t stride)
{
    lanes r[4];
    for (int i = 0; i < 4; i++) {
        const float *at = x + i * stride;
        r[i]            = _mm256_insertf128_ps(_mm256_castps128_ps256(_mm_loadu_ps(at)),
                                               _mm_loadu_ps(at + 4 * stride), 1);
    }
    __m256d a = _mm256_castps_pd(_mm256_unpacklo_ps(r[0], r[1]));
    __m256d b = _mm256_castps_pd(_mm256_unpackhi_ps(r[0], r[1]));
    __m256d c = _mm256_castps_pd(_mm256_unpacklo_ps(r[2], r[3]));
    __m256d d = _mm256_castps_pd(_mm256_unpackhi_ps(r[2], r[3]));
    out[0]    = _mm256_castpd_ps(_mm256_unpacklo_pd(a, c));
    out[1]    = _mm256_castpd_ps(_mm256_unpackhi_pd(a, c));
    out[2]    = _mm256_castpd_ps(_mm256_unpacklo_pd(b, d));
    out[3]    = _mm256_castpd_ps(_mm256_unpackhi_pd(b, d));
}
#else
typedef float lanes __attribute__((vector_size(16)));
enum { VECTOR = 4, PANEL_VECTORS = 2 };
static inline lanes lanes_all(float x)
{
    return (lanes){x, x, x, x};
}
static inline lanes lanes_madd(lanes a, lanes b, lanes c)
{
    return a * b + c;
}
typedef double doubles __attribute__((vector_size(16)));
static inline doubles doubles_load(const float *x)
{
    return (doubles){(double)x[0], (double)x[1]};
}
static inline doubles doubles_madd(doubles a, doubles b, doubles c)
{
    return a * b + c;
}
static inline void lanes_columns(lanes out[4], const float *x, int64_t stride)
{
    for (int k = 0; k < 4; k++)
        out[k] = (lanes){x[k], x[stride + k], x[2 * stride + k], x[3 * stride + k]};
}
#endif

static inline lanes lanes_load(const float *x)
{
    lanes a;
    memcpy(&a, x, sizeof a);
    return a;
}

static inline void lanes_store(float *x, lanes a)
{
    memcpy(x, &a, sizeof a);
}

static inline int64_t vector_round_up(int64_t count)
{
    return (count + VECTOR - 1) / VECTOR * VECTOR;
}

/* Returns the sum of the squares of x [n], in double: no scale of the weights overflows or
 * vanishes. It uses eight sums, so that the latency of a sum is hidden by the others. */
static inline double lanes_squares(const float *x, int64_t n)
{
    enum { HALF = VECTOR / 2, SUMS = 8, STEP = HALF * SUMS };
    doubles sum[SUMS];
    double part[STEP], all = 0;
    int64_t i = 0;
    memset(sum, 0, sizeof sum);
    for (; i + STEP <= n; i += STEP)
        for (int k = 0; k < SUMS; k++) {
            doubles w = doubles_load(x + i + k * HALF);
            sum[k]    = doubles_madd(w, w, sum[k]);
        }
    memcpy(part, sum, sizeof part);
    for (; i < n; i++) part[0] += (double)x[i] * (double)x[i];
    for (int k = 0; k < STEP; k++) all += part[k];
    return all;
}

/* Computes lanes_squares with fewer partial sums: in a short row, joining many sums would take
 * longer than the squares. */
static inline double lanes_squares_short(const float *x, int64_t n)
{
    enum { HALF = VECTOR / 2, SUMS = 4, STEP = HALF * SUMS };
    doubles sum[SUMS];
    double part[HALF], all = 0;
    int64_t i = 0;
    memset(sum, 0, sizeof sum);
    for (; i + STEP <= n; i += STEP)
        for (int k = 0; k < SUMS; k++) {
            doubles w = doubles_load(x + i + k * HALF);
            sum[k]    = doubles_madd(w, w, sum[k]);
        }
    for (int k = 0; i + HALF <= n; i += HALF, k++) {
        doubles w = doubles_load(x + i);
        sum[k]    = doubles_madd(w, w, sum[k]);
    }
    for (; i < n; i++) all += (double)x[i] * (double)x[i];
    sum[0] = (sum[0] + sum[1]) + (sum[2] + sum[3]);
    memcpy(part, &sum[0], sizeof part);
    for (int k = 0; k < HALF; k++) all += part[k];
    return all;
}

#endif /* CPL_TENSOR_CPU_LANES_H */
