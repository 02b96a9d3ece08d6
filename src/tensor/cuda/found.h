/* found.h - what is found where a GPU is opened, and the sentences for what is missing.
 *
 * Room:   tensor/cuda. A file of the vendor finds, this one judges, so that the host tests every
 *         sentence. A function returns NULL where nothing is missing, else a sentence that lives until
 *         its next call. */
#ifndef CPL_TENSOR_CUDA_FOUND_H
#define CPL_TENSOR_CUDA_FOUND_H

#include <stdbool.h>
#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct cpl_cuda_found {
    int driver, runtime; /* versions of CUDA, 13000 for 13.0; driver 0: there is none */
    bool is_too_old;     /* the driver, for this runtime */
    int count;           /* GPUs */
    int device;          /* the number of the one that is asked for */
    const char *error;   /* of CUDA, where it says one; else NULL */
    char name[256];      /* of the GPU, if it is there */
    int major, minor;    /* its compute capability */
    bool has_kernels;    /* the module has code for it */
} cpl_cuda_found;

/* The sentences of a machine without a GPU, NULL last. */
extern const char *const cpl_cuda_none[];

/* Whether the GPU can be used. */
const char *cpl_cuda_missing(const cpl_cuda_found *found);

/* Opens cuBLASLt, for as long as the program runs: the file that COUPLET_CUBLASLT names, or version 13,
 * else 12, in the folder of NVIDIA's package of Python beside the module's, in CUDA's folders, or where
 * the loader looks. Sets `library` (dlopen) and `version`, 130100 for 13.1.0. */
const char *cpl_cuda_open_cublaslt(void **library, size_t *version);

/* "CUDA driver 13.0, cuBLASLt 13.1.0", for the metadata of a run. */
void cpl_cuda_libraries(char *text, size_t bytes, int driver, size_t cublaslt);

#ifdef __cplusplus
}
#endif

#endif /* CPL_TENSOR_CUDA_FOUND_H */
