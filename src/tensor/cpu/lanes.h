/* lanes.h - a vector of floats as wide as the instruction set has them.
 *
 * Room:  tensor/cpu (header only). Five operations are all that the panel products need; written
 *        as functions so that the products read as plain loops. */
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
static inline lanes lanes_load(const float *x)
{
    return _mm512_loadu_ps(x);
}
static inline void lanes_store(float *x, lanes a)
{
    _mm512_storeu_ps(x, a);
}
static inline lanes lanes_all(float x)
{
    return _mm512_set1_ps(x);
}
static inline lanes lanes_madd(lanes a, lanes b, lanes c) /* a b + c */
{
    return _mm512_fmadd_ps(a, b, c);
}
#elif defined(__AVX2__) && defined(__FMA__)
typedef __m256 lanes;
enum { VECTOR = 8, PANEL_VECTORS = 2 }; /* 6 x 2 sums fit 16 registers */
static inline lanes lanes_load(const float *x)
{
    return _mm256_loadu_ps(x);
}
static inline void lanes_store(float *x, lanes a)
{
    _mm256_storeu_ps(x, a);
}
static inline lanes lanes_all(float x)
{
    return _mm256_set1_ps(x);
}
static inline lanes lanes_madd(lanes a, lanes b, lanes c)
{
    return _mm256_fmadd_ps(a, b, c);
}
#else
typedef float lanes __attribute__((vector_size(16)));
enum { VECTOR = 4, PANEL_VECTORS = 2 };
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
static inline lanes lanes_all(float x)
{
    return (lanes){x, x, x, x};
}
static inline lanes lanes_madd(lanes a, lanes b, lanes c)
{
    return a * b + c;
}
#endif

static inline int64_t lanes_round_up(int64_t count)
{
    return (count + VECTOR - 1) / VECTOR * VECTOR;
}

#endif /* CPL_TENSOR_CPU_LANES_H */
