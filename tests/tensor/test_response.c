/* Responses against plain loops in double, at every level of instructions: sums of squares and the
 * norm, with every split of the rows over calls and threads, and at scales where F32 has no
 * squares. */
#include <omp.h>

#include "base/arena.h"
#include "tensor/levels.h"
#include "tensor/ops_check.h"

/* The factor C of the error of a sum of d products in F32: C eps sqrt(d) of its factors' norms. */
static const double C = 1;

typedef struct sums {
    double *squares, *centred, *norm; /* [n]; [n]; [1] */
} sums;

typedef struct problem {
    int64_t n, d, D;
    cpl_tensor X, W; /* [n,d], [D,d] */
    void *packed;
} problem;

/* Returns memory of exactly this size, filled with poison. */
static void *unset(size_t bytes)
{
    return memset(take(bytes), 0xff, bytes);
}

static problem problem_of(int64_t n, int64_t d, int64_t D, float scale)
{
    problem p = {n, d, D, normal_2d(n, d, 1), normal_2d(D, d, scale), NULL};
    p.packed  = unset(cpl_cpu_on_host()->response.packed_bytes(n, d));
    cpl_cpu_on_host()->response.pack(p.packed, matrix_of(p.X));
    return p;
}

static void *new_scratch(void)
{
    return unset(cpl_cpu_on_host()->response.scratch_bytes());
}

static sums new_sums(const problem *p)
{
    sums s = {new_doubles(p->n), new_doubles(p->n), new_doubles(1)};
    return s;
}

static void add_rows(const problem *p, sums to, int64_t first, int64_t count, void *scratch)
{
    const cpl_matrix rows = matrix_of(cpl_tensor_range(p->W, first, count));
    cpl_cpu_on_host()->response.add(to.squares, to.centred, to.norm, p->packed, p->n, rows,
                                    scratch);
}

static sums whole(const problem *p)
{
    sums s = new_sums(p);
    add_rows(p, s, 0, p->D, new_scratch());
    return s;
}

static double dot(const float *a, const float *b, int64_t d)
{
    double sum = 0;
    for (int64_t k = 0; k < d; k++) sum += (double)a[k] * (double)b[k];
    return sum;
}

static const float *row(cpl_tensor x, int64_t i)
{
    return cpl_f32(x) + i * x.shape[1];
}

static sums oracle(const problem *p)
{
    sums s = new_sums(p);
    for (int64_t r = 0; r < p->D; r++) {
        double mean = 0;
        *s.norm += dot(row(p->W, r), row(p->W, r), p->d);
        for (int64_t i = 0; i < p->n; i++)
            mean += dot(row(p->X, i), row(p->W, r), p->d) / (double)p->n;
        for (int64_t i = 0; i < p->n; i++) {
            double product = dot(row(p->X, i), row(p->W, r), p->d);
            s.squares[i] += product * product;
            s.centred[i] += (product - mean) * (product - mean);
        }
    }
    return s;
}

/* The products are off by at most e_r = C eps sqrt(d) |X_i| |W_r|. The sum of their squares is then
 * off by 2 sum |p_r| e_r + sum e_r^2, which Cauchy and Schwarz bound. */
static void check_sums(const problem *p, sums got, sums want, double already)
{
    const double norm = *want.norm;
    double mean       = 0; /* bounds the mean row's sum */
    for (int64_t i = 0; i < p->n; i++)
        mean += sqrt(dot(row(p->X, i), row(p->X, i), p->d)) / (double)p->n;
    assert_near(*got.norm - already, norm,
                4 * DBL_EPSILON * (sqrt((double)(p->D * p->d)) * norm + already));
    for (int64_t i = 0; i < p->n; i++) {
        double size = sqrt(dot(row(p->X, i), row(p->X, i), p->d) * norm);
        double off  = sum_tolerance(C, p->d) * size;
        assert_near(got.squares[i] - already, want.squares[i],
                    2 * sqrt(want.squares[i]) * off + off * off +
                        4 * DBL_EPSILON * (want.squares[i] + already));
        off += sum_tolerance(C, p->d) * mean * sqrt(norm);
        assert_near(got.centred[i] - already, want.centred[i],
                    2 * sqrt(want.centred[i]) * off + off * off +
                        4 * DBL_EPSILON * (want.squares[i] + want.centred[i] + already));
    }
}

static void check(int64_t n, int64_t d, int64_t D, float scale)
{
    problem p = problem_of(n, d, D, scale);
    check_sums(&p, whole(&p), oracle(&p), 0);
}

static const int64_t widths[] = {1, 2, 3, 4, 7, 8, 15, 16, 17, 33, 48, 63, 64, 65, 100, 130};

TEST(test_router_rows)
{
    for (size_t i = 0; i < sizeof widths / sizeof *widths; i++, release_all(state)) {
        check(widths[i], 37, 29, 0.02f);
        check(widths[i], 1, 1, 1);
    }
}

TEST(test_expert_rows)
{
    static const int64_t rows[] = {0, 1, 2, 3, 5, 6, 7, 95, 96, 97, 200};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++, release_all(state)) {
        check(1, 33, rows[i], 0.02f);
        check(5, 33, rows[i], 0.02f);
        check(70, 64, rows[i], 0.02f);
    }
}

/* Checks depths: blocks are shorter where rows are long. */
TEST(test_depths)
{
    static const int64_t depths[] = {1, 2, 31, 32, 63, 65, 129, 1536, 5461, 7168};
    for (size_t i = 0; i < sizeof depths / sizeof *depths; i++, release_all(state)) {
        check(1, depths[i], 50, 0.02f);
        check(19, depths[i], 101, 0.02f);
    }
}

/* F32 cannot hold the squares of these products, nor of these weights. */
TEST(test_scales)
{
    check(1, 40, 30, 1e25f);
    check(20, 40, 30, 1e25f);
    check(1, 40, 30, 1e-25f);
    check(20, 40, 30, 1e-25f);
}

TEST(test_it_adds)
{
    problem p = problem_of(21, 50, 130, 1);
    sums s    = new_sums(&p);
    *s.norm   = 1000;
    for (int64_t i = 0; i < p.n; i++) s.squares[i] = s.centred[i] = 1000;
    add_rows(&p, s, 0, p.D, new_scratch());
    check_sums(&p, s, oracle(&p), 1000);
}

/* The bits do not depend on the split of the rows, as long as the rows come in their order. */
TEST(test_same_bits_however_split)
{
    static const int64_t pieces[] = {1, 2, 5, 6, 50, 84, 96, 131};
    for (int64_t n = 1; n < 40; n += 19, release_all(state)) {
        problem p     = problem_of(n, 1571, 299, 0.02f);
        sums all      = whole(&p);
        void *scratch = new_scratch();
        for (size_t k = 0; k < sizeof pieces / sizeof *pieces; k++) {
            sums s = new_sums(&p);
            for (int64_t r = 0; r < p.D; r += pieces[k])
                add_rows(&p, s, r, p.D - r < pieces[k] ? p.D - r : pieces[k], scratch);
            assert_memory_equal(s.squares, all.squares, (size_t)n * sizeof(double));
            assert_memory_equal(s.norm, all.norm, sizeof(double));
        }
    }
}

/* Each thread has its own sums and scratch. All threads share X. */
TEST(test_threads_share_x)
{
    enum { N_EXPERTS = 16, ROWS = 200 };
    problem p = problem_of(64, 201, N_EXPERTS * ROWS, 0.02f);
    sums alone[N_EXPERTS], together[N_EXPERTS];
    void *scratch[4];
    for (int t = 0; t < 4; t++) scratch[t] = new_scratch();
    for (int j = 0; j < N_EXPERTS; j++) {
        alone[j]    = new_sums(&p);
        together[j] = new_sums(&p);
        add_rows(&p, alone[j], j * ROWS, ROWS, scratch[0]);
    }
#pragma omp parallel for num_threads(4) schedule(dynamic)
    for (int j = 0; j < N_EXPERTS; j++)
        add_rows(&p, together[j], j * ROWS, ROWS, scratch[omp_get_thread_num()]);
    for (int j = 0; j < N_EXPERTS; j++) {
        assert_memory_equal(alone[j].squares, together[j].squares, (size_t)p.n * sizeof(double));
        assert_memory_equal(alone[j].norm, together[j].norm, sizeof(double));
    }
}

/* A NaN or an infinity in a weight shows in the norm, wherever it stands. */
TEST(test_norm_shows_nan_and_infinity)
{
    enum { N = 3, D = 41, ROWS = 7 };
    for (int k = 0; k < D * ROWS; k++, release_all(state)) {
        problem p          = problem_of(k % 2 ? N : 1, D, ROWS, 1);
        float old          = cpl_f32(p.W)[k];
        cpl_f32(p.W)[k]    = NAN;
        sums with_nan      = whole(&p);
        cpl_f32(p.W)[k]    = -INFINITY;
        sums with_infinity = whole(&p);
        cpl_f32(p.W)[k]    = old;
        assert_true(isnan(*with_nan.norm));
        assert_true(isinf(*with_infinity.norm) && *with_infinity.norm > 0);
        assert_true(isfinite(*whole(&p).norm));
        assert_false(isfinite(with_nan.squares[0]) || isfinite(with_infinity.squares[0]));
    }
}

/* M equals to the bit the M that training computes in F32 (erc.h): the products and the order of
 * their squares are the same. */
static void check_proxies(int64_t n, int64_t d, int64_t D)
{
    problem p       = problem_of(n, d, n * D, 0.02f);
    cpl_tensor M    = new_tensor(CPL_F32, n, n);
    cpl_erc_job job = {.i1 = n, .j1 = n, .alpha = 1, .weight = 1};
    cpl_work work   = {.n_experts = n, .d_model = d, .d_expert = D};
    job.R           = cpl_tensor_as_2d(p.X, n, d);
    job.gate        = cpl_tensor_as_3d(p.W, n, D, d);
    job.M           = M;
    job.loss        = new_1d(CPL_F64, 1);
    job.diagonal    = new_1d(CPL_F32, n);
    job.violations  = new_tensor(CPL_I32, 2, n);
    cpl_backend *be = new_cpu(CPL_F32, 1, work);
    be->ops->erc.run_local(be, job);
    for (int64_t j = 0; j < n; j++) {
        sums s = new_sums(&p);
        add_rows(&p, s, j * D, D, new_scratch());
        for (int64_t i = 0; i < n; i++)
            assert_true((float)sqrt(s.squares[i]) == cpl_f32(M)[i * n + j]);
    }
}

TEST(test_same_as_in_training)
{
    check_proxies(1, 33, 20);
    check_proxies(20, 33, 101);
    check_proxies(33, 64, 48);
}
