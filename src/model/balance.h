/* balance.h - what keeps a router in shape beside the coupling loss: load balancing by a loss or by
 * a bias, the z-loss, orthogonal rows (docs/method.md 2.3, 2.4, 2.5, 4.3).
 *
 * Room:   model. counts [n] assignments to each expert, mean_prob [n] mean of its probability,
 *         T tokens, K experts a token. Values from what ops.h's route_stats counted; gradients are
 *         route_backward's, with the scales below. */
#ifndef CPL_MODEL_BALANCE_H
#define CPL_MODEL_BALANCE_H

#include "model/settings.h"
#include "tensor/ops.h"

/* Load balancing of one layer: n sum_e f_e P_e with f_e = counts_e / (T K); 1 when balanced. */
double cpl_balance_loss(cpl_backend *be, cpl_tensor counts, cpl_tensor mean_prob, int64_t n_tokens,
                        int64_t top_k);

/* route_backward's balance_scale for `weight` times that loss: the gradient flows through P only.
 */
float cpl_balance_scale(double weight, int64_t n_experts, int64_t n_tokens, int64_t top_k);

/* What the mean over tokens of logsumexp^2 is multiplied by in this form of the z-loss. */
double cpl_z_factor(const cpl_z_settings *z, int64_t top_k);

/* After a step: every bias [n] of the router goes up by `rate` where its expert's load [n] (F32, the
 * step's assignments) was below the mean, down where above (DeepSeek-V3, arXiv 2412.19437,
 * section 2.1.2). */
void cpl_balance_move_bias(cpl_backend *be, cpl_tensor bias, cpl_tensor load, double rate);

/* Router orthogonality of one layer: mean over the n^2 entries of (R^ R^T - I)^2, R^ the rows of
 * R [n,d] with norm 1; entries of a zero row are 0. dR *adds* `weight` times its gradient, or is
 * none. Returns the loss, unweighted. */
double cpl_balance_orthogonality(cpl_backend *be, cpl_tensor dR, cpl_tensor R, double weight);

#endif /* CPL_MODEL_BALANCE_H */
