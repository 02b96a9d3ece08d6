/* RMSNorm, clamp, add, fill, copy and embedding against their equations in double. */
#include "tensor/ops_check.h"

static const double C = 4; /* the factor of every tolerance */

static const int64_t shapes[][2] = {{1, 1}, {5, 7}, {0, 8}, {33, 130}, {200, 64}, {700, 33}};
enum { N_SHAPES = sizeof shapes / sizeof *shapes };

static cpl_backend *backend(int n_threads)
{
    return new_cpu(CPL_F32, n_threads,
                   (cpl_work){.n_tokens = 700, .d_model = 130, .n_experts = 1, .vocab_size = 40});
}

/* ---- RMSNorm ---- */

typedef struct norm {
    int64_t T, d;
    double *x, *weight, *dy, eps;
} norm;

static double inverse(const norm *s, int64_t t)
{
    double sum = 0;
    for (int64_t i = 0; i < s->d; i++) sum += s->x[t * s->d + i] * s->x[t * s->d + i];
    return 1 / sqrt(sum / (double)s->d + s->eps);
}

static double normed(const norm *s, int64_t t, int64_t i)
{
    return s->weight[i] * s->x[t * s->d + i] * inverse(s, t);
}

/* Returns sum dy * y, the function whose gradient the backward operation computes. */
static double norm_loss(void *context)
{
    norm *s    = context;
    double sum = 0;
    for (int64_t t = 0; t < s->T; t++)
        for (int64_t i = 0; i < s->d; i++) sum += s->dy[t * s->d + i] * normed(s, t, i);
    return sum;
}

static void check_norm_forward(int64_t T, int64_t d)
{
    cpl_tensor x = normal_2d(T, d, 3), weight = normal_1d(d, 1), inv = new_1d(CPL_F32, T);
    cpl_tensor y = new_tensor(CPL_F32, T, d);
    norm s       = {T, d, doubles_of(x), doubles_of(weight), NULL, (double)1e-5f};
    double *want = new_doubles(T * d), *want_inv = new_doubles(T);
    cpl_backend *be = backend(2);
    be->ops->rms_norm(be, y, inv, x, weight, 1e-5f);
    for (int64_t t = 0; t < T; t++) {
        want_inv[t] = inverse(&s, t);
        for (int64_t i = 0; i < d; i++) want[t * d + i] = normed(&s, t, i);
    }
    assert_close("y", y, want, sum_tolerance(C, d), 0);
    assert_close("inv", inv, want_inv, sum_tolerance(C, d), 0);
}

TEST(test_norm_forward)
{
    for (int i = 0; i < N_SHAPES; i++, release_all(state))
        check_norm_forward(shapes[i][0], shapes[i][1]);
}

TEST(test_norm_of_zeros_is_zero)
{
    cpl_tensor x = new_tensor(CPL_F32, 2, 9), y = normal_2d(2, 9, 1), inv = new_1d(CPL_F32, 2);
    cpl_backend *be = backend(1);
    be->ops->rms_norm(be, y, inv, x, normal_1d(9, 1), 1e-5f);
    assert_same_bits(copy_of(x), x);
    for (int i = 0; i < 18; i++) assert_true(cpl_f32(y)[i] == 0);
}

/* Both results are added to the earlier contents, which are `before`. */
TEST(test_norm_backward)
{
    enum { T = 5, D = 13 };
    cpl_tensor x = normal_2d(T, D, 2), weight = normal_1d(D, 1), dy = normal_2d(T, D, 1);
    cpl_tensor y = new_tensor(CPL_F32, T, D), inv = new_1d(CPL_F32, T);
    cpl_tensor dx = normal_2d(T, D, 1), dweight = normal_1d(D, 1);
    norm s          = {T, D, doubles_of(x), doubles_of(weight), doubles_of(dy), (double)1e-5f};
    double *want_dx = gradient(norm_loss, &s, s.x, T * D);
    double *want_dw = gradient(norm_loss, &s, s.weight, D);
    cpl_backend *be = backend(2);
    for (int i = 0; i < T * D; i++) want_dx[i] += (double)cpl_f32(dx)[i];
    for (int i = 0; i < D; i++) want_dw[i] += (double)cpl_f32(dweight)[i];
    be->ops->rms_norm(be, y, inv, x, weight, 1e-5f);
    be->ops->rms_norm_backward(be, dx, dweight, dy, x, weight, inv, 1);
    assert_close("dx", dx, want_dx, sum_tolerance(C, D), 1e-8);
    assert_close("dweight", dweight, want_dw, sum_tolerance(C, T), 1e-8);
}

TEST(test_norm_backward_does_not_depend_on_threads)
{
    enum { T = 700, D = 130 };
    cpl_tensor x = normal_2d(T, D, 2), weight = normal_1d(D, 1), dy = normal_2d(T, D, 1);
    cpl_tensor inv = normal_1d(T, 1), dx[2], dweight[2];
    for (int i = 0; i < 2; i++) {
        cpl_backend *be = backend(i == 0 ? 1 : 3);
        dx[i]           = new_tensor(CPL_F32, T, D);
        dweight[i]      = new_1d(CPL_F32, D);
        be->ops->rms_norm_backward(be, dx[i], dweight[i], dy, x, weight, inv, 1);
    }
    assert_same_bits(dx[0], dx[1]);
    assert_same_bits(dweight[0], dweight[1]);
}

/* ---- flat arrays ---- */

TEST(test_clamp)
{
    float in[]   = {-3, -2, -1.5f, 0, 2, 2.5f, INFINITY, -INFINITY, 1.0f};
    float want[] = {-2, -2, -1.5f, 0, 2, 2, 2, -2, 1.0f};
    float pass[] = {0, 1, 1, 1, 1, 0, 0, 0, 1}; /* at the limit the gradient passes */
    enum { N = sizeof in / sizeof *in };
    cpl_tensor x = new_1d(CPL_F32, N), y = new_1d(CPL_F32, N), dy = normal_1d(N, 1);
    cpl_tensor dx   = new_1d(CPL_F32, N);
    cpl_backend *be = backend(2);
    memcpy(x.storage, in, sizeof in);
    be->ops->clamp(be, y, x, 2);
    assert_memory_equal(y.storage, want, sizeof want);
    be->ops->clamp_backward(be, dx, dy, x, 2);
    for (int i = 0; i < N; i++) assert_true(cpl_f32(dx)[i] == pass[i] * cpl_f32(dy)[i]);
    be->ops->clamp_backward(be, dy, dy, x, 2);
    for (int i = 0; i < N; i++) assert_true(cpl_f32(dx)[i] == cpl_f32(dy)[i]);
    be->ops->clamp(be, x, x, 2);
    assert_same_bits(x, y);
}

TEST(test_add_product)
{
    float a[] = {1, -2, 0.5f}, b[] = {3, 0.25f, -8}, y[] = {10, 1, 2};
    const float want[] = {13, 0.5f, -2};
    backend(2)->ops->add_product(backend(2), cpl_tensor_1d(y, CPL_F32, 3),
                                 cpl_tensor_1d(a, CPL_F32, 3), cpl_tensor_1d(b, CPL_F32, 3));
    assert_memory_equal(y, want, sizeof want);
}

/* Returns sum_k g_k y_k of the row y = mean + scale x / |x|. */
static double unit_row_along(const double *x, const double *mean, const double *g, int64_t d,
                             double scale)
{
    double square = 0, sum = 0;
    for (int64_t k = 0; k < d; k++) square += x[k] * x[k];
    const double by = square == 0 ? 0 : scale / sqrt(square);
    for (int64_t k = 0; k < d; k++) sum += g[k] * (mean[k] + by * x[k]);
    return sum;
}

/* Compares each number of a row, and of its gradient, with the same in double: the row by the unit
 * vectors, the gradient by central differences. */
static void check_unit_row(const float *y, const float *dx, const float *x, const float *mean,
                           const float *dy, int64_t d, double scale)
{
    enum { MOST = 64 };
    const double step = 1e-5;
    double at[MOST], m[MOST], g[MOST], one[MOST] = {0};
    for (int64_t k = 0; k < d; k++)
        at[k] = (double)x[k], m[k] = (double)mean[k], g[k] = (double)dy[k];
    for (int64_t k = 0; k < d; k++) {
        one[k] = 1;
        assert_near((double)y[k], unit_row_along(at, m, one, d, scale), 4 * FLT_EPSILON * scale);
        one[k] = 0;
        at[k] += step;
        const double above = unit_row_along(at, m, g, d, scale);
        at[k] -= 2 * step;
        const double below = unit_row_along(at, m, g, d, scale);
        at[k] += step;
        const double slope = (above - below) / (2 * step);
        assert_near((double)dx[k], slope, 1e-6 * scale);
    }
}

/* The gradient is at right angles to its row. A zero row gives the mean, and no gradient. Both
 * operations run in place too, with any number of threads. */
TEST(test_unit_rows)
{
    static const int64_t sizes[][2] = {{1, 1}, {2, 3}, {5, 21}, {700, 40}};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++, release_all(state)) {
        const int64_t n = sizes[i][0], d = sizes[i][1], zero = n / 2;
        const double scale = 3;
        cpl_tensor x = normal_2d(n, d, 1), y = new_tensor(CPL_F32, n, d), mean = normal_1d(d, 1);
        cpl_tensor dy = normal_2d(n, d, 1), dx = new_tensor(CPL_F32, n, d);
        if (n > 1) memset(cpl_f32(x) + zero * d, 0, (size_t)d * sizeof(float));
        cpl_backend *be = new_cpu(CPL_F32, 2, (cpl_work){0}), *one = backend(1);
        be->ops->unit_rows(be, y, x, mean, scale);
        be->ops->unit_rows_backward(be, dx, dy, x, scale);
        for (int64_t k = 0; k < n; k++)
            if (k != zero || n == 1)
                check_unit_row(cpl_f32(y) + k * d, cpl_f32(dx) + k * d, cpl_f32(x) + k * d,
                               cpl_f32(mean), cpl_f32(dy) + k * d, d, scale);
        for (int64_t k = zero * d; n > 1 && k < (zero + 1) * d; k++)
            assert_true(cpl_f32(y)[k] == cpl_f32(mean)[k % d] && cpl_f32(dx)[k] == 0);
        one->ops->unit_rows_backward(one, dy, dy, x, scale);
        one->ops->unit_rows(one, x, x, mean, scale);
        assert_same_bits(x, y);
        assert_same_bits(dy, dx);
        cpl_f32(x)[0] = NAN;
        be->ops->unit_rows(be, y, x, mean, scale);
        assert_true(isnan(cpl_f32(y)[d - 1]));
    }
}

/* Rows have a large common part. The operation runs in place too. */
TEST(test_centre)
{
    static const int64_t sizes[][2] = {{1, 1}, {1, 5}, {2, 3}, {33, 17}, {64, 130}};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++, release_all(state)) {
        const int64_t n = sizes[i][0], d = sizes[i][1];
        cpl_backend *be = new_cpu(CPL_F32, 2, (cpl_work){0});
        cpl_tensor x = normal_2d(n, d, 1), y = new_tensor(CPL_F32, n, d);
        for (int64_t k = 0; k < n * d; k++) cpl_f32(x)[k] += 100 * (float)(k % d);
        be->ops->centre(be, y, x);
        for (int64_t k = 0; k < d; k++) {
            double mean = 0, left = 0;
            for (int64_t r = 0; r < n; r++) mean += (double)cpl_f32(x)[r * d + k] / (double)n;
            for (int64_t r = 0; r < n; r++) {
                left += (double)cpl_f32(y)[r * d + k];
                assert_near((double)cpl_f32(y)[r * d + k], (double)cpl_f32(x)[r * d + k] - mean,
                            1e-5 * (1 + fabs(mean) * 1e-6));
            }
            assert_near(left, 0, 1e-6 * (double)n);
        }
        be->ops->centre(be, x, x);
        assert_memory_equal(cpl_f32(x), cpl_f32(y), cpl_tensor_bytes(y));
    }
}

TEST(test_add_and_fill)
{
    static const int64_t counts[] = {0, 1, 17, 40001};
    cpl_backend *be               = backend(2);
    for (int k = 0; k < 4; k++) {
        cpl_tensor x = normal_1d(counts[k], 1), y = normal_1d(counts[k], 1), old = copy_of(y);
        cpl_tensor wide = new_1d(CPL_F64, counts[k]), ids = new_1d(CPL_I32, counts[k]);
        be->ops->add(be, y, x, -2);
        be->ops->fill(be, wide, 0.5f);
        be->ops->add(be, wide, x, 4);
        be->ops->fill(be, ids, 3);
        for (int64_t i = 0; i < counts[k]; i++) {
            assert_true(cpl_f32(y)[i] == cpl_f32(old)[i] - 2 * cpl_f32(x)[i]);
            assert_true(cpl_f64(wide)[i] == 0.5 + 4 * (double)cpl_f32(x)[i]);
            assert_int_equal(cpl_i32(ids)[i], 3);
        }
        be->ops->fill(be, y, 2.5f);
        for (int64_t i = 0; i < counts[k]; i++) assert_true(cpl_f32(y)[i] == 2.5f);
    }
}

/* ---- copy ---- */

static uint16_t bf16_of(cpl_backend *be, float value)
{
    cpl_tensor x = new_1d(CPL_F32, 1), y = new_1d(CPL_BF16, 1);
    cpl_f32(x)[0] = value;
    be->ops->copy(be, y, x);
    return *(uint16_t *)y.storage;
}

TEST(test_copy_rounds_to_nearest_even)
{
    cpl_backend *be = backend(1);
    assert_int_equal(bf16_of(be, 1.0f), 0x3f80);
    assert_int_equal(bf16_of(be, 1.0f + 0x1p-8f), 0x3f80);            /* tie: to even, down */
    assert_int_equal(bf16_of(be, 1.0f + 0x1p-7f + 0x1p-8f), 0x3f82);  /* tie: to even, up */
    assert_int_equal(bf16_of(be, 1.0f + 0x1p-8f + 0x1p-20f), 0x3f81); /* above the tie */
    assert_int_equal(bf16_of(be, -(1.0f + 0x1p-8f + 0x1p-20f)), 0xbf81);
    assert_int_equal(bf16_of(be, FLT_MAX), 0x7f80); /* infinity */
    assert_int_equal(bf16_of(be, -INFINITY), 0xff80);
    assert_int_equal(bf16_of(be, NAN) & 0x7fc0, 0x7fc0);
    assert_int_equal(bf16_of(be, -0.0f), 0x8000);
}

TEST(test_copy_between_types)
{
    static const int64_t counts[] = {0, 1, 19, 50001};
    cpl_backend *be               = backend(2);
    for (int k = 0; k < 4; k++) {
        cpl_tensor x = normal_1d(counts[k], 1), same = new_1d(CPL_F32, counts[k]);
        cpl_tensor low = new_1d(CPL_BF16, counts[k]), low_too = new_1d(CPL_BF16, counts[k]);
        cpl_tensor back = new_1d(CPL_F32, counts[k]);
        be->ops->copy(be, same, x);
        be->ops->copy(be, low, x);
        be->ops->copy(be, low_too, low);
        be->ops->copy(be, back, low_too);
        assert_same_bits(same, x);
        for (int64_t i = 0; i < counts[k]; i++) {
            float value = cpl_f32(x)[i];
            assert_true(cpl_f32(back)[i] == cpl_bf16_to_f32(cpl_bf16_from_f32(value)));
            assert_near(cpl_f32(back)[i], value, 0x1p-8 * fabs((double)value));
        }
    }
}

/* ---- embedding ---- */

TEST(test_embed)
{
    enum { T = 700, V = 40, D = 33 };
    cpl_tensor table = normal_2d(V, D, 1), low = new_tensor(CPL_BF16, V, D);
    cpl_tensor ids = new_1d(CPL_I32, T), y = new_tensor(CPL_F32, T, D), y_low = copy_of(y);
    cpl_backend *be = backend(2);
    randomise_ids(ids, V);
    be->ops->copy(be, low, table);
    be->ops->embed(be, y, table, ids);
    be->ops->embed(be, y_low, low, ids);
    for (int64_t i = 0; i < T * D; i++) {
        float want = cpl_f32(table)[cpl_i32(ids)[i / D] * D + i % D];
        assert_true(cpl_f32(y)[i] == want);
        assert_true(cpl_f32(y_low)[i] == cpl_bf16_to_f32(cpl_bf16_from_f32(want)));
    }
}

/* Equal ids are added in the order of the tokens, to the last bit. */
TEST(test_embed_backward)
{
    static const int widths[] = {1, 16, 33, 130};
    enum { T = 700, V = 40 };
    for (int k = 0; k < 4; k++, release_all(state)) {
        const int64_t d = widths[k];
        cpl_tensor got = normal_2d(V, d, 1), want = copy_of(got), dy = normal_2d(T, d, 1);
        cpl_tensor ids  = new_1d(CPL_I32, T);
        cpl_backend *be = backend(3);
        randomise_ids(ids, V / 2);
        be->ops->embed_backward(be, got, dy, ids);
        for (int64_t t = 0; t < T; t++)
            for (int64_t i = 0; i < d; i++)
                cpl_f32(want)[cpl_i32(ids)[t] * d + i] += cpl_f32(dy)[t * d + i];
        assert_same_bits(got, want);
    }
}
