/* couplet.h - the expert-router coupling loss (ERC) for any trainer, on memory that it owns.
 *
 * What:     for one Mixture-of-Experts layer with n experts, router rows R [n,d] and expert gates
 *           W_g^j [D,d] (rows as Hugging Face stores them),
 *
 *               R~_i   = R_i * delta_i,   delta_i ~ U(1 - eps_i, 1 + eps_i)^d
 *               eps_i  = min over j != i of |R_i - R_j| / (2 |R_i|)
 *               M[i,j] = |R~_i W_g^j|
 *               L      = 1/n^2 sum_i sum_{j != i}   max(M[i,j] - alpha M[i,i], 0)
 *                                                 + max(M[j,i] - alpha M[i,i], 0)
 *
 *           and the gradient of `weight` times L. Source: "Coupling Experts and Routers in
 *           Mixture-of-Experts via an Auxiliary Loss", section 3 (loss: equation 3; noise bound:
 *           section 3.2). Call it once per layer and optimizer step, in training only; routing
 *           keeps using the clean R. In the gradient eps and delta are constants, R is not; at an
 *           exact tie a hinge passes its gradient; where M[i,j] is 0 the norm has none.
 * Cost:     three products of [n,d] by [n D,d] forward and backward together, one without
 *           gradients; rows without a gradient are left out of the backward products.
 * Memory:   nothing is kept between calls and nothing of the caller's is written but what is named
 *           an output below. Scratch is O(n D + n d) floats a thread and O(n^2 + n d) together.
 * Threads:  no shared state; any number of threads may call at once, each with a cpl_erc of its
 *           own and a stack of 64 KiB or more. The same call with the same n_threads gives the same
 *           bits.
 * fork():   a child of the process that loaded the library computes with one thread, whatever
 *           n_threads says: the threads of its parent are not there, and GNU's OpenMP would wait for
 *           them. The phases below are all called in one process. A program that the child executes
 *           starts anew.
 * Errors:   CPL_ERR_INPUT for an argument that is not acceptable, CPL_ERR_MEMORY; cpl_last_error()
 *           is the sentence. Nothing has been written then. Numbers of the router or the experts
 *           that are infinite or NaN are no error: the loss says so by being infinite or NaN, and
 *           NaN in the router makes every expert's gradient NaN.
 * Order:    all arrays are row-major. "Numbers" counts elements, not bytes.
 *
 * Use:      cpl_erc erc;
 *           cpl_erc_init(&erc);
 *           erc.n_experts = n; erc.d_model = d; erc.d_expert = D;
 *           erc.router = R; erc.gate.at = gates; erc.gate.stride = d;
 *           erc.router_grad = dR; erc.gate_grad.at = dgates; erc.gate_grad.stride = d;
 *           erc.seed = seed; erc.step = step; erc.layer = layer;
 *           if (cpl_erc_run(&erc) != CPL_OK) puts(cpl_last_error());
 *           ... erc.loss ...
 *           examples/erc_in_your_trainer.c is a whole program. */
#ifndef COUPLET_H
#define COUPLET_H

#include <stddef.h>
#include <stdint.h>

#include "couplet/activation.h"
#include "couplet/status.h"

#ifdef __cplusplus
extern "C" {
#endif

/* The library's version, as in "0.1.0". */
CPL_API const char *cpl_version(void);

typedef enum cpl_erc_dtype {
    CPL_ERC_F32,  /* IEEE 754 binary32 */
    CPL_ERC_BF16, /* its upper sixteen bits */
} cpl_erc_dtype;

typedef enum cpl_erc_noise_kind {
    CPL_ERC_NOISE_DRAWN, /* delta from (seed, step, layer, draw), within 1 +- eps: the paper's */
    CPL_ERC_NOISE_GIVEN, /* delta as the caller has it */
    CPL_ERC_NOISE_NONE,  /* delta = 1 */
} cpl_erc_noise_kind;

/* One matrix of every local expert: at[e] is the first number of that of expert first_expert + e,
 * its rows are `stride` numbers apart (at least their length), so that a gate within a fused
 * [2 D,d] tensor fits as it lies. at NULL: there is no such matrix. Aligned as its type. */
typedef struct cpl_erc_matrices {
    const void *const *at;
    int64_t stride;
} cpl_erc_matrices;

/* Gradients of such matrices, F32, of the same shape: they are *added* to. at NULL: not wanted. */
typedef struct cpl_erc_gradients {
    float *const *at;
    int64_t stride;
} cpl_erc_gradients;

/* One evaluation of the loss: what goes in, what comes out. cpl_erc_init sets every field; nothing
 * is owned by it. */
typedef struct cpl_erc {
    /* ---- shapes; to be set ---- */
    int64_t n_experts; /* n, 1 ... 65535 */
    int64_t d_model;   /* d, 1 ... 2^24 */
    int64_t d_expert;  /* D, 1 ... 2^24 */

    /* ---- which part of M; by default all of it ---- */
    int64_t first_expert, end_expert; /* columns [first, end): the experts whose weights are here */
    int64_t first_row, end_row; /* rows: may be split over replicas that hold the same experts;
                                   losses and gradients of the parts are summed */

    /* ---- inputs ---- */
    const float *router;             /* R [n,d], rows d apart; all n rows, whatever the part */
    cpl_erc_dtype dtype;             /* of the matrices; default CPL_ERC_F32 */
    cpl_erc_matrices gate, up, down; /* W_g, W_p: D rows of d; W_o: d rows of D */

    /* ---- the loss ---- */
    cpl_erc_activation activation; /* default CPL_ERC_GATE */
    double alpha;                  /* >= 0, default 1; the paper's range is [0,1] */
    double weight;                 /* of the loss in the gradients, default 1. With L layers and
                                      their mean as the loss: the coefficient divided by L */

    /* ---- noise ---- */
    cpl_erc_noise_kind noise;
    uint64_t seed, step; /* step below 2^40 */
    uint32_t layer;      /* below 2^16 */
    uint32_t draw;       /* below 2^16; several draws of one step: one call each, weight / draws */
    const float *delta;  /* [n,d], finite; with CPL_ERC_NOISE_GIVEN */

    /* ---- how ---- */
    cpl_erc_dtype compute; /* what operands of products are rounded to, default CPL_ERC_F32; sums,
                              norms, noise and hinges are F32 or wider always */
    int n_threads;         /* 0, the default: one per processor; 1 in a child of fork() */

    /* ---- outputs, each optional ---- */
    float *router_grad; /* dR [n,d] *adds* */
    cpl_erc_gradients gate_grad, up_grad,
        down_grad; /* *add*; those of matrices not used: nothing */
    float *M;      /* [n,n]: entries of this part are *set* */
    float *eps;    /* [n]: is *set* */

    /* ---- what the phases exchange; cpl_erc_run does not need them ---- */
    float *diagonal;     /* [n] M[j,j] */
    int32_t *violations; /* [2,n] how many entries of row i, of column j, reach their bound */

    /* ---- scratch: NULL in cpl_erc_run: taken and given back within the call ---- */
    void *scratch;        /* any alignment */
    size_t scratch_bytes; /* at least what cpl_erc_scratch says */

    /* ---- results ---- */
    double loss;               /* L, or this part's share of the sum; before `weight` */
    int64_t row_violations;    /* pairs i != j of this part with M[i,j] >= alpha M[i,i] */
    int64_t column_violations; /* ... with M[i,j] >= alpha M[j,j] */
    int64_t eps_above_1;       /* rows whose nearest neighbour is further than twice their norm */
    int64_t zero_rows;         /* rows of R that are zero: eps 0, M 0, no gradient */

    int phase; /* private: which phase comes next */
} cpl_erc;

/* Sets every field to its default: zero or NULL, alpha and weight 1, all rows and experts. */
CPL_API void cpl_erc_init(cpl_erc *erc);

/* Checks all that is in `erc` but the scratch, and sets *bytes to what the scratch must have. */
CPL_API CPL_NODISCARD cpl_status cpl_erc_scratch(const cpl_erc *erc, size_t *bytes);

/* ---- every expert is local: one call ---- */

/* Loss, outputs and gradients; end_expert - first_expert must be n (rows may be split). diagonal
 * and violations are filled where given. */
CPL_API CPL_NODISCARD cpl_status cpl_erc_run(cpl_erc *erc);

/* ---- experts are spread over processes: three calls, and between them the caller's exchange ----
 *
 * Each process sets first_expert and end_expert, gives diagonal, violations and scratch, and calls
 * in this order, with the same cpl_erc and nothing changed in between:
 *
 *     cpl_erc_diagonals(&erc);    then every process gets the others' diagonal[] (all-gather of
 *                                 n floats in all)
 *     cpl_erc_sweep(&erc);        then violations[2 n] and loss are summed over the processes
 *     cpl_erc_finish(&erc);       then router_grad is summed over the processes (it holds the
 *                                 gradient of this process's experts); gate_grad etc. are complete
 *
 * Where no gradient is wanted finish does nothing and may be left out. */

/* Phase 1 sets eps and diagonal[first_expert ... end_expert-1]. */
CPL_API CPL_NODISCARD cpl_status cpl_erc_diagonals(cpl_erc *erc);

/* Phase 2 reads diagonal[n]; sets M, loss, the four counts and violations (0 where this process
 * knows nothing); adds the gradients of every pair i != j to the matrices' gradients. */
CPL_API CPL_NODISCARD cpl_status cpl_erc_sweep(cpl_erc *erc);

/* Phase 3 reads violations[2 n]; adds the gradient of the diagonal, and router_grad. */
CPL_API CPL_NODISCARD cpl_status cpl_erc_finish(cpl_erc *erc);

#ifdef __cplusplus
}
#endif
#endif /* COUPLET_H */
