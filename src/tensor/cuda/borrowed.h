/* borrowed.h - operations that have no kernel: the CPU runs them on copies in the host's memory.
 *
 * Room:   tensor/cuda. Each one waits for all work before it, fetches all of its tensors, and puts them
 *         back. */
#ifndef CPL_TENSOR_CUDA_BORROWED_H
#define CPL_TENSOR_CUDA_BORROWED_H

#include "tensor/cuda/cuda.h"

/* Every operation of the table but those of memory. */
void cpl_cuda_borrow_all(cpl_ops *ops);

/* Notes the largest shapes of operations: the CPU's scratch grows to them when one is borrowed. */
void cpl_cuda_expect(const cpl_backend *be, const cpl_work *work);

/* Room for a list of copies; false: there is no memory. */
bool cpl_cuda_begin_borrowing(cpl_cuda *c);

/* Frees the copies and the CPU's scratch. */
void cpl_cuda_end_borrowing(cpl_cuda *c);

#endif /* CPL_TENSOR_CUDA_BORROWED_H */
