/* copies.c - see copies.h */
#include "tensor/cuda/copies.h"

#include <stdlib.h>

enum { MOST_TENSORS = 32 }; /* of one operation */

/* Tensors that are the same memory have one copy. */
typedef struct copied {
    cpl_tensor host, there;
} copied;

typedef struct copying {
    cpl_backend inner;
    copied list[MOST_TENSORS];
    int count;
} copying;

typedef void run_fn(cpl_backend *be, const void *arguments);

static copying *of(const cpl_backend *be)
{
    return be->own;
}

static copied *find(copying *c, const void *host)
{
    for (int i = 0; i < c->count; i++)
        if (c->list[i].host.storage == host) return &c->list[i];
    return NULL;
}

static void note_tensor(copying *c, cpl_tensor t)
{
    copied *known = find(c, t.storage);
    if (!known) {
        CPL_ASSERT(c->count < MOST_TENSORS);
        known       = &c->list[c->count++];
        known->host = t;
    } else if (cpl_tensor_bytes(t) > cpl_tensor_bytes(known->host)) {
        known->host = t;
    }
}

static void reach(cpl_backend *be, cpl_tensor *const *tensors, int count)
{
    copying *c = of(be);
    c->count   = 0;
    for (int i = 0; i < count; i++)
        if (tensors[i]->storage) note_tensor(c, *tensors[i]);
    for (int i = 0; i < c->count; i++) {
        copied *one        = &c->list[i];
        one->there         = one->host;
        one->there.storage = c->inner.ops->take(&c->inner, cpl_tensor_bytes(one->host));
        CPL_ASSERT(one->there.storage);
        c->inner.ops->put(&c->inner, one->there, one->host.storage);
    }
    for (int i = 0; i < count; i++)
        if (tensors[i]->storage) tensors[i]->storage = find(c, tensors[i]->storage)->there.storage;
}

static void give_work(cpl_backend *be, run_fn *run, const void *arguments, size_t bytes)
{
    copying *c = of(be);
    (void)bytes;
    run(&c->inner, arguments);
    for (int i = 0; i < c->count; i++) {
        copied *one = &c->list[i];
        c->inner.ops->get(&c->inner, one->host.storage, one->there);
        c->inner.ops->give(&c->inner, one->there.storage);
    }
}

#include "far_operations.inc" /* by tools/make_operations.py */

static void *take(cpl_backend *be, size_t bytes)
{
    (void)be;
    return malloc(bytes);
}

static void give(cpl_backend *be, void *memory)
{
    (void)be;
    free(memory);
}

/* Scratch is the other's, for the operations run there. */
static size_t scratch_bytes(const cpl_backend *be, const cpl_work *work)
{
    const cpl_status status = cpl_backend_reserve(&of(be)->inner, work);
    CPL_ASSERT(status == CPL_OK);
    return 1;
}

static cpl_status sync(cpl_backend *be)
{
    return of(be)->inner.ops->sync(&of(be)->inner);
}

static void end(cpl_backend *be)
{
    cpl_backend_free(&of(be)->inner);
    free(be->own);
}

void cpl_backend_copies(cpl_backend *be, const cpl_backend *inner)
{
    static cpl_ops ops;
    copying *c = calloc(1, sizeof *c);
    CPL_ASSERT(c);
    c->inner = *inner;
    fill_table(&ops);
    ops.take          = take;
    ops.give          = give;
    ops.scratch_bytes = scratch_bytes;
    ops.sync          = sync;
    *be               = (cpl_backend){.ops       = &ops,
                                      .own       = c,
                                      .close     = end,
                                      .name      = "copies",
                                      .device    = inner->device,
                                      .compute   = inner->compute,
                                      .n_threads = inner->n_threads,
                                      .failure   = CPL_OK};
}
