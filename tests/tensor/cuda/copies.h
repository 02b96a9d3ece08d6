/* copies.h - a backend for tensors in the host's memory, whose operations run on another backend, on
 * copies.
 *
 * Room:   tests/tensor. The twins make their tensors with malloc; a GPU has memory of its own. Each
 *         operation puts all of its tensors there, runs, and gets all of them back, so that one
 *         that is not set keeps what the twin wrote. */
#ifndef CPL_TESTS_TENSOR_CUDA_COPIES_H
#define CPL_TESTS_TENSOR_CUDA_COPIES_H

#include "tensor/backend/backend.h"

/* Makes *be, which takes *inner over; cpl_backend_free frees both. */
void cpl_backend_copies(cpl_backend *be, const cpl_backend *inner);

#endif /* CPL_TESTS_TENSOR_CUDA_COPIES_H */
