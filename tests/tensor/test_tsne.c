/* The operations of t-SNE against the same written plainly in double, and its gradient against
 * central differences of the Kullback-Leibler divergence. */
#include "tensor/levels.h"
#include "tensor/ops_check.h"

static const double C = 8;

static cpl_backend *backend(int n_threads)
{
    return new_cpu(CPL_F32, n_threads, (cpl_work){0});
}

/* ---- points ---- */

static void test_largest(void **state)
{
    (void)state;
    cpl_backend *be = backend(2);
    cpl_tensor x    = normal_1d(40001, 1);
    cpl_f32(x)[17]  = -9.5f;
    assert_true(be->ops->tsne_largest(be, x) == 9.5);
    cpl_f32(x)[40000] = 1e30f;
    assert_true(be->ops->tsne_largest(be, x) == (double)1e30f);
    cpl_f32(x)[0] = -INFINITY;
    assert_true(isinf(be->ops->tsne_largest(be, x)));
    cpl_f32(x)[20000] = -NAN;
    assert_true(isnan(be->ops->tsne_largest(be, x)));
    assert_true(be->ops->tsne_largest(be, new_1d(CPL_F32, 0)) == 0);
}

static void test_centre(void **state)
{
    const int64_t n = 301, d = 37;
    cpl_tensor x = normal_2d(n, d, 1), out = new_tensor(CPL_F32, n, d);
    double *want = new_doubles(n * d);
    (void)state;
    for (int64_t k = 0; k < d; k++) {
        double mean = 0;
        for (int64_t i = 0; i < n; i++) mean += 4 * (double)(cpl_f32(x)[i * d + k] += 100) / n;
        for (int64_t i = 0; i < n; i++) want[i * d + k] = 4 * cpl_f32(x)[i * d + k] - mean;
    }
    cpl_backend *be = backend(2);
    be->ops->tsne_centre(be, out, x, 4);
    assert_close("centred", out, want, FLT_EPSILON, 0);
}

/* ---- distances ---- */

static double distance(cpl_tensor x, int64_t i, int64_t j)
{
    const int64_t d = x.shape[1];
    double sum      = 0;
    for (int64_t k = 0; k < d; k++) {
        double off = (double)cpl_f32(x)[i * d + k] - (double)cpl_f32(x)[j * d + k];
        sum += off * off;
    }
    return sum;
}

/* Every single distance to a relative tolerance, however near the two rows are. */
static void check_distances(cpl_tensor x, float scale)
{
    const int64_t n = x.shape[0];
    cpl_backend *be = backend(2);
    cpl_tensor D    = new_tensor(CPL_F32, n, n);
    be->ops->tsne_distances(be, D, x, scale);
    for (int64_t i = 0; i < n; i++)
        for (int64_t j = 0; j < n; j++) {
            const double want = distance(x, i, j) * scale * scale, got = cpl_f32(D)[i * n + j];
            assert_near(got, want, sum_tolerance(C / 2, x.shape[1]) * want);
            assert_true(cpl_f32(D)[i * n + j] == cpl_f32(D)[j * n + i]);
        }
}

static void test_distances(void **state)
{
    static const int64_t shapes[][2] = {{4, 1}, {5, 3}, {16, 512}, {33, 513}, {70, 1100}};
    for (int k = 0; k < 5; k++, release_all(state))
        check_distances(normal_2d(shapes[k][0], shapes[k][1], 1), 0.5f);
}

/* Far from the origin and near each other: a product of rows would lose every digit. */
static void test_distances_of_near_rows(void **state)
{
    const int64_t n = 40, d = 300;
    cpl_tensor x = normal_2d(n, d, 0.001f);
    (void)state;
    for (int64_t i = 0; i < n * d; i++) cpl_f32(x)[i] += 100 + (float)(i % d);
    memcpy(cpl_f32(x) + d, cpl_f32(x), (size_t)d * sizeof(float));
    cpl_f32(x)[d + 7] = nextafterf(cpl_f32(x)[d + 7], 1000);
    memcpy(cpl_f32(x) + 9 * d, cpl_f32(x) + 3 * d, (size_t)d * sizeof(float));
    assert_true(distance(x, 0, 1) > 0 && distance(x, 3, 9) == 0);
    check_distances(x, 0x1p-8f);
}

/* ---- affinities ---- */

/* p [n]: the distribution around point i with this precision; returns its entropy. */
static double spread(double *p, const double *D, int64_t n, int64_t i, double precision)
{
    double sum = 0, entropy = 0, low = INFINITY;
    for (int64_t j = 0; j < n; j++)
        if (j != i) low = fmin(low, D[i * n + j]);
    for (int64_t j = 0; j < n; j++)
        sum += p[j] = j == i ? 0 : exp(-precision * (D[i * n + j] - low));
    for (int64_t j = 0; j < n; j++) {
        p[j] /= sum;
        if (p[j] > 0) entropy -= p[j] * log(p[j]);
    }
    return entropy;
}

/* The joint affinities, with a bisection of the precision's logarithm to the last digit. */
static double *joint_affinities(const double *D, int64_t n, double perplexity)
{
    double *P = new_doubles(n * n), *joint = new_doubles(n * n);
    for (int64_t i = 0; i < n; i++) {
        double low = -100, high = 100;
        for (int k = 0; k < 100; k++) {
            double middle               = (low + high) / 2;
            bool too_broad              = spread(P + i * n, D, n, i, exp(middle)) > log(perplexity);
            *(too_broad ? &low : &high) = middle;
        }
    }
    for (int64_t i = 0; i < n * n; i++)
        joint[i] =
            i / n == i % n ? 0 : fmax((P[i] + P[i % n * n + i / n]) / (2.0 * n), DBL_EPSILON);
    return joint;
}

static cpl_tensor affinities_of(cpl_tensor x, double perplexity)
{
    cpl_backend *be = backend(2);
    cpl_tensor P    = new_tensor(CPL_F32, x.shape[0], x.shape[0]);
    be->ops->tsne_distances(be, P, x, 1);
    be->ops->tsne_affinities(be, P, perplexity);
    return P;
}

/* Symmetric, nowhere below the least, zero on the diagonal, one in all. */
static void check_joint(cpl_tensor P)
{
    const int64_t n = P.shape[0];
    double sum      = 0;
    for (int64_t i = 0; i < n; i++)
        for (int64_t j = 0; j < n; j++) {
            const float p = cpl_f32(P)[i * n + j];
            sum += (double)p;
            assert_true(p == cpl_f32(P)[j * n + i]);
            assert_true(i == j ? p == 0 : p >= (float)DBL_EPSILON);
        }
    assert_near(sum, 1, sum_tolerance(C, n));
}

static void test_affinities(void **state)
{
    static const struct {
        int64_t n, d;
        double perplexity;
    } cases[] = {{4, 3, 1.5}, {37, 5, 8}, {150, 30, 5}, {150, 30, 49}, {203, 2, 30}};
    for (int k = 0; k < 5; k++, release_all(state)) {
        const int64_t n = cases[k].n;
        cpl_tensor x    = normal_2d(n, cases[k].d, 3);
        cpl_tensor P    = affinities_of(x, cases[k].perplexity);
        double *D       = new_doubles(n * n);
        for (int64_t i = 0; i < n * n; i++) D[i] = distance(x, i / n, i % n);
        check_joint(P);
        assert_close("P", P, joint_affinities(D, n, cases[k].perplexity), 5e-5, 0);
    }
}

/* On a circle every point sees the same, so that N P is a point's own distribution. */
static void test_perplexity_is_hit(void **state)
{
    static const double perplexities[] = {2.5, 5, 30, 66};
    const int64_t n                    = 200;
    cpl_tensor x                       = new_tensor(CPL_F32, n, 2);
    (void)state;
    for (int64_t i = 0; i < n; i++) {
        cpl_f32(x)[2 * i]     = (float)cos(2 * M_PI * i / n);
        cpl_f32(x)[2 * i + 1] = (float)sin(2 * M_PI * i / n);
    }
    for (int k = 0; k < 4; k++) {
        cpl_tensor P = affinities_of(x, perplexities[k]);
        for (int64_t i = 0; i < n; i++) {
            double entropy = 0;
            for (int64_t j = 0; j < n; j++) {
                const double p = n * (double)cpl_f32(P)[i * n + j];
                if (p > 0) entropy -= p * log(p);
            }
            assert_near(exp(entropy) / perplexities[k], 1, 3e-5);
        }
    }
}

static void test_affinities_have_no_scale(void **state)
{
    cpl_tensor x = normal_2d(50, 7, 1), near = copy_of(x), far = copy_of(x);
    (void)state;
    for (int64_t i = 0; i < 50 * 7; i++) {
        cpl_f32(near)[i] *= 0x1p-40f;
        cpl_f32(far)[i] *= 0x1p40f;
    }
    cpl_tensor P = affinities_of(x, 10);
    assert_same_bits(P, affinities_of(near, 10));
    assert_same_bits(P, affinities_of(far, 10));
}

/* No precision makes equal distances unequal: all share alike. */
static void test_equal_distances(void **state)
{
    const int64_t n = 40;
    cpl_tensor x = new_tensor(CPL_F32, n, n), y = new_tensor(CPL_F32, n, 3);
    (void)state;
    for (int64_t i = 0; i < n; i++) cpl_f32(x)[i * n + i] = 5;
    cpl_tensor corners = affinities_of(x, 4), one = affinities_of(y, 4);
    for (int64_t i = 0; i < n * n; i++) {
        const double want = i / n == i % n ? 0 : 1.0 / (n * (n - 1));
        assert_near(cpl_f32(corners)[i], want, 1e-6 * want);
        assert_near(cpl_f32(one)[i], want, 1e-6 * want);
    }
}

/* More copies of a point than the perplexity: each sees its copies alike, and nothing else. */
static void test_more_duplicates_than_perplexity(void **state)
{
    const int64_t n = 60, copies = 20;
    cpl_tensor x = normal_2d(n, 4, 1);
    (void)state;
    for (int64_t i = 0; i < n; i++)
        memcpy(cpl_f32(x) + 4 * i, cpl_f32(x) + 4 * (i % 3), 4 * sizeof(float));
    cpl_tensor P = affinities_of(x, 5);
    check_joint(P);
    for (int64_t i = 0; i < n; i++)
        for (int64_t j = 0; j < n; j++) {
            const double want = i % 3 == j % 3 && i != j ? 1.0 / (n * (copies - 1)) : 0;
            assert_near(cpl_f32(P)[i * n + j], want, 1e-6 / n);
        }
}

/* ---- forces ---- */

typedef struct embedding {
    const double *P; /* [n,n] */
    double y[1024];  /* [2,n] */
    int64_t n;
} embedding;

static double q_of(const embedding *e, int64_t i, int64_t j)
{
    const double dx = e->y[i] - e->y[j], dy = e->y[e->n + i] - e->y[e->n + j];
    return 1 / (1 + dx * dx + dy * dy);
}

static double divergence(void *context)
{
    const embedding *e = context;
    double Z = 0, sum = 0;
    for (int64_t i = 0; i < e->n * e->n; i++)
        if (i / e->n != i % e->n) Z += q_of(e, i / e->n, i % e->n);
    for (int64_t i = 0; i < e->n * e->n; i++)
        if (i / e->n != i % e->n) sum += e->P[i] * log(e->P[i] * Z / q_of(e, i / e->n, i % e->n));
    return sum;
}

/* The exaggerated divergence is not that of two distributions, but its gradient is what the
 * descent follows at first; with sum P = e it is e attraction - e repulsion / Z, so the descent's
 * e attraction - repulsion / Z is checked from its two parts. */
static void test_forces_are_the_gradient(void **state)
{
    enum { N = 12 };
    cpl_backend *be = backend(2);
    cpl_tensor P = affinities_of(normal_2d(N, 5, 1), 3), y = normal_2d(2, N, 1.5f);
    cpl_tensor forces = new_tensor(CPL_F32, 6, N), got = new_tensor(CPL_F32, 2, N);
    embedding e = {.P = doubles_of(P), .n = N};
    double Z = 0, kl = 0, sum = 0;
    (void)state;
    for (int64_t i = 0; i < 2 * N; i++) e.y[i] = cpl_f32(y)[i];
    be->ops->tsne_forces(be, forces, P, y, true);
    const float *f = cpl_f32(forces);
    for (int64_t i = 0; i < N; i++) Z += f[4 * N + i], kl += f[5 * N + i];
    for (int64_t i = 0; i < 2 * N; i++) cpl_f32(got)[i] = (float)(4 * (f[i] - f[2 * N + i] / Z));
    for (int64_t i = 0; i < N * N; i++) sum += e.P[i];
    assert_close("gradient", got, gradient(divergence, &e, e.y, 2 * N), 2e-6, 0);
    assert_near(kl + sum * log(Z), divergence(&e), 2e-6);
}

/* Every row of forces against sums in double, over several pieces; the attraction alone and the
 * repulsion alone. */
static void test_forces(void **state)
{
    const int64_t n = 509;
    cpl_backend *be = backend(2);
    cpl_tensor P = affinities_of(normal_2d(n, 5, 1), 30), y = normal_2d(2, n, 10);
    cpl_tensor forces = new_tensor(CPL_F32, 6, n);
    double *want      = new_doubles(6 * n);
    embedding *e      = take(sizeof *e);
    e->P = doubles_of(P), e->n = n;
    (void)state;
    for (int64_t i = 0; i < 2 * n; i++) e->y[i] = cpl_f32(y)[i];
    for (int64_t i = 0; i < n; i++)
        for (int64_t j = 0; j < n; j++) {
            if (j == i) continue;
            const double q = q_of(e, i, j), p = e->P[i * n + j];
            for (int c = 0; c < 2; c++) {
                want[c * n + i] += p * q * (e->y[c * n + i] - e->y[c * n + j]);
                want[(2 + c) * n + i] += q * q * (e->y[c * n + i] - e->y[c * n + j]);
            }
            want[4 * n + i] += q;
            want[5 * n + i] += p * log(p / q);
        }
    be->ops->tsne_forces(be, forces, P, y, true);
    for (int64_t f = 0; f < 6; f++)
        assert_close("forces", cpl_tensor_1d(cpl_f32(forces) + f * n, CPL_F32, n), want + f * n,
                     sum_tolerance(1, n), 0);
    be->ops->tsne_forces(be, forces, P, y, false);
    for (int64_t i = 0; i < n; i++) assert_true(cpl_f32(forces)[5 * n + i] == 0);
}

/* A point far away has hardly any q: its own distance of zero must not add to it. */
static void test_a_point_is_not_its_own_neighbour(void **state)
{
    cpl_backend *be = backend(1);
    cpl_tensor y = new_tensor(CPL_F32, 2, 4), P = normal_2d(4, 4, 0);
    cpl_tensor forces = new_tensor(CPL_F32, 6, 4);
    (void)state;
    for (int i = 0; i < 4; i++) cpl_f32(y)[i] = 1e5f * (float)(i * i);
    be->ops->tsne_forces(be, forces, P, y, false);
    assert_near(cpl_f32(forces)[16] / (1e-10 + 1e-10 / 16 + 1e-10 / 81), 1, 1e-6);
}

static void test_same_bits_with_any_threads(void **state)
{
    const int64_t n = 1100; /* more than one piece */
    cpl_tensor x = normal_2d(n, 33, 1), y = normal_2d(2, n, 5), P[3], forces[3];
    (void)state;
    for (int t = 0; t < 3; t++) {
        cpl_backend *be = backend(t + 1);
        P[t]            = new_tensor(CPL_F32, n, n);
        forces[t]       = new_tensor(CPL_F32, 6, n);
        be->ops->tsne_distances(be, P[t], x, 1);
        be->ops->tsne_affinities(be, P[t], 30);
        be->ops->tsne_forces(be, forces[t], P[t], y, true);
        assert_same_bits(P[0], P[t]);
        assert_same_bits(forces[0], forces[t]);
    }
}

static int run(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(test_largest, release_all),
        cmocka_unit_test_teardown(test_centre, release_all),
        cmocka_unit_test_teardown(test_distances, release_all),
        cmocka_unit_test_teardown(test_distances_of_near_rows, release_all),
        cmocka_unit_test_teardown(test_affinities, release_all),
        cmocka_unit_test_teardown(test_perplexity_is_hit, release_all),
        cmocka_unit_test_teardown(test_affinities_have_no_scale, release_all),
        cmocka_unit_test_teardown(test_equal_distances, release_all),
        cmocka_unit_test_teardown(test_more_duplicates_than_perplexity, release_all),
        cmocka_unit_test_teardown(test_forces_are_the_gradient, release_all),
        cmocka_unit_test_teardown(test_forces, release_all),
        cmocka_unit_test_teardown(test_a_point_is_not_its_own_neighbour, release_all),
        cmocka_unit_test_teardown(test_same_bits_with_any_threads, release_all),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

int main(void)
{
    return run_at_every_level(run);
}
