/* borrowed.c - see borrowed.h */
#include "tensor/cuda/borrowed.h"

#include "tensor/cuda/vendor.h"

const char cpl_cuda_borrowed[] = "normal, spectral_norms, coupling_figures";

static void *host_memory(cpl_backend *be, size_t bytes)
{
    void *memory = cpl_cuda_of(be)->cpu.ops->take(&cpl_cuda_of(be)->cpu, bytes);
    if (!memory) cpl_cuda_fail(be, "out of memory of the host, for an operation without a kernel");
    return memory;
}

static void grow_scratch(cpl_backend *be)
{
    cpl_cuda *c = cpl_cuda_of(be);
    if (c->cpu_scratch <= c->cpu.scratch_bytes) return;
    c->cpu.ops->give(&c->cpu, c->cpu.scratch);
    c->cpu.scratch       = host_memory(be, c->cpu_scratch);
    c->cpu.scratch_bytes = c->cpu.scratch ? c->cpu_scratch : 0;
}

/* Replaces the operation's tensors by copies in host memory. tensors[0] is the output. Returns the
 * CPU backend, or NULL if the device has failed or memory is not available. */
static cpl_backend *borrow(cpl_backend *be, cpl_tensor *tensors, int count)
{
    cpl_cuda *c = cpl_cuda_of(be);
    grow_scratch(be);
    for (int i = 0; i < count; i++) {
        const void *device = tensors[i].storage;
        const size_t bytes = cpl_tensor_bytes(tensors[i]);
        if (!device) continue;
        tensors[i].storage = host_memory(be, bytes);
        if (i == 0 || be->failure != CPL_OK) continue;
        const char *sentence = cpl_vendor_get(c, tensors[i].storage, device, bytes);
        if (sentence) cpl_cuda_fail(be, sentence);
    }
    c->cpu.compute = be->compute;
    return be->failure == CPL_OK ? &c->cpu : NULL;
}

/* Copies the output to the device and frees the copies. */
static void give_back(cpl_backend *be, cpl_tensor out, const cpl_tensor *tensors, int count)
{
    cpl_cuda *c = cpl_cuda_of(be);
    if (c->cpu.failure != CPL_OK) cpl_cuda_fail(be, "an operation without a kernel failed");
    if (be->failure == CPL_OK) {
        const char *sentence =
            cpl_vendor_put(c, out.storage, tensors[0].storage, cpl_tensor_bytes(out));
        if (sentence) cpl_cuda_fail(be, sentence);
    }
    for (int i = 0; i < count; i++) c->cpu.ops->give(&c->cpu, tensors[i].storage);
}

void cpl_cuda_normal(cpl_backend *be, cpl_tensor y, float std, float cut, cpl_rng_key key,
                     int64_t first)
{
    cpl_tensor here[] = {y};
    cpl_backend *cpu  = borrow(be, here, 1);
    if (cpu) cpu->ops->normal(cpu, here[0], std, cut, key, first);
    give_back(be, y, here, 1);
}

void cpl_cuda_spectral_norms(cpl_backend *be, cpl_tensor out, cpl_tensor x)
{
    cpl_tensor here[] = {out, x};
    cpl_backend *cpu  = borrow(be, here, 2);
    if (cpu) cpu->ops->spectral_norms(cpu, here[0], here[1]);
    give_back(be, out, here, 2);
}

void cpl_cuda_coupling_figures(cpl_backend *be, cpl_tensor out, cpl_tensor M, cpl_tensor eps,
                               cpl_tensor R, cpl_tensor rows, cpl_tensor delta,
                               cpl_tensor gate_norm, cpl_tensor gate_spectral, cpl_tensor own,
                               double alpha, int64_t top_k)
{
    cpl_tensor here[] = {out, M, eps, R, rows, delta, gate_norm, gate_spectral, own};
    enum { N_TENSORS = sizeof here / sizeof *here };
    cpl_backend *cpu = borrow(be, here, N_TENSORS);
    if (cpu)
        cpu->ops->coupling_figures(cpu, here[0], here[1], here[2], here[3], here[4], here[5],
                                   here[6], here[7], here[8], alpha, top_k);
    give_back(be, out, here, N_TENSORS);
}

void cpl_cuda_expect(const cpl_backend *be, const cpl_work *work)
{
    cpl_cuda *c        = cpl_cuda_of(be);
    cpl_work own       = *work;
    own.n_tokens       = 1; /* operations on tokens and gradients have kernels */
    own.training       = false;
    const size_t bytes = c->cpu.ops->scratch_bytes(&c->cpu, &own);
    c->cpu_scratch     = bytes > c->cpu_scratch ? bytes : c->cpu_scratch;
}
