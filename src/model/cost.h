/* cost.h - number of floating-point operations of a model (docs/method.md 6.1). A product of [m,k]
 * and [k,n] counts 2 m k n.
 *
 * Room:   model. Used by the planner, and for the share of the peak that a run reaches. */
#ifndef CPL_MODEL_COST_H
#define CPL_MODEL_COST_H

#include "model/settings.h"

/* Returns the operations of the experts of one layer, forward, over n_tokens: 6 T K D d, or with
 * latent experts 6 T K D l and 4 T l d for their projections. Other work is compared with this base for every router. */
double cpl_cost_experts(const cpl_model_settings *config, double n_tokens);

/* Returns the additional operations of Autonomy-of-Experts with rank r: 2 T (n-K) d r for the
 * experts that a token is not sent to, and 2 T K (d r + r D - d D) for the gates of the K chosen
 * experts. The second term is about 0 at r = d D / (d + D), which keeps the number of
 * parameters. */
double cpl_cost_aoe(const cpl_model_settings *config, double n_tokens);

/* Returns the operations of the coupling loss of one layer, forward: 2 n^2 D d, times erc.draws and
 * the matrices that erc.activation reads (1 to 3). Latent experts have l in place of d, and 2 n l d
 * for the projection. Backward takes twice as many if every hinge is
 * active, and 0 if every hinge is inactive. */
double cpl_cost_coupling(const cpl_model_settings *config, const cpl_erc_settings *erc);

/* Returns the operations of the attention of all layers, forward, for one token: 4 d per key for
 * scores and values, with (seq_len + 1) / 2 keys on average. */
double cpl_cost_attention(const cpl_model_settings *config, double seq_len);

/* Returns the operations of the whole model, forward, for one token in a sequence of seq_len. They
 * include for each layer the four projections, the router (or cpl_cost_aoe), experts, shared expert
 * and attention, and once the head. */
double cpl_cost_token(const cpl_model_settings *config, double seq_len);

/* Returns the operations of one optimizer step over n_tokens: three times the forward pass and, for
 * each layer of erc.layers, three times the coupling loss with every hinge active. With erc NULL
 * the coupling loss is excluded. With model.router mpi it includes the rows and their gradient. */
double cpl_cost_step(const cpl_model_settings *config, double n_tokens, double seq_len,
                     const cpl_erc_settings *erc);

#endif /* CPL_MODEL_COST_H */
