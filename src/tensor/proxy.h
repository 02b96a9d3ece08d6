/* proxy.h - operations of the expert-router coupling loss (method.md section 2), part of ops.h.
 *
 * Room:   tensor. R [n,d] router rows; proxies R~ = R * delta; expert j's gate W_g^j [D,d];
 *         M[i,j] = |activation of expert j for R~_i|. */
#ifndef CPL_TENSOR_PROXY_H
#define CPL_TENSOR_PROXY_H

#include "base/rng.h"
#include "tensor/tensor.h"

#ifdef __cplusplus
extern "C" {
#endif

struct cpl_backend;

typedef struct cpl_proxy_ops {
    /* eps [n] = min over j != i of |R_i - R_j| / (2 |R_i|); 0 for a zero row, for n = 1, and
     * exactly 0 where two rows are equal (differences are formed, not products). */
    void (*nearest)(struct cpl_backend *be, cpl_tensor eps, cpl_tensor R);
} cpl_proxy_ops;

#ifdef __cplusplus
}
#endif
#endif /* CPL_TENSOR_PROXY_H */
