/* null_model.c - see null_model.h: ERC, kappa, their values for a random pairing of rows and
 * experts, and ratios to the diagonal. */
#include "inspect/null_model.h"

#include <float.h>
#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "base/arena.h"
#include "base/rng.h"

static double above_zero(double x)
{
    return x > 0 ? x : 0;
}

double cpl_null_model_erc(const float *M, int64_t n, double alpha)
{
    double sum = 0;
    for (int64_t i = 0; i < n; i++)
        for (int64_t j = 0; j < n; j++) {
            if (j == i) continue;
            double m = M[i * n + j];
            sum += above_zero(m - alpha * M[i * n + i]) + above_zero(m - alpha * M[j * n + j]);
        }
    return sum / ((double)n * (double)n);
}

/* ---- kappa ---- */

static void fill_kappa(double *kappa, const float *M, const double *row_norm,
                       const double *gate_norm, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        for (int64_t j = 0; j < n; j++) {
            double scale     = row_norm[i] * gate_norm[j];
            kappa[i * n + j] = scale > 0 ? M[i * n + j] / scale : 0;
        }
}

static void kappa_figures(cpl_null_model *out, const double *kappa, int64_t n)
{
    double own = 0, other = 0;
    int64_t rows = 0, columns = 0;
    for (int64_t i = 0; i < n; i++) {
        double k     = kappa[i * n + i];
        bool row_own = true, column_own = true;
        own += k;
        for (int64_t j = 0; j < n; j++) {
            if (j == i) continue;
            other += kappa[i * n + j];
            row_own    = row_own && kappa[i * n + j] <= k;
            column_own = column_own && kappa[j * n + i] <= k;
        }
        rows += row_own;
        columns += column_own;
    }
    out->kappa_diagonal     = own / (double)n;
    out->kappa_off_diagonal = n > 1 ? other / ((double)n * (double)(n - 1)) : 0;
    out->kappa_row_top1     = (double)rows / (double)n;
    out->kappa_column_top1  = (double)columns / (double)n;
}

/* Sets mean [2,n] to the means of rows and of columns, and returns the mean of all numbers. */
static double fill_means(double *mean, const double *kappa, int64_t n)
{
    double all = 0, *column = mean + n;
    memset(mean, 0, 2 * (size_t)n * sizeof *mean);
    for (int64_t i = 0; i < n; i++)
        for (int64_t j = 0; j < n; j++) {
            mean[i] += kappa[i * n + j] / (double)n;
            column[j] += kappa[i * n + j] / (double)n;
        }
    for (int64_t i = 0; i < n; i++) all += mean[i] / (double)n;
    return all;
}

/* Sets the moments of S = sum_i kappa_{i,p(i)} (W. Hoeffding, "A combinatorial central limit
 * theorem", 1951): E S = sum_ij kappa_ij / n, Var S = sum_ij (kappa_ij - row_i - column_j + mean)^2
 * / (n - 1). If the parts in the bracket are no more than the rounding errors of M, rows and norms,
 * which are F32, every pairing has the same sum, and the deviation is 0. The centred rows of two
 * experts, which are R and -R, are such a case. mean [2,n] is scratch. */
static void exact_moments(cpl_null_model *out, const double *kappa, int64_t n, double *mean)
{
    double all = fill_means(mean, kappa, n), squares = 0, most = 0;
    for (int64_t i = 0; i < n; i++)
        for (int64_t j = 0; j < n; j++) {
            double part = kappa[i * n + j] - mean[i] - mean[n + j] + all;
            squares += part * part;
            most = fmax(most, fabs(kappa[i * n + j]));
        }
    double slack   = 4 * (double)FLT_EPSILON * (double)n * most;
    bool same      = n == 1 || sqrt(squares) <= slack;
    out->expected  = all;
    out->deviation = same ? 0 : sqrt(squares / (double)(n - 1)) / (double)n;
    out->z         = same ? NAN : (out->kappa_diagonal - all) / out->deviation;
}

static cpl_status assignment_figure(cpl_null_model *out, const double *kappa, int64_t n,
                                    int32_t *pairing)
{
    int64_t own = 0;
    CPL_TRY(cpl_null_model_assign(pairing, kappa, n));
    for (int64_t i = 0; i < n; i++) own += pairing[i] == i;
    out->assignment_accuracy = (double)own / (double)n;
    return CPL_OK;
}

/* ---- ERC under random pairings ---- */

/* Holds every row (side 0) and every column (side 1) of M in falling order, with running sums. */
typedef struct ladders {
    int64_t n;
    float *value; /* [2,n,n] */
    double *sum;  /* [2,n,n] sum[k] = value[0] + ... + value[k] of this line */
} ladders;

/* Defines a total order with NaN last, so that sorting is sound for any numbers. */
static int falling(const void *left, const void *right)
{
    float a = *(const float *)left, b = *(const float *)right;
    if (isnan(a) || isnan(b)) return !!isnan(a) - !!isnan(b);
    return (a < b) - (a > b);
}

static void build_line(const ladders *l, int64_t line, const float *M, int64_t stride)
{
    float *value = l->value + line * l->n;
    double *sum = l->sum + line * l->n, total = 0;
    for (int64_t k = 0; k < l->n; k++) value[k] = M[k * stride];
    qsort(value, (size_t)l->n, sizeof *value, falling);
    for (int64_t k = 0; k < l->n; k++) sum[k] = total += value[k];
}

static void build_ladders(const ladders *l, const float *M)
{
    for (int64_t i = 0; i < l->n; i++) {
        build_line(l, i, M + i * l->n, 1);
        build_line(l, l->n + i, M + i, l->n);
    }
}

/* Returns sum_k max(value_k - bound, 0) over one line. The numbers above the bound come first. */
static double overhang(const ladders *l, int64_t line, double bound)
{
    const float *value = l->value + line * l->n;
    int64_t above = 0, end = l->n;
    while (above < end) {
        int64_t middle = (above + end) / 2;
        if (value[middle] > bound)
            above = middle + 1;
        else
            end = middle;
    }
    return above ? l->sum[line * l->n + above - 1] - (double)above * bound : 0;
}

/* Returns ERC of M'[i,j] = M[i,p(j)]. Row i of M' holds the numbers of row i of M, and column j
 * those of column p(j) of M. So the hinges of a line are computed from its sorted sums, without
 * reading its n numbers again. The last term takes out j = i, which is above its own bound if alpha
 * < 1. */
static double paired_erc(const ladders *l, const float *M, const int32_t *pairing, double alpha)
{
    double sum = 0;
    int64_t n  = l->n;
    for (int64_t i = 0; i < n; i++) {
        double own = M[i * n + pairing[i]], bound = alpha * own;
        sum += above_zero(overhang(l, i, bound) - above_zero(own - bound));
        sum += above_zero(overhang(l, n + pairing[i], bound) - above_zero(own - bound));
    }
    return sum / ((double)n * (double)n);
}

/* Returns the key of a random pairing. The upper bits of a layer's number, which only a damaged
 * file has, go to the step. */
static cpl_rng_key pairing_key(uint64_t seed, int64_t layer, uint64_t turn)
{
    uint64_t upper = (uint64_t)layer >> 16 & 0xffffffffu;
    return (cpl_rng_key){.seed   = seed,
                         .step   = upper << 8 | turn,
                         .layer  = (uint32_t)((uint64_t)layer & 0xffffu),
                         .stream = CPL_STREAM_PAIRING};
}

static void mean_and_sd(double *mean, double *sd, const double *x, int64_t count)
{
    double sum = 0, squares = 0;
    for (int64_t k = 0; k < count; k++) sum += x[k];
    *mean = sum / (double)count;
    for (int64_t k = 0; k < count; k++) squares += (x[k] - *mean) * (x[k] - *mean);
    *sd = sqrt(squares / (double)count);
}

static void random_figures(cpl_null_model *out, const ladders *l, const float *M,
                           const double *alphas, int n_alphas, uint64_t seed, int64_t layer,
                           int32_t *pairing)
{
    double erc[CPL_NULL_MODEL_MAX_ALPHAS][CPL_NULL_MODEL_PAIRINGS];
    build_ladders(l, M);
    for (int t = 0; t < CPL_NULL_MODEL_PAIRINGS; t++) {
        cpl_rng_key key = pairing_key(seed, layer, (uint64_t)t);
        cpl_rng_shuffle(pairing, l->n, &key);
        for (int a = 0; a < n_alphas; a++) erc[a][t] = paired_erc(l, M, pairing, alphas[a]);
    }
    for (int a = 0; a < n_alphas; a++)
        mean_and_sd(&out->erc_mean[a], &out->erc_sd[a], erc[a], CPL_NULL_MODEL_PAIRINGS);
}

static cpl_status pairing_figures(cpl_null_model *out, const float *M, int64_t n,
                                  const double *alphas, int n_alphas, uint64_t seed, int64_t layer,
                                  int32_t *pairing)
{
    size_t numbers = 2 * (size_t)n * (size_t)n;
    ladders l      = {n, cpl_alloc(numbers * sizeof(float)), cpl_alloc(numbers * sizeof(double))};
    bool there     = l.value && l.sum;
    if (there) random_figures(out, &l, M, alphas, n_alphas, seed, layer, pairing);
    cpl_free(l.value);
    cpl_free(l.sum);
    return there ? CPL_OK : CPL_ERR_MEMORY;
}

/* ---- ratios of other numbers to the diagonal ---- */

/* Returns the quotient, one step up if rounding left it too small to close the hinge m - alpha own.
 * So ERC at the largest quotient is 0 and not a rounding error. */
static double quotient(double m, double own)
{
    if (!(m > 0)) return 0;
    if (!(own > 0)) return INFINITY;
    double alpha = m / own;
    return m - alpha * own > 0 ? nextafter(alpha, INFINITY) : alpha;
}

/* Defines a total order with NaN last, so that sorting is sound for any numbers. */
static int rising(const void *left, const void *right)
{
    double a = *(const double *)left, b = *(const double *)right;
    if (isnan(a) || isnan(b)) return !!isnan(a) - !!isnan(b);
    return (a > b) - (a < b);
}

/* Returns the number at place q (count - 1) of the sorted numbers, linear between neighbours. */
static double quantile(const double *sorted, int64_t count, double q)
{
    double place  = q * (double)(count - 1);
    int64_t below = (int64_t)place;
    double weight = place - (double)below;
    if (!(weight > 0)) return sorted[below];
    if (isinf(sorted[below + 1])) return sorted[below + 1];
    return sorted[below] + weight * (sorted[below + 1] - sorted[below]);
}

/* Sets ratio [n (n-1)] row by row, and the figures that depend on the place of a ratio. */
static void fill_ratios(cpl_null_model_ratios *out, double *ratio, const float *M, int64_t n)
{
    int64_t k = 0, violated = 0;
    out->most = -1;
    for (int64_t i = 0; i < n; i++)
        for (int64_t j = 0; j < n; j++) {
            if (j == i) continue;
            double m = M[i * n + j];
            double r = fmax(quotient(m, M[i * n + i]), quotient(m, M[j * n + j]));
            violated += r > 1;
            if (r > out->most) {
                out->most        = r;
                out->most_row    = i;
                out->most_column = j;
            }
            ratio[k++] = r;
        }
    out->violated = (double)violated / (double)k;
}

cpl_status cpl_null_model_ratios_of(cpl_null_model_ratios *out, const float *M, int64_t n)
{
    memset(out, 0, sizeof *out);
    if (n < 2) return CPL_OK;
    int64_t pairs = n * (n - 1);
    double *ratio = cpl_alloc((size_t)pairs * sizeof *ratio);
    if (!ratio) return CPL_ERR_MEMORY;
    fill_ratios(out, ratio, M, n);
    qsort(ratio, (size_t)pairs, sizeof *ratio, rising);
    out->q50 = quantile(ratio, pairs, 0.50);
    out->q90 = quantile(ratio, pairs, 0.90);
    out->q99 = quantile(ratio, pairs, 0.99);
    cpl_free(ratio);
    return CPL_OK;
}

/* ---- the whole comparison ---- */

cpl_status cpl_null_model_of(cpl_null_model *out, int32_t *assigned, const float *M,
                             const double *row_norm, const double *gate_norm, int64_t n,
                             const double *alphas, int n_alphas, uint64_t seed, int64_t layer)
{
    CPL_ASSERT(n >= 1 && n_alphas >= 0 && n_alphas <= CPL_NULL_MODEL_MAX_ALPHAS);
    memset(out, 0, sizeof *out);
    cpl_status status = CPL_ERR_MEMORY;
    double *kappa     = cpl_alloc((size_t)n * (size_t)n * sizeof *kappa);
    double *mean      = cpl_alloc(2 * (size_t)n * sizeof *mean);
    int32_t *pairing  = cpl_alloc((size_t)n * sizeof *pairing);
    if (!kappa || !mean || !pairing) goto done;
    fill_kappa(kappa, M, row_norm, gate_norm, n);
    kappa_figures(out, kappa, n);
    exact_moments(out, kappa, n, mean);
    CPL_TRY_DONE(assignment_figure(out, kappa, n, pairing));
    if (assigned) memcpy(assigned, pairing, (size_t)n * sizeof *pairing);
    status = pairing_figures(out, M, n, alphas, n_alphas, seed, layer, pairing);
done:
    cpl_free(kappa);
    cpl_free(mean);
    cpl_free(pairing);
    return status;
}
