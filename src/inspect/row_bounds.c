/* row_bounds.c - bounds of figures that are no smooth functions of M, from simultaneous 95 %
 * intervals of its n^2 entries; see row_sample.h, and docs/method.md 5.2.
 *
 * Method: the sum of squares S of an entry over the b blocks is taken as a gamma variable of shape
 *         a. Its blocks' shares p_k of S then have the mean of r = b / (b - 1) sum_k (p_k - 1/b)^2
 *         at 1 / (a + 1), so r / (1 - r) is the relative variance of S. b - 1 degrees of freedom
 *         are few: r is drawn towards the mean over the entries, by as much as the entries' r agree
 *         (the moderated t of G. K. Smyth, "Linear models and empirical Bayes methods", 2004).
 *         The cube root of a gamma variable is nearly normal (E. B. Wilson and M. M. Hilferty,
 *         1931), far out too, where Bonferroni's quantile lies.
 * Names:  worst, best: M at which ERC and the ratios are largest, smallest: entries off the diagonal
 *         at one end of their intervals, those on it at the other. */
#include "inspect/row_sample.h"

#include <math.h>
#include <string.h>

#include "base/arena.h"
#include "base/stats/statistics.h"

static const double error_rate   = 0.05;
static const double most_freedom = 1e6;

/* ---- how far an entry's blocks differ ---- */

/* r of entry i of expert j: of S, or of the quotient of S and the expert's norm. -1: S is 0. */
static double dispersion(const cpl_row_sums *s, int64_t j, int64_t i, bool scale_free)
{
    const int64_t n = s->n, b = s->n_read;
    const double *squares = s->squares + j * b * n + i, *norms = s->norms + j * b;
    double square = 0, norm = 0, sum = 0;
    for (int64_t k = 0; k < b; k++) square += squares[k * n];
    for (int64_t k = 0; k < b; k++) norm += norms[k];
    if (!(square > 0)) return -1;
    for (int64_t k = 0; k < b; k++) {
        const double expected = scale_free ? norms[k] / norm : 1 / (double)b;
        const double part     = squares[k * n] / square - expected;
        sum += part * part;
    }
    return fmin((double)b / (double)(b - 1) * sum, 1);
}

/* What the entries of a group (on the diagonal, or off it) have in common. */
typedef struct prior {
    double mean, freedom; /* of r */
} prior;

/* Of an F distribution with b - 1 and `freedom` degrees that has their mean and variance. */
static prior fit(double sum, double squares, double count, double each)
{
    prior p        = {.mean = count > 0 ? sum / count : 0, .freedom = most_freedom};
    const double g = p.mean > 0 ? (squares / count - p.mean * p.mean) / (p.mean * p.mean) : 0;
    if (count < 2 || g * each <= 2) return p;
    p.freedom = fmin((4 * g * each + 2 * each - 4) / (g * each - 2), most_freedom);
    p.mean *= (p.freedom - 2) / p.freedom;
    return p;
}

static prior prior_of(const cpl_row_sums *s, bool diagonal, bool scale_free)
{
    double sum = 0, squares = 0, count = 0;
    for (int64_t j = 0; j < s->n; j++)
        for (int64_t i = 0; i < s->n; i++) {
            const double r = (i == j) == diagonal ? dispersion(s, j, i, scale_free) : -1;
            if (r < 0) continue;
            sum += r;
            squares += r * r;
            count++;
        }
    return fit(sum, squares, count, (double)(s->n_read - 1));
}

/* ---- intervals ---- */

typedef struct entry {
    double low, high; /* of the root of S, as factors */
} entry;

/* Wilson and Hilferty: (S / E S)^(1/3) has mean 1 - v / 9 and variance v / 9. */
static entry factors(double variance, double quantile)
{
    const double middle = 1 - variance / 9, half = quantile * sqrt(variance) / 3;
    return (entry){pow(middle + half, -1.5),
                   middle > half ? pow(middle - half, -1.5) : (double)INFINITY};
}

static double estimate_of(const cpl_row_sums *s, int64_t j, int64_t i, const double *row_norm,
                          bool scale_free, double *least)
{
    const int64_t n = s->n, b = s->n_read;
    double square = 0, norm = 0;
    for (int64_t k = 0; k < b; k++) square += s->squares[(j * b + k) * n + i];
    for (int64_t k = 0; k < b; k++) norm += s->norms[j * b + k];
    *least = scale_free ? 0 : sqrt(square); /* the rows that were read are part of M */
    if (!scale_free) return sqrt(square * (double)s->n_blocks / (double)b);
    return norm > 0 && row_norm[i] > 0 ? sqrt(square / norm) / row_norm[i] : 0;
}

static void set_entry(double *low, double *high, const cpl_row_sums *s, int64_t j, int64_t i,
                      const double *row_norm, bool scale_free, const prior *p, double t)
{
    const double each = (double)(s->n_read - 1), r = dispersion(s, j, i, scale_free);
    const double rest = 1 - (double)s->n_read / (double)s->n_blocks; /* 1 - f */
    double least;
    const double x = estimate_of(s, j, i, row_norm, scale_free, &least);
    if (r < 0 || !(x > 0)) {
        *low  = 0;
        *high = !(row_norm[i] > 0) ? 0 : scale_free ? 1 : (double)INFINITY;
        return;
    }
    const double drawn = (p->freedom * p->mean + each * r) / (p->freedom + each);
    const entry e      = factors(rest * drawn / fmax(1 - drawn, 1e-9), t);
    *low               = fmax(x * e.low, least);
    *high              = scale_free ? fmin(x * e.high, 1) : x * e.high;
}

void cpl_row_sums_entries(double *low, double *high, const cpl_row_sums *s, const double *row_norm,
                          bool scale_free)
{
    const double each = (double)(s->n_read - 1), tail = error_rate / 2 / (double)(s->n * s->n);
    prior p[2];
    double t[2];
    for (int own = 0; own < 2; own++) {
        p[own] = prior_of(s, own, scale_free);
        t[own] = -cpl_student_quantile(tail, p[own].freedom + each);
    }
    for (int64_t j = 0; j < s->n; j++)
        for (int64_t i = 0; i < s->n; i++)
            set_entry(low + i * s->n + j, high + i * s->n + j, s, j, i, row_norm, scale_free,
                      &p[i == j], t[i == j]);
}

/* ---- bounds from M ---- */

static double mean_diagonal(const float *M, int64_t n)
{
    double sum = 0;
    for (int64_t i = 0; i < n; i++) sum += (double)M[i * n + i] / (double)n;
    return sum;
}

static cpl_interval bound(double low, double high)
{
    return (cpl_interval){NAN, low, high};
}

/* Share of the pairs whose M_ij is at least M_ii, or M_jj. */
static double share_active(const float *M, int64_t n, bool row)
{
    int64_t count = 0;
    for (int64_t i = 0; i < n; i++)
        for (int64_t j = 0; j < n; j++)
            count += j != i && M[i * n + j] >= M[row ? i * n + i : j * n + j];
    return n > 1 ? (double)count / (double)(n * (n - 1)) : 0;
}

static cpl_status bound_coupling(cpl_row_bounds *out, const float *best, const float *worst,
                                 int64_t n, const double *alphas, int n_alphas)
{
    const double diagonal[2] = {mean_diagonal(best, n), mean_diagonal(worst, n)};
    cpl_null_model_ratios low, high;
    CPL_TRY(cpl_null_model_ratios_of(&low, best, n));
    CPL_TRY(cpl_null_model_ratios_of(&high, worst, n));
    for (int a = 0; a < n_alphas; a++) {
        out->erc[a] =
            bound(cpl_null_model_erc(best, n, alphas[a]), cpl_null_model_erc(worst, n, alphas[a]));
        out->erc_relative[a] = bound(out->erc[a].low > 0 ? out->erc[a].low / diagonal[0] : 0,
                                     out->erc[a].high > 0 ? out->erc[a].high / diagonal[1] : 0);
    }
    out->ratio_50       = bound(low.q50, high.q50);
    out->ratio_90       = bound(low.q90, high.q90);
    out->ratio_99       = bound(low.q99, high.q99);
    out->alpha_min      = bound(low.most, high.most);
    out->violated       = bound(low.violated, high.violated);
    out->active_rows    = bound(share_active(best, n, true), share_active(worst, n, true));
    out->active_columns = bound(share_active(best, n, false), share_active(worst, n, false));
    return CPL_OK;
}

/* best, worst [n,n] from low, high [n,n]. */
static void set_ends(float *best, float *worst, const double *low, const double *high, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        for (int64_t j = 0; j < n; j++) {
            const int64_t at = i * n + j;
            best[at]         = (float)(i == j ? high[at] : low[at]);
            worst[at]        = (float)(i == j ? low[at] : high[at]);
        }
}

/* ---- bounds from kappa ---- */

/* Whether the entry on the diagonal is the largest of its row (step 1) or column (step n) in `own`,
 * if others are as in `others`. */
static bool is_largest(const double *own, const double *others, int64_t n, int64_t i, bool row)
{
    for (int64_t j = 0; j < n; j++)
        if (j != i && others[row ? i * n + j : j * n + i] > own[i * n + i]) return false;
    return true;
}

static cpl_interval bound_own(const double *low, const double *high, int64_t n, bool row)
{
    int64_t least = 0, most = 0;
    for (int64_t i = 0; i < n; i++) {
        least += is_largest(low, high, n, i, row);
        most += is_largest(high, low, n, i, row);
    }
    return bound((double)least / (double)n, (double)most / (double)n);
}

/* If an assignment gives row i the expert j and expert i the row l, then to give i to i and j to l
 * is better where kappa_ii + kappa_lj > kappa_ij + kappa_li. If it is for all j and l, i is given to
 * i in the best assignment. */
static bool is_assigned(const double *low, const double *high, int64_t n, int64_t i)
{
    for (int64_t l = 0; l < n; l++)
        for (int64_t j = 0; j < n; j++)
            if (l != i && j != i &&
                low[i * n + i] + low[l * n + j] <= high[i * n + j] + high[l * n + i])
                return false;
    return true;
}

/* The reverse: there is a row l that, whatever expert m it has, would better change with i. */
static bool is_not_assigned(const double *low, const double *high, int64_t n, int64_t i)
{
    for (int64_t l = 0; l < n; l++) {
        bool better = l != i;
        for (int64_t m = 0; m < n && better; m++)
            better = m == i || low[i * n + m] + low[l * n + i] > high[i * n + i] + high[l * n + m];
        if (better) return true;
    }
    return false;
}

static cpl_interval bound_assigned(const double *low, const double *high, int64_t n)
{
    int64_t least = 0, most = 0;
    for (int64_t i = 0; i < n; i++) {
        const bool own = is_assigned(low, high, n, i);
        least += own;
        most += own || !is_not_assigned(low, high, n, i);
    }
    return bound((double)least / (double)n, (double)most / (double)n);
}

/* ---- all of it ---- */

cpl_status cpl_row_sums_bound(cpl_row_bounds *out, const cpl_row_sums *sums, const double *row_norm,
                              const double *alphas, int n_alphas)
{
    const int64_t n   = sums->n;
    const size_t all  = (size_t)(n * n);
    cpl_status status = CPL_ERR_MEMORY;
    double *low       = cpl_alloc(2 * all * sizeof *low);
    float *best       = cpl_alloc(2 * all * sizeof *best);
    CPL_ASSERT(n_alphas >= 0 && n_alphas <= CPL_NULL_MODEL_MAX_ALPHAS);
    memset(out, 0, sizeof *out);
    if (!low || !best) goto done;
    cpl_row_sums_entries(low, low + all, sums, row_norm, false);
    set_ends(best, best + all, low, low + all, n);
    CPL_TRY_DONE(bound_coupling(out, best, best + all, n, alphas, n_alphas));
    cpl_row_sums_entries(low, low + all, sums, row_norm, true);
    out->rows_own    = bound_own(low, low + all, n, true);
    out->columns_own = bound_own(low, low + all, n, false);
    out->assigned    = bound_assigned(low, low + all, n);
done:
    cpl_free(low);
    cpl_free(best);
    return status;
}
