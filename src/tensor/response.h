/* response.h - how strongly an expert answers to every router row, row of its gate by row.
 *
 * Room:   tensor; operations of ops.h. For matrices that come from a file in pieces; a model in
 *         memory has its M from proxy.h.
 * Names:  X [n,d] the router rows or proxies; W [rows,d] some rows of an expert's gate. With all of
 *         its rows added, sqrt(squares[i]) is M[i,j] and sqrt(*norm) is |W_g^j|_F.
 * Types:  X and W are F32 and multiplied as such, whatever be->compute is. */
#ifndef CPL_TENSOR_RESPONSE_H
#define CPL_TENSOR_RESPONSE_H

#include "tensor/tensor.h"

struct cpl_backend;

typedef struct cpl_response_ops {
    /* Bytes of X packed for the products below; CPL_ALIGNMENT-aligned memory of the caller. */
    size_t (*packed_bytes)(const struct cpl_backend *be, int64_t n, int64_t d);
    void (*pack)(struct cpl_backend *be, void *packed, cpl_tensor X);

    /* Rows of W that one call takes best: they and the products stay in the cache. */
    int64_t (*rows)(const struct cpl_backend *be, int64_t n, int64_t d);
    /* Scratch of one call of `add` with at most that many rows. */
    size_t (*scratch_bytes)(const struct cpl_backend *be, int64_t n, int64_t d);

    /* squares [n] *add* the sum over the rows r of W of (X_i . W_r)^2, in double; norm *adds* the
     * sum of the squares of W. One thread, so that the caller's threads each take an expert;
     * `scratch` is the calling thread's. A NaN or an infinity of W reaches *norm. W may have no
     * rows, or more than `rows`. Rows in the same order give the same bits however they are split
     * over calls, and squares of the same bits as the M of proxy.h in F32 comes from. */
    void (*add)(struct cpl_backend *be, double *squares, double *norm, const void *packed,
                int64_t n, cpl_tensor W, void *scratch);
} cpl_response_ops;

#endif /* CPL_TENSOR_RESPONSE_H */
