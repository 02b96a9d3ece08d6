/* coupling.h - the expert-router coupling loss (paper, section 3.1, equation 3;
 * docs/method.md 3; the gradient's derivation is in docs/gradients.md, both in plain loops in
 * model/erc/reference.c).
 *
 * Room:   model. Once per MoE layer and optimizer step; independent of the tokens.
 * Names:  n experts, d model width, D expert width; R [n,d] router rows; R~ = R * delta proxies;
 *         M[i,j] = |R~_i W_g^j|, or the norm of another activation (erc.activation).
 *
 *             eps_i = min over j != i of |R_i - R_j| / (2 |R_i|)
 *             delta_i ~ U(1 - eps_i, 1 + eps_i)
 *             L = 1/n^2 sum_i sum_{j != i}   max(M[i,j] - alpha M[i,i], 0)
 *                                          + max(M[j,i] - alpha M[i,i], 0)
 *
 *         erc.proxy centred: with the rows R_i - 1/n sum_j R_j in place of R_i throughout
 *         (docs/method.md 3.13). */
#ifndef CPL_MODEL_COUPLING_H
#define CPL_MODEL_COUPLING_H

#include "model/settings.h"
#include "parallel/mesh.h"
#include "tensor/ops.h"

/* Where one layer's results go. */
typedef struct cpl_coupling_outputs {
    cpl_tensor M;     /* [n,n] or none: is set, with the delta below; over a mesh: this rank's part,
                         zero elsewhere */
    cpl_tensor eps;   /* [n]: is set, from the clean R */
    cpl_tensor delta; /* [n,d]: is set (the last draw's; 1 without noise), or read if given */
    cpl_tensor loss;  /* [1] F64: is set to the sum over the draws, before any weight; divided by
                         cpl_coupling_draws it is the layer's */
    cpl_tensor diagonal, violations; /* [n], [2,n] I32: are set; not read by the caller */
    cpl_tensor dR;                   /* [n,d] *adds*; none: not requested */
    cpl_tensor rows;                 /* [n,d], erc.proxy centred alone: is set, the centred rows */
    cpl_tensor drows; /* [n,d], the same where dR is requested: is set; not read by the caller */
    cpl_expert_weights
        dw; /* F32, those of the matrices the activation uses *add*; none: not requested */
} cpl_coupling_outputs;

/* Which noise: the same numbers give the same delta everywhere. */
typedef struct cpl_coupling_noise {
    uint64_t seed, step;
    uint32_t layer;
    bool given; /* out->delta holds the noise to use; erc.noise and erc.draws do not count */
} cpl_coupling_noise;

/* CPL_ERR_INPUT if erc.layers is not "all" or a list of layers, or names one that does not
 * exist. */
CPL_NODISCARD cpl_status cpl_erc_check_layers(const cpl_erc_settings *erc, int64_t n_layers);

/* Whether layer `layer` has the coupling loss (erc.layers, checked before). */
bool cpl_erc_layer_enabled(const cpl_erc_settings *erc, int64_t layer);

/* How many of the first n_layers have it. */
int64_t cpl_erc_n_layers(const cpl_erc_settings *erc, int64_t n_layers);

/* erc.weight and erc.alpha as their schedule has them at this step, counted from 1: weight 0 up to
 * erc.start_step, then rising linearly over erc.warmup_steps while alpha changes from
 * erc.alpha_start (if set) to erc.alpha. */
void cpl_coupling_schedule(const cpl_erc_settings *erc, int64_t step, double *weight,
                           double *alpha);

/* The loss of one layer and the gradient of `weight` times it, in one sweep over the experts: three
 * products with gradients, one without. Rows without an active hinge cost nothing. R [n,d] F32 are
 * the master rows; w is what products read, and matrices that erc.activation does not use may be
 * none. If erc.reduce is mean, the caller divides `weight` by the number of layers. eps and delta
 * count as constants in the gradient, R does not, and neither do the experts, unless erc.gradient
 * leaves one of them out. compute: the type that operands of products are rounded to.
 *
 * mesh: NULL, or w and dw are of this rank's experts alone. Then M has its columns divided over the
 * expert ranks and its rows over the replicas; the loss is that of the whole, and the gradients this
 * rank's part of a sum over the ranks. What travels: for each draw n norms and 2 n counts over the
 * expert ranks, then the loss over all. Collective. */
void cpl_coupling(cpl_backend *be, const cpl_coupling_outputs *out, cpl_tensor R,
                  cpl_expert_weights w, const cpl_erc_settings *erc, double alpha, double weight,
                  cpl_dtype compute, const cpl_coupling_noise *noise, cpl_mesh *mesh);

/* How many draws of the noise the loss is a mean over. */
int64_t cpl_coupling_draws(const cpl_erc_settings *erc, const cpl_coupling_noise *noise);

#endif /* CPL_MODEL_COUPLING_H */
