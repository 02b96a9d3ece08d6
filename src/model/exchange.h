/* exchange.h - expert parallelism: tokens travel to the ranks of their experts, and results back
 * (all-to-all with counts).
 *
 * Room:   model.
 * Names:  T tokens of this rank with K choices each; E ranks that together hold the n experts, n /
 *         E each (parallel/mesh.h); R rows on this rank, one for every choice of one of its experts by
 *         a token of any of the E ranks. Dropless: R is as large as the router's choices make it.
 * Travel: forward    to the expert: the row of each choice, in the type of the products (they would
 *                    round it to that type anyway), and its weight; back: its output [d], F32,
 *                    already weighted
 *         backward to the expert: the gradient of a token's output for each of its choices, in the
 *                    type of the products; back: the gradients of the row, F32, and of its weight
 *         Before the rows of a forward pass n / E counts go to each rank.
 * Order:  sent and returned rows are sorted as the dispatch sorts them: by expert, then by token.
 * Memory: what R rows take is kept for every layer until its backward pass, and grows when a step
 *         brings more rows than any before it. */
#ifndef CPL_MODEL_EXCHANGE_H
#define CPL_MODEL_EXCHANGE_H

#include "model/settings.h"
#include "parallel/mesh.h"
#include "tensor/memory.h"

typedef struct cpl_exchange cpl_exchange;

/* For a model with these settings, over mesh->experts; `be`, whose memory it takes, and `mesh` must outlive it. `n_kept`: layers
 * whose rows are kept at the same time. `out` is owned by the caller. CPL_ERR_MEMORY. */
CPL_NODISCARD cpl_status cpl_exchange_init(cpl_exchange **out, cpl_backend *be,
                                           const cpl_model_settings *config, cpl_mesh *mesh,
                                           int64_t n_kept);
void cpl_exchange_free(cpl_exchange *exchange);

/* The first failure: CPL_ERR_MEMORY, no memory for the rows. Exchanges after it give zeros, and the
 * process takes part in no collective any more (cpl_group_fail). */
CPL_NODISCARD cpl_status cpl_exchange_status(const cpl_exchange *exchange);

/* Bytes that this rank has sent to others so far, in forward and backward passes, from the counts
 * of their rows by the formula of docs/scale.md. */
int64_t cpl_exchange_traffic(const cpl_exchange *exchange);

/* Bytes of memory that are allocated now. */
size_t cpl_exchange_bytes(const cpl_exchange *exchange);

/* ---- predictions for one of E ranks; `config`: the model with the experts of this rank ---- */

/* What a rank sends to other ranks. A collective takes one or two steps; each step is one message
 * to each other rank. */
typedef struct cpl_sent {
    int64_t bytes, messages;
} cpl_sent;

/* What this rank sends for one layer in a forward or backward pass. `ranks`: E. `away`: rows of its
 * own tokens for experts of other ranks; `here`: rows of other ranks for its experts. */
cpl_sent cpl_exchange_forward_sent(const cpl_model_settings *config, int64_t ranks,
                                   cpl_dtype compute, int64_t away, int64_t here);
cpl_sent cpl_exchange_backward_sent(const cpl_model_settings *config, int64_t ranks,
                                    cpl_dtype compute, int64_t away, int64_t here);

/* What cpl_exchange_bytes is after passes of `tokens` tokens in which `rows` rows came in each of
 * n_kept layers. */
size_t cpl_exchange_bytes_for(const cpl_model_settings *config, cpl_dtype compute, int64_t n_kept,
                              int64_t tokens, int64_t rows);

/* The work of operations on so many rows, from which scratch_bytes of the backend counts
 * scratch. */
cpl_work cpl_exchange_work(const cpl_model_settings *config, int64_t rows);

/* As ops->experts, for the experts of all ranks: y [T,d] is *set*. x [T,d], weight [T,K] and the
 * plan are of this rank's tokens and all n experts; w are the weights of this rank's experts. Keeps
 * for layer `kept` (below n_kept) what the backward pass needs. Collective over mesh->experts. */
void cpl_exchange_experts(cpl_exchange *exchange, cpl_backend *be, int64_t kept, cpl_tensor y,
                          cpl_tensor x, cpl_tensor weight, cpl_dispatch plan, cpl_expert_weights w);

/* The same without tokens of this rank: its experts serve those of the others. */
void cpl_exchange_serve(cpl_exchange *exchange, cpl_backend *be, int64_t kept,
                        cpl_expert_weights w);

/* Before forward passes of which the ranks do not run equally many: how many ranks of mesh->experts
 * run one now, with this one if it is `active`. An active rank then runs its pass; an idle one
 * serves in all layers, or if none is active is done. Collective over mesh->experts. */
int cpl_exchange_meet(cpl_exchange *exchange, bool active);

/* As ops->experts_backward: *adds* to dx [T,d] and dw, *sets* dweight [T,K]. Collective
 * likewise. */
void cpl_exchange_experts_backward(cpl_exchange *exchange, cpl_backend *be, int64_t kept,
                                   cpl_tensor dx, cpl_tensor dweight, cpl_expert_weights dw,
                                   cpl_tensor dy, cpl_dispatch plan, cpl_expert_weights w);

#endif /* CPL_MODEL_EXCHANGE_H */
