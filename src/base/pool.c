/* pool.c - see pool.h */
#include "base/pool.h"

#include <stdalign.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/arena.h"

enum { CHUNK_BYTES = 1 << 16, LINE_BYTES = 1024, ALIGN = alignof(max_align_t) };

static size_t rounded(size_t bytes)
{
    return (bytes + ALIGN - 1) / ALIGN * ALIGN;
}

static bool grow(cpl_pool *pool, size_t bytes)
{
    size_t size = rounded(sizeof(void *)) + (bytes > CHUNK_BYTES ? bytes : CHUNK_BYTES);
    char *chunk = cpl_alloc(size);
    if (!chunk) {
        pool->failed = true;
        return false;
    }
    memcpy(chunk, &pool->chunks, sizeof(void *));
    pool->chunks = chunk;
    pool->next   = chunk + rounded(sizeof(void *));
    pool->left   = size - rounded(sizeof(void *));
    return true;
}

void *cpl_pool_take(cpl_pool *pool, size_t bytes)
{
    bytes = rounded(bytes ? bytes : 1);
    if (bytes > pool->left && !grow(pool, bytes)) return NULL;
    void *piece = pool->next;
    pool->next += bytes;
    pool->left -= bytes;
    memset(piece, 0, bytes);
    return piece;
}

const char *cpl_pool_printf(cpl_pool *pool, const char *format, ...)
{
    char line[LINE_BYTES];
    va_list args;
    va_start(args, format);
    vsnprintf(line, sizeof line, format, args);
    va_end(args);
    return cpl_pool_copy(pool, line, strlen(line));
}

const char *cpl_pool_copy(cpl_pool *pool, const char *bytes, size_t length)
{
    char *copy = cpl_pool_take(pool, length + 1);
    if (!copy) return "out of memory";
    if (length) memcpy(copy, bytes, length);
    return copy;
}

cpl_status cpl_pool_status(const cpl_pool *pool)
{
    return pool->failed ? CPL_FAIL(CPL_ERR_MEMORY, "out of memory") : CPL_OK;
}

void cpl_pool_free(cpl_pool *pool)
{
    while (pool->chunks) {
        void *before;
        memcpy(&before, pool->chunks, sizeof before);
        cpl_free(pool->chunks);
        pool->chunks = before;
    }
    *pool = (cpl_pool){0};
}
