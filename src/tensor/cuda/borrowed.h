/* borrowed.h - operations that have no kernel: the CPU runs them on copies in the host's memory.
 *
 * Room:   tensor/cuda. Each one is cpl_cuda_<operation>, as those of kernels are. It waits for all work
 *         before it, fetches its inputs, and puts back its output, which it sets. */
#ifndef CPL_TENSOR_CUDA_BORROWED_H
#define CPL_TENSOR_CUDA_BORROWED_H

#include "tensor/cuda/cuda.h"

/* Their names, for the log. */
extern const char cpl_cuda_borrowed[];

/* Notes the largest shapes of operations: the CPU's scratch grows to them when one is borrowed. */
void cpl_cuda_expect(const cpl_backend *be, const cpl_work *work);

#endif /* CPL_TENSOR_CUDA_BORROWED_H */
