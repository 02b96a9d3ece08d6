/* memory.h - arenas of tensors with one lifetime, in the memory of a backend.
 *
 * Room:  tensor.
 * Rule:  as base/arena.h: the same function that takes the pieces also measures them. A backend's
 *        memory holds only the numbers of tensors. Structures and lists that describe tensors lie
 *        in host memory with the arena's lifetime (cpl_tensor_take_host). */
#ifndef CPL_TENSOR_MEMORY_H
#define CPL_TENSOR_MEMORY_H

#include "base/arena.h"
#include "tensor/ops.h"

typedef struct cpl_tensor_arena {
    cpl_backend *be; /* owner of the tensors' memory; NULL while measuring */
    cpl_arena tensors;
    cpl_arena host;
} cpl_tensor_arena;

/* Returns an arena that only counts bytes. Tensors taken from it have no memory. */
cpl_tensor_arena cpl_tensor_arena_measure(void);

/* Returns an arena over `bytes` of the backend's memory, which the caller owns. */
cpl_tensor_arena cpl_tensor_arena_over(cpl_backend *be, void *memory, size_t bytes);

/* Returns the largest number of bytes of tensors taken so far. */
size_t cpl_tensor_arena_bytes(const cpl_tensor_arena *arena);

/* Returns the error for `bytes` that ops->take could not allocate: CPL_ERR_MEMORY, or the device's
 * failure. `what` names the use of the bytes. */
CPL_NODISCARD cpl_status cpl_tensor_no_memory(cpl_backend *be, size_t bytes, const char *what);

/* Allocates as much memory as `measured` counted, all zero, owned until cpl_tensor_arena_free.
 * `what` names the arena in the message of CPL_ERR_MEMORY. `measured` may be the arena itself. */
CPL_NODISCARD cpl_status cpl_tensor_arena_init(cpl_tensor_arena *arena, cpl_backend *be,
                                               const cpl_tensor_arena *measured, const char *what);
void cpl_tensor_arena_free(cpl_tensor_arena *arena);

/* A position in the arena. cpl_tensor_arena_release frees everything taken after the mark. */
typedef struct cpl_tensor_mark {
    size_t tensors, host;
} cpl_tensor_mark;
cpl_tensor_mark cpl_tensor_arena_mark(const cpl_tensor_arena *arena);
void cpl_tensor_arena_release(cpl_tensor_arena *arena, cpl_tensor_mark mark);

/* Returns the tensor `t` with memory of the arena, zero on the first use of the memory. The tensor
 * has no memory while the arena measures. */
cpl_tensor cpl_tensor_take(cpl_tensor_arena *arena, cpl_tensor t);

/* Return a new tensor taken from the arena: F32, or the type named on the line. */
cpl_tensor cpl_tensor_take_1d(cpl_tensor_arena *arena, int64_t a);
cpl_tensor cpl_tensor_take_2d(cpl_tensor_arena *arena, int64_t a, int64_t b);
cpl_tensor cpl_tensor_take_3d(cpl_tensor_arena *arena, int64_t a, int64_t b, int64_t c);
cpl_tensor cpl_tensor_take_ids(cpl_tensor_arena *arena, int64_t count);     /* I32 */
cpl_tensor cpl_tensor_take_numbers(cpl_tensor_arena *arena, int64_t count); /* F64 */

/* Returns memory of the host, zero on its first use, or NULL while the arena measures. */
void *cpl_tensor_take_host(cpl_tensor_arena *arena, size_t bytes);

/* Gives *t, a tensor of one dimension with its own memory, room for at least `count` numbers of
 * `dtype`. The numbers are not set and the old numbers are lost. *t must be all zero before its
 * first use. Returns CPL_ERR_MEMORY if memory is not available. */
CPL_NODISCARD cpl_status cpl_tensor_reserve(cpl_tensor *t, cpl_backend *be, cpl_dtype dtype,
                                            int64_t count);
void cpl_tensor_free(cpl_tensor *t, cpl_backend *be);

/* Returns the number in x [1] F64. Waits for all earlier operations, as get does. */
double cpl_tensor_number(cpl_backend *be, cpl_tensor x);

#endif /* CPL_TENSOR_MEMORY_H */
