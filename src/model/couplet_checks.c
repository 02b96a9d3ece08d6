/* couplet_checks.c - see couplet_checks.h */
#include "model/couplet_checks.h"

#include <math.h>

cpl_status cpl_erc_check_size(const char *what, int64_t size, int most)
{
    if (size >= 1 && size <= most) return CPL_OK;
    return CPL_REFUSE("%s is %lld, must be 1 ... %d", what, (long long)size, most);
}

cpl_status cpl_erc_check_floats(const char *what, const void *at, bool needed)
{
    if (!at && needed) return CPL_REFUSE("%s is NULL", what);
    if ((uintptr_t)at % sizeof(float)) return CPL_REFUSE("%s is not aligned to 4 bytes", what);
    return CPL_OK;
}

cpl_status cpl_erc_check_threads(int n_threads)
{
    if (n_threads >= 0 && n_threads <= CPL_MOST_THREADS) return CPL_OK;
    return CPL_REFUSE("n_threads is %d, must be 0 ... %d", n_threads, CPL_MOST_THREADS);
}

cpl_status cpl_erc_check_noise(cpl_erc_noise_kind noise, uint64_t step, uint32_t layer,
                               uint32_t draw, const float *delta, int64_t n, int64_t d)
{
    if (noise < CPL_ERC_NOISE_DRAWN || noise > CPL_ERC_NOISE_NONE)
        return CPL_REFUSE("noise is %d, which is not a cpl_erc_noise_kind", (int)noise);
    if (step >> 40 || layer >> 16 || draw >> 16)
        return CPL_REFUSE("step must be below 2^40, layer and draw below 2^16");
    if (noise != CPL_ERC_NOISE_GIVEN) return CPL_OK;
    if (!delta) return CPL_REFUSE("noise is CPL_ERC_NOISE_GIVEN, but delta is NULL");
    CPL_TRY(cpl_erc_check_floats("delta", delta, true));
    for (int64_t i = 0; i < n * d; i++)
        if (!isfinite(delta[i]))
            return CPL_REFUSE("delta[%lld,%lld] is not finite", (long long)(i / d),
                              (long long)(i % d));
    return CPL_OK;
}
