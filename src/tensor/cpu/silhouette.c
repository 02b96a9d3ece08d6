/* silhouette.c - silhouettes of rows of experts' gates; what each does stands in ops.h.
 *
 * Room:  tensor/cpu. Products as in response.c: the middles lie packed in panels, and those of one
 *        block of rows and one panel are used while they are in the first cache. One thread.
 * Names: u a row of unit length, m_c the middle of the rows of expert c, so that u . m_c is the
 *        mean cosine of u to all of them. */
#include <float.h>
#include <math.h>

#include "tensor/cpu/cpu.h"
#include "tensor/cpu/panel.h"

enum { MOST_ROWS = 96 }; /* of a block; a multiple of the panels' tiles of six rows */

/* Sums in double, where no square overflows or vanishes. */
void CPL_ISA_NAME(cpl_cpu_unit_rows)(cpl_backend *be, cpl_tensor y, cpl_tensor x)
{
    const int64_t rows = x.shape[0], d = x.shape[1];
    (void)be;
    for (int64_t r = 0; r < rows; r++) {
        const float *from    = cpl_f32(x) + r * d;
        float *to            = cpl_f32(y) + r * d;
        const double squares = lanes_squares(from, d);
        const double factor  = squares == 0 ? 0 : 1 / sqrt(squares);
#pragma omp simd
        for (int64_t k = 0; k < d; k++) to[k] = (float)((double)from[k] * factor);
    }
}

void CPL_ISA_NAME(cpl_cpu_add_rows)(cpl_backend *be, double *sum, cpl_tensor x)
{
    const int64_t rows = x.shape[0], d = x.shape[1];
    (void)be;
    for (int64_t r = 0; r < rows; r++) {
        const float *from = cpl_f32(x) + r * d;
#pragma omp simd
        for (int64_t k = 0; k < d; k++) sum[k] += (double)from[k];
    }
}

/* Of the rows of a block: the mean cosine to their own expert, and the largest to another one. */
typedef struct cosines {
    float own[MOST_ROWS], other[MOST_ROWS];
} cosines;

/* The larger one; NaN where one of them is. */
static inline float larger(float a, float b)
{
    return a > b || a != a ? a : b;
}

/* Takes in products c [rows, width], of which the first `n` columns are experts from `first` on. */
static void take_products(cosines *of, const float *c, int64_t rows, int64_t width, int64_t n,
                          int64_t first, int64_t own)
{
    for (int64_t r = 0; r < rows; r++, c += width) {
        float most = of->other[r];
        for (int64_t i = 0; i < n; i++) {
            if (first + i == own)
                of->own[r] = c[i];
            else
                most = larger(c[i], most);
        }
        of->other[r] = most;
    }
}

/* Own rows are D in number and have the row itself among them, at a distance of 0; of a zero row
 * the cosine to itself, which is not one of the others, is 0. */
static double silhouette(const float *u, int64_t d, double own, double other, int64_t D)
{
    const double near = 4 * (double)FLT_EPSILON * sqrt((double)d);
    double a = 1 - (own * (double)D - lanes_squares(u, d)) / (double)(D - 1), b = 1 - other;
    a                 = a < 0 ? 0 : a;
    b                 = b < 0 ? 0 : b;
    const double most = a > b ? a : b;
    return most <= near ? 0 : (b - a) / most;
}

void CPL_ISA_NAME(cpl_cpu_silhouettes)(cpl_backend *be, double *sum, const void *packed, int64_t n,
                                       int64_t own, int64_t D, cpl_tensor U)
{
    const int64_t rows = U.shape[0], d = U.shape[1], pad = vector_round_up(n);
    float c[MOST_ROWS * PANEL];
    cosines of;
    (void)be;
    for (int64_t r0 = 0; D > 1 && r0 < rows; r0 += MOST_ROWS) {
        const int64_t count = rows - r0 < MOST_ROWS ? rows - r0 : MOST_ROWS;
        const float *u      = cpl_f32(U) + r0 * d;
        for (int64_t r = 0; r < count; r++) of.other[r] = -INFINITY;
        for (int64_t l = 0; l < pad; l += PANEL) {
            const int64_t width = cpl_panel_width(pad, l);
            cpl_panel_product(c, width, count, width, d, u, d, 1, (const float *)packed + l * d,
                              width, false);
            take_products(&of, c, count, width, n - l < width ? n - l : width, l, own);
        }
        for (int64_t r = 0; r < count; r++)
            *sum += silhouette(u + r * d, d, (double)of.own[r], (double)of.other[r], D);
    }
}
