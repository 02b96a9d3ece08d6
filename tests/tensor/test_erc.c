/* The operations of the coupling loss one by one: the noise bound, the noise, and the two ways
 * through the phases, which must meet. Values and gradients: tests/model/test_coupling. */
#include "base/arena.h"
#include "tensor/erc.h"
#include "tensor/ops_check.h"

static cpl_backend *backend(int n_threads)
{
    return new_cpu(CPL_F32, n_threads, (cpl_work){0});
}

/* ---- eps: the noise bound ---- */

static double plain_eps(const float *R, int n, int d, int i)
{
    double least = INFINITY, norm = 0;
    for (int k = 0; k < d; k++) norm += (double)R[i * d + k] * R[i * d + k];
    for (int j = 0; j < n; j++) {
        double apart = 0;
        for (int k = 0; k < d; k++) {
            double by = (double)R[i * d + k] - R[j * d + k];
            apart += by * by;
        }
        if (j != i && apart < least) least = apart;
    }
    return norm == 0 || n == 1 ? 0 : sqrt(least) / (2 * sqrt(norm));
}

static void check_eps(int n, int d, float scale, int zero_row, int equal_to_first)
{
    cpl_tensor rows = normal_2d(n, d, scale), eps = new_1d(CPL_F32, n);
    float *R = cpl_f32(rows);
    for (int k = 0; k < d && zero_row >= 0; k++) R[zero_row * d + k] = 0;
    for (int k = 0; k < d && equal_to_first >= 0; k++) R[equal_to_first * d + k] = R[k];
    for (int n_threads = 1; n_threads <= 3; n_threads++) {
        cpl_backend *be = backend(n_threads);
        be->ops->erc.nearest(be, eps, rows);
        for (int i = 0; i < n; i++) {
            double want = plain_eps(R, n, d, i);
            assert_near(cpl_f32(eps)[i], want, 2e-7 * want);
        }
        if (equal_to_first >= 0)
            assert_true(cpl_f32(eps)[0] == 0 && cpl_f32(eps)[equal_to_first] == 0);
        if (zero_row >= 0) assert_true(cpl_f32(eps)[zero_row] == 0);
    }
}

TEST(nearest)
{
    check_eps(1, 5, 1, -1, -1);
    check_eps(2, 1, 1, -1, -1);
    check_eps(40, 50, 1, -1, -1);
    check_eps(33, 17, 1e-18f, 4, 30); /* F32 cannot hold the squares of such differences */
    check_eps(30, 47, 1e15f, 0, -1);
    check_eps(7, 3, 1, -1, 6);
}

/* ---- noise ---- */

TEST(noise)
{
    enum { N = 13, D = 21 };
    float eps[N], delta[3][N * D];
    cpl_rng_key key = {.seed = 3, .step = 9, .layer = 1, .stream = CPL_STREAM_NOISE};
    for (int i = 0; i < N; i++) eps[i] = 0.1f * (float)i;
    for (int k = 0; k < 3; k++) {
        cpl_backend *be = backend(k + 1);
        be->ops->erc.noise(be, cpl_tensor_2d(delta[k], CPL_F32, N, D),
                           cpl_tensor_1d(eps, CPL_F32, N), key, k == 2 ? 1 : 0);
    }
    assert_memory_equal(delta[0], delta[1], sizeof delta[0]);
    assert_memory_not_equal(delta[0], delta[2], sizeof delta[0]);
    for (int i = 0; i < N * D; i++) {
        const int row = i / D;
        double first  = 2.0 * (double)cpl_rng_uniform(&key, (uint64_t)i) - 1;
        double second = 2.0 * (double)cpl_rng_uniform(&key, (uint64_t)(N * D + i)) - 1;
        assert_near(delta[0][i], 1 + (double)eps[row] * first, 2.4e-7);
        assert_near(delta[2][i], 1 + (double)eps[row] * second, 2.4e-7);
    }
    for (int k = 0; k < D; k++) assert_true(delta[0][k] == 1); /* eps is 0 */
}

/* ---- the phases ---- */

/* Outputs of a run: [n,n], [n], [n,d], [n,D,d] and [2,n]. */
typedef struct run {
    cpl_tensor M, diagonal, dR, dw, violations;
    double loss;
} run;

typedef struct problem {
    int64_t n, d, D;
    cpl_tensor R, w; /* [n,d], [n*D,d] */
} problem;

static run solve(const problem *p, double alpha, int n_threads, bool whole)
{
    run r                   = {new_tensor(CPL_F32, p->n, p->n), new_1d(CPL_F32, p->n),
                               new_tensor(CPL_F32, p->n, p->d), new_tensor(CPL_F32, p->n * p->D, p->d),
                               new_tensor(CPL_I32, 2, p->n),    0};
    const cpl_host_ops *ops = cpl_cpu_on_host();
    cpl_erc_host_job job    = {.n = p->n, .d = p->d, .D = p->D, .i1 = p->n, .j1 = p->n};
    job.alpha               = alpha;
    job.weight              = 1;
    job.R                   = cpl_f32(p->R);
    job.gate       = (cpl_erc_weights){.data = cpl_f32(p->w), .step = p->d * p->D, .stride = p->d};
    job.dgate      = (cpl_erc_grads){.data = cpl_f32(r.dw), .step = p->d * p->D, .stride = p->d};
    job.dR         = cpl_f32(r.dR);
    job.M          = cpl_f32(r.M);
    job.diagonal   = cpl_f32(r.diagonal);
    job.violations = cpl_i32(r.violations);
    job.n_threads  = n_threads;
    job.scratch_bytes = ops->erc_job_bytes(&job);
    job.scratch       = cpl_alloc(job.scratch_bytes);
    memset(job.scratch, 0xff, job.scratch_bytes);
    if (whole) {
        ops->erc_run_local(&job);
    } else {
        ops->erc_diagonals(&job);
        ops->erc_sweep(&job);
        ops->erc_add_diagonal(&job);
    }
    r.loss = job.loss;
    cpl_free(job.scratch);
    return r;
}

/* Returns how many hinges were active. */
static int64_t both_ways(problem p, double alpha)
{
    int64_t active = 0;
    for (int n_threads = 1; n_threads <= 3; n_threads++) {
        const run one   = solve(&p, alpha, n_threads, true);
        const run three = solve(&p, alpha, n_threads, false);
        assert_same_bits(one.M, three.M);
        assert_same_bits(one.diagonal, three.diagonal);
        assert_same_bits(one.violations, three.violations);
        for (int64_t j = 0; j < p.n; j++)
            assert_true(cpl_f32(one.M)[j * p.n + j] == cpl_f32(one.diagonal)[j]);
        assert_true(one.loss == three.loss);
        assert_close("dR", three.dR, doubles_of(one.dR), 1e-6, 0);
        assert_close("dw", three.dw, doubles_of(one.dw), 1e-6, 0);
        if (n_threads == 3)
            for (int64_t i = 0; i < 2 * p.n; i++) active += cpl_i32(one.violations)[i];
    }
    return active;
}

/* Returns a problem in which each expert answers its own row by `strength` more than others do. */
static problem problem_of(int64_t n, int64_t d, int64_t D, float strength)
{
    problem p = {n, d, D, normal_2d(n, d, 1), normal_2d(n * D, d, 0.3f)};
    for (int64_t i = 0; i < n * D * d; i++)
        cpl_f32(p.w)[i] += strength * cpl_f32(p.R)[i / (D * d) * d + i % d];
    return p;
}

/* Gives expert `e` of `p` a weak answer. */
static void weaken(problem *p, int64_t e)
{
    for (int64_t i = 0; i < p->D * p->d; i++) cpl_f32(p->w)[e * p->D * p->d + i] *= 1e-3f;
}

TEST(whole_is_the_three_phases)
{
    assert_true(both_ways(problem_of(40, 40, 40, 0), 1) > 0);
    assert_true(both_ways(problem_of(40, 37, 29, 0.1f), 0.5) > 0);
    assert_true(both_ways(problem_of(17, 33, 40, 0.02f), 0) == 2 * 17 * 16);
    assert_true(both_ways(problem_of(40, 40, 21, 5), 0.9) == 0);
    assert_true(both_ways(problem_of(1, 3, 2, 0), 1) == 0);
}

/* The expert of one row answers weakly. The other columns have violations in that row alone, by the
 * row's bound and by no column's bound. Those columns wait, and are then computed again for one
 * row. */
TEST(a_weak_row_pulls_late)
{
    for (int weak = 0; weak < 20; weak += 19) {
        problem p = problem_of(20, 40, 30, 5);
        weaken(&p, weak);
        both_ways(p, 1);
        const int32_t *violations = cpl_i32(solve(&p, 1, 2, true).violations);
        assert_true(violations[weak] > 10);
        for (int j = 0; j < 20; j++) assert_true(j == weak || violations[20 + j] == 0);
    }
}

/* Two and three rows pull late together: the panels of chosen rows are used. */
TEST(some_weak_rows_pull_late)
{
    problem p = problem_of(36, 24, 30, 5);
    for (int64_t e = 10; e < 13; e++) weaken(&p, e);
    assert_true(both_ways(p, 1) > 60);
}
