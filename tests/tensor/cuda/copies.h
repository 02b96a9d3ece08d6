/* copies.h - lets the operations of a backend run on tensors in the host's memory, on copies.
 *
 * Room:   tests/tensor. The twins make their tensors with malloc; a GPU has memory of its own. Each
 *         operation puts all of its tensors there, runs, and gets all of them back, so that one
 *         that is not set keeps what the twin wrote. Scratch stays the backend's own. */
#ifndef CPL_TESTS_TENSOR_CUDA_COPIES_H
#define CPL_TESTS_TENSOR_CUDA_COPIES_H

#include "tensor/backend/backend.h"

/* From now on tensors of this backend's operations are the host's. One in a program at a time. */
void cpl_backend_copies(cpl_backend *be);

#endif /* CPL_TESTS_TENSOR_CUDA_COPIES_H */
