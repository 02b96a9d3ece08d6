/* orth.c - a loss that is 0 if the router rows are orthogonal.
 *
 * Room:    tensor/cpu. Operation: ops.h.
 * Names:   n experts, d model width; unit [n,d] the rows R^ of length 1; E = R^ R^T - I [n,n].
 * Method:  E's diagonal is set to 0 exactly, so that the rounding of rows of length 1 does not
 *          enter the loss and a zero row needs no special case. With U = 4 / n^2 E R^ the gradient
 *          of a row is the part of U orthogonal to the row, divided by the row's norm. */
#include <math.h>

#include "tensor/cpu/cpu.h"
#include "tensor/cpu/lanes.h"
#include "tensor/cpu/operand.h"

/* The scratch. */
typedef struct view {
    double *norm;        /* [n] */
    float *unit;         /* [n,d] */
    float *E;            /* [n,n] */
    float *along_others; /* [n,d] E R^ */
} view;

static view take_view(cpl_arena *arena, int64_t n, int64_t d)
{
    const size_t wide = (size_t)(n * d) * sizeof(float);
    view v;
    v.norm         = cpl_arena_take(arena, (size_t)n * sizeof(double));
    v.unit         = cpl_arena_take(arena, wide);
    v.E            = cpl_arena_take(arena, (size_t)(n * n) * sizeof(float));
    v.along_others = cpl_arena_take(arena, wide);
    return v;
}

size_t CPL_ISA_NAME(cpl_cpu_orth_scratch)(const cpl_backend *be, const cpl_work *work)
{
    cpl_arena measure = cpl_arena_over(NULL, SIZE_MAX);
    (void)be;
    (void)take_view(&measure, work->n_experts, work->d_model);
    return measure.used;
}

/* Sets norm and unit. A zero row stays zero. */
static void normalise(const view *v, const float *R, int64_t n, int64_t d)
{
    for (int64_t i = 0; i < n; i++) {
        v->norm[i]         = sqrt(lanes_squares(R + i * d, d));
        const double scale = v->norm[i] == 0.0 ? 0.0 : 1.0 / v->norm[i];
#pragma omp simd
        for (int64_t k = 0; k < d; k++) v->unit[i * d + k] = (float)((double)R[i * d + k] * scale);
    }
}

static double mean_square(const float *E, int64_t n)
{
    double sum = 0;
#pragma omp simd reduction(+ : sum)
    for (int64_t i = 0; i < n * n; i++) sum += (double)E[i] * (double)E[i];
    return sum / (double)(n * n);
}

/* Adds factor (along_others - unit (unit . along_others)) to `to` [d]. */
static void add_row(float *to, const float *unit, const float *along_others, double factor,
                    int64_t d)
{
    double along = 0;
#pragma omp simd reduction(+ : along)
    for (int64_t k = 0; k < d; k++) along += (double)unit[k] * (double)along_others[k];
#pragma omp simd
    for (int64_t k = 0; k < d; k++)
        to[k] += (float)(factor * ((double)along_others[k] - along * (double)unit[k]));
}

void CPL_ISA_NAME(cpl_cpu_orthogonality)(cpl_backend *be, cpl_tensor loss, cpl_tensor dR,
                                         cpl_tensor R, float scale)
{
    const int64_t n = R.shape[0], d = R.shape[1];
    cpl_arena arena  = cpl_arena_over(be->scratch, be->scratch_bytes);
    const view v     = take_view(&arena, n, d);
    cpl_operand unit = {v.unit, CPL_F32, CPL_AS_IS, d}, E = {v.E, CPL_F32, CPL_AS_IS, n};
    if (n == 0) return;
    normalise(&v, cpl_f32(R), n, d);
    cpl_multiply(be, be->n_threads, v.E, n, unit, cpl_transposed(unit),
                 (cpl_product_shape){n, n, d}, 0);
    for (int64_t i = 0; i < n; i++) v.E[i * n + i] = 0;
    *cpl_f64(loss) += mean_square(v.E, n);
    if (!dR.storage) return;
    cpl_multiply(be, be->n_threads, v.along_others, d, E, unit, (cpl_product_shape){n, d, n}, 0);
    for (int64_t i = 0; i < n; i++)
        if (v.norm[i] != 0.0)
            add_row(cpl_f32(dR) + i * d, v.unit + i * d, v.along_others + i * d,
                    4.0 * (double)scale / ((double)(n * n) * v.norm[i]), d);
}
