/* balance.h - the two losses that keep a router in shape (method.md section 1).
 *
 * Room:   model. counts [n] assignments to each expert, mean_prob [n] mean of its probability,
 *         T tokens, K experts a token. Values from what ops.h's route_stats counted; gradients are
 *         route_backward's, with the scales below. */
#ifndef CPL_MODEL_BALANCE_H
#define CPL_MODEL_BALANCE_H

#include "model/settings.h"
#include "tensor/ops.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Load balancing of one layer: n sum_e f_e P_e with f_e = counts_e / (T K); 1 when balanced. */
double cpl_balance_loss(cpl_backend *be, cpl_tensor counts, cpl_tensor mean_prob, int64_t n_tokens,
                        int64_t top_k);

/* route_backward's balance_scale for `weight` times that loss: the gradient flows through P only.
 */
float cpl_balance_scale(double weight, int64_t n_experts, int64_t n_tokens, int64_t top_k);

/* What the mean over tokens of logsumexp^2 is multiplied by in this form of the z-loss. */
double cpl_z_factor(const cpl_z_settings *z, int64_t top_k);

#ifdef __cplusplus
}
#endif
#endif /* CPL_MODEL_BALANCE_H */
