/* latent.h - the rows that latent experts read, on arrays of the host (docs/method.md 3.14).
 *
 * Room:  model. Used by the public interface (latent.c) and by inspect. coupling.c does the same on
 *        tensors of a backend. */
#ifndef CPL_MODEL_LATENT_H
#define CPL_MODEL_LATENT_H

#include "base/status.h"
#include "tensor/host_ops.h"

/* Sets V [n,l] = X W_l^T for rows X [n,d] and W_l [l,d], in F32. With g [l], which may be NULL, each
 * row v becomes g v / sqrt(mean(v^2) + eps). Errors: those of cpl_product. */
CPL_NODISCARD cpl_status cpl_latent_project(cpl_matrix V, cpl_matrix X, cpl_matrix W,
                                            const float *g, double eps, int n_threads);

#endif /* CPL_MODEL_LATENT_H */
