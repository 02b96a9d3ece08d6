/* fake_cublaslt.c - all functions of cuBLASLt that the search for it calls, with the environment's
 * version. It is also a module of the program's version with another table of operations. */
#include <stddef.h>
#include <stdlib.h>

#include "tensor/cuda/module.h"

extern const cpl_cuda_module cpl_cuda_module_entry;
__attribute__((visibility("default"))) const cpl_cuda_module cpl_cuda_module_entry = {
    .version = CPL_CUDA_MODULE_VERSION - 1, .program = COUPLET_VERSION};

__attribute__((visibility("default"))) size_t cublasLtGetVersion(void);
size_t cublasLtGetVersion(void)
{
    const char *version = getenv("COUPLET_TEST_CUBLASLT");
    return version ? strtoul(version, NULL, 10) : 130100;
}
