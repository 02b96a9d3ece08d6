/* tsne.c - distances, affinities and forces of t-SNE over all pairs of N points.
 *
 * Room:    tensor/cpu. What each does stands in ops.h.
 * Method:  a row of the result, or a tile of it and its mirror image, belongs to one thread and is
 *          made in one order: no result depends on how many threads there are. Sums of many terms
 *          are in F32 over a short piece and in double over the pieces. */
#include <float.h>
#include <math.h>

#include "tensor/cpu/cpu.h"
#include "tensor/cpu/share.h"
#include "tensor/cpu/simd.h"

enum {
    TILE  = 16,   /* rows and columns of a tile */
    DEPTH = 512,  /* piece of a row of x: a tile's rows of it fit the first cache */
    PIECE = 1024, /* points that a sum in F32 runs over */
    STEPS = 100,  /* of the bisection */
};
static const double ENTROPY_TOLERANCE = 1e-5;

static int64_t least(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

/* ---- the points ---- */

/* As whole numbers, floats without their sign keep their order, with NaN above infinity. */
static int32_t largest_bits(const float *x, int64_t count)
{
    int32_t largest = 0;
#pragma omp simd reduction(max : largest)
    for (int64_t i = 0; i < count; i++) {
        int32_t bits = (int32_t)(cpl_f32_bits(x[i]) & 0x7fffffffu);
        largest      = bits > largest ? bits : largest;
    }
    return largest;
}

double CPL_ISA_NAME(cpl_cpu_tsne_largest)(cpl_backend *be, cpl_tensor x)
{
    const int64_t count  = cpl_tensor_count(x);
    const cpl_blocks cut = cpl_cut(count, CPL_SHARE_LEAST);
    const float *at      = cpl_f32(x);
    int32_t largest      = 0;
#pragma omp parallel for num_threads(cpl_threads(be, count)) reduction(max : largest)
    for (int64_t b = 0; b < cut.n; b++) {
        const int64_t begin = cpl_block_begin(cut, b);
        int32_t bits        = largest_bits(at + begin, cpl_block_end(cut, b) - begin);
        largest             = bits > largest ? bits : largest;
    }
    return (double)cpl_f32_from_bits((uint32_t)largest);
}

/* Columns k0 ... k0 + cols - 1, at most TILE of them. What is averaged is how far a row is from the
 * first, so that a column of equal numbers becomes exactly zero. */
static void centre_columns(float *out, const float *x, int64_t n, int64_t d, int64_t k0,
                           int64_t cols, float scale)
{
    double first[TILE], mean[TILE] = {0};
    for (int64_t k = 0; k < cols; k++) first[k] = (double)(scale * x[k0 + k]);
    for (int64_t i = 0; i < n; i++)
        for (int64_t k = 0; k < cols; k++)
            mean[k] += (double)(scale * x[i * d + k0 + k]) - first[k];
    for (int64_t k = 0; k < cols; k++) mean[k] /= (double)n;
    for (int64_t i = 0; i < n; i++)
        for (int64_t k = 0; k < cols; k++) {
            const double off    = (double)(scale * x[i * d + k0 + k]) - first[k];
            out[i * d + k0 + k] = (float)(off - mean[k]);
        }
}

void CPL_ISA_NAME(cpl_cpu_tsne_centre)(cpl_backend *be, cpl_tensor out, cpl_tensor x, float scale)
{
    const int64_t n = x.shape[0], d = x.shape[1];
    float *to         = cpl_f32(out);
    const float *from = cpl_f32(x);
#pragma omp parallel for num_threads(cpl_threads(be, n *d)) schedule(static)
    for (int64_t k = 0; k < d; k += TILE)
        centre_columns(to, from, n, d, k, least(TILE, d - k), scale);
}

/* ---- distances ---- */

/* Between one row and four, over `count` numbers of each. */
static void four_parts(float part[4], const float *a, const float *const b[4], int64_t count,
                       float scale)
{
    const float *b0 = b[0], *b1 = b[1], *b2 = b[2], *b3 = b[3];
    float s0 = 0, s1 = 0, s2 = 0, s3 = 0;
#pragma omp simd reduction(+ : s0, s1, s2, s3)
    for (int64_t k = 0; k < count; k++) {
        const float own = scale * a[k];
        const float d0 = own - scale * b0[k], d1 = own - scale * b1[k];
        const float d2 = own - scale * b2[k], d3 = own - scale * b3[k];
        s0 += d0 * d0;
        s1 += d1 * d1;
        s2 += d2 * d2;
        s3 += d3 * d3;
    }
    part[0] = s0;
    part[1] = s1;
    part[2] = s2;
    part[3] = s3;
}

typedef struct points {
    const float *x; /* [n,d] */
    int64_t n, d;
    float scale;
} points;

/* sum [TILE,TILE] of rows i0 ... and j0 ...; what lies beyond the last row repeats it. */
static void tile_distances(double *sum, const points *p, int64_t i0, int64_t j0)
{
    for (int i = 0; i < TILE * TILE; i++) sum[i] = 0;
    for (int64_t k = 0; k < p->d; k += DEPTH)
        for (int64_t i = 0; i < least(TILE, p->n - i0); i++)
            for (int64_t j = 0; j < TILE; j += 4) {
                const float *b[4];
                float part[4];
                for (int64_t c = 0; c < 4; c++)
                    b[c] = p->x + least(j0 + j + c, p->n - 1) * p->d + k;
                four_parts(part, p->x + (i0 + i) * p->d + k, b, least(DEPTH, p->d - k), p->scale);
                for (int64_t c = 0; c < 4; c++) sum[i * TILE + j + c] += (double)part[c];
            }
}

static void store_tile(float *D, const double *sum, int64_t n, int64_t i0, int64_t j0)
{
    for (int64_t i = i0; i < least(i0 + TILE, n); i++)
        for (int64_t j = j0; j < least(j0 + TILE, n); j++) {
            if (j < i) continue;
            D[i * n + j] = D[j * n + i] = (float)sum[(i - i0) * TILE + j - j0];
        }
}

void CPL_ISA_NAME(cpl_cpu_tsne_distances)(cpl_backend *be, cpl_tensor D, cpl_tensor x, float scale)
{
    const points p = {cpl_f32(x), x.shape[0], x.shape[1], scale};
    float *out     = cpl_f32(D);
#pragma omp parallel for num_threads(cpl_threads(be, p.n *p.n *(p.d + 1))) schedule(dynamic)
    for (int64_t i = 0; i < p.n; i += TILE)
        for (int64_t j = i; j < p.n; j += TILE) {
            double sum[TILE * TILE];
            tile_distances(sum, &p, i, j);
            store_tile(out, sum, p.n, i, j);
        }
}

/* ---- affinities ---- */

/* t [n], a row of squared distances: less the smallest of the others and divided by what the mean
 * of the others then is. The entropy does not change by the first, and no scale is left after the
 * second. The point's own becomes 0. Returns false where all others are equally far. */
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

/* Sets *sum to the sum of exp(-b t) over the others and returns the entropy of their shares. The
 * point's own t is 0, which adds 1 to the sum and nothing to the mean. */
static double row_entropy(double *sum, const float *t, int64_t n, double b)
{
    const float minus_b = (float)-b;
    double all = 0, weighted = 0;
#pragma omp simd reduction(+ : all, weighted)
    for (int64_t j = 0; j < n; j++) {
        const float e = cpl_exp(minus_b * t[j]);
        all += (double)e;
        weighted += (double)e * (double)t[j];
    }
    *sum = all - 1;
    return log(*sum) - (double)minus_b * weighted / *sum;
}

/* The b whose entropy is `wanted`, by bisection that doubles or halves until both ends are known.
 * Where more points are nearest than `wanted` allows, b ends at its largest. */
static float row_precision(double *sum, const float *t, int64_t n, double wanted)
{
    double b = 1, low = 0, high = INFINITY;
    for (int step = 0;; step++) {
        const double off = row_entropy(sum, t, n, b) - wanted;
        if (fabs(off) <= ENTROPY_TOLERANCE || step == STEPS - 1) return (float)b;
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
    if (!normalise_row(t, n, own)) {
        for (int64_t j = 0; j < n; j++) t[j] = 1.0f / (float)(n - 1);
        t[own] = 0;
        return;
    }
    double sum;
    const float b = row_precision(&sum, t, n, wanted), share = (float)(1 / sum);
#pragma omp simd
    for (int64_t j = 0; j < n; j++) t[j] = share * cpl_exp(-b * t[j]);
    t[own] = 0;
}

/* A tile and its mirror image: both directions added. */
static void join_tile(float *P, int64_t n, int64_t i0, int64_t j0)
{
    const double total = 2.0 * (double)n;
    for (int64_t i = i0; i < least(i0 + TILE, n); i++)
        for (int64_t j = j0 > i ? j0 : i + 1; j < least(j0 + TILE, n); j++) {
            double both  = ((double)P[i * n + j] + (double)P[j * n + i]) / total;
            P[i * n + j] = P[j * n + i] = (float)fmax(both, DBL_EPSILON);
        }
}

void CPL_ISA_NAME(cpl_cpu_tsne_affinities)(cpl_backend *be, cpl_tensor P, double perplexity)
{
    const int64_t n     = P.shape[0];
    const double wanted = log(perplexity);
    const int threads   = cpl_threads(be, n * n);
    float *p            = cpl_f32(P);
#pragma omp parallel for num_threads(threads) schedule(dynamic, TILE)
    for (int64_t i = 0; i < n; i++) row_affinities(p + i * n, n, i, wanted);
#pragma omp parallel for num_threads(threads) schedule(dynamic)
    for (int64_t i = 0; i < n; i += TILE)
        for (int64_t j = i; j < n; j += TILE) join_tile(p, n, i, j);
}

/* ---- forces ---- */

enum { N_FORCES = 6 }; /* two of attraction, two of repulsion, sum of q, divergence */

/* What points `from` ... `to` - 1, a piece without the point (x, y) itself, do to it: *adds*. */
static void piece_forces(double *sums, const float *p, const float *xs, const float *ys,
                         int64_t from, int64_t to, float x, float y)
{
    float pull_x = 0, pull_y = 0, push_x = 0, push_y = 0, all = 0;
#pragma omp simd reduction(+ : pull_x, pull_y, push_x, push_y, all)
    for (int64_t j = from; j < to; j++) {
        const float dx = x - xs[j], dy = y - ys[j];
        const float q  = 1.0f / cpl_madd(dy, dy, cpl_madd(dx, dx, 1.0f));
        const float pq = p[j] * q, qq = q * q;
        pull_x += pq * dx;
        pull_y += pq * dy;
        push_x += qq * dx;
        push_y += qq * dy;
        all += q;
    }
    sums[0] += (double)pull_x;
    sums[1] += (double)pull_y;
    sums[2] += (double)push_x;
    sums[3] += (double)push_y;
    sums[4] += (double)all;
}

/* The same for sum p log(p / q). */
static void piece_divergence(double *sums, const float *p, const float *xs, const float *ys,
                             int64_t from, int64_t to, float x, float y)
{
    float sum = 0;
#pragma omp simd reduction(+ : sum)
    for (int64_t j = from; j < to; j++) {
        const float dx = x - xs[j], dy = y - ys[j];
        sum += p[j] * cpl_ln(p[j] * cpl_madd(dy, dy, cpl_madd(dx, dx, 1.0f)));
    }
    sums[5] += (double)sum;
}

/* Points `from` ... `to` - 1, piece by piece. */
static void span_forces(double *sums, const float *p, const float *y, int64_t n, int64_t own,
                        int64_t from, int64_t to, bool divergence)
{
    const float *xs = y, *ys = y + n;
    for (int64_t j = from; j < to; j += PIECE) {
        const int64_t end = least(j + PIECE, to);
        piece_forces(sums, p, xs, ys, j, end, xs[own], ys[own]);
        if (divergence) piece_divergence(sums, p, xs, ys, j, end, xs[own], ys[own]);
    }
}

void CPL_ISA_NAME(cpl_cpu_tsne_forces)(cpl_backend *be, cpl_tensor forces, cpl_tensor P,
                                       cpl_tensor y, bool divergence)
{
    const int64_t n = P.shape[0];
    const float *p = cpl_f32(P), *at = cpl_f32(y);
    float *out = cpl_f32(forces);
#pragma omp parallel for num_threads(cpl_threads(be, n *n)) schedule(static)
    for (int64_t i = 0; i < n; i++) {
        double sums[N_FORCES] = {0};
        span_forces(sums, p + i * n, at, n, i, 0, i, divergence);
        span_forces(sums, p + i * n, at, n, i, i + 1, n, divergence);
        for (int f = 0; f < N_FORCES; f++) out[f * n + i] = (float)sums[f];
    }
}
