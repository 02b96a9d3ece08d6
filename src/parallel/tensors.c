/* tensors.c - see tensors.h */
#include "parallel/tensors.h"

#include "base/arena.h"

void cpl_group_sum_tensor(cpl_group *g, cpl_backend *be, cpl_tensor x)
{
    const int64_t count = cpl_tensor_count(x);
    if (g->size == 1) return;
    void *message = cpl_alloc(cpl_tensor_bytes(x));
    if (!message) {
        cpl_group_fail(g, CPL_ERR_MEMORY);
        return;
    }
    be->ops->get(be, message, x);
    if (x.dtype == CPL_F32)
        cpl_group_sum_f32(g, message, count);
    else if (x.dtype == CPL_I32)
        cpl_group_sum_i32(g, message, count);
    else
        cpl_group_sum_f64(g, message, count);
    be->ops->put(be, x, message);
    cpl_free(message);
}

void cpl_group_all_to_all_tensor(cpl_group *g, cpl_backend *be, cpl_tensor to,
                                 const int64_t *received, cpl_tensor from, const int64_t *sent,
                                 void *message)
{
    char *in = message, *out = in + cpl_tensor_bytes(to);
    be->ops->get(be, out, from);
    cpl_group_all_to_all(g, in, received, out, sent,
                         cpl_tensor_cols(from) * (int64_t)cpl_dtype_bytes(from.dtype));
    be->ops->put(be, to, in);
}
