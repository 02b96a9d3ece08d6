/* signs.h - agreement of scores of either sign with the experts' answers.
 *
 * Room:    inspect/routing. M_ij = |R_i W_g^j| is equal for R_i and -R_i, so the coupling loss
 *          cannot distinguish tokens that R_i scores high from tokens that it scores far below 0
 *          (docs/method.md 3.12). These figures can.
 * Names:   T sampled tokens of a layer, n experts; score s_ti = x_t . R_i, the router's logit;
 *          answer a_tj = |x_t W_g^j|. Centred scores are s_ti - 1/n sum_j s_tj, the logits of the
 *          centred rows: softmax routing does not change when one amount is added to all scores of
 *          a token. rho is Spearman's. It is undefined for a list that does not vary or has fewer
 *          than CPL_SIGNS_LEAST entries. Such a list is left out of the mean. */
#ifndef CPL_INSPECT_ROUTING_SIGNS_H
#define CPL_INSPECT_ROUTING_SIGNS_H

#include "model/tokens/samples.h"

enum { CPL_SIGNS_LEAST = 3 };

/* Holds rho over all entries, over entries whose score is above 0, and over entries whose score is
 * below 0. NaN if every list is left out. */
typedef struct cpl_routing_rho {
    double all, above, below;
} cpl_routing_rho;

typedef struct cpl_routing_signs {
    double negative;        /* share of the T n scores that are below 0 */
    cpl_routing_rho tokens; /* rho of a token's scores and answers over experts, mean over tokens */
    double tokens_size;     /* this rho with |score| in place of the score */
    cpl_routing_rho ids; /* as tokens, with the mean over the sampled tokens of an id taken from the
                            scores and answers of each expert; over ids with two sampled tokens or
                            more. The sign is that of the score itself */
    cpl_routing_rho
        experts;         /* rho of an expert's scores and answers over tokens, mean over experts */
    double experts_size; /* this rho with |score| in place of the score */
} cpl_routing_signs;

/* Sets the figures. `id` has the id of every place of the text. CPL_ERR_MEMORY. */
CPL_NODISCARD cpl_status cpl_routing_signs_of(cpl_routing_signs *out,
                                              const cpl_token_samples *samples, const int32_t *id,
                                              bool centred);

#endif /* CPL_INSPECT_ROUTING_SIGNS_H */
