/* aux_losses.h - the losses other than the cross-entropy: their list, weights and small formulas
 * (docs/method.md 2.3, 2.4, 2.5, 4.3). The coupling loss itself is in coupling.h.
 *
 * Room:   model. The list is aux_losses.def; sections, the total, metrics, log lines and `couplet
 *         grad` follow from the list. counts [n] assignments to each expert, mean_prob [n] mean of
 *         its probability, T tokens, K experts a token. */
#ifndef CPL_MODEL_AUX_LOSSES_H
#define CPL_MODEL_AUX_LOSSES_H

#include <stdbool.h>

#include "model/params.h"
#include "model/settings.h"
#include "tensor/ops.h"

/* Adds to loss [1] F64 the unweighted loss of one layer, which depends on its weights only. Adds
 * `weight` times the gradient to dw, which is NULL if not requested. The loss of the model is the
 * mean over layers. */
typedef void (*cpl_aux_loss_fn)(cpl_backend *be, cpl_tensor loss, cpl_layer_params *dw,
                                const cpl_layer_params *w, double weight);

typedef struct cpl_aux_loss_row {
    const char *name, *label, *help;
    cpl_router_need needs;
    double unset_weight;
    cpl_router_need where;     /* the routers that unset_weight is for */
    cpl_aux_loss_fn per_layer; /* NULL if other code computes the loss */
    size_t weight_offset;      /* offset of NAME.weight in cpl_aux_settings */
} cpl_aux_loss_row;

extern const cpl_aux_loss_row cpl_aux_losses[CPL_N_AUX_LOSSES];

/* Returns the word of erc.proxy. */
const char *cpl_erc_proxy_name(int proxy);

/* Returns the value of NAME.weight of one loss. */
double cpl_aux_weight(const cpl_aux_settings *losses, cpl_aux_loss which);

/* Sets the weights that are unset. `model` must be resolved (params.h). Returns CPL_ERR_INPUT,
 * naming both settings, if the model's router does not support a loss with a weight, or if
 * erc.layers names a layer that does not exist. */
CPL_NODISCARD cpl_status cpl_aux_resolve(cpl_aux_settings *losses, const cpl_model_settings *model);

/* Returns the load-balancing loss of one layer: n sum_e f_e P_e with f_e = counts_e / (T K). It is
 * 1 when balanced. `dot` is the sum of counts_e P_e. */
double cpl_aux_balance_loss(double dot, int64_t n_experts, int64_t n_tokens, int64_t top_k);

/* Returns the balance_scale of route_backward for `weight` times the load-balancing loss. The
 * gradient flows through P only. */
float cpl_aux_balance_scale(double weight, int64_t n_experts, int64_t n_tokens, int64_t top_k);

/* Returns the factor of the mean over tokens of logsumexp^2 in the z-loss that `z` selects. */
double cpl_aux_z_factor(const cpl_z_settings *z, int64_t top_k);

/* Computes the router orthogonality of one layer (a cpl_aux_loss_fn): the mean over the n^2 entries
 * of (R^ R^T - I)^2. R^ are the rows of R [n,d] with norm 1. Entries of a zero row are 0. */
void cpl_aux_orthogonality(cpl_backend *be, cpl_tensor loss, cpl_layer_params *dw,
                           const cpl_layer_params *w, double weight);

#endif /* CPL_MODEL_AUX_LOSSES_H */
