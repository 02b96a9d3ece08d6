/* erc.cu - noise bound and noise of the coupling loss; erc_sweep.cu has its phases.
 *
 * Room:  tensor/cuda. Operations: tensor/erc.h. On the CPU: tensor/cpu/erc/erc.c. */
#include <cfloat>

#include "tensor/cuda/device.h"

enum {
    THREADS   = 256,
    WARPS     = THREADS / CPL_WARP,
    SUM_SLOTS = CPL_WARP + 1,
};

extern "C" CPL_CUDA_SCRATCH(erc)
{
    (void)be;
    (void)work;
    return 0;
}

/* ---- the bound ---- */

/* Returns the sum of squared differences, computed by a warp. It is exactly 0 for equal rows, and
 * no cancellation occurs. If b is NULL, it is the sum of squares of a. */
static __device__ double squared_distance(const float *a, const float *b, int64_t d)
{
    double sum = 0;
    for (int64_t k = threadIdx.x % CPL_WARP; k < d; k += CPL_WARP) {
        const double difference = (double)a[k] - (b ? (double)b[k] : 0.0);
        sum += difference * difference;
    }
    return cpl_warp_sum(sum);
}

/* Returns the lesser of two numbers, or NaN if a number is NaN. */
static __device__ __forceinline__ double lesser(double a, double b)
{
    return a < b || a != a ? a : b;
}

/* Computes eps. A block computes one row. Each of its warps takes some of the other rows. */
__global__ void nearest_kernel(float *eps, const float *R, int64_t n, int64_t d)
{
    CPL_SHARED(double, nearest); /* [WARPS] */
    const int warp  = (int)threadIdx.x / CPL_WARP;
    const int64_t i = blockIdx.x;
    double least    = INFINITY;
    for (int64_t j = warp; j < n; j += WARPS)
        if (j != i) least = lesser(squared_distance(R + i * d, R + j * d, d), least);
    nearest[warp] = least;
    __syncthreads();
    if (warp != 0) return;
    const double norm = sqrt(squared_distance(R + i * d, NULL, d));
    for (int w = 1; w < WARPS; w++) least = lesser(nearest[w], least);
    const double bound = n == 1 || norm == 0 ? 0 : sqrt(least) / (2 * norm);
    if (threadIdx.x == 0) eps[i] = (float)(bound > FLT_MAX ? FLT_MAX : bound);
}

extern "C" void cpl_cuda_erc_nearest(cpl_backend *be, cpl_tensor eps, cpl_tensor R)
{
    const int64_t n = R.shape[0], d = R.shape[1];
    CPL_ASSERT(eps.shape[0] == n);
    CPL_LAUNCH(be, nearest_kernel, dim3((unsigned)n), dim3(THREADS), WARPS * sizeof(double),
               cpl_f32(eps), cpl_f32(R), n, d);
}

/* ---- the noise ---- */

/* Computes one round of cpl_rng_block (base/rng.c). */
static __device__ __forceinline__ void philox_round(uint32_t c[4], uint32_t k0, uint32_t k1)
{
    const uint64_t p0 = (uint64_t)0xD2511F53u * c[0], p1 = (uint64_t)0xCD9E8D57u * c[2];
    const uint32_t c1 = c[1], c3 = c[3];
    c[0] = (uint32_t)(p1 >> 32) ^ c1 ^ k0;
    c[1] = (uint32_t)p1;
    c[2] = (uint32_t)(p0 >> 32) ^ c3 ^ k1;
    c[3] = (uint32_t)p0;
}

/* Returns the bits of cpl_rng_uniform. */
static __device__ float uniform_of(cpl_rng_key key, uint64_t index)
{
    const uint64_t block = index / 4;
    uint32_t k0 = (uint32_t)key.seed, k1 = (uint32_t)(key.seed >> 32);
    uint32_t c[4] = {(uint32_t)block, (uint32_t)(block >> 32), (uint32_t)key.step,
                     (uint32_t)key.stream | key.layer << 8 | (uint32_t)(key.step >> 32) << 24};
    for (int round = 0; round < 10; round++) {
        philox_round(c, k0, k1);
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    const int which    = (int)(index % 4);
    const uint32_t low = which & 1 ? c[1] : c[0], high = which & 1 ? c[3] : c[2];
    return (float)((which & 2 ? high : low) >> 8) * (1.0f / (1 << 24));
}

/* Sets delta. The product is exact in double and rounded once. A fused multiply-add would give
 * other bits than the CPU. */
__global__ void noise_kernel(float *delta, const float *eps, cpl_rng_key key, uint64_t first,
                             int64_t count, int64_t d)
{
    const int64_t at = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    if (at >= count) return;
    const float between = 2.0f * uniform_of(key, first + (uint64_t)at) - 1.0f; /* this is exact */
    delta[at]           = 1.0f + (float)((double)eps[at / d] * (double)between);
}

extern "C" void cpl_cuda_erc_noise(cpl_backend *be, cpl_tensor delta, cpl_tensor eps,
                                   cpl_rng_key key, uint64_t draw)
{
    const int64_t count = cpl_tensor_count(delta);
    CPL_ASSERT(eps.shape[0] == delta.shape[0]);
    CPL_ASSERT(key.step < (uint64_t)1 << 40 && key.layer < 1u << 16);
    CPL_LAUNCH(be, noise_kernel, dim3((unsigned)((count + THREADS - 1) / THREADS)), dim3(THREADS),
               0, cpl_f32(delta), cpl_f32(eps), key, draw * (uint64_t)count, count, delta.shape[1]);
}
