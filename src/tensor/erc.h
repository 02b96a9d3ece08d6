/* erc.h - operations of the expert-router coupling loss (docs/method.md 3), part of ops.h.
 *
 * Room:   tensor. model/coupling.c and the public door (couplet.h) call them in this order:
 *             nearest, noise, diagonals, sweep, add_diagonal.
 * Names:  R [n,d] router rows; proxies R~ = R * delta; expert j's gate W_g^j and up W_p^j [D,d] and
 *         down W_o^j [d,D]; M[i,j] = |activation of expert j for R~_i|. */
#ifndef CPL_TENSOR_ERC_H
#define CPL_TENSOR_ERC_H

#include <stdbool.h>

#include "base/rng.h"
#include "couplet/activation.h"
#include "tensor/tensor.h"

struct cpl_backend;

/* What an activation needs: gate, up matrix, SiLU. The down matrix is only for the output. */
static inline bool cpl_erc_has_gate(cpl_erc_activation a)
{
    return a != CPL_ERC_UP;
}

static inline bool cpl_erc_has_up(cpl_erc_activation a)
{
    return a == CPL_ERC_UP || a >= CPL_ERC_SWIGLU;
}

static inline bool cpl_erc_has_hidden(cpl_erc_activation a)
{
    return a >= CPL_ERC_SILU;
}

/* The rows [i0,i1) and columns (experts) [j0,j1) of M, which is the whole loss if both ranges are
 * all of 0..n-1. The whole loss is a sum over such parts, and so is its gradient. Tensors of weights
 * and their gradients hold the experts j0 ... j1-1; those that the activation does not need are
 * none. */
typedef struct cpl_erc_job {
    int64_t i0, i1, j0, j1;
    cpl_erc_activation activation;
    cpl_dtype compute; /* the type that operands of products are rounded to: CPL_F32 or CPL_BF16 */
    double alpha;
    double weight; /* of the loss, in the gradients */

    cpl_tensor R;              /* [n,d] */
    cpl_tensor delta;          /* [n,d]; none: 1 */
    cpl_tensor gate, up, down; /* [j1-j0,D,d], [j1-j0,D,d], [j1-j0,d,D]; F32 or BF16 */

    cpl_tensor dR;                /* [n,d] *adds*; none: not requested */
    cpl_tensor dgate, dup, ddown; /* F32 *add*; none: not requested */
    cpl_tensor M;                 /* [n,n] or none; only entries of this part are set */
    cpl_tensor loss; /* [1] F64 *adds* that of this part; unweighted; already divided by n^2 */

    /* What an expert-parallel caller exchanges between the phases. */
    cpl_tensor diagonal;   /* [n] M[j,j] */
    cpl_tensor violations; /* [2,n] I32: of row i, then of column j: how many entries reach their
                              bound */
} cpl_erc_job;

/* From the first phase of a job to its last the backend is given no other operation but those that
 * need no scratch: get, put, fill, copy, add. */
typedef struct cpl_erc_ops {
    /* eps [n] = min over j != i of |R_i - R_j| / (2 |R_i|); 0 for a zero row, for n = 1, and
     * exactly 0 if two rows are equal (differences are formed, not products). NaN anywhere in R
     * makes that of all other rows NaN. */
    void (*nearest)(struct cpl_backend *be, cpl_tensor eps, cpl_tensor R);

    /* delta [n,d] = 1 + eps_i (2 U - 1), U = uniform(key, (draw n + i) d + k) in [0,1). */
    void (*noise)(struct cpl_backend *be, cpl_tensor delta, cpl_tensor eps, cpl_rng_key key,
                  uint64_t draw);

    /* Phase 1 sets diagonal[j0 ... j1-1]; the caller completes the others before phase 2. If no
     * gradient is requested, this pass computes all of M. */
    void (*diagonals)(struct cpl_backend *be, cpl_erc_job job);

    /* Phase 2 sets M, loss and violations (rows 0..n-1 with the part of these columns, columns
     * j0..j1-1, 0 elsewhere) and adds the gradient of every pair but the diagonal. The caller sums
     * violations over the parts before phase 3. Needs diagonal[n]. */
    void (*sweep)(struct cpl_backend *be, cpl_erc_job job);

    /* Phase 3 adds the gradient of the diagonal of experts j0..j1-1, and dR. Needs violations[2,n]
     * and the weights still unchanged. */
    void (*add_diagonal)(struct cpl_backend *be, cpl_erc_job job);

    /* All phases if every expert is local (j0 = 0, j1 = n): the same numbers as the three phases up
     * to the order of sums, without reading the experts a second time for the diagonals where no
     * hinge is active. */
    void (*run_local)(struct cpl_backend *be, cpl_erc_job job);
} cpl_erc_ops;

#endif /* CPL_TENSOR_ERC_H */
