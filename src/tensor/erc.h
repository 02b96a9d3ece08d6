/* erc.h - operations of the expert-router coupling loss (docs/method.md 3), part of ops.h.
 *
 * Room:   tensor. model/coupling.c and the public interface (couplet.h) call them in this order:
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

/* Returns whether the activation `a` uses the gate matrix, the up matrix, or a SiLU. Only
 * CPL_ERC_OUTPUT uses the down matrix. */
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
    return a >= CPL_ERC_SILU && a != CPL_ERC_GATE_UP;
}

/* A part of the loss: rows [i0,i1) and columns (experts) [j0,j1) of M. Loss and gradient are sums
 * over the parts. The part with both ranges [0,n) is the whole loss. Tensors of weights and of
 * their gradients hold the experts j0 ... j1-1. Tensors that the activation does not use are
 * none. */
typedef struct cpl_erc_job {
    int64_t i0, i1, j0, j1;
    cpl_erc_activation activation;
    cpl_dtype compute; /* the type that operands of products are rounded to: CPL_F32 or CPL_BF16 */
    double alpha;
    double weight; /* factor of the loss in the gradients */

    cpl_tensor R;              /* [n,d] */
    cpl_tensor delta;          /* [n,d], or a tensor without data: delta is 1 */
    cpl_tensor gate, up, down; /* [j1-j0,D,d], [j1-j0,D,d], [j1-j0,d,D]; F32 or BF16 */

    cpl_tensor dR;                /* [n,d] *adds*, or none if not requested */
    cpl_tensor dgate, dup, ddown; /* F32 *add*, or none if not requested */
    cpl_tensor M;                 /* [n,n] or none; only entries of this part are set */
    cpl_tensor loss; /* [1] F64 *adds* the part's loss, divided by n^2, without `weight` */

    /* Exchanged between the phases by an expert-parallel caller. */
    cpl_tensor diagonal;   /* [n] M[j,j] */
    cpl_tensor violations; /* [2,n] I32: entries of row i, then of column j, that reach their
                              bound */
} cpl_erc_job;

/* Between the first and the last phase of a job the caller may use only operations without scratch:
 * get, put, fill, copy, add. */
typedef struct cpl_erc_ops {
    /* Sets eps [n] to min over j != i of |R_i - R_j| / (2 |R_i|). eps is 0 for a zero row, for n =
     * 1, and exactly 0 if two rows are equal (differences are formed, not products). NaN anywhere
     * in R makes eps of all other rows NaN. */
    void (*nearest)(struct cpl_backend *be, cpl_tensor eps, cpl_tensor R);

    /* Sets delta [n,d] to 1 + eps_i (2 U - 1), U = uniform(key, (draw n + i) d + k) in [0,1). */
    void (*noise)(struct cpl_backend *be, cpl_tensor delta, cpl_tensor eps, cpl_rng_key key,
                  uint64_t draw);

    /* Phase 1 sets diagonal[j0 ... j1-1]. The caller completes diagonal[n] before phase 2. If no
     * gradient is requested, phase 1 computes all of M. */
    void (*diagonals)(struct cpl_backend *be, cpl_erc_job job);

    /* Phase 2 reads diagonal[n]. It sets M, loss and violations. Counts of rows cover only the
     * columns of this part. Counts of columns outside j0..j1-1 are 0. It adds the gradient of every
     * pair i != j. The caller sums violations over the parts before phase 3. */
    void (*sweep)(struct cpl_backend *be, cpl_erc_job job);

    /* Phase 3 reads violations[2,n]. It adds the gradient of the diagonal of experts j0..j1-1, and
     * dR. The weights must be unchanged since phase 1. */
    void (*add_diagonal)(struct cpl_backend *be, cpl_erc_job job);

    /* Runs all phases in one call, for j0 = 0 and j1 = n. The results equal the results of the
     * three phases up to the order of sums. Experts without an active hinge are read only once. */
    void (*run_local)(struct cpl_backend *be, cpl_erc_job job);
} cpl_erc_ops;

#endif /* CPL_TENSOR_ERC_H */
