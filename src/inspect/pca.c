/* pca.c - see pca.h. Work of the size of the points or the dimensions is a product or an inner
 * product of the host. The rest is of size k x k, in double. */
#include "inspect/pca.h"

#include <math.h>
#include <string.h>

#include "tensor/backend/backend.h"
#include "tensor/product.h"

enum {
    SPACE       = CPL_PRINCIPAL_SPACE,
    MOST_ROUNDS = 200,
    SWEEPS      = 30, /* of rotations; six or so are enough */
};
static const double GROWTH = 1e-7; /* of the variance in a round; less is the end */
static const double LOST   = 1e-5; /* what is left of a vector that others make up: rounding */

/* A symmetric matrix, and its eigenvectors as columns, by falling eigenvalue. */
typedef struct small {
    int64_t k;
    double matrix[SPACE][SPACE], vectors[SPACE][SPACE], values[SPACE];
} small;

static float *row_of(cpl_matrix x, int64_t i)
{
    return x.at + i * x.cols;
}

static cpl_matrix take(cpl_arena *arena, int64_t rows, int64_t cols)
{
    float *at = cpl_arena_take(arena, (size_t)(rows * cols) * sizeof *at);
    return (cpl_matrix){at, rows, cols};
}

cpl_pca_space cpl_pca_take(cpl_arena *arena, int64_t n_points, int64_t d)
{
    const int64_t k = d < SPACE ? d : SPACE;
    cpl_pca_space space;
    space.basis  = take(arena, k, d);
    space.image  = take(arena, k, d);
    space.scores = take(arena, n_points, k);
    return space;
}

/* ---- small symmetric matrices: cyclic rotations of Jacobi ---- */

/* Rotates so that matrix[p][q] becomes zero. */
static void rotate(small *s, int64_t p, int64_t q)
{
    const double off = s->matrix[p][q];
    if (off == 0) return;
    const double theta = (s->matrix[q][q] - s->matrix[p][p]) / (2 * off);
    const double t     = (theta < 0 ? -1 : 1) / (fabs(theta) + sqrt(theta * theta + 1));
    const double c = 1 / sqrt(t * t + 1), r = t * c;
    for (int64_t i = 0; i < s->k; i++) {
        const double a = s->matrix[i][p], b = s->matrix[i][q];
        s->matrix[i][p] = c * a - r * b;
        s->matrix[i][q] = r * a + c * b;
    }
    for (int64_t i = 0; i < s->k; i++) {
        const double a = s->matrix[p][i], b = s->matrix[q][i];
        const double v = s->vectors[i][p], w = s->vectors[i][q];
        s->matrix[p][i]  = c * a - r * b;
        s->matrix[q][i]  = r * a + c * b;
        s->vectors[i][p] = c * v - r * w;
        s->vectors[i][q] = r * v + c * w;
    }
}

static void swap_columns(small *s, int64_t a, int64_t b)
{
    const double value = s->values[a];
    s->values[a]       = s->values[b];
    s->values[b]       = value;
    for (int64_t i = 0; i < s->k; i++) {
        const double v   = s->vectors[i][a];
        s->vectors[i][a] = s->vectors[i][b];
        s->vectors[i][b] = v;
    }
}

static void eigenvectors(small *s)
{
    memset(s->vectors, 0, sizeof s->vectors);
    for (int64_t i = 0; i < s->k; i++) s->vectors[i][i] = 1;
    for (int sweep = 0; sweep < SWEEPS; sweep++)
        for (int64_t p = 0; p < s->k; p++)
            for (int64_t q = p + 1; q < s->k; q++) rotate(s, p, q);
    for (int64_t i = 0; i < s->k; i++) s->values[i] = s->matrix[i][i];
    for (int64_t i = 0; i < s->k; i++)
        for (int64_t j = i + 1; j < s->k; j++)
            if (s->values[j] > s->values[i]) swap_columns(s, i, j);
}

/* ---- the space ---- */

/* a [d] -= share b [d]. */
static void subtract(float *a, const float *b, double share, int64_t d)
{
    for (int64_t i = 0; i < d; i++) a[i] = (float)((double)a[i] - share * (double)b[i]);
}

static void multiply(float *a, double by, int64_t d)
{
    for (int64_t i = 0; i < d; i++) a[i] = (float)(by * (double)a[i]);
}

/* Makes the rows of `basis` orthonormal, in their order; twice, since once leaves rounding. A row
 * that the ones before it make up becomes zero. */
static void orthonormalise(cpl_matrix basis, int n_threads)
{
    const int64_t d         = basis.cols;
    const cpl_host_ops *ops = cpl_cpu_on_host();
    for (int64_t i = 0; i < basis.rows; i++) {
        float *row          = row_of(basis, i);
        const double before = sqrt(ops->dot(row, row, d, n_threads));
        for (int64_t pass = 0; pass < 2 * i; pass++) {
            const float *other = row_of(basis, pass % i);
            subtract(row, other, ops->dot(row, other, d, n_threads), d);
        }
        const double after = sqrt(ops->dot(row, row, d, n_threads));
        multiply(row, after > LOST * before ? 1 / after : 0, d);
    }
}

/* scores, image and the matrix of x^T x in the basis, with its eigenvectors. */
static cpl_status look(small *s, cpl_matrix x, const cpl_pca_space *space, int n_threads)
{
    CPL_TRY(
        cpl_product_matrices(space->scores, CPL_AS_IS, x, CPL_TRANSPOSED, space->basis, n_threads));
    CPL_TRY(
        cpl_product_matrices(space->image, CPL_TRANSPOSED, space->scores, CPL_AS_IS, x, n_threads));
    for (int64_t i = 0; i < s->k; i++)
        for (int64_t j = 0; j <= i; j++)
            s->matrix[i][j] = s->matrix[j][i] = cpl_cpu_on_host()->dot(
                row_of(space->image, i), row_of(space->basis, j), x.cols, n_threads);
    eigenvectors(s);
    return CPL_OK;
}

/* The eigenvectors as F32 rows. */
static cpl_matrix turn_of(const small *s, float turn[SPACE * SPACE])
{
    for (int64_t i = 0; i < s->k; i++)
        for (int64_t j = 0; j < s->k; j++) turn[i * s->k + j] = (float)s->vectors[j][i];
    return (cpl_matrix){turn, s->k, s->k};
}

/* The next basis: the image's rows, turned and made orthonormal. */
static cpl_status go_on(const small *s, const cpl_pca_space *space, int n_threads)
{
    float turn[SPACE * SPACE];
    CPL_TRY(cpl_product_matrices(space->basis, CPL_AS_IS, turn_of(s, turn), CPL_AS_IS, space->image,
                                 n_threads));
    orthonormalise(space->basis, n_threads);
    return CPL_OK;
}

/* 1 or -1, so that the largest number of x [d] is positive; the first of equally large ones. */
static float sign_of(const float *x, int64_t d)
{
    float largest = 0;
    for (int64_t i = 0; i < d; i++)
        if (fabsf(x[i]) > fabsf(largest)) largest = x[i];
    return largest < 0 ? -1.0f : 1.0f;
}

/* The points' coordinates along the first two eigenvectors, whose directions go to `image`. */
static cpl_status project(cpl_matrix out, const small *s, const cpl_pca_space *space, int n_threads)
{
    float turn[SPACE * SPACE];
    const int64_t c = s->k < 2 ? s->k : 2, n = out.cols;
    const cpl_matrix all = turn_of(s, turn), first = {all.at, c, all.cols};
    memset(out.at, 0, (size_t)(2 * n) * sizeof *out.at);
    CPL_TRY(cpl_product_matrices((cpl_matrix){out.at, c, n}, CPL_AS_IS, first, CPL_TRANSPOSED,
                                 space->scores, n_threads));
    CPL_TRY(cpl_product_matrices(space->image, CPL_AS_IS, all, CPL_AS_IS, space->basis, n_threads));
    for (int64_t j = 0; j < c; j++) {
        const float sign = sign_of(row_of(space->image, j), space->image.cols);
        for (int64_t i = 0; i < n; i++) row_of(out, j)[i] *= sign;
    }
    return CPL_OK;
}

cpl_status cpl_pca(cpl_matrix out, cpl_matrix x, const cpl_pca_space *space, uint64_t seed,
                   int n_threads)
{
    const cpl_rng_key key = {.seed = seed, .stream = CPL_STREAM_TSNE};
    small s               = {.k = space->basis.rows};
    double before         = 0;
    for (int64_t i = 0; i < s.k * space->basis.cols; i++)
        space->basis.at[i] = cpl_rng_normal(&key, (uint64_t)i);
    orthonormalise(space->basis, n_threads);
    for (int round = 0;; round++) {
        CPL_TRY(look(&s, x, space, n_threads));
        const double variance = s.values[0] + (s.k > 1 ? s.values[1] : 0);
        if (!(variance > before * (1 + GROWTH)) || round == MOST_ROUNDS) break;
        before = variance;
        CPL_TRY(go_on(&s, space, n_threads));
    }
    return project(out, &s, space, n_threads);
}
