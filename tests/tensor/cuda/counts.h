/* counts.h - counts of the work that the emulated GPU was given.
 *
 * Room:   tests/tensor/cuda. The module of the emulation exports cpl_on_host_counted. */
#ifndef CPL_TESTS_TENSOR_CUDA_COUNTS_H
#define CPL_TESTS_TENSOR_CUDA_COUNTS_H

#include <stdint.h>

typedef struct cpl_on_host_counts {
    int64_t kernels, products, copies; /* products of the library; copies either way */
    int64_t bytes;                     /* bytes copied */
    int64_t waits;                     /* waits of the host: copies from the device, and sync */
} cpl_on_host_counts;

#ifdef __cplusplus
extern "C"
#endif
    void
    cpl_on_host_counted(cpl_on_host_counts *out);

#endif /* CPL_TESTS_TENSOR_CUDA_COUNTS_H */
