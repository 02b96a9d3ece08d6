/* poison.h - the checks and fills of the wrapped operations before they call the real ones.
 *
 * Room:    tests/tensor. A backend around another one (tensor/backend/backend.h): outputs that are
 *          set and all of scratch are filled with NaN first, shapes must fit, ids must be in range,
 *          and outputs may overlap neither inputs nor each other but where ops.h allows it.
 * Names:   as in ops.h. A misfit is a mistake of the programmer: an assert. */
#ifndef CPL_TENSOR_POISON_POISON_H
#define CPL_TENSOR_POISON_POISON_H

#include "tensor/backend/backend.h"

/* Makes *be the poisoned backend around `inner`, which must live at least as long. */
void cpl_backend_poison(cpl_backend *be, cpl_backend *inner);

/* Declares cpl_poison_<operation> with the operation's own signature. The functions of poison_erc.c
 * are cpl_poison_erc_<operation>. */
#define CPL_OP(name)     __typeof__(*((const cpl_ops *)0)->name) cpl_poison_##name;
#define CPL_ERC_OP(name) __typeof__(*((const cpl_erc_ops *)0)->name) cpl_poison_erc_##name;
#include "tensor/ops.def"

static inline cpl_backend *cpl_poison_inner(const cpl_backend *be)
{
    return be->own;
}

/* Returns the inner backend for the operation, with be's scratch, which is poisoned. */
cpl_backend cpl_poison_begin(const cpl_backend *be);

/* Copies the failure of the operation from the inner backend to *be. */
void cpl_poison_end(cpl_backend *be, const cpl_backend *inner);

/* Fills x with NaN, or with -1 if it holds whole numbers. Ignores a tensor without storage. */
void cpl_poison_set(cpl_tensor x);

/* Asserts that x is present, of this type, and [rows, cols] with its leading dimensions as one. */
void cpl_poison_fits(cpl_tensor x, cpl_dtype dtype, int64_t rows, int64_t cols);

/* Asserts that x is present, has this type, and holds `count` numbers, whatever its dimensions. */
void cpl_poison_holds(cpl_tensor x, cpl_dtype dtype, int64_t count);

/* Asserts that an operand of a product, or a table, is F32 or BF16. */
void cpl_poison_is_float(cpl_tensor x);

/* Asserts that x is present, [rows, cols] likewise, and F32, or BF16 where products are in bf16. */
void cpl_poison_activation(const cpl_backend *be, cpl_tensor x, int64_t rows, int64_t cols);

/* Asserts that every id is in [low, high). */
void cpl_poison_in_range(cpl_tensor ids, int64_t low, int64_t high);

/* Asserts that offset, token and row agree and fit `expert` assignments: T tokens, K choices. */
void cpl_poison_plan(cpl_dispatch plan, int64_t T, int64_t K, int64_t n_experts);

/* A list of outputs and inputs. No output may share a byte with another output or with an input.
 * Absent and empty tensors are ignored. */
typedef struct cpl_poison_list {
    const cpl_tensor *at;
    int count;
} cpl_poison_list;
void cpl_poison_apart(cpl_poison_list outputs, cpl_poison_list inputs);

/* Calls an operation of the inner backend with the scratch of `be`, which is poisoned first, and
 * copies the failure of the operation. */
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
