/* failure.c - records the first failure of a device and its message; see cuda.h. */
#include <stdio.h>

#include "tensor/cuda/vendor.h"

void cpl_cuda_fail(cpl_backend *be, const char *sentence)
{
    cpl_cuda *c = cpl_cuda_of(be);
    if (be->failure != CPL_OK) return;
    snprintf(c->sentence, sizeof c->sentence, "%s", sentence);
    be->failure  = CPL_ERR_DEVICE;
    be->sentence = c->sentence;
}

void cpl_cuda_launched(cpl_backend *be, const char *kernel)
{
    char text[256];
    const char *sentence = cpl_vendor_launched(cpl_cuda_of(be));
    if (!sentence) return;
    snprintf(text, sizeof text, "kernel %s: %s", kernel, sentence);
    cpl_cuda_fail(be, text);
}
