/* panel_pairs.c - see panel.h: products of bf16 numbers where the processor has an instruction for
 * pairs of them (AVX512-BF16). Elsewhere nobody calls it. */
#include "tensor/cpu/panel.h"

#if defined(__AVX512F__)

#    define PANEL_TARGET __attribute__((target("avx512bf16")))

PANEL_TARGET static inline lanes pairs_madd(lanes a, lanes b, lanes c)
{
    return _mm512_dpbf16_ps(c, (__m512bh)a, (__m512bh)b);
}

#    define PANEL_ITEM    cpl_panel_pair
#    define PANEL_MADD    pairs_madd
#    define PANEL_PRODUCT cpl_panel_pairs_product
#    define PANEL_DOTS    cpl_panel_pairs_dots
#    include "tensor/cpu/panel.inc"

bool cpl_panel_has_pairs(void)
{
    return __builtin_cpu_supports("avx512bf16");
}

#else

bool cpl_panel_has_pairs(void)
{
    return false;
}

void cpl_panel_pairs_product(float *c, int64_t c_step, int64_t rows, int64_t width, int64_t depth,
                             const cpl_panel_pair *x, int64_t x_row, int64_t x_depth,
                             const cpl_panel_pair *panel, int64_t panel_step, bool add)
{
    (void)c, (void)c_step, (void)rows, (void)width, (void)depth, (void)x, (void)x_row;
    (void)x_depth, (void)panel, (void)panel_step, (void)add;
    CPL_ASSERT(cpl_panel_has_pairs());
}

void cpl_panel_pairs_dots(float *out, int64_t rows, int64_t depth, const cpl_panel_pair *x,
                          int64_t x_row, const cpl_panel_pair *column)
{
    (void)out, (void)rows, (void)depth, (void)x, (void)x_row, (void)column;
    CPL_ASSERT(cpl_panel_has_pairs());
}

#endif
