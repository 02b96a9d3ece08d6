/* balance.h - the load-balancing loss of one optimizer step: the tokens it is computed over
 * (balance.scope), the counts, and the loss (docs/method.md 2.3).
 *
 * Room:   model. The formula for one count is in aux_losses.h, the gradient in route_backward.
 * Names:  a span is the tokens over which f_e and P_e are counted together; the loss is the mean
 *         over the spans of the batch and over layers.
 *
 *             micro      a pass: one micro-batch of one rank
 *             sequence   a sequence; a pass has G of them
 *             global     the whole batch: all passes of a step, on all ranks
 *
 *         A scope whose span is one pass, such as global with one micro-batch in one process, is
 *         computed as micro, with the same bits and work. L layers, n experts. */
#ifndef CPL_MODEL_BALANCE_H
#define CPL_MODEL_BALANCE_H

#include <stdbool.h>

#include "model/model.h"
#include "parallel/group.h"

typedef struct cpl_balance {
    int64_t micro;                             /* sequences of a pass */
    int64_t pass_tokens, span_tokens, n_spans; /* n_spans: spans of the batch, over all ranks */
    float scale;                               /* route_backward's balance_scale */
    cpl_tensor counts; /* [L,G,n] assignments of the sequences of the last pass, or sums over the
                          passes of the batch (G = 1); none for micro */
    cpl_tensor prob;   /* [L,G,n] mean_prob of the tokens of counts */
    cpl_tensor unused; /* [2]: z and entropy of a sequence, which are never read */
    cpl_tensor dots;   /* [L] F64 sum of counts times prob over the spans, in the caller's memory */
} cpl_balance;

/* Takes from `arena` the tensors that the scope needs for passes of `micro` sequences. The caller
 * sets b->dots. */
void cpl_balance_take(cpl_balance *b, cpl_tensor_arena *arena, const cpl_balance_settings *settings,
                      const cpl_model_settings *config, int64_t micro);

/* Begins a step, before its first pass. The batch of all ranks has `n_sequences` sequences of
 * seq_len tokens. Sets spans and scale, zeroes sums and dots. Returns whether the backward passes
 * need the counts of all passes. If true, the caller first runs every micro-batch forward, counts
 * it, and calls cpl_balance_collect. If false (always with weight 0), the caller calls
 * cpl_balance_collect after the last pass, for the loss only. */
bool cpl_balance_begin(cpl_balance *b, cpl_model *model, const cpl_balance_settings *settings,
                       int64_t n_sequences, int64_t seq_len);

/* *Adds* the counts and the loss of a micro-batch. Call it once per micro-batch of a step, after
 * the forward pass. */
void cpl_balance_count(cpl_balance *b, cpl_model *model, const cpl_pass *pass);

/* Sums the counts over all ranks if a span is longer than a pass. Otherwise does nothing. Call it
 * after all micro-batches of the step are counted. Collective. */
void cpl_balance_collect(cpl_balance *b, cpl_model *model, cpl_group *world);

/* Returns this rank's part of a layer's unweighted loss, at the end of the step. `dot` is the
 * layer's number in b->dots. In all scopes the loss of the batch is the sum over the ranks. */
double cpl_balance_loss(const cpl_balance *b, const cpl_model_settings *config, double dot);

/* Returns a view of the counts for cpl_aux_grad_scales, after the calls above. The view is none for
 * micro, where each pass has its own counts. */
cpl_tensor cpl_balance_counts(const cpl_balance *b);

#endif /* CPL_MODEL_BALANCE_H */
