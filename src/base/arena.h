/* arena.h - arenas, pools and counted allocation. An arena holds memory of one lifetime.
 *
 * Room:  base.
 * Rule:  three lifetimes, three arenas: model (weights), run (gradients, moments), step
 *        (activations). The same function that takes the pieces also measures them: on an arena
 *        made by cpl_arena_measure every take returns NULL and only counts. So the memory that
 *        `couplet plan` prints equals that of a run. */
#ifndef CPL_BASE_ARENA_H
#define CPL_BASE_ARENA_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

enum { CPL_ALIGNMENT = 64 }; /* bytes; every piece starts on a cache line */

typedef struct cpl_arena {
    char *base;      /* NULL while measuring */
    size_t capacity; /* bytes; SIZE_MAX while measuring */
    size_t used, peak;
} cpl_arena;

/* Owns `bytes` of zeroed memory until cpl_arena_free. `what` names the arena in the message of
 * CPL_ERR_MEMORY. `bytes` may be 0. */
CPL_NODISCARD cpl_status cpl_arena_init(cpl_arena *arena, size_t bytes, const char *what);
void cpl_arena_free(cpl_arena *arena);

/* Makes an arena that owns no memory and only counts. */
void cpl_arena_measure(cpl_arena *arena);

/* Returns an arena over `bytes` bytes of the caller's memory. With NULL, SIZE_MAX it measures. */
static inline cpl_arena cpl_arena_over(void *base, size_t bytes)
{
    return (cpl_arena){.base = (char *)base, .capacity = bytes};
}

/* Returns the next `bytes` bytes, aligned to CPL_ALIGNMENT and zero on the first use of the memory.
 * Returns NULL while measuring. Taking more than was measured is a programming error (assert). */
void *cpl_arena_take(cpl_arena *arena, size_t bytes);

/* Returns the position in the arena. cpl_arena_release frees the memory taken after the mark. */
size_t cpl_arena_mark(const cpl_arena *arena);
void cpl_arena_release(cpl_arena *arena, size_t mark);

/* Returns heap memory, aligned to CPL_ALIGNMENT and not zeroed, or NULL with an error message if
 * memory is not available. All allocations of the library go through these three functions, so that
 * tests can count them (a training step allocates nothing) and make the n-th one fail. */
void *cpl_alloc(size_t bytes);
void *cpl_realloc(void *old, size_t bytes); /* like realloc, for `old` from cpl_alloc or NULL */
void cpl_free(void *memory);
int64_t cpl_alloc_count(void);       /* calls of cpl_alloc and cpl_realloc so far, all threads */
int64_t cpl_alloc_in_use(void);      /* bytes allocated and not freed yet */
int64_t cpl_alloc_peak(void);        /* largest number of bytes in use since the last call */
void cpl_alloc_fail_at(int64_t nth); /* for tests: the n-th call from now fails, no call if 0 */

/* ---- many small pieces ---- */

/* Small pieces of memory that are freed together. All zero is an empty pool. A failed allocation is
 * recorded, so that the user can check once at the end. */
typedef struct cpl_pool {
    void *chunks; /* the last chunk, which begins with the address of the previous chunk */
    size_t left;  /* free bytes at the end of the last chunk */
    char *next;
    bool failed;
} cpl_pool;

/* Returns the next `bytes` bytes, zero and aligned for any type, or NULL for lack of memory. */
void *cpl_pool_take(cpl_pool *pool, size_t bytes);

/* Returns a formatted string, or for lack of memory a constant message. Never returns NULL. */
const char *cpl_pool_printf(cpl_pool *pool, const char *format, ...) CPL_PRINTF(2, 3);

/* Returns a copy of `length` bytes and a NUL. Never returns NULL, like cpl_pool_printf. */
const char *cpl_pool_copy(cpl_pool *pool, const char *bytes, size_t length);

/* Returns CPL_ERR_MEMORY if an allocation has failed. */
CPL_NODISCARD cpl_status cpl_pool_status(const cpl_pool *pool);

void cpl_pool_free(cpl_pool *pool);

#endif /* CPL_BASE_ARENA_H */
