/* poison_response.c - responses and silhouettes: memory is the caller's, and its threads call at the
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

/* ---- silhouettes ---- */

static void check_rows(cpl_tensor x)
{
    CPL_ASSERT(x.rank == 2 && x.dtype == CPL_F32 && x.shape[1] >= 1);
    CPL_ASSERT(x.data || x.shape[0] == 0);
}

void cpl_poison_unit_rows(cpl_backend *be, cpl_tensor y, cpl_tensor x)
{
    cpl_backend inner = *be->inner;
    check_rows(x);
    check_rows(y);
    CPL_ASSERT(y.shape[0] == x.shape[0] && y.shape[1] == x.shape[1]);
    if (y.data != x.data) {
        cpl_poison_apart(CPL_POISON_LIST(y), CPL_POISON_LIST(x));
        cpl_poison_set(y);
    }
    inner.ops->unit_rows(&inner, y, x);
}

/* sum is added to, so it stays. */
void cpl_poison_add_rows(cpl_backend *be, double *sum, cpl_tensor x)
{
    cpl_backend inner = *be->inner;
    check_rows(x);
    CPL_ASSERT(sum);
    cpl_poison_apart(CPL_POISON_LIST(floats(sum, (size_t)x.shape[1] * sizeof *sum)),
                     CPL_POISON_LIST(x));
    inner.ops->add_rows(&inner, sum, x);
}

void cpl_poison_silhouettes(cpl_backend *be, double *sum, const void *packed, int64_t n,
                            int64_t own, int64_t D, cpl_tensor U)
{
    cpl_backend inner = *be->inner;
    check_rows(U);
    CPL_ASSERT(sum && packed && n >= 2 && own >= 0 && own < n && D >= 1);
    cpl_tensor middles = floats(packed, inner.ops->response.packed_bytes(&inner, n, U.shape[1]));
    cpl_poison_apart(CPL_POISON_LIST(floats(sum, sizeof *sum)), CPL_POISON_LIST(middles, U));
    inner.ops->silhouettes(&inner, sum, packed, n, own, D, U);
}
