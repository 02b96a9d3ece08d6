/* score.c - see score.h */
#include "eval/grade/score.h"

#include <math.h>

#include "base/text.h"

#define CPL_SCORE(name, length, what) static cpl_score_function score_##name;
#define CPL_LOSS(name, what)          static cpl_score_function score_##name;
#include "eval/grade/scores.def"
#undef CPL_SCORE
#undef CPL_LOSS

#define CPL_SCORE(name, length, what) {#name, score_##name, false, CPL_LENGTH_##length, what},
#define CPL_LOSS(name, what)          {#name, score_##name, true, CPL_LENGTH_CONTINUATION, what},
const cpl_score cpl_scores[] = {
#include "eval/grade/scores.def"
};
#undef CPL_SCORE
#undef CPL_LOSS

enum { N_SCORES = sizeof cpl_scores / sizeof cpl_scores[0] };
const size_t cpl_n_scores = N_SCORES;

cpl_status cpl_score_find(const cpl_score **score, const char *name)
{
    const char *names[N_SCORES];
    size_t at;
    for (size_t i = 0; i < N_SCORES; i++) names[i] = cpl_scores[i].name;
    CPL_TRY(cpl_lookup(&at, "score", name, names, N_SCORES));
    *score = &cpl_scores[at];
    return CPL_OK;
}

/* ---- each one ---- */

/* A continuation of the delimiter alone has no character besides it. */
static double over(double value, int64_t length)
{
    return value / (double)(length > 0 ? length : 1);
}

static double score_acc(const cpl_option_facts *o)
{
    return o->loglik;
}

static double score_acc_norm(const cpl_option_facts *o)
{
    return over(o->loglik, o->choice_chars);
}

static double score_acc_bytes(const cpl_option_facts *o)
{
    return over(o->loglik, o->choice_bytes);
}

static double score_len_norm(const cpl_option_facts *o)
{
    return over(o->loglik, o->chars - 1);
}

static double score_len_norm_v2(const cpl_option_facts *o)
{
    return over(o->loglik, o->chars);
}

static double score_acc_per_char(const cpl_option_facts *o)
{
    return over(o->loglik, o->chars);
}

static double score_acc_per_token(const cpl_option_facts *o)
{
    return over(o->loglik, o->tokens);
}

static double score_acc_uncond(const cpl_option_facts *o)
{
    return o->loglik - o->unconditional;
}

static double score_bpb(const cpl_option_facts *o)
{
    return over(-o->loglik / log(2), o->bytes - 1);
}

static double score_bpb_v2(const cpl_option_facts *o)
{
    return over(-o->loglik / log(2), o->bytes);
}

static double score_ce_loss(const cpl_option_facts *o)
{
    return over(-o->loglik, o->chars - 1);
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
