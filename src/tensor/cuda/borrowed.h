/* borrowed.h - operations without a kernel. The CPU runs them on copies in host memory.
 *
 * Room:   tensor/cuda. Each operation is named cpl_cuda_<operation>, like operations with kernels.
 *         It waits for all earlier work, fetches its inputs, and copies its output, which is *set*,
 *         to the device. */
#ifndef CPL_TENSOR_CUDA_BORROWED_H
#define CPL_TENSOR_CUDA_BORROWED_H

#include "tensor/cuda/cuda.h"

/* The names of the borrowed operations, for the log. */
extern const char cpl_cuda_borrowed[];

/* Records the largest shapes of operations, for the CPU's scratch, which grows at the first use. */
void cpl_cuda_expect(const cpl_backend *be, const cpl_work *work);

#endif /* CPL_TENSOR_CUDA_BORROWED_H */
