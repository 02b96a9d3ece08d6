/* orth.cu - a loss that is 0 if the router rows are orthogonal.
 *
 * Room:    tensor/cuda. Operation: ops.h.
 * Names:   n experts, d model width; unit [n,d] the rows R^ of length 1; E = R^ R^T - I [n,n].
 * Method:  as tensor/cpu/orth.c. E's diagonal is set to 0 exactly. With U = 4 / n^2 E R^ the
 *          gradient of a row is the part of U orthogonal to the row, divided by the row's norm. */
#include "tensor/cuda/device.h"

enum {
    THREADS   = 256,
    WARPS     = THREADS / CPL_WARP,
    SUM_SLOTS = CPL_WARP + 1,
};

/* The arrays in scratch, and their size in bytes. */
typedef struct orth_view {
    double *norm;        /* [n] */
    float *unit;         /* [n,d] */
    float *E;            /* [n,n] */
    float *along_others; /* [n,d] E R^ */
    size_t bytes;
} orth_view;

static orth_view view_of(void *scratch, int64_t n, int64_t d)
{
    orth_view v;
    v.norm         = (double *)scratch;
    v.unit         = (float *)(v.norm + n);
    v.E            = v.unit + n * d;
    v.along_others = v.E + n * n;
    v.bytes        = (size_t)n * sizeof(double) + (size_t)(2 * n * d + n * n) * sizeof(float);
    return v;
}

extern "C" CPL_CUDA_SCRATCH(orth)
{
    (void)be;
    return view_of(NULL, work->n_experts, work->d_model).bytes;
}

/* Normalises the rows. A block takes one row. A zero row stays zero. */
__global__ void orth_unit_kernel(orth_view v, const float *R, int64_t d)
{
    CPL_SHARED(double, slots);
    const float *row = R + blockIdx.x * d;
    float *unit      = v.unit + blockIdx.x * d;
    double sum       = 0;
    for (int64_t k = threadIdx.x; k < d; k += THREADS) sum += (double)row[k] * (double)row[k];
    const double norm  = sqrt(cpl_block_sum(sum, slots));
    const double scale = norm == 0.0 ? 0.0 : 1.0 / norm;
    if (threadIdx.x == 0) v.norm[blockIdx.x] = norm;
    for (int64_t k = threadIdx.x; k < d; k += THREADS) unit[k] = (float)((double)row[k] * scale);
}

/* Computes E. A block computes one row of E, each of its warps some entries. */
__global__ void orth_products_kernel(orth_view v, int64_t n, int64_t d)
{
    const int lane  = (int)threadIdx.x % CPL_WARP;
    const int64_t i = blockIdx.x;
    for (int64_t j = threadIdx.x / CPL_WARP; j < n; j += WARPS) {
        const float *a = v.unit + i * d, *b = v.unit + j * d;
        float sum = 0;
        for (int64_t k = lane; k < d; k += CPL_WARP) sum += a[k] * b[k];
        sum = cpl_warp_sum(sum);
        if (lane == 0) v.E[i * n + j] = i == j ? 0.0f : sum;
    }
}

/* Adds the loss. Launched as one block. */
__global__ void orth_loss_kernel(double *loss, orth_view v, int64_t n)
{
    CPL_SHARED(double, slots);
    double sum = 0;
    for (int64_t i = threadIdx.x; i < n * n; i += THREADS) sum += (double)v.E[i] * (double)v.E[i];
    sum = cpl_block_sum(sum, slots);
    if (threadIdx.x == 0) *loss += sum / (double)(n * n);
}

/* Adds factor / norm (along_others - unit (unit . along_others)) to dR. A block takes one row. */
__global__ void orth_gradient_kernel(float *dR, orth_view v, int64_t n, int64_t d, double factor)
{
    CPL_SHARED(double, slots);
    const int64_t i   = blockIdx.x;
    const float *unit = v.unit + i * d, *E = v.E + i * n;
    float *others = v.along_others + i * d, *to = dR + i * d;
    double along = 0;
    if (v.norm[i] == 0.0) return; /* the whole block */
    for (int64_t k = threadIdx.x; k < d; k += THREADS) {
        float sum = 0;
        for (int64_t j = 0; j < n; j++) sum += E[j] * v.unit[j * d + k];
        others[k] = sum;
        along += (double)unit[k] * (double)sum;
    }
    along = cpl_block_sum(along, slots);
    for (int64_t k = threadIdx.x; k < d; k += THREADS)
        to[k] += (float)(factor / v.norm[i] * ((double)others[k] - along * (double)unit[k]));
}

extern "C" void cpl_cuda_orthogonality(cpl_backend *be, cpl_tensor loss, cpl_tensor dR,
                                       cpl_tensor R, float scale)
{
    const int64_t n = R.shape[0], d = R.shape[1];
    const orth_view v = view_of(be->scratch, n, d);
    const dim3 per_row((unsigned)n), block(THREADS);
    const size_t shared = SUM_SLOTS * sizeof(double);
    CPL_ASSERT(be->scratch_bytes >= v.bytes);
    if (n == 0) return;
    CPL_LAUNCH(be, orth_unit_kernel, per_row, block, shared, v, cpl_f32(R), d);
    CPL_LAUNCH(be, orth_products_kernel, per_row, block, 0, v, n, d);
    CPL_LAUNCH(be, orth_loss_kernel, dim3(1), block, shared, cpl_f64(loss), v, n);
    if (!dR.storage) return;
    CPL_LAUNCH(be, orth_gradient_kernel, per_row, block, shared, cpl_f32(dR), v, n, d,
               4.0 * (double)scale / (double)(n * n));
}
