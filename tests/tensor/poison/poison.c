/* poison.c - the wrapping backend: its table. See poison.h. */
#include "tensor/poison/poison.h"

static void *take(cpl_backend *be, size_t bytes)
{
    return cpl_poison_inner(be)->ops->take(cpl_poison_inner(be), bytes);
}

static void give(cpl_backend *be, void *memory)
{
    cpl_poison_inner(be)->ops->give(cpl_poison_inner(be), memory);
}

static void put(cpl_backend *be, cpl_tensor to, const void *from)
{
    cpl_poison_inner(be)->ops->put(cpl_poison_inner(be), to, from);
}

static void get(cpl_backend *be, void *to, cpl_tensor from)
{
    cpl_poison_inner(be)->ops->get(cpl_poison_inner(be), to, from);
}

static size_t scratch_bytes(const cpl_backend *be, const cpl_work *work)
{
    return cpl_poison_inner(be)->ops->scratch_bytes(cpl_poison_inner(be), work);
}

static cpl_status sync_inner(cpl_backend *be)
{
    cpl_backend inner = cpl_poison_begin(be);
    cpl_status status = inner.ops->sync(&inner);
    cpl_poison_end(be, &inner);
    return status;
}

static const cpl_ops ops = {
#define CPL_OP(name)     .name = cpl_poison_##name,
#define CPL_ERC_OP(name) .erc.name = cpl_poison_erc_##name,
#include "tensor/ops.def"
    .take          = take,
    .give          = give,
    .put           = put,
    .get           = get,
    .scratch_bytes = scratch_bytes,
    .sync          = sync_inner,
};

void cpl_backend_poison(cpl_backend *be, cpl_backend *inner)
{
    *be = (cpl_backend){
        .ops       = &ops,
        .name      = "poison",
        .compute   = inner->compute,
        .n_threads = inner->n_threads,
        .own       = inner,
    };
}
