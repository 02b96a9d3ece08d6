/* device.h - the header of every file of kernels: CUDA, or a replacement on the host.
 *
 * Room:    tensor/cuda. The only header with types of the vendor. A .cu file is compiled by nvcc
 *          for GPUs, and by g++ with tests/tensor/cuda/cuda_on_host.h, which runs the threads of a
 *          block in an order that shows missing barriers (tests/tensor/cuda).
 * Rules:   No atomic operation on floats, no kernel that waits for another block, no sum in an
 *          order that is not fixed, so that equal calls give equal bits. Shared memory is taken by
 *          CPL_SHARED alone. A grid comes from shapes, never from numbers on the device. Offsets of
 *          whole tensors are int64_t. A kernel is launched by CPL_LAUNCH, which records a
 *          failure. */
#ifndef CPL_TENSOR_CUDA_DEVICE_H
#define CPL_TENSOR_CUDA_DEVICE_H

#include <cmath>
#include <cstdint>

#include "tensor/cuda/cuda.h"

/* A size above which an operation works in parts. A build of the tests uses `small`, so that small
 * shapes need parts (tests/tensor/cuda/cuda.cmake). */
#ifdef CPL_CUDA_SMALL_PARTS
#    define CPL_PART(size, small) (small)
#else
#    define CPL_PART(size, small) (size)
#endif

#ifdef __CUDACC__

#    include <cuda_runtime.h>

/* Arrays indexed by a loop stay in registers only if the loop is unrolled. */
#    define CPL_UNROLL _Pragma("unroll")

/* Declares the block's dynamic shared memory, 16-byte aligned. Its bytes are an argument of
 * CPL_LAUNCH. A kernel has at most one declaration. */
#    define CPL_SHARED(type, name)                                                                 \
        extern __shared__ __align__(16) char cpl_shared_bytes[];                                   \
        type *name = (type *)cpl_shared_bytes

/* Launches kernel(...) on the backend's stream, with grid and block of dim3 and `shared` bytes of
 * shared memory, at most 96 KiB (available since sm_80). Does nothing if a dimension of the grid is
 * 0. */
#    define CPL_LAUNCH(be, kernel, grid, block, shared, ...)                                       \
        do {                                                                                       \
            const dim3 grid_ = (grid), block_ = (block);                                           \
            if (grid_.x && grid_.y && grid_.z) {                                                   \
                if ((shared) > 48 << 10)                                                           \
                    cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,      \
                                         (int)(shared));                                           \
                kernel<<<grid_, block_, shared, (cudaStream_t)cpl_cuda_of(be)->stream>>>(          \
                    __VA_ARGS__);                                                                  \
                cpl_cuda_launched(be, #kernel);                                                    \
            }                                                                                      \
        } while (0)

/* Computes c [16,8] += a [16,16] . b [16,8] of a warp, bf16 with sums in F32 (mma.sync.m16n8k16):
 * float c[4], uint32_t a[4], b[2], in PTX's layout of fragments. */
#    define CPL_MMA_16816(c, a, b)                                                                 \
        asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "                        \
                     "{%0,%1,%2,%3},{%4,%5,%6,%7},{%8,%9},{%0,%1,%2,%3};"                          \
                     : "+f"((c)[0]), "+f"((c)[1]), "+f"((c)[2]), "+f"((c)[3])                      \
                     : "r"((a)[0]), "r"((a)[1]), "r"((a)[2]), "r"((a)[3]), "r"((b)[0]),            \
                       "r"((b)[1]))

/* Loads uint32_t r[4], four matrices of 8 x 8 numbers of 16 bits, as fragments of CPL_MMA_16816
 * (ldmatrix). Lane i passes the address of row i mod 8 of matrix i / 8. With TRANS each matrix is
 * transposed. */
#    define CPL_LDMATRIX_OF(form, r, shared_from)                                                  \
        asm volatile("ldmatrix.sync.aligned.m8n8.x4" form ".shared.b16 {%0,%1,%2,%3}, [%4];"       \
                     : "=r"((r)[0]), "=r"((r)[1]), "=r"((r)[2]), "=r"((r)[3])                      \
                     : "r"((uint32_t)__cvta_generic_to_shared(shared_from))                        \
                     : "memory")
#    define CPL_LDMATRIX(r, shared_from)       CPL_LDMATRIX_OF("", r, shared_from)
#    define CPL_LDMATRIX_TRANS(r, shared_from) CPL_LDMATRIX_OF(".trans", r, shared_from)

/* Copies 16 bytes from global to shared memory asynchronously: `bytes` bytes are read, the others
 * are 0. Both addresses are multiples of 16. CPL_COPY_WAIT waits for all groups of the thread's
 * copies except the latest n, a literal. Other threads see the copies after a barrier. */
#    define CPL_COPY_ASYNC_16(shared_to, global_from, bytes)                                       \
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(                        \
                         (uint32_t)__cvta_generic_to_shared(shared_to)),                           \
                     "l"(__cvta_generic_to_global(global_from)), "r"((uint32_t)(bytes))            \
                     : "memory")
#    define CPL_COPY_COMMIT() asm volatile("cp.async.commit_group;" ::: "memory")
#    define CPL_COPY_WAIT(n)  asm volatile("cp.async.wait_group %0;" ::"n"(n) : "memory")

/* Returns two numbers rounded to bf16, `low` in the low half. */
static __device__ __forceinline__ uint32_t cpl_device_pair(float low, float high)
{
    uint32_t pair;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
    return pair;
}

/* Returns 2^x, or 0 for subnormal results. */
static __device__ __forceinline__ float cpl_device_power_of_2(float x)
{
    float power;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(power) : "f"(x));
    return power;
}

#else
#    include "cuda_on_host.h"
#endif

enum { CPL_WARP = 32 };

/* ---- numbers ---- */

static __device__ __forceinline__ float cpl_device_float(uint16_t bf16)
{
    const uint32_t bits = (uint32_t)bf16 << 16;
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

/* Rounds like cpl_bf16_from_f32 (tensor/numbers.h): to nearest, ties to even, NaN stays NaN. */
static __device__ __forceinline__ uint16_t cpl_device_bf16(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    if ((bits & 0x7fffffffu) > 0x7f800000u) return (uint16_t)(bits >> 16 | 0x40u);
    return (uint16_t)((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16);
}

/* A tensor of F32 or BF16 in a kernel. */
typedef struct cpl_device_numbers {
    void *at;
    bool is_bf16;
} cpl_device_numbers;

static inline cpl_device_numbers cpl_device_numbers_of(cpl_tensor t)
{
    CPL_ASSERT(t.dtype == CPL_F32 || t.dtype == CPL_BF16);
    return {t.storage, t.dtype == CPL_BF16};
}

static __device__ __forceinline__ float cpl_device_get(cpl_device_numbers x, int64_t i)
{
    return x.is_bf16 ? cpl_device_float(((const uint16_t *)x.at)[i]) : ((const float *)x.at)[i];
}

static __device__ __forceinline__ void cpl_device_set(cpl_device_numbers x, int64_t i, float value)
{
    if (x.is_bf16)
        ((uint16_t *)x.at)[i] = cpl_device_bf16(value);
    else
        ((float *)x.at)[i] = value;
}

/* ---- sums, with equal bits in every run ---- */

/* Returns the sum over the 32 lanes of a warp, all of which call it. T is float or double. */
template <class T> static __device__ __forceinline__ T cpl_warp_sum(T v)
{
    for (int m = CPL_WARP / 2; m; m >>= 1) v += __shfl_xor_sync(0xffffffffu, v, m);
    return v;
}

/* Finds position *number in a sequence of 32 parts, lane i's part being `size` long. Returns the
 * lane of the part and makes *number relative to the part. Returns CPL_WARP if the position is
 * beyond all parts. *number is then relative to their end. All lanes call it. */
static __device__ __forceinline__ int cpl_warp_find(int size, int64_t *number)
{
    const int lane = (int)threadIdx.x % CPL_WARP;
    for (int d = 1; d < CPL_WARP; d <<= 1) {
        const int before = __shfl_up_sync(0xffffffffu, size, d);
        if (lane >= d) size += before;
    }
    const unsigned past = __ballot_sync(0xffffffffu, size > *number);
    const int which     = past ? __ffs((int)past) - 1 : CPL_WARP;
    const int before    = __shfl_sync(0xffffffffu, size, which ? which - 1 : 0);
    if (which) *number -= before;
    return which;
}

/* Returns the sum over a block of whole warps to all threads, which all call it. `part` is 33
 * numbers of shared memory and may be reused after the call. */
template <class T> static __device__ __forceinline__ T cpl_block_sum(T v, T *part)
{
    const int lane = (int)threadIdx.x % CPL_WARP, warp = (int)threadIdx.x / CPL_WARP;
    const int warps = (int)blockDim.x / CPL_WARP;
    v               = cpl_warp_sum(v);
    if (lane == 0) part[warp] = v;
    __syncthreads();
    if (warp == 0) {
        const T s = cpl_warp_sum(lane < warps ? part[lane] : (T)0);
        if (lane == 0) part[CPL_WARP] = s;
    }
    __syncthreads();
    const T s = part[CPL_WARP];
    __syncthreads();
    return s;
}

#endif /* CPL_TENSOR_CUDA_DEVICE_H */
