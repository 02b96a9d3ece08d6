/* The orthogonality of router rows against plain double, central differences of it, and the
 * reference values. */
#include "tensor/golden.h"
#include "tensor/levels.h"

static const double C      = 16;
static const double GOLDEN = 1e-4; /* the limit that belongs to the reference values */

static cpl_backend *backend(int n_threads)
{
    return new_cpu(CPL_F32, n_threads,
                   (cpl_work){.n_tokens = 1, .d_model = 300, .n_experts = 64, .vocab_size = 8});
}

/* ---- the equations in double ---- */

typedef struct rows {
    double *R; /* [n,d] */
    int64_t n, d;
} rows;

static double dot(const double *a, const double *b, int64_t d)
{
    double sum = 0;
    for (int64_t k = 0; k < d; k++) sum += a[k] * b[k];
    return sum;
}

static double loss_of(void *context)
{
    const rows *r = context;
    double sum    = 0;
    for (int64_t i = 0; i < r->n; i++)
        for (int64_t j = 0; j < r->n; j++) {
            const double *a = r->R + i * r->d, *b = r->R + j * r->d;
            const double norms = sqrt(dot(a, a, r->d) * dot(b, b, r->d));
            const double entry = norms > 0 ? dot(a, b, r->d) / norms - (i == j) : 0;
            sum += entry * entry;
        }
    return sum / (double)(r->n * r->n);
}

static cpl_tensor zeros_like(cpl_tensor x)
{
    return new_tensor(CPL_F32, x.shape[0], x.shape[1]);
}

/* Checks the loss, and that the gradient times `scale` is added to the earlier contents. */
static void check(cpl_tensor R, float scale)
{
    cpl_backend *be = backend(2);
    const int64_t n = R.shape[0], d = R.shape[1];
    cpl_tensor dR     = normal_2d(n, d, 1);
    double *want      = doubles_of(dR);
    rows r            = {doubles_of(R), n, d};
    const double loss = loss_of(&r), *slopes = gradient(loss_of, &r, r.R, n * d);
    for (int64_t i = 0; i < n * d; i++) want[i] += (double)scale * slopes[i];
    assert_near(orthogonality_of(be, dR, R, scale), loss, loss * sum_tolerance(C, d));
    assert_close("dR", dR, want, sum_tolerance(C, n + d), 1e-8);
    assert_true(orthogonality_of(be, cpl_tensor_none(), R, scale) ==
                orthogonality_of(be, dR, R, scale));
    assert_ok(be->ops->sync(be));
}

TEST(as_in_double)
{
    static const int64_t shapes[][2] = {{1, 1}, {1, 7}, {2, 3}, {9, 5}, {17, 40}, {33, 31}};
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++, release_all(state)) {
        check(normal_2d(shapes[i][0], shapes[i][1], 1), 1);
        check(normal_2d(shapes[i][0], shapes[i][1], 0.1f), -3);
    }
}

/* Checks a larger size than the other tests, without differences. */
TEST(many_rows)
{
    cpl_backend *be   = backend(2);
    cpl_tensor R      = normal_2d(64, 300, 0.02f);
    rows r            = {doubles_of(R), 64, 300};
    const double loss = loss_of(&r);
    assert_near(orthogonality_of(be, cpl_tensor_none(), R, 1), loss, 1e-5 * loss);
}

/* ---- known values ---- */

TEST(a_quarter)
{
    cpl_backend *be = backend(1);
    cpl_tensor R    = new_tensor(CPL_F32, 2, 2);
    memcpy(cpl_f32(R), (float[]){1, 0, 0.70710678f, 0.70710678f}, 4 * sizeof(float));
    assert_near(orthogonality_of(be, cpl_tensor_none(), R, 1), 0.25, 1e-7);
}

TEST(orthogonal_rows_have_no_loss)
{
    cpl_backend *be = backend(1);
    cpl_tensor R = new_tensor(CPL_F32, 5, 8), dR = zeros_like(R);
    for (int i = 0; i < 5; i++) cpl_f32(R)[i * 8 + 7 - i] = (float)(i + 1) / 3;
    assert_true(orthogonality_of(be, dR, R, 1) == 0);
    assert_same_bits(dR, zeros_like(R));
}

/* n rows are equal: every entry off the diagonal is 1. */
TEST(equal_rows)
{
    cpl_backend *be = backend(1);
    cpl_tensor R    = new_tensor(CPL_F32, 4, 6);
    for (int i = 0; i < 24; i++) cpl_f32(R)[i] = (float)(i % 6 - 2);
    assert_near(orthogonality_of(be, cpl_tensor_none(), R, 1), 12.0 / 16, 1e-6);
}

TEST(zero_row_gives_nothing)
{
    cpl_backend *be = backend(1);
    cpl_tensor R = normal_2d(6, 10, 1), dR = zeros_like(R);
    rows r;
    memset(cpl_f32(R) + 20, 0, 10 * sizeof(float));
    r                 = (rows){doubles_of(R), 6, 10};
    const double loss = loss_of(&r);
    assert_near(orthogonality_of(be, dR, R, 1), loss, 1e-6 * loss);
    for (int k = 20; k < 30; k++) assert_true(cpl_f32(dR)[k] == 0);
    for (int64_t i = 0; i < 60; i++)
        if (i / 10 != 2) assert_near(cpl_f32(dR)[i], slope(loss_of, &r, &r.R[i], 1e-5), 1e-6);
    assert_true(orthogonality_of(be, zeros_like(R), zeros_like(R), 1) == 0);
}

/* ---- scale ---- */

TEST(scale_of_a_row_changes_nothing)
{
    cpl_backend *be = backend(2);
    cpl_tensor R = normal_2d(12, 20, 1), dR = zeros_like(R), far = copy_of(R);
    const double loss = orthogonality_of(be, dR, R, 1);
    for (int i = 0; i < 12; i++) {
        double *row = doubles_of(cpl_tensor_at(R, i)), *pull = doubles_of(cpl_tensor_at(dR, i));
        const double size = sqrt(dot(row, row, 20) * dot(pull, pull, 20));
        assert_true(size > 0);
        assert_near(dot(row, pull, 20), 0, size * sum_tolerance(C, 20));
    }
    for (int i = 0; i < 240; i++) cpl_f32(far)[i] *= i < 120 ? 0x1p90f : 0x1p-60f;
    assert_near(orthogonality_of(be, cpl_tensor_none(), far, 1), loss, 1e-7 * loss);
}

/* ---- reference values ---- */

TEST(golden)
{
    static const char *const names[] = {"orth-quarter", "orth-random",
                                        "orth-more-rows-than-columns"};
    for (int i = 0; i < 3; i++, release_all(state)) {
        char path[128];
        snprintf(path, sizeof path, "losses/%s.safetensors", names[i]);
        cpl_safetensors *file = golden_open(path);
        cpl_backend *be       = backend(2);
        cpl_tensor R = golden_tensor(file, "R"), dR = zeros_like(R);
        const double want = *golden_doubles(file, "loss");
        assert_near(orthogonality_of(be, dR, R, 1), want, GOLDEN * want);
        assert_close("dR", dR, golden_doubles(file, "dR"), GOLDEN, 0);
        cpl_safetensors_close(file);
    }
}
