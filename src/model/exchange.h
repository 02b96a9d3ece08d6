/* exchange.h - expert parallelism: tokens are sent to the ranks of their experts, and results are
 * returned (all-to-all with counts).
 *
 * Room:   model.
 * Names:  d width of the experts' input, model.latent_dim for latent experts;
 *         T tokens of this rank with K choices each; E ranks that together hold the n experts, n /
 *         E each (parallel/mesh.h); R rows on this rank, one for every choice of one of its experts
 *         by a token of any of the E ranks. Dropless: no limit on R.
 * Sends:  forward    to the expert: the row of each choice, in the type of the products, and its
 *                    weight; back: its weighted output [d], F32
 *         backward   to the expert: the gradient of a token's output for each of its choices, in
 *                    the type of the products; back: the gradients of the row, F32, and of its
 *                    weight
 *         A forward pass first sends n / E counts to each rank.
 * Order:  sent and returned rows are sorted as the dispatch sorts them: by expert, then by token.
 * Memory: the R rows of every layer are kept until its backward pass. Memory grows if a step
 *         receives more rows than any step before. */
#ifndef CPL_MODEL_EXCHANGE_H
#define CPL_MODEL_EXCHANGE_H

#include "model/settings.h"
#include "parallel/mesh.h"
#include "tensor/memory.h"

typedef struct cpl_exchange cpl_exchange;

/* Makes the exchange of a model over mesh->experts, owned by the caller, with memory of `be`. `be`
 * and `mesh` must outlive it. `n_kept` is the number of layers whose rows are kept at the same
 * time. Returns CPL_ERR_MEMORY if memory is not available. */
CPL_NODISCARD cpl_status cpl_exchange_init(cpl_exchange **out, cpl_backend *be,
                                           const cpl_model_settings *config, cpl_mesh *mesh,
                                           int64_t n_kept);
void cpl_exchange_free(cpl_exchange *exchange);

/* Returns the first failure: CPL_ERR_MEMORY if memory for the rows was not available. Later
 * exchanges return zeros, and the process takes part in no further collective (cpl_group_fail). */
CPL_NODISCARD cpl_status cpl_exchange_status(const cpl_exchange *exchange);

/* Returns the bytes of memory currently allocated. */
size_t cpl_exchange_bytes(const cpl_exchange *exchange);

/* ---- predictions for one of E ranks; `config`: the model with the experts of this rank ---- */

/* Bytes and messages that a rank sends to other ranks. A collective takes one or two steps. Each
 * step is one message to each other rank. */
typedef struct cpl_sent {
    int64_t bytes, messages;
} cpl_sent;

/* Returns the bytes and messages that this rank sends for one layer in a forward or backward pass.
 * `ranks` is E. `away` counts the rows of this rank's tokens for experts of other ranks. `here`
 * counts the rows of other ranks' tokens for this rank's experts. */
cpl_sent cpl_exchange_forward_sent(const cpl_model_settings *config, int64_t ranks,
                                   cpl_dtype compute, int64_t away, int64_t here);
cpl_sent cpl_exchange_backward_sent(const cpl_model_settings *config, int64_t ranks,
                                    cpl_dtype compute, int64_t away, int64_t here);

/* Returns the value of cpl_exchange_bytes after passes of `tokens` tokens that received `rows` rows
 * in each of n_kept layers. */
size_t cpl_exchange_bytes_for(const cpl_model_settings *config, cpl_dtype compute, int64_t n_kept,
                              int64_t tokens, int64_t rows);

/* Returns the shapes of operations on `rows` rows, for cpl_backend_reserve. */
cpl_work cpl_exchange_work(const cpl_model_settings *config, int64_t rows);

/* Computes ops->experts for the experts of all ranks: y [T,d] is *set*. x [T,d], weight [T,K] and
 * the plan cover this rank's tokens and all n experts. w are the weights of this rank's experts.
 * The activations for the backward pass are kept as layer `kept`, below n_kept. Collective over
 * mesh->experts. */
void cpl_exchange_experts(cpl_exchange *exchange, cpl_backend *be, int64_t kept, cpl_tensor y,
                          cpl_tensor x, cpl_tensor weight, cpl_dispatch plan, cpl_expert_weights w);

/* Runs cpl_exchange_experts without tokens of this rank: its experts compute for other ranks. */
void cpl_exchange_serve(cpl_exchange *exchange, cpl_backend *be, int64_t kept,
                        cpl_expert_weights w);

/* Synchronises ranks with different numbers of forward passes before each pass. Returns the number
 * of ranks of mesh->experts that are `active`, i.e. run a pass now. An active rank then runs its
 * pass. An idle rank calls cpl_exchange_serve for all layers, or is done if the result is 0.
 * Collective over mesh->experts. */
int cpl_exchange_meet(cpl_exchange *exchange, bool active);

/* Computes ops->experts_backward for the experts of all ranks: *adds* to dx [T,d] and dw, *sets*
 * dweight [T,K]. Collective over mesh->experts. */
void cpl_exchange_experts_backward(cpl_exchange *exchange, cpl_backend *be, int64_t kept,
                                   cpl_tensor dx, cpl_tensor dweight, cpl_expert_weights dw,
                                   cpl_tensor dy, cpl_dispatch plan, cpl_expert_weights w);

#endif /* CPL_MODEL_EXCHANGE_H */
