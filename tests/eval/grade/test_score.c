/* test_score.c - scores of options: figures by hand, ties, NaN, the share of right options. */
#include "eval/grade/score.h"

#include <math.h>

#include "check.h"

static const cpl_score *named(const char *name)
{
    const cpl_score *score = NULL;
    assert_ok(cpl_score_find(&score, name));
    return score;
}

TEST(every_figure)
{
    const struct {
        const char *name;
        double value;
        bool loss;
        cpl_score_length length;
    } figures[] = {
        {"acc", -12, 0, CPL_LENGTH_NONE},
        {"acc_norm", -12.0 / 5, 0, CPL_LENGTH_CHOICE},
        {"acc_bytes", -12.0 / 8, 0, CPL_LENGTH_CHOICE},
        {"len_norm", -12.0 / 6, 0, CPL_LENGTH_CONTINUATION},
        {"len_norm_v2", -12.0 / 7, 0, CPL_LENGTH_CONTINUATION},
        {"acc_per_char", -12.0 / 7, 0, CPL_LENGTH_CONTINUATION},
        {"acc_per_token", -12.0 / 3, 0, CPL_LENGTH_NONE},
        {"acc_uncond", -12.0 + 20, 0, CPL_LENGTH_NONE},
        {"bpb", 12 / log(2) / 10, 1, CPL_LENGTH_CONTINUATION},
        {"bpb_v2", 12 / log(2) / 11, 1, CPL_LENGTH_CONTINUATION},
        {"ce_loss", 12.0 / 6, 1, CPL_LENGTH_CONTINUATION},
    };
    const cpl_option_facts option = {-12, -20, 3, 7, 11, 5, 8};
    assert_int_equal(cpl_n_scores, sizeof figures / sizeof *figures);
    for (size_t i = 0; i < cpl_n_scores; i++) {
        const cpl_score *score = named(figures[i].name);
        assert_near(score->of(&option), figures[i].value, 1e-12);
        assert_int_equal(score->loss, figures[i].loss);
        assert_int_equal(score->length, figures[i].length);
    }
    /* the text is only a delimiter */
    const cpl_option_facts empty = {-3, 0, 1, 1, 1, 1, 1};
    for (size_t i = 0; i < cpl_n_scores; i++) assert_true(isfinite(cpl_scores[i].of(&empty)));
    const cpl_score *score;
    assert_fails(CPL_ERR_INPUT, "acc_norm", cpl_score_find(&score, "acc_nrom"));
}

static int64_t best_of(const double *ll, int64_t n)
{
    cpl_option_facts options[4] = {{0}};
    for (int64_t i = 0; i < n; i++) options[i].loglik = ll[i];
    return cpl_score_best(named("acc"), options, n);
}

/* An arg max that broke ties upward, or let NaN win, would show as 100 % on SciQ, whose right
 * option is always the last. */
TEST(the_first_of_the_best)
{
    assert_int_equal(best_of((double[]){-2, -1, -1, -3}, 4), 1);
    assert_int_equal(best_of((double[]){-1, -1, -1, -1}, 4), 0);
    assert_int_equal(best_of((double[]){-5, -4, -3, -2}, 4), 3);
    assert_int_equal(best_of((double[]){-5, NAN, -7, NAN}, 4), 0);
    assert_int_equal(best_of((double[]){NAN, NAN, -7, -9}, 4), 2);
    assert_int_equal(best_of((double[]){NAN, -INFINITY}, 2), 1);
    assert_int_equal(best_of((double[]){NAN, NAN}, 2), 0);
}

TEST(the_share_of_the_right)
{
    const cpl_option_facts even[3] = {
        {-900, 0, 1, 2, 2, 1, 1}, {-900, 0, 1, 2, 2, 1, 1}, {-900, 0, 1, 2, 2, 1, 1}};
    const cpl_option_facts odd[2] = {{-1000, 0, 1, 11, 11, 10, 10},
                                     {-1000 + log(3), 0, 1, 6, 6, 5, 5}};
    const int64_t gold[2] = {0, 2}, last = 1;
    assert_near(cpl_score_soft(named("acc"), even, 3, gold, 1), 1.0 / 3, 1e-15);
    assert_near(cpl_score_soft(named("acc"), even, 3, gold, 2), 2.0 / 3, 1e-15);
    assert_near(cpl_score_soft(named("acc"), odd, 2, &last, 1), 0.75, 1e-12);
    assert_near(cpl_score_soft(named("len_norm"), odd, 2, gold, 1),
                1 / (1 + exp((-1000 + log(3)) / 5 + 100)), 1e-12);
}
