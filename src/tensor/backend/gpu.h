/* gpu.h - data of GPUs that the machine need not have, for couplet plan.
 *
 * Room:  tensor/backend. */
#ifndef CPL_TENSOR_GPU_H
#define CPL_TENSOR_GPU_H

#include "tensor/ops.h"

/* A row of gpus.def, in bytes, FLOP/s and bytes/s. */
typedef struct cpl_gpu {
    const char *name;
    double memory, bf16, bandwidth;
} cpl_gpu;

/* All rows of gpus.def, and their names in the same order, each after a bar:
 * "|a100-40gb|a100..." */
extern const cpl_gpu cpl_gpus[];
extern const char cpl_gpu_names[];

/* Bytes of a GPU's memory in use before the first tensor: the context of CUDA with the kernels
 * (512 MiB, an assumption) and the workspace of cuBLASLt (32 MiB). */
static const size_t cpl_gpu_device_bytes = (size_t)544 << 20;

/* Makes a backend for planning: it reports the GPU's name, memory and scratch_bytes, and has no
 * other operation. It owns no memory and need not be freed. */
void cpl_backend_described(cpl_backend *be, const cpl_gpu *gpu, cpl_dtype compute);

/* Returns the bytes of scratch that tensor/cuda needs for the shapes of `work`, within a few per
 * cent (tests/tensor/cuda/test_cuda.c). */
size_t cpl_gpu_scratch(cpl_dtype compute, const cpl_work *work);

#endif /* CPL_TENSOR_GPU_H */
