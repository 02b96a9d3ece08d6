/* tsne.c - see tsne.h. The course of the descent is scikit-learn's (TSNE with method 'exact',
 * init 'pca', learning_rate 'auto'), so that its divergences can be compared with ours. */
#include "inspect/tsne.h"

#include <math.h>
#include <stdbool.h>

#include "base/arena.h"
#include "inspect/pca.h"

enum {
    EXPLORATION = 250, /* iterations with exaggerated affinities */
    CHECK_EVERY = 50,  /* iterations from one look at the divergence to the next */
    PATIENCE    = 300, /* iterations without a lower divergence */
};
static const double EXAGGERATION = 12, LEAST_RATE = 50, RATE_POINTS = 48;
static const double EARLY_MOMENTUM = 0.5, LATE_MOMENTUM = 0.8;
static const double GAIN_UP = 0.2, GAIN_DOWN = 0.8, LEAST_GAIN = 0.01;
static const double LEAST_GRADIENT = 1e-7;
static const double START_SD       = 1e-4; /* of the first component */
static const double FLAT = 1e-6; /* a component this much narrower than the first is none */

/* Columns [2,N] hold all x, then all y. */
typedef struct descent {
    cpl_backend *be;
    int64_t n;
    cpl_tensor space;  /* memory of P, and before that of the centred points */
    cpl_tensor P;      /* [N,N] joint affinities */
    cpl_tensor y;      /* [2,N] */
    cpl_tensor forces; /* [6,N], see ops.h */
    cpl_tensor update; /* [2,N] the last step */
    cpl_tensor gain;   /* [2,N] */
    cpl_pca_space principal;
    double normaliser; /* sum of q over all pairs */
    double kl;         /* at the last look */
    const cpl_tsne_options *options;
} descent;

static cpl_tensor take(cpl_arena *arena, int64_t rows, int64_t cols)
{
    cpl_tensor x = cpl_tensor_2d(NULL, CPL_F32, rows, cols);
    x.data       = cpl_arena_take(arena, cpl_tensor_bytes(x));
    return x;
}

/* Takes all memory, or measures it. */
static void take_all(descent *s, cpl_arena *arena, int64_t n, int64_t d)
{
    s->n         = n;
    s->space     = take(arena, n, n > d ? n : d);
    s->P         = cpl_tensor_2d(s->space.data, CPL_F32, n, n);
    s->y         = take(arena, 2, n);
    s->forces    = take(arena, 6, n);
    s->update    = take(arena, 2, n);
    s->gain      = take(arena, 2, n);
    s->principal = cpl_pca_take(arena, n, d);
}

size_t cpl_tsne_bytes(const cpl_backend *be, int64_t n_points, int64_t d)
{
    cpl_arena arena;
    descent s;
    (void)be;
    cpl_arena_measure(&arena);
    take_all(&s, &arena, n_points, d);
    return arena.used;
}

/* ---- where it begins ---- */

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
static void begin_at(descent *s, cpl_tensor x, float scale)
{
    cpl_tensor centred = cpl_tensor_2d(s->space.data, CPL_F32, x.shape[0], x.shape[1]);
    s->be->ops->tsne_centre(s->be, centred, x, scale);
    cpl_pca(s->be, s->y, centred, &s->principal, s->options->seed);
    const double first = deviation(cpl_f32(s->y), s->n);
    for (int64_t c = 0; c < 2; c++) {
        cpl_tensor row        = cpl_tensor_at(s->y, c);
        const double own      = deviation(cpl_f32(row), s->n);
        const double ratio    = first > 0 ? START_SD / first : 0;
        const cpl_rng_key key = {
            .seed = s->options->seed, .step = 1 + (uint64_t)c, .stream = CPL_STREAM_TSNE};
        for (int64_t i = 0; i < s->n; i++)
            cpl_f32(row)[i] = (float)(ratio * (double)cpl_f32(row)[i]);
        if (!(own > FLAT * first)) s->be->ops->normal(s->be, row, (float)START_SD, 6, &key);
    }
}

/* The power of two that brings the largest number near 1, so that squares neither overflow nor
 * vanish; t-SNE does not depend on the scale. */
static float scale_for(double largest)
{
    const int power = largest > 0 ? ilogb(largest) : 0;
    return ldexpf(1, power > 126 ? -126 : power < -126 ? 126 : -power);
}

/* ---- the descent ---- */

/* Forces and normaliser at y, and the divergence where it is wanted:
 *     sum P log(P / (q / Z)) = sum P log(P / q) + log Z sum P, with sum P = 1. */
static void look(descent *s, bool divergence)
{
    cpl_backend *be = s->be;
    be->ops->tsne_forces(be, s->forces, s->P, s->y, divergence);
    s->normaliser = be->ops->sum(be, cpl_tensor_at(s->forces, 4));
    if (divergence) s->kl = be->ops->sum(be, cpl_tensor_at(s->forces, 5)) + log(s->normaliser);
}

/* One step along 4 (exaggeration attraction - repulsion / Z). Each coordinate has a gain of its
 * own, which grows while the gradient turns against the last step and else shrinks. Returns the
 * norm of the gradient times the gains. */
static double step(descent *s, double exaggeration, double momentum, double rate)
{
    const float *pull = cpl_f32(s->forces), *push = pull + 2 * s->n;
    float *y = cpl_f32(s->y), *update = cpl_f32(s->update), *gain = cpl_f32(s->gain);
    double squares = 0;
    for (int64_t i = 0; i < 2 * s->n; i++) {
        double slope = 4 * (exaggeration * (double)pull[i] - (double)push[i] / s->normaliser);
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

/* Returns the iteration after the last one made: `to`, or fewer where there is no more to
 * gain. While affinities are exaggerated the divergence is still told without it. */
static int64_t descend(descent *s, stage of)
{
    const cpl_tsne_options *o = s->options;
    const double rate         = fmax((double)s->n / RATE_POINTS, LEAST_RATE);
    double best               = INFINITY;
    int64_t best_at           = of.from;
    s->be->ops->fill(s->be, s->update, 0);
    s->be->ops->fill(s->be, s->gain, 1);
    for (int64_t i = of.from; i < of.to; i++) {
        const bool check = (i + 1) % CHECK_EVERY == 0;
        look(s, check);
        const double norm = step(s, of.exaggeration, of.momentum, rate);
        if (!check) continue;
        if (o->watch) o->watch(o->ctx, i + 1, s->kl);
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
    look(s, true);
}

/* ---- the whole ---- */

/* Row of the first number that is not finite. */
static int64_t bad_row(cpl_tensor x)
{
    int64_t i = 0;
    while (isfinite(cpl_f32(x)[i])) i++;
    return i / x.shape[1];
}

/* Sets `scale`. */
static cpl_status check(cpl_backend *be, float *scale, cpl_tensor x, const cpl_tsne_options *o)
{
    const int64_t n = x.shape[0];
    CPL_ASSERT(x.rank == 2 && x.dtype == CPL_F32 && x.shape[1] >= 1);
    if (n < 4 || n > CPL_TSNE_MOST_POINTS)
        return CPL_FAIL(CPL_ERR_INPUT, "t-SNE takes 4 to %d points, there are %lld",
                        CPL_TSNE_MOST_POINTS, (long long)n);
    if (!(o->perplexity >= 1))
        return CPL_FAIL(CPL_ERR_INPUT, "t-SNE: perplexity is %g; it must be 1 or more",
                        o->perplexity);
    if (o->iterations < EXPLORATION)
        return CPL_FAIL(CPL_ERR_INPUT, "t-SNE: %lld iterations are too few; %d or more are needed",
                        (long long)o->iterations, EXPLORATION);
    const double largest = be->ops->tsne_largest(be, x);
    if (!isfinite(largest))
        return CPL_FAIL(CPL_ERR_INPUT,
                        "t-SNE: point %lld (of %lld, from 0) has a number that is "
                        "not finite",
                        (long long)bad_row(x), (long long)n);
    *scale = scale_for(largest);
    return CPL_OK;
}

/* y [N,2] from columns [2,N]. */
static void give(cpl_tensor y, const descent *s)
{
    for (int64_t i = 0; i < 2 * s->n; i++) cpl_f32(y)[i] = cpl_f32(s->y)[i % 2 * s->n + i / 2];
}

cpl_status cpl_tsne(cpl_backend *be, cpl_tensor y, cpl_tsne_result *result, cpl_tensor x,
                    const cpl_tsne_options *options)
{
    float scale = 1;
    cpl_arena arena;
    descent s = {.be = be, .options = options};
    CPL_TRY(check(be, &scale, x, options));
    CPL_ASSERT(y.dtype == CPL_F32 && y.shape[0] == x.shape[0] && y.shape[1] == 2);
    CPL_TRY(cpl_arena_init(&arena, cpl_tsne_bytes(be, x.shape[0], x.shape[1]), "t-SNE"));
    take_all(&s, &arena, x.shape[0], x.shape[1]);
    result->perplexity_used = fmin(options->perplexity, (double)(s.n - 1) / 3);
    begin_at(&s, x, scale);
    be->ops->tsne_distances(be, s.P, x, scale);
    be->ops->tsne_affinities(be, s.P, result->perplexity_used);
    descend_all(&s);
    give(y, &s);
    result->kl = s.kl;
    cpl_arena_free(&arena);
    return be->ops->sync(be);
}
