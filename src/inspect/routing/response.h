/* response.h - the answers of the experts to tokens, compared with the router's choices:
 * the premise of the coupling loss.
 *
 * Room:    inspect/routing. The answer of expert j to a token x (the normalised vector that the
 *          router and the experts of the layer read) is |x W_g^j|.
 * Memory:  S D floats for S sampled tokens of one batch, S n for their answers, n n sums a
 *          layer. */
#ifndef CPL_INSPECT_ROUTING_RESPONSE_H
#define CPL_INSPECT_ROUTING_RESPONSE_H

#include "base/arena.h"
#include "inspect/null_model.h"
#include "inspect/routing/signs.h"
#include "model/model.h"

/* Returns whether the model has router rows R_i (Autonomy-of-Experts has no router). */
bool cpl_routing_has_router(const cpl_layer_params *layer);

/* Holds sums over the sampled tokens of one layer. */
typedef struct cpl_routing_agreement {
    int64_t n_tokens;  /* sampled tokens */
    int64_t n_ranked;  /* sampled tokens whose scores and answers vary, so that rho exists */
    double rho, rho_2; /* sums of Spearman's rho of router scores and answers, and of its square */
    int64_t top1;      /* tokens whose first choice is the expert of the largest answer */
    int64_t shared;    /* experts among both the K of the router and the K of largest answers */
    double *sums;      /* [n,n] row i: sum of the answers over the tokens routed to i */
    int64_t *routed;   /* [n] number of tokens routed to each expert */
    int64_t n, top_k;
    double *row; /* [d] sum of the sampled tokens x */
    int64_t d;
    cpl_token_samples samples; /* the scores are the router's logits; room is 0 without rows */
} cpl_routing_agreement;

/* Makes empty sums, which keep at most `room` sampled tokens. CPL_ERR_MEMORY. */
CPL_NODISCARD cpl_status cpl_routing_agreement_init(cpl_routing_agreement *a, cpl_pool *pool,
                                                    int64_t n, int64_t top_k, int64_t d,
                                                    int64_t room);

/* Adds one token: its router scores [n] and answers [n], and its K experts, best first. Among equal
 * answers the answer of the lower expert counts as larger. `scratch` has cpl_correlation_scratch(n)
 * bytes. */
void cpl_routing_agreement_add(cpl_routing_agreement *a, const double *scores,
                               const double *answers, const int32_t *chosen, void *scratch);

/* M_tok[i,j] is the mean answer of expert j over the tokens routed to expert i, among the experts
 * that have CPL_TOKENS_FEW tokens or more. It shows whether R_i represents its tokens. */

/* Holds r and rho between M_tok and the clean M, or M of the centred rows. Only entries off the
 * diagonal count, each divided by the mean of its row. */
typedef struct cpl_routing_likeness {
    double pearson, spearman;
} cpl_routing_likeness;

typedef struct cpl_routing_m_tok {
    int64_t n_kept, n_left_out; /* experts with CPL_TOKENS_FEW tokens or more; other experts */
    double diagonal;            /* mean of the M_tok[i,i] */
    double erc[CPL_NULL_MODEL_MAX_ALPHAS]; /* ERC of M_tok of kept experts; NaN without them */
    double alpha_min;                      /* smallest alpha at which this ERC is 0 */
    double rows_own; /* share of rows i whose own answer is the largest: tokens sent to i excite i
                           most */
    double
        columns_own; /* share of columns j whose own entry is the largest: j is excited most by the
                           tokens sent to it */
    bool has_M;      /* the model has router rows to compare with */
    cpl_routing_likeness like_M, like_centred;
} cpl_routing_m_tok;

/* Sets M_tok [n,n] (NaN in rows of experts without tokens) and the figures. M and centred [n,n] are
 * the clean coupling matrices of the router's rows and of the centred rows, or both NULL.
 * CPL_ERR_MEMORY. */
CPL_NODISCARD cpl_status cpl_routing_m_tok_of(cpl_routing_m_tok *out, float *M_tok,
                                              const cpl_routing_agreement *a, const float *M,
                                              const float *centred, const double *alphas,
                                              int n_alphas);

#endif /* CPL_INSPECT_ROUTING_RESPONSE_H */
