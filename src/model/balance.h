/* balance.h - the load of the load-balancing loss in one optimizer step: over what it is counted
 * (balance.scope), the counts, and the loss (docs/method.md 2.3).
 *
 * Room:   model. The formula for one count is in aux_losses.h, the gradient in route_backward.
 * Names:  a span is the tokens over which f_e and P_e are counted together; the loss is the mean
 *         over the spans of the batch and over layers.
 *
 *             micro      a pass (one micro-batch)
 *             sequence   a sequence; a pass has G = B of them
 *             global     the whole batch: all passes of a step
 *
 *         A scope whose span is just one pass, such as global with one micro-batch, is computed as
 *         micro is: the same bits, no more work. L layers, n experts. */
#ifndef CPL_MODEL_BALANCE_H
#define CPL_MODEL_BALANCE_H

#include <stdbool.h>

#include "dist/group.h"
#include "model/model.h"

typedef struct cpl_balance {
    int64_t micro; /* sequences of a pass */
    int64_t pass_tokens, span_tokens, n_spans;
    float scale;       /* route_backward's balance_scale */
    cpl_tensor counts; /* [L,G,n] assignments: of the sequences of the last pass, or sums over the
                          passes of the batch (G = 1); none for micro */
    cpl_tensor prob;   /* [L,G,n] mean_prob likewise */
    cpl_tensor unused; /* [2]: z and entropy of a sequence */
    double *loss;      /* [L], unweighted; whole after cpl_balance_collect */
} cpl_balance;

/* Takes what the scope needs for passes of `micro` sequences. */
void cpl_balance_take(cpl_balance *b, cpl_arena *arena, const cpl_balance_settings *settings,
                      const cpl_model_settings *config, int64_t micro);

/* Before the first pass of a step over `n_sequences`, of all ranks, of seq_len tokens each: sets spans and scale,
 * zeroes sums and loss. Returns whether the backward passes need the counts of all passes: then
 * every micro-batch is first run forward and counted, and cpl_balance_collect called. False if the
 * weight is 0: then it is called after the last pass, for the loss alone. */
bool cpl_balance_begin(cpl_balance *b, cpl_model *model, const cpl_balance_settings *settings,
                       int64_t n_sequences, int64_t seq_len);

/* After the forward pass of a micro-batch, once for each of a step: *adds* what it counted. */
void cpl_balance_count(cpl_balance *b, cpl_model *model, const cpl_pass *pass);

/* After all micro-batches of the step were counted: the loss of a span that is longer than a pass,
 * from its sums over the passes of all ranks. The others are complete already. In all scopes the loss
 * of the batch is the sum of the ranks' b->loss. Collective. */
void cpl_balance_collect(cpl_balance *b, cpl_model *model, cpl_group *world);

/* The load as cpl_aux_grad_scales takes it, after these calls. */
cpl_tensor cpl_balance_counts(const cpl_balance *b);

#endif /* CPL_MODEL_BALANCE_H */
