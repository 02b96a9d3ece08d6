/* copies.h - lets the operations of a backend run on tensors in the host's memory, on copies.
 *
 * Room:   tests/tensor. The twins make their tensors with malloc. A GPU has memory of its own. Each
 *         operation copies its tensors there, runs, and copies them back. A tensor that
 *         the operation does not set keeps the twin's numbers. Scratch stays the backend's own. */
#ifndef CPL_TESTS_TENSOR_CUDA_COPIES_H
#define CPL_TESTS_TENSOR_CUDA_COPIES_H

#include "tensor/backend/backend.h"

/* Makes the backend's operations take tensors of the host. A program calls it for one backend. */
void cpl_backend_copies(cpl_backend *be);

#endif /* CPL_TESTS_TENSOR_CUDA_COPIES_H */
