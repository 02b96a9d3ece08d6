/* exchange.h - expert parallelism: tokens travel to the ranks of their experts, and results back.
 *
 * Room:   model.
 * Names:  T tokens of this rank with K choices each; E ranks that together hold the n experts, n / E
 *         each (dist/mesh.h); R rows that came to this rank, one for every choice of one of its
 *         experts by a token of any of the E ranks. Dropless: R is whatever the router makes of it.
 * Travel: forward    the row of each choice, in the type of the products (they would round it to that
 *                    type anyway), with its weight; back its output [d] F32, already weighted
 *         backward   the gradient of a token's output for each of its choices, in the type of the
 *                    products; back the gradient of the row, F32, and of its weight
 *         Before the rows of a pass, n / E counts to each rank.
 * Order:  sent and returned rows are sorted as the dispatch sorts them: by expert, then by token.
 * Memory: what R rows take is kept for every layer until its backward pass, and grows when a step
 *         brings more rows than any before it. */
#ifndef CPL_MODEL_EXCHANGE_H
#define CPL_MODEL_EXCHANGE_H

#include "dist/mesh.h"
#include "model/settings.h"
#include "tensor/ops.h"

typedef struct cpl_exchange cpl_exchange;

/* For a model with these settings, over mesh->experts. `n_kept`: layers whose rows are kept at the same
 * time. CPL_ERR_MEMORY. */
CPL_NODISCARD cpl_status cpl_exchange_init(cpl_exchange **out, const cpl_model_settings *config,
                                           cpl_mesh *mesh, int64_t n_kept);
void cpl_exchange_free(cpl_exchange *exchange);

/* The first failure: no memory for the rows. Exchanges after it give zeros. */
CPL_NODISCARD cpl_status cpl_exchange_status(const cpl_exchange *exchange);

/* What has travelled so far, both directions of forward and backward passes: the bytes of rows and
 * weights of the exact formula (docs/scale.md), from the counts. */
int64_t cpl_exchange_traffic(const cpl_exchange *exchange);

/* Bytes that are allocated now. */
size_t cpl_exchange_bytes(const cpl_exchange *exchange);

/* ---- predictions for a rank with these settings (its own experts), along E ranks ---- */

/* What a rank sends: bytes to other ranks, and messages, one for each other rank in every step of a
 * collective. */
typedef struct cpl_sent {
    int64_t bytes, messages;
} cpl_sent;

/* Of one layer in a forward or backward pass: `away` of this rank's rows leave it, `here` of those
 * that came are of other ranks. */
cpl_sent cpl_exchange_forward_sent(const cpl_model_settings *config, int64_t ranks,
                                   cpl_dtype compute, int64_t away, int64_t here);
cpl_sent cpl_exchange_backward_sent(const cpl_model_settings *config, int64_t ranks,
                                    cpl_dtype compute, int64_t away, int64_t here);

/* What cpl_exchange_bytes is after passes of `tokens` tokens in which `rows` rows came in each of
 * n_kept layers. */
size_t cpl_exchange_bytes_for(const cpl_model_settings *config, cpl_dtype compute, int64_t n_kept,
                              int64_t tokens, int64_t rows);

/* The scratch that operations on so many rows need, for scratch_bytes. */
cpl_work cpl_exchange_work(const cpl_model_settings *config, int64_t rows);

/* As ops->experts, for the experts of all ranks: y [T,d] is set; x [T,d], weight [T,K], plan of the n
 * experts; w of this rank's. Keeps for layer `kept` (below n_kept) what the backward pass needs.
 * Collective over the expert ranks, as the next one. */
void cpl_exchange_experts(cpl_exchange *exchange, cpl_backend *be, int64_t kept, cpl_tensor y,
                          cpl_tensor x, cpl_tensor weight, cpl_dispatch plan, cpl_expert_weights w);

/* As ops->experts_backward: dx [T,d] and dw *add*, dweight [T,K] is set. */
void cpl_exchange_experts_backward(cpl_exchange *exchange, cpl_backend *be, int64_t kept,
                                   cpl_tensor dx, cpl_tensor dweight, cpl_expert_weights dw,
                                   cpl_tensor dy, cpl_dispatch plan, cpl_expert_weights w);

#endif /* CPL_MODEL_EXCHANGE_H */
