/* host_ops.h - operations of the CPU on plain arrays in host memory.
 *
 * Room:   tensor. Used by the public interface (couplet.h), the inspection of checkpoints and
 *         readers of stored numbers. Arrays are never a backend's memory. Their types differ from
 *         cpl_tensor, so that a compiler rejects a mistaken type. Products: cpl_product_matrices
 *         (product.h).
 * Names:  as in ops.h; arrays are row-major and contiguous.
 * Threads: operations without n_threads use the calling thread only, so that a caller can divide
 *         its work over threads. Scratch belongs to the calling thread and is
 *         CPL_ALIGNMENT-aligned. */
#ifndef CPL_TENSOR_HOST_OPS_H
#define CPL_TENSOR_HOST_OPS_H

#include "base/rng.h"
#include "couplet/activation.h"
#include "tensor/figures.h"
#include "tensor/formats.h"
#include "tensor/tensor.h"

/* A matrix in host memory. */
typedef struct cpl_matrix {
    float *at;
    int64_t rows, cols;
} cpl_matrix;

/* ---- the coupling loss, with the phases and the order of erc.h ---- */

/* One matrix of every expert. Expert j's matrix begins at at[j - j0], or (j - j0) * step numbers
 * after `data` if `at` is NULL. Rows are `stride` numbers apart. `at` and `data` are both NULL if
 * the activation does not use the matrix. */
typedef struct cpl_erc_weights {
    const void *data;
    int64_t step;
    const void *const *at;
    int64_t stride;
} cpl_erc_weights;

/* Gradients of one matrix of every expert, with the layout of the matrix: F32, always added to. */
typedef struct cpl_erc_grads {
    float *data;
    int64_t step;
    float *const *at;
    int64_t stride;
} cpl_erc_grads;

/* A part of the loss: rows [i0,i1) and columns (experts) [j0,j1) of M. Loss and gradient are sums
 * over the parts. The part with both ranges [0,n) is the whole loss. */
typedef struct cpl_erc_host_job {
    int64_t n, d, D, i0, i1, j0, j1;
    cpl_erc_activation activation;
    cpl_dtype dtype;   /* type of the weights: CPL_F32 or CPL_BF16 */
    cpl_dtype compute; /* the type that operands of products are rounded to */
    double alpha;
    double weight; /* factor of the loss in the gradients */

    const float *R;                 /* [n,d] */
    const float *delta;             /* [n,d], or NULL for 1 */
    cpl_erc_weights gate, up, down; /* set if the activation uses the matrix */

    float *dR;                       /* [n,d] or NULL */
    cpl_erc_grads dgate, dup, ddown; /* none if not requested */
    float *M;                        /* [n,n] or NULL; only entries of this part are set */
    double loss;                     /* the part's loss, divided by n^2, without `weight` */

    /* Exchanged between the phases by an expert-parallel caller. */
    float *diagonal;     /* [n] M[j,j] */
    int32_t *violations; /* [2,n]: entries of row i, then of column j, that reach their bound */

    int n_threads; /* must be equal in all phases */
    void *scratch; /* CPL_ALIGNMENT-aligned; must stay unchanged between the phases */
    size_t scratch_bytes;
} cpl_erc_host_job;

/* ---- responses (response.c) ---- */

/* The response of an expert to every router row, summed over pieces of the expert's gate. Meant for
 * matrices that are read from a file in pieces. erc.h computes M for a model in memory. X [n,d] are
 * the router rows or proxies, W [rows,d] some rows of an expert's gate. After all rows of the gate,
 * sqrt(squares[i]) is M[i,j], sqrt(centred[i]) is M[i,j] of the centred rows, and sqrt(*norm) is
 * |W_g^j|_F. */
typedef struct cpl_response_ops {
    /* Returns the bytes of `packed`, the caller's CPL_ALIGNMENT-aligned memory for X. */
    size_t (*packed_bytes)(int64_t n, int64_t d);
    void (*pack)(void *packed, cpl_matrix X);

    /* Returns the best number of rows of W for one call: rows and products stay in the cache. */
    int64_t (*rows)(int64_t d);
    /* Returns the bytes of scratch of one call of `add`. */
    size_t (*scratch_bytes)(void);

    /* Adds to squares [n] the sum over the rows r of W of (X_i . W_r)^2, in double, to centred [n]
     * (NULL if not needed) the sum of (X_i . W_r - mean X . W_r)^2, and to norm the sum of the
     * squares of W. A NaN or an infinity of W makes *norm NaN or infinite. W may have no rows, or
     * more than `rows`. The bits depend on the order of the rows, not on their split over calls.
     * The bits of the squares are those of erc.h, which computes M in F32 from the squares. */
    void (*add)(double *squares, double *centred, double *norm, const void *packed, int64_t n,
                cpl_matrix W, void *scratch);
} cpl_response_ops;

typedef struct cpl_host_ops {
    /* ---- the coupling loss ---- */

    /* Returns the bytes of job->scratch for this shape, these gradients and job->n_threads: O(n D +
     * n d) floats a thread and O(n^2 + n D + n d) together. */
    size_t (*erc_job_bytes)(const cpl_erc_host_job *job);

    /* Runs a phase of erc.h. The host phases set job->loss. */
    void (*erc_diagonals)(cpl_erc_host_job *job);
    void (*erc_sweep)(cpl_erc_host_job *job);
    void (*erc_add_diagonal)(cpl_erc_host_job *job);
    void (*erc_run_local)(cpl_erc_host_job *job);

    /* Computes eps [n] from R [n,d], and delta [n,d] from eps [n], as erc.h does. */
    void (*erc_nearest)(float *eps, cpl_matrix R, int n_threads);
    void (*erc_noise)(cpl_matrix delta, const float *eps, cpl_rng_key key, uint64_t draw,
                      int n_threads);

    /* ---- rows and sums; as in ops.h ---- */

    /* Returns the sum of x y, [count] each. */
    double (*dot)(const float *x, const float *y, int64_t count, int n_threads);
    /* Subtracts the mean of the rows from every row of x. */
    void (*centre)(cpl_matrix x);
    /* Sets out [x.rows] to the Euclidean norms of the rows of x. */
    void (*row_norms)(float *out, cpl_matrix x);
    /* Replaces x by unit_rows of x, and the gradient dx of the result by the gradient of x. */
    void (*unit_rows)(cpl_matrix x, const float *mean, double scale);
    void (*unit_rows_backward)(cpl_matrix dx, cpl_matrix x, double scale);

    /* ---- figures and largest singular values; as in ops.h ---- */

    /* Returns the bytes of scratch of coupling_figures. */
    size_t (*figures_bytes)(int64_t n, int64_t d);
    /* Sets *out from M [n,n], eps [n], the rows [n,d] that M was computed with, delta [n,d] (NULL
     * for 1), gate_norm [n] and gate_spectral [n] (NULL if not known), with alpha 1. */
    void (*coupling_figures)(cpl_coupling_figures *out, const float *M, const float *eps,
                             cpl_matrix rows, const float *delta, const float *gate_norm,
                             const float *gate_spectral, int64_t top_k, void *scratch);

    /* Returns the bytes of scratch of spectral_norm for a matrix [D,d]. */
    size_t (*spectral_bytes)(int64_t D, int64_t d);
    float (*spectral_norm)(cpl_matrix W, void *scratch);

    /* ---- stored numbers (decode.c) ---- */

    /* Sets out [rows,cols] to the numbers that `shape` selects from `bytes`, which are stored in
     * `format`. `bytes` may have any alignment. `format` must not be OTHER. */
    void (*decode)(float *out, cpl_format format, const void *bytes, cpl_decode_shape shape);
    /* Multiplies x [rows,cols] by its factors. */
    void (*scale)(float *x, const float *factors, cpl_scale_shape shape);

    cpl_response_ops response;
} cpl_host_ops;

#endif /* CPL_TENSOR_HOST_OPS_H */
