/* adamw.c - one AdamW step of one tensor in one pass over its memory.
 *
 * Room:  tensor/cpu. Operation: ops.h. */
#include <math.h>

#include "tensor/cpu/cpu.h"
#include "tensor/cpu/share.h"
#include "tensor/cpu/simd.h"

typedef struct settings {
    float coef, decay, beta1, rest1, beta2, rest2, eps;
    float step, inverse2; /* lr / correct1, 1 / correct2 */
} settings;

/* Decay and step are added before they are subtracted from p, so that p is rounded once: p times
 * (1 - lr decay) in F32 would lose most digits of a small lr. */
static void step_part(float *restrict p, float *restrict m, float *restrict v,
                      const float *restrict grad, int64_t count, settings s)
{
#pragma omp simd
    for (int64_t i = 0; i < count; i++) {
        float g = grad[i] * s.coef;
        float a = s.beta1 * m[i] + s.rest1 * g;
        float b = s.beta2 * v[i] + s.rest2 * (g * g);
        m[i]    = a;
        v[i]    = b;
        p[i] -= s.decay * p[i] + s.step * a / (sqrtf(b * s.inverse2) + s.eps);
    }
}

/* Rounds the copy piece by piece while the parameters are still in the first cache. */
void CPL_ISA_NAME(cpl_cpu_adamw)(cpl_backend *be, cpl_tensor p, cpl_tensor m, cpl_tensor v,
                                 cpl_tensor copy, cpl_tensor grad, float coef, float lr,
                                 float decay, float beta1, float beta2, float eps, double correct1,
                                 double correct2)
{
    enum { PIECE = 1024 };
    CPL_ASSERT(!copy.storage || copy.dtype == CPL_BF16);
    const settings s = {
        .coef     = coef,
        .decay    = (float)((double)lr * (double)decay),
        .beta1    = beta1,
        .rest1    = (float)(1.0 - (double)beta1),
        .beta2    = beta2,
        .rest2    = (float)(1.0 - (double)beta2),
        .eps      = eps,
        .step     = (float)((double)lr / correct1),
        .inverse2 = (float)(1.0 / correct2),
    };
    const int64_t count = cpl_tensor_count(p);
    float *pp = cpl_f32(p), *pm = cpl_f32(m), *pv = cpl_f32(v);
    const float *pg   = cpl_f32(grad);
    uint16_t *rounded = copy.storage;
#pragma omp parallel for num_threads(cpl_threads(be, 4 * count)) schedule(static)
    for (int64_t at = 0; at < count; at += PIECE) {
        int64_t length = count - at < PIECE ? count - at : PIECE;
        step_part(pp + at, pm + at, pv + at, pg + at, length, s);
        if (rounded) cpl_round_row(rounded + at, pp + at, length);
    }
}
