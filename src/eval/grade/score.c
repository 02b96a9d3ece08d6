/* score.c - see score.h */
#include "eval/grade/score.h"

#include <math.h>

#include "base/text.h"

/* Divides a value by a length. A continuation that is only the delimiter has no other character and
 * is divided by 1. */
static double over(double value, int64_t length)
{
    return value / (double)(length > 0 ? length : 1);
}

#define CPL_SCORE(name, length, figure)                                                            \
    static double score_##name(const cpl_option_facts *o)                                          \
    {                                                                                              \
        return figure;                                                                             \
    }
#define CPL_GOLD_LOSS(name, figure) CPL_SCORE(name, CONTINUATION, figure)
#include "eval/grade/scores.def"
#undef CPL_SCORE
#undef CPL_GOLD_LOSS

#define CPL_SCORE(name, length, figure) {#name, score_##name, false, CPL_LENGTH_##length},
#define CPL_GOLD_LOSS(name, figure)     {#name, score_##name, true, CPL_LENGTH_CONTINUATION},
const cpl_score cpl_scores[] = {
#include "eval/grade/scores.def"
};
#undef CPL_SCORE
#undef CPL_GOLD_LOSS

const size_t cpl_n_scores = sizeof cpl_scores / sizeof *cpl_scores;

cpl_status cpl_score_find(const cpl_score **score, const char *name)
{
    size_t index;
    CPL_TRY(cpl_lookup_in(&index, "score", name, cpl_scores, cpl_n_scores, sizeof *cpl_scores));
    *score = &cpl_scores[index];
    return CPL_OK;
}

/* ---- all options of a question ---- */

int64_t cpl_score_best(const cpl_score *score, const cpl_option_facts *options, int64_t n)
{
    int64_t best = 0;
    double top   = score->of(&options[0]);
    for (int64_t i = 1; i < n; i++) {
        double value = score->of(&options[i]);
        if (!(value > top || (isnan(top) && !isnan(value)))) continue;
        best = i;
        top  = value;
    }
    return best;
}

double cpl_score_soft(const cpl_score *score, const cpl_option_facts *options, int64_t n,
                      const int64_t *gold, int64_t n_gold)
{
    double top = score->of(&options[cpl_score_best(score, options, n)]), all = 0, right = 0;
    for (int64_t i = 0; i < n; i++) all += exp(score->of(&options[i]) - top);
    for (int64_t i = 0; i < n_gold; i++) right += exp(score->of(&options[gold[i]]) - top);
    return right / all;
}
