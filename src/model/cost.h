/* cost.h - how many floating-point operations a model takes (docs/method.md 6.1): one product of
 * [m,k] and [k,n] is 2 m k n.
 *
 * Room:   model. Used for the planner's output and for a run's share of the peak. */
#ifndef CPL_MODEL_COST_H
#define CPL_MODEL_COST_H

#include "model/settings.h"

/* Experts of one layer, forward, over n_tokens: 6 T K D d, the base that other work is compared
 * with, for every router. */
double cpl_cost_experts(const cpl_model_settings *config, double n_tokens);

/* What Autonomy-of-Experts of rank r adds to that: 2 T (n-K) d r for the experts a token is not
 * sent to. A rank that does not keep the number of parameters changes the K chosen ones' gates too:
 * 2 T K (d r + r D - d D), 0 or nearly so at r = d D / (d + D). */
double cpl_cost_aoe(const cpl_model_settings *config, double n_tokens);

/* Coupling loss of one layer, forward: 2 n^2 D d, times erc.draws and the matrices that
 * erc.activation reads (1 to 3). Backward is twice that with every hinge active, nothing with
 * none. */
double cpl_cost_coupling(const cpl_model_settings *config, const cpl_erc_settings *erc);

/* Attention of all layers, forward, of one token: 4 d keys for scores and values with (seq_len + 1) / 2 keys
 * on average. */
double cpl_cost_attention(const cpl_model_settings *config, double seq_len);

/* The whole model, forward, of one token in a sequence of seq_len: per layer the four projections,
 * router (or what Autonomy-of-Experts adds), experts, shared expert; attention; the head. */
double cpl_cost_token(const cpl_model_settings *config, double seq_len);

/* One optimizer step over n_tokens: three times the forward pass, and three times the coupling
 * loss, every hinge active, in each layer of erc.layers; erc NULL: without it. */
double cpl_cost_step(const cpl_model_settings *config, double n_tokens, double seq_len,
                     const cpl_erc_settings *erc);

#endif /* CPL_MODEL_COST_H */
