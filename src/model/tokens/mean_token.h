/* mean_token.h - agreement of scores and answers without the experts' main effects and without the
 * mean of the tokens, each compared with permuted experts (docs/method.md 5.3).
 *
 * Room:    model/tokens. The figures are of the sampled tokens of one layer that has router rows.
 * Names:   as in samples.h; mu the mean of the x_t. Z[i,j] is the mean over t of the product of two
 *          numbers of a token, one of the score of i and one of the answer of j. A figure is the
 *          sum of the Z[i,i]. With the permuted label p(i) of the answers it is the sum of the
 *          Z[i,p(i)].
 * Memory:  5 n n numbers and 1,001 n labels of a layer with nulls. */
#ifndef CPL_MODEL_TOKENS_MEAN_TOKEN_H
#define CPL_MODEL_TOKENS_MEAN_TOKEN_H

#include "base/rng.h"
#include "model/tokens/samples.h"

/* Lists the figures: first those that have a null. An agreement is the mean over tokens of
 * Spearman's rho of two lists over experts. Tokens with a list that does not vary are left out. The
 * lists are, in the order of the names: s and a (agreement.spearman_mean of `inspect --text`); s
 * and a less their means over the tokens; (x - mu) . R_i and |(x - mu) W_g^i|; s and a of the K
 * experts of the token. PEARSON_CENTRED is Pearson's r over all (t,i) of s and a, both less their
 * means by expert and by token. DZ takes row and column means off M_tok of the experts with
 * CPL_TOKENS_FEW tokens or more, and adds the mean. It is the mean of the diagonal over the standard
 * deviation (divided by the number) off the diagonal, and NaN below 3 experts. MAIN_EFFECT is the
 * share of the experts' means in the variance of a over all (t,i), ROUTER_MU_NEGATIVE the share of
 * the R_i . mu that are below 0. ROUTER_MU_COS is the mean over i of
 * cos(R_i - mean R, W_i^T W_i mu), W_i = W_g^i [D,d]. Rows and products without a length are left
 * out. */
typedef enum cpl_mean_token_figure {
    CPL_MEAN_TOKEN_AGREEMENT,
    CPL_MEAN_TOKEN_AGREEMENT_CENTRED,
    CPL_MEAN_TOKEN_AGREEMENT_MU_OFF,
    CPL_MEAN_TOKEN_PEARSON_CENTRED,
    CPL_MEAN_TOKEN_AGREEMENT_CHOSEN,
    CPL_MEAN_TOKEN_DZ,
    CPL_MEAN_TOKEN_MAIN_EFFECT,
    CPL_MEAN_TOKEN_ROUTER_MU_NEGATIVE,
    CPL_MEAN_TOKEN_ROUTER_MU_COS,
    CPL_MEAN_TOKEN_FIGURES,
    CPL_MEAN_TOKEN_NULLS = CPL_MEAN_TOKEN_DZ + 1
} cpl_mean_token_figure;

/* The keys of the figures in files, in the order of the enum. */
extern const char *const cpl_mean_token_names[CPL_MEAN_TOKEN_FIGURES];

enum { CPL_MEAN_TOKEN_DRAWS = 1000 };

/* Holds mean and standard deviation (divided by their number) of a figure over random permutations
 * of the experts' answers, and the share of permutations whose figure is at least as far from the
 * mean as that of the model, to 1e-12. The share is (1 + their number) / (1 + the permutations). */
typedef struct cpl_mean_token_null {
    double mean, sd, p;
} cpl_mean_token_null;

/* Holds the figures of a layer. A figure that does not exist is NaN, and so is its null. Without
 * sampled tokens, and if one of their numbers is not finite, no figure exists. */
typedef struct cpl_mean_token {
    double value[CPL_MEAN_TOKEN_FIGURES];
    cpl_mean_token_null null[CPL_MEAN_TOKEN_NULLS];
} cpl_mean_token;

/* Sets the figures, and curve [n] (may be NULL). curve[r] is the mean, over the tokens, of the
 * answer of the expert whose score is the r-th lowest of the token, less the expert's mean answer,
 * over the expert's standard deviation. It is 0 for an expert whose answers do not vary. Among equal
 * scores the lower expert comes first. `layer` has the F32 masters. Permutation t is cpl_rng_shuffle of
 * `key` at step t, of the answers' labels p: expert i gets the answers of p(i). Without a key (NULL)
 * every null is NaN. All ranks have the same tokens. Collective. CPL_ERR_MEMORY. */
CPL_NODISCARD cpl_status cpl_mean_token_of(cpl_mean_token *out, double *curve, cpl_backend *be,
                                           const cpl_layer_params *layer,
                                           const cpl_token_samples *samples,
                                           const cpl_token_scratch *scratch,
                                           const cpl_rng_key *key);

#endif /* CPL_MODEL_TOKENS_MEAN_TOKEN_H */
