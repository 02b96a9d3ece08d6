/* Figures of the coupling against plain loops, and their response to scaled weights. */
#include "tensor/levels.h"
#include "tensor/ops_check.h"

typedef struct problem {
    cpl_backend *be;
    int64_t n, d;
    cpl_tensor M, eps, R, gate_norm, gate_spectral, own; /* [n,n], [n], [n,d], [n], [n], [n] */
} problem;

static cpl_tensor positive(cpl_tensor x)
{
    for (int64_t i = 0; i < cpl_tensor_count(x); i++) cpl_f32(x)[i] = fabsf(cpl_f32(x)[i]) + 0.1f;
    return x;
}

static problem problem_of(int64_t n, int64_t d)
{
    cpl_work work = {.n_experts = n, .d_model = d};
    problem p     = LIST(new_cpu(CPL_F32, 2, work), n, d, positive(normal_2d(n, n, 1)),
                         positive(normal_1d(n, 1)), normal_2d(n, d, 1), positive(normal_1d(n, 1)),
                         positive(normal_1d(n, 1)), cpl_tensor_none());
    return p;
}

static cpl_coupling_figures figures_of(const problem *p, double alpha)
{
    cpl_coupling_figures f;
    memset(&f, 0xff, sizeof f);
    p->be->ops->coupling_figures(p->be, cpl_tensor_1d(&f, CPL_F64, CPL_N_FIGURES), p->M, p->eps,
                                 p->R, p->R, cpl_tensor_none(), p->gate_norm, p->gate_spectral,
                                 p->own, alpha, 1);
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

/* Relative tolerance for sums of at most n n doubles. */
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

static void check_lambda(const problem *p, const cpl_coupling_figures *f)
{
    double own = 0, random = 0, n = (double)p->n;
    for (int64_t i = 0; i < p->n; i++) {
        const double spectral = (double)cpl_f32(p->gate_spectral)[i];
        own += m_of(p, i, i) / (router_norm(p, i) * spectral);
        random += (double)cpl_f32(p->gate_norm)[i] / (sqrt((double)p->d) * spectral);
    }
    assert_same(f->router_lambda, own / n);
    assert_same(f->router_lambda_random, random / n);
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

TEST(test_against_plain_loops)
{
    static const int64_t sizes[][2] = {{1, 1}, {2, 3}, {5, 17}, {33, 64}};
    for (size_t k = 0; k < sizeof sizes / sizeof *sizes; k++, release_all(state)) {
        problem p              = problem_of(sizes[k][0], sizes[k][1]);
        cpl_coupling_figures f = figures_of(&p, 0.7);
        check_norms(&p, &f);
        check_kappa(&p, &f);
        check_matrix(&p, &f);
        check_lambda(&p, &f);
    }
}

/* Returns the largest eps up to which no corner delta = 1 +- eps brings row i nearer to row j, by
 * trying all corners. The dimensions are few. */
static double largest_bound(const problem *p, int64_t i)
{
    const float *r = cpl_f32(p->R);
    double least   = INFINITY;
    for (int64_t j = 0; j < p->n; j++)
        for (int64_t corner = 0; j != i && corner < (int64_t)1 << p->d; corner++) {
            double apart = 0, moved = 0; /* with eps 1 along R_j - R_i */
            for (int64_t k = 0; k < p->d; k++) {
                const double own = (double)r[i * p->d + k], by = (double)r[j * p->d + k] - own;
                apart += by * by;
                moved += own * by * (corner >> k & 1 ? 1 : -1);
            }
            if (moved > 0) least = fmin(least, apart / (2 * moved));
        }
    return least;
}

TEST(test_share_of_the_noise_bound)
{
    problem p    = problem_of(5, 6);
    double share = 0;
    p.be->ops->erc.nearest(p.be, p.eps, p.R);
    for (int64_t i = 0; i < p.n; i++)
        share += (double)cpl_f32(p.eps)[i] / largest_bound(&p, i) / (double)p.n;
    assert_near(figures_of(&p, 1).noise_bound_share, share, 1e-6);
    assert_true(share > 0.1 && share < 1);
}

/* Rows are orthogonal with planted lengths, more than the dimensions, or linearly dependent. */
TEST(test_singular_values_of_the_router)
{
    problem p = problem_of(4, 9), tall = problem_of(6, 2);
    const double length[] = {8, 4, 2, 2};
    double entropy        = 0;
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

/* Returns |R_i W^i| of the gates W [n,D,d]. */
static double plain_response(const problem *p, cpl_tensor W, int64_t i)
{
    const int64_t D = W.shape[1], d = p->d;
    double squares = 0;
    for (int64_t k = 0; k < D; k++) {
        double sum = 0;
        for (int64_t c = 0; c < d; c++)
            sum += (double)cpl_f32(p->R)[i * d + c] * (double)cpl_f32(W)[(i * D + k) * d + c];
        squares += sum * sum;
    }
    return sqrt(squares);
}

/* Sets the members of the problem that come from the gates W [n,D,d]. */
static void set_gates(problem *p, cpl_tensor W)
{
    p->own = new_1d(CPL_F32, p->n);
    p->be->ops->row_norms(p->be, p->gate_norm, W);
    p->be->ops->spectral_norms(p->be, p->gate_spectral, W);
    p->be->ops->own_responses(p->be, p->own, p->R, W);
    for (int64_t i = 0; i < p->n; i++) {
        const double want = plain_response(p, W, i);
        assert_near(cpl_f32(p->own)[i], want, FLT_EPSILON * want);
    }
}

/* Sets row [d] to three times the top right singular vector of W [D,d]. The steps of power
 * iteration are so many that no second vector is left. */
static void set_top_vector(float *row, cpl_tensor W)
{
    enum { STEPS = 20000, MOST = 16 };
    const int64_t D = W.shape[0], d = W.shape[1];
    double v[MOST], next[MOST];
    assert_true(d <= MOST);
    for (int64_t c = 0; c < d; c++) v[c] = 1 + (double)c;
    for (int step = 0; step < STEPS; step++) {
        double squares = 0;
        memset(next, 0, sizeof next);
        for (int64_t k = 0; k < D; k++) {
            double along = 0;
            for (int64_t c = 0; c < d; c++) along += (double)cpl_f32(W)[k * d + c] * v[c];
            for (int64_t c = 0; c < d; c++) next[c] += along * (double)cpl_f32(W)[k * d + c];
        }
        for (int64_t c = 0; c < d; c++) squares += next[c] * next[c];
        for (int64_t c = 0; c < d; c++) v[c] = next[c] / sqrt(squares);
    }
    for (int64_t c = 0; c < d; c++) row[c] = (float)(3 * v[c]);
}

static problem problem_with_gates(int64_t n, int64_t D, int64_t d, cpl_tensor *W)
{
    problem p = problem_of(n, d);
    p.be      = new_cpu(CPL_F32, 2, (cpl_work){.n_experts = n, .d_model = d, .d_expert = D});
    *W        = normal_3d(n, D, d, 0.3f);
    return p;
}

/* Rows planted at the top of their gates have lambda 1, and each row alone 1/n of the mean. Random
 * rows have about the lambda of a random direction. */
TEST(test_lambda_of_planted_and_of_random_rows)
{
    enum { N = 5, D = 6, WIDTH = 9 };
    cpl_tensor W;
    problem p = problem_with_gates(N, D, WIDTH, &W), many;
    for (int64_t i = 0; i < N; i++) set_top_vector(cpl_f32(p.R) + i * WIDTH, cpl_tensor_at(W, i));
    set_gates(&p, W);
    assert_near(figures_of(&p, 1).router_lambda, 1, 1e-5);
    for (int64_t k = 0; k < WIDTH; k++) cpl_f32(p.R)[k] = 0;
    for (int64_t k = 0; k < D * WIDTH; k++) cpl_f32(W)[D * WIDTH + k] = 0;
    set_gates(&p, W);
    assert_near(figures_of(&p, 1).router_lambda, 0.6, 1e-5); /* one row is zero, and one gate */
    many = problem_with_gates(200, 16, 48, &W);
    set_gates(&many, W);
    const cpl_coupling_figures f = figures_of(&many, 1);
    assert_near(f.router_lambda, f.router_lambda_random, 0.05 * f.router_lambda_random);
    assert_true(f.router_lambda_random > 0.2 && f.router_lambda_random < 0.8);
}

TEST(test_lambda_without_spectral_norms)
{
    problem p                    = problem_of(4, 5);
    p.gate_spectral              = cpl_tensor_none();
    const cpl_coupling_figures f = figures_of(&p, 1);
    assert_true(isnan(f.router_lambda) && isnan(f.router_lambda_random));
    check_kappa(&p, &f);
}

static void scale(cpl_tensor x, float by)
{
    for (int64_t i = 0; i < cpl_tensor_count(x); i++) cpl_f32(x)[i] *= by;
}

/* Scales by a power of two, so that no rounding changes. */
TEST(test_kappa_is_free_of_scale)
{
    problem p              = problem_of(12, 20);
    cpl_coupling_figures f = figures_of(&p, 1), g;
    scale(p.M, 8);
    scale(p.gate_norm, 8);
    g = figures_of(&p, 1);
    assert_true(g.kappa_diagonal == f.kappa_diagonal);
    assert_true(g.kappa_off_diagonal == f.kappa_off_diagonal);
    assert_true(g.alpha_min == f.alpha_min && g.active_rows == f.active_rows);
    assert_true(g.m_diagonal == 8 * f.m_diagonal && g.gate_norm_mean == 8 * f.gate_norm_mean);
}
