/* gpu.c - see gpu.h */
#include "tensor/backend/gpu.h"

#include <math.h>

#include "tensor/backend/backend.h"

const cpl_gpu cpl_gpus[] = {
#define CPL_GPU(name, memory, bf16, bandwidth)                                                     \
    {name, memory * 0x1p30, bf16 * 1e12, bandwidth * 1e9},
#include "tensor/backend/gpus.def"
};

const char cpl_gpu_names[] =
#define CPL_GPU(name, ...) "|" name
#include "tensor/backend/gpus.def"
    ;

/* ---- scratch, as the files of tensor/cuda count it ---- */

static double largest(double a, double b)
{
    return a > b ? a : b;
}

static double lesser(double a, double b)
{
    return a < b ? a : b;
}

/* Returns the scratch of gemm.cu: one whole operand rounded to bf16, a block of the other operand,
 * and a gradient of the tokens. */
static double of_products(cpl_dtype compute, const cpl_work *w)
{
    const double d = (double)w->d_model, gates = (double)(w->n_experts * w->gate_rank);
    double wide     = largest((double)w->n_tokens, (double)w->vocab_size);
    wide            = largest(largest(wide, d), (double)w->d_expert);
    wide            = largest(largest(wide, (double)w->d_shared), gates);
    const double dy = 2 * (double)w->n_tokens * largest(d, gates);
    return compute == CPL_F32 ? 0 : 4 * wide * d + dy + lesser(4 * wide * wide, 0x1p27);
}

/* Returns the scratch of xent.cu: logits of a chunk, their bf16 gradient, scratch of a product. */
static double of_head(cpl_dtype compute, const cpl_work *w)
{
    const double V = (double)w->vocab_size, each = compute == CPL_F32 ? 4 : 6;
    const double chunk = V > 0 ? largest(128 * floor(0x1p19 / V), 1) : 0;
    return lesser((double)w->n_tokens, chunk) * V * each + of_products(compute, w);
}

/* Returns the scratch of experts.cu: routing weights, parts of their gradients, h, dy in bf16, and
 * the experts' outputs or some columns of them. */
static double of_experts(cpl_dtype compute, const cpl_work *w, int64_t choices, double width)
{
    const double rows = (double)(w->n_tokens * choices), d = (double)w->d_model;
    const double tile  = compute == CPL_F32 ? 64 : 128;
    const double parts = w->training ? ceil(width / tile) : 0;
    const double dy    = w->training && compute == CPL_BF16 ? 2 * (double)w->n_tokens * d : 0;
    const double out   = lesser(4 * rows * d, largest(5 * 0x1p29, 4 * rows * tile));
    return 4 * rows * (1 + parts) + rows * width * (double)cpl_dtype_bytes(compute) + dy + out;
}

/* Returns the scratch of erc_sweep.cu: the activations of all experts, or of a chunk of them twice,
 * and the proxies and gradients. */
static double of_coupling(const cpl_work *w)
{
    const double n = (double)w->n_experts, d = (double)w->d_model, chunk = 0x1p26;
    const double all = 4 * n * n * (3 * (double)w->d_expert + d);
    return (all < chunk ? all : 2 * chunk) + 8 * n * d;
}

size_t cpl_gpu_scratch(cpl_dtype compute, const cpl_work *w)
{
    double most = of_experts(compute, w, w->top_k, (double)w->d_expert);
    most        = largest(most, of_experts(compute, w, 1, (double)w->d_shared));
    return (size_t)largest(largest(most, of_coupling(w)), of_head(compute, w));
}

/* ---- the backend ---- */

static size_t scratch_bytes(const cpl_backend *be, const cpl_work *work)
{
    return cpl_gpu_scratch(be->compute, work);
}

static void room(cpl_backend *be, double *there, double *all)
{
    *all   = ((const cpl_gpu *)be->own)->memory;
    *there = *all - (double)cpl_gpu_device_bytes;
}

void cpl_backend_described(cpl_backend *be, const cpl_gpu *gpu, cpl_dtype compute)
{
    static const cpl_ops ops = {.scratch_bytes = scratch_bytes};
    *be                      = (cpl_backend){.ops       = &ops,
                                             .own       = (void *)gpu,
                                             .name      = "cuda",
                                             .device    = gpu->name,
                                             .room      = room,
                                             .compute   = compute == cpl_dtype_fastest ? CPL_BF16 : compute,
                                             .n_threads = 1};
}
