/* no_product.c - tensor/product.h without oneDNN, for the library behind the PyTorch operator
 *
 * The coupling loss multiplies with kernels of its own (tensor/cpu/panel.h) and never calls these
 * functions. */
#include "tensor/product.h"

#include "base/status.h"

cpl_status cpl_product(float *c, int64_t c_stride, cpl_operand a, cpl_operand b,
                       cpl_product_shape shape, float beta, int n_threads)
{
    (void)c, (void)c_stride, (void)a, (void)b, (void)shape, (void)beta, (void)n_threads;
    return CPL_FAIL(CPL_ERR_INPUT, "this library has the coupling loss alone, no products");
}

cpl_status cpl_product_prepare(void)
{
    return CPL_OK;
}

bool cpl_product_has_bf16(void)
{
    return false;
}

void cpl_product_limit(const char *isa)
{
    (void)isa;
}
