/* pca.c - see pca.h. Work of the size of the points or the dimensions is a product or an inner
 * product of ops.h. The rest is of size k x k, in double. */
#include "inspect/pca.h"

#include <math.h>
#include <string.h>

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

static cpl_tensor row_of(cpl_tensor x, int64_t i)
{
    return cpl_tensor_at(x, i);
}

cpl_pca_space cpl_pca_take(cpl_arena *arena, int64_t n_points, int64_t d)
{
    const int64_t k    = d < SPACE ? d : SPACE;
    cpl_pca_space take = {
        .basis  = cpl_tensor_2d(NULL, CPL_F32, k, d),
        .image  = cpl_tensor_2d(NULL, CPL_F32, k, d),
        .scores = cpl_tensor_2d(NULL, CPL_F32, n_points, k),
    };
    take.basis.data  = cpl_arena_take(arena, cpl_tensor_bytes(take.basis));
    take.image.data  = cpl_arena_take(arena, cpl_tensor_bytes(take.image));
    take.scores.data = cpl_arena_take(arena, cpl_tensor_bytes(take.scores));
    return take;
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

/* a -= share b, rows of equal length. */
static void subtract(cpl_tensor a, cpl_tensor b, double share)
{
    float *x = cpl_f32(a);
    for (int64_t i = 0; i < cpl_tensor_count(a); i++)
        x[i] = (float)((double)x[i] - share * (double)cpl_f32(b)[i]);
}

static void multiply(cpl_tensor a, double by)
{
    for (int64_t i = 0; i < cpl_tensor_count(a); i++)
        cpl_f32(a)[i] = (float)(by * (double)cpl_f32(a)[i]);
}

static double dot(cpl_backend *be, cpl_tensor a, cpl_tensor b)
{
    double sum = 0;
    be->ops->dot(be, cpl_tensor_1d(&sum, CPL_F64, 1), a, b);
    return sum;
}

static double length_of(cpl_backend *be, cpl_tensor a)
{
    return sqrt(dot(be, a, a));
}

/* Makes the rows of `basis` orthonormal, in their order; twice, since once leaves rounding. A row
 * that the ones before it make up becomes zero. */
static void orthonormalise(cpl_backend *be, cpl_tensor basis)
{
    for (int64_t i = 0; i < basis.shape[0]; i++) {
        cpl_tensor row      = row_of(basis, i);
        const double before = length_of(be, row);
        for (int64_t pass = 0; pass < 2 * i; pass++) {
            cpl_tensor other = row_of(basis, pass % i);
            subtract(row, other, dot(be, row, other));
        }
        const double after = length_of(be, row);
        multiply(row, after > LOST * before ? 1 / after : 0);
    }
}

/* scores, image and the matrix of x^T x in the basis, with its eigenvectors. */
static void look(cpl_backend *be, small *s, cpl_tensor x, const cpl_pca_space *space)
{
    be->ops->gemm_f32(be, space->scores, CPL_AS_IS, x, CPL_TRANSPOSED, space->basis, 0);
    be->ops->gemm_f32(be, space->image, CPL_TRANSPOSED, space->scores, CPL_AS_IS, x, 0);
    for (int64_t i = 0; i < s->k; i++)
        for (int64_t j = 0; j <= i; j++)
            s->matrix[i][j] = s->matrix[j][i] =
                dot(be, row_of(space->image, i), row_of(space->basis, j));
    eigenvectors(s);
}

/* The eigenvectors as F32 rows. */
static cpl_tensor turn_of(const small *s, float turn[SPACE * SPACE])
{
    for (int64_t i = 0; i < s->k; i++)
        for (int64_t j = 0; j < s->k; j++) turn[i * s->k + j] = (float)s->vectors[j][i];
    return cpl_tensor_2d(turn, CPL_F32, s->k, s->k);
}

/* The next basis: the image's rows, turned and made orthonormal. */
static void go_on(cpl_backend *be, const small *s, const cpl_pca_space *space)
{
    float turn[SPACE * SPACE];
    be->ops->gemm_f32(be, space->basis, CPL_AS_IS, turn_of(s, turn), CPL_AS_IS, space->image, 0);
    orthonormalise(be, space->basis);
}

/* 1 or -1, so that the largest number of row x is positive; the first of equally large ones. */
static float sign_of(cpl_tensor x)
{
    float largest = 0;
    for (int64_t i = 0; i < cpl_tensor_count(x); i++)
        if (fabsf(cpl_f32(x)[i]) > fabsf(largest)) largest = cpl_f32(x)[i];
    return largest < 0 ? -1.0f : 1.0f;
}

/* The points' coordinates along the first two eigenvectors, whose directions go to `image`. */
static void project(cpl_backend *be, cpl_tensor out, const small *s, const cpl_pca_space *space)
{
    float turn[SPACE * SPACE];
    const int64_t c = s->k < 2 ? s->k : 2, n = out.shape[1];
    cpl_tensor first = turn_of(s, turn), to = out;
    first.shape[0] = to.shape[0] = c;
    be->ops->fill(be, out, 0);
    be->ops->gemm_f32(be, to, CPL_AS_IS, first, CPL_TRANSPOSED, space->scores, 0);
    first.shape[0] = s->k;
    be->ops->gemm_f32(be, space->image, CPL_AS_IS, first, CPL_AS_IS, space->basis, 0);
    for (int64_t j = 0; j < c; j++) {
        const float sign = sign_of(row_of(space->image, j));
        for (int64_t i = 0; i < n; i++) cpl_f32(out)[j * n + i] *= sign;
    }
}

void cpl_pca(cpl_backend *be, cpl_tensor out, cpl_tensor x, const cpl_pca_space *space,
             uint64_t seed)
{
    const cpl_rng_key key = {.seed = seed, .stream = CPL_STREAM_TSNE};
    small s               = {.k = space->basis.shape[0]};
    double before         = 0;
    be->ops->normal(be, space->basis, 1, 6, key, 0);
    orthonormalise(be, space->basis);
    for (int round = 0;; round++) {
        look(be, &s, x, space);
        const double variance = s.values[0] + (s.k > 1 ? s.values[1] : 0);
        if (!(variance > before * (1 + GROWTH)) || round == MOST_ROUNDS) break;
        before = variance;
        go_on(be, &s, space);
    }
    project(be, out, &s, space);
}
