/* adamw.cu - one AdamW step of one tensor in one pass over its memory.
 *
 * Room:  tensor/cuda. Operation: ops.h. */
#include "tensor/cuda/four.h"

typedef struct settings {
    float coef, decay, beta1, rest1, beta2, rest2, eps;
    float step, inverse2; /* lr / correct1, 1 / correct2 */
} settings;

typedef struct numbers {
    cpl_device_numbers p, m, v, copy, grad;
    int64_t count;
} numbers;

/* Decay and step are added before they are subtracted from p, so that p is rounded once: p times
 * (1 - lr decay) in F32 would lose most digits of a small lr. */
__global__ void adamw(numbers to, settings s)
{
    const int64_t at = cpl_four_place(), end = to.count;
    const cpl_four grad = cpl_four_get(to.grad, at, end);
    cpl_four p = cpl_four_get(to.p, at, end), m = cpl_four_get(to.m, at, end);
    cpl_four v = cpl_four_get(to.v, at, end);
    for (int k = 0; k < 4; k++) {
        const float g = grad.at[k] * s.coef;
        const float a = s.beta1 * m.at[k] + s.rest1 * g;
        const float b = s.beta2 * v.at[k] + s.rest2 * (g * g);
        m.at[k]       = a;
        v.at[k]       = b;
        p.at[k] -= s.decay * p.at[k] + s.step * a / (sqrtf(b * s.inverse2) + s.eps);
    }
    cpl_four_set(to.m, at, end, m);
    cpl_four_set(to.v, at, end, v);
    cpl_four_set(to.p, at, end, p);
    if (to.copy.at) cpl_four_set(to.copy, at, end, p);
}

extern "C" void cpl_cuda_adamw(cpl_backend *be, cpl_tensor p, cpl_tensor m, cpl_tensor v,
                               cpl_tensor copy, cpl_tensor grad, float coef, float lr, float decay,
                               float beta1, float beta2, float eps, double correct1,
                               double correct2)
{
    const int64_t count = cpl_tensor_count(p);
    CPL_ASSERT(p.dtype == CPL_F32 && m.dtype == CPL_F32 && v.dtype == CPL_F32);
    CPL_ASSERT(grad.dtype == CPL_F32 && (!copy.storage || copy.dtype == CPL_BF16));
    const settings s = {coef,
                        (float)((double)lr * (double)decay),
                        beta1,
                        (float)(1.0 - (double)beta1),
                        beta2,
                        (float)(1.0 - (double)beta2),
                        eps,
                        (float)((double)lr / correct1),
                        (float)(1.0 / correct2)};
    const numbers to = {cpl_device_numbers_of(p),    cpl_device_numbers_of(m),
                        cpl_device_numbers_of(v),    {copy.storage, true},
                        cpl_device_numbers_of(grad), count};
    CPL_LAUNCH(be, adamw, cpl_four_grid(count), CPL_FOUR_THREADS, 0, to, s);
}

extern "C" size_t cpl_cuda_adamw_scratch(const cpl_backend *, const cpl_work *)
{
    return 0;
}
