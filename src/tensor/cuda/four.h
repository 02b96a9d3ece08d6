/* four.h - access to arrays and rows four numbers at a time, by one load if the address allows it.
 *
 * Room:  tensor/cuda (header only), for files of kernels.
 * Flat:  a thread takes the numbers cpl_four_place() ... + 3 of an array. The grid is
 *        cpl_four_grid(count) blocks of CPL_FOUR_THREADS.
 * Rows:  a block has rows of threads (threadIdx.y). Each row of threads takes one row of numbers;
 *        its thread x takes numbers 4 x ... + 3, 4 (x + blockDim.x) ... + 3, and so on. */
#ifndef CPL_TENSOR_CUDA_FOUR_H
#define CPL_TENSOR_CUDA_FOUR_H

#include "tensor/cuda/device.h"

enum {
    CPL_FOUR_THREADS = 256,
    CPL_FOUR_PART    = 36, /* numbers of shared memory of a row of threads for cpl_four_row_sum */
};

typedef struct cpl_four {
    float at[4];
} cpl_four;

static __device__ __forceinline__ cpl_four cpl_four_sum(cpl_four a, cpl_four b)
{
    for (int k = 0; k < 4; k++) a.at[k] += b.at[k];
    return a;
}

/* Returns whether numbers i ... i + 3 are below `end` and aligned for one load. */
static __device__ __forceinline__ bool cpl_four_is_whole(cpl_device_numbers x, int64_t i,
                                                         int64_t end)
{
    const uintptr_t at = (uintptr_t)x.at + (uintptr_t)i * (x.is_bf16 ? 2 : 4);
    return i + 4 <= end && at % (x.is_bf16 ? 8 : 16) == 0;
}

/* Returns numbers i ... i + 3 of x. Numbers from `end` on are 0. */
static __device__ __forceinline__ cpl_four cpl_four_get(cpl_device_numbers x, int64_t i,
                                                        int64_t end)
{
    cpl_four v = {{0, 0, 0, 0}};
    if (!cpl_four_is_whole(x, i, end)) {
        for (int k = 0; k < 4; k++)
            if (i + k < end) v.at[k] = cpl_device_get(x, i + k);
    } else if (x.is_bf16) {
        const uint2 pairs = *(const uint2 *)((const uint16_t *)x.at + i);
        v.at[0]           = cpl_device_float((uint16_t)pairs.x);
        v.at[1]           = cpl_device_float((uint16_t)(pairs.x >> 16));
        v.at[2]           = cpl_device_float((uint16_t)pairs.y);
        v.at[3]           = cpl_device_float((uint16_t)(pairs.y >> 16));
    } else {
        const float4 four = *(const float4 *)((const float *)x.at + i);
        v.at[0] = four.x, v.at[1] = four.y, v.at[2] = four.z, v.at[3] = four.w;
    }
    return v;
}

/* Sets numbers i ... i + 3 of x to v, except numbers from `end` on. */
static __device__ __forceinline__ void cpl_four_set(cpl_device_numbers x, int64_t i, int64_t end,
                                                    cpl_four v)
{
    if (!cpl_four_is_whole(x, i, end)) {
        for (int k = 0; k < 4; k++)
            if (i + k < end) cpl_device_set(x, i + k, v.at[k]);
    } else if (x.is_bf16) {
        *(uint2 *)((uint16_t *)x.at + i) =
            make_uint2(cpl_device_pair(v.at[0], v.at[1]), cpl_device_pair(v.at[2], v.at[3]));
    } else {
        *(float4 *)((float *)x.at + i) = make_float4(v.at[0], v.at[1], v.at[2], v.at[3]);
    }
}

/* ---- flat arrays ---- */

static inline dim3 cpl_four_grid(int64_t count)
{
    const int64_t block = 4 * CPL_FOUR_THREADS;
    return dim3((unsigned)((count + block - 1) / block));
}

static __device__ __forceinline__ int64_t cpl_four_place(void)
{
    return 4 * ((int64_t)blockIdx.x * CPL_FOUR_THREADS + threadIdx.x);
}

/* ---- rows ---- */

/* Returns the block for rows of `cols` numbers: as few warps per row as needed. */
static inline dim3 cpl_four_row_block(int64_t cols)
{
    unsigned x = CPL_WARP;
    while (x < CPL_FOUR_THREADS && 4 * (int64_t)x < cols) x *= 2;
    return dim3(x, CPL_FOUR_THREADS / x);
}

/* Returns the sum over one row of threads. All threads of the block call it. `part` is
 * CPL_FOUR_PART numbers of shared memory for this row. */
template <class T> static __device__ __forceinline__ T cpl_four_row_sum(T v, T *part)
{
    return blockDim.x == CPL_WARP ? cpl_warp_sum(v) : cpl_block_sum(v, part);
}

#endif /* CPL_TENSOR_CUDA_FOUR_H */
