/* Rotary positions: the table, the rotation, and backward, which undoes forward. */
#include "tensor/ops_check.h"

static const double C = 4;

static cpl_backend *backend(void)
{
    return new_cpu(CPL_F32, 2, (cpl_work){0});
}

static cpl_tensor table_of(cpl_backend *be, int64_t positions, int64_t head_dim, float theta)
{
    cpl_tensor table = new_tensor(CPL_F32, positions, head_dim);
    table            = cpl_tensor_3d(table.storage, CPL_F32, positions, head_dim / 2, 2);
    be->ops->rope_table(be, table, theta);
    return table;
}

/* The last place of the frequency may be rounded differently (three roundings), and the position
 * magnifies the difference. The rest is one rounding of cos or sin. */
static void check_table(int64_t P, int64_t h, float theta)
{
    cpl_tensor table = table_of(backend(), P, h, theta);
    for (int64_t p = 0; p < P; p++) {
        for (int64_t i = 0; i < h / 2; i++) {
            double angle     = (double)p * pow((double)theta, -2.0 * (double)i / (double)h);
            double tolerance = C * (double)FLT_EPSILON * (1 + angle * (1 + log((double)theta)));
            assert_near(cpl_f32(table)[2 * (p * h / 2 + i)], cos(angle), tolerance);
            assert_near(cpl_f32(table)[2 * (p * h / 2 + i) + 1], sin(angle), tolerance);
        }
    }
}

TEST(test_table)
{
    check_table(1, 2, 10000);
    check_table(300, 6, 10000);
    check_table(50, 128, 500000);
    check_table(0, 8, 10000);
}

/* The first frequency is 1: its angle is the position, exactly, at any position. */
TEST(test_first_frequency_is_exact)
{
    cpl_tensor table = table_of(backend(), 5000, 4, 10000);
    assert_true(cpl_f32(table)[4999 * 4] == (float)cos(4999.0));
    assert_true(cpl_f32(table)[4999 * 4 + 1] == (float)sin(4999.0));
}

static void check_rotation(int64_t B, int64_t nq, int64_t H, int64_t h, int64_t first)
{
    const int64_t half = h / 2;
    cpl_backend *be    = backend();
    cpl_tensor table = table_of(be, first + nq, h, 10000), x = normal_2d(B * nq, H * h, 1);
    cpl_tensor old = copy_of(x);
    double *want   = new_doubles(B * nq * H * h);
    for (int64_t t = 0; t < B * nq; t++)
        for (int64_t head = 0; head < H; head++)
            for (int64_t i = 0; i < half; i++) {
                int64_t at = (t * H + head) * h + i, angle = ((first + t % nq) * half + i) * 2;
                double c = cpl_f32(table)[angle], s = cpl_f32(table)[angle + 1];
                double a = cpl_f32(old)[at], b = cpl_f32(old)[at + half];
                want[at]        = a * c - b * s;
                want[at + half] = b * c + a * s;
            }
    be->ops->rope(be, x, table, H, nq, first, 1);
    assert_close("rotated", x, want, C * (double)FLT_EPSILON, 0);
    be->ops->rope(be, x, table, H, nq, first, -1);
    assert_close("turned back", x, doubles_of(old), C * (double)FLT_EPSILON, 0);
}

TEST(test_rotation)
{
    check_rotation(2, 5, 3, 6, 0);
    check_rotation(1, 1, 1, 2, 7);
    check_rotation(3, 40, 2, 64, 11);
    check_rotation(0, 4, 2, 8, 0);
}

TEST(test_any_positions)
{
    const int64_t P = 9, H = 3, h = 6, T = 40;
    cpl_backend *be  = backend();
    cpl_tensor table = table_of(be, P, h, 10000), x = normal_2d(T, H * h, 1), want = copy_of(x);
    cpl_tensor position = new_1d(CPL_I32, T);
    for (int64_t t = 0; t < T; t++) {
        cpl_i32(position)[t] = (int32_t)(t * 7 % P);
        cpl_tensor one       = cpl_tensor_2d(cpl_f32(want) + t * H * h, CPL_F32, 1, H * h);
        be->ops->rope(be, one, table, H, 1, t * 7 % P, 1);
    }
    be->ops->rope_at(be, x, table, H, position);
    assert_same_bits(x, want);
}
