/* Figures of the coupling against plain loops, and what scaling the weights does to them. */
#include "tensor/levels.h"
#include "tensor/ops_check.h"

typedef struct problem {
    cpl_backend *be;
    int64_t n, d;
    cpl_tensor M, eps, R, gate_norm; /* [n,n], [n], [n,d], [n] */
} problem;

static cpl_tensor positive(cpl_tensor x)
{
    for (int64_t i = 0; i < cpl_tensor_count(x); i++) cpl_f32(x)[i] = fabsf(cpl_f32(x)[i]) + 0.1f;
    return x;
}

static problem problem_of(int64_t n, int64_t d)
{
    cpl_work work = {.n_experts = n, .d_model = d};
    problem p     = {new_cpu(CPL_F32, 2, work),
                     n,
                     d,
                     positive(normal_2d(n, n, 1)),
                     positive(normal_1d(n, 1)),
                     normal_2d(n, d, 1),
                     positive(normal_1d(n, 1))};
    return p;
}

static cpl_coupling_figures figures_of(const problem *p, double alpha)
{
    cpl_coupling_figures f;
    memset(&f, 0xff, sizeof f);
    p->be->ops->coupling_figures(p->be, &f, p->M, p->eps, p->R, p->R, cpl_tensor_none(),
                                 p->gate_norm, alpha, 1);
    return f;
}

static double m_of(const problem *p, int64_t i, int64_t j)
{
    return cpl_f32(p->M)[i * p->n + j];
}

static double router_norm(const problem *p, int64_t i)
{
    double squares = 0;
    for (int64_t k = 0; k < p->d; k++)
        squares += (double)cpl_f32(p->R)[i * p->d + k] * (double)cpl_f32(p->R)[i * p->d + k];
    return sqrt(squares);
}

static double kappa(const problem *p, int64_t i, int64_t j)
{
    return m_of(p, i, j) / (router_norm(p, i) * (double)cpl_f32(p->gate_norm)[j]);
}

/* Relative: sums of at most n n doubles. */
static const double TOLERANCE = 1e-12;

static void assert_same(double got, double want)
{
    assert_near(got, want, TOLERANCE * fabs(want));
}

static void check_norms(const problem *p, const cpl_coupling_figures *f)
{
    const double n = (double)p->n;
    double sum[2] = {0, 0}, off[2] = {0, 0};
    for (int64_t i = 0; i < p->n; i++) {
        sum[0] += router_norm(p, i);
        sum[1] += (double)cpl_f32(p->gate_norm)[i];
    }
    for (int64_t i = 0; i < p->n; i++) {
        off[0] += pow(router_norm(p, i) - sum[0] / n, 2);
        off[1] += pow((double)cpl_f32(p->gate_norm)[i] - sum[1] / n, 2);
    }
    assert_same(f->router_norm_mean, sum[0] / n);
    assert_same(f->gate_norm_mean, sum[1] / n);
    assert_near(f->router_norm_std, sqrt(off[0] / n), TOLERANCE * sum[0]);
    assert_near(f->gate_norm_std, sqrt(off[1] / n), TOLERANCE * sum[1]);
}

static void check_kappa(const problem *p, const cpl_coupling_figures *f)
{
    double own = 0, other = 0, rows = 0, columns = 0, n = (double)p->n;
    for (int64_t i = 0; i < p->n; i++) {
        double best_row = 0, best_column = 0;
        for (int64_t j = 0; j < p->n; j++) {
            *(i == j ? &own : &other) += kappa(p, i, j);
            best_row    = fmax(best_row, kappa(p, i, j));
            best_column = fmax(best_column, kappa(p, j, i));
        }
        rows += best_row <= kappa(p, i, i);
        columns += best_column <= kappa(p, i, i);
    }
    assert_same(f->kappa_diagonal, own / n);
    assert_same(f->kappa_off_diagonal, p->n > 1 ? other / (n * (n - 1)) : 0);
    assert_same(f->kappa_row_top1, rows / n);
    assert_same(f->kappa_column_top1, columns / n);
}

static void check_matrix(const problem *p, const cpl_coupling_figures *f)
{
    double own = 0, other = 0, least = 0, n = (double)p->n;
    for (int64_t i = 0; i < p->n; i++)
        for (int64_t j = 0; j < p->n; j++) {
            *(i == j ? &own : &other) += m_of(p, i, j);
            if (i != j) least = fmax(least, m_of(p, i, j) / fmin(m_of(p, i, i), m_of(p, j, j)));
        }
    assert_same(f->m_diagonal, own / n);
    assert_same(f->m_off_diagonal, p->n > 1 ? other / (n * (n - 1)) : 0);
    assert_same(f->alpha_min, least);
}

static void test_against_plain_loops(void **state)
{
    static const int64_t sizes[][2] = {{1, 1}, {2, 3}, {5, 17}, {33, 64}};
    for (size_t k = 0; k < sizeof sizes / sizeof *sizes; k++, release_all(state)) {
        problem p              = problem_of(sizes[k][0], sizes[k][1]);
        cpl_coupling_figures f = figures_of(&p, 0.7);
        check_norms(&p, &f);
        check_kappa(&p, &f);
        check_matrix(&p, &f);
    }
}

/* The largest eps up to which no corner delta = 1 +- eps brings row i nearer to row j, by trying all
 * corners of few dimensions. */
static double largest_bound(const problem *p, int64_t i)
{
    const float *r = cpl_f32(p->R);
    double least   = INFINITY;
    for (int64_t j = 0; j < p->n; j++)
        for (int64_t corner = 0; j != i && corner < (int64_t)1 << p->d; corner++) {
            double apart = 0, moved = 0; /* by eps 1 along R_j - R_i */
            for (int64_t k = 0; k < p->d; k++) {
                const double own = (double)r[i * p->d + k], by = (double)r[j * p->d + k] - own;
                apart += by * by;
                moved += own * by * (corner >> k & 1 ? 1 : -1);
            }
            if (moved > 0) least = fmin(least, apart / (2 * moved));
        }
    return least;
}

static void test_share_of_the_noise_bound(void **state)
{
    problem p    = problem_of(5, 6);
    double share = 0;
    (void)state;
    p.be->ops->proxy.nearest(p.be, p.eps, p.R);
    for (int64_t i = 0; i < p.n; i++)
        share += (double)cpl_f32(p.eps)[i] / largest_bound(&p, i) / (double)p.n;
    assert_near(figures_of(&p, 1).noise_bound_share, share, 1e-6);
    assert_true(share > 0.1 && share < 1);
}

/* Orthogonal rows of planted lengths, more of them than dimensions, and rows that depend on each
 * other. */
static void test_singular_values_of_the_router(void **state)
{
    problem p = problem_of(4, 9), tall = problem_of(6, 2);
    const double length[] = {8, 4, 2, 2};
    double entropy        = 0;
    (void)state;
    memset(cpl_f32(p.R), 0, cpl_tensor_bytes(p.R));
    for (int64_t i = 0; i < 4; i++) {
        cpl_f32(p.R)[i * 9 + 2 * i] = (float)length[i];
        entropy -= length[i] / 16 * log(length[i] / 16);
    }
    assert_near(figures_of(&p, 1).router_condition, 4, 1e-12);
    assert_near(figures_of(&p, 1).router_effective_rank, exp(entropy), 1e-12);
    memcpy(cpl_f32(p.R), cpl_f32(p.R) + 9, 9 * sizeof(float));
    assert_true(isinf(figures_of(&p, 1).router_condition));
    for (int64_t i = 0; i < 12; i++) cpl_f32(tall.R)[i] = (i + i / 2) % 2 == 0; /* (1,0), (0,1) */
    assert_near(figures_of(&tall, 1).router_condition, 1, 1e-12);
    assert_near(figures_of(&tall, 1).router_effective_rank, 2, 1e-12);
    memset(cpl_f32(tall.R), 0, cpl_tensor_bytes(tall.R));
    assert_near(figures_of(&tall, 1).router_effective_rank, 0, 0);
}

static void scale(cpl_tensor x, float by)
{
    for (int64_t i = 0; i < cpl_tensor_count(x); i++) cpl_f32(x)[i] *= by;
}

/* By a power of two, so that no rounding changes. */
static void test_kappa_is_free_of_scale(void **state)
{
    problem p              = problem_of(12, 20);
    cpl_coupling_figures f = figures_of(&p, 1), g;
    (void)state;
    scale(p.M, 8);
    scale(p.gate_norm, 8);
    g = figures_of(&p, 1);
    assert_true(g.kappa_diagonal == f.kappa_diagonal);
    assert_true(g.kappa_off_diagonal == f.kappa_off_diagonal);
    assert_true(g.alpha_min == f.alpha_min && g.active_rows == f.active_rows);
    assert_true(g.m_diagonal == 8 * f.m_diagonal && g.gate_norm_mean == 8 * f.gate_norm_mean);
}

static int run(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(test_against_plain_loops, release_all),
        cmocka_unit_test_teardown(test_share_of_the_noise_bound, release_all),
        cmocka_unit_test_teardown(test_singular_values_of_the_router, release_all),
        cmocka_unit_test_teardown(test_kappa_is_free_of_scale, release_all),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

int main(void)
{
    return run_at_every_level(run);
}
