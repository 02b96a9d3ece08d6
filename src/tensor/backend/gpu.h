/* gpu.h - GPUs that are not here: what couplet plan has to know of one.
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

/* All of them, and their names in the same order, with a bar before each: "|a100-40gb|a100..." */
extern const cpl_gpu cpl_gpus[];
extern const char cpl_gpu_names[];

/* What a GPU's memory holds before the first tensor: the context of CUDA with the kernels (512 MiB, an
 * assumption) and the workspace of cuBLASLt (32 MiB). */
static const size_t cpl_gpu_device_bytes = (size_t)544 << 20;

/* A backend that answers as one on this GPU would: its name, the room in its memory, scratch_bytes. It has no
 * operation. Freed by nothing. */
void cpl_backend_described(cpl_backend *be, const cpl_gpu *gpu, cpl_dtype compute);

/* Bytes of scratch that tensor/cuda needs for such shapes, within a few per cent
 * (tests/tensor/cuda/test_cuda.c). */
size_t cpl_gpu_scratch(cpl_dtype compute, const cpl_work *work);

#endif /* CPL_TENSOR_GPU_H */
