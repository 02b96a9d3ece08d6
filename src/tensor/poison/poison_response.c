/* poison_response.c - responses: memory is the caller's, and its threads call at the
 * same time, so neither the backend's scratch nor its failure is touched. */
#include "tensor/poison/poison.h"

/* Memory without a shape, as floats. */
static cpl_tensor floats(const void *memory, size_t bytes)
{
    return cpl_tensor_1d((void *)(uintptr_t)memory, CPL_F32, (int64_t)(bytes / sizeof(float)));
}

size_t cpl_poison_response_packed_bytes(const cpl_backend *be, int64_t n, int64_t d)
{
    CPL_ASSERT(n >= 1 && d >= 1);
    return be->inner->ops->response.packed_bytes(be->inner, n, d);
}

int64_t cpl_poison_response_rows(const cpl_backend *be, int64_t n, int64_t d)
{
    CPL_ASSERT(n >= 1 && d >= 1);
    return be->inner->ops->response.rows(be->inner, n, d);
}

size_t cpl_poison_response_scratch_bytes(const cpl_backend *be, int64_t n, int64_t d)
{
    CPL_ASSERT(n >= 1 && d >= 1);
    return be->inner->ops->response.scratch_bytes(be->inner, n, d);
}

void cpl_poison_response_pack(cpl_backend *be, void *packed, cpl_tensor X)
{
    const int64_t n = X.shape[0], d = X.shape[1];
    cpl_tensor out    = floats(packed, cpl_poison_response_packed_bytes(be, n, d));
    cpl_backend inner = *be->inner;
    cpl_poison_fits(X, CPL_F32, n, d);
    CPL_ASSERT(packed && X.rank == 2);
    cpl_poison_apart(CPL_POISON_LIST(out), CPL_POISON_LIST(X));
    cpl_poison_set(out);
    inner.ops->response.pack(&inner, packed, X);
}

/* squares and norm are added to, so they stay; only scratch is poisoned. */
void cpl_poison_response_add(cpl_backend *be, double *squares, double *norm, const void *packed,
                             int64_t n, cpl_tensor W, void *scratch)
{
    const int64_t d   = W.shape[1];
    cpl_backend inner = *be->inner;
    CPL_ASSERT(W.rank == 2 && W.dtype == CPL_F32 && (W.data || W.shape[0] == 0));
    CPL_ASSERT(squares && norm && packed && scratch);
    cpl_tensor x   = floats(packed, cpl_poison_response_packed_bytes(be, n, d));
    cpl_tensor own = floats(scratch, cpl_poison_response_scratch_bytes(be, n, d));
    cpl_tensor sum = floats(squares, (size_t)n * sizeof *squares);
    cpl_tensor all = floats(norm, sizeof *norm);
    cpl_poison_apart(CPL_POISON_LIST(sum, all, own), CPL_POISON_LIST(x, W));
    cpl_poison_set(own);
    inner.ops->response.add(&inner, squares, norm, packed, n, W, scratch);
}
