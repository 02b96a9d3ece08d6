/* figures.c - see tensor/figures.h. Small sums of n x n and n x d numbers, in a fixed order. All
 * sums are in double, except the inner products of all_dots, which are in float. */
#include <float.h>
#include <math.h>

#include "base/stats/eigen.h"
#include "tensor/cpu/cpu.h"
#include "tensor/cpu/lanes.h"

/* The scratch of the coupling figures. */
typedef struct view {
    double *router_norm, *rows_norm, *gate_norm; /* [n] */
    double *gate_spectral;                       /* [n] */
    double *gram, *eigenvalue, *spare;           /* [m,m], [m], [m]; m the smaller of n and d */
    float *dots;                                 /* [n,n] inner products of R~ or R with R */
    float *proxy;                                /* [n,d] */
} view;

size_t CPL_ISA_NAME(cpl_cpu_figures_scratch)(const cpl_backend *be, const cpl_work *work)
{
    (void)be;
    size_t n = (size_t)work->n_experts, d = (size_t)work->d_model, m = n < d ? n : d;
    return (4 * n + m * m + 2 * m) * sizeof(double) + (n * n + n * d) * sizeof(float);
}

static view view_of(cpl_backend *be, int64_t n, int64_t d)
{
    const int64_t m = n < d ? n : d;
    view v;
    v.router_norm   = be->scratch;
    v.rows_norm     = v.router_norm + n;
    v.gate_norm     = v.rows_norm + n;
    v.gate_spectral = v.gate_norm + n;
    v.gram          = v.gate_spectral + n;
    v.eigenvalue    = v.gram + m * m;
    v.spare         = v.eigenvalue + m;
    v.dots          = (float *)(void *)(v.spare + m);
    v.proxy         = v.dots + n * n;
    CPL_ASSERT((size_t)((char *)(v.proxy + n * d) - (char *)be->scratch) <= be->scratch_bytes);
    return v;
}

static void norms(double *out, const float *x, int64_t rows, int64_t cols, int n_threads)
{
#pragma omp parallel for num_threads(n_threads) schedule(static)
    for (int64_t i = 0; i < rows; i++) out[i] = sqrt(lanes_squares(x + i * cols, cols));
}

static void mean_and_sd(double *mean, double *sd, const double *x, int64_t n)
{
    double sum = 0, squares = 0;
    for (int64_t i = 0; i < n; i++) sum += x[i];
    *mean = sum / (double)n;
    for (int64_t i = 0; i < n; i++) squares += (x[i] - *mean) * (x[i] - *mean);
    *sd = sqrt(squares / (double)n);
}

/* Computes dots [n,n] = a [n,d] . b [n,d]^T in plain loops, since the product is small. */
static void all_dots(float *dots, const float *a, const float *b, int64_t n, int64_t d,
                     int n_threads)
{
#pragma omp parallel for num_threads(n_threads) schedule(static)
    for (int64_t i = 0; i < n; i++)
        for (int64_t j = 0; j < n; j++) {
            float sum = 0;
#pragma omp simd reduction(+ : sum)
            for (int64_t k = 0; k < d; k++) sum += a[i * d + k] * b[j * d + k];
            dots[i * n + j] = sum;
        }
}

/* Sets the shares of rows i of dots whose entry i is the largest, or among the k largest. Ties are
 * broken as by the router. */
static void set_home_shares(double *top1, double *topk, const float *dots, int64_t n, int64_t k)
{
    int64_t first = 0, among = 0;
    for (int64_t i = 0; i < n; i++) {
        int64_t ahead = 0;
        float own     = dots[i * n + i];
        for (int64_t j = 0; j < n; j++)
            ahead += dots[i * n + j] > own || (dots[i * n + j] == own && j < i);
        first += ahead == 0;
        among += ahead < k;
    }
    *top1 = (double)first / (double)n;
    *topk = (double)among / (double)n;
}

static void matrix_figures(cpl_coupling_figures *f, const float *M, int64_t n, double alpha)
{
    double own = 0, other = 0;
    int64_t rows = 0, columns = 0;
    f->alpha_min = 0;
    for (int64_t i = 0; i < n; i++)
        for (int64_t j = 0; j < n; j++) {
            double m = M[i * n + j], row = M[i * n + i], column = M[j * n + j];
            if (i == j) {
                own += m;
                continue;
            }
            other += m;
            rows += (float)m >= (float)alpha * (float)row;
            columns += (float)m >= (float)alpha * (float)column;
            if (m > 0) f->alpha_min = fmax(f->alpha_min, fmax(m / row, m / column));
        }
    double pairs      = n > 1 ? (double)(n * (n - 1)) : 1;
    f->m_diagonal     = own / (double)n;
    f->m_off_diagonal = other / pairs;
    f->active_rows    = (double)rows / pairs;
    f->active_columns = (double)columns / pairs;
}

static double kappa(const float *M, const view *v, int64_t n, int64_t i, int64_t j)
{
    double scale = v->rows_norm[i] * v->gate_norm[j];
    return scale > 0 ? M[i * n + j] / scale : 0;
}

static void kappa_figures(cpl_coupling_figures *f, const float *M, const view *v, int64_t n)
{
    double own = 0, other = 0;
    int64_t rows = 0, columns = 0;
    for (int64_t i = 0; i < n; i++) {
        bool row_own = true, column_own = true;
        double k = kappa(M, v, n, i, i);
        own += k;
        for (int64_t j = 0; j < n; j++) {
            if (j == i) continue;
            other += kappa(M, v, n, i, j);
            row_own    = row_own && kappa(M, v, n, i, j) <= k;
            column_own = column_own && kappa(M, v, n, j, i) <= k;
        }
        rows += row_own;
        columns += column_own;
    }
    f->kappa_diagonal     = own / (double)n;
    f->kappa_off_diagonal = n > 1 ? other / (double)(n * (n - 1)) : 0;
    f->kappa_row_top1     = (double)rows / (double)n;
    f->kappa_column_top1  = (double)columns / (double)n;
}

static double over(double x, double scale)
{
    return scale != 0 ? x / scale : 0;
}

/* Sets the figures of lambda from own [n], whose numbers are `stride` apart. */
static void lambda_figures(cpl_coupling_figures *f, const float *own, int64_t stride, const view *v,
                           int64_t n, int64_t d)
{
    double reached = 0, random = 0;
    for (int64_t i = 0; i < n; i++) {
        reached += over(own[i * stride], v->router_norm[i] * v->gate_spectral[i]);
        random += over(v->gate_norm[i], sqrt((double)d) * v->gate_spectral[i]);
    }
    f->router_lambda        = reached / (double)n;
    f->router_lambda_random = random / (double)n;
}

static void eps_figures(cpl_coupling_figures *f, const float *eps, const view *v, int64_t n)
{
    double sum = 0;
    f->eps_min = f->eps_max = eps[0];
    f->eps_above_1 = f->zero_rows = 0;
    for (int64_t i = 0; i < n; i++) {
        sum += eps[i];
        f->eps_min = fmin(f->eps_min, eps[i]);
        f->eps_max = fmax(f->eps_max, eps[i]);
        f->eps_above_1 += eps[i] > 1;
        f->zero_rows += !(v->router_norm[i] > 0);
    }
    f->eps_mean = sum / (double)n;
}

/* ---- the noise ---- */

/* Returns the largest eps for which no proxy R_i * delta_i is nearer to R_j than to R_i. The noise
 * moves the proxy by at most eps sum_k |R_ik| |R_jk - R_ik| along R_j - R_i. The limit of the
 * motion is |R_j - R_i|^2 / 2. */
static double exact_bound(const float *own, const float *other, int64_t d)
{
    double squares = 0, moved = 0;
#pragma omp simd reduction(+ : squares, moved)
    for (int64_t k = 0; k < d; k++) {
        const double by = (double)other[k] - (double)own[k];
        squares += by * by;
        moved += fabs((double)own[k] * by);
    }
    return squares > 0 ? squares / (2 * moved) : 0; /* infinite if no noise moves R_i towards R_j */
}

/* Returns the mean of eps_i / bound_i over the rows whose exact bound is positive and finite. */
static double noise_bound_share(const float *rows, const float *eps, double *share, int64_t n,
                                int64_t d, int n_threads)
{
    double sum    = 0;
    int64_t count = 0;
#pragma omp parallel for num_threads(n_threads) schedule(static)
    for (int64_t i = 0; i < n; i++) {
        double least = INFINITY;
        for (int64_t j = 0; j < n; j++)
            if (j != i) least = fmin(least, exact_bound(rows + i * d, rows + j * d, d));
        share[i] = least > 0 && isfinite(least) ? (double)eps[i] / least : NAN;
    }
    for (int64_t i = 0; i < n; i++) {
        if (isnan(share[i])) continue;
        sum += share[i];
        count++;
    }
    return count ? sum / (double)count : NAN;
}

/* ---- the singular values of R ---- */

/* Computes the lower half of R R^T [n,n], or of R^T R [d,d] if this is smaller. */
static void gram_of(double *gram, const float *r, int64_t n, int64_t d, int n_threads)
{
    const bool by_rows = n <= d;
    const int64_t m = by_rows ? n : d, count = by_rows ? d : n;
    const int64_t step = by_rows ? d : 1, stride = by_rows ? 1 : d;
#pragma omp parallel for num_threads(n_threads) schedule(static)
    for (int64_t i = 0; i < m; i++)
        for (int64_t j = 0; j <= i; j++) {
            double sum = 0;
            for (int64_t k = 0; k < count; k++)
                sum += (double)r[i * step + k * stride] * (double)r[j * step + k * stride];
            gram[i * m + j] = sum;
        }
}

static void spectrum_figures(cpl_coupling_figures *f, const view *v, const float *r, int64_t n,
                             int64_t d, int n_threads)
{
    const int64_t m = n < d ? n : d;
    double sum = 0, entropy = 0;
    gram_of(v->gram, r, n, d, n_threads);
    cpl_eigenvalues(v->eigenvalue, v->gram, v->spare, m);
    const double most = v->eigenvalue[0], least = v->eigenvalue[m - 1];
    for (int64_t i = 0; i < m; i++) sum += sqrt(fmax(v->eigenvalue[i], 0));
    for (int64_t i = 0; i < m; i++) {
        const double share = sqrt(fmax(v->eigenvalue[i], 0)) / sum;
        if (share > 0) entropy -= share * log(share);
    }
    const bool hidden        = least <= (double)m * DBL_EPSILON * most;
    f->router_condition      = hidden ? INFINITY : sqrt(most / least);
    f->router_effective_rank = sum > 0 ? exp(entropy) : 0;
    if (isnan(most)) f->router_condition = f->router_effective_rank = NAN;
}

static double mean_cosine(const float *dots, const double *norm, int64_t n)
{
    double sum = 0;
    for (int64_t i = 0; i < n; i++)
        for (int64_t j = 0; j < i; j++)
            if (norm[i] > 0 && norm[j] > 0) sum += fabs(dots[i * n + j]) / (norm[i] * norm[j]);
    return n > 1 ? sum / ((double)n * (double)(n - 1) / 2) : 0;
}

void CPL_ISA_NAME(cpl_cpu_coupling_figures)(cpl_backend *be, cpl_tensor figures, cpl_tensor M,
                                            cpl_tensor eps, cpl_tensor R, cpl_tensor rows,
                                            cpl_tensor delta, cpl_tensor gate_norm,
                                            cpl_tensor gate_spectral, cpl_tensor answers,
                                            double alpha, int64_t top_k)
{
    int64_t n = R.shape[0], d = R.shape[1];
    const float *r = cpl_f32(R), *own = cpl_f32(rows),
                *noise        = delta.storage ? cpl_f32(delta) : NULL;
    view v                    = view_of(be, n, d);
    cpl_coupling_figures *out = (cpl_coupling_figures *)(void *)cpl_f64(figures);
    out->noise_bound_share =
        noise_bound_share(own, cpl_f32(eps), v.router_norm, n, d, be->n_threads);
    spectrum_figures(out, &v, r, n, d, be->n_threads);
    norms(v.router_norm, r, n, d, be->n_threads);
    norms(v.rows_norm, own, n, d, be->n_threads);
    for (int64_t j = 0; j < n; j++) {
        v.gate_norm[j] = cpl_f32(gate_norm)[j];
        v.gate_spectral[j] =
            gate_spectral.storage ? (double)cpl_f32(gate_spectral)[j] : (double)NAN;
    }
    mean_and_sd(&out->router_norm_mean, &out->router_norm_std, v.router_norm, n);
    mean_and_sd(&out->gate_norm_mean, &out->gate_norm_std, v.gate_norm, n);
    eps_figures(out, cpl_f32(eps), &v, n);
    matrix_figures(out, cpl_f32(M), n, alpha);
    kappa_figures(out, cpl_f32(M), &v, n);
    lambda_figures(out, answers.storage ? cpl_f32(answers) : cpl_f32(M),
                   answers.storage ? 1 : n + 1, &v, n, d);

    all_dots(v.dots, r, r, n, d, be->n_threads);
    out->router_cos = mean_cosine(v.dots, v.router_norm, n);
    set_home_shares(&out->row_route_top1, &out->row_route_topk, v.dots, n, top_k);
    for (int64_t i = 0; i < n * d; i++) v.proxy[i] = noise ? own[i] * noise[i] : own[i];
    all_dots(v.dots, v.proxy, r, n, d, be->n_threads);
    set_home_shares(&out->proxy_route_top1, &out->proxy_route_topk, v.dots, n, top_k);
}
