/* poison_check.c - the checks and fills of the wrapped operations. See poison.h. */
#include "tensor/poison/poison.h"

#include <string.h>

/* The byte of poison: a NaN as F32, BF16 or double, and -1 as a whole number. */
enum { POISON = 0xff };

cpl_backend cpl_poison_begin(const cpl_backend *be)
{
    cpl_backend inner   = *cpl_poison_inner(be);
    inner.n_threads     = be->n_threads;
    inner.scratch       = be->scratch;
    inner.scratch_bytes = be->scratch_bytes;
    inner.failure       = be->failure;
    if (be->scratch) memset(be->scratch, POISON, be->scratch_bytes);
    return inner;
}

void cpl_poison_end(cpl_backend *be, const cpl_backend *inner)
{
    be->failure = inner->failure;
}

void cpl_poison_set(cpl_tensor x)
{
    if (x.storage && cpl_tensor_count(x) > 0) memset(x.storage, POISON, cpl_tensor_bytes(x));
}

/* ---- checks ---- */

void cpl_poison_fits(cpl_tensor x, cpl_dtype dtype, int64_t rows, int64_t cols)
{
    CPL_ASSERT(x.storage != NULL);
    CPL_ASSERT(x.dtype == dtype);
    CPL_ASSERT(cpl_tensor_rows(x) == rows && cpl_tensor_cols(x) == cols);
}

void cpl_poison_holds(cpl_tensor x, cpl_dtype dtype, int64_t count)
{
    CPL_ASSERT(x.storage != NULL);
    CPL_ASSERT(x.dtype == dtype);
    CPL_ASSERT(cpl_tensor_count(x) == count);
}

void cpl_poison_is_float(cpl_tensor x)
{
    CPL_ASSERT(x.storage != NULL);
    CPL_ASSERT(x.dtype == CPL_F32 || x.dtype == CPL_BF16);
}

void cpl_poison_activation(const cpl_backend *be, cpl_tensor x, int64_t rows, int64_t cols)
{
    cpl_poison_fits(x, x.dtype, rows, cols);
    CPL_ASSERT(x.dtype == CPL_F32 || (x.dtype == CPL_BF16 && be->compute == CPL_BF16));
}

void cpl_poison_in_range(cpl_tensor ids, int64_t low, int64_t high)
{
    const int32_t *id = cpl_i32(ids);
    for (int64_t i = 0; i < cpl_tensor_count(ids); i++) CPL_ASSERT(id[i] >= low && id[i] < high);
}

void cpl_poison_plan(cpl_dispatch plan, int64_t T, int64_t K, int64_t n_experts)
{
    cpl_poison_holds(plan.offset, CPL_I32, n_experts + 1);
    cpl_poison_holds(plan.token, CPL_I32, T * K);
    cpl_poison_holds(plan.row, CPL_I32, T * K);
    cpl_poison_in_range(plan.token, 0, T);
    cpl_poison_in_range(plan.row, 0, T * K);
    const int32_t *offset = cpl_i32(plan.offset);
    CPL_ASSERT(offset[0] == 0 && offset[n_experts] == T * K);
    for (int64_t e = 0; e < n_experts; e++) CPL_ASSERT(offset[e] <= offset[e + 1]);
    for (int64_t i = 0; i < T * K; i++)
        CPL_ASSERT(cpl_i32(plan.token)[cpl_i32(plan.row)[i]] == i / K);
}

static bool overlap(cpl_tensor a, cpl_tensor b)
{
    const char *a_begin = a.storage, *b_begin = b.storage;
    if (!a_begin || !b_begin || cpl_tensor_count(a) == 0 || cpl_tensor_count(b) == 0) return false;
    return a_begin < b_begin + cpl_tensor_bytes(b) && b_begin < a_begin + cpl_tensor_bytes(a);
}

void cpl_poison_apart(cpl_poison_list outputs, cpl_poison_list inputs)
{
    for (int i = 0; i < outputs.count; i++) {
        for (int j = 0; j < i; j++) CPL_ASSERT(!overlap(outputs.at[i], outputs.at[j]));
        for (int j = 0; j < inputs.count; j++) CPL_ASSERT(!overlap(outputs.at[i], inputs.at[j]));
    }
}
