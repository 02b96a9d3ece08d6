/* host_ops.h - operations of the CPU on arrays in the host's memory, which are no tensors of a backend.
 *
 * Room:   tensor. For the public door (couplet.h), the inspection of checkpoints, and whoever reads
 *         stored numbers. Their memory is never a backend's, and their types are not tensors, so that
 *         a compiler refuses either in place of the other. Products: cpl_product_matrices (product.h).
 * Names:  as in ops.h; arrays are row-major and contiguous.
 * Threads: one, so that the caller's threads each take some of the work, where no n_threads is
 *         given. Scratch is the calling thread's, CPL_ALIGNMENT-aligned. */
#ifndef CPL_TENSOR_HOST_OPS_H
#define CPL_TENSOR_HOST_OPS_H

#include "base/rng.h"
#include "couplet/activation.h"
#include "tensor/figures.h"
#include "tensor/formats.h"
#include "tensor/tensor.h"

/* A matrix in the host's memory. */
typedef struct cpl_matrix {
    float *at;
    int64_t rows, cols;
} cpl_matrix;

/* ---- the coupling loss: the phases and their order are those of erc.h ---- */

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

    int n_threads; /* the same from the first phase to the last */
    void *scratch; /* CPL_ALIGNMENT-aligned; untouched by others from the first phase to the last */
    size_t scratch_bytes;
} cpl_erc_host_job;

/* ---- responses (response.c) ---- */

/* The response of an expert to every router row, one row of its gate after another.
 * For matrices that are read from a file in pieces; for a model in memory, erc.h computes M. X
 * [n,d] are the router rows or proxies, W [rows,d] some rows of an expert's gate. With all of its
 * rows added, sqrt(squares[i]) is M[i,j], sqrt(centred[i]) that of the centred rows, and sqrt(*norm)
 * is |W_g^j|_F. */
typedef struct cpl_response_ops {
    /* Bytes of X packed for the products below; CPL_ALIGNMENT-aligned memory of the caller. */
    size_t (*packed_bytes)(int64_t n, int64_t d);
    void (*pack)(void *packed, cpl_matrix X);

    /* Rows of W that one call takes best: they and the products stay in the cache. */
    int64_t (*rows)(int64_t d);
    /* Scratch of one call of `add`. */
    size_t (*scratch_bytes)(void);

    /* squares [n] *add* the sum over the rows r of W of (X_i . W_r)^2, in double; centred [n] (NULL:
     * not computed) the same of (X_i . W_r - mean X . W_r)^2; norm *adds* the sum of the squares of
     * W. A NaN or an infinity of W reaches *norm. W may have no rows, or more than `rows`. Rows in
     * the same order give the same bits however they are split over calls, and squares with the same
     * bits as those from which erc.h computes M in F32. */
    void (*add)(double *squares, double *centred, double *norm, const void *packed, int64_t n,
                cpl_matrix W, void *scratch);
} cpl_response_ops;

typedef struct cpl_host_ops {
    /* ---- the coupling loss ---- */

    /* Bytes of job->scratch for this shape, these gradients and job->n_threads:
     * O(n D + n d) floats a thread and O(n^2 + n D + n d) together. */
    size_t (*erc_job_bytes)(const cpl_erc_host_job *job);

    /* As in erc.h, but loss is set. */
    void (*erc_diagonals)(cpl_erc_host_job *job);
    void (*erc_sweep)(cpl_erc_host_job *job);
    void (*erc_add_diagonal)(cpl_erc_host_job *job);
    void (*erc_run_local)(cpl_erc_host_job *job);

    /* As in erc.h: eps [n] of R [n,d]; delta [n,d] of eps. */
    void (*erc_nearest)(float *eps, cpl_matrix R, int n_threads);
    void (*erc_noise)(cpl_matrix delta, const float *eps, cpl_rng_key key, uint64_t draw,
                      int n_threads);

    /* ---- rows and sums; as in ops.h ---- */

    /* The sum of x y, [count] each. */
    double (*dot)(const float *x, const float *y, int64_t count, int n_threads);
    /* x less the mean of its rows. */
    void (*centre)(cpl_matrix x);
    /* out [x.rows] */
    void (*row_norms)(float *out, cpl_matrix x);

    /* ---- figures and largest singular values; as in ops.h ---- */

    /* Scratch of coupling_figures. */
    size_t (*figures_bytes)(int64_t n, int64_t d);
    /* Of M [n,n], eps [n], the rows [n,d] that M is made of, delta [n,d] (NULL: 1), gate_norm [n] and
     * gate_spectral [n] (NULL: not known), with alpha 1. */
    void (*coupling_figures)(cpl_coupling_figures *out, const float *M, const float *eps,
                             cpl_matrix rows, const float *delta, const float *gate_norm,
                             const float *gate_spectral, int64_t top_k, void *scratch);

    /* Scratch of spectral_norm of [D,d]. */
    size_t (*spectral_bytes)(int64_t D, int64_t d);
    float (*spectral_norm)(cpl_matrix W, void *scratch);

    /* ---- stored numbers (decode.c) ---- */

    /* out [rows,cols] = the numbers of `bytes`, stored in `format`, that `shape` picks. `bytes`
     * need not be aligned for its type; `format` is not OTHER. */
    void (*decode)(float *out, cpl_format format, const void *bytes, cpl_decode_shape shape);
    /* x [rows,cols] times its factors. */
    void (*scale)(float *x, const float *factors, cpl_scale_shape shape);

    cpl_response_ops response;
} cpl_host_ops;

#endif /* CPL_TENSOR_HOST_OPS_H */
