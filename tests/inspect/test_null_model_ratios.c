/* test_null_model_ratios.c - the coupling loss of a matrix by its equation, and the ratios of a
 * matrix: NumPy's quantiles, and diagonals of zero. */
#include <float.h>

#include "inspect/null_model_case.h"

/* ---- ERC ---- */

TEST(test_erc_is_the_equation)
{
    static const int64_t sizes[] = {1, 2, 3, 17, 64};
    static float M[MOST_N * MOST_N];
    for (uint64_t s = 0; s < 5; s++) {
        int64_t n = sizes[s];
        draw_uniform(M, n * n, s, 0, 3);
        for (int a = 0; a < N_ALPHAS; a++) {
            double want = plain_erc(M, n, alphas[a]);
            assert_near(cpl_null_model_erc(M, n, alphas[a]), want, slack * DBL_EPSILON * 6);
        }
    }
    const float by_hand[] = {1, 3, 2.5f, 2}; /* row hinges 2 and 0.5, column hinges 1 and 1.5 */
    assert_near(cpl_null_model_erc(by_hand, 2, 1), 5.0 / 4, DBL_EPSILON);
}

TEST(test_erc_falls_and_is_convex_in_alpha)
{
    enum { STEPS = 60 };
    static float M[MOST_N * MOST_N];
    for (uint64_t seed = 0; seed < 8; seed++) {
        int64_t n = 2 + 7 * (int64_t)seed;
        double erc[STEPS];
        draw_uniform(M, n * n, 100 + seed, 0.1, 1);
        for (int k = 0; k < STEPS; k++) erc[k] = cpl_null_model_erc(M, n, k / 6.0);
        double tolerance = slack * DBL_EPSILON * erc[0];
        assert_true(erc[0] > 0);
        for (int k = 1; k < STEPS; k++)
            assert_true(erc[k] < erc[k - 1] || (erc[k] == 0 && erc[k - 1] == 0));
        for (int k = 1; k < STEPS - 1; k++)
            assert_true(erc[k - 1] + erc[k + 1] - 2 * erc[k] >= -tolerance);
    }
}

TEST(test_alpha_min_is_where_erc_ends)
{
    static float M[20 * 20];
    for (uint64_t seed = 0; seed < 200; seed++) {
        cpl_null_model_ratios ratios;
        draw_uniform(M, 400, 200 + seed, 0.05, 1);
        assert_ok(cpl_null_model_ratios_of(&ratios, M, 20));
        double most = 0;
        for (int i = 0; i < 20; i++)
            for (int j = 0; j < 20; j++)
                if (i != j)
                    most = fmax(most, fmax((double)M[i * 20 + j] / M[i * 21],
                                           (double)M[i * 20 + j] / M[j * 21]));
        assert_near(ratios.most, most, DBL_EPSILON * most);
        assert_true(cpl_null_model_erc(M, 20, ratios.most) == 0);
        assert_true(cpl_null_model_erc(M, 20, ratios.most * (1 - 1e-12)) > 0);
    }
}

/* ---- ratios ---- */

TEST(test_ratios_by_hand)
{
    /* Ratios: (0,1) 3, (0,2) 1, (1,0) 1, (1,2) 0.5, (2,0) 2, (2,1) 0.25: sorted
     * 0.25 0.5 1 1 2 3, at places 2.5, 4.5 and 4.95. */
    const float M[] = {2, 3, 2, 1, 1, 0.5f, 4, 0.5f, 2};
    cpl_null_model_ratios r;
    assert_ok(cpl_null_model_ratios_of(&r, M, 3));
    assert_near(r.q50, 1, DBL_EPSILON);
    assert_near(r.q90, 2.5, 4 * DBL_EPSILON);
    assert_near(r.q99, 2.95, 8 * DBL_EPSILON);
    assert_near(r.most, 3, 4 * DBL_EPSILON);
    assert_near(r.violated, 2.0 / 6, DBL_EPSILON);
    assert_int_equal(r.most_row, 0);
    assert_int_equal(r.most_column, 1);
}

/* numpy.quantile gives these quantiles for ratios k / 64, k = 1 .. 90 in mixed order, diagonal 1.
 * Quantile q is at place 89 q, between k = 1 + floor(89 q) and the next. */
TEST(test_quantiles_as_numpys)
{
    float M[100];
    cpl_null_model_ratios r;
    for (int i = 0, k = 0; i < 10; i++)
        for (int j = 0; j < 10; j++) M[i * 10 + j] = i == j ? 1 : (float)(1 + 37 * k++ % 90) / 64;
    assert_ok(cpl_null_model_ratios_of(&r, M, 10));
    assert_near(r.q50, 45.5 / 64, 4 * DBL_EPSILON);
    assert_near(r.q90, 81.1 / 64, 4 * DBL_EPSILON);
    assert_near(r.q99, 89.11 / 64, 4 * DBL_EPSILON);
    assert_near(r.most, 90.0 / 64, DBL_EPSILON);
    assert_near(r.violated, 26.0 / 90, DBL_EPSILON);
}

TEST(test_ratios_of_zero_diagonals)
{
    cpl_null_model_ratios r;
    const float one_dead[] = {1, 0.5f, 0.5f, 0.5f, 1, 0.25f, 0, 0.5f, 0}; /* M_22 = 0 */
    assert_ok(cpl_null_model_ratios_of(&r, one_dead, 3));
    /* (0,2), (1,2) and (2,1) are infinite, (2,0) is 0/0 and 0: sorted 0 0.5 0.5 inf inf inf. */
    assert_true(isinf(r.q50) && isinf(r.q90) && isinf(r.q99) && isinf(r.most));
    assert_near(r.violated, 0.5, 0);
    assert_int_equal(r.most_row, 0);
    assert_int_equal(r.most_column, 2);

    const float dead_column[] = {0, 1, 1, 1, 0, 1, 1, 1,
                                 0, 0, 1, 1, 1, 0, 1, 1}; /* 4 x 4, M_00 = 0 */
    assert_ok(cpl_null_model_ratios_of(&r, dead_column, 4));
    assert_true(isinf(r.most) && !isnan(r.q50));

    const float zero[9] = {0};
    assert_ok(cpl_null_model_ratios_of(&r, zero, 3));
    assert_true(r.q50 == 0 && r.q99 == 0 && r.most == 0 && r.violated == 0);
    assert_int_equal(r.most_column, 1);
    assert_ok(cpl_null_model_ratios_of(&r, zero, 1));
    assert_true(r.q50 == 0 && r.q99 == 0 && r.most == 0 && r.violated == 0);
}

/* One of the 30 ratios is infinite: it is above the place of 90 % and next to that of 99 %. */
TEST(test_infinite_neighbours_count_by_weight)
{
    float M[36];
    cpl_null_model_ratios r;
    for (int i = 0; i < 6; i++)
        for (int j = 0; j < 6; j++) M[i * 6 + j] = i == j ? 1 : 0.5f;
    for (int j = 0; j < 6; j++) M[j] = M[j * 6] = 0;
    M[3] = 1; /* M_00 = 0 < M_03 */
    assert_ok(cpl_null_model_ratios_of(&r, M, 6));
    assert_near(r.q50, 0.5, DBL_EPSILON);
    assert_near(r.q90, 0.5, DBL_EPSILON);
    assert_true(isinf(r.q99) && isinf(r.most));
    const float pair[] = {0, 1, 0, 1}; /* 0 and infinity: every place has weight above */
    assert_ok(cpl_null_model_ratios_of(&r, pair, 2));
    assert_true(isinf(r.q50) && isinf(r.most));
    assert_near(r.violated, 0.5, 0);
}
