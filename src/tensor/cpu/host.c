/* host.c - the operations of host_ops.h, computed by the kernels of the operations on tensors.
 *
 * Room:  tensor/cpu. */
#include "tensor/cpu/cpu.h"

static cpl_backend on(int n_threads, void *scratch, size_t scratch_bytes)
{
    return (cpl_backend){.compute       = CPL_F32,
                         .n_threads     = n_threads,
                         .scratch       = scratch,
                         .scratch_bytes = scratch_bytes};
}

static cpl_tensor tensor_of(cpl_matrix x)
{
    return cpl_tensor_2d(x.at, CPL_F32, x.rows, x.cols);
}

/* Returns the array x [count] as a tensor, or none if x is NULL. */
static cpl_tensor vector_of(const float *x, int64_t count)
{
    return cpl_tensor_1d((void *)(uintptr_t)x, CPL_F32, count);
}

double CPL_ISA_NAME(cpl_cpu_host_dot)(const float *x, const float *y, int64_t count, int n_threads)
{
    cpl_backend be = on(n_threads, NULL, 0);
    double sum     = 0;
    CPL_ISA_NAME(cpl_cpu_dot)
    (&be, cpl_tensor_1d(&sum, CPL_F64, 1), vector_of(x, count), vector_of(y, count));
    return sum;
}

void CPL_ISA_NAME(cpl_cpu_host_centre)(cpl_matrix x)
{
    cpl_backend be = on(1, NULL, 0);
    CPL_ISA_NAME(cpl_cpu_centre)(&be, tensor_of(x), tensor_of(x));
}

void CPL_ISA_NAME(cpl_cpu_host_row_norms)(float *out, cpl_matrix x)
{
    cpl_backend be = on(1, NULL, 0);
    CPL_ISA_NAME(cpl_cpu_row_norms)(&be, vector_of(out, x.rows), tensor_of(x));
}

void CPL_ISA_NAME(cpl_cpu_host_unit_rows)(cpl_matrix x, const float *mean, double scale)
{
    cpl_backend be = on(1, NULL, 0);
    CPL_ISA_NAME(cpl_cpu_unit_rows)
    (&be, tensor_of(x), tensor_of(x), vector_of(mean, x.cols), scale);
}

void CPL_ISA_NAME(cpl_cpu_host_unit_rows_backward)(cpl_matrix dx, cpl_matrix x, double scale)
{
    cpl_backend be = on(1, NULL, 0);
    CPL_ISA_NAME(cpl_cpu_unit_rows_backward)
    (&be, tensor_of(dx), tensor_of(dx), tensor_of(x), scale);
}

size_t CPL_ISA_NAME(cpl_cpu_host_figures_bytes)(int64_t n, int64_t d)
{
    const cpl_backend be = on(1, NULL, 0);
    const cpl_work work  = {.n_experts = n, .d_model = d};
    return CPL_ISA_NAME(cpl_cpu_figures_scratch)(&be, &work);
}

void CPL_ISA_NAME(cpl_cpu_host_coupling_figures)(cpl_coupling_figures *out, const float *M,
                                                 const float *eps, cpl_matrix rows,
                                                 const float *delta, const float *gate_norm,
                                                 const float *gate_spectral, int64_t top_k,
                                                 void *scratch)
{
    const int64_t n    = rows.rows;
    const size_t bytes = CPL_ISA_NAME(cpl_cpu_host_figures_bytes)(n, rows.cols);
    cpl_backend be     = on(1, scratch, bytes);
    const cpl_tensor R = tensor_of(rows), by = vector_of(delta, n * rows.cols);
    CPL_ISA_NAME(cpl_cpu_coupling_figures)
    (&be, cpl_tensor_1d(out, CPL_F64, CPL_N_FIGURES), vector_of(M, n * n), vector_of(eps, n), R, R,
     by, vector_of(gate_norm, n), vector_of(gate_spectral, n), cpl_tensor_none(), 1.0, top_k);
}

size_t CPL_ISA_NAME(cpl_cpu_host_spectral_bytes)(int64_t D, int64_t d)
{
    const cpl_backend be = on(1, NULL, 0);
    const cpl_work work  = {.d_expert = D, .d_model = d};
    return CPL_ISA_NAME(cpl_cpu_spectral_scratch)(&be, &work);
}

float CPL_ISA_NAME(cpl_cpu_host_spectral_norm)(cpl_matrix W, void *scratch)
{
    cpl_backend be = on(1, scratch, CPL_ISA_NAME(cpl_cpu_host_spectral_bytes)(W.rows, W.cols));
    float norm     = 0;
    CPL_ISA_NAME(cpl_cpu_spectral_norms)
    (&be, vector_of(&norm, 1), cpl_tensor_3d(W.at, CPL_F32, 1, W.rows, W.cols));
    return norm;
}
