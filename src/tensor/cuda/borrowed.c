/* borrowed.c - see borrowed.h */
#include "tensor/cuda/borrowed.h"

#include <stdlib.h>

#include "tensor/cuda/vendor.h"

/* A tensor's copy, for the time of one operation. Tensors that are the same memory have one copy. */
typedef struct borrowed {
    void *device, *host;
    size_t bytes;
} borrowed;

struct cpl_cuda_copies {
    borrowed list[CPL_CUDA_MOST_TENSORS];
    int count;
};

typedef void run_fn(cpl_backend *be, const void *arguments);

static void *host_memory(cpl_backend *be, size_t bytes)
{
    void *memory = cpl_cuda_of(be)->cpu.ops->take(&cpl_cuda_of(be)->cpu, bytes ? bytes : 1);
    if (!memory) cpl_cuda_fail(be, "out of memory of the host, for an operation without a kernel");
    return memory;
}

/* The copy of `bytes` at `device`; NULL if there is none yet. */
static borrowed *find(struct cpl_cuda_copies *copies, const void *device)
{
    for (int i = 0; i < copies->count; i++)
        if (copies->list[i].device == device) return &copies->list[i];
    return NULL;
}

static void note_tensor(struct cpl_cuda_copies *copies, cpl_tensor t)
{
    if (!t.storage) return;
    borrowed *c = find(copies, t.storage);
    if (!c) {
        CPL_ASSERT(copies->count < CPL_CUDA_MOST_TENSORS);
        c  = &copies->list[copies->count++];
        *c = (borrowed){.device = t.storage};
    }
    c->bytes = cpl_tensor_bytes(t) > c->bytes ? cpl_tensor_bytes(t) : c->bytes;
}

static bool fetch(cpl_backend *be, struct cpl_cuda_copies *copies)
{
    for (int i = 0; i < copies->count; i++) {
        borrowed *c = &copies->list[i];
        c->host     = host_memory(be, c->bytes);
        if (!c->host) return false;
        if (!c->bytes) continue;
        const char *sentence = cpl_vendor_get(cpl_cuda_of(be), c->host, c->device, c->bytes);
        if (sentence) cpl_cuda_fail(be, sentence);
    }
    return true;
}

/* Fetches the tensors of an operation, and leads it to their copies. */
static void reach(cpl_backend *be, cpl_tensor *const *tensors, int count)
{
    struct cpl_cuda_copies *copies = cpl_cuda_of(be)->copies;
    copies->count                  = 0;
    for (int i = 0; i < count; i++) note_tensor(copies, *tensors[i]);
    if (!fetch(be, copies)) return;
    for (int i = 0; i < count; i++)
        if (tensors[i]->storage) tensors[i]->storage = find(copies, tensors[i]->storage)->host;
}

static void grow_scratch(cpl_backend *be)
{
    cpl_cuda *c = cpl_cuda_of(be);
    if (c->cpu_scratch <= c->cpu.scratch_bytes) return;
    c->cpu.ops->give(&c->cpu, c->cpu.scratch);
    c->cpu.scratch       = host_memory(be, c->cpu_scratch);
    c->cpu.scratch_bytes = c->cpu.scratch ? c->cpu_scratch : 0;
}

/* Runs it on the copies, and puts them back. */
static void give_work(cpl_backend *be, run_fn *run, const void *arguments, size_t bytes)
{
    cpl_cuda *c                    = cpl_cuda_of(be);
    struct cpl_cuda_copies *copies = c->copies;
    (void)bytes;
    grow_scratch(be);
    c->cpu.compute = be->compute;
    if (be->failure == CPL_OK) run(&c->cpu, arguments);
    if (c->cpu.failure != CPL_OK) cpl_cuda_fail(be, "an operation without a kernel failed");
    for (int i = 0; i < copies->count; i++) {
        borrowed *x          = &copies->list[i];
        const char *sentence = be->failure == CPL_OK && x->bytes
                                   ? cpl_vendor_put(c, x->device, x->host, x->bytes)
                                   : NULL;
        if (sentence) cpl_cuda_fail(be, sentence);
        c->cpu.ops->give(&c->cpu, x->host);
        x->host = NULL;
    }
}

#include "operations.inc" /* by tools/make_operations.py */

void cpl_cuda_borrow_all(cpl_ops *ops)
{
    fill_table(ops);
}

void cpl_cuda_expect(const cpl_backend *be, const cpl_work *work)
{
    cpl_cuda *c        = cpl_cuda_of(be);
    const size_t bytes = c->cpu.ops->scratch_bytes(&c->cpu, work);
    c->cpu_scratch     = bytes > c->cpu_scratch ? bytes : c->cpu_scratch;
}

bool cpl_cuda_begin_borrowing(cpl_cuda *c)
{
    c->copies = calloc(1, sizeof *c->copies);
    return c->copies;
}

void cpl_cuda_end_borrowing(cpl_cuda *c)
{
    c->cpu.ops->give(&c->cpu, c->cpu.scratch);
    free(c->copies);
    c->copies = NULL;
}
