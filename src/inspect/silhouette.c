/* silhouette.c - see internal.h */
#include "inspect/internal.h"

#include <float.h>
#include <math.h>

#include "tensor/product.h"

/* ---- rows ---- */

/* Returns the sum of squares in double, where no square overflows or vanishes. */
static double squares_of(const float *x, int64_t d)
{
    double sum = 0;
#pragma omp simd reduction(+ : sum)
    for (int64_t k = 0; k < d; k++) sum += (double)x[k] * (double)x[k];
    return sum;
}

void cpl_silhouette_unit_rows(cpl_matrix x)
{
    const int64_t d = x.cols;
    for (int64_t r = 0; r < x.rows; r++) {
        float *row           = x.at + r * d;
        const double squares = squares_of(row, d);
        const double factor  = squares == 0 ? 0 : 1 / sqrt(squares);
        for (int64_t k = 0; k < d; k++) row[k] = (float)((double)row[k] * factor);
    }
}

/* Returns the larger number, or NaN if one of the two is NaN. */
static float larger(float a, float b)
{
    return a > b || a != a ? a : b;
}

/* Computes the silhouette from the mean cosines of u to its own expert and to the nearest other
 * expert. Its own expert has D rows, among them u itself, at a distance of 0. The cosine of a zero
 * row to itself, which is not one of the other rows, is 0. */
static double silhouette_of(const float *u, int64_t d, double own, double other, int64_t D)
{
    const double rounding = 4 * (double)FLT_EPSILON * sqrt((double)d);
    double a = 1 - (own * (double)D - squares_of(u, d)) / (double)(D - 1), b = 1 - other;
    a                 = a < 0 ? 0 : a;
    b                 = b < 0 ? 0 : b;
    const double most = a > b ? a : b;
    return most <= rounding ? 0 : (b - a) / most;
}

cpl_status cpl_silhouette_add(double *sum, float *products, cpl_matrix means, int64_t own,
                              int64_t D, cpl_matrix U)
{
    const int64_t d = U.cols, n = means.rows;
    if (D == 1) return CPL_OK;
    CPL_TRY(cpl_product_matrices((cpl_matrix){products, U.rows, n}, CPL_AS_IS, U, CPL_TRANSPOSED,
                                 means, 1));
    for (int64_t r = 0; r < U.rows; r++) {
        const float *cosine = products + r * n;
        float other         = -INFINITY;
        for (int64_t c = 0; c < n; c++)
            if (c != own) other = larger(cosine[c], other);
        *sum += silhouette_of(U.at + r * d, d, (double)cosine[own], (double)other, D);
    }
    return CPL_OK;
}

/* ---- gates ---- */

cpl_status cpl_silhouette_add_mean(cpl_inspect_worker *worker, const cpl_latent *latent, int64_t d,
                                   cpl_matrix W)
{
    CPL_TRY(cpl_latent_as_router(&W, worker->wide, latent, d));
    cpl_silhouette_unit_rows(W);
    for (int64_t r = 0; r < W.rows; r++)
        for (int64_t k = 0; k < W.cols; k++) worker->sum[k] += (double)W.at[r * W.cols + k];
    return CPL_OK;
}

void cpl_silhouette_mean(float *mean, const cpl_inspect_worker *worker, const cpl_moe_layer *at)
{
    for (int64_t k = 0; k < at->d; k++) mean[k] = (float)(worker->sum[k] / (double)at->D);
}

cpl_status cpl_silhouette_expert(cpl_layer_report *l, cpl_inspect_worker *worker,
                                 const cpl_latent *latent, cpl_matrix means, int64_t j)
{
    const cpl_moe_layer *at = l->at;
    const int64_t block     = cpl_inspect_worker_rows(at);
    double sum              = 0;
    CPL_TRY(cpl_gate_load(&worker->gate, at, j));
    for (int64_t c = 0; c < at->D; c += block) {
        cpl_matrix W = {worker->rows, at->D - c < block ? at->D - c : block, at->l};
        cpl_gate_rows(W, &worker->gate, c);
        CPL_TRY(cpl_latent_as_router(&W, worker->wide, latent, at->d));
        cpl_silhouette_unit_rows(W);
        CPL_TRY(cpl_silhouette_add(&sum, worker->products, means, j, at->D, W));
    }
    l->silhouettes[j] = sum / (double)at->D;
    return CPL_OK;
}

void cpl_silhouette_finish(cpl_layer_report *l)
{
    const int64_t n = l->at->n;
    l->silhouette   = NAN;
    if (!l->silhouettes) return;
    if (n == 1) l->silhouettes[0] = NAN;
    double sum = 0;
    for (int64_t j = 0; j < n; j++) sum += l->silhouettes[j];
    l->silhouette = sum / (double)n;
}
