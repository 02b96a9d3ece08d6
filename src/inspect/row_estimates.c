/* row_estimates.c - estimates from the blocks of rows that were read, and their 95 % intervals; see
 * row_sample.h, and docs/method.md 5.2 for the formulas.
 *
 * Method: a jackknife over blocks, for each expert alone: experts are sampled independently, so the
 *         variance of a sum over experts is the sum of their variances. With t the figure of all b of B
 *         blocks, t_k of all but block k and m the mean of the t_k,
 *             variance = (1 - b / B) (b - 1) / b  sum_k (t_k - m)^2
 *         The roots have a bias, of c blocks a polynomial in 1/c - 1/B: a line through the means over all
 *         sets of 4 and 3 blocks gives the figure at 0, of all B. Means off the diagonal have so many
 *         entries that what this leaves is larger than their error: they take a parabola, through the
 *         mean over all pairs too. It has more variance than the formula says where few rows make up
 *         most of the norm, so that z and the diagonal keep the line. */
#include "inspect/row_sample.h"

#include <float.h>
#include <math.h>
#include <string.h>

#include "base/arena.h"
#include "base/stats/statistics.h"

/* ---- sums of variances ---- */

/* Of independent parts: the sum of their variances, each from b - 1 degrees of freedom, and that of
 * the squares of these. */
typedef struct spread {
    double sum, squares;
} spread;

/* An expert's part, from the deviations of its blocks [b]. */
static void add_part(spread *s, const cpl_row_sums *sums, const double *deviations)
{
    const double b = (double)sums->n_read, f = b / (double)sums->n_blocks;
    double squares = 0;
    for (int64_t k = 0; k < sums->n_read; k++) squares += deviations[k] * deviations[k];
    const double variance = (1 - f) * (b - 1) / b * squares;
    s->sum += variance;
    s->squares += variance * variance;
}

/* With Satterthwaite's degrees of freedom. */
static double t_of(const spread *s, const cpl_row_sums *sums)
{
    const double each = (double)(sums->n_read - 1);
    return cpl_student_quantile(0.975, s->squares > 0 ? each * s->sum * s->sum / s->squares : each);
}

static cpl_interval around(double estimate, const spread *s, const cpl_row_sums *sums, double scale)
{
    const double half = t_of(s, sums) * sqrt(s->sum);
    return (cpl_interval){scale * estimate, scale * fmax(estimate - half, 0),
                          scale * (estimate + half)};
}

/* ---- one expert ---- */

typedef struct sampler {
    const cpl_row_sums *sums;
    const double *row_norm;
    double *kappa;    /* [n,n] of expert j at j n: corrected */
    double *value;    /* [n]: corrected to the first order */
    double *second;   /* [n]: to the second */
    double *left_out; /* [n_read,n]: the deviations t_k - m of expert j */
    double factor;    /* of their squares in a variance */
} sampler;

static double ratio_root(double above, double below)
{
    return above > 0 && below > 0 ? sqrt(above / below) : 0;
}

/* kappa of row i from sums of squares; M if scale_free is false. */
static double figure(const sampler *s, int64_t i, double square, double norm, int64_t blocks,
                     bool scale_free)
{
    if (scale_free) return s->row_norm[i] > 0 ? ratio_root(square, norm) / s->row_norm[i] : 0;
    return sqrt(fmax(square, 0) * (double)s->sums->n_blocks / (double)blocks);
}

/* The means over all sets of 4, 3 and 2 blocks, continued to all B: along a line, and a parabola. */
static void continue_to_all(double out[2], const cpl_row_sums *sums, const double means[3])
{
    const double x = 1 / (double)sums->n_blocks;
    out[0]         = 4 * (1 - 3 * x) * means[0] - 3 * (1 - 4 * x) * means[1];
    out[1] = 8 * (1 - 3 * x) * (1 - 2 * x) * means[0] - 9 * (1 - 4 * x) * (1 - 2 * x) * means[1] +
             2 * (1 - 4 * x) * (1 - 3 * x) * means[2];
}

/* Of row i from what its blocks have, squares [b] and norms [b]: the figure without its bias, to the
 * first and to the second order, and in deviations [b] those of the figure without a block. */
static void jackknife(double out[2], const sampler *s, int64_t i, const double *squares,
                      const double *norms, bool scale_free, double *deviations)
{
    const int64_t b = s->sums->n_read;
    double square = 0, norm = 0, means[3] = {0};
    for (int64_t k = 0; k < b; k++) square += squares[k];
    for (int64_t k = 0; k < b; k++) norm += norms[k];
    means[0] = figure(s, i, square, norm, b, scale_free);
    for (int64_t k = 0; k < b; k++) {
        const double less = square - squares[k], norm_less = norm - norms[k];
        deviations[k] = figure(s, i, less, norm_less, b - 1, scale_free);
        means[1] += deviations[k] / 4;
        for (int64_t l = 0; l < k; l++)
            means[2] +=
                figure(s, i, less - squares[l], norm_less - norms[l], b - 2, scale_free) / 6;
    }
    for (int64_t k = 0; k < b; k++) deviations[k] -= means[1];
    continue_to_all(out, s->sums, means);
}

/* Sets value, second and left_out of s to those of expert j. */
static void take_expert(const sampler *s, int64_t j, bool scale_free)
{
    const int64_t n = s->sums->n, b = s->sums->n_read;
    for (int64_t i = 0; i < n; i++) {
        double squares[CPL_ROW_BLOCKS], deviations[CPL_ROW_BLOCKS];
        for (int64_t k = 0; k < b; k++) squares[k] = s->sums->squares[(j * b + k) * n + i];
        double figures[2];
        jackknife(figures, s, i, squares, s->sums->norms + j * b, scale_free, deviations);
        s->value[i]  = figures[0];
        s->second[i] = figures[1];
        for (int64_t k = 0; k < b; k++) s->left_out[k * n + i] = deviations[k];
    }
}

/* ---- means ---- */

static void add_means(const sampler *s, int64_t j, double sum[2], spread of[2])
{
    const int64_t n = s->sums->n;
    double own[CPL_ROW_BLOCKS], others[CPL_ROW_BLOCKS] = {0};
    for (int64_t i = 0; i < n; i++) sum[i != j] += i == j ? s->value[i] : s->second[i];
    for (int64_t k = 0; k < s->sums->n_read; k++) {
        const double *deviation = s->left_out + k * n;
        own[k]                  = deviation[j];
        for (int64_t i = 0; i < n; i++) others[k] += i != j ? deviation[i] : 0;
    }
    add_part(&of[0], s->sums, own);
    add_part(&of[1], s->sums, others);
}

/* Means on and off the diagonal, of kappa or of M. */
static void estimate_means(cpl_interval *own, cpl_interval *others, const sampler *s,
                           bool scale_free)
{
    const double n = (double)s->sums->n;
    double sum[2]  = {0};
    spread of[2]   = {0};
    for (int64_t j = 0; j < s->sums->n; j++) {
        take_expert(s, j, scale_free);
        if (scale_free) memcpy(s->kappa + j * s->sums->n, s->value, (size_t)n * sizeof *s->value);
        add_means(s, j, sum, of);
    }
    *own    = around(sum[0], &of[0], s->sums, 1 / n);
    *others = n > 1 ? around(sum[1], &of[1], s->sums, 1 / (n * (n - 1))) : (cpl_interval){0, 0, 0};
}

static cpl_interval estimate_norm(const sampler *s)
{
    const int64_t n = s->sums->n;
    double sum      = 0;
    spread of       = {0};
    for (int64_t j = 0; j < n; j++) {
        const double *norms = s->sums->norms + j * s->sums->n_read;
        double deviations[CPL_ROW_BLOCKS], figures[2];
        jackknife(figures, s, 0, norms, norms, false, deviations);
        sum += figures[0];
        add_part(&of, s->sums, deviations);
    }
    return around(sum, &of, s->sums, 1 / (double)n);
}

/* ---- z ---- */

/* X is kappa less the means of its rows and columns, plus the mean of all: z is
 * sqrt(n - 1) tr X / |X| (exact_moments of null_model.c). */
static void centre_twice(double *kappa, int64_t n, double *row)
{
    memset(row, 0, (size_t)n * sizeof *row);
    for (int64_t j = 0; j < n; j++) {
        double *column = kappa + j * n, mean = 0;
        for (int64_t i = 0; i < n; i++) mean += column[i] / (double)n;
        for (int64_t i = 0; i < n; i++) row[i] += (column[i] -= mean) / (double)n;
    }
    for (int64_t j = 0; j < n; j++)
        for (int64_t i = 0; i < n; i++) kappa[j * n + i] -= row[i];
}

/* With a = tr X and q = |X|^2 / (n - 1), z is a / root of q. */
typedef struct moments {
    double a, q;     /* q without what the sampling adds to it */
    double added;    /* that */
    double *da, *dq; /* [n,n_read] deviations of a and q */
    double excess;   /* to be taken off the variance of q */
} moments;

/* Takes the mean over i out of the deviations of every block: they are of X then. */
static void centre_blocks(const sampler *s)
{
    const int64_t n = s->sums->n;
    for (int64_t k = 0; k < s->sums->n_read; k++) {
        double *deviation = s->left_out + k * n, mean = 0;
        for (int64_t i = 0; i < n; i++) mean += deviation[i] / (double)n;
        for (int64_t i = 0; i < n; i++) deviation[i] -= mean;
    }
}

static double dot(const double *a, const double *b, int64_t n)
{
    double sum = 0;
    for (int64_t i = 0; i < n; i++) sum += a[i] * b[i];
    return sum;
}

/* One expert's part. C is the covariance of its column of X: the sampling adds tr C to |X|^2. X is
 * known with an error of that covariance, so the variance of dq counts 4 tr C^2 for what is
 * 2 b / (b - 1) tr C^2; the estimate of tr C^2 is unbiased for normal blocks. */
static void add_expert(moments *m, const sampler *s, int64_t j, const double *X)
{
    const int64_t n = s->sums->n, b = s->sums->n_read;
    const double each = (double)(b - 1), scale = 1 / (double)(n - 1);
    double trace = 0, products = 0;
    for (int64_t k = 0; k < b; k++) {
        const double *deviation = s->left_out + k * n;
        m->da[j * b + k]        = deviation[j];
        m->dq[j * b + k]        = 2 * scale * dot(X, deviation, n);
        trace += s->factor * dot(deviation, deviation, n);
        for (int64_t l = 0; l < b; l++)
            products += pow(s->factor * dot(deviation, s->left_out + l * n, n), 2);
    }
    m->a += X[j];
    m->q += scale * (dot(X, X, n) - trace * (1 - 1 / (double)n));
    m->added += scale * trace * (1 - 1 / (double)n);
    const double square =
        each * each / ((each - 1) * (each + 2)) * (products - trace * trace / each);
    m->excess += scale * scale * (4 - 2 * (double)b / each) * fmax(square, 0);
}

static void take_moments(moments *m, const sampler *s)
{
    const int64_t n = s->sums->n;
    for (int64_t j = 0; j < n; j++) {
        take_expert(s, j, true);
        centre_blocks(s);
        add_expert(m, s, j, s->kappa + j * n);
    }
}

/* Of a - z root q, at the z that is estimated: what its degrees of freedom are. */
static double t_of_z(const moments *m, const sampler *s)
{
    const int64_t b    = s->sums->n_read;
    const double slope = m->a / (2 * m->q);
    double parts[CPL_ROW_BLOCKS];
    spread of = {0};
    for (int64_t j = 0; j < s->sums->n; j++) {
        for (int64_t k = 0; k < b; k++) parts[k] = m->da[j * b + k] - slope * m->dq[j * b + k];
        add_part(&of, s->sums, parts);
    }
    return t_of(&of, s->sums);
}

/* Fieller's interval of a / root q; false if it is unbounded. */
static bool fieller(cpl_interval *out, const moments *m, const sampler *s)
{
    const int64_t count = s->sums->n * s->sums->n_read;
    const double t2 = pow(t_of_z(m, s), 2), root_q = sqrt(m->q);
    const double of_q   = s->factor * dot(m->dq, m->dq, count);
    const double of_a   = s->factor * dot(m->da, m->da, count);
    const double both   = s->factor * dot(m->da, m->dq, count) / (2 * root_q);
    const double lead   = m->q - t2 * fmax(of_q - m->excess, of_q / 2) / (4 * m->q);
    const double middle = m->a * root_q - t2 * both;
    const double root   = sqrt(fmax(middle * middle - lead * (m->a * m->a - t2 * of_a), 0));
    *out = (cpl_interval){m->a / root_q, (middle - root) / lead, (middle + root) / lead};
    return lead > 0;
}

/* z over the most that it can be is a correlation, of X and the identity. What it lacks of 1 is known
 * to a factor where the gates differ, and to a difference where the sampling does. So the ends are the
 * farther ones of Fieller's and of those at the same distances on Fisher's scale, the inverse
 * hyperbolic tangent. At 1 and above there is no such scale: then the interval holds `plain`, the z
 * with what the sampling adds, too. */
static cpl_interval within_most(cpl_interval z, double plain, double most)
{
    const double r = z.estimate / most, slope = most * (1 - r * r);
    double low = plain, high = plain;
    if (fabs(r) < 1) {
        low  = most * tanh(atanh(r) - (z.estimate - z.low) / slope);
        high = most * tanh(atanh(r) + (z.high - z.estimate) / slope);
    }
    return (cpl_interval){fmin(fmax(z.estimate, -most), most), fmax(fmin(z.low, low), -most),
                          fmin(fmax(z.high, high), most)};
}

/* Whether all pairings give the same sum in the sample: neither X nor what any block adds to it is more
 * than the rounding of rows, products and norms, which are F32. The largest kappa is `largest`. */
static bool pairings_are_alike(const moments *m, int64_t n, double largest)
{
    const double slack = 4 * (double)FLT_EPSILON * (double)n * largest;
    const double size  = fmax(m->q + m->added, m->added); /* |X|^2 / (n - 1) is the sum */
    return sqrt((double)(n - 1) * size) <= slack;
}

static double largest_of(const double *kappa, int64_t count)
{
    double largest = 0;
    for (int64_t i = 0; i < count; i++) largest = fmax(largest, fabs(kappa[i]));
    return largest;
}

/* Of q: with more than this added by the sampling, what is left of its removal is as large as q. */
static const double RESOLVED = 0.25;

static cpl_interval estimate_z(const sampler *s, double *deviations)
{
    const int64_t n   = s->sums->n;
    const double most = (double)(n - 1);
    moments m         = {.da = deviations, .dq = deviations + n * s->sums->n_read};
    cpl_interval z;
    if (n == 1) return (cpl_interval){NAN, NAN, NAN};
    const double largest = largest_of(s->kappa, n * n);
    centre_twice(s->kappa, n, s->value);
    take_moments(&m, s);
    if (pairings_are_alike(&m, n, largest)) return (cpl_interval){NAN, NAN, NAN};
    if (!(m.added < RESOLVED * m.q) || !fieller(&z, &m, s)) return (cpl_interval){NAN, -most, most};
    return within_most(z, m.a / sqrt(m.q + m.added), most);
}

/* ---- all of it ---- */

cpl_status cpl_row_sums_estimate(cpl_row_estimates *out, const cpl_row_sums *sums,
                                 const double *row_norm)
{
    const int64_t n = sums->n, b = sums->n_read;
    CPL_ASSERT(n >= 1 && b == CPL_ROW_BLOCKS && b <= sums->n_blocks);
    const double f = (double)b / (double)sums->n_blocks;
    double *memory = cpl_alloc((size_t)(n * n + 2 * n + 3 * b * n) * sizeof *memory);
    if (!memory) return CPL_ERR_MEMORY;
    const sampler s = {.sums     = sums,
                       .row_norm = row_norm,
                       .kappa    = memory,
                       .value    = memory + n * n,
                       .second   = memory + n * n + n,
                       .left_out = memory + n * n + 2 * n,
                       .factor   = (1 - f) * (double)(b - 1) / (double)b};
    estimate_means(&out->m_diagonal, &out->m_off_diagonal, &s, false);
    estimate_means(&out->kappa_diagonal, &out->kappa_off_diagonal, &s, true);
    out->gate_norm = estimate_norm(&s);
    out->z         = estimate_z(&s, memory + n * n + 2 * n + b * n);
    cpl_free(memory);
    return CPL_OK;
}
