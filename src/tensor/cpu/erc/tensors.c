/* tensors.c - noise and phases on tensors of the backend: see tensor/erc.h. */
#include "tensor/cpu/cpu.h"
#include "tensor/host_ops.h"

static cpl_matrix matrix_of(cpl_tensor x)
{
    return (cpl_matrix){cpl_f32(x), x.shape[0], x.shape[1]};
}

void CPL_ISA_NAME(cpl_cpu_erc_nearest)(cpl_backend *be, cpl_tensor eps, cpl_tensor R)
{
    CPL_ASSERT(eps.shape[0] == R.shape[0]);
    CPL_ISA_NAME(cpl_cpu_host_erc_nearest)(cpl_f32(eps), matrix_of(R), be->n_threads);
}

void CPL_ISA_NAME(cpl_cpu_erc_noise)(cpl_backend *be, cpl_tensor delta, cpl_tensor eps,
                                     cpl_rng_key key, uint64_t draw)
{
    CPL_ASSERT(eps.shape[0] == delta.shape[0]);
    CPL_ISA_NAME(cpl_cpu_host_erc_noise)
    (matrix_of(delta), cpl_f32(eps), key, draw, be->n_threads);
}

/* ---- the phases ---- */

static const float *floats(cpl_tensor x)
{
    return cpl_tensor_is_there(x) ? cpl_f32(x) : NULL;
}

static cpl_erc_weights weights_of(cpl_tensor w)
{
    return (cpl_erc_weights){
        .data = w.storage, .step = w.shape[1] * w.shape[2], .stride = w.shape[2]};
}

static cpl_erc_grads grads_of(cpl_tensor dw)
{
    return (cpl_erc_grads){.data   = cpl_tensor_is_there(dw) ? cpl_f32(dw) : NULL,
                           .step   = dw.shape[1] * dw.shape[2],
                           .stride = dw.shape[2]};
}

/* Returns the job as cpl_erc_host_job: pointers to the tensors' memory and to the scratch. */
static cpl_erc_host_job host_of(const cpl_backend *be, const cpl_erc_job *job)
{
    const cpl_tensor any = job->activation == CPL_ERC_UP ? job->up : job->gate;
    CPL_ASSERT(cpl_tensor_is_there(any) && any.shape[0] == job->j1 - job->j0);
    CPL_ASSERT(any.shape[2] == job->R.shape[1]);
    return (cpl_erc_host_job){
        .n             = job->R.shape[0],
        .d             = job->R.shape[1],
        .D             = any.shape[1],
        .i0            = job->i0,
        .i1            = job->i1,
        .j0            = job->j0,
        .j1            = job->j1,
        .activation    = job->activation,
        .dtype         = any.dtype,
        .compute       = job->compute,
        .alpha         = job->alpha,
        .weight        = job->weight,
        .R             = cpl_f32(job->R),
        .delta         = floats(job->delta),
        .gate          = weights_of(job->gate),
        .up            = weights_of(job->up),
        .down          = weights_of(job->down),
        .dR            = (float *)(uintptr_t)floats(job->dR),
        .dgate         = grads_of(job->dgate),
        .dup           = grads_of(job->dup),
        .ddown         = grads_of(job->ddown),
        .M             = (float *)(uintptr_t)floats(job->M),
        .diagonal      = cpl_f32(job->diagonal),
        .violations    = cpl_i32(job->violations),
        .n_threads     = be->n_threads,
        .scratch       = be->scratch,
        .scratch_bytes = be->scratch_bytes,
    };
}

typedef void phase(cpl_erc_host_job *job);

static double run(cpl_backend *be, const cpl_erc_job *job, phase *of_host)
{
    cpl_erc_host_job host = host_of(be, job);
    CPL_ASSERT(be->scratch_bytes >= CPL_ISA_NAME(cpl_cpu_host_erc_job_bytes)(&host));
    of_host(&host);
    return host.loss;
}

void CPL_ISA_NAME(cpl_cpu_erc_diagonals)(cpl_backend *be, cpl_erc_job job)
{
    (void)run(be, &job, CPL_ISA_NAME(cpl_cpu_host_erc_diagonals));
}

void CPL_ISA_NAME(cpl_cpu_erc_sweep)(cpl_backend *be, cpl_erc_job job)
{
    *cpl_f64(job.loss) += run(be, &job, CPL_ISA_NAME(cpl_cpu_host_erc_sweep));
}

void CPL_ISA_NAME(cpl_cpu_erc_add_diagonal)(cpl_backend *be, cpl_erc_job job)
{
    (void)run(be, &job, CPL_ISA_NAME(cpl_cpu_host_erc_add_diagonal));
}

void CPL_ISA_NAME(cpl_cpu_erc_run_local)(cpl_backend *be, cpl_erc_job job)
{
    *cpl_f64(job.loss) += run(be, &job, CPL_ISA_NAME(cpl_cpu_host_erc_run_local));
}
