/* vendor.h - the only door to the libraries of a GPU's vendor: memory, copies, products.
 *
 * Room:   tensor/cuda. vendor_nvidia.cu calls CUDA and cuBLASLt; tests/tensor/cuda/vendor_host.cpp does the
 *         same on the host, at once. Work is enqueued on c->stream unless it is said that it waits.
 *         Functions that return a sentence return NULL where nothing failed; the sentence lives until
 *         the next call. */
#ifndef CPL_TENSOR_CUDA_VENDOR_H
#define CPL_TENSOR_CUDA_VENDOR_H

#include "tensor/cuda/cuda.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Opens GPU `device` (-1: the first) and fills name, libraries, device, stream and vendor. */
const char *cpl_vendor_open(cpl_cuda *c, int device);
void cpl_vendor_close(cpl_cuda *c);

/* Memory of the device, 256-byte aligned; NULL: there is none. */
void *cpl_vendor_take(cpl_cuda *c, size_t bytes);
/* Waits for the work before. */
void cpl_vendor_give(cpl_cuda *c, void *memory);

/* Bytes of the device that can still be taken, and that it has in all. */
const char *cpl_vendor_room(cpl_cuda *c, size_t *there, size_t *all);

/* To the device; `from`, of the host, may be used again at once. To the host: waits. */
const char *cpl_vendor_put(cpl_cuda *c, void *to, const void *from, size_t bytes);
const char *cpl_vendor_get(cpl_cuda *c, void *to, const void *from, size_t bytes);

/* Waits for all work; the first failure of any of it. */
const char *cpl_vendor_wait(cpl_cuda *c);

/* The failure of the kernel launch just made. */
const char *cpl_vendor_launched(cpl_cuda *c);

/* c [m,n] = beta c + op(a) . op(b), beta 0 or 1. Both operands F32 (no TF32) or both BF16, which c may be
 * too, else F32; sums in F32, in an order that is fixed for a shape. k may be 0. */
const char *cpl_vendor_product(cpl_cuda *c, cpl_tensor to, cpl_trans ta, cpl_tensor a, cpl_trans tb,
                               cpl_tensor b, float beta);

/* The choice `index` from 0 of an algorithm, for the metadata of a run: the shape of its products, and
 * the algorithm, by which the same versions of GPU and libraries give the same bits; NULL: there are no
 * more. The text lives until the next call. */
const char *cpl_vendor_choice(cpl_cuda *c, int index);

#ifdef __cplusplus
}
#endif

#endif /* CPL_TENSOR_CUDA_VENDOR_H */
