/* module.h - the shared object couplet-cuda.so, and how the program opens it.
 *
 * Room:   tensor/cuda. The program is not linked to CUDA: backend/device.c loads the module when a device is
 *         asked for. The module uses nothing of the program but the CPU backend that it is given. */
#ifndef CPL_TENSOR_CUDA_MODULE_H
#define CPL_TENSOR_CUDA_MODULE_H

#include "tensor/ops.h"

/* cpl_fail of the program: the module's own copy would record the sentence where nobody reads it. */
typedef cpl_status cpl_fail_fn(cpl_status code, const char *format, ...) CPL_PRINTF(2, 3);

/* The symbol `cpl_cuda_module_entry` of the shared object. */
typedef struct cpl_cuda_module {
    int version; /* CPL_CUDA_MODULE_VERSION, which the build defines: a hash of this contract's headers */
    const char *program; /* the version of the program that it belongs to */

    /* Makes *be, on GPU `device` (-1: the first). `cpu`, of the program, computes in the same type and
     * runs the operations that have no kernel. Returns NULL, or a sentence that says what is missing; it
     * lives until the next call. */
    const char *(*open)(cpl_backend *be, int device, const cpl_backend *cpu, cpl_fail_fn *fail);

    /* The sentences that say that there is no GPU, NULL last. */
    const char *const *none;
} cpl_cuda_module;

#endif /* CPL_TENSOR_CUDA_MODULE_H */
