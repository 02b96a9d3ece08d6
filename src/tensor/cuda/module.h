/* module.h - the shared object couplet-cuda.so, and the interface by which the program opens it.
 *
 * Room:   tensor/cuda. The program is not linked to CUDA: backend/device.c loads the module when a
 *         device is requested. The module uses only the CPU backend of the program, which is passed
 *         to open. */
#ifndef CPL_TENSOR_CUDA_MODULE_H
#define CPL_TENSOR_CUDA_MODULE_H

#include "tensor/ops.h"

/* The type of the program's cpl_fail. The module's own copy would record messages that the program
 * does not read. */
typedef cpl_status cpl_fail_fn(cpl_status code, const char *format, ...) CPL_PRINTF(2, 3);

/* The symbol `cpl_cuda_module_entry` of the shared object. */
typedef struct cpl_cuda_module {
    int version; /* CPL_CUDA_MODULE_VERSION, which the build defines: a hash of this contract's
                    headers */
    const char *program; /* version of the program that the module belongs to */

    /* Opens *be on GPU `device` (-1: the first). `cpu`, a backend of the program that computes in
     * the same type, runs the operations without a kernel. Returns NULL, or a message that names
     * the missing part and is valid until the next call. */
    const char *(*open)(cpl_backend *be, int device, const cpl_backend *cpu, cpl_fail_fn *fail);

    /* The messages of open for a machine without a GPU, NULL last. */
    const char *const *none;
} cpl_cuda_module;

#endif /* CPL_TENSOR_CUDA_MODULE_H */
