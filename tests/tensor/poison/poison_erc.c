/* poison_erc.c - the coupling loss and the responses of experts. What the phases of a loss set is
 * NaN before they set it. A job's scratch lives from its first phase to its last, so that only the
 * first fills it. */
#include "tensor/poison/poison.h"

void cpl_poison_erc_nearest(cpl_backend *be, cpl_tensor eps, cpl_tensor R)
{
    cpl_poison_holds(eps, CPL_F32, R.shape[0]);
    cpl_poison_fits(R, CPL_F32, R.shape[0], R.shape[1]);
    cpl_poison_apart(CPL_POISON_LIST(eps), CPL_POISON_LIST(R));
    cpl_backend inner = cpl_poison_begin(be);
    cpl_poison_set(eps);
    inner.ops->erc.nearest(&inner, eps, R);
    cpl_poison_end(be, &inner);
}

void cpl_poison_erc_noise(cpl_backend *be, cpl_tensor delta, cpl_tensor eps, cpl_rng_key key,
                          uint64_t draw)
{
    cpl_poison_fits(delta, CPL_F32, delta.shape[0], delta.shape[1]);
    cpl_poison_holds(eps, CPL_F32, delta.shape[0]);
    cpl_poison_apart(CPL_POISON_LIST(delta), CPL_POISON_LIST(eps));
    cpl_backend inner = cpl_poison_begin(be);
    cpl_poison_set(delta);
    inner.ops->erc.noise(&inner, delta, eps, key, draw);
    cpl_poison_end(be, &inner);
}

/* The inner backend as it is: its scratch is not to be touched between the phases. */
static cpl_backend within(const cpl_backend *be)
{
    cpl_backend inner   = *be->inner;
    inner.scratch       = be->scratch;
    inner.scratch_bytes = be->scratch_bytes;
    inner.failure       = be->failure;
    return inner;
}

static void check_job(const cpl_erc_job *job)
{
    const int64_t n = job->R.shape[0], d = job->R.shape[1], here = job->j1 - job->j0;
    const cpl_tensor any = job->activation == CPL_ERC_UP ? job->up : job->gate;
    CPL_ASSERT(0 <= job->i0 && job->i0 < job->i1 && job->i1 <= n);
    CPL_ASSERT(0 <= job->j0 && job->j0 < job->j1 && job->j1 <= n);
    cpl_poison_fits(job->R, CPL_F32, n, d);
    cpl_poison_fits(any, any.dtype, here * any.shape[1], d);
    cpl_poison_holds(job->loss, CPL_F64, 1);
    cpl_poison_holds(job->diagonal, CPL_F32, n);
    cpl_poison_holds(job->violations, CPL_I32, 2 * n);
}

static void fill_scratch(cpl_backend *be)
{
    cpl_poison_set(
        cpl_tensor_1d(be->scratch, CPL_F32, (int64_t)(be->scratch_bytes / sizeof(float))));
}

void cpl_poison_erc_diagonals(cpl_backend *be, cpl_erc_job job)
{
    check_job(&job);
    fill_scratch(be);
    cpl_poison_set(cpl_tensor_range(job.diagonal, job.j0, job.j1 - job.j0));
    cpl_backend inner = within(be);
    inner.ops->erc.diagonals(&inner, job);
    cpl_poison_end(be, &inner);
}

static void set_outputs(const cpl_erc_job *job)
{
    const bool has_M = cpl_tensor_is_there(job->M);
    for (int64_t i = job->i0; has_M && i < job->i1; i++)
        cpl_poison_set(cpl_tensor_range(cpl_tensor_at(job->M, i), job->j0, job->j1 - job->j0));
    cpl_poison_set(job->violations);
}

void cpl_poison_erc_sweep(cpl_backend *be, cpl_erc_job job)
{
    check_job(&job);
    set_outputs(&job);
    cpl_backend inner = within(be);
    inner.ops->erc.sweep(&inner, job);
    cpl_poison_end(be, &inner);
}

void cpl_poison_erc_add_diagonal(cpl_backend *be, cpl_erc_job job)
{
    check_job(&job);
    cpl_poison_in_range(job.violations, 0, INT32_MAX);
    cpl_backend inner = within(be);
    inner.ops->erc.add_diagonal(&inner, job);
    cpl_poison_end(be, &inner);
}

void cpl_poison_erc_run_local(cpl_backend *be, cpl_erc_job job)
{
    check_job(&job);
    CPL_ASSERT(job.j0 == 0 && job.j1 == job.R.shape[0]);
    fill_scratch(be);
    cpl_poison_set(job.diagonal);
    set_outputs(&job);
    cpl_backend inner = within(be);
    inner.ops->erc.run_local(&inner, job);
    cpl_poison_end(be, &inner);
}

/* ---- responses: memory is the caller's, and its threads call at the same time, so neither the
 * backend's scratch nor its failure is touched ---- */

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
void cpl_poison_response_add(cpl_backend *be, double *squares, double *centred, double *norm,
                             const void *packed, int64_t n, cpl_tensor W, void *scratch)
{
    const int64_t d   = W.shape[1];
    cpl_backend inner = *be->inner;
    CPL_ASSERT(W.rank == 2 && W.dtype == CPL_F32 && (W.data || W.shape[0] == 0));
    CPL_ASSERT(squares && norm && packed && scratch);
    cpl_tensor x   = floats(packed, cpl_poison_response_packed_bytes(be, n, d));
    cpl_tensor own = floats(scratch, cpl_poison_response_scratch_bytes(be, n, d));
    cpl_tensor sum = floats(squares, (size_t)n * sizeof *squares);
    cpl_tensor off = floats(centred, centred ? (size_t)n * sizeof *centred : 0);
    cpl_tensor all = floats(norm, sizeof *norm);
    cpl_poison_apart(CPL_POISON_LIST(sum, off, all, own), CPL_POISON_LIST(x, W));
    cpl_poison_set(own);
    inner.ops->response.add(&inner, squares, centred, norm, packed, n, W, scratch);
}
