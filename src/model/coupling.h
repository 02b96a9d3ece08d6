/* coupling.h - the expert-router coupling loss (paper, section 3.1, equation 3;
 * docs/method.md 3). docs/gradients.md derives the gradient; model/erc/reference.c has both in
 * plain loops.
 *
 * Room:   model. Computed once per MoE layer and optimizer step, independent of the tokens.
 * Names:  n experts, d model width, D expert width; R [n,d] router rows; R~ = R * delta proxies;
 *         M[i,j] = |R~_i W_g^j|, or the norm of another activation (erc.activation).
 *
 *             eps_i = min over j != i of |R_i - R_j| / (2 |R_i|)
 *             delta_i ~ U(1 - eps_i, 1 + eps_i)
 *             L = 1/n^2 sum_i sum_{j != i}   max(M[i,j] - alpha M[i,i], 0)
 *                                          + max(M[j,i] - alpha M[i,i], 0)
 *
 *         With erc.proxy centred, the rows R_i - 1/n sum_j R_j replace R_i throughout
 *         (docs/method.md 3.13). With erc.proxy tokens these rows are scaled to one length and
 *         moved to the mean of the tokens (docs/method.md 3.15). Latent experts read
 *         V_i = W_l R~_i [l] in place of R~_i, and M[i,j] = |V_i W_g^j| (docs/method.md 3.14). */
#ifndef CPL_MODEL_COUPLING_H
#define CPL_MODEL_COUPLING_H

#include "model/settings.h"
#include "parallel/mesh.h"
#include "tensor/ops.h"

/* The projection of latent experts. If w is none, the experts read d numbers, and no other member
 * is used. Products are in F32 whatever `compute` says. */
typedef struct cpl_coupling_latent {
    cpl_tensor w;      /* W_l [l,d], F32 or BF16; an input */
    cpl_tensor dw;     /* [l,d] *adds*, or none if not requested */
    cpl_tensor x;      /* [n,d]: *set* to the proxies R~ of the last draw */
    cpl_tensor v;      /* [n,l]: *set* to V of the last draw */
    cpl_tensor dx, dv; /* [n,d], [n,l]: scratch, needed with a gradient */
} cpl_coupling_latent;

/* The moments of the inputs x [d] of a layer's experts, for erc.proxy tokens: inputs, and constants
 * for the gradient. */
typedef struct cpl_coupling_tokens {
    cpl_tensor mean; /* [d] m, the mean of x */
    double scale;    /* sigma, the root of the mean of |x|^2 - |m|^2 */
} cpl_coupling_tokens;

/* The results of one layer. */
typedef struct cpl_coupling_outputs {
    cpl_tensor M;     /* [n,n] or none: *set*, for the delta below; over a mesh this rank's part,
                          zero elsewhere */
    cpl_tensor eps;   /* [n]: *set*, from the rows without noise */
    cpl_tensor delta; /* [n,d]: *set* to the noise of the last draw (1 without noise), or read if
                         given */
    cpl_tensor loss;  /* [1] F64: *set* to the unweighted sum over the draws. The layer's loss is
                         the sum divided by cpl_coupling_draws */
    cpl_tensor diagonal, violations; /* [n], [2,n] I32: *set*; scratch for the caller */
    cpl_tensor dR;                   /* [n,d] *adds*, or none if not requested */
    cpl_tensor rows;  /* [n,d], unless erc.proxy is row: *set* to the rows that replace R */
    cpl_tensor drows; /* [n,d], unless erc.proxy is row, with dR: *set*; scratch for the caller */
    cpl_expert_weights
        dw; /* F32, *adds* for the matrices that the activation uses, or none if not requested */
    cpl_coupling_latent latent;
    cpl_coupling_tokens tokens; /* read with erc.proxy tokens only */
} cpl_coupling_outputs;

/* The key of the noise. Equal keys give equal deltas on all machines. */
typedef struct cpl_coupling_noise {
    uint64_t seed, step;
    uint32_t layer;
    bool given; /* out->delta holds the noise; erc.noise and erc.draws are ignored */
} cpl_coupling_noise;

/* Returns CPL_ERR_INPUT if erc.layers is not "all" or a list of layers, or names a layer that does
 * not exist. */
CPL_NODISCARD cpl_status cpl_erc_check_layers(const cpl_erc_settings *erc, int64_t n_layers);

/* Returns whether layer `layer` has the coupling loss. erc.layers must have been checked. */
bool cpl_erc_layer_enabled(const cpl_erc_settings *erc, int64_t layer);

/* Returns the number of layers below n_layers that have the coupling loss. */
int64_t cpl_erc_n_layers(const cpl_erc_settings *erc, int64_t n_layers);

/* Sets the scheduled values of erc.weight and erc.alpha at `step`, counted from 1. The weight is 0
 * up to erc.start_step, then rises linearly over erc.warmup_steps, while alpha changes from
 * erc.alpha_start (if set) to erc.alpha. */
void cpl_coupling_schedule(const cpl_erc_settings *erc, int64_t step, double *weight,
                           double *alpha);

/* Computes the loss of one layer and `weight` times its gradient, in one sweep over the experts:
 * three products with gradients, one without. Backward products contain only rows with an active
 * hinge. R [n,d] F32 are the master rows. w are the weights that products read. Matrices that
 * erc.activation does not use may be none. If erc.reduce is mean, the caller divides `weight` by
 * the number of layers. The gradient treats eps and delta as constants. It covers R and the
 * experts with W_l, unless erc.gradient leaves R or the experts out. `compute` is the type that
 * operands of products are rounded to.
 *
 * `mesh` is NULL for one process. With a mesh, w and dw hold this rank's experts. The columns of M
 * are divided over the expert ranks and the rows over the replicas. The loss is the whole loss. The
 * gradients are this rank's terms of a sum over the ranks. Messages: for each draw n norms and 2 n
 * counts over the expert ranks, then the loss over all ranks. Collective. */
void cpl_coupling(cpl_backend *be, const cpl_coupling_outputs *out, cpl_tensor R,
                  cpl_expert_weights w, const cpl_erc_settings *erc, double alpha, double weight,
                  cpl_dtype compute, const cpl_coupling_noise *noise, cpl_mesh *mesh);

/* Returns the number of draws of the noise that the loss is the mean over. */
int64_t cpl_coupling_draws(const cpl_erc_settings *erc, const cpl_coupling_noise *noise);

#endif /* CPL_MODEL_COUPLING_H */
