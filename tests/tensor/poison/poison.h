/* poison.h - what the wrapped operations check and do before they call the real ones.
 *
 * Room:    tests/tensor. A backend around another one (tensor/backend/backend.h): outputs that are
 *          set and all of scratch are filled with NaN first, shapes must fit, ids must be in range,
 *          and outputs may overlap neither inputs nor each other but where ops.h allows it.
 * Names:   as in ops.h. What does not fit is a mistake of the programmer: an assert. */
#ifndef CPL_TENSOR_POISON_POISON_H
#define CPL_TENSOR_POISON_POISON_H

#include "tensor/backend/backend.h"

/* Makes *be the poisoned backend around `inner`, which must live as long. */
void cpl_backend_poison(cpl_backend *be, cpl_backend *inner);

/* cpl_poison_<operation>, with the operation's own signature; in poison_erc.c
 * cpl_poison_erc_<operation>. */
#define CPL_OP(name)     __typeof__(*((const cpl_ops *)0)->name) cpl_poison_##name;
#define CPL_ERC_OP(name) __typeof__(*((const cpl_erc_ops *)0)->name) cpl_poison_erc_##name;
#include "tensor/ops.def"

static inline cpl_backend *cpl_poison_inner(const cpl_backend *be)
{
    return be->own;
}

/* The inner backend as the operation is to see it, with be's scratch, which is poisoned. */
cpl_backend cpl_poison_begin(const cpl_backend *be);

/* Takes over what the operation left: its failure. */
void cpl_poison_end(cpl_backend *be, const cpl_backend *inner);

/* Fills x with NaN, or -1 where it holds whole numbers. None: nothing. */
void cpl_poison_set(cpl_tensor x);

/* x is there, of that type, and [rows, cols] when its leading dimensions are taken as one. */
void cpl_poison_fits(cpl_tensor x, cpl_dtype dtype, int64_t rows, int64_t cols);

/* The same for one dimension, however it is written. */
void cpl_poison_holds(cpl_tensor x, cpl_dtype dtype, int64_t count);

/* An operand of a product, or a table: F32 or BF16. */
void cpl_poison_is_float(cpl_tensor x);

/* x is there, [rows, cols] likewise, and F32, or BF16 where products are in bf16. */
void cpl_poison_activation(const cpl_backend *be, cpl_tensor x, int64_t rows, int64_t cols);

/* Every one of ids is in [low, high). */
void cpl_poison_in_range(cpl_tensor ids, int64_t low, int64_t high);

/* offset, token and row say the same and fit `expert` assignments: T tokens, K choices. */
void cpl_poison_plan(cpl_dispatch plan, int64_t T, int64_t K, int64_t n_experts);

/* No output shares a byte with another output or with an input. None and empty ones: nothing. */
typedef struct cpl_poison_list {
    const cpl_tensor *at;
    int count;
} cpl_poison_list;
void cpl_poison_apart(cpl_poison_list outputs, cpl_poison_list inputs);

/* Calls an operation of the inner backend with the scratch of `be`, poisoned first, and takes over
 * the failure that the operation leaves. */
#define CPL_POISON_CALL(operation, ...)                                                            \
    do {                                                                                           \
        cpl_backend inner_ = cpl_poison_begin(be);                                                 \
        inner_.ops->operation(&inner_, __VA_ARGS__);                                               \
        cpl_poison_end(be, &inner_);                                                               \
    } while (0)

#define CPL_POISON_LIST(...)                                                                       \
    (cpl_poison_list)                                                                              \
    {                                                                                              \
        (const cpl_tensor[]){__VA_ARGS__},                                                         \
            (int)(sizeof((const cpl_tensor[]){__VA_ARGS__}) / sizeof(cpl_tensor))                  \
    }

#endif /* CPL_TENSOR_POISON_POISON_H */
