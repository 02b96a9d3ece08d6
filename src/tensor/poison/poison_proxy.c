/* poison_proxy.c - the coupling loss: what its phases set is NaN before they set it. A job's
 * scratch lives from its first phase to its last, so only the first poisons it. */
#include "tensor/poison/poison.h"

void cpl_poison_proxy_nearest(cpl_backend *be, cpl_tensor eps, cpl_tensor R)
{
    cpl_poison_holds(eps, CPL_F32, R.shape[0]);
    cpl_poison_fits(R, CPL_F32, R.shape[0], R.shape[1]);
    cpl_poison_apart(CPL_POISON_LIST(eps), CPL_POISON_LIST(R));
    cpl_backend inner = cpl_poison_begin(be);
    cpl_poison_set(eps);
    inner.ops->proxy.nearest(&inner, eps, R);
    cpl_poison_end(be, &inner);
}

void cpl_poison_proxy_noise(cpl_backend *be, cpl_tensor delta, cpl_tensor eps,
                            const cpl_rng_key *key, uint64_t draw)
{
    cpl_poison_fits(delta, CPL_F32, delta.shape[0], delta.shape[1]);
    cpl_poison_holds(eps, CPL_F32, delta.shape[0]);
    cpl_poison_apart(CPL_POISON_LIST(delta), CPL_POISON_LIST(eps));
    cpl_backend inner = cpl_poison_begin(be);
    cpl_poison_set(delta);
    inner.ops->proxy.noise(&inner, delta, eps, key, draw);
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

size_t cpl_poison_proxy_job_bytes(const cpl_backend *be, const cpl_proxy_job *job)
{
    return be->inner->ops->proxy.job_bytes(be->inner, job);
}

static void check_job(const cpl_backend *be, const cpl_proxy_job *job)
{
    CPL_ASSERT(job->n >= 1 && job->d >= 1 && job->D >= 1);
    CPL_ASSERT(0 <= job->i0 && job->i0 < job->i1 && job->i1 <= job->n);
    CPL_ASSERT(0 <= job->j0 && job->j0 < job->j1 && job->j1 <= job->n);
    CPL_ASSERT(job->scratch_bytes >= cpl_poison_proxy_job_bytes(be, job));
    CPL_ASSERT(job->R && job->diagonal && job->violations && job->scratch);
}

/* As floats: bytes that are no whole float at the end are left. */
static void fill(void *memory, size_t bytes)
{
    cpl_poison_set(cpl_tensor_1d(memory, CPL_F32, (int64_t)(bytes / sizeof(float))));
}

void cpl_poison_proxy_diagonals(cpl_backend *be, cpl_proxy_job *job)
{
    check_job(be, job);
    fill(job->scratch, job->scratch_bytes);
    fill(job->diagonal + job->j0, (size_t)(job->j1 - job->j0) * sizeof(float));
    cpl_backend inner = within(be);
    inner.ops->proxy.diagonals(&inner, job);
    cpl_poison_end(be, &inner);
}

static void set_outputs(const cpl_proxy_job *job)
{
    for (int64_t i = job->i0; job->M && i < job->i1; i++)
        fill(job->M + i * job->n + job->j0, (size_t)(job->j1 - job->j0) * sizeof(float));
    for (int64_t i = 0; i < 2 * job->n; i++) job->violations[i] = -1;
}

void cpl_poison_proxy_sweep(cpl_backend *be, cpl_proxy_job *job)
{
    check_job(be, job);
    set_outputs(job);
    cpl_backend inner = within(be);
    inner.ops->proxy.sweep(&inner, job);
    cpl_poison_end(be, &inner);
}

void cpl_poison_proxy_add_diagonal(cpl_backend *be, cpl_proxy_job *job)
{
    check_job(be, job);
    for (int64_t i = 0; i < 2 * job->n; i++) CPL_ASSERT(job->violations[i] >= 0);
    cpl_backend inner = within(be);
    inner.ops->proxy.add_diagonal(&inner, job);
    cpl_poison_end(be, &inner);
}

void cpl_poison_proxy_run_local(cpl_backend *be, cpl_proxy_job *job)
{
    check_job(be, job);
    CPL_ASSERT(job->j0 == 0 && job->j1 == job->n);
    fill(job->scratch, job->scratch_bytes);
    fill(job->diagonal, (size_t)job->n * sizeof(float));
    set_outputs(job);
    cpl_backend inner = within(be);
    inner.ops->proxy.run_local(&inner, job);
    cpl_poison_end(be, &inner);
}
