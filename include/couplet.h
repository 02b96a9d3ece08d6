/* couplet.h - the expert-router coupling loss (ERC) for any trainer, on the trainer's own memory.
 *
 * Loss:     for one Mixture-of-Experts layer with n experts, router rows R [n,d] and expert gates
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
 *           keeps using the clean R. The gradient treats eps and delta as constants. At an
 *           exact tie a hinge passes its gradient. Where M[i,j] is 0 the norm's gradient is 0.
 * Cost:     three products of [n,d] by [n D,d] for forward and backward together, one product
 *           without gradients. Backward products contain only the rows that have a gradient.
 * Memory:   a call keeps no memory and writes only the outputs named below. Scratch is O(n D + n d)
 *           floats per thread and O(n^2 + n d) floats shared by the threads.
 * Threads:  functions share no state. Any number of threads may call at once, each with its own
 *           cpl_erc and a stack of 64 KiB or more. The same call with the same n_threads gives the
 *           same bits.
 * fork():   a child of the process that loaded the library computes with one thread, whatever
 *           n_threads says, because GNU's OpenMP would wait for the threads of the parent. All
 *           phases below must be called in one process. A program that the child executes may use
 *           threads again.
 * Errors:   CPL_ERR_INPUT for an argument that is not acceptable, CPL_ERR_MEMORY if scratch cannot
 *           be allocated. cpl_last_error() returns the message. No output has been written then.
 *           Infinite or NaN weights are accepted. The loss is infinite or NaN then. NaN in the
 *           router makes every expert's gradient NaN.
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

/* Returns the library's version, for example "0.1.0". */
CPL_API const char *cpl_version(void);

typedef enum cpl_erc_dtype {
    CPL_ERC_F32,  /* IEEE 754 binary32 */
    CPL_ERC_BF16, /* bfloat16, the upper 16 bits of a binary32 */
} cpl_erc_dtype;

typedef enum cpl_erc_noise_kind {
    CPL_ERC_NOISE_DRAWN, /* as in the paper: delta from (seed, step, layer, draw), in 1 +- eps */
    CPL_ERC_NOISE_GIVEN, /* delta from the caller, in `delta` */
    CPL_ERC_NOISE_NONE,  /* delta = 1 */
} cpl_erc_noise_kind;

/* One matrix of every local expert. at[e] points to the first number of the matrix of expert
 * first_expert + e and is aligned for its type. Rows are `stride` numbers apart, at least the
 * length of a row: a gate inside a fused [2 D,d] tensor can be passed without a copy. `at` is NULL
 * if the activation does not use the matrix. */
typedef struct cpl_erc_matrices {
    const void *const *at;
    int64_t stride;
} cpl_erc_matrices;

/* Gradients of one matrix of every local expert: F32, same shape and layout rules. The call *adds*
 * to them. `at` is NULL if the gradients are not wanted. */
typedef struct cpl_erc_gradients {
    float *const *at;
    int64_t stride;
} cpl_erc_gradients;

/* Inputs and outputs of one evaluation of the loss. cpl_erc_init sets every field. The struct owns
 * no memory. */
typedef struct cpl_erc {
    /* ---- shapes; to be set ---- */
    int64_t n_experts; /* n, 1 ... 65535 */
    int64_t d_model;   /* d, 1 ... 2^24 */
    int64_t d_expert;  /* D, 1 ... 2^24 */

    /* ---- the part of M that is computed; default all of M ---- */
    int64_t first_expert, end_expert; /* columns [first, end): the local experts */
    /* Rows [first, end). They may be split over replicas that hold equal experts. The caller sums
     * losses and gradients of the parts. */
    int64_t first_row, end_row;

    /* ---- inputs ---- */
    const float *router;             /* R [n,d], rows d apart; always all n rows */
    cpl_erc_dtype dtype;             /* type of gate, up and down; default CPL_ERC_F32 */
    cpl_erc_matrices gate, up, down; /* W_g, W_p: D rows of d; W_o: d rows of D */

    /* ---- the loss ---- */
    cpl_erc_activation activation; /* default CPL_ERC_GATE */
    double alpha;                  /* >= 0, default 1. Give 0.1 to 1: at 0 the loss is a sum of
                                      off-diagonal norms, which R = 0 minimises */
    double weight;                 /* factor of the loss in the gradients, default 1. If the loss
                                      is a mean over L layers: its coefficient / L */

    /* ---- noise ---- */
    cpl_erc_noise_kind noise;
    uint64_t seed, step; /* step below 2^40 */
    uint32_t layer;      /* below 2^16 */
    uint32_t draw;       /* below 2^16; call once for each draw, with weight / draws */
    const float *delta;  /* [n,d], finite; read with CPL_ERC_NOISE_GIVEN only */

    /* ---- computation ---- */
    cpl_erc_dtype compute; /* type that operands of products are rounded to, default CPL_ERC_F32;
                              sums, norms, noise and hinges are always F32 or wider */
    int n_threads;         /* default 0: one per processor; a child of fork() uses 1 */

    /* ---- outputs; NULL if not wanted ---- */
    float *router_grad; /* dR [n,d]; the call *adds* to it */
    /* The call *adds* to the gradients of the matrices that the activation uses. */
    cpl_erc_gradients gate_grad, up_grad, down_grad;
    float *M;   /* [n,n]; the call *sets* the entries of this part */
    float *eps; /* [n]; the call *sets* all n */

    /* ---- exchanged between the three phases; optional in cpl_erc_run ---- */
    float *diagonal;     /* [n]: M[j,j] */
    int32_t *violations; /* [2,n]: entries of row i, then of column j, that reach their bound */

    /* ---- scratch; if NULL, cpl_erc_run allocates and frees it ---- */
    void *scratch;        /* any alignment */
    size_t scratch_bytes; /* at least the number that cpl_erc_scratch sets */

    /* ---- results ---- */
    double loss;               /* L, or this part's share of the sum; without `weight` */
    int64_t row_violations;    /* pairs i != j of this part with M[i,j] >= alpha M[i,i] */
    int64_t column_violations; /* pairs i != j of this part with M[i,j] >= alpha M[j,j] */
    int64_t eps_above_1;       /* rows whose nearest row is further than twice their norm */
    int64_t zero_rows;         /* rows of R that are zero: their eps, M and gradient are 0 */

    int phase; /* private: the phase that comes next */
} cpl_erc;

/* Sets every field to its default: zero or NULL, alpha and weight 1, all rows and experts. */
CPL_API void cpl_erc_init(cpl_erc *erc);

/* Checks every field of `erc` except the scratch, and sets *bytes to the size of scratch that the
 * phases need. Returns CPL_ERR_INPUT for a field that is not acceptable. */
CPL_API CPL_NODISCARD cpl_status cpl_erc_scratch(const cpl_erc *erc, size_t *bytes);

/* ---- every expert is local: one call ---- */

/* Computes the loss, the outputs and the gradients. end_expert - first_expert must be n. Rows may
 * be split. Also sets diagonal and violations if they are not NULL. */
CPL_API CPL_NODISCARD cpl_status cpl_erc_run(cpl_erc *erc);

/* ---- experts are spread over processes: three calls, each followed by an exchange ----
 *
 * Each process sets first_expert, end_expert, diagonal, violations and scratch. It then makes these
 * calls in this order, with the same cpl_erc, whose fields must not change in between:
 *
 *     cpl_erc_diagonals(&erc);    then the processes exchange their parts of diagonal[] (all-gather
 *                                 of n floats in all)
 *     cpl_erc_sweep(&erc);        then the caller sums violations[2 n] and loss over the processes
 *     cpl_erc_finish(&erc);       then the caller sums router_grad over the processes: each has the
 *                                 gradient through its own experts. gate_grad, up_grad and
 *                                 down_grad are complete
 *
 * If no gradient is wanted, cpl_erc_finish does nothing and may be omitted. */

/* Phase 1 sets eps and diagonal[first_expert ... end_expert-1]. */
CPL_API CPL_NODISCARD cpl_status cpl_erc_diagonals(cpl_erc *erc);

/* Phase 2 reads diagonal[n]. It sets M, loss, the four counts and violations, which are 0 for the
 * columns of other processes. It adds the gradients of every pair i != j to the gradients of the
 * matrices. */
CPL_API CPL_NODISCARD cpl_status cpl_erc_sweep(cpl_erc *erc);

/* Phase 3 reads violations[2 n]. It adds the gradient of the diagonal to the gradients of the
 * matrices, and the whole gradient of this process's experts to router_grad. */
CPL_API CPL_NODISCARD cpl_status cpl_erc_finish(cpl_erc *erc);

/* ---- latent experts: the experts read W_l x [l] in place of x [d] ----
 *
 * The loss of latent experts is the loss above of other rows (docs/method.md 3.14):
 *
 *     V_i    = W_l (R_i * delta_i)        noise and its bound are of R_i, in d
 *     V_i    = g * V_i / sqrt(mean(V_i^2) + norm_eps)      if a norm acts on W_l x
 *     M[i,j] = |V_i W_g^j|, W_g^j [D,l]; or the norm of another activation
 *
 * Each process makes these calls, with the gates [D,l] and down matrices [l,D] in `erc`:
 *
 *     cpl_erc_latent_rows(&latent);       sets latent.rows
 *     erc.router = latent.rows; erc.d_model = l; erc.noise = CPL_ERC_NOISE_NONE;
 *     erc.router_grad = dV;               zeros [n,l]
 *     cpl_erc_run(&erc);                  or the three phases; dV is summed over the processes
 *     latent.rows_grad = dV;
 *     cpl_erc_latent_gradients(&latent);  adds to router_grad, projection_grad and norm_grad
 *
 * If dV was summed over the processes, the gradients are whole in every process. Otherwise they are
 * terms of a sum over the processes. A bias of the projection is no part of M. */
typedef struct cpl_erc_latent {
    int64_t n_experts, d_model, d_latent; /* n, d, l: 1 ... 65535, 1 ... 2^24, 1 ... 2^24 */

    const float *router;     /* R [n,d] */
    const float *projection; /* W_l [l,d] */
    const float *norm;       /* g [l]; NULL without a norm */
    double norm_eps;         /* above 0 if norm is given */

    cpl_erc_noise_kind noise; /* as in cpl_erc, here and in the next four lines */
    uint64_t seed, step;
    uint32_t layer;
    uint32_t draw;
    const float *delta; /* [n,d] */
    int n_threads;

    float *rows;            /* V [n,l]: *set* by cpl_erc_latent_rows */
    float *eps;             /* [n]: *set* by cpl_erc_latent_rows; NULL if not wanted */
    const float *rows_grad; /* dV [n,l]: read by cpl_erc_latent_gradients */

    /* Gradients: cpl_erc_latent_gradients *adds* to them. NULL if not wanted. */
    float *router_grad;     /* [n,d] */
    float *projection_grad; /* [l,d] */
    float *norm_grad;       /* [l] */
} cpl_erc_latent;

/* Sets every field to its default: zero or NULL. */
CPL_API void cpl_erc_latent_init(cpl_erc_latent *latent);

/* Sets rows and eps. Returns CPL_ERR_INPUT for a field that is not acceptable, CPL_ERR_MEMORY if 2
 * n d + n l floats of scratch cannot be allocated. Products are in F32. */
CPL_API CPL_NODISCARD cpl_status cpl_erc_latent_rows(cpl_erc_latent *latent);

/* Adds the gradients through V, with the noise that cpl_erc_latent_rows used. The noise is drawn
 * again from its key, so that no state is kept between the calls. Errors: as above. */
CPL_API CPL_NODISCARD cpl_status cpl_erc_latent_gradients(const cpl_erc_latent *latent);

/* ---- proxies on the side of the tokens: rows P in place of R ----
 *
 * The loss of the rows P (docs/method.md 3.15). Noise, its bound, M and the loss are those of P:
 *
 *     Q_i = R_i - 1/n sum over j of R_j,    P_i = m + sigma Q_i / |Q_i|;    P_i = m where Q_i = 0
 *
 * m is the mean of the layer's input x over tokens, sigma^2 the mean of |x|^2 less |m|^2, for
 * example moving means over the steps. They are constants for the gradient, |Q_i| is not. Each
 * process makes these calls, with the fields of `erc` as above:
 *
 *     cpl_erc_token_rows(P, R, m, sigma, n, d);
 *     erc.router = P; erc.router_grad = dP;      zeros [n,d]; with latent experts latent.router
 *     cpl_erc_run(&erc);                         or the three phases
 *     cpl_erc_token_gradients(dR, dP, R, sigma, n, d);
 *
 * Both run in the calling thread, and return CPL_ERR_INPUT for an argument that is not acceptable:
 * n 1 ... 65535, d 1 ... 2^24, `scale` (sigma) at least 0 and finite. */

/* Sets rows P [n,d] from the router R [n,d] and the mean m [d]. */
CPL_API CPL_NODISCARD cpl_status cpl_erc_token_rows(float *rows, const float *router,
                                                    const float *mean, double scale,
                                                    int64_t n_experts, int64_t d_model);

/* *Adds* to router_grad dR [n,d] the gradient through P, from rows_grad dP [n,d]:
 *
 *     dQ_i = (sigma / |Q_i|) (dP_i - q_i (q_i . dP_i)), q_i = Q_i / |Q_i|;    dQ_i = 0 where Q_i = 0
 *     dR   = dQ less its mean over the rows
 *
 * The gradient is linear in dP, so dP may be a term of a sum over processes. Returns CPL_ERR_MEMORY
 * if 2 n d floats of scratch cannot be allocated. */
CPL_API CPL_NODISCARD cpl_status cpl_erc_token_gradients(float *router_grad, const float *rows_grad,
                                                         const float *router, double scale,
                                                         int64_t n_experts, int64_t d_model);

#ifdef __cplusplus
}
#endif
#endif /* COUPLET_H */
