/* mean_token.h - agreement of scores and answers without the experts' main effects and without the
 * mean of the tokens, each compared with permuted experts (docs/method.md 5.3).
 *
 * Room:    inspect/routing. The figures are of the sampled tokens of one layer that has router rows.
 * Names:   T sampled tokens, n experts, K of them a token; score s_ti = x_t . R_i, answer
 *          a_tj = |x_t W_g^j|, mu the mean of the x_t. Z[i,j] is the mean over t of the product of
 *          two numbers of a token, one of the score of i and one of the answer of j. A figure is the
 *          sum of the Z[i,i]. With the permuted label p(i) of the answers it is the sum of the
 *          Z[i,p(i)].
 * Memory:  5 n n numbers and 1,001 n labels of a layer. */
#ifndef CPL_INSPECT_ROUTING_MEAN_TOKEN_H
#define CPL_INSPECT_ROUTING_MEAN_TOKEN_H

#include "inspect/routing/record.h"

/* Lists the figures that have a null. An agreement is the mean over tokens of Spearman's rho of two
 * lists over experts. Tokens with a list that does not vary are left out. The lists are, in the order
 * of the names: s and a (agreement.spearman_mean of the report); s and a less their means over the
 * tokens; (x - mu) . R_i and |(x - mu) W_g^i|; s and a of the K experts of the token. PEARSON_CENTRED
 * is Pearson's r over all (t,i) of s and a, both less their means by expert and by token. DZ takes row
 * and column means off M_tok of the experts with CPL_ROUTING_FEW tokens or more, and adds the mean. It
 * is the mean of the diagonal over the standard deviation (divided by the number) off the diagonal,
 * and NaN below 3 experts. */
typedef enum cpl_mean_token_figure {
    CPL_MEAN_TOKEN_AGREEMENT,
    CPL_MEAN_TOKEN_AGREEMENT_CENTRED,
    CPL_MEAN_TOKEN_AGREEMENT_MU_OFF,
    CPL_MEAN_TOKEN_PEARSON_CENTRED,
    CPL_MEAN_TOKEN_AGREEMENT_CHOSEN,
    CPL_MEAN_TOKEN_DZ,
    CPL_MEAN_TOKEN_FIGURES
} cpl_mean_token_figure;

enum { CPL_MEAN_TOKEN_DRAWS = 1000 };

/* Holds mean and standard deviation (divided by their number) of a figure over random permutations
 * of the experts' answers, and the share of permutations whose figure is at least as far from the
 * mean as that of the model, to 1e-12. The share is (1 + their number) / (1 + the permutations). */
typedef struct cpl_mean_token_null {
    double mean, sd, p;
} cpl_mean_token_null;

/* Holds the figures of a layer. A figure that does not exist is NaN, and so is its null. Without
 * sampled tokens, and if one of their numbers is not finite, no figure exists. */
typedef struct cpl_routing_mean_token {
    double value[CPL_MEAN_TOKEN_FIGURES];
    cpl_mean_token_null null[CPL_MEAN_TOKEN_FIGURES];
    double main_effect; /* share of the experts' means in the variance of a over all (t,i) */
    double negative;    /* share of the R_i . mu that are below 0 */
    double cosine;      /* mean over i of cos(R_i - mean R, W_i^T W_i mu), W_i = W_g^i [D,d]; rows
                           and products without a length are left out */
} cpl_routing_mean_token;

/* Sets the figures, and curve [n]. curve[r] is the mean, over the tokens, of the answer of the
 * expert whose score is the r-th lowest of the token, less the expert's mean answer, over the
 * expert's standard deviation. It is 0 for an expert whose answers do not vary. Among equal scores
 * the lower expert comes first. `record` has the experts of the sampled tokens, in layer `index`.
 * Permutation t is cpl_null_model_shuffle with CPL_STREAM_LABELS, step t, seed and layer, of the
 * answers' labels p: expert i gets the answers of p(i). CPL_ERR_MEMORY. */
CPL_NODISCARD cpl_status cpl_routing_mean_token_of(cpl_routing_mean_token *out, double *curve,
                                                   cpl_backend *be, const cpl_layer_params *layer,
                                                   const cpl_routing_agreement *a,
                                                   const cpl_routing_record *record, int64_t index,
                                                   uint64_t seed);

#endif /* CPL_INSPECT_ROUTING_MEAN_TOKEN_H */
