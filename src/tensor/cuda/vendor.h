/* vendor.h - the interface to the libraries of a GPU's vendor: memory, copies, products.
 *
 * Room:   tensor/cuda. vendor_nvidia.cu calls CUDA and cuBLASLt. tests/tensor/cuda/vendor_host.cpp
 *         replaces them on the host, without a queue. Work is enqueued on c->stream unless a
 *         comment says that the function waits. Functions that return a string return NULL on
 *         success, otherwise a message that is valid until the next call. */
#ifndef CPL_TENSOR_CUDA_VENDOR_H
#define CPL_TENSOR_CUDA_VENDOR_H

#include "tensor/cuda/cuda.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Opens GPU `device` (-1: the first) and fills name, libraries, device, stream and vendor. */
const char *cpl_vendor_open(cpl_cuda *c, int device);
void cpl_vendor_close(cpl_cuda *c);

/* Allocates memory of the device, 256-byte aligned. Returns NULL if it is not available. */
void *cpl_vendor_take(cpl_cuda *c, size_t bytes);
/* Frees `memory`, after all earlier work. Waits. */
void cpl_vendor_give(cpl_cuda *c, void *memory);

/* Sets the free bytes and all bytes of the device's memory. */
const char *cpl_vendor_room(cpl_cuda *c, size_t *there, size_t *all);

/* cpl_vendor_put copies to the device. The caller may change `from` after the call. cpl_vendor_get
 * copies to the host and waits. */
const char *cpl_vendor_put(cpl_cuda *c, void *to, const void *from, size_t bytes);
const char *cpl_vendor_get(cpl_cuda *c, void *to, const void *from, size_t bytes);

/* Waits for all work. Returns the first failure. */
const char *cpl_vendor_wait(cpl_cuda *c);

/* Returns the failure of the latest kernel launch. */
const char *cpl_vendor_launched(cpl_cuda *c);

/* Sets c [m,n] to beta c + op(a) . op(b), beta 0 or 1. Both operands are F32 (no TF32) or both
 * BF16. c is F32, or BF16 with BF16 operands. Sums are F32, in an order fixed by the shape. k may
 * be 0. */
const char *cpl_vendor_product(cpl_cuda *c, cpl_tensor to, cpl_trans ta, cpl_tensor a, cpl_trans tb,
                               cpl_tensor b, float beta);

/* Returns the description of choice number `index`, from 0, of an algorithm, for the metadata of a
 * run: the shape of the products and the algorithm. Equal choices on equal versions of GPU and
 * libraries give equal bits. Returns NULL past the last choice. The text is valid until the next
 * call. */
const char *cpl_vendor_choice(cpl_cuda *c, int index);

#ifdef __cplusplus
}
#endif

#endif /* CPL_TENSOR_CUDA_VENDOR_H */
