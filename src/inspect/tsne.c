/* tsne.c - see tsne.h. The course of the descent is scikit-learn's (TSNE with method 'exact',
 * init 'pca', learning_rate 'auto'), so that its divergences can be compared with ours. */
#include "inspect/tsne.h"

#include <float.h>
#include <math.h>
#include <stdbool.h>

#include "base/arena.h"
#include "inspect/pca.h"

/* The two loops over all pairs are compiled twice, and the processor decides: with AVX2 they take
 * half as long. The sanitizers do not live with functions that are chosen when the program is
 * loaded. */
#if defined(__x86_64__) && defined(__GLIBC__) && !defined(__SANITIZE_ADDRESS__) &&                 \
    !defined(__SANITIZE_THREAD__)
#    define WITH_AVX2 __attribute__((target_clones("avx2", "default")))
#else
#    define WITH_AVX2
#endif

enum {
    EXPLORATION = 250, /* iterations with exaggerated affinities */
    CHECK_EVERY = 50,  /* iterations between two computations of the divergence */
    PATIENCE    = 300, /* iterations without a lower divergence */
    BISECTIONS  = 100,
    TILE        = 16,    /* rows and columns of P computed together, for the cache */
    PIECE       = 1024,  /* numbers summed in F32; the sums of pieces are added in double */
    LANES       = 32,    /* independent partial sums of a piece */
    PARALLEL    = 16384, /* affinities; fewer are computed by one thread */
};
static const double EXAGGERATION = 12, LEAST_RATE = 50, RATE_POINTS = 48;
static const double EARLY_MOMENTUM = 0.5, LATE_MOMENTUM = 0.8;
static const double GAIN_UP = 0.2, GAIN_DOWN = 0.8, LEAST_GAIN = 0.01;
static const double LEAST_GRADIENT    = 1e-7;
static const double ENTROPY_TOLERANCE = 1e-5;
static const double FARTHEST          = 80;   /* exp(-80) is less than the tolerances by far */
static const double START_SD          = 1e-4; /* of the first component */
static const double FLAT = 1e-6; /* a component this much narrower than the first is none */

/* Arrays [2,N] hold all x, then all y. */
typedef struct descent {
    int64_t n, d;
    int n_threads;
    float *P;              /* [N,N] joint affinities; before that [N,d] the centred points */
    cpl_matrix y;          /* [2,N] */
    float *pull, *push;    /* [2,N] attraction and repulsion */
    double *q_sum, *kl_of; /* [N] of each point: sum of q, and its part of the divergence */
    float *update;         /* [2,N] the last step */
    float *gain;           /* [2,N] */
    double *mean;          /* [d] */
    cpl_pca_space principal;
    double normaliser; /* sum of q over all pairs */
    double kl;         /* when it was last computed */
    const cpl_tsne_options *options;
} descent;

static float *take_floats(cpl_arena *arena, int64_t count)
{
    return cpl_arena_take(arena, (size_t)count * sizeof(float));
}

static double *take_doubles(cpl_arena *arena, int64_t count)
{
    return cpl_arena_take(arena, (size_t)count * sizeof(double));
}

/* Takes all memory, or measures it. */
static void take_all(descent *s, cpl_arena *arena, int64_t n, int64_t d)
{
    s->n         = n;
    s->d         = d;
    s->P         = take_floats(arena, n * (n > d ? n : d));
    s->y         = (cpl_matrix){take_floats(arena, 2 * n), 2, n};
    s->pull      = take_floats(arena, 2 * n);
    s->push      = take_floats(arena, 2 * n);
    s->q_sum     = take_doubles(arena, n);
    s->kl_of     = take_doubles(arena, n);
    s->update    = take_floats(arena, 2 * n);
    s->gain      = take_floats(arena, 2 * n);
    s->mean      = take_doubles(arena, d);
    s->principal = cpl_pca_take(arena, n, d);
}

size_t cpl_tsne_bytes(int64_t n_points, int64_t d)
{
    cpl_arena arena;
    descent s;
    cpl_arena_measure(&arena);
    take_all(&s, &arena, n_points, d);
    return arena.used;
}

static int64_t least(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

/* ---- squared distances ---- */

/* |scale a - scale b|^2, summed from the differences, so that near points keep all digits. */
WITH_AVX2 static float squared_distance(const float *a, const float *b, int64_t d, float scale)
{
    double sum = 0;
    for (int64_t k = 0; k < d; k += PIECE) {
        const int64_t end = least(k + PIECE, d);
        float part[LANES] = {0};
        for (int64_t i = k; i < end; i += LANES) {
            const int64_t lanes = least(LANES, end - i);
#pragma omp simd
            for (int64_t l = 0; l < lanes; l++) {
                const float off = scale * a[i + l] - scale * b[i + l];
                part[l] += off * off;
            }
        }
        for (int l = 0; l < LANES; l++) sum += (double)part[l];
    }
    return (float)sum;
}

/* P [N,N] = squared distances of the rows of x [N,d]: symmetric, zero on the diagonal. */
static void distances(descent *s, const float *x, float scale)
{
    const int64_t n = s->n, d = s->d;
    float *P = s->P;
#pragma omp parallel for num_threads(s->n_threads) schedule(dynamic)
    for (int64_t i0 = 0; i0 < n; i0 += TILE)
        for (int64_t j0 = 0; j0 <= i0; j0 += TILE)
            for (int64_t i = i0; i < least(i0 + TILE, n); i++)
                for (int64_t j = j0; j < least(j0 + TILE, i + 1); j++)
                    P[i * n + j] = P[j * n + i] = squared_distance(x + i * d, x + j * d, d, scale);
}

/* ---- affinities ---- */

/* t [n], squared distances of point `own` to all: subtracts the smallest of the others, which does
 * not change the entropy, and divides by their mean, so that no scale is left. The point's own
 * becomes 0. Returns false if all others are equally far. */
static bool normalise_row(float *t, int64_t n, int64_t own)
{
    double low = INFINITY, mean = 0;
    for (int64_t j = 0; j < n; j++)
        if (j != own) low = t[j] < low ? (double)t[j] : low;
    t[own] = (float)low;
    for (int64_t j = 0; j < n; j++) mean += (double)t[j] - low;
    mean /= (double)(n - 1);
    for (int64_t j = 0; j < n && mean > 0; j++) t[j] = (float)(((double)t[j] - low) / mean);
    return mean > 0;
}

/* exp(-b t); 0 if it is too small to count, which expf would take long to round. */
static double gauss(double b, float t)
{
    const double x = b * (double)t;
    return x < FARTHEST ? (double)expf((float)-x) : 0;
}

/* Sets *sum to the sum of exp(-b t) over the others and returns the entropy of their shares. The
 * point's own t is 0, which adds 1 to the sum and nothing to the mean. */
static double row_entropy(double *sum, const float *t, int64_t n, double b)
{
    double all = 0, weighted = 0;
    for (int64_t j = 0; j < n; j++) {
        const double e = gauss(b, t[j]);
        all += e;
        weighted += e * (double)t[j];
    }
    *sum = all - 1;
    return log(*sum) + b * weighted / *sum;
}

/* The b whose entropy is `wanted`, by bisection that doubles or halves until both ends are found.
 * If more points are nearest than `wanted` allows, b ends at its largest. */
static double row_precision(double *sum, const float *t, int64_t n, double wanted)
{
    double b = 1, low = 0, high = INFINITY;
    for (int step = 0;; step++) {
        const double off = row_entropy(sum, t, n, b) - wanted;
        if (fabs(off) <= ENTROPY_TOLERANCE || step == BISECTIONS - 1) return b;
        if (off > 0) {
            low = b;
            b   = isinf(high) ? 2 * b : (b + high) / 2;
        } else {
            high = b;
            b    = (b + low) / 2;
        }
    }
}

/* t [n], squared distances before, becomes p(.|own). */
static void row_affinities(float *t, int64_t n, int64_t own, double wanted)
{
    double sum = (double)(n - 1), b = 0;
    if (normalise_row(t, n, own))
        b = row_precision(&sum, t, n, wanted);
    else
        for (int64_t j = 0; j < n; j++) t[j] = 0;
    for (int64_t j = 0; j < n; j++) t[j] = (float)(gauss(b, t[j]) / sum);
    t[own] = 0;
}

/* P [N,N], squared distances before, becomes the joint affinities (p(j|i) + p(i|j)) / 2N, at least
 * DBL_EPSILON, 0 on the diagonal. */
static void affinities(descent *s, double perplexity)
{
    const int64_t n     = s->n;
    const double wanted = log(perplexity);
    float *P            = s->P;
#pragma omp parallel for num_threads(s->n_threads) schedule(dynamic, TILE)
    for (int64_t i = 0; i < n; i++) row_affinities(P + i * n, n, i, wanted);
#pragma omp parallel for num_threads(s->n_threads) schedule(dynamic)
    for (int64_t i0 = 0; i0 < n; i0 += TILE)
        for (int64_t j0 = 0; j0 <= i0; j0 += TILE)
            for (int64_t i = i0; i < least(i0 + TILE, n); i++)
                for (int64_t j = j0; j < least(j0 + TILE, i); j++) {
                    double p = ((double)P[i * n + j] + (double)P[j * n + i]) / (2.0 * (double)n);
                    P[i * n + j] = P[j * n + i] = (float)fmax(p, DBL_EPSILON);
                }
}

/* ---- initial points ---- */

/* out [N,d] = scale x less the mean of its rows. The mean is that of the differences from the first
 * row, so that a column of equal numbers becomes exactly zero. */
static void centre(descent *s, float *out, const float *x, float scale)
{
    const int64_t n = s->n, d = s->d;
    for (int64_t k = 0; k < d; k++) s->mean[k] = 0;
    for (int64_t i = 0; i < n * d; i++)
        s->mean[i % d] += (double)(scale * x[i]) - (double)(scale * x[i % d]);
    for (int64_t k = 0; k < d; k++) s->mean[k] /= (double)n;
    for (int64_t i = 0; i < n * d; i++) {
        const double off = (double)(scale * x[i]) - (double)(scale * x[i % d]);
        out[i]           = (float)(off - s->mean[i % d]);
    }
}

static double deviation(const float *x, int64_t n)
{
    double mean = 0, squares = 0;
    for (int64_t i = 0; i < n; i++) mean += (double)x[i];
    mean /= (double)n;
    for (int64_t i = 0; i < n; i++) squares += ((double)x[i] - mean) * ((double)x[i] - mean);
    return sqrt(squares / (double)n);
}

/* y [2,N] = the points along their first two principal components, scaled so that the first has
 * standard deviation 1e-4. A component that is none (all points equal, or on a line) is random:
 * points that have the same coordinate would keep it. */
static cpl_status begin_at(descent *s, const float *x, float scale)
{
    centre(s, s->P, x, scale);
    CPL_TRY(cpl_pca(s->y, (cpl_matrix){s->P, s->n, s->d}, &s->principal, s->options->seed,
                    s->options->n_threads));
    const double first = deviation(s->y.at, s->n);
    for (int64_t c = 0; c < 2; c++) {
        float *y              = s->y.at + c * s->n;
        const double own      = deviation(y, s->n);
        const double ratio    = first > 0 ? START_SD / first : 0;
        const cpl_rng_key key = {
            .seed = s->options->seed, .step = 1 + (uint64_t)c, .stream = CPL_STREAM_TSNE};
        for (int64_t i = 0; i < s->n; i++)
            y[i] = own > FLAT * first ? (float)(ratio * (double)y[i])
                                      : (float)START_SD * cpl_rng_normal(&key, (uint64_t)i);
    }
    return CPL_OK;
}

/* ---- the descent ---- */

/* What all others do to one point. */
typedef struct forces {
    double pull_x, pull_y; /* sum of p q (y_i - y_j), with q = 1 / (1 + |y_i - y_j|^2) */
    double push_x, push_y; /* sum of q^2 (y_i - y_j) */
    double q;              /* sum of q */
} forces;

/* Adds the forces of points `from` ... `to` - 1, which are not point i itself. */
WITH_AVX2 static void add_forces(forces *f, const float *p, const float *xs, const float *ys,
                                 int64_t i, int64_t from, int64_t to)
{
    const float x = xs[i], y = ys[i];
    for (int64_t j0 = from; j0 < to; j0 += PIECE) {
        const int64_t end = least(j0 + PIECE, to);
        float pull_x = 0, pull_y = 0, push_x = 0, push_y = 0, all = 0;
#pragma omp simd reduction(+ : pull_x, pull_y, push_x, push_y, all)
        for (int64_t j = j0; j < end; j++) {
            const float dx = x - xs[j], dy = y - ys[j];
            const float q  = 1.0f / (1.0f + dx * dx + dy * dy);
            const float pq = p[j] * q, qq = q * q;
            pull_x += pq * dx;
            pull_y += pq * dy;
            push_x += qq * dx;
            push_y += qq * dy;
            all += q;
        }
        f->pull_x += (double)pull_x;
        f->pull_y += (double)pull_y;
        f->push_x += (double)push_x;
        f->push_y += (double)push_y;
        f->q += (double)all;
    }
}

/* sum p log(p / q) over the others of point i. */
static double row_divergence(const float *p, const float *xs, const float *ys, int64_t i, int64_t n)
{
    double sum = 0;
    for (int64_t j = 0; j < n; j++) {
        const float dx = xs[i] - xs[j], dy = ys[i] - ys[j];
        if (j != i) sum += (double)(p[j] * logf(p[j] * (1.0f + dx * dx + dy * dy)));
    }
    return sum;
}

static double sum_of(const double *x, int64_t n)
{
    double sum = 0;
    for (int64_t i = 0; i < n; i++) sum += x[i];
    return sum;
}

/* Forces and normaliser at y, and the divergence if `divergence` is set:
 *     sum P log(P / (q / Z)) = sum P log(P / q) + log Z sum P, with sum P = 1. */
static void compute_forces(descent *s, bool divergence)
{
    const int64_t n = s->n;
    const float *xs = s->y.at, *ys = xs + n;
#pragma omp parallel for num_threads(s->n_threads) schedule(static)
    for (int64_t i = 0; i < n; i++) {
        const float *p = s->P + i * n;
        forces f       = {0};
        add_forces(&f, p, xs, ys, i, 0, i);
        add_forces(&f, p, xs, ys, i, i + 1, n);
        s->pull[i]     = (float)f.pull_x;
        s->pull[n + i] = (float)f.pull_y;
        s->push[i]     = (float)f.push_x;
        s->push[n + i] = (float)f.push_y;
        s->q_sum[i]    = f.q;
        if (divergence) s->kl_of[i] = row_divergence(p, xs, ys, i, n);
    }
    s->normaliser = sum_of(s->q_sum, n);
    if (divergence) s->kl = sum_of(s->kl_of, n) + log(s->normaliser);
}

/* One step along 4 (exaggeration attraction - repulsion / Z). Each coordinate has its own gain. It
 * grows if the gradient has turned against the last step, and else shrinks. Returns the norm of the
 * gradient times the gains. */
static double step(descent *s, double exaggeration, double momentum, double rate)
{
    float *y = s->y.at, *update = s->update, *gain = s->gain;
    double squares = 0;
    for (int64_t i = 0; i < 2 * s->n; i++) {
        double slope = 4 * (exaggeration * (double)s->pull[i] - (double)s->push[i] / s->normaliser);
        bool against = (double)update[i] * slope < 0;
        double own   = against ? (double)gain[i] + GAIN_UP : (double)gain[i] * GAIN_DOWN;
        own          = own < LEAST_GAIN ? LEAST_GAIN : own;
        slope *= own;
        squares += slope * slope;
        gain[i]   = (float)own;
        update[i] = (float)(momentum * (double)update[i] - rate * slope);
        y[i] += update[i];
    }
    return sqrt(squares);
}

typedef struct stage {
    int64_t from, to; /* iterations */
    int64_t patience;
    double exaggeration, momentum;
} stage;

/* Returns the number of iterations done so far: `to`, or fewer if the divergence no longer
 * falls. The divergence is always that without exaggeration. */
static int64_t descend(descent *s, stage of)
{
    const cpl_tsne_options *o = s->options;
    const double rate         = fmax((double)s->n / RATE_POINTS, LEAST_RATE);
    double best               = INFINITY;
    int64_t best_at           = of.from;
    for (int64_t i = 0; i < 2 * s->n; i++) s->update[i] = 0, s->gain[i] = 1;
    for (int64_t i = of.from; i < of.to; i++) {
        const bool check = (i + 1) % CHECK_EVERY == 0;
        compute_forces(s, check);
        const double norm = step(s, of.exaggeration, of.momentum, rate);
        if (!check) continue;
        if (o->progress) o->progress(o->ctx, i + 1, s->kl);
        if (s->kl < best) {
            best    = s->kl;
            best_at = i;
        }
        if (i - best_at > of.patience || norm <= LEAST_GRADIENT) return i + 1;
    }
    return of.to;
}

static void descend_all(descent *s)
{
    const stage early = {0, EXPLORATION, EXPLORATION, EXAGGERATION, EARLY_MOMENTUM};
    const int64_t at  = descend(s, early);
    const stage late  = {at, s->options->iterations, PATIENCE, 1, LATE_MOMENTUM};
    (void)descend(s, late);
    compute_forces(s, true);
}

/* ---- the whole ---- */

/* The power of two that brings the largest number near 1, so that squares neither overflow nor
 * vanish; t-SNE does not depend on the scale. */
static float scale_for(float largest)
{
    const int power = largest > 0 ? ilogbf(largest) : 0;
    return ldexpf(1, power > 126 ? -126 : power < -126 ? 126 : -power);
}

/* Sets `scale`. */
static cpl_status check(float *scale, cpl_matrix x, const cpl_tsne_options *o)
{
    const int64_t n = x.rows, count = n * x.cols;
    float largest = 0;
    CPL_ASSERT(x.cols >= 1 && o->n_threads >= 1);
    if (n < 4 || n > CPL_TSNE_MOST_POINTS)
        return CPL_FAIL(CPL_ERR_INPUT, "t-SNE takes 4 to %d points, there are %lld",
                        CPL_TSNE_MOST_POINTS, (long long)n);
    if (!(o->perplexity >= 1))
        return CPL_FAIL(CPL_ERR_INPUT, "t-SNE: perplexity is %g; it must be 1 or more",
                        o->perplexity);
    if (o->iterations < EXPLORATION)
        return CPL_FAIL(CPL_ERR_INPUT, "t-SNE: %lld iterations are too few; %d or more are needed",
                        (long long)o->iterations, EXPLORATION);
    for (int64_t i = 0; i < count; i++) {
        if (!isfinite(x.at[i]))
            return CPL_FAIL(CPL_ERR_INPUT,
                            "t-SNE: point %lld (of %lld, from 0) has a number that is not finite",
                            (long long)(i / x.cols), (long long)n);
        largest = fmaxf(largest, fabsf(x.at[i]));
    }
    *scale = scale_for(largest);
    return CPL_OK;
}

/* y [N,2] from columns [2,N]. */
static void give(float *y, const descent *s)
{
    for (int64_t i = 0; i < 2 * s->n; i++) y[i] = s->y.at[i % 2 * s->n + i / 2];
}

cpl_status cpl_tsne(float *y, cpl_tsne_result *result, cpl_matrix x,
                    const cpl_tsne_options *options)
{
    float scale = 1;
    cpl_arena arena;
    descent s = {.options = options};
    CPL_TRY(check(&scale, x, options));
    CPL_TRY(cpl_arena_init(&arena, cpl_tsne_bytes(x.rows, x.cols), "t-SNE"));
    take_all(&s, &arena, x.rows, x.cols);
    s.n_threads             = s.n * s.n < PARALLEL ? 1 : options->n_threads;
    result->perplexity_used = fmin(options->perplexity, (double)(s.n - 1) / 3);
    cpl_status status       = begin_at(&s, x.at, scale);
    if (status == CPL_OK) {
        distances(&s, x.at, scale);
        affinities(&s, result->perplexity_used);
        descend_all(&s);
        give(y, &s);
        result->kl = s.kl;
    }
    cpl_arena_free(&arena);
    return status;
}
