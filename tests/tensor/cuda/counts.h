/* counts.h - what the emulated GPU was given to do.
 *
 * Room:   tests/tensor/cuda. The module of the emulation exports cpl_on_host_counted. */
#ifndef CPL_TESTS_TENSOR_CUDA_COUNTS_H
#define CPL_TESTS_TENSOR_CUDA_COUNTS_H

#include <stdint.h>

typedef struct cpl_on_host_counts {
    int64_t kernels, products, copies; /* of the library's products; to the device and from it */
    int64_t bytes;                     /* of copies */
    int64_t waits;                     /* of the host for the device: copies from it, and sync */
} cpl_on_host_counts;

#ifdef __cplusplus
extern "C"
#endif
    void
    cpl_on_host_counted(cpl_on_host_counts *out);

#endif /* CPL_TESTS_TENSOR_CUDA_COUNTS_H */
