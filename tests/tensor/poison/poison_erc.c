/* poison_erc.c - the coupling loss and the responses of experts. The outputs of a loss's phases are
 * NaN before the phases set them. A job's scratch lives from its first phase to its last, so that
 * only the first phase fills it. */
#include "tensor/poison/poison.h"

void cpl_poison_erc_nearest(cpl_backend *be, cpl_tensor eps, cpl_tensor R)
{
    cpl_poison_holds(eps, CPL_F32, R.shape[0]);
    cpl_poison_fits(R, CPL_F32, R.shape[0], R.shape[1]);
    cpl_poison_apart(CPL_POISON_LIST(eps), CPL_POISON_LIST(R));
    cpl_poison_set(eps);
    CPL_POISON_CALL(erc.nearest, eps, R);
}

void cpl_poison_erc_noise(cpl_backend *be, cpl_tensor delta, cpl_tensor eps, cpl_rng_key key,
                          uint64_t draw)
{
    cpl_poison_fits(delta, CPL_F32, delta.shape[0], delta.shape[1]);
    cpl_poison_holds(eps, CPL_F32, delta.shape[0]);
    cpl_poison_apart(CPL_POISON_LIST(delta), CPL_POISON_LIST(eps));
    cpl_poison_set(delta);
    CPL_POISON_CALL(erc.noise, delta, eps, key, draw);
}

/* Returns the inner backend unchanged: its scratch must not be touched between the phases. */
static cpl_backend within(const cpl_backend *be)
{
    cpl_backend inner   = *cpl_poison_inner(be);
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
