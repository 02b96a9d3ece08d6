/* random.c - initial weights. */
#include <math.h>

#include "tensor/cpu/cpu.h"

static float draw(const cpl_rng_key *key, uint64_t index, float cut)
{
    float x = cpl_rng_normal(key, index);
    for (uint64_t again = 1; fabsf(x) > cut; again++)
        x = cpl_rng_normal(key, index + (again << 40));
    return x;
}

void CPL_ISA_NAME(cpl_cpu_normal)(cpl_backend *be, cpl_tensor y, float std, float cut,
                                  const cpl_rng_key *key)
{
    float *out    = cpl_f32(y);
    int64_t count = cpl_tensor_count(y);
    CPL_ASSERT(cut > 0.1f && count < (int64_t)1 << 40);
#pragma omp parallel for num_threads(be->n_threads) schedule(static)
    for (int64_t i = 0; i < count; i++) out[i] = std * draw(key, (uint64_t)i, cut);
}
