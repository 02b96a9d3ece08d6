/* panel_pairs.c - see panel.h: products of bf16 numbers if the processor has an instruction for
 * pairs of them (AVX512-BF16). Callers check cpl_panel_has_pairs first. Where the compiler's target
 * has no AVX-512, cpl_panel_has_pairs returns false and PANEL_MADD must not be called (assert). */
#include "tensor/cpu/panel.h"

#if defined(__AVX512F__)
#    define PANEL_TARGET __attribute__((target("avx512bf16")))

PANEL_TARGET static inline lanes pairs_madd(lanes a, lanes b, lanes c)
{
    return _mm512_dpbf16_ps(c, (__m512bh)a, (__m512bh)b);
}

bool cpl_panel_has_pairs(void)
{
    return __builtin_cpu_supports("avx512bf16");
}
#else
#    define PANEL_TARGET

static inline lanes pairs_madd(lanes a, lanes b, lanes c)
{
    (void)a, (void)b;
    CPL_ASSERT(cpl_panel_has_pairs());
    return c;
}

bool cpl_panel_has_pairs(void)
{
    return false;
}
#endif

#define PANEL_ITEM    cpl_panel_pair
#define PANEL_MADD    pairs_madd
#define PANEL_PRODUCT cpl_panel_pairs_product
#define PANEL_DOTS    cpl_panel_pairs_dots
#include "tensor/cpu/panel.inc"
