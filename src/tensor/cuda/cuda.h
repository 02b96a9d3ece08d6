/* cuda.h - the CUDA backend: its state, and the operations that have kernels.
 *
 * Room:   tensor/cuda, compiled into a separate shared object (module.h) by nvcc and a C compiler.
 *         C and CUDA C only. Includes only headers of tensor/, and of base/ as far as tensor/ needs
 *         them.
 * Files:  one per family of operations, named as in tensor/cpu. The function of an operation of
 *         ops.h is cpl_cuda_<operation>, with the operation's own signature. It returns when its
 *         kernels are enqueued. Functions of borrowed.c run on the CPU.
 * State:  be->own is a cpl_cuda. One device, one stream. */
#ifndef CPL_TENSOR_CUDA_CUDA_H
#define CPL_TENSOR_CUDA_CUDA_H

#ifdef __cplusplus
extern "C" {
#endif

#include "tensor/ops.h"

typedef struct cpl_cuda {
    void *stream;       /* cudaStream_t */
    void *vendor;       /* handles of vendor_nvidia.cu */
    int device;         /* number of the GPU */
    cpl_backend cpu;    /* runs operations without a kernel (borrowed.h) */
    size_t cpu_scratch; /* bytes of scratch of `cpu`, at most */
    char name[160];     /* "cuda:0 NVIDIA H100 80GB HBM3" */
    char libraries[96]; /* "CUDA driver 13.0, cuBLASLt 13.1.0" */
    char sentence[256]; /* message of the first failure; "" before a failure */
} cpl_cuda;

static inline cpl_cuda *cpl_cuda_of(const cpl_backend *be)
{
    return (cpl_cuda *)be->own;
}

/* Records the failure of the latest launch, if it failed. `kernel` is named in the message. */
void cpl_cuda_launched(cpl_backend *be, const char *kernel);

/* Records a failure with a message for the user, unless a failure is recorded already. */
void cpl_cuda_fail(cpl_backend *be, const char *sentence);

/* Declares the bytes of be->scratch that the operations of one file need at most. */
#define CPL_CUDA_SCRATCH(file)                                                                     \
    size_t cpl_cuda_##file##_scratch(const cpl_backend *be, const cpl_work *work)

/* Declares cpl_cuda_<operation>, with the operation's own signature. */
#define CPL_OP(name)     __typeof__(*((const cpl_ops *)0)->name) cpl_cuda_##name;
#define CPL_ERC_OP(name) __typeof__(*((const cpl_erc_ops *)0)->name) cpl_cuda_erc_##name;
#include "tensor/ops.def"

#define CPL_CUDA_FILE(file) CPL_CUDA_SCRATCH(file);
#include "tensor/cuda/kernels.def"

#ifdef __cplusplus
}
#endif

#endif /* CPL_TENSOR_CUDA_CUDA_H */
