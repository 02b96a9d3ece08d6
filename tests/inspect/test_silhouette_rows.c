/* test_silhouette_rows.c - silhouettes of experts' rows: against scikit-learn's
 * (tests/golden/silhouette), against all pairs in double, and properties that hold for any rows. */
#include "inspect/internal.h"

#include <math.h>

#include "io/json.h"
#include "tensor/exact.h"
#include "tensor/ops_check.h"

/* The error of a distance, 1 minus a sum of d products in F32, is at most C eps sqrt(d). */
static const double C = 4;

/* Row r of expert c is row c D + r of x. */
typedef struct experts {
    int64_t n, D, d;
    cpl_tensor x; /* [n D, d] */
} experts;

/* Silhouettes by expert: the sum over its rows, in the oracle also the bound of its rounding. */
typedef struct silhouettes {
    double *sum, *off; /* [n] */
} silhouettes;

/* ---- by the functions ---- */

static cpl_matrix some_rows(cpl_tensor x, int64_t first, int64_t count)
{
    return matrix_of(cpl_tensor_range(x, first, count));
}

/* Returns the means of the unit rows u of all experts. */
static cpl_tensor means_of(const experts *e, cpl_tensor u)
{
    cpl_tensor means = new_tensor(CPL_F32, e->n, e->d);
    for (int64_t c = 0; c < e->n; c++)
        for (int64_t k = 0; k < e->d; k++) {
            double sum = 0;
            for (int64_t r = 0; r < e->D; r++) sum += (double)cpl_f32(u)[(c * e->D + r) * e->d + k];
            cpl_f32(means)[c * e->d + k] = (float)(sum / (double)e->D);
        }
    return means;
}

/* Measures with `piece` rows a call. */
static silhouettes measure_by(const experts *e, int64_t piece)
{
    silhouettes made = {new_doubles(e->n), NULL};
    cpl_tensor u     = copy_of(e->x);
    float *products  = cpl_f32(new_tensor(CPL_F32, piece, e->n));
    cpl_silhouette_unit_rows(matrix_of(u));
    const cpl_matrix means = matrix_of(means_of(e, u));
    for (int64_t c = 0; c < e->n; c++)
        for (int64_t r = 0; r < e->D; r += piece)
            assert_ok(cpl_silhouette_add(
                &made.sum[c], products, means, c, e->D,
                some_rows(u, c * e->D + r, e->D - r < piece ? e->D - r : piece)));
    return made;
}

static silhouettes measure(const experts *e)
{
    return measure_by(e, e->D);
}

/* ---- by all pairs, in double ---- */

static double dot(const float *a, const float *b, int64_t d)
{
    double sum = 0;
    for (int64_t k = 0; k < d; k++) sum += (double)a[k] * (double)b[k];
    return sum;
}

static double distance(const experts *e, int64_t i, int64_t j)
{
    const float *a = cpl_f32(e->x) + i * e->d, *b = cpl_f32(e->x) + j * e->d;
    const double sizes = sqrt(dot(a, a, e->d)) * sqrt(dot(b, b, e->d));
    return sizes > 0 ? 1 - dot(a, b, e->d) / sizes : 1;
}

/* Returns the mean distance of point i to the points of expert c, without point i. */
static double mean_distance(const experts *e, int64_t i, int64_t c)
{
    double sum    = 0;
    int64_t count = 0;
    for (int64_t j = c * e->D; j < (c + 1) * e->D; j++) {
        if (j == i) continue;
        sum += distance(e, i, j);
        count++;
    }
    return sum / (double)count;
}

static silhouettes all_pairs(const experts *e)
{
    silhouettes s = {new_doubles(e->n), new_doubles(e->n)};
    for (int64_t i = 0; e->D > 1 && i < e->n * e->D; i++) {
        const int64_t own = i / e->D;
        double a = mean_distance(e, i, own), b = INFINITY;
        for (int64_t c = 0; c < e->n; c++)
            if (c != own) b = fmin(b, mean_distance(e, i, c));
        s.sum[own] += (b - a) / fmax(a, b);
        s.off[own] += 4 * sum_tolerance(C, e->d) / fmax(a, b);
    }
    return s;
}

static void check_near(const silhouettes *got, const silhouettes *want, int64_t n)
{
    for (int64_t c = 0; c < n; c++) assert_near(got->sum[c], want->sum[c], want->off[c]);
}

static void check_sums(const experts *e, const double *want)
{
    silhouettes got = measure(e);
    for (int64_t c = 0; c < e->n; c++) assert_near(got.sum[c], want[c], 1e-4 * (double)e->D);
}

/* Draws rows around a middle of each expert, `apart` away. */
static experts random_experts(int64_t n, int64_t D, int64_t d, float apart)
{
    experts e         = {n, D, d, normal_2d(n * D, d, 1)};
    cpl_tensor middle = normal_2d(n, d, apart);
    for (int64_t i = 0; i < n * D * d; i++)
        cpl_f32(e.x)[i] += cpl_f32(middle)[i / (D * d) * d + i % d];
    return e;
}

static void check(int64_t n, int64_t D, int64_t d, float apart)
{
    experts e        = random_experts(n, D, d, apart);
    silhouettes want = all_pairs(&e), got = measure(&e);
    check_near(&got, &want, n);
}

TEST(test_shapes)
{
    static const int64_t counts[] = {2, 3, 8, 15, 16, 17, 33, 64, 65, 130};
    static const int64_t rows[]   = {1, 2, 5, 95, 96, 97, 200};
    static const int64_t depths[] = {2, 7, 31, 64, 129, 1536};
    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++, release_all(state))
        check(counts[i], 3, 37, 0.5f);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++, release_all(state))
        check(3, rows[i], 21, 1);
    for (size_t i = 0; i < sizeof depths / sizeof *depths; i++, release_all(state))
        check(4, 6, depths[i], 1);
}

/* ---- against scikit-learn ---- */

static double number_of(const json_t *object, const char *key)
{
    const json_t *value = json_object_get(object, key);
    if (!json_is_number(value)) fail_msg("reference.json: %s is no number", key);
    return json_number_value(value);
}

/* Makes the points of make_reference.py, number for number. */
static experts experts_of(const json_t *item)
{
    experts e           = {(int64_t)number_of(item, "n"),
                           (int64_t)number_of(item, "D"),
                           (int64_t)number_of(item, "d"),
                           {0}};
    const uint64_t seed = (uint64_t)number_of(item, "seed");
    const double apart  = number_of(item, "apart");
    double squares      = 0;
    e.x                 = new_tensor(CPL_F32, e.n * e.D, e.d);
    for (int64_t i = 0; i < e.n * e.D * e.d; i++) {
        const int64_t row = i / e.d, middle = row / e.D * e.d + i % e.d;
        const double x = exact_normal(seed, i) + apart * exact_normal(seed + 100, middle);
        cpl_f32(e.x)[i] =
            row == (int64_t)number_of(item, "zero") ? 0 : (float)(x * (double)(1 << row % 5));
        squares += (double)cpl_f32(e.x)[i] * (double)cpl_f32(e.x)[i];
    }
    assert_near(squares, number_of(item, "squares"), 1e-12 * squares);
    return e;
}

static void check_reference(const json_t *item)
{
    const json_t *clusters = json_object_get(item, "clusters");
    experts e              = experts_of(item);
    silhouettes got        = measure(&e);
    double mean            = 0;
    assert_int_equal(json_array_size(clusters), e.n);
    for (int64_t c = 0; c < e.n; c++) {
        const double want = json_number_value(json_array_get(clusters, (size_t)c));
        assert_near(got.sum[c] / (double)e.D, want, 2e-6);
        mean += got.sum[c] / (double)(e.n * e.D);
    }
    assert_near(mean, number_of(item, "mean"), 2e-6);
}

TEST(test_scikit_learn)
{
    json_t *file, *item;
    size_t i;
    assert_ok(cpl_json_load(&file, golden_path("silhouette/reference.json")));
    assert_int_equal(json_array_size(json_object_get(file, "cases")), 8);
    json_array_foreach(json_object_get(file, "cases"), i, item)
    {
        check_reference(item);
        release_all(state);
    }
    json_decref(file);
}

/* ---- general properties ---- */

TEST(test_lengths_do_not_matter)
{
    static const float factors[] = {0x1p-60f, 3, 0x1p90f, 1e-25f, 1e30f};
    experts e = random_experts(5, 7, 40, 1), scaled = e;
    silhouettes want = all_pairs(&e);
    scaled.x         = copy_of(e.x);
    for (int64_t i = 0; i < 5 * 7 * 40; i++) cpl_f32(scaled.x)[i] *= factors[i / 40 % 5];
    silhouettes got = measure(&scaled);
    check_near(&got, &want, 5);
}

TEST(test_order_of_experts_does_not_matter)
{
    enum { N = 70, D = 5, WIDTH = 33 };
    experts e = random_experts(N, D, WIDTH, 1), turned = e;
    turned.x = copy_of(e.x);
    for (int64_t c = 0; c < N; c++)
        memcpy(cpl_f32(turned.x) + (c * 11 + 3) % N * D * WIDTH, cpl_f32(e.x) + c * D * WIDTH,
               sizeof(float) * D * WIDTH);
    silhouettes a = measure(&e), b = measure(&turned);
    for (int64_t c = 0; c < N; c++) assert_near(a.sum[c], b.sum[(c * 11 + 3) % N], 1e-4);
}

TEST(test_pieces_do_not_matter)
{
    static const int64_t pieces[] = {1, 5, 84, 96, 131};
    experts e                     = random_experts(5, 299, 31, 1);
    silhouettes all               = measure(&e);
    for (size_t k = 0; k < sizeof pieces / sizeof *pieces; k++) {
        silhouettes s = measure_by(&e, pieces[k]);
        for (int c = 0; c < 5; c++) assert_near(s.sum[c], all.sum[c], 1e-3);
    }
}

/* Every row gets the length 1, or stays zero. */
TEST(test_unit_rows)
{
    cpl_tensor x = normal_2d(7, 33, 1e-30f);
    memset(cpl_f32(x) + 2 * 33, 0, sizeof(float) * 33);
    cpl_tensor y = copy_of(x);
    cpl_silhouette_unit_rows(matrix_of(y));
    for (int64_t r = 0; r < 7; r++) {
        const float *from = cpl_f32(x) + r * 33, *to = cpl_f32(y) + r * 33;
        const double size = sqrt(dot(from, from, 33));
        for (int64_t k = 0; k < 33; k++)
            assert_near((double)to[k], r == 2 ? 0 : (double)from[k] / size, 1e-7);
    }
}

/* ---- rows whose silhouettes are known ---- */

/* Makes rows x [rows, d] along axis[r]; -1: a zero row. */
static cpl_tensor axes(const int *axis, int64_t rows, int64_t d)
{
    cpl_tensor x = new_tensor(CPL_F32, rows, d);
    for (int64_t r = 0; r < rows; r++)
        if (axis[r] >= 0) cpl_f32(x)[r * d + axis[r]] = (float)(r + 1);
    return x;
}

TEST(test_known)
{
    check_sums(&(experts){3, 2, 4, axes((int[]){0, 0, 1, 1, 2, 2}, 6, 4)}, (double[]){2, 2, 2});
    /* Rows 1 and 2 stand in the wrong place: 1 - cos is 1 to their own expert, 1/2 to the other. */
    check_sums(&(experts){2, 2, 2, axes((int[]){0, 1, 0, 1}, 4, 2)}, (double[]){-1, -1});
    /* Every row of an expert has its own axis: a = b = 1. */
    check_sums(&(experts){2, 3, 6, axes((int[]){0, 1, 2, 3, 4, 5}, 6, 6)}, (double[]){0, 0});
    /* A zero row has distance 1 to all rows, and its neighbour 1 to it, as to the others. */
    check_sums(&(experts){2, 2, 3, axes((int[]){-1, 0, 1, 1}, 4, 3)}, (double[]){0, 2});
    /* Three rows: the zero row leaves a = 1/2 to the other two. */
    check_sums(&(experts){2, 3, 3, axes((int[]){0, -1, 0, 1, 1, 1}, 6, 3)}, (double[]){1, 3});
    check_sums(&(experts){2, 2, 3, axes((int[]){-1, -1, -1, -1}, 4, 3)}, (double[]){0, 0});
}

/* All rows point one way: the distances are rounding errors, and their quotient would be noise. */
TEST(test_one_direction)
{
    for (int64_t d = 1; d < 3000; d = 3 * d + 1) {
        cpl_tensor row = normal_2d(1, d, 1);
        experts e      = {3, 5, d, new_tensor(CPL_F32, 15, d)};
        for (int64_t i = 0; i < 15 * d; i++)
            cpl_f32(e.x)[i] = cpl_f32(row)[i % d] * (float)(1 + i / d);
        silhouettes got = measure(&e);
        for (int c = 0; c < 3; c++) assert_true(got.sum[c] == 0);
    }
}

TEST(test_single_rows)
{
    experts e       = random_experts(6, 1, 20, 1);
    silhouettes got = measure(&e);
    for (int c = 0; c < 6; c++) assert_true(got.sum[c] == 0);
}

/* NaN or infinity in any row shows in every expert's sum. */
TEST(test_nan)
{
    static const float bad[] = {NAN, INFINITY};
    for (int row = 0; row < 12; row++, release_all(state)) {
        experts e                         = random_experts(4, 3, 10, 1);
        cpl_f32(e.x)[row * 10 + row % 10] = bad[row % 2];
        silhouettes got                   = measure(&e);
        for (int c = 0; c < 4; c++) assert_true(isnan(got.sum[c]));
    }
}
