/* pool.h - memory of many small pieces that live and die together.
 *
 * Room:  base. */
#ifndef CPL_BASE_POOL_H
#define CPL_BASE_POOL_H

#include <stdbool.h>
#include <stddef.h>

#include "base/status.h"

/* All zero is an empty one. A failed allocation is remembered, so that its user checks once. */
typedef struct cpl_pool {
    void *chunks; /* the last one; each begins with the address of the one before */
    size_t left;  /* bytes free at the end of the last one */
    char *next;
    bool failed;
} cpl_pool;

/* The next `bytes`, zero, aligned for any type; NULL if there is no memory. */
void *cpl_pool_take(cpl_pool *pool, size_t bytes);

/* A sentence; never NULL: without memory it is one that says so. */
const char *cpl_pool_printf(cpl_pool *pool, const char *format, ...) CPL_PRINTF(2, 3);

/* A copy of `length` bytes and a NUL behind them; never NULL, as cpl_pool_printf. */
const char *cpl_pool_copy(cpl_pool *pool, const char *bytes, size_t length);

/* CPL_ERR_MEMORY if something could not be taken. */
CPL_NODISCARD cpl_status cpl_pool_status(const cpl_pool *pool);

void cpl_pool_free(cpl_pool *pool);

#endif /* CPL_BASE_POOL_H */
