/* found.h - properties of the GPU to be opened, and messages for missing parts.
 *
 * Room:   tensor/cuda. vendor_nvidia.cu fills cpl_cuda_found, this file checks it, so that the host
 *         can test every message. A function returns NULL on success, otherwise a message that is
 *         valid until the next call. */
#ifndef CPL_TENSOR_CUDA_FOUND_H
#define CPL_TENSOR_CUDA_FOUND_H

#include <stdbool.h>
#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct cpl_cuda_found {
    int driver, runtime; /* versions of CUDA, 13000 for 13.0; driver is 0 without a driver */
    bool is_too_old;     /* the driver is too old for this runtime */
    int count;           /* number of GPUs */
    int device;          /* number of the requested GPU */
    const char *error;   /* CUDA's error message, or NULL */
    char name[256];      /* name of the requested GPU, if it exists */
    int major, minor;    /* compute capability of the requested GPU */
    bool has_kernels;    /* the module has code for the requested GPU */
} cpl_cuda_found;

/* The messages for a machine without a GPU, NULL last. */
extern const char *const cpl_cuda_none[];

/* Returns NULL if the GPU can be used, otherwise the reason why it cannot. */
const char *cpl_cuda_missing(const cpl_cuda_found *found);

/* Opens cuBLASLt, for as long as the program runs: the file that COUPLET_CUBLASLT names, otherwise
 * version 13, otherwise 12. The search covers the folder of NVIDIA's Python package beside the
 * module's package, CUDA's folders, and the loader's folders. Sets `library` (dlopen) and
 * `version`, 130100 for 13.1.0. */
const char *cpl_cuda_open_cublaslt(void **library, size_t *version);

/* Writes "CUDA driver 13.0, cuBLASLt 13.1.0" to `text`, for the metadata of a run. */
void cpl_cuda_libraries(char *text, size_t bytes, int driver, size_t cublaslt);

#ifdef __cplusplus
}
#endif

#endif /* CPL_TENSOR_CUDA_FOUND_H */
