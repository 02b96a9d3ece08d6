/* host_ops.h - operations on arrays of the host, for callers whose memory is no backend's.
 *
 * Room:   tensor. The public door (couplet.h) computes the coupling loss on matrices of its caller at
 *         any address. The phases and their order are those of erc.h. */
#ifndef CPL_TENSOR_HOST_OPS_H
#define CPL_TENSOR_HOST_OPS_H

#include "tensor/ops.h"

/* One matrix of every expert, at any address: expert j's begins at at[j - j0] if `at` is given,
 * else (j - j0) * step numbers after `data`; its rows are `stride` numbers apart. Both NULL: there
 * is no such matrix. */
typedef struct cpl_erc_weights {
    const void *data;
    int64_t step;
    const void *const *at;
    int64_t stride;
} cpl_erc_weights;

/* The same for gradients: F32, always added to. */
typedef struct cpl_erc_grads {
    float *data;
    int64_t step;
    float *const *at;
    int64_t stride;
} cpl_erc_grads;

/* The rows [i0,i1) and columns (experts) [j0,j1) of M, which is the whole loss if both ranges are
 * all of 0..n-1. The whole loss is a sum over such parts, and so is its gradient. */
typedef struct cpl_erc_host_job {
    int64_t n, d, D, i0, i1, j0, j1;
    cpl_erc_activation activation;
    cpl_dtype dtype;   /* of the weights: CPL_F32 or CPL_BF16 */
    cpl_dtype compute; /* the type that operands of products are rounded to */
    double alpha;
    double weight; /* of the loss, in the gradients */

    const float *R;                 /* [n,d] */
    const float *delta;             /* [n,d]; NULL: 1 */
    cpl_erc_weights gate, up, down; /* those that the activation needs */

    float *dR;                       /* [n,d] or NULL */
    cpl_erc_grads dgate, dup, ddown; /* none: not requested */
    float *M;                        /* [n,n] or NULL; only entries of this part are set */
    double loss;                     /* of this part; unweighted; already divided by n^2 */

    /* What an expert-parallel caller exchanges between the phases. */
    float *diagonal;     /* [n] M[j,j] */
    int32_t *violations; /* [2,n]: of row i, then of column j: how many entries reach their bound */

    void *scratch; /* CPL_ALIGNMENT-aligned; untouched by others from the first phase to the last */
    size_t scratch_bytes;
} cpl_erc_host_job;

/* Of the CPU; `be` is a CPU backend, whose threads they use. */
typedef struct cpl_host_ops {
    /* Bytes of job->scratch for this shape, these gradients and be->n_threads:
     * O(n D + n d) floats a thread and O(n^2 + n D + n d) together. */
    size_t (*erc_job_bytes)(const cpl_backend *be, const cpl_erc_host_job *job);

    /* As in erc.h, but loss is set. */
    void (*erc_diagonals)(cpl_backend *be, cpl_erc_host_job *job);
    void (*erc_sweep)(cpl_backend *be, cpl_erc_host_job *job);
    void (*erc_add_diagonal)(cpl_backend *be, cpl_erc_host_job *job);
    void (*erc_run_local)(cpl_backend *be, cpl_erc_host_job *job);
} cpl_host_ops;

#endif /* CPL_TENSOR_HOST_OPS_H */
